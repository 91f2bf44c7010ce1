"""The bus in a SQLite file: the suite, what a topic keeps, and what outlives the process."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.unit.runtime.bus_suite import PARTITIONS, BusSuite, collect, read_to_end
from weir_contracts.topics import ANALYSES, OBSERVATIONS, POLICIES
from weir_runtime.bus import Bus, BusError, Committed, Consumer, Outgoing, Refused, TopicSpec
from weir_runtime.clock import FakeClock, SystemClock
from weir_runtime.local_bus import LocalConsumer
from weir_runtime.sqlite_bus import MAX_READ_BYTES, SqliteBus
from weir_runtime.sqlite_file import SqliteFile

HOURS = 3_600.0


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteFile]:
    file = SqliteFile.open(tmp_path / "weir.db", SystemClock())
    yield file
    file.close()


@pytest.fixture
async def bus(file: SqliteFile) -> AsyncIterator[SqliteBus]:
    bus = SqliteBus(file)
    await bus.start()
    yield bus
    await bus.close()


class TestSqliteBus(BusSuite):
    """The promises."""

    async def put_out(self, bus: Bus, consumer: Consumer, group: str) -> None:
        assert isinstance(bus, SqliteBus) and isinstance(consumer, LocalConsumer)
        bus.expire(consumer)


class World:
    """A bus whose process ends and begins again, on its own clock."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, FakeClock()
        self.specs = [TopicSpec(each.name, 1, each.configs) for each in (POLICIES, ANALYSES, OBSERVATIONS)]
        self.file: SqliteFile | None = None

    async def begin(self) -> SqliteBus:
        self.end()
        self.file = SqliteFile.open(self.path, self.clock)
        bus = SqliteBus(self.file)
        await bus.ensure_topics(self.specs)
        return bus

    def end(self) -> None:
        if self.file is not None:
            self.file.close()

    async def values(self, bus: SqliteBus, topic: str) -> list[bytes | None]:
        return [record.value for record in await read_to_end(bus.reader(topic))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "weir.db")
    yield world
    world.end()


async def test_the_log_outlives_its_process(world: World) -> None:
    """Records with their offsets, times and headers, and what groups committed; and offsets go on where they ended."""
    bus = await world.begin()
    consumer = bus.consumer([POLICIES.name], "readers")
    await bus.publish(POLICIES.name, "a", b"1", {"ce_id": "7"})
    (before,) = await collect(consumer, 1)
    await consumer.commit()
    writing = bus.transactions("writer", consumer)
    await writing.fence()
    await writing.commit([Outgoing(POLICIES.name, "b", b"2")], ("other", 0), Committed(4, "newest 9"))
    bus = await world.begin()
    assert (await read_to_end(bus.reader(POLICIES.name)))[0] == before
    consumer = bus.consumer([POLICIES.name], "readers")
    assert await consumer.committed(("other", 0)) == Committed(4, "newest 9")
    await bus.publish(POLICIES.name, "a", b"3")
    assert [(r.offset, r.value) for r in await collect(consumer, 2)] == [(1, b"2"), (2, b"3")]


async def test_a_compacted_topic_keeps_the_newest_record_of_a_key(world: World) -> None:
    """And all of the last minute, so that a reader that follows sees each; other keys stay."""
    bus = await world.begin()
    await bus.publish_many([Outgoing(POLICIES.name, key, b"1") for key in "abc"])
    await bus.publish(POLICIES.name, "a", b"2")
    world.clock.advance(61)
    await bus.publish(POLICIES.name, "b", b"2")
    assert await world.values(bus, POLICIES.name) == [b"1", b"1", b"2", b"2"]
    await bus.publish(POLICIES.name, "a", b"3")
    assert await world.values(bus, POLICIES.name) == [b"1", b"2", b"3"]


async def test_a_tombstone_is_kept_for_a_day(world: World) -> None:
    """Then it goes with all that it deletes: no deleted record comes back."""
    bus = await world.begin()
    await bus.publish(POLICIES.name, "a", b"1")
    await bus.publish(POLICIES.name, "a", None)
    world.clock.advance(23.9 * HOURS)
    await bus.publish(POLICIES.name, "b", b"1")
    assert (await world.values(bus, POLICIES.name))[-2:] == [None, b"1"]
    world.clock.advance(0.2 * HOURS)
    await bus.publish(POLICIES.name, "b", b"2")
    assert await world.values(bus, POLICIES.name) == [b"2"]


async def test_a_topic_keeps_its_records_for_its_time(world: World) -> None:
    """Two hours of observations, seven days of the newest analysis of each application. A reader whose position was removed
    goes on with what there is."""
    bus = await world.begin()
    for number in range(6):
        await bus.publish(OBSERVATIONS.name, "a", b"%d" % number)
        world.clock.advance(0.5 * HOURS)
    assert await world.values(bus, OBSERVATIONS.name) == [b"2", b"3", b"4", b"5"]
    reader = bus.reader(OBSERVATIONS.name, since=timedelta(hours=1.2))
    assert [record.value for record in await read_to_end(reader)] == [b"4", b"5"]
    consumer = bus.consumer([OBSERVATIONS.name], "late", positioned=True)
    await consumer.begin({(OBSERVATIONS.name, 0): 1})
    assert [record.offset for record in await collect(consumer, 4)] == [2, 3, 4, 5]
    await bus.publish(ANALYSES.name, "gone", b"1")
    world.clock.advance(169 * HOURS)
    await bus.publish(ANALYSES.name, "a", b"1")
    assert await world.values(bus, ANALYSES.name) == [b"1"]


