"""Collector of one application: its engine, then the partitions of its sources at the brokers."""

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
    """Reader of one application from its engine. It reports failures as problems in the scrape and does not raise
    them."""

    async def scrape(self) -> Scrape: ...

    async def close(self) -> None: ...


class ApplicationCollector:
    """Collectors of one policy. `on_closed` releases the resources that it shares with others."""

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
        """Scrape once. Failures of a cluster are problems in the readings, not errors."""
        scrape = await self._engine.scrape()
        offsets = await self._offsets(scrape)
        return Readings(policy, scrape, offsets.partitions, offsets.problems)

    async def _offsets(self, scrape: Scrape) -> KafkaReadings:
        if self._partitions is None or scrape.topology is None:
            return KafkaReadings()
        # Offsets last: with log ends from after the positions, lag is never too small.
        return await self._partitions.scrape(scrape.sources, self._clock.now())

    async def close(self) -> None:
        """Close the collectors and release shared resources. Call it once."""
        await self._engine.close()
        if self._on_closed is not None:
            await self._on_closed()


@dataclass
class Collectors:
    """Factory of the policies' collectors, which share connections to brokers."""

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
        """Return the collector of a policy; the caller closes it."""
        engine = self._engine(policy)
        signals = policy.spec.signals.kafka
        if signals is None:
            return ApplicationCollector(engine, None, self.clock)
        servers = signals.bootstrap_servers
        partitions = PartitionCollector(signals, self._pool.take(servers))
        return ApplicationCollector(engine, partitions, self.clock, lambda: self._pool.release(servers))
