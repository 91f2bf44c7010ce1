"""A group's description as the executor reads it."""

from weir_engines.kafka.coordinators import _reading
from weir_engines.kafka.group import DescribedGroup, DescribedMember
from weir_replay.streams import assignment

PARTITIONS = {"orders": frozenset(range(4))}


def test_the_partitions_of_members_of_both_protocols_are_assigned() -> None:
    """The classic protocol has assignments as bytes, the newer one as a list; one partition of four is unassigned."""
    classic = DescribedMember(
        "m-1", "app-0", "/127.0.0.1", "static-0", assignment=assignment([("orders", 0), ("orders", 1)])
    )
    newer = DescribedMember("m-2", "app-1", "/127.0.0.2", places=(("orders", 2),))
    reading = _reading(DescribedGroup("app", "Stable", members=(classic, newer)), PARTITIONS)
    assert (reading.state, reading.unassigned) == ("Stable", 1)
    assert [(each.id, each.static_id, each.host) for each in reading.members] == [
        ("m-1", "static-0", "127.0.0.1"),
        ("m-2", None, "127.0.0.2"),
    ]


def test_bytes_of_an_unknown_format_are_no_partitions() -> None:
    """Any client may join a group with bytes of its own assignor; the member counts all the same."""
    reading = _reading(DescribedGroup("app", "Stable", members=(DescribedMember("m", "c", assignment=b"\xff"),)), {})
    assert len(reading.members) == 1
    assert reading.unassigned == 0
