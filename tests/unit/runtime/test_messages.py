"""Messages to bytes and back, dead letters for those that cannot be read, and the newest value of each key."""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from pydantic import BaseModel, ConfigDict, Field
from structlog.testing import capture_logs

from weir_contracts import Analysis, DeadLetter, Observation, Outcome, Plan, ScalingPolicy
from weir_contracts.document import example
from weir_contracts.topics import DEAD_LETTERS, OBSERVATIONS, PLANS, POLICIES
from weir_runtime import messages, reading
from weir_runtime.bus import BusError, Denied, Outgoing, Record, Refused
from weir_runtime.clock import FakeClock
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import (
    MAX_MESSAGE_ELEMENTS,
    NEWER_VERSION,
    TooLarge,
    Undecodable,
    child_traceparent,
    decode,
    encode,
    is_newer,
    new_traceparent,
    version_rank,
)
from weir_runtime.reading import (
    MAX_OF_ALL,
    MAX_OF_KEY,
    MAX_VALUE_BYTES,
    PERIOD_SECONDS,
    DeadLetters,
    GlobalTable,
    LetterRate,
    readable,
)
from weir_runtime.service import Health, wait_for_topics
from weir_runtime.settings import ServiceSettings

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = UUID("6b2f9f4e-7f0e-5d55-9d0e-3f1f5d8a7c11")


class Inner(BaseModel):
    count: int = Field(ge=0)


class Letter(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str
    inner: list[Inner] = []


def record(value: bytes | None, headers: dict[str, str] | None = None) -> Record:
    return Record("weir.letters.v1", 2, 17, "shop/orders", value, headers or {})


def test_a_message_travels_with_cloudevents_attributes() -> None:
    """Binary mode: attributes in the headers, the message alone in the body."""
    message = Letter(name="grüße", inner=[Inner(count=1)])
    body, headers = encode(message, type="dev.weir.letters.v1", source="planner", id=ID, time=NOON, traceparent="00-x")
    assert headers == {
        "ce_specversion": "1.0",
        "ce_id": str(ID),
        "ce_type": "dev.weir.letters.v1",
        "ce_source": "/weir/planner",
        "ce_time": "2026-01-01T12:00:00+00:00",
        "content-type": "application/json",
        "traceparent": "00-x",
    }
    decoded = decode(record(body, headers), Letter)
    assert decoded.message == message
    assert decoded.traceparent == "00-x"
    assert decoded.record.offset == 17


def test_without_a_trace_there_is_no_header() -> None:
    """Absent is absent, not an empty text."""
    body, headers = encode(Letter(name="a"), type="t", source="s", id=ID, time=NOON)
    assert "traceparent" not in headers
    assert decode(record(body, headers), Letter).traceparent is None


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        (None, None, "no value"),
        (b"", None, "JSON"),
        (b"not json", None, "JSON"),
        (b"\xff\xfe", None, "JSON"),
        (b"[]", None, "mapping of fields"),
        (b"{}", "name", "required"),
        (b'{"name": 7}', "name", "text"),
        (b'{"name": "a", "inner": [{"count": 1}, {"count": -1}]}', "inner.1.count", "greater than or equal to 0"),
        (b"[" * 100_000, None, ""),
    ],
)
def test_what_cannot_be_read_is_named(value: bytes | None, field: str | None, reason: str) -> None:
    """The error names the field, the reason and the record's place."""
    with pytest.raises(Undecodable) as caught:
        decode(record(value), Letter)
    assert caught.value.field == field
    assert reason in caught.value.reason
    assert str(caught.value).startswith("weir.letters.v1/2@17: ")


def test_the_error_does_not_carry_the_message() -> None:
    """A reason goes to logs and topics; what people put into fields need not."""
    with pytest.raises(Undecodable) as caught:
        decode(record(b'{"name": ["hunter2"]}'), Letter)
    assert "hunter2" not in str(caught.value)


def test_too_large_a_message_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody spends memory on parsing it, and before it is sent."""
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(Undecodable, match="has 101 bytes, more than 100"):
        decode(record(b"x" * 101), Letter)
    with pytest.raises(TooLarge, match="the message of type t has 112 bytes, more than 100"):
        encode(Letter(name="x" * 90), type="t", source="s", id=ID, time=NOON)


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,", b'"x",', b"[0],"])
def test_a_message_of_many_small_elements_is_not_parsed(part: bytes) -> None:
    """8 MB of `[],` took 1.8 GB: one record killed each service that read its topic, again after each restart. The largest
    application has fewer."""
    value = b'{"other": [' + part * MAX_MESSAGE_ELEMENTS + b"0]}"
    with pytest.raises(Undecodable, match="elements, more than 300,000") as caught:
        decode(record(value), Letter)
    assert caught.value.code == "too-large"
    with pytest.raises(TooLarge, match="the message of type t has 300,002 elements, more than 300,000"):
        encode(Letter(name="n", inner=[Inner(count=1)] * 150_000), type="t", source="s", id=ID, time=NOON)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("analysis", Analysis),
        ("observation", Observation),
        ("outcome", Outcome),
        ("plan", Plan),
        ("policy", ScalingPolicy),
    ],
)
def test_a_large_message_is_read_as_any_other(
    name: str, model: type[BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is parsed first: the same message, and the same reason where it is none."""
    value = json.dumps(example(name)).encode()
    usual = decode(record(value), model).message
    monkeypatch.setattr(messages, "LARGE_BYTES", 0)
    assert decode(record(value), model).message == usual
    for broken in (b"[" + value, b"{}", value.replace(b"2026", b"then", 1)):
        monkeypatch.setattr(messages, "LARGE_BYTES", len(broken))
        with pytest.raises(Undecodable) as expected:
            decode(record(broken), model)
        monkeypatch.setattr(messages, "LARGE_BYTES", 0)
        with pytest.raises(Undecodable) as found:
            decode(record(broken), model)
        assert (found.value.field, found.value.reason[:20]) == (expected.value.field, expected.value.reason[:20])


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(value: bytes) -> None:
    """Whatever a topic holds, reading it ends in a message or in `Undecodable`."""
    try:
        decode(record(value), Letter)
    except Undecodable as error:
        assert error.reason


