"""Application, target and signals: the parts of a policy that collectors read from and drivers act on.

`application` names an engine and its job, `target` names a driver and what it scales. They are separate because a Flink
job is scaled by Flink's scheduler or by the number of its TaskManagers' pods. Kubernetes workloads are targets; a service
is measured by the signals of its workloads alone.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AnyHttpUrl, Field, field_validator, model_validator

from .base import Duration, Name, RestUrl
from .document import Document
from .target import Target, Unit, WorkloadName

SignalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$", examples=["queued"])]
"""Name of a signal: the result of a query of the policy."""


class ServiceSignals(Document):
    """Signals of one workload: names of queries in `signals.prometheus.queries`."""

    processed: SignalName | None = None
    """Signal with the number of records or requests processed by all replicas: a counter that only grows. Default:
    none; throughput is then unknown."""
    waiting: SignalName | None = None
    """Signal with the number of records or requests that wait, such as a queue's length. Default: none; lag is then
    unknown."""


class ServiceApplication(ServiceSignals):
    """Service without a stream engine, measured by the CPU of its pods and by signals. `processed` and `waiting` are
    those of its only source."""

    operators: Annotated[dict[WorkloadName, ServiceSignals], Field(max_length=50, fail_fast=True)] = Field(
        default_factory=dict
    )
    """Signals of each workload by its name, for a target with several workloads. Default: none."""

    def signals_of(self, operator: str, sources: Collection[str]) -> ServiceSignals:
        """Return the signals of an operator; those of the application itself are its only source's."""
        own = self.operators.get(operator)
        if own is not None:
            return own
        return self if list(sources) == [operator] else ServiceSignals()


_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}


FLINK_JOB_ID = re.compile(r"[0-9a-f]{32}")


class FlinkApplication(Document):
    """Job of a Flink session or application cluster."""

    url: RestUrl
    """Address of Flink's REST API, without credentials, query or fragment."""
    job: Annotated[str, Field(min_length=1, max_length=300)]
    """Name of the job, which a resubmission keeps, or its 32-digit id."""
    credentials: Name | None = None
    """Name of an entry of the setting `WEIR_FLINK_CREDENTIALS_FILE` of monitor and executor, which is used for its own
    origin only. Default: none. The policy never contains a secret."""

    @property
    def is_by_id(self) -> bool:
        """Whether `job` is an id."""
        return FLINK_JOB_ID.fullmatch(self.job) is not None

    @property
    def cluster(self) -> str:
        """Normalised address of the cluster: host in lower case, port and path, without the scheme."""
        host = (self.url.host or "").lower().rstrip(".")
        return f"{'localhost' if host in _LOOPBACK else host}:{self.url.port}/{(self.url.path or '').strip('/')}"


class InstanceMetrics(Document):
    """Metrics endpoint of each instance, in Prometheus' text format as the JMX exporter writes it."""

    port: Annotated[int, Field(ge=1, le=65535)]
    """Port of the endpoint, the same on each instance's host: a host has one instance."""
    path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._~/-]{0,200}$")] = "/metrics"
    """Path of the endpoint. Default `/metrics`, as the JMX exporter's."""


