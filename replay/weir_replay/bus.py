"""The bus of a replay: in memory, and bounded however long the replay is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weir_contracts import Analysis, Observation, Outcome, Plan
from weir_contracts.topics import ANALYSES, OBSERVATIONS, OUTCOMES, PLANS
from weir_runtime.bus import Outgoing, Record
from weir_runtime.clock import Clock
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import decode, encode

Message = Observation | Analysis | Plan | Outcome
_TOPICS = {topic.name: topic for topic in (OBSERVATIONS, ANALYSES, PLANS, OUTCOMES)}
RECORDS_KEPT = 100
"""Newest records of a topic that keep their values; consumers read each at once."""


class ReplayBus(MemoryBus):
    """One partition a topic. `carry` receives each message and returns what arrives of it, None if it is lost.

    `published` is called with each record, lost or not.
    """

    def __init__(
        self, clock: Clock, published: Callable[[Outgoing], None], carry: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(partitions=1, clock=clock)
        self._clock = clock
        self._published = published
        self._carry = carry

    async def send(self, message: Message) -> None:
        """Publish a message on its topic."""
        await self.publish_many([self._record(message)])

    async def deliver(self, message: Message | Outgoing) -> None:
        """Let a message arrive that `carry` kept back, or any record."""
        await self._append([message if isinstance(message, Outgoing) else self._record(message)])

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            self._published(record)
        arriving = (self._carried(record) for record in records)
        await self._append([record for record in arriving if record is not None])

    async def _append(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            await super().publish_many([record])
            log = self.log[record.topic, 0]
            if len(log) > RECORDS_KEPT:
                log[-RECORDS_KEPT - 1] = replace(log[-RECORDS_KEPT - 1], value=None, headers={})

    def _carried(self, record: Outgoing) -> Outgoing | None:
        """Return what arrives of a record, or None."""
        topic = _TOPICS.get(record.topic)
        if self._carry is None or topic is None or record.value is None:
            return record
        message = decode(Record(record.topic, 0, 0, record.key, record.value, record.headers), topic.contract).message
        arriving = self._carry(message)
        if arriving is message:
            return record
        return None if arriving is None else self._record(arriving)

    def _record(self, message: Message) -> Outgoing:
        topic = next(topic for topic in _TOPICS.values() if isinstance(message, topic.contract))
        time = getattr(message, "observed_at", None) or self._clock.now()
        body, headers = encode(message, type=topic.type, source="replay", id=message.id, time=time)
        return Outgoing(topic.name, message.application, body, headers)
