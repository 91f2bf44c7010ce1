"""Everything a trial starts except the application: Kafka, Redis, the five services, the load and the probe."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from testbed.kafka import KafkaBroker
from testbed.process import Launcher, ManagedProcess, free_port, port_is_free, stop_all
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from weir_contracts import ScalingPolicy
from weir_runtime.http_client import client
from workloads.probe import Probe

from .options import INPUT_TOPIC, OUTPUT_PARTITIONS, OUTPUT_TOPIC, PARTITIONS, TrialOptions

SERVICES = ("knowledge", "monitor", "analyzer", "planner", "executor")
PLANNER_PORT = 8093
"""Default port of `weir planner`; another one if it is in use."""
LOOP_PARTITIONS = 2
"""Of Weir's own topics: on a small machine every further Spark partition costs latency."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class ServiceState:
    """A service of this trial, for the report."""

    name: str
    pid: int
    ready_seconds: float | None


class LoopStack(ABC):
    """Starts and stops one trial's parts; every log goes to `folder`. A subclass adds the application."""

    application_name: str
    """The application as the trial reports its start."""
    policy: ScalingPolicy
    """Policy that the trial creates; known once the subclass has its addresses."""

    def __init__(self, options: TrialOptions, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.kafka = KafkaBroker(folder / "kafka")
        self.redis = RedisServer(folder / "redis")
        self.services: dict[str, WeirService] = {}
        self.load_port = free_port()
        self.load: ManagedProcess | None = None
        self.probe: Probe | None = None
        self.began_at: float | None = None
        """Monotonic time at which the load began."""
        self._starting: list[Future[object]] = []

    @abstractmethod
    def _application_parts(self) -> dict[str, Launcher]:
        """Return what is started besides Kafka and Redis, by name."""

    @abstractmethod
    def _application_processes(self) -> list[ManagedProcess]:
        """Return the processes of the application and its cluster."""

    @abstractmethod
    def _run_application(self) -> None:
        """Run the application and wait until it processes records."""

    def _create_topics(self) -> None:
        self.kafka.create_topic(INPUT_TOPIC, PARTITIONS)
        self.kafka.create_topic(OUTPUT_TOPIC, OUTPUT_PARTITIONS)

    def _load_arguments(self) -> list[str]:
        """Return further options of the load generator."""
        return []

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.options.port}"

    @property
    def load_url(self) -> str:
        return f"http://127.0.0.1:{self.load_port}"

    @property
    def application_url(self) -> str:
        return f"{self.api_url}/v1/applications/{self.policy.application}"

    def processes(self) -> Iterator[ManagedProcess]:
        """Every process of the trial that was started."""
        yield from (process for process in self._all_processes() if process.started)

    def _all_processes(self) -> Iterator[ManagedProcess]:
        parts = [self.kafka.process, self.redis.process, *self._application_processes()]
        parts += [service.process for service in self.services.values()]
        yield from parts
        if self.load is not None:
            yield self.load

    def start(self, report: Report) -> None:
        """Start everything; `TestbedError` names the part that did not come up. Blocks until the load runs.

        Whatever interrupts it, `stop` ends what was started until then.
        """
        self._start_parts(report)
        self._start_services(report)
        with _timed(report, f"{self.application_name} and its load"):
            self._start_load()
            self._run_application()
            self.probe = Probe(self.kafka.bootstrap_servers, OUTPUT_TOPIC, input_topic=INPUT_TOPIC).start()
        with _timed(report, "the services are ready"):
            wait_all_ready(list(self.services.values()))
        self.put_policy(self.policy)
        self.begin_load()

    def _start_parts(self, report: Report) -> None:
        parts: dict[str, Launcher] = {"Kafka": self.kafka, "Redis": self.redis, **self._application_parts()}
        starts: dict[str, Callable[[], Launcher]] = {name: part.start for name, part in parts.items()}
        pool = ThreadPoolExecutor(len(starts), thread_name_prefix="trial-start")
        with _timed(report, ", ".join(starts)):
            self._starting = [pool.submit(start) for start in starts.values()]
            pool.shutdown(wait=False)
            for future in self._starting:
                future.result()
        self._create_topics()

    def _environment(self) -> dict[str, str]:
        loop = loop_settings(self.kafka.bootstrap_servers, LOOP_PARTITIONS, self.api_url, self.redis.url, self.folder)
        return {
            **loop,
            # A user's own planner runs on this machine.
            "WEIR_PLANNER_PLUGIN_SCHEMES": "http,https",
            "WEIR_PLANNER_PLUGIN_NETWORKS": "public,127.0.0.0/8,::1/128",
        }

    def _start_services(self, report: Report) -> None:
        planner_port = PLANNER_PORT if port_is_free(PLANNER_PORT) else free_port()
        if planner_port != PLANNER_PORT:
            report(f"the planner service answers at http://127.0.0.1:{planner_port}: set WEIR_PLANNER_SERVER to it")
        environment = {**self._environment(), "WEIR_KNOWLEDGE_PLANNER_URL": f"http://127.0.0.1:{planner_port}"}
        ports = {"knowledge": self.options.port, "planner": planner_port}
        report(f"starting {', '.join(SERVICES)}")
        for name in SERVICES:
            self.services[name] = self._service(name, environment, ports.get(name)).start()

    def _service(self, name: str, environment: dict[str, str], port: int | None) -> WeirService:
        """Return a service that is to be started."""
        return WeirService(name, self.folder, environment, port=port)

    def _start_load(self) -> None:
        command = [sys.executable, "-m", "workloads.loadgen", "--bootstrap", self.kafka.bootstrap_servers]
        command += ["--topic", INPUT_TOPIC, "--port", str(self.load_port), "--trace", self.options.trace]
        command += ["--peak-rate", f"{self.options.peak_rate:g}", "--paused"]
        if self.options.trace == "step":
            command += ["--levels", f"0:1,{self.options.step_at_seconds:g}:3"]
        if self.options.speedup is not None:
            command += ["--speedup", f"{self.options.speedup:g}"]
        command += self._load_arguments()
        self.load = ManagedProcess("loadgen", command, self.folder)
        self.load.start()
        self.load.wait_ready(lambda: answers(f"{self.load_url}/health"), timeout_seconds=30)

    def put_policy(self, policy: ScalingPolicy) -> None:
        """Create or replace the trial's policy."""
        with client() as http:
            url = f"{self.api_url}/v1/policies/{policy.application}"
            http.put(url, json=policy.to_document()).raise_for_status()

    def set_load(self, **changes: object) -> float:
        """Change the load (`rate` in records/s, `paused`, …); returns when, in seconds since the epoch."""
        with client() as http:
            http.put(f"{self.load_url}/load", json=changes).raise_for_status()
        return time.time()

    def begin_load(self) -> None:
        """Let the trace begin; from here the trial's time counts."""
        self.set_load(paused=False)
        self.began_at = time.monotonic()

    def elapsed_seconds(self) -> float:
        """Since the load began."""
        return 0.0 if self.began_at is None else time.monotonic() - self.began_at

    def states(self) -> list[ServiceState]:
        return [ServiceState(s.name, s.pid, s.ready_seconds) for s in self.services.values()]

    def check(self) -> None:
        """Raises `TestbedError` naming the first part that has died."""
        for process in self.processes():
            process.check()

    def stop(self, report: Report | None = None) -> None:
        """End everything, newest first, within 15 s. May be called again. `report` gets what could not be ended."""
        if self.probe is not None:
            self.probe.stop()
        mine = [service.process for service in self.services.values()] + ([self.load] if self.load else [])
        stop_all([p for p in mine if p.started], timeout_seconds=7.0)
        stop_all([p for p in self.processes() if p not in mine], timeout_seconds=4.0)
        # A starting part notices the end of its process, but may just have started its next one.
        wait(self._starting, timeout=2.0)
        stop_all([p for p in self.processes() if p.running], timeout_seconds=1.0)


def answers(url: str) -> bool:
    try:
        with client(timeout=1.0) as http:
            return http.get(url).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def _timed(report: Report, what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    report(f"{what}: {time.monotonic() - began:.1f} s")
