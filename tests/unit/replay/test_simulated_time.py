"""Simulated time and the bus of a replay."""

import asyncio
from datetime import timedelta

import pytest

from weir_contracts.topics import PLANS
from weir_replay.loop import RECORDS_KEPT, ReplayBus, SimulatedClock, SimulatedTimeLoop
from weir_replay.simulator.world import START
from weir_runtime.bus import Outgoing
from weir_runtime.clock import FakeClock


def test_hours_pass_at_once_and_in_order() -> None:
    """Two tasks sleep for hours; each wakes at its own time, which the clock shows."""
    loop = SimulatedTimeLoop(-5.0)
    clock = SimulatedClock(loop, START)
    woken: list[tuple[str, timedelta]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, clock.now() - START))

    async def both() -> None:
        await asyncio.gather(sleeper("late", 7_200.0), sleeper("early", 3_600.5))

    loop.run_until_complete(both())
    loop.close()
    assert woken == [("early", timedelta(seconds=3_595.5)), ("late", timedelta(seconds=7_195))]
    assert clock.monotonic() == pytest.approx(7_195)


def test_a_task_that_no_timer_can_wake_is_an_error() -> None:
    """The loop would wait for ever."""
    loop = SimulatedTimeLoop()
    waiting = loop.create_task(asyncio.Event().wait())
    with pytest.raises(RuntimeError, match="no timer"):
        loop.run_until_complete(waiting)
    waiting.cancel()
    loop.run_until_complete(asyncio.wait({waiting}))
    loop.close()


def test_a_wait_for_records_lasts_at_least_as_set_and_ends_with_a_record() -> None:
    """Half a second becomes an hour without a record; a record ends the wait at once, one of another topic does not."""
    loop = SimulatedTimeLoop()
    bus = ReplayBus(SimulatedClock(loop, START), lambda record: None)
    bus.wait_at_least(3_600.0)

    async def waits() -> list[tuple[int, float]]:
        reader = bus.reader(PLANS.name)
        await reader.receive()  # up to the end
        found = []
        for publish_at in (None, 10.0):
            began = loop.time()
            if publish_at is not None:
                loop.call_later(5.0, lambda: asyncio.ensure_future(bus.publish("another", "key", b"1")))
                loop.call_later(publish_at, lambda: asyncio.ensure_future(bus.publish(PLANS.name, "key", b"{}")))
            records = await reader.receive(timeout_seconds=0.5)
            found.append((len(records), round(loop.time() - began, 6)))
        return found

    assert loop.run_until_complete(waits()) == [(0, 3_600.0), (1, 10.0)]
    loop.close()


async def test_old_records_lose_their_values_only() -> None:
    """A day's messages would not fit in memory; offsets stay."""
    bus = ReplayBus(FakeClock(), lambda record: None)
    await bus.publish_many([Outgoing("topic", "key", b"%d" % i) for i in range(RECORDS_KEPT + 50)])
    await bus.publish("topic", "key", b"last")
    records = bus.records("topic")
    assert [record.offset for record in records] == list(range(RECORDS_KEPT + 51))
    assert records[-1].value == b"last"
    assert records[-RECORDS_KEPT].value is not None
    assert {record.value for record in records[:-RECORDS_KEPT]} == {None}
