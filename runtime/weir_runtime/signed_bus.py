"""Signatures of the records that decide what Weir does: policies, plans and outcomes.

Without signatures every program that may write to these topics could scale every application. With a key, each record carries an
HMAC-SHA256 of topic, key, value and the headers that a reader obeys; a record without a valid one reaches its reader as
one that cannot be decoded, a tombstone included, and so becomes a dead letter.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from weir_contracts.topics import OUTCOMES, PLANS, POLICIES

from .bus import Bus, Consumer, MemberOptions, Reader, ReaderOptions
from .credentials import read_credentials_file
from .envelope import UNSIGNED_HEADER
from .records import EPOCH_HEADER, VERSION_HEADER, Outgoing, Record, TopicSpec

SETTING = "WEIR_SIGNING_KEYS_FILE"
SIGNED = frozenset({POLICIES.name, PLANS.name, OUTCOMES.name})
MIN_KEY_CHARACTERS = 32
_HEADER = "weir_signature"
_OBEYED = ("ce_type", VERSION_HEADER, EPOCH_HEADER)


def read_signing_keys(path: Path | None) -> tuple[bytes, ...]:
    """Return the keys of a file, one a line: the first signs, each verifies, so that a key can be replaced. Empty without
    a file. `ValueError` that names the setting, never a key."""
    if path is None:
        return ()
    keys = tuple(read_credentials_file(path, SETTING).split())
    if not keys or min(len(key) for key in keys) < MIN_KEY_CHARACTERS:
        raise ValueError(f"{SETTING}: {path} must have keys of {MIN_KEY_CHARACTERS} characters or more, one a line")
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
        """Return the record; without a valid signature one that no reader can decode, and whose version counts for
        none: it must not outdate the records behind it."""
        if record.topic not in SIGNED:
            return record
        given = record.headers.get(_HEADER, "").encode(errors="surrogateescape")
        parts = (record.topic, record.key, record.value, record.headers)
        if any(hmac.compare_digest(_signature(key, *parts).encode(), given) for key in self._keys):
            return record
        versions = (VERSION_HEADER, EPOCH_HEADER)
        headers = {name: text for name, text in record.headers.items() if name not in versions}
        return replace(record, value=record.value or b"", headers={**headers, UNSIGNED_HEADER: SETTING})

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

    def reader(self, topic: str, **options: Unpack[ReaderOptions]) -> Reader:
        return _VerifiedReader(self._bus.reader(topic, **options), self)


class _VerifiedConsumer(Consumer):
    def __init__(self, consumer: Consumer, bus: SignedBus) -> None:
        self._consumer = consumer
        self._bus = bus

    @property
    def assignment(self) -> frozenset[int]:
        return self._consumer.assignment

    async def confirmed_until(self, partition: int, min_seconds: float = 0.0) -> float | None:
        return await self._consumer.confirmed_until(partition, min_seconds)

    async def receive(self, max_records: int = 500, timeout_seconds: float = 1.0) -> list[Record]:
        return [self._bus.verified(r) for r in await self._consumer.receive(max_records, timeout_seconds)]

    async def commit(self) -> None:
        await self._consumer.commit()

    async def close(self) -> None:
        await self._consumer.close()


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
