"""Stores the shadows' hourly scores, in a separate consumer group, so that no other message waits."""

from weir_contracts import Shadows
from weir_contracts.topics import SHADOWS

from runtime.bus import Bus
from runtime.clock import Clock
from runtime.dead_letters import DeadLetters
from runtime.loop import Stop
from runtime.records import Record
from runtime.schema_version import NewerMessages

from .batches import Batches
from .scores import KEPT
from .store import RETRY_SECONDS, Store

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
        self._store = store
        self._clock = clock
        self._dead_letters = DeadLetters(bus, "knowledge", clock, newer)
        self._batches = Batches(bus, [SHADOWS.name], GROUP, self.take, retry_seconds=retry_seconds)

    async def follow(self, stop: Stop) -> None:
        """Keep scores until stopped."""
        await self._batches.follow("scores", stop)

    async def take(self, records: list[Record]) -> None:
        """Store the newest hours of each application with a policy; an ended one has none."""
        newest: dict[str, Shadows] = {}
        for record in records:
            decoded = None if record.value is None else await self._dead_letters.decoded(record, Shadows)
            if decoded is not None:
                message = decoded.message
                current = newest.get(message.application)
                if current is None or message.at >= current.at:
                    newest[message.application] = message
        for application, message in newest.items():
            if await self._store.policy(application) is not None:
                await self._store.keep_scores(application, message.hours, self._clock.now() - KEPT)
