"""Records and their versions, signatures, and the bus in memory."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.unit.runtime.bus_suite import PARTITIONS, BusSuite, collect, read_to_end
from weir_contracts import ScalingPolicy
from weir_contracts.topics import OBSERVATIONS, OUTCOMES, PLANS, POLICIES
from weir_runtime.bus import (
    SESSION_SECONDS,
    VERSION_HEADER,
    Bus,
    BusError,
    Consumer,
    Outgoing,
    Record,
    SignedBus,
    _murmur2,
    partition_of,
    read_signing_keys,
    version_of,
)
from weir_runtime.clock import FakeClock
from weir_runtime.local_bus import LocalConsumer
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import Undecodable, decode, is_tombstone
from weir_runtime.service import wait_for_topics
from weir_runtime.settings import ServiceSettings

# Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "expected"), VECTORS.items())
def test_the_hash_is_kafkas(data: bytes, expected: int) -> None:
    """Kafka's own test vectors, for every length of the last, partial word."""
    assert _murmur2(data) == expected % 2**32


def test_a_negative_hash_is_made_positive_as_java_does() -> None:
    """By masking the sign bit, not by the absolute value."""
    assert partition_of("foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000


def test_keys_are_hashed_as_utf8() -> None:
    """A name with an umlaut has one partition for all writers."""
    assert partition_of("läden/bücher", 97) == (_murmur2("läden/bücher".encode()) & 0x7FFFFFFF) % 97


def test_a_record_knows_its_place() -> None:
    """As errors and logs show it."""
    assert Record("t", 3, 42, None, None).place == "t/3@42"


def test_a_version_is_a_number_that_every_reader_can_hold() -> None:
    """Whoever writes past knowledge can put anything into a header."""
    assert version_of({VERSION_HEADER: "1781460000123"}) == 1_781_460_000_123
    for text in ("", "seven", "-1", "7.0", "٣", "4102444800001", "9" * 5_000):
        assert version_of({VERSION_HEADER: text}) is None
    assert version_of({}) is None


OLD, NEW, FOREIGN = (f"{name}-key-of-thirty-two-characters-or-more".encode() for name in ("old", "new", "foreign"))
APP = "shop/orders"


class TestSignedBus(BusSuite):
    """It keeps the protocol of every bus."""

    @pytest.fixture
    def bus(self) -> Bus:
        return SignedBus(MemoryBus(), [NEW])

    async def put_out(self, bus: Bus, consumer: Consumer, group: str) -> None:
        assert isinstance(bus, SignedBus) and isinstance(bus._bus, MemoryBus)
        inner = consumer.inner  # type: ignore[attr-defined]
        assert isinstance(inner, LocalConsumer)
        bus._bus.expire(inner)


async def brokers() -> MemoryBus:
    made = MemoryBus()
    assert await wait_for_topics(made, ServiceSettings(), Stop())
    return made


async def read(bus: Bus, topic: str) -> list[Record]:
    return await read_to_end(bus.reader(topic))


@pytest.mark.parametrize("topic", [POLICIES.name, PLANS.name, OUTCOMES.name])
async def test_what_weir_signed_is_read_and_anything_else_is_refused(topic: str) -> None:
    """A program that may write to the brokers has no key: its record and its tombstone name the setting."""
    inner = await brokers()
    ours = SignedBus(inner, [NEW])
    await ours.publish(topic, APP, b'{"own": 1}', {"ce_type": f"dev.{topic}"})
    await ours.publish(topic, APP, None)
    await inner.publish(topic, APP, b'{"forged": 1}', {"ce_type": f"dev.{topic}"})
    await inner.publish(topic, APP, None)
    await SignedBus(inner, [FOREIGN]).publish(topic, APP, b'{"forged": 2}')
    own, tombstone, *forged = await read(ours, topic)
    assert (own.value, tombstone.value) == (b'{"own": 1}', None)
    assert len(forged) == 3
    for record in forged:
        assert not is_tombstone(record)
        with pytest.raises(Undecodable, match="WEIR_SIGNING_KEYS_FILE") as refused:
            decode(record, ScalingPolicy)
        assert refused.value.code == "unsigned"


async def test_other_topics_are_as_they_were() -> None:
    """Observations and analyses are facts to be doubted, not orders; Spark reads them without these keys."""
    inner = await brokers()
    ours = SignedBus(inner, [NEW])
    await inner.publish(OBSERVATIONS.name, APP, b"{}")
    await ours.publish(OBSERVATIONS.name, APP, b"{}")
    assert [record.headers for record in await read(ours, OBSERVATIONS.name)] == [{}, {}]


async def test_a_key_is_replaced_without_a_gap() -> None:
    """Both keys are in the file of every service, before the new one signs alone."""
    inner = await brokers()
    await SignedBus(inner, [OLD]).publish(PLANS.name, APP, b"{}")
    await SignedBus(inner, [OLD, NEW]).publish(PLANS.name, APP, b"{}")
    await SignedBus(inner, [NEW, OLD]).publish(PLANS.name, APP, b"{}")
    both, new_alone = (
        await read(SignedBus(inner, [NEW, OLD]), PLANS.name),
        await read(SignedBus(inner, [NEW]), PLANS.name),
    )
    assert ["weir_unsigned" in record.headers for record in both] == [False, False, False]
    assert ["weir_unsigned" in record.headers for record in new_alone] == [True, True, False]


def moved(record: Outgoing, **changes: str | bytes | None) -> Outgoing:
    return Outgoing(**{**{name: getattr(record, name) for name in ("topic", "key", "value", "headers")}, **changes})  # type: ignore[arg-type]


async def test_a_signature_fits_its_record_alone() -> None:
    """A signed record under another key, in another topic, with other bytes or with a later version is refused."""
    ours = SignedBus(await brokers(), [NEW])
    headers: Mapping[str, str] = {"ce_type": "dev.weir.policies.v1alpha1", VERSION_HEADER: "7"}
    signed = ours.signed(Outgoing(POLICIES.name, APP, b"{}", headers))

    def is_refused(record: Outgoing) -> bool:
        got = Record(record.topic, 0, 0, record.key, record.value, record.headers)
        return "weir_unsigned" in ours.verified(got).headers

    assert not is_refused(signed)
    assert is_refused(moved(signed, key="bank/payments"))
    assert is_refused(moved(signed, topic=PLANS.name))
    assert is_refused(moved(signed, value=b"{ }"))
    assert is_refused(moved(signed, value=None))
    for name, value in ((VERSION_HEADER, "8"), ("ce_type", "dev.weir.policies.v9"), ("weir_signature", "")):
        assert is_refused(Outgoing(signed.topic, signed.key, signed.value, {**signed.headers, name: value}))


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot read"), (b"", "must have keys"), (b"short\n", "must have keys")]
)
def test_a_file_without_usable_keys_ends_the_start(tmp_path: Path, content: bytes | None, reason: str) -> None:
    """The sentence names setting and file, and never a key."""
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"WEIR_SIGNING_KEYS_FILE: .*{reason}") as refused:
        read_signing_keys(path)
    assert "short" not in str(refused.value)


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(PARTITIONS)
    await bus.start()
    yield bus
    await bus.close()


class TestMemoryBus(BusSuite):
    """The promises."""

    async def put_out(self, bus: Bus, consumer: Consumer, group: str) -> None:
        assert isinstance(bus, MemoryBus) and isinstance(consumer, LocalConsumer)
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
