"""Counts the dead letters of every service. The analyzer's are written in Spark workers, without a counter."""

from prometheus_client import Counter
from weir_contracts import DeadLetter
from weir_contracts.topics import DEAD_LETTERS

from runtime.bus import Bus
from runtime.envelope import Undecodable, decode
from runtime.labels import CardinalityLimiter
from runtime.loop import Stop
from runtime.records import Record

from .batches import Batches

GROUP = "weir-knowledge-dead-letters"
_COUNT = Counter(
    "weir_knowledge_dead_letters_total", "Dead letters of all services, as their topic has them", ["service", "topic"]
)
_service, _topic = CardinalityLimiter(20), CardinalityLimiter(50)


class DeadLetterCount:
    """Follows `weir.dead-letters`; each replica counts the letters of its partitions."""

    def __init__(self, bus: Bus) -> None:
        self._batches = Batches(bus, [DEAD_LETTERS.name], GROUP, self._take)

    async def follow(self, stop: Stop) -> None:
        """Count until stopped."""
        await self._batches.follow("dead-letters", stop)

    async def _take(self, records: list[Record]) -> None:
        for record in records:
            self.count(record)

    @staticmethod
    def count(record: Record) -> None:
        """Count one. An undecodable record counts as `unknown`: its dead letter would be undecodable again."""
        if record.value is None:
            return
        try:
            letter = decode(record, DeadLetter).message
        except Undecodable:
            _COUNT.labels("unknown", record.topic).inc()
            return
        _COUNT.labels(_service(letter.service), _topic(letter.topic)).inc()
