"""A topic as a table in memory."""

import asyncio

import pytest
from structlog.testing import capture_logs

from weir_contracts.topics import DEAD_LETTERS
from weir_runtime import dead_letters
from weir_runtime.bus import BusError
from weir_runtime.clock import FakeClock
from weir_runtime.dead_letters import LetterRate
from weir_runtime.envelope import Undecodable
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.records import Record, RecordVersion
from weir_runtime.table import GlobalTable

TOPIC = "weir.things.v1"


def number(record: Record) -> int:
    try:
        return int(record.value or b"")
    except ValueError:
        raise Undecodable(record, "is no number") from None


async def following(table: GlobalTable[int], stop: Stop) -> "asyncio.Task[None]":
    task = asyncio.create_task(table.follow(stop))
    assert await table.wait_ready(5.0)
    return task


async def test_the_newest_value_of_each_key_wins() -> None:
    """Over all partitions; a tombstone removes."""
    bus = MemoryBus()
    for i in range(20):
        await bus.publish(TOPIC, f"k{i % 10}", b"%d" % i)
    await bus.publish(TOPIC, "k0", None)
    table = GlobalTable(bus, TOPIC, number)
    with pytest.raises(BusError, match=rf"{TOPIC} is being read"):
        await table.ping()
    stop = Stop()
    task = await following(table, stop)
    assert table.latest == {f"k{i}": 10 + i for i in range(1, 10)}
    await table.ping()
    stop.request("done")
    await asyncio.wait_for(task, 5.0)


async def test_it_follows_what_comes() -> None:
    """Changes are reported with key and value, None for a removal."""
    bus, stop = MemoryBus(), Stop()
    changes: asyncio.Queue[tuple[str, int | None]] = asyncio.Queue()
    table = GlobalTable(bus, TOPIC, number, on_change=lambda key, value: changes.put_nowait((key, value)))
    task = await following(table, stop)
    await bus.publish(TOPIC, "a", b"1")
    await bus.publish(TOPIC, "a", None)
    assert [await asyncio.wait_for(changes.get(), 5.0) for _ in range(2)] == [("a", 1), ("a", None)]
    stop.request("done")
    await asyncio.wait_for(task, 5.0)


async def test_an_unreadable_record_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key keeps its value; the records behind it are read, and the log names the place. The dead letter is sent by a
    group."""
    bus, stop = MemoryBus(), Stop()
    for value in (b"1", b"x"):
        await bus.publish(TOPIC, "a", value)
    await bus.publish(TOPIC, "b", b"2")
    monkeypatch.setattr(dead_letters, "_LOGGED", LetterRate(FakeClock()))
    table = GlobalTable(bus, TOPIC, number)
    with capture_logs() as lines:
        task = await following(table, stop)
    assert table.latest == {"a": 1, "b": 2}
    assert [(line["event"], line["reason"]) for line in lines] == [("unreadable", "is no number")]
    assert bus.records(DEAD_LETTERS.name) == []
    stop.request("done")
    await asyncio.wait_for(task, 5.0)


async def test_it_is_not_ready_before_the_brokers_are() -> None:
    """An outage at start delays it; it must not be taken for an empty topic."""
    bus, stop = MemoryBus(), Stop()
    await bus.publish(TOPIC, "a", b"1")
    bus.break_down()
    table = GlobalTable(bus, TOPIC, number)
    task = asyncio.create_task(table.follow(stop))
    assert not await table.wait_ready(0.1)
    bus.mend()
    assert await table.wait_ready(5.0)
    assert table.latest == {"a": 1}
    stop.request("done")
    await asyncio.wait_for(task, 5.0)


async def test_a_record_without_key_is_no_row() -> None:
    """It cannot be replaced or removed, so it is left out."""
    table = GlobalTable(MemoryBus(), TOPIC, number)
    table._apply(Record(TOPIC, 0, 0, None, b"1"))
    assert table.latest == {}


async def test_a_late_record_changes_nothing() -> None:
    """A publisher that slept sent what had been replaced, or deleted, meanwhile."""
    bus, stop = MemoryBus(), Stop()
    for key, value, version in (("a", b"1", 1), ("a", b"2", 2), ("a", b"1", 1), ("b", b"1", 1), ("b", None, 2)):
        await bus.publish(TOPIC, key, value, RecordVersion(version, 1).headers())
    await bus.publish(TOPIC, "b", b"1", RecordVersion(1, 1).headers())
    table = GlobalTable(bus, TOPIC, number)
    task = await following(table, stop)
    assert table.latest == {"a": 2}
    stop.request("done")
    await asyncio.wait_for(task, 5.0)
