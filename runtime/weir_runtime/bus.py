"""The bus as small protocols, its records, and their signatures. `kafka_bus`, `sqlite_bus` and `memory_bus` pass the same
tests.

Delivery is at least once: a consumer must be idempotent, and commits after the results of its records were
acknowledged. Headers carry the version of a decided record, so that tombstones have one as well.

Without signatures every program that may write to the topics of policies, plans and outcomes could scale every
application. With a key, each of their records carries an HMAC-SHA256 of topic, key, value and the headers that a reader
obeys; a record without a valid one reaches its reader as one that cannot be decoded, a tombstone included, and so becomes
a dead letter.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol, TypedDict, Unpack

from weir_contracts.topics import ACTIONS, CHANGES, OUTCOMES, PLANS, POLICIES

from .files import read_credentials_file

VERSION_HEADER = "weir_version"
UNSIGNED_HEADER = "weir_unsigned"
"""Names the setting of the keys by which a record is not signed."""
MAX_VERSION = 4_102_444_800_000
"""Milliseconds of the year 2100: no version of a decision is larger."""
Place = tuple[str, int]
"""Topic and partition."""
PartitionsChanged = Callable[[frozenset[int]], None]
"""Called on the event loop with the assigned or revoked partitions."""
SESSION_SECONDS = 8.0
"""Without a heartbeat, until a group gives a member's partitions to others."""
SIGNING_SETTING = "WEIR_SIGNING_KEYS_FILE"
SIGNED = frozenset({CHANGES.name, POLICIES.name, ACTIONS.name, PLANS.name, OUTCOMES.name})
MIN_KEY_CHARACTERS = 32
_HEADER = "weir_signature"
_OBEYED = ("ce_type", VERSION_HEADER, "weir_epoch")
"""`weir_epoch` is in older records alone: they stay valid."""


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


def version_of(headers: Mapping[str, str]) -> int | None:
    """Return the version that a record's headers carry; None where they carry none that can be."""
    text = headers.get(VERSION_HEADER, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_VERSION)) else None
    return number if number is not None and number <= MAX_VERSION else None


class MemberOptions(TypedDict, total=False):
    """Options of a member of a group."""

    from_beginning: bool
    """Where to start without a committed offset; at the end if False."""
    on_assigned: PartitionsChanged
    on_revoked: PartitionsChanged | None
    positioned: bool
    """Read nothing of a partition before `begin` says from where."""


class ReaderOptions(TypedDict, total=False):
    """Options of a reader, which starts at the beginning by default."""

    partitions: Iterable[int]
    """All by default."""
    since: timedelta
    """Start this long ago."""
    from_beginning: bool
    """Start at the end if False."""


class BusError(Exception):
    """The bus failed; a retry may succeed, except after `Refused`."""


class Refused(BusError):
    """The record itself was refused, such as for its size: a retry changes that only if its topic was changed."""


class Denied(BusError):
    """The brokers deny a right, which is no property of the record: a retry succeeds once an operator has granted it."""


class Consumer(Protocol):
    """A member of a consumer group: shares the topics' partitions with the other members."""

    @property
    def assignment(self) -> frozenset[int]:
        """The partitions that this member owns now."""

    async def confirmed_until(self, partition: int, min_seconds: float = 0.0) -> float | None:
        """Return the monotonic second until which no other member can own `partition`; None if that is not certain for
        `min_seconds`.

        Asks the group if the last confirmation ends sooner. A confirmation lasts for a session, counted from before it
        was sent, so it ends before the group gives the partition to another member. A member that the group removed
        loses its partitions here, before its next `receive`, and `on_revoked` is called as for any loss.
        """

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        """Return the next records, as soon as there are any; empty after `timeout_seconds`, also while the brokers are
        away.

        One call at a time. A cancelled call loses nothing: the next call returns its records.
        """

    async def commit(self) -> None:
        """Commit all that `receive` has returned, without partitions lost in a rebalance."""

    async def begin(self, positions: Mapping[Place, int | None]) -> None:
        """Read these from these offsets on (None: from the beginning), also if they were read before; those that the
        member does not own are left out. An offset that the topic does not have counts as none: see `from_beginning`.
        For members with the option `positioned`."""

    @property
    def ended(self) -> frozenset[Place]:
        """Those that were read to their end since they last began. For members with the option `positioned`."""

    async def committed(self, place: Place) -> "Committed":
        """Return what the group has committed."""

    async def close(self) -> None:
        """Leave the group, so that other members take over at once."""


