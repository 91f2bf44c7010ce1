"""Consumer groups of knowledge: batches that are kept until they are stored, and the count of dead letters."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog
from prometheus_client import Counter

from weir_contracts import DeadLetter
from weir_contracts.topics import DEAD_LETTERS
from weir_runtime.bus import Bus, Consumer, PartitionsChanged, Record
from weir_runtime.loop import CardinalityLimiter, Stop, run_forever
from weir_runtime.messages import Undecodable, decode

from .store import RETRY_SECONDS, StoreFull

Take = Callable[[list[Record]], Awaitable[None]]
"""Stores a batch. `StoreFull` and `StoreUnavailable` repeat it; an empty batch is taken as well."""

_DEAD_LETTERS = Counter(
    "weir_knowledge_dead_letters_total",
    "Dead letters of all services, as their topic has them",
    ["service", "topic", "code"],
)
_SUPPRESSED = Counter(
    "weir_knowledge_dead_letters_suppressed_total",
    "Unreadable messages without a dead letter, as the next dead letter of their process counts them",
    ["service"],
)
_service, _topic, _code = CardinalityLimiter(20), CardinalityLimiter(50), CardinalityLimiter(20)


@dataclass(eq=False, repr=False)
class Batches:
    """Hands the records of topics to `take`, batch by batch, and commits each afterwards. An outage of the store skips
    no record.

    While the store is full, the batch is tried every `retry_seconds`, and that is logged once.
    """

    bus: Bus
    topics: Sequence[str]
    group: str
    take: Take
    on_revoked: PartitionsChanged | None = None
    retry_seconds: float = RETRY_SECONDS
    _pending: list[Record] = field(default_factory=list, init=False)
    _is_full: bool = field(default=False, init=False)

    async def follow(self, name: str, stop: Stop) -> None:
        """Take batches until stopped."""
        consumer = self.bus.consumer(self.topics, self.group, on_revoked=self.on_revoked)
        try:
            await run_forever(name, lambda: self._cycle(consumer, stop), stop)
        finally:
            await consumer.close()

    async def _cycle(self, consumer: Consumer, stop: Stop) -> None:
        log = structlog.get_logger("knowledge")
        if not self._pending:
            self._pending = await stop.race(consumer.receive(max_records=500, timeout_seconds=0.5)) or []
        try:
            await self.take(self._pending)
        except StoreFull as error:
            if not self._is_full:
                log.warning("store-full", reason=str(error), retry_in_seconds=self.retry_seconds)
            self._is_full = True
            await stop.wait(self.retry_seconds)
            return
        if self._is_full:
            self._is_full = False
            log.info("store-has-room")
        if self._pending:
            await consumer.commit()
            self._pending = []


async def count_dead_letters(bus: Bus, stop: Stop) -> None:
    """Count the dead letters of every service until stopped. The analyzer's are written in Spark workers, without a
    counter."""

    async def take(records: list[Record]) -> None:
        for record in records:
            count_dead_letter(record)

    await Batches(bus, [DEAD_LETTERS.name], "weir-knowledge-dead-letters", take).follow("dead-letters", stop)


def count_dead_letter(record: Record) -> None:
    """Count one. An undecodable record counts as `unknown`: its dead letter would be undecodable again."""
    if record.value is None:
        return
    try:
        letter = decode(record, DeadLetter).message
    except Undecodable:
        _DEAD_LETTERS.labels("unknown", record.topic, "unknown").inc()
        return
    _DEAD_LETTERS.labels(_service(letter.service), _topic(letter.topic), _code(letter.code)).inc()
    _SUPPRESSED.labels(_service(letter.service)).inc(letter.suppressed)