def test_a_trace_begins_with_the_message_and_goes_on() -> None:
    """From reading to outcome one trace id; each step has its own span."""
    first = new_traceparent(ID)
    version, trace, span, flags = first.split("-")
    assert (version, trace, len(span), flags) == ("00", ID.hex, 16, "01")
    other = UUID("0d0c7f3e-58cf-5d25-8a55-9d1a0f6f7e7b")
    assert child_traceparent(first, other) == f"00-{ID.hex}-{other.hex[16:]}-01"


@pytest.mark.parametrize(
    "parent", [None, "", "00-short-span-01", f"00-{'z' * 32}-{'1' * 16}-01", f"00-{'0' * 32}-1-01"]
)
def test_a_broken_trace_is_replaced(parent: str | None) -> None:
    """An invalid header neither loses the message nor is passed on."""
    assert child_traceparent(parent, ID) == new_traceparent(ID)


def of_type(type: str) -> Record:
    return Record("weir.letters.v1beta1", 2, 17, "shop/orders", b'{"name": "a"}', {"ce_type": type})


def test_versions_are_ordered_as_kubernetes_orders_them() -> None:
    """A stable version is later than its betas, and those are later than its alphas."""
    names = ["v1alpha1", "v1alpha2", "v1beta1", "v1", "v2alpha1", "v2", "v10"]
    ranks = [version_rank(f"dev.weir.letters.{name}") for name in names]
    assert None not in ranks
    assert ranks == sorted(ranks, key=lambda rank: rank or ())


@pytest.mark.parametrize("type", ["", "dev.weir.letters", "dev.weir.letters.v1beta", "com.example.letters.v9"])
def test_what_is_no_type_of_ours_is_never_newer(type: str) -> None:
    """A foreign producer may omit the header or write its own: then the body decides."""
    assert not is_newer(type, "dev.weir.letters.v1beta1")
    assert decode(of_type(type), Letter).message.name == "a"


@pytest.mark.parametrize("type", ["dev.weir.letters.v1beta1", "dev.weir.letters.v1alpha1"])
def test_its_own_and_earlier_versions_are_read(type: str) -> None:
    """Only what is later is refused unread."""
    assert decode(of_type(type), Letter).message.name == "a"


def test_a_newer_message_names_the_remedy() -> None:
    """Though its body might fit: what a field means may have changed."""
    with pytest.raises(
        Undecodable, match=r"is dev\.weir\.letters\.v1, from a newer Weir .* reads weir\.letters\.v1beta1: upgrade"
    ):
        decode(of_type("dev.weir.letters.v1"), Letter)
    with pytest.raises(Undecodable) as refused:
        decode(of_type("dev.weir.letters.v1"), Letter)
    assert refused.value.code == NEWER_VERSION


async def test_one_newer_message_takes_no_service_out() -> None:
    """It is a dead letter with its own code; readiness is about what a service needs, not about what it was sent."""
    clock, bus = FakeClock(), MemoryBus()
    health = Health(clock)
    assert await wait_for_topics(bus, ServiceSettings(), Stop(), health)
    letters = DeadLetters(bus, "monitor", clock)
    assert await letters.decoded(of_type("dev.weir.letters"), Letter) is not None
    assert await letters.decoded(of_type("dev.weir.letters.v2"), Letter) is None
    assert (await health.check())[0]
    (sent,) = [DeadLetter.model_validate_json(each.value or b"") for each in bus.records(DEAD_LETTERS.name)]
    assert sent.code == NEWER_VERSION
    assert sent.reason.startswith("is dev.weir.letters.v2, from a newer Weir than this")


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


@pytest.mark.parametrize("kind", [Refused, Denied])
async def test_a_letter_that_the_brokers_do_not_take_holds_no_caller(kind: type[BusError]) -> None:
    """One bad record and a missing right to the topic of dead letters stopped an executor's cycle and a planner's
    partitions. The log has what the letter would have had, once, and the next records get their letters."""
    bus = MemoryBus()
    letters, publish = DeadLetters(bus, "planner", FakeClock()), bus.publish_many

    async def refusing(_records: Sequence[Outgoing]) -> None:
        raise kind("kafka: weir.dead-letters: Broker: Topic authorization failed")

    bus.publish_many = refusing  # type: ignore[method-assign]
    with capture_logs() as lines:
        for _ in range(2):
            assert await letters.decoded(bad(), Plan) is None
    assert [line["event"] for line in lines] == ["dead-letter", "dead-letter-refused"]
    assert "Topic authorization failed" in lines[1]["reason"]
    bus.publish_many = publish  # type: ignore[method-assign]
    assert await letters.decoded(replace(bad(), offset=6), Plan) is None
    (letter,) = bus.records(DEAD_LETTERS.name)
    assert decode(letter, DeadLetter).message.suppressed == 1


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
    monkeypatch.setattr(reading, "_LOGGED", LetterRate(FakeClock()))
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
    monkeypatch.setattr(reading, "_LOGGED", LetterRate(FakeClock()))
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
