"""Messages of a newer version: not half understood, and said where people look."""

import pytest
from pydantic import BaseModel

from runtime import newer
from runtime.clock import FakeClock
from runtime.envelope import Undecodable, decode
from runtime.health import Health
from runtime.loop import Stop
from runtime.memory_bus import MemoryBus
from runtime.newer import SHOWN_SECONDS, NewerMessages
from runtime.records import Record
from runtime.service import wait_for_topics


class Letter(BaseModel):
    name: str


def record(type: str) -> Record:
    return Record("weir.letters.v1beta1", 2, 17, "shop/orders", b'{"name": "a"}', {"ce_type": type})


def test_versions_are_ordered_as_kubernetes_orders_them() -> None:
    """A stable version is later than its betas, and those are later than its alphas."""
    names = ["v1alpha1", "v1alpha2", "v1beta1", "v1", "v2alpha1", "v2", "v10"]
    ranks = [newer.version_rank(f"dev.weir.letters.{name}") for name in names]
    assert None not in ranks
    assert ranks == sorted(ranks, key=lambda rank: rank or ())


@pytest.mark.parametrize("type", ["", "dev.weir.letters", "dev.weir.letters.v1beta", "com.example.letters.v9"])
def test_what_is_no_type_of_ours_is_never_newer(type: str) -> None:
    """Somebody else's producer may leave the header out or write its own: then the body decides."""
    assert not newer.newer(type, "dev.weir.letters.v1beta1")
    assert decode(record(type), Letter).message.name == "a"


@pytest.mark.parametrize("type", ["dev.weir.letters.v1beta1", "dev.weir.letters.v1alpha1"])
def test_its_own_and_earlier_versions_are_read(type: str) -> None:
    """Only what is later is refused unread."""
    assert decode(record(type), Letter).message.name == "a"


def test_a_newer_message_says_what_to_do() -> None:
    """Though its body might fit: what a field means may have changed."""
    with pytest.raises(
        Undecodable, match=r"is dev\.weir\.letters\.v1, from a newer Weir .* reads weir\.letters\.v1beta1: upgrade"
    ):
        decode(record("dev.weir.letters.v1"), Letter)


async def test_readiness_speaks_of_it_for_a_while() -> None:
    """From the message on, and until none has come for a minute; what came before the service started does not count."""
    clock = FakeClock()
    newer.note("dev.weir.letters.v1", "an old story")
    check = NewerMessages(clock)
    await check.ping()
    newer.note("dev.weir.letters.v1", "weir.letters.v1beta1[2]@17 is newer")
    with pytest.raises(ValueError, match="is newer"):
        await check.ping()
    clock.advance(SHOWN_SECONDS - 1)
    with pytest.raises(ValueError, match="is newer"):
        await check.ping()
    clock.advance(2)
    await check.ping()


async def test_every_service_has_the_check() -> None:
    """It comes with the topics."""
    health = Health(FakeClock())
    assert await wait_for_topics(MemoryBus(), 4, Stop(), health)
    newer.note("dev.weir.letters.v2", "from tomorrow")
    _, report = await health.check()
    assert report["messages"]["reason"] == "from tomorrow"
    assert report["topics"]["ok"] is True
