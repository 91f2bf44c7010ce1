"""A trial's stack around Kafka Streams: the loop, and a supervisor that runs the sample's instances."""

import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

from testbed.bootstrap import PROJECT
from testbed.process import Launcher, ManagedProcess, free_port
from weir_runtime.http_client import client

from .loop_stack import LoopStack
from .options import (
    GROUP_ID,
    INPUT_TOPIC,
    OUTPUT_PARTITIONS,
    OUTPUT_TOPIC,
    PARTITIONS,
    PAYMENTS_TOPIC,
    TrialOptions,
    streams_policy,
)

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
        self._supervisors: dict[str, ManagedProcess] = {}
        self._ports = {GROUP_ID: free_port()}
        self.policy = streams_policy(options, self.endpoint_url, self.kafka.bootstrap_servers)

    @property
    def endpoint_url(self) -> str:
        """Address that reads and sets the number of instances."""
        return self.endpoint_url_of(GROUP_ID)

    def endpoint_url_of(self, application_id: str) -> str:
        """Return the address of an application that `run_supervisor` was called for."""
        return f"http://127.0.0.1:{self._ports[application_id]}/scale/{application_id}"

    def _application_parts(self) -> dict[str, Launcher]:
        return {}

    def _application_processes(self) -> list[ManagedProcess]:
        return list(self._supervisors.values())

    def _create_topics(self) -> None:
        self.kafka.create_topic(INPUT_TOPIC, self._partitions)
        self.kafka.create_topic(OUTPUT_TOPIC, OUTPUT_PARTITIONS)
        self.kafka.create_topic(PAYMENTS_TOPIC, self._partitions)

    def _load_arguments(self) -> list[str]:
        return ["--payments-topic", PAYMENTS_TOPIC]

    def _run_application(self) -> None:
        self.run_supervisor(GROUP_ID, OUTPUT_TOPIC)

    def run_supervisor(self, application_id: str, output_topic: str, **options: object) -> None:
        """Run an application on the input topics, and wait until its first instances are ready."""
        port = self._ports.setdefault(application_id, free_port())
        folder = self.folder / "instances" / application_id
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "streams.properties"
        settings.write_text(SETTINGS_FILE.read_text() + TRIAL_SETTINGS)
        arguments: dict[str, object] = {
            "bootstrap": self.kafka.bootstrap_servers,
            "application-id": application_id,
            "port": port,
            "max-replicas": self._partitions,
            "orders-topic": INPUT_TOPIC,
            "payments-topic": PAYMENTS_TOPIC,
            "output-topic": output_topic,
            "service-time-us": SERVICE_MICROS,
            "control-url": f"{self.load_url}/workload",
            "folder": folder,
            "properties": settings.resolve(),
            **self._supervisor_options,
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        command = [sys.executable, "-m", "testbed.supervisor"]
        command += [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        name = "supervisor" if application_id == GROUP_ID else f"supervisor-{application_id}"
        # Longer than an instance takes to end: the supervisor ends them.
        supervisor = ManagedProcess(name, command, self.folder, grace_seconds=15.0)
        self._supervisors[application_id] = supervisor
        supervisor.start()
        supervisor.wait_ready(lambda: self._ready(application_id), timeout_seconds=READY_SECONDS)

    def _ready(self, application_id: str) -> bool:
        try:
            with client(timeout=2.0) as http:
                return bool(http.get(self.endpoint_url_of(application_id)).raise_for_status().json()["ready"])
        except httpx.HTTPError:
            return False
