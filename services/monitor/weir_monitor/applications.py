"""Collector of one application: its engine, then the partitions of its sources at the brokers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field

from weir_contracts import Problem, ScalingPolicy, Subject
from weir_engines.flink.collector import FlinkCollector
from weir_engines.kafka.brokers import BrokersPool, Cluster, KafkaBrokers
from weir_engines.kafka.collector import GroupCollector, InstanceMetricsCollector
from weir_engines.kafka.partitions import Brokers, KafkaReadings, PartitionCollector
from weir_engines.kubernetes.cluster import WorkloadReader
from weir_engines.kubernetes.collector import InstancePodsCollector, ServiceCollector
from weir_engines.kubernetes.signals import ServiceMeter
from weir_engines.scrape import Collector, Scrape
from weir_monitor.core import Readings
from weir_monitor.prometheus import PrometheusCollector, SignalReadings
from weir_runtime.clock import Clock
from weir_runtime.policy_credentials import BrokerCredentials, HttpCredential, credentials_for
from weir_runtime.reach import REACH, Reach


class ApplicationCollector:
    """Collectors of one policy. `on_closed` releases the resources that it shares with others."""

    def __init__(
        self,
        engine: Collector,
        partitions: PartitionCollector | None,
        clock: Clock,
        on_closed: Callable[[], Awaitable[None]] | None = None,
        *,
        signals: PrometheusCollector | None = None,
        meter: ServiceMeter | None = None,
    ) -> None:
        self._engine = engine
        self._partitions = partitions
        self._clock = clock
        self._on_closed = on_closed
        self._signals = signals
        self._meter = meter

    async def read(self, policy: ScalingPolicy) -> Readings:
        """Scrape once. Failures of a cluster are problems in the readings, not errors."""
        scrape, signals = await asyncio.gather(self._engine.scrape(), self._read_signals())
        if self._meter is not None:
            scrape = self._meter.measured(scrape, signals.values, self._clock.monotonic())
        offsets = await self._offsets(scrape)
        problems = (*signals.problems, *offsets.problems)
        return Readings(policy, scrape, offsets.partitions, problems, signals=signals.values)

    async def _read_signals(self) -> SignalReadings:
        return SignalReadings() if self._signals is None else await self._signals.read()

    async def _offsets(self, scrape: Scrape) -> KafkaReadings:
        if self._partitions is None or scrape.topology is None:
            return KafkaReadings()
        # Offsets last: with log ends from after the positions, lag is never too small.
        return await self._partitions.scrape(scrape.sources, self._clock.now())

    async def close(self) -> None:
        """Close the collectors and release shared resources. Call it once."""
        await self._engine.close()
        if self._signals is not None:
            await self._signals.close()
        if self._on_closed is not None:
            await self._on_closed()


@dataclass
class _OutOfReach:
    """Collector of a policy that names something out of its namespace's reach."""

    field: str
    reason: str

    async def scrape(self) -> Scrape:
        return Scrape("unreachable", self.reason, problems=(Problem(where=self.field, what=self.reason),))

    async def close(self) -> None:
        """Do nothing: nothing was opened."""


@dataclass
class Collectors:
    """Factory of the policies' collectors, which share connections to brokers and the watches of a Kubernetes cluster."""

    clock: Clock
    call_timeout_seconds: float
    reach: Reach = REACH
    """What policies may name."""
    workloads: WorkloadReader | None = None
    namespaces: Set[str] = frozenset()
    """Namespaces whose workloads policies may name."""
    credentials: Mapping[str, BrokerCredentials] = field(default_factory=dict)
    """TLS and SASL settings of brokers, by name."""
    flink_credentials: Mapping[str, HttpCredential] = field(default_factory=dict)
    """Credentials of Flink clusters, by name."""

    def __post_init__(self) -> None:
        self._pool = BrokersPool(self._open_brokers)

    def _open_brokers(self, cluster: Cluster) -> KafkaBrokers:
        servers, name = cluster
        return KafkaBrokers(
            servers,
            self.call_timeout_seconds,
            self.clock,
            self.reach.allowed,
            credentials=lambda: credentials_for(name, servers, self.credentials),
        )

    async def close(self) -> None:
        """End the watches of the Kubernetes cluster."""
        if self.workloads is not None:
            await self.workloads.close()

    def _engine(self, policy: ScalingPolicy, brokers: Brokers | None) -> Collector:
        """Return the collector of the application's engine: one branch per engine."""
        subject, engine = policy.subject, policy.subject.application.engine
        on_pods = subject.target.kubernetes is not None
        collector: Collector
        if engine == "service":
            return ServiceCollector(subject, self.workloads, self.namespaces, self.clock)
        if engine == "flink":
            collector = FlinkCollector(
                subject.flink,
                self.call_timeout_seconds,
                self.reach.allowed,
                credentials=self.flink_credentials,
                reads_task_managers=not on_pods,
            )
        elif brokers is not None:
            collector = GroupCollector(subject, brokers, self.clock, self._metrics(subject))
        else:
            raise ValueError(f"{subject.id}: a consumer group needs signals.kafka")
        return InstancePodsCollector(collector, subject, self.workloads, self.namespaces) if on_pods else collector

    def _metrics(self, subject: Subject) -> InstanceMetricsCollector | None:
        streams = subject.application.kafka_streams
        if streams is None or streams.metrics is None:
            return None
        target = subject.target.endpoint
        return InstanceMetricsCollector(streams.metrics, target, self.call_timeout_seconds, self.reach.allowed)

    def _signals(self, policy: ScalingPolicy) -> PrometheusCollector | None:
        signals = policy.spec.signals.prometheus
        if signals is None:
            return None
        return PrometheusCollector(signals, self.call_timeout_seconds, self.reach.allowed)

    def new(self, policy: ScalingPolicy) -> ApplicationCollector:
        """Return the collector of a policy; the caller closes it. It reads nothing of a policy that names what its namespace
        may not."""
        if (refused := self.reach.refusal(policy.subject)) is not None:
            return ApplicationCollector(_OutOfReach(*refused), None, self.clock)
        service, kafka = policy.subject.application.service, policy.spec.signals.kafka
        cluster = None if kafka is None else (kafka.bootstrap_servers, kafka.credentials)
        brokers = None if cluster is None else self._pool.take(cluster)
        reads_itself = policy.subject.application.group_id is not None
        return ApplicationCollector(
            self._engine(policy, brokers),
            None if kafka is None or brokers is None or reads_itself else PartitionCollector(kafka, brokers),
            self.clock,
            None if cluster is None else lambda: self._pool.release(cluster),
            signals=self._signals(policy),
            meter=None if service is None else ServiceMeter(service),
        )