class Committed(NamedTuple):
    """A group's position in a partition."""

    offset: int | None
    """Of the next record. None: nothing was committed."""
    note: str
    """As it was committed with the position; empty without one."""


class Transactions(Protocol):
    """Writes records and the position of a consumer's group together, as the only writer with its name."""

    async def fence(self) -> None:
        """Abort what an earlier writer with this name left open, and let the brokers refuse that writer from now on."""

    async def commit(self, records: Sequence[Outgoing], place: Place, position: Committed) -> None:
        """Write all of it, or nothing. After a `BusError` it is not known which: `fence` first, then read.

        `BusError` also if another writer was fenced in meanwhile, or if the group has given the partition to another
        member since `fence`. `Refused`: nothing was written, and the brokers will never take one of the records.
        """

    async def close(self) -> None: ...


class Reader(Protocol):
    """Reads partitions of one topic without a group."""

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        """As a consumer's, but may return nothing sooner, such as at an end. `BusError` for an unknown topic."""

    async def assign(self, partitions: Iterable[int]) -> None:
        """Read exactly these from now on: new ones from the reader's start, others from their position."""

    async def caught_up(self) -> bool:
        """Return whether every assigned partition was read to its end since it was assigned."""

    async def close(self) -> None: ...


class Bus(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None:
        """Flush, and close all consumers and readers."""

    async def ping(self) -> None:
        """Return if the brokers answer; `BusError` otherwise."""

    async def publish(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Return once the brokers have acknowledged it; `BusError` if they do not in time, `Refused` if they never will."""
        await self.publish_many([Outgoing(topic, key, value, headers or {})])

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        """Publish several records in order; return when all are acknowledged."""

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create missing topics; return sentences about topics with fewer replicas than their specification.

        `BusError` for one with another number of partitions, which names both numbers.
        """

    def consumer(self, topics: Sequence[str], group: str, **options: Unpack[MemberOptions]) -> Consumer:
        """Join a group."""

    def transactions(self, name: str, consumer: Consumer) -> Transactions:
        """Return the transactions of the writer `name`, with positions of the group of `consumer`, one of this bus."""

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> Reader:
        """Read a topic, as of the first `receive` or `assign`."""


def read_signing_keys(path: Path | None) -> tuple[bytes, ...]:
    """Return the keys of a file, one a line: the first signs, each verifies, so that a key can be replaced. Empty without
    a file. `ValueError` that names the setting, never a key."""
    if path is None:
        return ()
    keys = tuple(read_credentials_file(path, SIGNING_SETTING).split())
    if not keys or min(len(key) for key in keys) < MIN_KEY_CHARACTERS:
        raise ValueError(
            f"{SIGNING_SETTING}: {path} must have keys of {MIN_KEY_CHARACTERS} characters or more, one a line"
        )
    return keys


def _signature(signing_key: bytes, topic: str, key: str | None, value: bytes | None, headers: Mapping[str, str]) -> str:
    parts = [topic.encode(), b"" if key is None else key.encode(errors="surrogateescape")]
    parts += [headers.get(name, "").encode(errors="surrogateescape") for name in _OBEYED]
    parts.append(b"deleted" if value is None else b"is " + value)
    signed = hmac.new(signing_key, digestmod=hashlib.sha256)
    for part in parts:
        # With its length: no two lists of parts have the same bytes.
        signed.update(len(part).to_bytes(8, "big") + part)
    return signed.hexdigest()


class SignedBus(Bus):
    """A bus that signs what it publishes to the topics `SIGNED`, and verifies what it reads of them."""

    def __init__(self, bus: Bus, keys: Sequence[bytes]) -> None:
        self._bus = bus
        self._keys = keys

    def signed(self, record: Outgoing) -> Outgoing:
        if record.topic not in SIGNED:
            return record
        signature = _signature(self._keys[0], record.topic, record.key, record.value, record.headers)
        return replace(record, headers={**record.headers, _HEADER: signature})

    def verified(self, record: Record) -> Record:
        """Return the record; without a valid signature one that no reader can decode, and without its version."""
        if record.topic not in SIGNED:
            return record
        given = record.headers.get(_HEADER, "").encode(errors="surrogateescape")
        parts = (record.topic, record.key, record.value, record.headers)
        if any(hmac.compare_digest(_signature(key, *parts).encode(), given) for key in self._keys):
            return record
        headers = {name: text for name, text in record.headers.items() if name != VERSION_HEADER}
        return replace(record, value=record.value or b"", headers={**headers, UNSIGNED_HEADER: SIGNING_SETTING})

    async def start(self) -> None:
        await self._bus.start()

    async def close(self) -> None:
        await self._bus.close()

    async def ping(self) -> None:
        await self._bus.ping()

    async def publish_many(self, records: Sequence[Outgoing]) -> None:
        await self._bus.publish_many([self.signed(record) for record in records])

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        return await self._bus.ensure_topics(specs)

    def consumer(self, topics: Sequence[str], group: str, **options: Unpack[MemberOptions]) -> Consumer:
        return _VerifiedConsumer(self._bus.consumer(topics, group, **options), self)

    def transactions(self, name: str, consumer: Consumer) -> Transactions:
        inner = consumer.inner if isinstance(consumer, _VerifiedConsumer) else consumer
        return _SignedTransactions(self._bus.transactions(name, inner), self)

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> Reader:
        return _VerifiedReader(self._bus.reader(topic, **options), self)


class _VerifiedConsumer(Consumer):
    def __init__(self, consumer: Consumer, bus: SignedBus) -> None:
        self.inner = consumer
        self._bus = bus

    @property
    def assignment(self) -> frozenset[int]:
        return self.inner.assignment

    async def confirmed_until(self, partition: int, min_seconds: float = 0.0) -> float | None:
        return await self.inner.confirmed_until(partition, min_seconds)

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        return [self._bus.verified(r) for r in await self.inner.receive(max_records, timeout_seconds)]

    async def commit(self) -> None:
        await self.inner.commit()

    async def begin(self, positions: Mapping[Place, int | None]) -> None:
        await self.inner.begin(positions)

    @property
    def ended(self) -> frozenset[Place]:
        return self.inner.ended

    async def committed(self, place: Place) -> Committed:
        return await self.inner.committed(place)

    async def close(self) -> None:
        await self.inner.close()


class _SignedTransactions(Transactions):
    def __init__(self, transactions: Transactions, bus: SignedBus) -> None:
        self._transactions = transactions
        self._bus = bus

    async def fence(self) -> None:
        await self._transactions.fence()

    async def commit(self, records: Sequence[Outgoing], place: Place, position: Committed) -> None:
        await self._transactions.commit([self._bus.signed(record) for record in records], place, position)

    async def close(self) -> None:
        await self._transactions.close()


class _VerifiedReader(Reader):
    def __init__(self, reader: Reader, bus: SignedBus) -> None:
        self._reader = reader
        self._bus = bus

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        return [self._bus.verified(r) for r in await self._reader.receive(max_records, timeout_seconds)]

    async def assign(self, partitions: Iterable[int]) -> None:
        await self._reader.assign(partitions)

    async def caught_up(self) -> bool:
        return await self._reader.caught_up()

    async def close(self) -> None:
        await self._reader.close()
