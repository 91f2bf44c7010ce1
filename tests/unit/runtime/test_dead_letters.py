"""Unreadable records go to the dead-letter topic with their reason."""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from weir_contracts import DeadLetter, Plan
from weir_contracts.topics import DEAD_LETTERS, OBSERVATIONS, PLANS, POLICIES
from weir_runtime import dead_letters
from weir_runtime.bus import BusError
from weir_runtime.clock import FakeClock
from weir_runtime.dead_letters import (
    MAX_OF_ALL,
    MAX_OF_KEY,
    MAX_VALUE_BYTES,
    PERIOD_SECONDS,
    DeadLetters,
    LetterRate,
    readable,
)
from weir_runtime.envelope import Undecodable, decode
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.records import Outgoing, Record


def bad(value: bytes | None = b"{", key: str | None = "shop/orders") -> Record:
    return Record("weir.plans.v1", 1, 5, key, value, {"traceparent": "00-abc-def-01", "ce_type": "dev.weir.plans.v1"})


async def sent(record: Record, reason: str = "it is broken", field: str | None = "a.b") -> DeadLetter:
    bus, clock = MemoryBus(), FakeClock()
    await DeadLetters(bus, "planner", clock).send(record, "wrong-key", reason, field)
    (letter,) = bus.records(DEAD_LETTERS.name)
    assert letter.key == (record.key or "unknown")[:1000]
    assert letter.headers["ce_type"] == DEAD_LETTERS.type
    assert letter.headers["traceparent"] == "00-abc-def-01"
    return decode(letter, DeadLetter).message


async def test_a_dead_letter_gives_place_code_and_reason() -> None:
    """Enough to find the record, read it and send it again."""
    letter = await sent(bad(b"{broken"))
    assert (letter.service, letter.topic, letter.partition, letter.offset) == ("planner", "weir.plans.v1", 1, 5)
    assert (letter.key, letter.reason, letter.field) == ("shop/orders", "it is broken", "a.b")
    assert (letter.code, letter.type) == ("wrong-key", "dev.weir.plans.v1")
    assert base64.b64decode(letter.value_base64 or "") == b"{broken"
    assert letter.value_bytes == 7
    assert letter.at == FakeClock().now()


async def test_the_same_record_makes_the_same_letter() -> None:
    """At-least-once: a repeated record repeats the id."""
    assert (await sent(bad())).id == (await sent(bad())).id


async def test_a_batch_that_is_taken_again_makes_no_second_letter() -> None:
    """One for each record, of a recreated topic as well; one that could not be published is tried again."""
    bus = MemoryBus()
    aside = DeadLetters(bus, "planner", FakeClock())
    bus.break_down()
    with pytest.raises(BusError):
        await aside.decoded(bad(), Plan)
    bus.mend()
    for _ in range(3):
        assert await aside.decoded(bad(), Plan) is None
    assert len(bus.records(DEAD_LETTERS.name)) == 1
    await aside.decoded(replace(bad(), timestamp=FakeClock().now()), Plan)
    assert len(bus.records(DEAD_LETTERS.name)) == 2


async def test_a_huge_record_makes_a_bounded_letter() -> None:
    """It carries the first 64 KiB, and the size."""
    letter = await sent(bad(b"x" * 1_000_000, key="k" * 5000), reason="r" * 9000, field="f" * 9000)
    assert len(base64.b64decode(letter.value_base64 or "")) == MAX_VALUE_BYTES
    assert letter.value_bytes == 1_000_000


@pytest.mark.parametrize(("topic", "letters"), [(OBSERVATIONS.name, 1), (PLANS.name, 0), (POLICIES.name, 0)])
async def test_no_value_is_a_letter_only_where_it_deletes_nothing(topic: str, letters: int) -> None:
    """In a compacted topic it is a tombstone: nothing to read, and nothing wrong."""
    bus = MemoryBus()
    read = await DeadLetters(bus, "planner", FakeClock()).decoded(Record(topic, 0, 1, "shop/orders", None, {}), Plan)
    assert read is None
    assert len(bus.records(DEAD_LETTERS.name)) == letters


