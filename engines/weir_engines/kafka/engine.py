"""Kafka as an engine: consumer groups, and the partitions that applications of any engine read."""

from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from weir_contracts import KafkaSignals, Subject
from weir_engines.registry import Claim, Engine, Engines, Resources
from weir_engines.scrape import Collector
from weir_runtime.policy_credentials import credentials_for

from .members import kafka_of

if TYPE_CHECKING:
    from .brokers import KafkaBrokers
    from .coordinators import KafkaGroups
    from .partitions import Brokers, PartitionCollector


Cluster = tuple[str, str | None]
"""Bootstrap servers, and the name of the credentials for them."""


class KafkaEngine(Engine):
    """Brokers of all policies, each cluster opened once for all applications that use it."""

    reads = frozenset({"kafka-streams", "consumer-group"})

    def __init__(self, resources: Resources, engines: Engines) -> None:
        super().__init__(resources, engines)
        self._used: dict[Cluster, tuple[KafkaBrokers, int]] = {}
        """Open clusters, each with the number of collectors that use it."""

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

    def _brokers(self, kafka: KafkaSignals) -> "tuple[Brokers, Callable[[], Awaitable[None]]]":
        """Return the shared brokers, and what ends this use of them; the last use closes the clients."""
        cluster = (kafka.bootstrap_servers, kafka.credentials)
        brokers, users = self._used.get(cluster) or (self._opened(*cluster), 0)
        self._used[cluster] = (brokers, users + 1)
        return brokers, lambda: self._release(cluster)

    async def _release(self, cluster: Cluster) -> None:
        brokers, users = self._used.pop(cluster)
        if users > 1:
            self._used[cluster] = (brokers, users - 1)
        else:
            await brokers.close()

    def _opened(self, servers: str, name: str | None) -> "KafkaBrokers":
        from .brokers import KafkaBrokers

        return KafkaBrokers(
            servers,
            self.resources.timeout_seconds,
            self.resources.clock,
            self.resources.reach.allowed,
            credentials=lambda: credentials_for(name, servers, self.resources.broker_credentials),
        )
