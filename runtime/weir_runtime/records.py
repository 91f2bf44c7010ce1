"""Records of topics, the partition of a key, and versions of a compacted topic's records.

Headers carry a version, so that tombstones have one as well. Records without a version count in their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

VERSION_HEADER = "weir_version"
EPOCH_HEADER = "weir_epoch"
MAX_DELETED = 10_000
"""Deleted keys that are kept; the oldest deletions are dropped first."""


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
    replicas: int | None = None
    """Copies of each partition. None: the brokers' default."""


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


class RecordVersion(NamedTuple):
    """Compared by number, which the store assigns, then by epoch, which the publisher adds."""

    number: int
    """Grows with each change of a key, its deletion included."""
    epoch: int
    """Of the lease that the record's publisher held."""

    def headers(self) -> dict[str, str]:
        """Return the headers that carry it."""
        return {VERSION_HEADER: str(self.number), EPOCH_HEADER: str(self.epoch)}


MAX_VERSION = 2**52
"""Largest number and epoch of a version: 140,000 years of milliseconds, and exact in every reader."""


def version_of(headers: Mapping[str, str]) -> RecordVersion | None:
    """Return the version that a record's headers carry; None where they carry none that can be."""
    try:
        found = RecordVersion(int(headers[VERSION_HEADER]), int(headers[EPOCH_HEADER]))
    except (KeyError, ValueError):
        return None
    return found if all(0 <= each <= MAX_VERSION for each in found) else None


class NewestVersions:
    """The newest version of each key that was read."""

    def __init__(self) -> None:
        self._newest: dict[str, RecordVersion] = {}
        self._deleted: dict[str, None] = {}
        """In the order of their deletion."""

    def outdated(self, record: Record) -> bool:
        """Return whether a newer version of the record's key was read before it. If not, the record's is the newest
        now."""
        if record.key is None:
            return False
        version, newest = version_of(record.headers), self._newest.get(record.key)
        if version is None:
            return False
        if newest is not None and version < newest:
            return True
        self._forget(record.key)
        self._newest[record.key] = version
        if record.value is None:
            self._deleted[record.key] = None
            if len(self._deleted) > MAX_DELETED:
                self._forget(next(iter(self._deleted)))
        return False

    def _forget(self, key: str) -> None:
        self._newest.pop(key, None)
        self._deleted.pop(key, None)
