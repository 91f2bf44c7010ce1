"""Records of topics, and the partition of a key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Record:
    """A record that was read. `value` None: a tombstone."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    headers: Mapping[str, str] = field(default_factory=dict)
    timestamp: datetime | None = None

    @property
    def place(self) -> str:
        """Topic, partition and offset, for errors and logs."""
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True)
class Outgoing:
    """A record to write."""

    topic: str
    key: str
    value: bytes | None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicSpec:
    """A topic with its partitions and settings."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key by Java's default partitioner (Kafka: `Utils.murmur2`).

    All producers of the loop must use the same one, or a key's messages have several owners.
    """
    return (_murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)
