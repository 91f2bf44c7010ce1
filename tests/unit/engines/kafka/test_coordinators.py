"""What an executor reads of a group that its coordinator describes."""

from collections.abc import Iterable

from weir_engines.kafka.coordinators import _reading
from weir_engines.kafka.group import DescribedGroup, DescribedMember

PARTITIONS = {"orders": frozenset(range(4))}


def assignment(partitions: Iterable[int]) -> bytes:
    """Return the bytes of the classic protocol for partitions of `orders`."""
    numbers = list(partitions)
    text = b"\x00\x06orders" + len(numbers).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in numbers)
    return b"\x00\x01" + (1).to_bytes(4, "big") + text + (-1).to_bytes(4, "big", signed=True)


def test_members_of_both_protocols_with_what_nobody_has() -> None:
    """The classic protocol has assignments as bytes, the newer one as a list."""
    classic = DescribedMember("m-1", "app-0", "/127.0.0.1", "static-0", assignment=assignment([0, 1]))
    newer = DescribedMember("m-2", "app-1", "/127.0.0.2", places=(("orders", 2),))
    reading = _reading(DescribedGroup("app", "Stable", members=(classic, newer)), PARTITIONS)
    assert (reading.state, reading.unassigned) == ("Stable", 1)
    assert [(each.id, each.static_id, each.host) for each in reading.members] == [
        ("m-1", "static-0", "127.0.0.1"),
        ("m-2", None, "127.0.0.2"),
    ]


def test_bytes_of_an_unknown_format_are_no_partitions() -> None:
    """Anybody may join a group with bytes of an own assignor; the member counts all the same."""
    reading = _reading(DescribedGroup("app", "Stable", members=(DescribedMember("m", "c", assignment=b"\xff"),)), {})
    assert len(reading.members) == 1
    assert reading.unassigned == 0
