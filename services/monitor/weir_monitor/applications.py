"""Collector of one application: its engine, then the partitions of its sources at the brokers."""

import asyncio
from dataclasses import dataclass

from weir_contracts import Problem, ScalingPolicy
from weir_engines.kafka.engine import KafkaEngine
from weir_engines.kafka.partitions import KafkaReadings, PartitionCollector
from weir_engines.registry import Engines, Meter
from weir_engines.scrape import Collector, Scrape
from weir_runtime.clock import Clock

from .core import Readings
from .prometheus import PrometheusCollector, SignalReadings


class ApplicationCollector:
    """Collectors of one policy."""

    def __init__(
        self,
        engine: Collector,
        clock: Clock,
        *,
        partitions: PartitionCollector | None = None,
        signals: PrometheusCollector | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._partitions = partitions
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
        """Close the collectors. Call it once."""
        for each in (self._engine, self._signals, self._partitions):
            if each is not None:
                await each.close()


@dataclass
class _OutOfReach:
    """Collector of a policy that names something out of its namespace's reach."""

    field: str
    reason: str

    async def scrape(self) -> Scrape:
        return Scrape("unreachable", self.reason, problems=(Problem(where=self.field, what=self.reason),))

    async def close(self) -> None:
        """Do nothing: nothing was opened."""


class Collectors:
    """Factory of the policies' collectors, which share what the engines opened."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def new(self, policy: ScalingPolicy) -> ApplicationCollector:
        """Return the collector of a policy; the caller closes it. It reads nothing of a policy that names what its namespace
        may not."""
        engines, resources, subject = self._engines, self._engines.resources, policy.subject
        if (refused := resources.reach.refusal(subject)) is not None:
            return ApplicationCollector(_OutOfReach(*refused), resources.clock)
        prometheus = policy.spec.signals.prometheus
        seconds, allowed = resources.timeout_seconds, resources.reach.allowed
        return ApplicationCollector(
            engines.collector(subject),
            resources.clock,
            partitions=engines.of(KafkaEngine).partitions(subject),
            signals=None if prometheus is None else PrometheusCollector(prometheus, seconds, allowed),
            meter=engines.reader(subject).meter(subject),
        )
