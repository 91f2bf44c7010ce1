"""Writer of the bytes that Kafka Streams' members exchange through the coordinator, for groups that are made up."""

import struct
from collections.abc import Sequence
from uuid import UUID

NEVER = 2**63 - 1


def text(value: str) -> bytes:
    """Return a text with its length in two bytes."""
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def user_data(
    active: Sequence[tuple[int, int]], standby: Sequence[tuple[int, int]] = (), *, probing_ms: int = NEVER
) -> bytes:
    """Return an `AssignmentInfo` of version 11 with tasks as (subtopology, partition)."""

    def task(subtopology: int, partition: int) -> bytes:
        return struct.pack(">iii", subtopology, partition, 0)

    head = struct.pack(">iii", 11, 11, len(active)) + b"".join(task(*each) for each in active)
    standbys = b"".join(task(*each) + struct.pack(">i", 1) + text("orders") + struct.pack(">i", 0) for each in standby)
    return head + struct.pack(">i", len(standby)) + standbys + struct.pack(">iiiiq", 0, 0, 0, 0, probing_ms)


def assignment(places: Sequence[tuple[str, int]], data: bytes | None = None) -> bytes:
    """Return a member's assignment with its user data."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    topics = b"".join(
        text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for topic, numbers in by_topic.items()
    )
    rest = struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return struct.pack(">hi", 1, len(by_topic)) + topics + rest


def subscription(topics: Sequence[str], process: UUID | None = None) -> bytes:
    """Return a member's subscription; with a process that of a Kafka Streams thread."""
    listed = b"".join(text(topic) for topic in topics)
    head = struct.pack(">hi", 1, len(topics)) + listed
    if process is None:
        return head + struct.pack(">i", -1)
    data = struct.pack(">ii", 11, 11) + process.bytes + struct.pack(">iibii", 0, 0, 0, 0, 0)
    return head + struct.pack(">i", len(data)) + data
