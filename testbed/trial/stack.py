"""Everything a trial starts: the real parts, the five services, the sample job, the load and the probe."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from weir_contracts import ScalingPolicy

from runtime.http_client import client
from testbed.flink import FlinkApi, FlinkCluster, FlinkError
from testbed.jars import sample_job_jar
from testbed.kafka import KafkaBroker
from testbed.process import Launcher, ManagedProcess, free_port, port_is_free, stop_all
from testbed.redis import RedisServer
from testbed.service import WeirService, loop_settings, wait_all_ready
from workloads import sample_job
from workloads.probe import Probe

from .options import (
    APPLICATION,
    GROUP_ID,
    INPUT_TOPIC,
    MAX_PARALLELISM,
    OUTPUT_PARTITIONS,
    OUTPUT_TOPIC,
    PARTITIONS,
    TrialOptions,
    trial_policy,
)

SERVICES = ("knowledge", "monitor", "analyzer", "planner", "executor")
PLANNER_PORT = 8093
"""Default port of `weir planner`; another one if it is in use."""
SLOTS = 16
LOOP_PARTITIONS = 2
"""Of Weir's own topics: on a small machine every further Spark partition costs latency."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class ServiceState:
    """A service of this trial, for the report."""

    name: str
    pid: int
    ready_seconds: float | None


class TrialStack:
    """Starts and stops one trial's parts; every log goes to `folder`."""

    def __init__(self, options: TrialOptions, folder: Path, *, task_managers: int = 1) -> None:
        self.options = options
        self.folder = folder
        self.kafka = KafkaBroker(folder / "kafka")
        self.redis = RedisServer(folder / "redis")
        own = not options.external_flink
        self.cluster = FlinkCluster(folder / "flink", slots=SLOTS, task_managers=task_managers) if own else None
        self.flink: FlinkApi = self.cluster or FlinkApi(str(options.external_flink))
        self.services: dict[str, WeirService] = {}
        self.load_port = free_port()
        self.load: ManagedProcess | None = None
        self.probe: Probe | None = None
        self.job_id: str | None = None
        self.policy = trial_policy(options, self.flink.rest_url, self.kafka.bootstrap_servers)
        self.began_at: float | None = None
        """Monotonic time at which the load began."""
        self._starting: list[Future[object]] = []

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
        parts = [self.kafka.process, self.redis.process, *(self.cluster.processes if self.cluster else [])]
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
        with _timed(report, "the sample job and its load"):
            self._start_load()
            self.submit_job()
            self.probe = Probe(self.kafka.bootstrap_servers, OUTPUT_TOPIC, input_topic=INPUT_TOPIC).start()
        with _timed(report, "the services are ready"):
            wait_all_ready(list(self.services.values()))
        self.put_policy(self.policy)
        self.begin_load()

    def _start_parts(self, report: Report) -> None:
        starts: dict[str, Callable[[], Launcher]] = {"Kafka": self.kafka.start, "Redis": self.redis.start}
        if self.cluster is not None:
            starts["Flink"] = self.cluster.start
        pool = ThreadPoolExecutor(len(starts), thread_name_prefix="trial-start")
        with _timed(report, ", ".join(starts)):
            self._starting = [pool.submit(start) for start in starts.values()]
            pool.shutdown(wait=False)
            for future in self._starting:
                future.result()
        self.kafka.create_topic(INPUT_TOPIC, PARTITIONS)
        self.kafka.create_topic(OUTPUT_TOPIC, OUTPUT_PARTITIONS)

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
            self.services[name] = WeirService(name, self.folder, environment, port=ports.get(name))
            self.services[name].start()

    def _start_load(self) -> None:
        command = [sys.executable, "-m", "workloads.loadgen", "--bootstrap", self.kafka.bootstrap_servers]
        command += ["--topic", INPUT_TOPIC, "--port", str(self.load_port), "--trace", self.options.trace]
        command += ["--peak-rate", f"{self.options.peak_rate:g}", "--paused"]
        if self.options.trace == "step":
            command += ["--levels", f"0:1,{self.options.step_at_seconds:g}:3"]
        if self.options.speedup is not None:
            command += ["--speedup", f"{self.options.speedup:g}"]
        self.load = ManagedProcess("loadgen", command, self.folder)
        self.load.start()
        self.load.wait_ready(lambda: _answers(f"{self.load_url}/health"), timeout_seconds=30)

    def submit_job(self, savepoint: str | None = None) -> None:
        """Run the sample job, from where it was if a `savepoint` or retained checkpoint is named."""
        # Set before it runs, so that an interrupted start can cancel it.
        self.job_id = self.start_job(APPLICATION, GROUP_ID, OUTPUT_TOPIC, savepoint=savepoint)
        self.flink.wait_running(self.job_id)

    def start_job(self, name: str, group_id: str, output_topic: str, *, savepoint: str | None = None) -> str:
        """Submit a sample job on the trial's input and at its costs; returns its id at once."""
        arguments = [
            *("--bootstrap-servers", self.kafka.bootstrap_servers),
            *("--input-topic", INPUT_TOPIC),
            *("--output-topic", output_topic),
            *("--group-id", group_id),
            *("--job-name", name),
            *("--max-parallelism", str(MAX_PARALLELISM)),
            *sample_job.arguments(),
            *("--control-url", f"{self.load_url}/workload"),
        ]
        return self.flink.submit(sample_job_jar(), arguments, parallelism=1, savepoint=savepoint)

    def put_policy(self, policy: ScalingPolicy) -> None:
        """Create or replace the trial's policy."""
        with client() as http:
            url = f"{self.api_url}/v1/policies/{policy.application}"
            http.put(url, json=policy.to_document()).raise_for_status()

    def begin_load(self) -> None:
        """Let the trace begin; from here the trial's time counts."""
        with client() as http:
            http.put(f"{self.load_url}/load", json={"paused": False}).raise_for_status()
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
        if self.options.external_flink and self.job_id:
            self._cancel(self.job_id, report)
        mine = [service.process for service in self.services.values()] + ([self.load] if self.load else [])
        stop_all([p for p in mine if p.started], timeout_seconds=7.0)
        stop_all([p for p in self.processes() if p not in mine], timeout_seconds=4.0)
        # A starting part notices the end of its process, but may just have started its next one.
        wait(self._starting, timeout=2.0)
        stop_all([p for p in self.processes() if p.running], timeout_seconds=1.0)

    def _cancel(self, job_id: str, report: Report | None) -> None:
        """Cancel the job on an external cluster; if it is unreachable, report that and go on stopping the rest."""
        try:
            self.flink.cancel(job_id)
        except FlinkError as error:
            if report is not None:
                report(f"job {job_id} could not be cancelled and may still run on {self.flink.rest_url}: {error}")


def _answers(url: str) -> bool:
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
