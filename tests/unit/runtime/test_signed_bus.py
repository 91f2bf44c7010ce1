"""Records that decide are signed: what another program writes is never obeyed."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.runtime.bus_suite import BusSuite, read_to_end
from weir_contracts import ScalingPolicy
from weir_contracts.topics import OBSERVATIONS, OUTCOMES, PLANS, POLICIES
from weir_runtime.bus import Bus, Consumer
from weir_runtime.envelope import Undecodable, decode, is_tombstone
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus, MemoryConsumer
from weir_runtime.records import VERSION_HEADER, Outgoing, Record
from weir_runtime.service import wait_for_topics
from weir_runtime.settings import ServiceSettings
from weir_runtime.signed_bus import SignedBus, read_signing_keys

OLD, NEW, FOREIGN = (f"{name}-key-of-thirty-two-characters-or-more".encode() for name in ("old", "new", "foreign"))
APP = "shop/orders"


class TestSignedBus(BusSuite):
    """It keeps the protocol of every bus."""

    @pytest.fixture
    def bus(self) -> Bus:
        return SignedBus(MemoryBus(), [NEW])

    async def put_out(self, bus: Bus, consumer: Consumer, group: str) -> None:
        assert isinstance(bus, SignedBus) and isinstance(bus._bus, MemoryBus)
        inner = consumer._consumer  # type: ignore[attr-defined]
        assert isinstance(inner, MemoryConsumer)
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
