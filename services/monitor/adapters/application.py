"""Reads one application whole: its Flink cluster, then its sources' partitions at the brokers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from weir_contracts import ScalingPolicy

from runtime.addresses import TARGETS, Allowed
from runtime.clock import Clock
from services.monitor.core import FlinkReadings, Readings

from .flink import FlinkCollector, new_client
from .kafka import BrokersPool, KafkaBrokers
from .partitions import KafkaReadings, PartitionCollector, Wanted


class Flink(Protocol):
    """One job. Never raises: what cannot be read is said in the readings."""

    async def scrape(self) -> FlinkReadings: ...

    async def close(self) -> None: ...


class ApplicationCollector:
    """The collectors that a policy asks for. `on_closed` gives back what they share with others."""

    def __init__(
        self,
        flink: Flink,
        partitions: PartitionCollector | None,
        clock: Clock,
        on_closed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._flink = flink
        self._partitions = partitions
        self._clock = clock
        self._on_closed = on_closed

    async def read(self, policy: ScalingPolicy) -> Readings:
        """One scrape. Never raises for what a cluster does wrong."""
        flink = await self._flink.scrape()
        offsets = await self._offsets(flink)
        return Readings(policy, flink, offsets.partitions, offsets.problems)

    async def _offsets(self, flink: FlinkReadings) -> KafkaReadings:
        if self._partitions is None or flink.job is None:
            return KafkaReadings()
        # Offsets last: log ends are then read after the positions, so that lag is never below what it was.
        wanted = [
            Wanted(v.id, flink.sources[v.id].positions if v.id in flink.sources else {}) for v in flink.job.sources
        ]
        return await self._partitions.scrape(wanted, self._clock.now())

    async def close(self) -> None:
        """Let go of what it opened. Once."""
        await self._flink.close()
        if self._on_closed is not None:
            await self._on_closed()


@dataclass
class Collectors:
    """Makes the collector of each policy; what is costly is shared between them."""

    clock: Clock
    call_timeout_seconds: float
    allowed: Allowed = TARGETS

    def __post_init__(self) -> None:
        self._pool = BrokersPool(
            lambda servers: KafkaBrokers(servers, self.call_timeout_seconds, self.clock, self.allowed)
        )

    def new(self, policy: ScalingPolicy) -> ApplicationCollector:
        """The collector of a policy; whoever asked closes it."""
        # Whatever scales it, what there is to see of it is a Flink job.
        flink = FlinkCollector(
            policy.spec.target.job, self.call_timeout_seconds, new_client(self.call_timeout_seconds, self.allowed)
        )
        signals = policy.spec.signals.kafka
        if signals is None:
            return ApplicationCollector(flink, None, self.clock)
        servers = signals.bootstrap_servers
        partitions = PartitionCollector(signals, self._pool.take(servers))
        return ApplicationCollector(flink, partitions, self.clock, lambda: self._pool.release(servers))
