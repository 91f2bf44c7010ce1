"""A trial's stack around Kafka Streams: the loop, and a supervisor that runs the sample's instances."""

import sys
from pathlib import Path

import httpx

from runtime.http_client import client
from testbed.process import Launcher, ManagedProcess, free_port

from .loop_stack import LoopStack
from .options import GROUP_ID, INPUT_TOPIC, OUTPUT_TOPIC, PARTITIONS, PAYMENTS_TOPIC, TrialOptions, streams_policy

SERVICE_MICROS = 4000
"""Time of a paid order: an instance of one thread carries 250 a second."""
READY_SECONDS = 150.0
SETTINGS = {
    # Little state: a task moves at once and restores it, instead of warming up for ten minutes.
    "acceptable.recovery.lag": "10000000",
}


class StreamsStack(LoopStack):
    """One trial of the Kafka Streams sample, whose instances are processes of this machine."""

    application_name = "the Kafka Streams sample"

    def __init__(self, options: TrialOptions, folder: Path) -> None:
        super().__init__(options, folder)
        self._port = free_port()
        self._supervisor: ManagedProcess | None = None
        self.policy = streams_policy(options, self.endpoint_url, self.kafka.bootstrap_servers)

    @property
    def endpoint_url(self) -> str:
        """Address that reads and sets the number of instances."""
        return f"http://127.0.0.1:{self._port}/scale/{GROUP_ID}"

    def _application_parts(self) -> dict[str, Launcher]:
        return {}

    def _application_processes(self) -> list[ManagedProcess]:
        return [] if self._supervisor is None else [self._supervisor]

    def _create_topics(self) -> None:
        super()._create_topics()
        self.kafka.create_topic(PAYMENTS_TOPIC, PARTITIONS)

    def _load_arguments(self) -> list[str]:
        return ["--payments-topic", PAYMENTS_TOPIC]

    def _run_application(self) -> None:
        settings = self.folder / "streams.properties"
        settings.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
        command = [
            *(sys.executable, "-m", "testbed.supervisor", "--bootstrap", self.kafka.bootstrap_servers),
            *("--application-id", GROUP_ID, "--port", str(self._port), "--max-replicas", str(PARTITIONS)),
            *("--orders-topic", INPUT_TOPIC, "--payments-topic", PAYMENTS_TOPIC, "--output-topic", OUTPUT_TOPIC),
            *("--service-time-us", str(SERVICE_MICROS), "--control-url", f"{self.load_url}/workload"),
            *("--folder", str(self.folder / "instances"), "--properties", str(settings.resolve())),
        ]
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