async def test_offsets_go_on_after_a_topic_was_emptied_by_time(world: World) -> None:
    """Else a reader's position would be beyond the end, and it would read everything again."""
    bus = await world.begin()
    await bus.publish_many([Outgoing(OBSERVATIONS.name, "a", b"1")] * 3)
    world.clock.advance(3 * HOURS)
    await bus.publish_many([Outgoing(OBSERVATIONS.name, "a", b"2")] * 2)
    bus = await world.begin()
    records = await read_to_end(bus.reader(OBSERVATIONS.name))
    assert [(record.offset, record.value) for record in records] == [(3, b"2"), (4, b"2")]


async def test_a_topic_keeps_within_its_bytes(world: World) -> None:
    """The oldest records go, and a process that begins again counts as the one before did."""
    world.specs[2] = TopicSpec(OBSERVATIONS.name, 1, {"cleanup.policy": "delete", "retention.bytes": "20000"})
    noise = [bytes(range(256)) * 4, bytes(range(255, -1, -1)) * 4]
    bus = await world.begin()
    for number in range(100):
        await bus.publish(OBSERVATIONS.name, "a", b"%03d" % number + noise[number % 2])
        if number == 50:
            bus = await world.begin()
    kept = [int((value or b"")[:3]) for value in await world.values(bus, OBSERVATIONS.name)]
    assert kept == list(range(kept[0], 100))
    stored = [len(packed_row) for packed_row in _stored(world)]
    assert 15_000 < sum(stored) + 200 * len(stored) <= 20_000


def _stored(world: World) -> list[bytes]:
    assert world.file is not None
    with world.file.reading() as db:
        return [value for (value,) in db.execute("SELECT value FROM log_records").fetchall()]


async def test_a_record_above_the_limit_of_its_topic_is_refused_and_nothing_is_written(bus: SqliteBus) -> None:
    """Nor is anything that would have been written with it."""
    await bus.ensure_topics([TopicSpec("t", 1, {"max.message.bytes": "1000"})])
    with pytest.raises(Refused, match="log: t big: its size of 2,000 bytes is above 1,000"):
        await bus.publish_many([Outgoing("t", "small", b"x"), Outgoing("t", "big", b"x" * 2_000)])
    assert await read_to_end(bus.reader("t")) == []


async def test_an_unknown_topic_is_an_error_and_a_member_waits_for_it(bus: SqliteBus) -> None:
    """The sentence names it; a member that came before gets its partitions when it is made."""
    with pytest.raises(BusError, match="topic later does not exist"):
        await bus.publish("later", "a", b"1")
    with pytest.raises(BusError, match="topic later does not exist"):
        await bus.reader("later").receive()
    consumer = bus.consumer(["later"], "g")
    assert await consumer.receive(timeout_seconds=0.0) == []
    await bus.ensure_topics([TopicSpec("later", PARTITIONS)])
    await bus.publish("later", "a", b"1")
    assert [record.value for record in await collect(consumer, 1)] == [b"1"]


async def test_a_full_disk_holds_the_log_and_loses_nothing(bus: SqliteBus, file: SqliteFile) -> None:
    """Nothing is acknowledged, `ping` gives the reason, readers go on; with room everything does."""
    await bus.ensure_topics([TopicSpec("t", 1)])
    consumer = bus.consumer(["t"], "g")
    await bus.publish("t", "a", b"1")
    kept, file.min_free_bytes = file.min_free_bytes, 2**60
    for attempt in (bus.publish("t", "a", b"2"), bus.ping()):
        with pytest.raises(BusError, match=r"log: the disk of .* is full .* Weir holds and writes nothing until"):
            await attempt
    assert [record.value for record in await collect(consumer, 1)] == [b"1"]
    with pytest.raises(BusError, match="is full"):
        await consumer.commit()
    file.min_free_bytes = kept
    await bus.ping()
    await consumer.commit()
    await bus.publish("t", "a", b"2")
    assert [record.value for record in await read_to_end(bus.reader("t"))] == [b"1", b"2"]
    assert await consumer.committed(("t", 0)) == Committed(1, "")


async def test_a_clock_that_was_set_back_is_reported_and_stops_nothing(world: World) -> None:
    """Once, with the file and by how much; order and offsets stay, and what was written ahead of the clock is compacted
    like everything else."""
    bus = await world.begin()
    await bus.publish(POLICIES.name, "a", b"1")
    written = world.clock.now()
    world.clock.advance(-5 * HOURS)
    with capture_logs() as lines:
        bus = await world.begin()
        await bus.publish(POLICIES.name, "a", b"2")
        await bus.publish(POLICIES.name, "b", b"1")
    assert [(line["event"], line["reason"]) for line in lines] == [
        (
            "clock-set-back",
            f"the newest record of {world.path} is 18000 s ahead of this machine's clock: correct the clock, or name another "
            f"folder; until {written:%Y-%m-%d %H:%M} UTC what is read counts as old",
        )
    ]
    records = await read_to_end(bus.reader(POLICIES.name))
    assert [(record.offset, record.value) for record in records] == [(1, b"2"), (2, b"1")]


async def test_much_is_read_in_pieces(bus: SqliteBus) -> None:
    """Other tasks run between two of them: a call returns about a megabyte, and the calls together everything."""
    await bus.ensure_topics([TopicSpec("t", 1)])
    await bus.publish_many([Outgoing("t", "a", b"%03d" % number + b" " * 99_997) for number in range(30)])
    reader = bus.reader("t")
    pieces = [await reader.receive() for _ in range(3)]
    assert [len(piece) for piece in pieces] == [MAX_READ_BYTES // 100_000] * 3
    assert [int((record.value or b"")[:3]) for piece in pieces for record in piece] == list(range(30))
    assert await reader.caught_up()
