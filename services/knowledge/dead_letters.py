"""Counts the dead letters of every service. A stage that runs elsewhere, as the analyzer's does in Spark, cannot count its own."""

from prometheus_client import Counter
from weir_contracts import DeadLetter
from weir_contracts.topics import DEAD_LETTERS

from runtime.bus import Bus, Consumer
from runtime.envelope import Undecodable, decode
from runtime.labels import CardinalityLimiter
from runtime.loop import Stop, run_forever
from runtime.records import Record

GROUP = "weir-knowledge-dead-letters"
_COUNT = Counter(
    "weir_knowledge_dead_letters_total", "Dead letters of all services, as their topic has them", ["service", "topic"]
)
_service, _topic = CardinalityLimiter(20), CardinalityLimiter(50)


class DeadLetterCount:
    """Follows `weir.dead-letters`; a replica counts its share."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def follow(self, stop: Stop) -> None:
        """Count until stopped."""
        consumer = self._bus.consumer([DEAD_LETTERS.name], GROUP)
        try:
            await run_forever("dead-letters", lambda: self._cycle(consumer, stop), stop)
        finally:
            await consumer.close()

    async def _cycle(self, consumer: Consumer, stop: Stop) -> None:
        records = await stop.race(consumer.receive(max_records=500, timeout_seconds=1.0)) or []
        for record in records:
            self.count(record)
        if records:
            await consumer.commit()

    @staticmethod
    def count(record: Record) -> None:
        """Count one. An undecodable record counts as `unknown`: a dead letter of it would be one more, for ever."""
        if record.value is None:
            return
        try:
            letter = decode(record, DeadLetter).message
        except Undecodable:
            _COUNT.labels("unknown", record.topic).inc()
            return
        _COUNT.labels(_service(letter.service), _topic(letter.topic)).inc()
