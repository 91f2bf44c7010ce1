"""Reads one application: its engine, then its sources' partitions at the brokers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from weir_contracts import ScalingPolicy

from engines.scrape import Scrape
from runtime.addresses import TARGETS, Allowed
from runtime.clock import Clock
from services.monitor.core import Readings

from .flink import FlinkCollector, new_client
from .kafka import BrokersPool, KafkaBrokers
from .partitions import KafkaReadings, PartitionCollector


class EngineCollector(Protocol):
    """Reads one application from its engine. Never raises: what cannot be read is a problem in the scrape."""

    async def scrape(self) -> Scrape: ...

    async def close(self) -> None: ...


class ApplicationCollector:
    """The collectors that a policy asks for. `on_closed` gives back what they share with others."""

    def __init__(
        self,
        engine: EngineCollector,
        partitions: PartitionCollector | None,
        clock: Clock,
        on_closed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._engine = engine
        self._partitions = partitions
        self._clock = clock
        self._on_closed = on_closed

    async def read(self, policy: ScalingPolicy) -> Readings:
        """One scrape. Never raises for what a cluster does wrong."""
        scrape = await self._engine.scrape()
        offsets = await self._offsets(scrape)
        return Readings(policy, scrape, offsets.partitions, offsets.problems)

    async def _offsets(self, scrape: Scrape) -> KafkaReadings:
        if self._partitions is None or scrape.topology is None:
            return KafkaReadings()
        # Offsets last: log ends are then read after the positions, so that lag is never below what it was.
        return await self._partitions.scrape(scrape.sources, self._clock.now())

    async def close(self) -> None:
        """Let go of what it opened. Once."""
        await self._engine.close()
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

    def _engine(self, policy: ScalingPolicy) -> EngineCollector:
        """Return the collector of the application's engine: one line per engine."""
        client = new_client(self.call_timeout_seconds, self.allowed)
        return FlinkCollector(policy.subject.flink, self.call_timeout_seconds, client)

    def new(self, policy: ScalingPolicy) -> ApplicationCollector:
        """The collector of a policy; whoever asked closes it."""
        engine = self._engine(policy)
        signals = policy.spec.signals.kafka
        if signals is None:
            return ApplicationCollector(engine, None, self.clock)
        servers = signals.bootstrap_servers
        partitions = PartitionCollector(signals, self._pool.take(servers))
        return ApplicationCollector(engine, partitions, self.clock, lambda: self._pool.release(servers))