async def test_a_record_without_key_or_value_is_a_letter_too() -> None:
    """Unknown is None."""
    letter = await sent(bad(None, key=None), reason="", field=None)
    assert (letter.key, letter.value_base64, letter.value_bytes, letter.field) == (None, None, None, None)
    assert letter.reason


async def test_letters_are_counted() -> None:
    """By topic, for an alert."""
    name, labels = "weir_dead_letters_total", {"topic": "weir.plans.v1"}
    before = REGISTRY.get_sample_value(name, labels) or 0
    record = bad()
    letters = DeadLetters(MemoryBus(), "planner", FakeClock())
    await letters.undecodable(record, Undecodable(record, "why", "f"))
    assert REGISTRY.get_sample_value(name, labels) == before + 1


async def test_an_outage_is_the_callers_to_know() -> None:
    """A record whose dead letter was not published must not be committed."""
    bus = MemoryBus()
    bus.break_down()
    with pytest.raises(BusError):
        await DeadLetters(bus, "planner", FakeClock()).send(bad(), "invalid", "why")


@pytest.mark.parametrize(
    ("value", "code", "field"),
    [
        (b"x" * 8_000_001, "too-large", None),
        (b"{", "invalid", None),
        (b"{}", "invalid", "code"),
        (None, "no-value", None),
    ],
)
async def test_a_code_for_each_reason(value: bytes | None, code: str, field: str | None) -> None:
    """So that no program has to read the sentence."""
    bus = MemoryBus()
    record = Record(OBSERVATIONS.name, 0, 1, "shop/orders", value, {})
    await DeadLetters(bus, "planner", FakeClock()).decoded(record, Plan)
    (letter,) = bus.records(DEAD_LETTERS.name)
    found = decode(letter, DeadLetter).message
    assert (found.code, found.field) == (code, field)


async def refused(letters: DeadLetters, keys: Sequence[str], first: int = 0) -> list[DeadLetter]:
    """Let the service read a bad record of each key; return the letters of these records."""
    bus = letters.bus
    assert isinstance(bus, MemoryBus)
    for offset, key in enumerate(keys, first):
        assert await letters.decoded(Record(PLANS.name, 0, offset, key, b"{"), Plan) is None
    found = [decode(each, DeadLetter).message for each in bus.records(DEAD_LETTERS.name)]
    return sorted((each for each in found if each.offset >= first), key=lambda each: each.offset)


async def test_a_stream_of_bad_records_writes_few_letters() -> None:
    """Ten of a key in a minute, while other applications' records still have theirs. The next letter and a metric count what
    has none."""
    name, labels, clock = "weir_dead_letters_suppressed_total", {"topic": PLANS.name}, FakeClock()
    before = REGISTRY.get_sample_value(name, labels) or 0
    letters = DeadLetters(MemoryBus(), "planner", clock)
    assert len(await refused(letters, ["shop/orders"] * 1000)) == MAX_OF_KEY
    assert REGISTRY.get_sample_value(name, labels) == before + 1000 - MAX_OF_KEY
    (other,) = await refused(letters, ["shop/payments"], 1000)
    assert other.suppressed == 1000 - MAX_OF_KEY
    clock.advance(PERIOD_SECONDS)
    (next_minute,) = await refused(letters, ["shop/orders"], 2000)
    assert next_minute.suppressed == 0


async def test_letters_at_the_same_time_count_each_record_once() -> None:
    """A process reads several topics at once: while one letter waits for the brokers, the next one is made."""
    bus = MemoryBus()
    letters = DeadLetters(bus, "planner", FakeClock())
    await refused(letters, ["shop/orders"] * (MAX_OF_KEY + 5))
    accept, waiting, begun = bus.publish_many, asyncio.Event(), list[str]()

    async def publish(records: Sequence[Outgoing]) -> None:
        begun.append(records[0].key)
        await waiting.wait()
        await accept(records)

    bus.publish_many = publish  # type: ignore[method-assign]
    others = [Record(PLANS.name, 0, 1000 + i, f"shop/other-{i}", b"{") for i in range(3)]
    sending = [asyncio.create_task(letters.decoded(record, Plan)) for record in others]
    async with asyncio.timeout(5):
        while len(begun) < len(others):  # noqa: ASYNC110 - no signal exists
            await asyncio.sleep(0)
    waiting.set()
    await asyncio.gather(*sending)
    found = [decode(each, DeadLetter).message for each in bus.records(DEAD_LETTERS.name)]
    assert sorted(each.suppressed for each in found if each.offset >= 1000) == [0, 0, 5]


