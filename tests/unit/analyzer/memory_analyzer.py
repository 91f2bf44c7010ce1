"""The analyzer on any bus without Spark: the same records through the same `process`, its state in a dictionary."""

from collections import defaultdict

from weir_analyzer.adapters.processing import StoredState, process, seeded
from weir_analyzer.core import AnalysisSettings
from weir_contracts.topics import ANALYSES, OBSERVATIONS
from weir_runtime.bus import Bus, Outgoing, Record
from weir_runtime.loop import Stop

GROUP = "weir-analyzer"


class MemoryAnalyzer:
    """Consumes observations from any bus and publishes analyses, batch by batch."""

    def __init__(self, bus: Bus, settings: AnalysisSettings | None = None) -> None:
        self._bus = bus
        self._settings = settings or AnalysisSettings()
        self.states: dict[str, StoredState] = {}

    async def run(self, stop: Stop) -> None:
        """Seed from the latest analyses, then work until stopped."""
        await self._seed(stop)
        consumer = self._bus.consumer([OBSERVATIONS.name], GROUP)
        try:
            while not stop.requested:
                records = await stop.race(consumer.receive(timeout_seconds=0.5))
                if records:
                    await self._bus.publish_many(self.batch(records))
                    await consumer.commit()
        finally:
            await consumer.close()

    def batch(self, records: list[Record]) -> list[Outgoing]:
        """Process the records as a micro-batch; returns the records to publish."""
        by_key: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            by_key[record.key or ""].append(record)
        out: list[Outgoing] = []
        for key, mine in by_key.items():
            state, given = process(key, self.states.get(key), mine, self._settings)
            out += given
            if state is None:
                self.states.pop(key, None)
            else:
                self.states[key] = state
        return out

    async def _seed(self, stop: Stop) -> None:
        reader = self._bus.reader(ANALYSES.name)
        latest: dict[str, Record] = {}
        try:
            while not stop.requested:
                for record in await reader.receive(timeout_seconds=0.05):
                    latest[record.key or ""] = record
                if await reader.caught_up():
                    break
        finally:
            await reader.close()
        for key, record in latest.items():
            state = seeded(record.value)
            if state is not None:
                self.states[key] = state
