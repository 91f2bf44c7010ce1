"""A real Spark standalone cluster on the loopback interface: a master, and workers that can be killed like machines."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import httpx

from testbed.jars import java
from testbed.process import Launcher, ManagedProcess, TestbedError, claim_port, free_port, stop_all, wait_until

_DAEMON_MEGABYTES = 192
"""Heap of a master or a worker, which only look after others."""


def spark_class() -> Path:
    """Spark's own launcher out of the installed PySpark; `TestbedError` if there is none."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise TestbedError("spark: PySpark is not installed: run `make setup`")
    return Path(next(iter(spec.submodule_search_locations))) / "bin" / "spark-class"


class SparkWorker:
    """One worker: its executors are its children, and die with it."""

    def __init__(self, name: str, master_url: str, folder: Path, cores: int, memory_megabytes: int) -> None:
        self.name = name
        self.port = free_port()
        self.web_port = free_port()
        self.folder = folder / name
        ends = [("--host", "127.0.0.1"), ("--port", self.port), ("--webui-port", self.web_port)]
        share = [("--cores", cores), ("--memory", f"{memory_megabytes}m"), ("--work-dir", self.folder / "work")]
        arguments = [str(each) for pair in [*ends, *share] for each in pair]
        self.process = ManagedProcess(
            name,
            [str(spark_class()), "org.apache.spark.deploy.worker.Worker", *arguments, master_url],
            folder,
            environment={**_environment(), "SPARK_LOCAL_DIRS": str(self.folder / "local")},
        )

    def start(self) -> Self:
        """Start it; the master knows it a few seconds later."""
        for port in (self.port, self.web_port):
            claim_port(self.name, port)
        self.process.start()
        return self

    def executors(self) -> list[Mapping[str, Any]]:
        """Return its running executors; empty if it does not answer."""
        found: list[Mapping[str, Any]] = _json(self.web_port).get("executors", [])
        return found

    def kill(self) -> None:
        """Kill it as a failing machine would: executors and Python workers end at the same moment."""
        self.process.kill()


class SparkCluster(Launcher):
    """A master and `workers` workers; all their files are in `folder`."""

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, memory_megabytes: int = 1024) -> None:
        self.folder = folder
        self.port = free_port()
        self.web_port = free_port()
        self._cores = cores
        self._memory_megabytes = memory_megabytes
        command = [str(spark_class()), "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
        self.master = ManagedProcess(
            "spark-master",
            [*command, "--port", str(self.port), "--webui-port", str(self.web_port)],
            folder,
            environment=_environment(),
        )
        self.workers: list[SparkWorker] = []
        self._wanted = workers

    @property
    def url(self) -> str:
        """For `WEIR_ANALYZER_SPARK_MASTER`."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the settings with which a driver is reachable on the loopback interface."""
        return _environment()

    @property
    def processes(self) -> Sequence[ManagedProcess]:
        return [self.master, *(worker.process for worker in self.workers)]

    def start(self, timeout_seconds: float = 120.0) -> Self:
        """Start all of it, and wait until the master knows every worker."""
        java()
        for port in (self.port, self.web_port):
            claim_port("spark-master", port)
        self.master.start_ready(lambda: bool(self.state()), timeout_seconds=timeout_seconds)
        try:
            for _ in range(self._wanted):
                self.add_worker()
            self.wait_for_workers(self._wanted, timeout_seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def add_worker(self) -> SparkWorker:
        """Start one more, as when a machine comes; returns at once (see `wait_for_workers`)."""
        name = f"spark-worker-{len(self.workers) + 1}"
        worker = SparkWorker(name, self.url, self.folder, self._cores, self._memory_megabytes).start()
        self.workers.append(worker)
        return worker

    def wait_for_workers(self, count: int, timeout_seconds: float = 120.0) -> None:
        """Wait until the master counts `count` live workers."""

        def there() -> bool:
            self.master.check()
            return bool(self.state().get("aliveworkers") == count)

        wait_until(there, timeout_seconds=timeout_seconds, what=f"{count} Spark workers alive")

    def state(self) -> Mapping[str, Any]:
        """Return the master's status: workers, applications; empty while it does not answer."""
        return _json(self.web_port)

    def stop(self) -> None:
        """End all of it."""
        stop_all([*(worker.process for worker in self.workers), self.master])


def _environment() -> dict[str, str]:
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": f"{_DAEMON_MEGABYTES}m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }


def _json(port: int) -> Mapping[str, Any]:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/json/", timeout=5.0, trust_env=False)
        answer.raise_for_status()
        status: Mapping[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError):
        return {}
    return status
