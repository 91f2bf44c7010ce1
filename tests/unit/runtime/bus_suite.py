"""The suite of every bus: `MemoryBus` and `KafkaBus` pass the same stories."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from weir_runtime.bus import (
    SESSION_SECONDS,
    Bus,
    BusError,
    Committed,
    Consumer,
    Outgoing,
    Reader,
    Record,
    TopicSpec,
    Transactions,
    partition_of,
)
from weir_runtime.clock import SystemClock

PARTITIONS = 4
KEYS = [f"shop/app-{i}" for i in range(12)]
DEADLINE_SECONDS = 20.0


async def collect(receiver: Consumer | Reader, count: int) -> list[Record]:
    """Receive until there are `count` records; the assertion names the missing ones, and whether there was an
    assignment."""
    records: list[Record] = []
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(records) < count:
                records += await receiver.receive(timeout_seconds=0.2)
    except TimeoutError:
        places = sorted(record.place for record in records)
        owned = getattr(receiver, "assignment", "that were named")
        raise AssertionError(f"{len(places)} of {count} records, partitions {owned}: {places}") from None
    return records


async def until(condition: Callable[[], bool], *receivers: Consumer | Reader) -> list[Record]:
    """Keep the receivers going until the condition holds; what they got meanwhile."""
    records: list[Record] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            for receiver in receivers:
                records += await receiver.receive(timeout_seconds=0.1)
    return records


async def read_to_end(reader: Reader) -> list[Record]:
    records: list[Record] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await reader.caught_up():
            records += await reader.receive(timeout_seconds=0.2)
    return records


def one_each(topic: str, text: str = "v") -> list[Outgoing]:
    return [Outgoing(topic, key, text.encode()) for key in KEYS]


def keys_of(records: list[Record]) -> list[str]:
    return sorted(str(r.key) for r in records)


class BusSuite:
    """Subclasses give a fixture `bus`: started, closed after the test."""

    @pytest.fixture
    async def topic(self, bus: Bus) -> str:
        name = f"story-{uuid4().hex[:10]}"
        await bus.ensure_topics([TopicSpec(name, PARTITIONS)])
        return name

    @pytest.fixture
    def group(self) -> str:
        return f"group-{uuid4().hex[:10]}"

    # -- writing ---------------------------------------------------------------------------------------------------

    async def test_a_published_message_is_received_complete(self, bus: Bus, topic: str, group: str) -> None:
        """Key, value, headers, a timestamp of now, and its place."""
        before = SystemClock().now() - timedelta(seconds=1)
        await bus.publish(topic, "shop/orders", "wert µ".encode(), {"ce_id": "1", "name": "Ümläut"})
        (record,) = await collect(bus.consumer([topic], group), 1)
        assert (record.topic, record.key, record.value) == (topic, "shop/orders", "wert µ".encode())
        assert record.headers == {"ce_id": "1", "name": "Ümläut"}
        assert record.timestamp is not None
        assert before <= record.timestamp <= SystemClock().now() + timedelta(seconds=1)
        assert record.place == f"{topic}/{record.partition}@0"

    async def test_a_tombstone_has_no_value(self, bus: Bus, topic: str, group: str) -> None:
        """A delete is a record without value, not one with an empty value."""
        await bus.publish_many([Outgoing(topic, "shop/orders", b""), Outgoing(topic, "shop/orders", None)])
        records = await collect(bus.consumer([topic], group), 2)
        assert [r.value for r in records] == [b"", None]

    async def test_a_key_lives_where_java_puts_it(self, bus: Bus, topic: str, group: str) -> None:
        """Spark, Flink and Weir agree on a key's partition."""
        await bus.publish_many(one_each(topic))
        records = await collect(bus.consumer([topic], group), len(KEYS))
        assert {r.key: r.partition for r in records} == {key: partition_of(key, PARTITIONS) for key in KEYS}

    async def test_a_keys_messages_stay_in_order(self, bus: Bus, topic: str, group: str) -> None:
        """Published together or one after the other, they come in that order."""
        await bus.publish_many([Outgoing(topic, KEYS[i % 3], b"%d" % i) for i in range(300)])
        await bus.publish(topic, KEYS[0], b"300")
        records = await collect(bus.consumer([topic], group), 301)
        for key in KEYS[:3]:
            numbers = [int(r.value or b"") for r in records if r.key == key]
            assert numbers == sorted(numbers)

    async def test_topics_are_made_once(self, bus: Bus, topic: str) -> None:
        """Every service requests all topics at start; only the first creates them."""
        await bus.ensure_topics([TopicSpec(topic, PARTITIONS), TopicSpec(f"{topic}-b", PARTITIONS)])
        await bus.ensure_topics([TopicSpec(topic, PARTITIONS), TopicSpec(f"{topic}-b", PARTITIONS)])

    async def test_another_number_of_partitions_is_refused(self, bus: Bus, topic: str) -> None:
        """Keys would end up with two owners: the error names the topic and both counts."""
        with pytest.raises(BusError, match=rf"{topic} has {PARTITIONS} partitions and must have 8"):
            await bus.ensure_topics([TopicSpec(topic, 8)])

    # -- sharing the work ------------------------------------------------------------------------------------------

    async def test_receive_is_woken_by_a_record(self, bus: Bus, topic: str, group: str) -> None:
        """A long timeout is not a delay."""
        consumer = bus.consumer([topic], group)
        await until(lambda: len(consumer.assignment) == PARTITIONS, consumer)
        waiting = asyncio.create_task(consumer.receive(timeout_seconds=15.0))
        await asyncio.sleep(0)
        await bus.publish(topic, "a", b"1")
        assert [r.value for r in await asyncio.wait_for(waiting, 5.0)] == [b"1"]

    async def test_no_more_than_was_requested(self, bus: Bus, topic: str, group: str) -> None:
        """`max_records` bounds what a cycle takes on."""
        await bus.publish_many(one_each(topic))
        consumer = bus.consumer([topic], group)
        sizes = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while sum(sizes) < len(KEYS):
                sizes.append(len(await consumer.receive(max_records=5, timeout_seconds=0.2)))
        assert max(sizes) <= 5

    async def test_a_successor_goes_on_after_the_last_commit(self, bus: Bus, topic: str, group: str) -> None:
        """Committed records are not repeated; received ones are."""
        first = bus.consumer([topic], group)
        await bus.publish(topic, "a", b"1")
        assert [r.value for r in await collect(first, 1)] == [b"1"]
        await first.commit()
        await bus.publish(topic, "a", b"2")
        assert [r.value for r in await collect(first, 1)] == [b"2"]
        await first.close()
        second = bus.consumer([topic], group)
        assert [r.value for r in await collect(second, 1)] == [b"2"]

    async def test_a_commit_covers_only_what_was_handed_out(self, bus: Bus, topic: str, group: str) -> None:
        """Records fetched but not yet returned are no part of it."""
        await bus.publish_many([Outgoing(topic, "a", b"%d" % i) for i in range(10)])
        first = bus.consumer([topic], group)
        got: list[Record] = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not got:
                got = await first.receive(max_records=1, timeout_seconds=0.2)
        await first.commit()
        await first.close()
        assert [r.value for r in await collect(bus.consumer([topic], group), 9)] == [b"%d" % i for i in range(1, 10)]

    async def test_a_cancelled_receive_loses_nothing(self, bus: Bus, topic: str, group: str) -> None:
        """A cancelled wait loses nothing: the next call returns its records."""
        consumer = bus.consumer([topic], group)
        await until(lambda: len(consumer.assignment) == PARTITIONS, consumer)
        given_up = asyncio.create_task(consumer.receive(timeout_seconds=2.0))
        await asyncio.sleep(0)
        await bus.publish(topic, "a", b"1")
        given_up.cancel()
        got = [] if not given_up.done() or given_up.cancelled() else given_up.result()
        await asyncio.gather(given_up, return_exceptions=True)
        got += [] if got else await collect(consumer, 1)
        assert [r.value for r in got] == [b"1"]

    async def test_two_members_share_the_partitions(self, bus: Bus, topic: str, group: str) -> None:
        """Each partition has one owner, and every record comes to exactly one of them."""
        first, second = bus.consumer([topic], group), bus.consumer([topic], group)
        await until(
            lambda: (
                len(first.assignment | second.assignment) == PARTITIONS
                and not first.assignment & second.assignment
                and min(len(first.assignment), len(second.assignment)) == PARTITIONS // 2
            ),
            first,
            second,
        )
        await bus.publish_many(one_each(topic))
        got: dict[str, list[Record]] = {"first": [], "second": []}
        async with asyncio.timeout(DEADLINE_SECONDS):
            while sum(map(len, got.values())) < len(KEYS):
                got["first"] += await first.receive(timeout_seconds=0.1)
                got["second"] += await second.receive(timeout_seconds=0.1)
        assert keys_of([*got["first"], *got["second"]]) == sorted(KEYS)
        assert {r.partition for r in got["first"]} <= first.assignment
        assert {r.partition for r in got["second"]} <= second.assignment

    async def test_a_member_that_leaves_is_replaced_at_once(self, bus: Bus, topic: str, group: str) -> None:
        """Its partitions, and what it had received without committing, go to the other member."""
        first, second = bus.consumer([topic], group), bus.consumer([topic], group)
        await until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2, first, second)
        await bus.publish_many(one_each(topic))
        assert await collect(first, 1), "received, never committed"
        await first.close()
        taken: set[str | None] = set()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while taken != set(KEYS):
                taken |= {r.key for r in await second.receive(timeout_seconds=0.2)}
        assert len(second.assignment) == PARTITIONS

    async def test_members_are_notified_of_their_partitions(self, bus: Bus, topic: str, group: str) -> None:
        """Given and taken partitions add up to what a member owns, before it receives anything of them."""
        owned: set[int] = set()
        first = bus.consumer([topic], group, on_assigned=owned.update, on_revoked=owned.difference_update)
        await until(lambda: len(first.assignment) == PARTITIONS, first)
        assert owned == first.assignment
        second = bus.consumer([topic], group)
        await until(lambda: len(second.assignment) == PARTITIONS // 2, first, second)
        await until(lambda: len(first.assignment) == PARTITIONS // 2, first, second)
        assert owned == first.assignment
        await first.close()
        await asyncio.sleep(0)
        assert owned == set()
        assert first.assignment == frozenset()

    async def test_a_member_is_certain_of_its_partitions(self, bus: Bus, topic: str, group: str) -> None:
        """For a session at most, of own partitions only; and received records stay uncommitted."""
        consumer = bus.consumer([topic], group)
        await bus.publish(topic, "a", b"1")
        assert await collect(consumer, 1)
        certain = [await consumer.confirmed_until(p, SESSION_SECONDS / 2) for p in range(PARTITIONS)]
        now = SystemClock().monotonic()
        assert all(until is not None and now < until <= now + SESSION_SECONDS for until in certain), certain
        assert await consumer.confirmed_until(PARTITIONS) is None
        assert await consumer.confirmed_until(0, SESSION_SECONDS) is None, "none lasts longer than a session"
        await consumer.close()
        assert await consumer.confirmed_until(0) is None
        assert await collect(bus.consumer([topic], group), 1)

    async def test_a_member_that_was_put_out_is_certain_of_nothing(self, bus: Bus, topic: str, group: str) -> None:
        """It checks first, learns that it has lost its partitions, and can rejoin."""
        owned: set[int] = set()
        first = bus.consumer([topic], group, on_assigned=owned.update, on_revoked=owned.difference_update)
        await until(lambda: len(first.assignment) == PARTITIONS, first)
        assert await first.confirmed_until(0) is not None
        second = bus.consumer([topic], group)
        await self.put_out(bus, first, group)
        await until(lambda: len(second.assignment) == PARTITIONS, second)
        assert await first.confirmed_until(0, SESSION_SECONDS - 0.01) is None
        await asyncio.sleep(0)
        assert (first.assignment, owned) == (frozenset(), set())
        assert await second.confirmed_until(0) is not None
        await until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2, first, second)
        (partition, *_) = first.assignment
        assert await first.confirmed_until(partition) is not None
        assert await second.confirmed_until(partition) is None

    async def put_out(self, bus: Bus, consumer: Consumer, group: str) -> None:
        """Remove a member from the group without notifying it."""
        raise NotImplementedError

    async def test_two_groups_each_get_everything(self, bus: Bus, topic: str, group: str) -> None:
        """Knowledge and planner read the same analyses."""
        await bus.publish_many(one_each(topic))
        for name in (group, f"{group}-b"):
            assert keys_of(await collect(bus.consumer([topic], name), len(KEYS))) == sorted(KEYS)

    async def test_a_group_that_starts_at_the_end_skips_what_was(self, bus: Bus, topic: str, group: str) -> None:
        """Without a committed offset `from_beginning=False` begins with what comes."""
        await bus.publish(topic, "a", b"old")
        consumer = bus.consumer([topic], group, from_beginning=False)
        await until(lambda: len(consumer.assignment) == PARTITIONS, consumer)
        await self.settle(consumer)
        await bus.publish(topic, "a", b"new")
        assert [r.value for r in await collect(consumer, 1)] == [b"new"]

    async def settle(self, consumer: Consumer) -> None:
        """Let a consumer that starts at the end find it."""
        await consumer.receive(timeout_seconds=0.0)

    async def test_one_key_has_one_owner_over_several_topics(self, bus: Bus, topic: str, group: str) -> None:
        """A member owns the same partition numbers of all its topics."""
        other = f"{topic}-b"
        await bus.ensure_topics([TopicSpec(other, PARTITIONS)])
        first, second = (bus.consumer([topic, other], group) for _ in range(2))
        await until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2, first, second)
        assert not first.assignment & second.assignment
        await bus.publish_many([*one_each(topic), *one_each(other)])
        count = sum(1 for key in KEYS if partition_of(key, PARTITIONS) in first.assignment)
        mine = await collect(first, 2 * count)
        assert {r.topic for r in mine} == {topic, other}
        assert {r.partition for r in mine} <= first.assignment

    # -- beginning where one wants, and writing with one's position --------------------------------------------------

    async def test_a_member_begins_where_its_own_position_says(self, bus: Bus, topic: str, group: str) -> None:
        """Nothing is read before that; a place that begins again repeats its records, the others go on; and the end of
        each is known."""
        await bus.publish_many([Outgoing(topic, key, b"%d" % i) for i in range(3) for key in KEYS])
        owned: set[int] = set()
        consumer = bus.consumer([topic], group, positioned=True, on_assigned=owned.update)
        await until(lambda: len(owned) == PARTITIONS, consumer)
        assert await consumer.receive(timeout_seconds=0.2) == []
        one, other = partition_of(KEYS[0], PARTITIONS), partition_of(KEYS[1], PARTITIONS)
        assert one != other
        count = 3 * sum(partition_of(key, PARTITIONS) == one for key in KEYS)
        await consumer.begin({(topic, one): 2, (topic, PARTITIONS): 0})
        read = await until(lambda: (topic, one) in consumer.ended, consumer)
        assert [record.offset for record in read] == list(range(2, count))
        await consumer.begin({(topic, one): count - 1, (topic, other): 0})
        assert (topic, one) not in consumer.ended
        read = await until(lambda: {(topic, one), (topic, other)} <= consumer.ended, consumer)
        assert [r.offset for r in read if r.partition == one] == [count - 1]
        assert {r.partition for r in read} == {one, other}
        await bus.publish(topic, KEYS[0], b"later")
        assert [r.offset for r in await collect(consumer, 1)] == [count]

    async def test_a_member_loses_its_positions_with_its_partitions(self, bus: Bus, topic: str, group: str) -> None:
        """Whoever gets a partition says again from where it is read."""
        await bus.publish_many(one_each(topic))
        first = bus.consumer([topic], group, positioned=True)
        await until(lambda: len(first.assignment) == PARTITIONS, first)
        await first.begin({(topic, partition): 0 for partition in range(PARTITIONS)})
        await until(lambda: len(first.ended) == PARTITIONS, first)
        second = bus.consumer([topic], group, positioned=True)
        await until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2, first, second)
        assert {partition for _, partition in first.ended} <= first.assignment
        await bus.publish_many(one_each(topic))
        assert await second.receive(timeout_seconds=0.2) == []

    async def transacting(self, bus: Bus, topic: str, group: str) -> tuple[Consumer, Transactions]:
        """A member that owns the partitions, and its transactions."""
        consumer = bus.consumer([topic], group, positioned=True)
        await until(lambda: len(consumer.assignment) == PARTITIONS, consumer)
        return consumer, bus.transactions(group, consumer)

    async def test_records_and_position_are_written_together(self, bus: Bus, topic: str, group: str) -> None:
        """Each reader gets them in order, and the next member of the group the position with its note."""
        consumer, writing = await self.transacting(bus, topic, group)
        assert await consumer.committed((topic, 0)) == Committed(None, "")
        await writing.fence()
        await writing.commit(one_each(topic, "one"), (topic, 0), Committed(3, "newest 7"))
        await writing.commit(one_each(topic, "two"), (topic, 0), Committed(5, "newest 9"))
        read = await read_to_end(bus.reader(topic))
        assert [r.value for r in read if r.key == KEYS[0]] == [b"one", b"two"]
        assert keys_of(read) == sorted(2 * KEYS)
        await writing.close()
        await consumer.close()
        successor, _ = await self.transacting(bus, topic, group)
        assert await successor.committed((topic, 0)) == Committed(5, "newest 9")

    async def test_a_member_reads_on_behind_transactions(self, bus: Bus, topic: str, group: str) -> None:
        """Their ends are no records, and a member that has read all before them has read to the end."""
        consumer, writing = await self.transacting(bus, topic, group)
        await writing.fence()
        await writing.commit([Outgoing(topic, KEYS[0], b"1")], (topic, 0), Committed(1, ""))
        place = topic, partition_of(KEYS[0], PARTITIONS)
        await consumer.begin({place: 0})
        assert [r.value for r in await until(lambda: place in consumer.ended, consumer)] == [b"1"]
        await writing.commit([Outgoing(topic, KEYS[0], b"2")], (topic, 0), Committed(2, ""))
        assert [r.value for r in await collect(consumer, 1)] == [b"2"]

    async def test_an_earlier_writer_writes_nothing_any_more(self, bus: Bus, topic: str, group: str) -> None:
        """It was paused and wakes up: the brokers refuse it, and it can fence the other one in turn."""
        consumer, old = await self.transacting(bus, topic, group)
        await old.fence()
        new = bus.transactions(group, consumer)
        await new.fence()
        with pytest.raises(BusError):
            await old.commit(one_each(topic, "old"), (topic, 0), Committed(1, "old"))
        await new.commit([Outgoing(topic, KEYS[0], b"new")], (topic, 0), Committed(2, "new"))
        assert [r.value for r in await read_to_end(bus.reader(topic))] == [b"new"]
        assert await consumer.committed((topic, 0)) == Committed(2, "new")
        await old.fence()
        with pytest.raises(BusError):
            await new.commit(one_each(topic, "late"), (topic, 0), Committed(3, "late"))
        await old.commit([Outgoing(topic, KEYS[0], b"again")], (topic, 0), Committed(4, "again"))
        assert [r.value for r in await read_to_end(bus.reader(topic))] == [b"new", b"again"]

    async def test_a_member_that_was_put_out_commits_nothing(self, bus: Bus, topic: str, group: str) -> None:
        """It is the last writer that was fenced in, but the group has given its partitions to another one."""
        first, writing = await self.transacting(bus, topic, group)
        await writing.fence()
        second = bus.consumer([topic], group, positioned=True)
        await self.put_out(bus, first, group)
        await until(lambda: len(second.assignment) == PARTITIONS, second)
        with pytest.raises(BusError):
            await writing.commit(one_each(topic, "old"), (topic, 0), Committed(1, "old"))
        assert await second.committed((topic, 0)) == Committed(None, "")
        assert await read_to_end(bus.reader(topic)) == []

    # -- reading alone ---------------------------------------------------------------------------------------------

    async def test_a_reader_reads_everything_and_follows(self, bus: Bus, topic: str) -> None:
        """It reports when it has read all existing records, and continues with new ones."""
        await bus.publish_many(one_each(topic))
        reader = bus.reader(topic)
        assert not await reader.caught_up()
        assert keys_of(await read_to_end(reader)) == sorted(KEYS)
        await bus.publish(topic, "a", b"later")
        assert [r.value for r in await collect(reader, 1)] == [b"later"]
        assert await reader.caught_up(), "once caught up it stays so"

    async def test_an_empty_topic_is_read_at_once(self, bus: Bus, topic: str) -> None:
        """Nothing to read is no reason to wait."""
        assert await read_to_end(bus.reader(topic)) == []

    async def test_a_reader_of_nothing_has_caught_up(self, bus: Bus, topic: str) -> None:
        """A replica without partitions is idle, not stuck."""
        await bus.publish_many(one_each(topic))
        reader = bus.reader(topic, partitions=())
        assert await reader.receive(timeout_seconds=0.0) == []
        assert await reader.caught_up()

    async def test_a_reader_keeps_to_its_partitions(self, bus: Bus, topic: str) -> None:
        """It sees its own partitions only."""
        await bus.publish_many(one_each(topic))
        records = await read_to_end(bus.reader(topic, partitions={1, 2}))
        assert keys_of(records) == sorted(k for k in KEYS if partition_of(k, PARTITIONS) in (1, 2))

    async def test_a_reader_follows_an_assignment(self, bus: Bus, topic: str) -> None:
        """New partitions from the reader's start, kept ones from where they are, given-up ones no more."""
        await bus.publish_many(one_each(topic, "old"))
        reader = bus.reader(topic, partitions={0, 1})
        await read_to_end(reader)
        await reader.assign({1, 2})
        assert not await reader.caught_up()
        again = await read_to_end(reader)
        assert {r.partition for r in again} <= {2}
        await bus.publish_many(one_each(topic, "new"))
        expected = [k for k in KEYS if partition_of(k, PARTITIONS) in (1, 2)]
        assert keys_of(await collect(reader, len(expected))) == sorted(expected)

    async def test_a_partition_that_comes_back_is_read_again(self, bus: Bus, topic: str) -> None:
        """Another member may have owned it meanwhile: cached data must be rebuilt."""
        await bus.publish_many(one_each(topic))
        reader = bus.reader(topic, partitions=range(PARTITIONS))
        await read_to_end(reader)
        await reader.assign(set())
        await reader.assign(range(PARTITIONS))
        assert keys_of(await read_to_end(reader)) == sorted(KEYS)

    async def test_a_reader_from_the_end_skips_what_was(self, bus: Bus, topic: str) -> None:
        """The end is what it is at the first receive: nothing after it is missed, however late it is read."""
        await bus.publish_many(one_each(topic, "old"))
        reader = bus.reader(topic, partitions=range(PARTITIONS), from_beginning=False)
        await reader.assign({0, 1, 2, 3})
        await reader.receive(timeout_seconds=0.2)
        await bus.publish_many(one_each(topic, "new"))
        assert {r.value for r in await collect(reader, len(KEYS))} == {b"new"}

    async def test_a_reader_goes_back_in_time(self, bus: Bus, topic: str) -> None:
        """`since` an hour ago is everything here, `since` now is nothing of it."""
        await bus.publish_many(one_each(topic))
        assert keys_of(await read_to_end(bus.reader(topic, since=timedelta(hours=1)))) == sorted(KEYS)
        late = bus.reader(topic, since=timedelta(0))
        assert await read_to_end(late) == []
        await bus.publish(topic, "a", b"new")
        assert [r.value for r in await collect(late, 1)] == [b"new"]

    async def test_readers_do_not_disturb_a_group(self, bus: Bus, topic: str, group: str) -> None:
        """They neither take its partitions nor its offsets."""
        await bus.publish_many(one_each(topic))
        reader, consumer = bus.reader(topic), bus.consumer([topic], group)
        assert len(await read_to_end(reader)) == len(await collect(consumer, len(KEYS)))
        assert len(consumer.assignment) == PARTITIONS

    async def test_what_is_closed_can_be_closed_again(self, bus: Bus, topic: str, group: str) -> None:
        """An orderly end may come from two sides."""
        opened: list[Callable[[], Awaitable[None]]] = [bus.consumer([topic], group).close, bus.reader(topic).close]
        for close in opened:
            await close()
            await close()

    async def test_brokers_that_answer_are_well(self, bus: Bus) -> None:
        """Many may ask at once."""
        await asyncio.gather(*(bus.ping() for _ in range(5)))
