"""Contract of a Kafka cluster's readings, run against the one in memory and a real one."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Protocol

import pytest

from services.monitor.adapters.partitions import Brokers, BrokersAway, Offsets, Place


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

    async def append(self, place: Place, records: int) -> datetime:
        """Write records; a time not after they were appended."""

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


async def looked_up(rig: Rig, positions: dict[Place, int], wanted: Place) -> Mapping[Place, datetime | None]:
    """Return the append times once they include `wanted`, and None for the others, which no record follows; a new client
    omits those it cannot look up in time."""
    for _ in range(30):
        found = await rig.brokers.appended_at(positions, "read_committed")
        assert all(at is None for place, at in found.items() if place != wanted)
        if wanted in found:
            return found
    raise AssertionError(f"{wanted} was never reported")


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

    async def test_when_the_record_at_a_position_was_appended(self, rig: Rig) -> None:
        """Read from the log; where nothing waits there is no such record."""
        first, second = (rig.topic, 0), (rig.topic, 1)
        before = await rig.append(first, 4)
        after = await rig.append(second, 1)
        found = await looked_up(rig, {first: 2, second: 1}, first)
        assert before <= found[first] <= after

    async def test_a_deleted_position_is_as_old_as_what_is_left(self, rig: Rig) -> None:
        """Records deleted by retention do not wait."""
        place = (rig.topic, 0)
        await rig.append(place, 2)
        later = await rig.append(place, 2)
        await rig.delete_before(place, 2)
        found = await looked_up(rig, {place: 1}, place)
        assert found[place] >= later

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
