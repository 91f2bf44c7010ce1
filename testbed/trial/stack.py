"""A trial's stack around an application: the loop, with a Flink cluster and the sample job, or with the Kafka Streams
sample, whose instances a supervisor runs."""

import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

from testbed.bootstrap import PROJECT
from testbed.flink import FlinkApi, FlinkCluster, FlinkError
from testbed.jars import sample_job_jar
from testbed.process import Launcher, ManagedProcess, free_port
from weir_runtime.http_client import client
from workloads import sample_job

from .loop_stack import LOOP_PARTITIONS, SERVICES, LoopStack, Report
from .options import (
    APPLICATION,
    GROUP_ID,
    INPUT_TOPIC,
    MAX_PARALLELISM,
    OUTPUT_PARTITIONS,
    OUTPUT_TOPIC,
    PARTITIONS,
    PAYMENTS_TOPIC,
    TrialOptions,
    streams_policy,
    trial_policy,
)

__all__ = ["LOOP_PARTITIONS", "SERVICES", "StreamsStack", "TrialStack"]

SLOTS = 16
SERVICE_MICROS = 4000
"""Time of a paid order: an instance of one thread carries 250 a second."""
READY_SECONDS = 150.0
SETTINGS_FILE = PROJECT / "deploy" / "compose" / "jobs" / "streams.properties"
"""Settings of the sample in every deployment."""
TRIAL_SETTINGS = """\
# The broker answers an instance ten times a second, not for each record: the instances of a contest share two cores.
main.consumer.fetch.min.bytes=100000
main.consumer.fetch.max.wait.ms=100
"""


class TrialStack(LoopStack):
    """One trial of a Flink job, on its own cluster or an external one."""

    application_name = "the sample job"

    def __init__(
        self,
        options: TrialOptions,
        folder: Path,
        *,
        task_managers: int = 1,
        slots: int = SLOTS,
        flink_options: Mapping[str, str] | None = None,
    ) -> None:
        """`slots` are those of each TaskManager, `flink_options` replace the testbed's."""
        super().__init__(options, folder)
        own = not options.external_flink
        cluster = FlinkCluster(folder / "flink", slots=slots, task_managers=task_managers, options=flink_options)
        self.cluster = cluster if own else None
        self.flink: FlinkApi = self.cluster or FlinkApi(str(options.external_flink))
        self.job_id: str | None = None
        self.policy = trial_policy(options, self.flink.rest_url, self.kafka.bootstrap_servers)

    def _application_parts(self) -> dict[str, Launcher]:
        return {} if self.cluster is None else {"Flink": self.cluster}

    def _application_processes(self) -> list[ManagedProcess]:
        return [] if self.cluster is None else self.cluster.processes

    def _run_application(self) -> None:
        self.submit_job()

    def submit_job(self, savepoint: str | None = None) -> None:
        """Run the sample job, from where it was if a `savepoint` or retained checkpoint is named."""
        # Set before it runs, so that an interrupted start can cancel it.
        self.job_id = self.start_job(APPLICATION, GROUP_ID, OUTPUT_TOPIC, savepoint=savepoint)
        self.flink.wait_running(self.job_id)

    def start_job(self, name: str, group_id: str, output_topic: str, *, savepoint: str | None = None) -> str:
        """Submit a sample job on the trial's input and at its costs; returns its id at once."""
        arguments = self.job_arguments(name, group_id, output_topic)
        return self.flink.submit(sample_job_jar(), arguments, parallelism=1, savepoint=savepoint)

    def job_arguments(self, name: str, group_id: str, output_topic: str) -> list[str]:
        """Return the arguments of a sample job's main method."""
        return [
            *("--bootstrap-servers", self.kafka.bootstrap_servers),
            *("--input-topic", INPUT_TOPIC),
            *("--output-topic", output_topic),
            *("--group-id", group_id),
            *("--job-name", name),
            *("--max-parallelism", str(MAX_PARALLELISM)),
            *sample_job.arguments(),
            *("--control-url", f"{self.load_url}/workload"),
        ]

    def stop(self, report: Report | None = None) -> None:
        """End everything, and the job on an external cluster."""
        if self.options.external_flink and self.job_id:
            self._cancel(self.job_id, report)
        super().stop(report)

    def _cancel(self, job_id: str, report: Report | None) -> None:
        """Cancel the job on an external cluster; if it is unreachable, report that and go on stopping the rest."""
        try:
            self.flink.cancel(job_id)
        except FlinkError as error:
            if report is not None:
                report(f"job {job_id} could not be cancelled and may still run on {self.flink.rest_url}: {error}")


class StreamsStack(LoopStack):
    """One trial of the Kafka Streams sample, whose instances are processes of this machine."""

    application_name = "the Kafka Streams sample"

    def __init__(
        self,
        options: TrialOptions,
        folder: Path,
        *,
        partitions: int = PARTITIONS,
        supervisor: Mapping[str, object] | None = None,
    ) -> None:
        """`supervisor` are further options of the supervisor, which replace the trial's."""
        super().__init__(options, folder)
        self._partitions = partitions
        self._supervisor_options = supervisor or {}
        self._supervisor: ManagedProcess | None = None
        self.endpoint_url = f"http://127.0.0.1:{free_port()}/scale/{GROUP_ID}"
        """Address that reads and sets the number of instances."""
        self.policy = streams_policy(options, self.endpoint_url, self.kafka.bootstrap_servers)

    def _application_parts(self) -> dict[str, Launcher]:
        return {}

    def _application_processes(self) -> list[ManagedProcess]:
        return [] if self._supervisor is None else [self._supervisor]

    def _create_topics(self) -> None:
        self.kafka.create_topic(INPUT_TOPIC, self._partitions)
        self.kafka.create_topic(OUTPUT_TOPIC, OUTPUT_PARTITIONS)
        self.kafka.create_topic(PAYMENTS_TOPIC, self._partitions)

    def _load_arguments(self) -> list[str]:
        return ["--payments-topic", PAYMENTS_TOPIC]

    def _run_application(self) -> None:
        folder = self.folder / "instances" / GROUP_ID
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "streams.properties"
        settings.write_text(SETTINGS_FILE.read_text() + TRIAL_SETTINGS)
        arguments: dict[str, object] = {
            "bootstrap": self.kafka.bootstrap_servers,
            "application-id": GROUP_ID,
            "port": httpx.URL(self.endpoint_url).port,
            "max-replicas": self._partitions,
            "orders-topic": INPUT_TOPIC,
            "payments-topic": PAYMENTS_TOPIC,
            "output-topic": OUTPUT_TOPIC,
            "service-time-us": SERVICE_MICROS,
            "control-url": f"{self.load_url}/workload",
            "folder": folder,
            "properties": settings.resolve(),
            **self._supervisor_options,
        }
        command = [sys.executable, "-m", "testbed.supervisor"]
        command += [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        # Longer than an instance takes to end: the supervisor ends them.
        self._supervisor = ManagedProcess("supervisor", command, self.folder, grace_seconds=15.0)
        self._supervisor.start()
        self._supervisor.wait_ready(self._ready, timeout_seconds=READY_SECONDS)

    def _ready(self) -> bool:
        try:
            with client(timeout=2.0) as http:
                return bool(http.get(self.endpoint_url).raise_for_status().json()["ready"])
        except httpx.HTTPError:
            return False
