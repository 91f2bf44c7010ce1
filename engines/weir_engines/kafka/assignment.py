"""Decoder of what group members of the classic protocol exchange through the coordinator.

Assignment and subscription have Kafka's documented format; the user data in them is internal to Kafka Streams
(`AssignmentInfo`, `SubscriptionInfo`, versions 7 to 11), so that another version is refused.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

T = TypeVar("T")

MAX_BYTES = 4_000_000
"""Largest user data of a member that is decoded: about 100,000 tasks."""


class Undecodable(ValueError):
    """Bytes of another format or version, cut off, or too many; the sentence says which."""


class Reader:
    """Position in a byte string. Each method reads one value and raises `Undecodable` beyond the end."""

    def __init__(self, data: bytes, name: str) -> None:
        if len(data) > MAX_BYTES:
            raise Undecodable(f"{name}: {len(data):,} bytes are more than {MAX_BYTES:,}")
        self._data, self._at, self._name = data, 0, name

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if not 0 <= count <= len(self._data) - self._at:
            raise Undecodable(f"{self._name}: {count} bytes are wanted at {self._at}, {self.left} are left")
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    @property
    def left(self) -> int:
        """Number of bytes that were not read yet."""
        return len(self._data) - self._at

    def i16(self) -> int:
        """Return a signed number of two bytes."""
        return int(struct.unpack(">h", self.take(2))[0])

    def i32(self) -> int:
        """Return a signed number of four bytes."""
        return int(struct.unpack(">i", self.take(4))[0])

    def i64(self) -> int:
        """Return a signed number of eight bytes."""
        return int(struct.unpack(">q", self.take(8))[0])

    def text(self) -> str:
        """Return a text with its length in two bytes."""
        return self._decoded(self.take(self.i16()), "utf-8")

    def wide_text(self) -> str:
        """Return a UTF-16 text with its length, in characters, in four bytes."""
        return self._decoded(self.take(2 * self.i32()), "utf-16-be")

    def data(self) -> bytes | None:
        """Return bytes with their length in four bytes; None if it is -1."""
        count = self.i32()
        return None if count == -1 else self.take(count)

    def items(self, read: Callable[[], T], item_bytes: int = 1) -> list[T]:
        """Return a list with its number in four bytes, of items of at least `item_bytes`."""
        count = self.i32()
        if not 0 <= count * item_bytes <= self.left:
            raise Undecodable(f"{self._name}: a list of {count} does not fit in the {self.left} bytes that are left")
        return [read() for _ in range(count)]

    def end(self) -> None:
        """`Undecodable` unless everything was read."""
        if self.left:
            raise Undecodable(f"{self._name}: {self.left} bytes are left after its end")

    def _decoded(self, data: bytes, encoding: str) -> str:
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            raise Undecodable(f"{self._name}: a text is not {encoding.upper()}") from None


OLDEST, NEWEST = 7, 11
"""Versions of Kafka Streams' user data that are decoded: Kafka 2.6 to 4.x."""
_LATEST_MS = 32_503_680_000_000
"""The year 3000: a later time is no time."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, order=True)
class Task:
    """Kafka Streams task; `topology` is the name of a named topology, empty as a rule."""

    subtopology: int
    partition: int
    topology: str = ""


@dataclass(frozen=True)
class StreamsAssignment:
    """Tasks that one thread was assigned."""

    active: tuple[Task, ...]
    standby: tuple[Task, ...]
    """Standby tasks and warm-ups, which the format does not tell apart."""
    probing_at: datetime | None
    """Time of the next probing rebalance. None: none is due."""


@dataclass(frozen=True)
class Assigned:
    """Assignment of one member: its partitions, and its tasks if it is one of Kafka Streams."""

    places: tuple[Place, ...]
    user_data: bytes | None


@dataclass(frozen=True)
class Subscribed:
    """Subscription of one member: its topics, and Kafka Streams' user data."""

    topics: tuple[str, ...]
    user_data: bytes | None


def assigned(data: bytes) -> Assigned:
    """Return a member's assignment; `Undecodable` for another format. Empty bytes are no partitions."""
    if not data:
        return Assigned((), None)
    reader = Reader(data, "assignment")
    _checked_version(reader.i16(), "assignment")
    groups = reader.items(lambda: (reader.text(), reader.items(reader.i32, 4)), 6)
    places = tuple([(topic, partition) for topic, partitions in groups for partition in partitions])
    # a newer version may add fields after the user data
    return Assigned(places, reader.data() if reader.left else None)


def subscribed(data: bytes) -> Subscribed:
    """Return a member's subscription; `Undecodable` for another format. Empty bytes are no topics."""
    if not data:
        return Subscribed((), None)
    reader = Reader(data, "subscription")
    _checked_version(reader.i16(), "subscription")
    topics = tuple(reader.items(reader.text, 2))
    return Subscribed(topics, reader.data() if reader.left else None)


def tasks_of(user_data: bytes) -> StreamsAssignment:
    """Return the tasks in Kafka Streams' `AssignmentInfo`, read to its last byte; `Undecodable` for another format."""
    reader = Reader(user_data, "AssignmentInfo")
    version = _streams_version(reader)
    reader.i32()  # the version that all members of the group can read
    active = reader.items(lambda: _task(reader, version), 8)
    standby = reader.items(lambda: _standby(reader, version), 12)
    reader.items(lambda: (reader.i32(), reader.text()), 6)
    for _ in range(2):
        reader.items(lambda: _host(reader), 10)
    reader.i32()  # error code
    probing_ms = reader.i64()
    reader.end()
    # Kafka Streams lists a task once for each of its partitions.
    return StreamsAssignment(tuple(dict.fromkeys(active)), tuple(standby), _instant(probing_ms))


def process_of(user_data: bytes) -> UUID:
    """Return the process id in Kafka Streams' `SubscriptionInfo`; `Undecodable` for another version."""
    reader = Reader(user_data, "SubscriptionInfo")
    _streams_version(reader)
    reader.i32()  # latest version that the member supports
    return UUID(bytes=reader.take(16))


def _checked_version(version: int, name: str) -> None:
    if not 0 <= version <= 100:
        raise Undecodable(f"{name}: {version} is no version")


def _streams_version(reader: Reader) -> int:
    version = reader.i32()
    if not OLDEST <= version <= NEWEST:
        raise Undecodable(f"Kafka Streams' user data has version {version}; {OLDEST} to {NEWEST} are known")
    return version


def _task(reader: Reader, version: int) -> Task:
    subtopology, partition = reader.i32(), reader.i32()
    return Task(subtopology, partition, reader.wide_text() if version >= 10 else "")


def _standby(reader: Reader, version: int) -> Task:
    task = _task(reader, version)
    reader.items(lambda: (reader.text(), reader.i32()), 6)
    return task


def _host(reader: Reader) -> None:
    reader.text()
    reader.i32()
    reader.items(lambda: (reader.i32(), reader.i32()), 8)


def _instant(milliseconds: int) -> datetime | None:
    """Return an instant; None for none, an unknown one, or one beyond the calendar."""
    if not 0 < milliseconds < _LATEST_MS:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
