"""Kafka as an engine: consumer groups, and the partitions that applications of any engine read."""

from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from weir_contracts import KafkaSignals, Subject
from weir_engines.engine import Claim, Engine
from weir_engines.scrape import Collector
from weir_runtime.policy_credentials import credentials_for

from .members import kafka_of

if TYPE_CHECKING:
    from .brokers import BrokersPool, Cluster, KafkaBrokers
    from .coordinators import KafkaGroups
    from .partitions import Brokers, PartitionCollector


class KafkaEngine(Engine):
    """Brokers of all policies, each cluster opened once for all applications that use it."""

    reads = frozenset({"kafka-streams", "consumer-group"})

    @staticmethod
    def claims(subject: Subject) -> Iterable[Claim]:
        """Return the group at each of its brokers' addresses, since two policies may list them differently."""
        group, kafka = subject.application.group_id, subject.signals.kafka
        if group is None or kafka is None:
            return ()
        return {("group", broker.lower(), group) for broker in kafka.bootstrap_servers.split(",")}

    def collector(self, subject: Subject) -> Collector:
        """Return the collector of a group. Raises `ValueError` without `signals.kafka`."""
        from .collector import GroupCollector, InstanceMetricsCollector

        streams, metrics = subject.application.kafka_streams, None
        if streams is not None and streams.metrics is not None:
            seconds, allowed = self.resources.timeout_seconds, self.resources.reach.allowed
            metrics = InstanceMetricsCollector(streams.metrics, subject.target.endpoint, seconds, allowed)
        brokers, release = self._brokers(kafka_of(subject))
        return GroupCollector(subject, brokers, self.resources.clock, metrics, on_closed=release)

    def partitions(self, subject: Subject) -> "PartitionCollector | None":
        """Return the reader of the partitions of another engine's sources; None without `signals.kafka`."""
        from .partitions import PartitionCollector

        kafka = subject.signals.kafka
        if kafka is None or subject.application.engine in self.reads:
            return None
        brokers, release = self._brokers(kafka)
        return PartitionCollector(kafka, brokers, on_closed=release)

    @cached_property
    def groups(self) -> "KafkaGroups":
        """The coordinators of all groups, for drivers that scale their instances."""
        from .coordinators import KafkaGroups

        return KafkaGroups(
            self.resources.clock,
            self.resources.broker_credentials,
            timeout_seconds=self.resources.timeout_seconds,
            allowed=self.resources.reach.allowed,
        )

    async def close(self) -> None:
        """End the coordinators' clients; those of a collector end with it."""
        if "groups" in self.__dict__:
            await self.groups.close()

    @cached_property
    def _pool(self) -> "BrokersPool":
        from .brokers import BrokersPool

        return BrokersPool(self._opened)

    def _brokers(self, kafka: KafkaSignals) -> "tuple[Brokers, Callable[[], Awaitable[None]]]":
        """Return the shared brokers, and what ends their use."""
        cluster = (kafka.bootstrap_servers, kafka.credentials)
        return self._pool.take(cluster), lambda: self._pool.release(cluster)

    def _opened(self, cluster: "Cluster") -> "KafkaBrokers":
        from .brokers import KafkaBrokers

        servers, name = cluster
        return KafkaBrokers(
            servers,
            self.resources.timeout_seconds,
            self.resources.clock,
            self.resources.reach.allowed,
            credentials=lambda: credentials_for(name, servers, self.resources.broker_credentials),
        )
