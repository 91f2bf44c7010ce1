"""Unreadable records go to the dead-letter topic with their reason."""

import base64
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from weir_contracts import DeadLetter, Plan
from weir_contracts.topics import DEAD_LETTERS, OBSERVATIONS, PLANS, POLICIES

from runtime.bus import BusError
from runtime.clock import FakeClock
from runtime.dead_letters import MAX_VALUE_BYTES, DeadLetters
from runtime.envelope import Undecodable, decode
from runtime.memory_bus import MemoryBus
from runtime.records import Record


def bad(value: bytes | None = b"{", key: str | None = "shop/orders") -> Record:
    return Record("weir.plans.v1", 1, 5, key, value, {"traceparent": "00-abc-def-01", "ce_type": "dev.weir.plans.v1"})


async def sent(record: Record, reason: str = "it is broken", field: str | None = "a.b") -> DeadLetter:
    bus, clock = MemoryBus(), FakeClock()
    await DeadLetters(bus, "planner", clock).send(record, "wrong-key", reason, field)
    (letter,) = bus.records(DEAD_LETTERS.name)
    assert letter.key == (record.key or "unknown")
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
    """So that no program has to read the sentence; a dead letter of an earlier version has none."""
    bus = MemoryBus()
    record = Record(OBSERVATIONS.name, 0, 1, "shop/orders", value, {})
    await DeadLetters(bus, "planner", FakeClock()).decoded(record, Plan)
    (letter,) = bus.records(DEAD_LETTERS.name)
    found = decode(letter, DeadLetter).message
    assert (found.code, found.field) == (code, field)
    earlier = found.model_dump(mode="json", exclude={"code", "type"})
    assert DeadLetter.model_validate(earlier).code is None