async def test_many_keys_share_the_letters_of_a_process() -> None:
    """A program that writes under a new key each time gains nothing by it."""
    letters = DeadLetters(MemoryBus(), "planner", FakeClock())
    assert len(await refused(letters, [f"shop/job-{number}" for number in range(500)])) == MAX_OF_ALL


async def test_letters_that_the_brokers_refuse_take_no_room() -> None:
    """During an outage each repetition is an attempt; afterwards the record still has its letter."""
    bus = MemoryBus()
    letters = DeadLetters(bus, "planner", FakeClock())
    bus.break_down()
    for _ in range(MAX_OF_ALL + 1):
        with pytest.raises(BusError):
            await letters.decoded(bad(), Plan)
    bus.mend()
    assert await letters.decoded(bad(), Plan) is None
    assert len(bus.records(DEAD_LETTERS.name)) == 1


def test_lines_about_records_without_a_letter_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replica reads them: a stream of bad records fills no log. The first line of another key counts those without one."""
    monkeypatch.setattr(dead_letters, "_LOGGED", LetterRate(FakeClock()))
    with capture_logs() as lines:
        for offset in range(500):
            assert readable(Record(PLANS.name, 0, offset, "shop/logged", b"{"), Plan) is None
        assert readable(Record(PLANS.name, 0, 500, "shop/logged-too", b"{"), Plan) is None
    assert len(lines) == MAX_OF_KEY + 1
    assert lines[-1]["unlogged"] == 500 - MAX_OF_KEY


class Replica:
    """A service that reads a topic from its beginning, and sends its dead letters as a member of a group."""

    def __init__(self, bus: MemoryBus) -> None:
        letters = DeadLetters(bus, "planner", FakeClock())
        self._stop = Stop()
        self._task = asyncio.create_task(letters.watch({PLANS.name: lambda r: decode(r, Plan)}, self._stop))

    async def end(self) -> None:
        self._stop.request("done")
        await asyncio.wait_for(self._task, 5.0)


async def test_no_replica_repeats_anothers_letter() -> None:
    """Three replicas read the same topic: one letter for each bad record, also after all of them have restarted."""
    bus = MemoryBus()

    async def until_read(count: int) -> None:
        async with asyncio.timeout(5):
            while bus.committed("weir-planner-unreadable", PLANS.name) < count:  # noqa: ASYNC110 - no signal exists
                await asyncio.sleep(0.01)

    for number in range(20):
        await bus.publish(PLANS.name, f"shop/job-{number}", b"{")
    await bus.publish(PLANS.name, "shop/job-0", None)
    for _ in range(2):
        replicas = [Replica(bus) for _ in range(3)]
        await until_read(21)
        for each in replicas:
            await each.end()
    replicas = [Replica(bus), Replica(bus)]
    await bus.publish(PLANS.name, "shop/late", b"{")
    await until_read(22)
    for each in replicas:
        await each.end()
    keys = [decode(record, DeadLetter).message.key for record in bus.records(DEAD_LETTERS.name)]
    assert sorted(filter(None, keys)) == sorted([*(f"shop/job-{number}" for number in range(20)), "shop/late"])


async def test_a_letter_that_cannot_be_sent_is_sent_later() -> None:
    """The group commits no record before its letter is there."""
    bus = MemoryBus()
    await bus.publish(PLANS.name, "shop/orders", b"{")
    accept, refusals = bus.publish_many, ["away", "away"]

    async def publish(records: Sequence[Outgoing]) -> None:
        if refusals:
            raise BusError(refusals.pop())
        await accept(records)

    bus.publish_many = publish  # type: ignore[method-assign]
    with capture_logs():  # a failed cycle is logged with its trace, which takes seconds to draw
        replica = Replica(bus)
        async with asyncio.timeout(5):
            while not bus.records(DEAD_LETTERS.name):  # noqa: ASYNC110 - no signal exists
                await asyncio.sleep(0.01)
        await replica.end()
    assert refusals == []
