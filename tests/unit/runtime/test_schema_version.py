"""Messages of a newer version: not partly read, and reported where users look."""

import pytest
from pydantic import BaseModel

from weir_contracts import DeadLetter
from weir_contracts.topics import DEAD_LETTERS
from weir_runtime.clock import FakeClock
from weir_runtime.dead_letters import DeadLetters
from weir_runtime.envelope import NEWER_VERSION, Undecodable, decode, is_newer, version_rank
from weir_runtime.health import Health
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.records import Record
from weir_runtime.service import wait_for_topics
from weir_runtime.settings import ServiceSettings


class Letter(BaseModel):
    name: str


def record(type: str) -> Record:
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
    assert decode(record(type), Letter).message.name == "a"


@pytest.mark.parametrize("type", ["dev.weir.letters.v1beta1", "dev.weir.letters.v1alpha1"])
def test_its_own_and_earlier_versions_are_read(type: str) -> None:
    """Only what is later is refused unread."""
    assert decode(record(type), Letter).message.name == "a"


def test_a_newer_message_names_the_remedy() -> None:
    """Though its body might fit: what a field means may have changed."""
    with pytest.raises(
        Undecodable, match=r"is dev\.weir\.letters\.v1, from a newer Weir .* reads weir\.letters\.v1beta1: upgrade"
    ):
        decode(record("dev.weir.letters.v1"), Letter)
    with pytest.raises(Undecodable) as refused:
        decode(record("dev.weir.letters.v1"), Letter)
    assert refused.value.code == NEWER_VERSION


async def test_one_newer_message_takes_no_service_out() -> None:
    """It is a dead letter with its own code; readiness is about what a service needs, not about what it was sent."""
    clock, bus = FakeClock(), MemoryBus()
    health = Health(clock)
    assert await wait_for_topics(bus, ServiceSettings(), Stop(), health)
    letters = DeadLetters(bus, "monitor", clock)
    assert await letters.decoded(record("dev.weir.letters"), Letter) is not None
    assert await letters.decoded(record("dev.weir.letters.v2"), Letter) is None
    assert (await health.check())[0]
    (sent,) = [DeadLetter.model_validate_json(each.value or b"") for each in bus.records(DEAD_LETTERS.name)]
    assert sent.code == NEWER_VERSION
    assert sent.reason.startswith("is dev.weir.letters.v2, from a newer Weir than this")
