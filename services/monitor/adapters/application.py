"""Reads one application whole: its Flink cluster, then its sources' partitions at the brokers."""

from weir_contracts import ScalingPolicy

from runtime.clock import Clock
from services.monitor.core import Readings

from .flink import FlinkCollector
from .kafka import KafkaCollector, KafkaReadings, Wanted


class ApplicationCollector:
    """The collectors that a policy asks for."""

    def __init__(self, policy: ScalingPolicy, clock: Clock, call_timeout_seconds: float) -> None:
        assert policy.spec.target.flink is not None  # noqa: S101 - a policy names exactly one driver; this is the only one
        self._clock = clock
        self._flink = FlinkCollector(policy.spec.target.flink, call_timeout_seconds)
        kafka = policy.spec.signals.kafka
        self._kafka = KafkaCollector(kafka, call_timeout_seconds) if kafka else None

    async def read(self, policy: ScalingPolicy) -> Readings:
        """One scrape."""
        flink = await self._flink.scrape()
        offsets = KafkaReadings()
        if self._kafka is not None and flink.job is not None:
            # Offsets last: log ends are then read after the positions, so that lag is never below what it was.
            wanted = [
                Wanted(v.id, flink.sources[v.id].positions if v.id in flink.sources else {}) for v in flink.job.sources
            ]
            offsets = await self._kafka.scrape(wanted, self._clock.now())
        return Readings(policy, flink, offsets.partitions, offsets.problems)

    async def close(self) -> None:
        await self._flink.close()
        if self._kafka is not None:
            await self._kafka.close()
