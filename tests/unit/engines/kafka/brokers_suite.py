"""Contract of a Kafka cluster's readings, run against the one in memory and a real one."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest

from weir_engines.kafka.assignment import Place
from weir_engines.kafka.partitions import Brokers, BrokersAway, Offsets
from weir_engines.kafka.positions import FirstRecord

ODD_TIMESTAMPS = {
    "none": -1,
    "zero": 0,
    "seconds": 1_780_000_000,
    "microseconds": 1_780_000_000_000_000,
    "nanoseconds": 1_780_000_000_000_000_000,
    "two days ahead of 2026": 1_798_800_000_000,
}
"""Timestamps of records as producers write them, by what is wrong with them."""


class Rig(Protocol):
    """A cluster with this test's own topics."""

    brokers: Brokers
    away: Brokers
    """One that does not answer."""
    topic: str
    """Two partitions, empty."""
    dotted: str
    """One partition, a dot in its name."""
    group: str

    async def append(self, place: Place, records: int, stamped_ms: int | None = None) -> datetime:
        """Write records with this timestamp, None: the present time; return a time not after they were appended."""

    async def transact(self, place: Place, records: int, *, aborts: bool = False) -> None:
        """Write records in a transaction, and end it."""

    async def stamp_by_broker(self) -> None:
        """Let the broker set the timestamps of the topic."""

    async def open_transaction(self, place: Place, records: int) -> None:
        """Write records in a transaction that stays open until the test ends."""

    async def delete_before(self, place: Place, offset: int) -> None:
        """Delete records as retention does."""

    async def commit(self, place: Place, offset: int) -> None:
        """The group commits."""


async def eventually(ask: Callable[[], Awaitable[Offsets]], expected: dict[Place, int]) -> None:
    """A real broker may take a moment; the memory one does not."""
    for _ in range(50):
        answer = await ask()
        if dict(answer.found) == expected:
            return
    raise AssertionError(f"{answer} is not {expected}")


async def looked_up(rig: Rig, positions: dict[Place, int]) -> Mapping[Place, FirstRecord]:
    """Return the first record at or after each position; a new client omits those that it cannot read in time."""
    for _ in range(30):
        found = (await rig.brokers.first_records(positions, "read_committed")).found
        if found.keys() == positions.keys():
            return found
    raise AssertionError(f"not all of {positions} were read")


def stamped(record: FirstRecord) -> datetime:
    assert record.timestamp_ms is not None
    return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)


