"""The analyzer without Spark, for all services in one process. It is the only member of its group and keeps its states in
the log.

States, analyses and the group's position are one transaction, so each observation changes its application's state
once, whenever the process ends. `advance` gets the same input as in Spark (`processing`) and returns the same.
"""

import asyncio
from collections.abc import Iterable
from itertools import groupby

import structlog

from weir_analyzer.core import STATE_VERSION, AnalysisSettings
from weir_analyzer.settings import AnalyzerSettings
from weir_contracts.topics import ANALYSES, OBSERVATIONS
from weir_runtime.bus import Bus, Committed, Outgoing, Record, TopicSpec
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, run_forever
from weir_runtime.reading import LetterRate, read_to_end
from weir_runtime.service import Health, Service, wait_for_topics

from .processing import StoredState, process, seeded

NAME = "weir-analyzer"
"""Of the group, and of the writer of its transactions."""
STATES = f"weir.analyzer-states.v{STATE_VERSION}"
"""Topic of the states, compacted. Another version has another one, and begins with the latest analyses, as in Spark."""
_KEPT = {"cleanup.policy": "compact", "segment.ms": "0", "delete.retention.ms": "60000"}
"""Only the newest state of an application is ever read."""
MAX_RECORDS = 200
"""Of one transaction."""


class NotRunning(RuntimeError):
    """Observations are not read yet; for the readiness probe."""


class DirectAnalyzer:
    """Reads observations, publishes analyses. `partitions` is that of the topics."""

    def __init__(self, bus: Bus, clock: Clock, settings: AnalysisSettings, partitions: int) -> None:
        self._bus = bus
        self._settings = settings
        self._partitions = partitions
        self._rate = LetterRate(clock)
        self._states: dict[str, StoredState] = {}
        self._reads = False
        self._log = structlog.get_logger("analyzer")

    async def ping(self) -> None:
        """Return while observations are read; `NotRunning` otherwise."""
        if not self._reads:
            raise NotRunning("the states of the applications are being read")

    async def run(self, stop: Stop) -> None:
        """Analyze until stopped. After any error it begins again with what the log has."""
        await run_forever("analyzer", lambda: self._read(stop), stop)

    async def _read(self, stop: Stop) -> None:
        consumer = self._bus.consumer([OBSERVATIONS.name], NAME)
        transactions = self._bus.transactions(NAME, consumer)
        try:
            await transactions.fence()
            await self._load()
            self._reads = True
            while not stop.requested:
                records = await stop.race(consumer.receive(MAX_RECORDS, timeout_seconds=0.5)) or []
                for partition in sorted({record.partition for record in records}):
                    of_partition = [record for record in records if record.partition == partition]
                    written = await self._processed(of_partition)
                    position = Committed(of_partition[-1].offset + 1, "")
                    await transactions.commit(written, (OBSERVATIONS.name, partition), position)
        finally:
            self._reads = False
            await transactions.close()
            await consumer.close()

    async def _load(self) -> None:
        """Read the states; without any, seed them from the latest analyses."""
        await self._bus.ensure_topics([TopicSpec(STATES, self._partitions, _KEPT)])
        latest = await self._latest(STATES)
        states = {key: _state(record) for key, record in latest.items()}
        if not states:
            latest = await self._latest(ANALYSES.name)
            found = {key: seeded(record.value) for key, record in latest.items()}
            states = {key: state for key, state in found.items() if state is not None}
        self._states = states
        self._log.info("states-read", applications=len(states), states=len(latest))

    async def _latest(self, topic: str) -> dict[str, Record]:
        """Return the newest record of each key that was not deleted."""
        latest: dict[str, Record] = {}

        def take(record: Record) -> None:
            if record.key is not None and record.value is None:
                latest.pop(record.key, None)
            elif record.key is not None:
                latest[record.key] = record

        await read_to_end(self._bus, topic, take)
        return latest

    async def _processed(self, records: Iterable[Record]) -> list[Outgoing]:
        """Advance each application by its records; return what is to be written."""
        written: list[Outgoing] = []
        by_key = sorted(records, key=lambda record: record.key or "")
        for key, group in groupby(by_key, key=lambda record: record.key or ""):
            of_application = list(group)
            before = self._states.get(key)
            after, out = process(key, before, of_application, self._settings, rate=self._rate)
            written += out
            if after is not None:
                self._states[key] = after
                written.append(
                    Outgoing(STATES, key, after.state, {"partition": str(after.partition), "offset": str(after.offset)})
                )
            elif before is not None:
                del self._states[key]
                written.append(Outgoing(STATES, key, None))
            await asyncio.sleep(0)  # an analysis takes some milliseconds: other tasks run in between
        return written


def _state(record: Record) -> StoredState:
    partition, offset = record.headers.get("partition", "-1"), record.headers.get("offset", "-1")
    return StoredState(record.value or b"", int(partition), int(offset))


def service(settings: AnalyzerSettings, bus: Bus, clock: Clock, health: Health) -> Service:
    """Compose the analyzer without Spark."""
    analyzer = DirectAnalyzer(bus, clock, settings.analysis(), settings.partitions)
    health.register("observations", analyzer.ping)

    async def analyze(stop: Stop) -> None:
        if await wait_for_topics(bus, settings, stop, health):
            await analyzer.run(stop)

    async def close() -> None:
        return None

    return Service({"analyzer": analyze}, close)
