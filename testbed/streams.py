"""One instance of the Kafka Streams sample as a process, with its metrics in Prometheus' text format."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from weir_runtime.http_client import client

from .bootstrap import PROJECT
from .jars import class_path, java, jmx_exporter_jar
from .process import ManagedProcess, Server, free_port

MAIN = "dev.weir.sample.streams.SampleStreams"
EXPORTER_SETTINGS = PROJECT / "workloads" / "kafka-streams" / "jmx-exporter.yaml"
READY_TIMEOUT_SECONDS = 1.0
GRACE_SECONDS = 12.0
"""More than the instance takes to close its tasks."""


LOOPBACK = "127.0.0.1"


def listening(host: str) -> str:
    """Return the address to listen at for clients that connect to `host`."""
    return LOOPBACK if host == LOOPBACK else "0.0.0.0"


@dataclass(frozen=True)
class StreamsSettings:
    """Settings that all instances share. See workloads/README.md."""

    bootstrap_servers: str
    application_id: str = "orders"
    orders_topic: str = "orders"
    payments_topic: str = "payments"
    output_topic: str = "order-totals"
    threads: int = 1
    commit_interval_millis: int = 1000
    session_timeout_millis: int = 45_000
    standby_replicas: int = 0
    service_time_micros: float = 1000.0
    state_bytes: int = 256
    control_url: str | None = None
    properties: Path | None = None
    """File with further settings of Kafka Streams."""
    heap_megabytes: int = 160

    def arguments(self) -> list[str]:
        """Return the application's command-line arguments."""
        given: dict[str, object] = {
            "bootstrap-servers": self.bootstrap_servers,
            "application-id": self.application_id,
            "orders-topic": self.orders_topic,
            "payments-topic": self.payments_topic,
            "output-topic": self.output_topic,
            "threads": self.threads,
            "commit-interval-ms": self.commit_interval_millis,
            "session-timeout-ms": self.session_timeout_millis,
            "standby-replicas": self.standby_replicas,
            "service-time-us": f"{self.service_time_micros:g}",
            "state-bytes": self.state_bytes,
        }
        if self.control_url is not None:
            given["control-url"] = self.control_url
        if self.properties is not None:
            given["properties"] = self.properties
        return [part for name, value in given.items() for part in (f"--{name}", str(value))]


class StreamsInstance(Server):
    """Instance of an ordinal. Each start has its own id, which begins its consumers' client id; the state folder
    is the ordinal's, so that a later instance need not restore all of it."""

    def __init__(self, settings: StreamsSettings, ordinal: int, folder: Path, host: str = LOOPBACK) -> None:
        """`host` is where others reach the metrics; other than the loopback address it has them listen everywhere."""
        self.id = f"{settings.application_id}-{ordinal}-{secrets.token_hex(3)}"
        self._ready_url = f"http://127.0.0.1:{(port := free_port())}/ready"
        metrics_port = free_port()
        self.metrics_url: str | None = f"http://{host}:{metrics_port}/metrics"
        command = [
            *java(),
            f"-Xmx{settings.heap_megabytes}m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.log.dev.weir=info",
            f"-javaagent:{jmx_exporter_jar()}={listening(host)}:{metrics_port}:{EXPORTER_SETTINGS}",
            *("-cp", class_path("kafka-streams"), MAIN),
            *("--client-id", self.id),
            *("--state-dir", str((folder / "state" / str(ordinal)).resolve())),
            *("--port", str(port)),
            *settings.arguments(),
        ]
        name = f"{settings.application_id}-{ordinal}"
        self.process = ManagedProcess(name, command, folder, grace_seconds=GRACE_SECONDS)

    @property
    def running(self) -> bool:
        return self.process.running

    def start(self) -> Self:
        """Start it; returns at once (see `ready`)."""
        self.process.start()
        return self

    def ready(self) -> bool:
        """Return whether the instance is RUNNING by its own word."""
        try:
            with client(timeout=READY_TIMEOUT_SECONDS, answer_bytes=10_000) as http:
                return http.get(self._ready_url).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False