class BrokersSuite:
    """Subclass it with a fixture `rig`."""

    async def test_topics_have_their_real_names(self, rig: Rig) -> None:
        """Dots included, which Flink's metrics lose."""
        topics = await rig.brokers.topics(fresh=True)
        assert list(topics[rig.topic]) == [0, 1]
        assert list(topics[rig.dotted]) == [0]

    async def test_a_log_ends_where_the_next_record_comes(self, rig: Rig) -> None:
        """Three records: the end is 3, the start 0; an empty partition has 0 and 0."""
        first, second = (rig.topic, 0), (rig.topic, 1)
        await rig.append(first, 3)
        ends = await rig.brokers.ends([first, second], "last", "read_committed")
        starts = await rig.brokers.ends([first, second], "first", "read_committed")
        assert (dict(ends.found), ends.problems) == ({first: 3, second: 0}, ())
        assert dict(starts.found) == {first: 0, second: 0}

    async def test_an_open_transaction_is_not_demand_yet(self, rig: Rig) -> None:
        """A committed reader waits before it; an uncommitted one sees it."""
        place = (rig.topic, 0)
        await rig.append(place, 2)
        await rig.open_transaction(place, 2)
        assert dict((await rig.brokers.ends([place], "last", "read_committed")).found) == {place: 2}
        assert dict((await rig.brokers.ends([place], "last", "read_uncommitted")).found) == {place: 4}

    async def test_a_log_begins_where_retention_left_it(self, rig: Rig) -> None:
        """Deleted records are no backlog."""
        place = (rig.topic, 0)
        await rig.append(place, 5)
        await rig.delete_before(place, 4)
        await eventually(lambda: rig.brokers.ends([place], "first", "read_committed"), {place: 4})

    async def test_only_what_was_committed_has_a_commit(self, rig: Rig) -> None:
        """A partition without one is left out, which is not 0; so is an unknown group."""
        first, second = (rig.topic, 0), (rig.topic, 1)
        await rig.append(first, 9)
        await rig.commit(first, 7)
        answer = await rig.brokers.commits([first, second], rig.group)
        assert (dict(answer.found), answer.problems) == ({first: 7}, ())
        assert dict((await rig.brokers.commits([first], f"{rig.group}-nobody")).found) == {}

    async def test_which_record_comes_next(self, rig: Rig) -> None:
        """Read from the log with its timestamp; where nothing waits there is no such record, and the log's end instead."""
        first, second = (rig.topic, 0), (rig.topic, 1)
        before = await rig.append(first, 4)
        after = await rig.append(second, 1)
        found = await looked_up(rig, {first: 2, second: 1})
        assert (found[first].offset, found[first].exists, found[first].is_append_time) == (2, True, False)
        assert before <= stamped(found[first]) <= after
        assert found[second] == FirstRecord(1, exists=False)

    async def test_after_a_deleted_position_comes_what_is_left(self, rig: Rig) -> None:
        """Records deleted by retention do not wait."""
        place = (rig.topic, 0)
        await rig.append(place, 2)
        later = await rig.append(place, 2)
        await rig.delete_before(place, 2)
        found = await looked_up(rig, {place: 1})
        assert found[place].offset == 2 and stamped(found[place]) >= later

    async def test_markers_and_aborted_records_are_no_records(self, rig: Rig) -> None:
        """A transaction ends with a marker, which has an offset; of an aborted one a committed reader gets nothing."""
        place = (rig.topic, 1)
        await rig.transact(place, 3)
        await rig.transact(place, 2, aborts=True)
        await eventually(lambda: rig.brokers.ends([place], "last", "read_committed"), {place: 7})
        assert (await looked_up(rig, {place: 3}))[place] == FirstRecord(7, exists=False)
        await rig.append(place, 1)
        found = (await looked_up(rig, {place: 3}))[place]
        assert (found.offset, found.exists) == (7, True)

    @pytest.mark.parametrize("stamped_ms", ODD_TIMESTAMPS.values(), ids=ODD_TIMESTAMPS.keys())
    async def test_a_timestamp_is_passed_on_as_it_is_stored(self, rig: Rig, stamped_ms: int) -> None:
        """Brokers accept nearly any number from a producer; none of them may end a lookup.

        Source: SPARK-56243 (apache/spark#55038), DataDog/dd-trace-dotnet#8653: readers that fail at such a record.
        """
        place = (rig.topic, 0)
        await rig.append(place, 1, stamped_ms)
        await rig.append(place, 1)
        found = await looked_up(rig, {place: 0})
        assert found[place] == FirstRecord(0, timestamp_ms=None if stamped_ms == -1 else stamped_ms)

    async def test_a_broker_says_that_it_set_the_timestamp(self, rig: Rig) -> None:
        """Topics with `message.timestamp.type=LogAppendTime`: whatever the producer wrote is replaced."""
        place = (rig.topic, 0)
        await rig.stamp_by_broker()
        before = await rig.append(place, 1, ODD_TIMESTAMPS["zero"])
        record = (await looked_up(rig, {place: 0}))[place]
        assert record.is_append_time and stamped(record) >= before - timedelta(seconds=1)

    async def test_one_missing_partition_does_not_hide_the_others(self, rig: Rig) -> None:
        """The error names the partition and the reason."""
        here, missing = (rig.topic, 0), (rig.topic, 17)
        answer = await rig.brokers.ends([here, missing], "last", "read_committed")
        assert dict(answer.found) == {here: 0}
        (problem,) = answer.problems
        assert f"{rig.topic}/17" in problem.where and problem.what

    async def test_brokers_that_are_away_say_so(self, rig: Rig) -> None:
        """One exception for whatever is wrong with them; commits and ages are merely missing."""
        place = (rig.topic, 0)
        with pytest.raises(BrokersAway, match=r"\w"):
            await rig.away.topics()
        with pytest.raises(BrokersAway, match=r"\w"):
            await rig.away.ends([place], "last", "read_committed")
