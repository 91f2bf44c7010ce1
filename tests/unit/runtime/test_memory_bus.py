"""The bus in memory keeps what every bus promises, and can play an outage."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.runtime.bus_suite import PARTITIONS, BusSuite, collect, read_to_end
from weir_runtime.bus import SESSION_SECONDS, Bus, BusError, Consumer
from weir_runtime.clock import FakeClock
from weir_runtime.memory_bus import MemoryBus, MemoryConsumer


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(PARTITIONS)
    await bus.start()
    yield bus
    await bus.close()


class TestMemoryBus(BusSuite):
    """The promises."""

    async def put_out(self, bus: Bus, consumer: Consumer, group: str) -> None:
        assert isinstance(bus, MemoryBus) and isinstance(consumer, MemoryConsumer)
        bus.expire(consumer)


async def test_without_brokers_a_member_is_certain_for_the_rest_of_a_session() -> None:
    """From its last check; once they are back it checks again."""
    clock = FakeClock()
    bus = MemoryBus(PARTITIONS, clock)
    consumer = bus.consumer(["t"], "g")
    assert await consumer.confirmed_until(0) == SESSION_SECONDS
    clock.advance(5)
    bus.break_down()
    assert await consumer.confirmed_until(0) == SESSION_SECONDS
    assert await consumer.confirmed_until(0, 4.0) is None
    clock.advance(3)
    assert await consumer.confirmed_until(0) is None
    bus.mend()
    assert await consumer.confirmed_until(0) == 8.0 + SESSION_SECONDS


async def test_an_outage_holds_everything_and_loses_nothing(bus: MemoryBus) -> None:
    """While the brokers are away nothing is written or read and `ping` gives the reason; afterwards all goes on."""
    consumer, reader = bus.consumer(["t"], "g"), bus.reader("t")
    await bus.publish("t", "a", b"1")
    bus.break_down("power cut")
    with pytest.raises(BusError, match="power cut"):
        await bus.publish("t", "a", b"2")
    with pytest.raises(BusError, match="power cut"):
        await bus.ping()
    with pytest.raises(BusError, match="power cut"):
        await consumer.commit()
    assert await consumer.receive(timeout_seconds=0.0) == []
    assert await reader.receive(timeout_seconds=0.0) == []
    assert not await reader.caught_up()
    bus.mend()
    assert [r.value for r in await collect(consumer, 1)] == [b"1"]
    assert [r.value for r in await read_to_end(reader)] == [b"1"]


async def test_a_busy_partition_starves_no_other(bus: MemoryBus) -> None:
    """With one record a call, all partitions are read in rotation."""
    reader = bus.reader("t")
    for i in range(40):
        await bus.publish("t", f"k{i}", b"")
    partitions = [(await reader.receive(max_records=1))[0].partition for _ in range(PARTITIONS)]
    assert sorted(partitions) == list(range(PARTITIONS))


async def test_everything_ever_written_can_be_looked_at(bus: MemoryBus) -> None:
    """For assertions of loop stories."""
    await bus.publish("t", "a", b"1")
    await bus.publish("t", "a", None)
    assert [r.value for r in bus.records("t")] == [b"1", None]