class KafkaStreamsApplication(Document):
    """Kafka Streams application, seen from the brokers of `signals.kafka`."""

    application_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
    """The application's `application.id`, which is its consumer group."""
    metrics: InstanceMetrics | None = None
    """Metrics endpoint of its instances. Default: none; the busy share of time is then unknown, and capacity is known
    only while records wait."""
    commit_interval: Duration | None = None
    """The application's `commit.interval.ms`, 10ms to 1h. Default: measured from its commits."""

    @field_validator("commit_interval")
    @classmethod
    def _sane_interval(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and not timedelta(milliseconds=10) <= value <= timedelta(hours=1):
            raise ValueError("must lie between 10ms and 1h")
        return value


class ConsumerGroupApplication(Document):
    """Application of any kind whose consumers share the partitions of `signals.kafka` as one group."""

    group_id: Annotated[str, Field(min_length=1, max_length=249)]
    """The consumers' `group.id`."""


EngineName = Literal["flink", "service", "kafka-streams", "consumer-group"]


class Application(Document):
    """The job to scale, of exactly one engine."""

    flink: FlinkApplication | None = None
    """Flink job."""
    service: ServiceApplication | None = None
    """Service without a stream engine, for a `kubernetes` target."""
    kafka_streams: KafkaStreamsApplication | None = None
    """Kafka Streams application. It needs `signals.kafka`; in mode `act` also a target that scales instances."""
    consumer_group: ConsumerGroupApplication | None = None
    """Consumers of a group. It needs `signals.kafka`; in mode `act` also a target that scales instances."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self._named) != 1:
            raise ValueError(
                "name exactly one engine; this version supports flink, service, kafkaStreams and consumerGroup"
            )
        return self

    @property
    def _named(self) -> list[tuple[EngineName, str]]:
        """Name and field of each engine that the document names."""
        given: tuple[tuple[EngineName, str, object], ...] = (
            ("flink", "flink", self.flink),
            ("service", "service", self.service),
            ("kafka-streams", "kafkaStreams", self.kafka_streams),
            ("consumer-group", "consumerGroup", self.consumer_group),
        )
        return [(name, field) for name, field, document in given if document is not None]

    @property
    def engine(self) -> EngineName:
        """Name of the engine, as in `Deployment.engine`."""
        return self._named[0][0]

    @property
    def field(self) -> str:
        """Name of the engine's field in the document."""
        return self._named[0][1]

    @property
    def group_id(self) -> str | None:
        """Consumer group that is the application; None for an engine that is not a consumer group."""
        if self.kafka_streams is not None:
            return self.kafka_streams.application_id
        return None if self.consumer_group is None else self.consumer_group.group_id

    @property
    def shares_tasks(self) -> bool:
        """Whether its members share whole tasks or partitions, of which some move whenever the number of members changes."""
        return self.group_id is not None

    @property
    def has_slots(self) -> bool:
        """Whether its size is counted in a cluster's slots; else in instances."""
        return self.flink is not None

    @property
    def counts_by_signals(self) -> bool:
        """Whether its records are counted by the policy's own signals, since its engine counts none."""
        return self.service is not None

    @property
    def has_busy_time(self) -> bool:
        """Whether its engine or its instances' metrics report busy time; else capacity is known only while records wait."""
        streams = self.kafka_streams
        return not self.shares_tasks or (streams is not None and streams.metrics is not None)

    @property
    def unread_metrics(self) -> str:
        """Field of the policy that would give its instances' busy time; empty if it is set, or the engine has none."""
        streams = self.kafka_streams
        return "application.kafkaStreams.metrics" if streams is not None and streams.metrics is None else ""


class KafkaSignals(Document):
    """Kafka brokers of the sources. Every scrape reads demand and lag from them."""

    bootstrap_servers: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9._:\[\]-]+:[0-9]+(,[A-Za-z0-9._:\[\]-]+:[0-9]+)*$", max_length=2000)
    ]
    """Addresses of the brokers as `host:port`, separated by commas."""
    group_id: Annotated[str | None, Field(min_length=1, max_length=249)] = None
    """Consumer group whose committed offsets replace a source's position where the source does not report it. Default:
    none."""
    topics: Annotated[list[Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]] | None, Field(max_length=100)] = (
        None
    )
    """Topics of the sources. Default: the topics that the sources report."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """Isolation level of the sources. Default `read_committed`: open transactions do not count as lag."""
    credentials: Name | None = None
    """Name of an entry of the services' own settings with TLS and SASL for these brokers. Default: none, plain text. The
    policy never contains a secret."""


class PrometheusSignals(Document):
    """Prometheus server and queries, each of which is a named signal."""

    url: RestUrl
    """Address of the server, without credentials, query or fragment."""
    queries: Annotated[
        dict[SignalName, Annotated[str, Field(min_length=1, max_length=2000)]], Field(max_length=50, fail_fast=True)
    ]
    """PromQL queries by the name of their signal. Each must have one value; its samples are those of the scrape's time.
    """


class Signals(Document):
    kafka: KafkaSignals | None = None
    """Kafka brokers of the sources. Default: none; demand and lag of a Flink job are then those that its sources report
    themselves, and a source that does not report what waits shows a lower bound of its demand while it may be too slow."""
    prometheus: PrometheusSignals | None = None
    """Prometheus queries. Default: none."""


@dataclass(frozen=True)
class Subject:
    """The application that collectors read and drivers scale. An action keeps its subject when the policy changes."""

    id: str
    """`namespace/name` of the application."""
    application: Application
    target: Target
    signals: Signals

    @property
    def unit(self) -> Unit | None:
        """Parallelism that one instance of the target adds; None if each operator is scaled on its own."""
        return self.target.unit

    @property
    def flink(self) -> FlinkApplication:
        """Flink job; `ValueError` for an application of another engine."""
        if self.application.flink is None:
            raise ValueError(f"{self.id} is not a Flink application")
        return self.application.flink

    @property
    def cluster(self) -> str:
        """Key of the cluster whose slots the application shares with others; only Flink jobs share any."""
        return f"{self.target.driver}/{self.id}" if self.application.flink is None else self.flink.cluster

    @property
    def urls(self) -> list[tuple[str, AnyHttpUrl]]:
        """Addresses of the application, its target and its signals, each with its path."""
        flink, endpoint, prometheus = self.application.flink, self.target.endpoint, self.signals.prometheus
        managers = None if self.target.managers is None else self.target.managers.endpoint
        named = [
            ("application.flink.url", None if flink is None else flink.url),
            ("target.endpoint.url", None if endpoint is None else endpoint.url),
            ("target.flink.taskManagers.endpoint.url", None if managers is None else managers.url),
            ("signals.prometheus.url", None if prometheus is None else prometheus.url),
        ]
        return [(field, url) for field, url in named if url is not None]

    @property
    def namespace(self) -> str:
        """Kubernetes namespace of the target's objects: the target's, or the policy's own."""
        return self.target.namespace or self.id.partition("/")[0]
