"""Member of a consumer group, with the confirmation of its membership."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from .bus import SESSION_SECONDS, BusError, Committed, PartitionsChanged, Place, Record
from .kafka_client import ClientThread, begun, code_of, explain
from .kafka_reader import READING, ReadingClient, Shared

CONFIRM_SECONDS = 3.0
"""For a confirmation by the group's coordinator."""
MAX_POLL_SECONDS = 75.0
_LOST_MEMBERSHIP = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._NO_OFFSET,
)


class KafkaConsumer(ReadingClient):
    """A group member. librdkafka sends its heartbeats; others take over a killed member's partitions after about 10 s."""

    def __init__(
        self,
        shared: Shared,
        topics: Sequence[str],
        group: str,
        *,
        from_beginning: bool = True,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
        positioned: bool = False,
    ) -> None:
        super().__init__(f"consumer-{group}", shared)
        self._settings = {
            **shared.settings,
            **READING,
            "group.id": group,
            "client.id": f"{group}-{uuid4().hex[:8]}",
            "auto.offset.reset": "earliest" if from_beginning else "latest",
            # A killed member must be replaced within 15 s: 8 s without a heartbeat (of which a busy machine may lose
            # three; brokers accept at least 6 s by default), up to 2 s until the others notice, and the rest for
            # catching up.
            "session.timeout.ms": round(SESSION_SECONDS * 1000),
            "heartbeat.interval.ms": 2_000,
            # More than the longest deadline of a planner, 60 s. It is also the time limit of joining: with the default,
            # 5 min, a member waits that long if its request is lost with its broker.
            "max.poll.interval.ms": round(MAX_POLL_SECONDS * 1000),
            # Every member reads the same partition numbers of all its topics: one key, one owner.
            "partition.assignment.strategy": "range",
            "enable.partition.eof": positioned,
        }
        self._topics = list(topics)
        self._from_beginning = from_beginning
        self._loop: asyncio.AbstractEventLoop | None = None
        self._positioned = positioned
        self._positions: dict[Place, int] = {}
        self._begun: dict[Place, int] = {}
        """Offsets of the next records of all places that `begin` named."""
        self._ended: frozenset[Place] = frozenset()
        self._left: list[Record] = []
        """Records that a cancelled `receive` has left."""
        self._owned: frozenset[int] = frozenset()
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._committed: dict[Place, int] = {}
        self._polled_at = self._confirmed_at = float("-inf")
        self._confirming: asyncio.Future[None] | None = None

    @property
    def assignment(self) -> frozenset[int]:
        return self._owned

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        self._loop = asyncio.get_running_loop()
        left, self._left = self._left, []
        records = left or await self._take(max_records, timeout_seconds)
        for record in records:
            self._positions[record.topic, record.partition] = record.offset + 1
        return records

    def _receive(self, max_records: int, timeout_seconds: float) -> list[Record]:
        if self._client is None:
            self._client = Consumer(self._settings)
            self._client.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        self._polled_at = self._clock.monotonic()
        records, ends = self._poll(self._client, max_records, timeout_seconds)
        self._ended |= {place for place in ends if place[1] in self._owned}
        # After a rebalance in between, the new owner reads the others.
        records = [record for record in records if record.partition in self._owned]
        if self._positioned:
            self._begun.update({(record.topic, record.partition): record.offset + 1 for record in records})
        return records

    async def begin(self, positions: Mapping[Place, int | None]) -> None:
        if self._under_way is not None:
            self._left += await self._take(0, 0.0)
        self._left = [record for record in self._left if (record.topic, record.partition) not in positions]
        starts = {place: OFFSET_BEGINNING if offset is None else offset for place, offset in positions.items()}
        await self._thread.call(self._begin, starts)

    def _begin(self, positions: Mapping[Place, int]) -> None:
        client = self._client
        if client is None:
            return
        begun = {**self._begun, **positions}
        self._begun = {place: offset for place, offset in begun.items() if place[1] in self._owned}
        self._ended -= positions.keys()
        client.assign([TopicPartition(*place, offset) for place, offset in self._begun.items()])

    @property
    def ended(self) -> frozenset[Place]:
        return self._ended

    async def committed(self, place: Place) -> Committed:
        return await self._thread.call(self._committed_at, place)

    def _committed_at(self, place: Place) -> Committed:
        if self._client is None:
            raise BusError(f"kafka: {self._thread.name} has not joined yet")
        (answer,) = self._client.committed([TopicPartition(*place)], timeout=CONFIRM_SECONDS)
        if answer.error is not None:
            raise KafkaException(answer.error)
        return Committed(answer.offset if answer.offset >= 0 else None, answer.metadata or "")

    async def membership(self) -> object:
        """Return what transactions with the group's positions need: this member, in the present generation."""
        return await self._thread.call(self._membership)

    def _membership(self) -> object:
        if self._client is None or not self._owned:
            raise BusError(f"kafka: {self._thread.name} owns no partition")
        return self._client.consumer_group_metadata()

    def _on_assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        if self._client is None or client is not self._client:
            return  # given up
        gained = frozenset(p.partition for p in partitions)
        self._owned |= gained
        if self._positioned:
            # Nothing is read before `begin`.
            client.assign([])
        self._notify(self._on_assigned, gained)

    def _on_revoke(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        if client is self._client:
            self._lose(frozenset(p.partition for p in partitions))

    def _lose(self, lost: frozenset[int]) -> None:
        self._owned -= lost
        self._confirmed_at = float("-inf")  # the generation of the group has ended
        self._ended = frozenset(place for place in self._ended if place[1] not in lost)
        for offsets in (self._positions, self._committed, self._begun):
            for place in [place for place in offsets if place[1] in lost]:
                offsets.pop(place, None)
        self._notify(self._on_revoked, lost)

    def _notify(self, callback: PartitionsChanged | None, partitions: frozenset[int]) -> None:
        if callback and partitions and self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, partitions)

    async def confirmed_until(self, partition: int, min_seconds: float = 0.0) -> float | None:
        self._loop = asyncio.get_running_loop()
        current = self._until(partition, min_seconds)
        if current is None and partition in self._owned:
            if self._confirming is None or self._confirming.done():
                self._confirming = begun(self._within_a_poll(self._confirm))
            with suppress(TimeoutError, BusError):
                await asyncio.wait_for(asyncio.shield(self._confirming), CONFIRM_SECONDS)
        return current or self._until(partition, min_seconds)

    def _until(self, partition: int, min_seconds: float) -> float | None:
        """Return the end of the last confirmation, or None.

        The group also removes a member that does not poll. A rebalance may begin a session before the member notices,
        so the last poll counts for `MAX_POLL_SECONDS` less a session.
        """
        until = min(self._confirmed_at + SESSION_SECONDS, self._polled_at + MAX_POLL_SECONDS - SESSION_SECONDS)
        certain = partition in self._owned and until - self._clock.monotonic() > min_seconds
        return until if certain else None

    def _confirm(self) -> None:
        """Commit an offset again, which confirms all partitions.

        The coordinator refuses it from a member of an older generation, and otherwise restarts the session.
        """
        if self._client is None:
            return
        try:
            place = self._committed_place(self._client)
            if place is not None and not self._send(self._client, [place]):
                self._lose(self._owned)
        except KafkaException as error:
            if code_of(error) not in _LOST_MEMBERSHIP:
                raise
            if code_of(error) != KafkaError.REBALANCE_IN_PROGRESS:
                self._lose(self._owned)

    def _committed_place(self, client: Consumer) -> TopicPartition | None:
        """Return a partition with its committed offset, or without one with its first offset, if reading begins there."""
        found = next(iter(self._committed.items()), None)
        if found is not None:
            return TopicPartition(*found[0], found[1])
        own = next((place for place in client.assignment() if place.partition in self._owned), None)
        if own is None:
            return None
        (answer,) = client.committed([TopicPartition(own.topic, own.partition)], timeout=CONFIRM_SECONDS)
        if answer.error is not None:
            raise KafkaException(answer.error)
        if answer.offset >= 0:
            return TopicPartition(own.topic, own.partition, answer.offset)
        if not self._from_beginning:
            return None
        marks = client.get_watermark_offsets(own, timeout=CONFIRM_SECONDS)
        return None if marks is None else TopicPartition(own.topic, own.partition, marks[0])

    def _send(self, client: Consumer, offsets: list[TopicPartition]) -> bool:
        """Commit and wait for the response; return whether it confirms the membership that it was sent with."""
        member, sent_at = client.memberid(), self._clock.monotonic()
        for answer in client.commit(offsets=offsets, asynchronous=False) or ():
            if answer.error is not None:
                raise KafkaException(answer.error)
        self._committed.update({(place.topic, place.partition): place.offset for place in offsets})
        # A client that lost its membership has no member id, but an empty group accepts its commit.
        if not member or client.memberid() != member:
            return False
        self._confirmed_at = sent_at
        return True

    async def commit(self) -> None:
        await self._within_a_poll(self._commit)

    async def _within_a_poll(self, function: Callable[[], None]) -> None:
        """Run what waits for a commit's response. `BusError` if it does not return while the group keeps a member that
        does not poll; another member joins in its place.

        librdkafka's commit has no time limit. It waits for brokers that are away, and now and then for ever after
        (github.com/confluentinc/confluent-kafka-python/issues/1801).
        """
        try:
            await asyncio.wait_for(self._thread.call(function), MAX_POLL_SECONDS)
        except TimeoutError:
            reason = (
                f"kafka: {self._thread.name} got no answer to its commit for {MAX_POLL_SECONDS:.0f} s and joins again"
            )
            self._join_again(reason)
            raise BusError(reason) from None

    def _join_again(self, reason: str) -> None:
        stuck, self._client = self._client, None
        self._lose(self._owned)
        self._thread.abandon(reason, lambda: stuck.close() if stuck else None)
        self._thread, self._under_way = ClientThread(self._thread.name), None

    def _commit(self) -> None:
        offsets = [TopicPartition(t, p, o) for (t, p), o in list(self._positions.items()) if p in self._owned]
        if self._client is None or not offsets:
            return
        try:
            self._send(self._client, offsets)
        except KafkaException as error:
            if code_of(error) not in _LOST_MEMBERSHIP:
                raise
            # The partitions have another owner, which repeats the uncommitted records: consumers are idempotent.
            structlog.get_logger("kafka").info("commit-skipped", reason=explain(error))

    async def close(self) -> None:
        await super().close()
        self._owned = frozenset()
