"""Keeps the shadows' hourly scores, in a separate consumer so that neither it nor the others wait."""

import structlog
from weir_contracts import Shadows
from weir_contracts.topics import SHADOWS

from runtime.bus import Bus, Consumer
from runtime.clock import Clock
from runtime.dead_letters import DeadLetters
from runtime.loop import Stop, run_forever
from runtime.records import Record
from runtime.schema_version import NewerMessages

from .scores import KEPT
from .store import RETRY_SECONDS, Store, StoreFull, StoreFullBackoff

GROUP = "weir-knowledge-scores"


class ScoreKeeper:
    """Connects `weir.shadows` with the store."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        clock: Clock,
        retry_seconds: float = RETRY_SECONDS,
        newer: NewerMessages | None = None,
    ) -> None:
        self._bus = bus
        self._store = store
        self._clock = clock
        self._dead_letters = DeadLetters(bus, "knowledge", clock, newer)
        self._pending: list[Record] = []
        self._log = structlog.get_logger("scores")
        self._backoff = StoreFullBackoff(self._log, retry_seconds)

    async def follow(self, stop: Stop) -> None:
        """Keep scores until stopped."""
        consumer = self._bus.consumer([SHADOWS.name], GROUP)
        try:
            await run_forever("scores", lambda: self._cycle(consumer, stop), stop)
        finally:
            await consumer.close()

    async def _cycle(self, consumer: Consumer, stop: Stop) -> None:
        # What was received is kept until it is stored: an outage of Redis must not skip it.
        if not self._pending:
            self._pending = await stop.race(consumer.receive(max_records=500, timeout_seconds=0.5)) or []
        if self._pending:
            try:
                await self.take(self._pending)
            except StoreFull as error:
                await self._backoff.refused(error, stop)
                return
            self._backoff.written()
            await consumer.commit()
            self._pending = []

    async def take(self, records: list[Record]) -> None:
        """Keep the newest hours of each application. What comes after an application's end is not kept: it has no policy."""
        newest: dict[str, Shadows] = {}
        for record in records:
            if record.value is None:
                continue
            decoded = await self._dead_letters.decoded(record, Shadows)
            if decoded is None:
                continue
            message = decoded.message
            current = newest.get(message.application)
            if current is None or message.at >= current.at:
                newest[message.application] = message
        for application, message in newest.items():
            if await self._store.policy(application) is not None:
                await self._store.keep_scores(application, message.hours, self._clock.now() - KEPT)
        if newest:
            self._log.debug("scores", applications=len(newest))
