"""Reads topics of which some records are unreadable: dead letters by a group, the log without one, newest values by key.

One dead letter a record and service: a member of a consumer group sends it, and commits the record afterwards. What a
service reads without a group, each replica reads, again after each restart: it is only logged there (`readable`). Topics
that no group of the service reads have one for their letters (`DeadLetters.watch`).
"""

import asyncio
import base64
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid5

import structlog
from prometheus_client import Counter
from pydantic import BaseModel

from weir_contracts import DeadLetter
from weir_contracts.topics import DEAD_LETTERS

from .bus import Bus, BusError, Denied, Reader, Record, Refused
from .clock import Clock, SystemClock
from .loop import Stop, run_forever
from .messages import Decoded, Undecodable, decode, encode, is_tombstone

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

MAX_VALUE_BYTES = 65_536
"""Of a value that a dead letter carries: enough to recognise it."""
_REMEMBERED = 1000
"""Records that are not sent again: as many as any service receives at once."""
_MAX_TRACE = 200
"""Characters of a record's `traceparent`; a valid one has 55."""
WATCH_SECONDS = 5.0
"""Wait for records of topics that are only read for their dead letters."""
PERIOD_SECONDS = 60.0
MAX_OF_KEY = 10
"""Letters of one key of a topic within a period: one application's records do not take the room of the others."""
MAX_OF_ALL = 100
"""Letters of a process within a period: at most 9 MB, however many records cannot be read."""
_COUNT = Counter(
    "weir_dead_letters_total", "Messages sent to the dead-letter topic because they could not be read", ["topic"]
)
_SUPPRESSED = Counter(
    "weir_dead_letters_suppressed_total",
    "Unreadable messages without a dead letter, because of the rate limit or of a missing right",
    ["topic"],
)
_NAMESPACE = UUID("0d0c7f3e-58cf-5d25-8a55-9d1a0f6f7e7b")
_log = structlog.get_logger("table")


class LetterRate:
    """Limits the dead letters of a process: `MAX_OF_KEY` of one key, `MAX_OF_ALL` of all within `PERIOD_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._sent: Tally[tuple[str, str | None]] = Tally()
        self.suppressed = 0
        """Records that `admits` refused since the last letter."""

    def admits(self, record: Record) -> bool:
        """Return whether the letter of a record may be sent now; otherwise the record counts as suppressed."""
        if self._clock.monotonic() - self._since >= PERIOD_SECONDS:
            self._since = self._clock.monotonic()
            self._sent.clear()
        if self._sent.total() < MAX_OF_ALL and self._sent[record.topic, record.key] < MAX_OF_KEY:
            return True
        self.suppressed += 1
        return False

    def take(self, record: Record) -> int:
        """Count the letter of a record; return the suppressed records, which it reports."""
        self._sent[record.topic, record.key] += 1
        reported, self.suppressed = self.suppressed, 0
        return reported

    def give_back(self, record: Record, reported: int) -> None:
        """Undo `take`: the brokers did not accept the letter, which takes no room from its repetition."""
        self._sent[record.topic, record.key] -= 1
        self.suppressed += reported


@dataclass(eq=False, repr=False)
class DeadLetters:
    """Sends the dead letters of `service`."""

    bus: Bus
    service: str
    clock: Clock
    _sent: deque[tuple[str, datetime | None]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED), init=False)

    def __post_init__(self) -> None:
        self._rate = LetterRate(self.clock)

    async def send(self, record: Record, code: str, reason: str, field: str | None = None) -> None:
        """Publish the dead letter of a record, once, unless there are too many; `BusError` if the brokers are away."""
        await self.undecodable(record, Undecodable(record, reason, field, code=code))

    async def decoded(self, record: Record, model: type[M]) -> Decoded[M] | None:
        """Return the message of a record; None for a tombstone and for an unreadable record, whose dead letter is sent."""
        if is_tombstone(record):
            return None
        try:
            return decode(record, model)
        except Undecodable as error:
            await self.undecodable(record, error)
            return None

    async def undecodable(self, record: Record, error: Undecodable) -> None:
        """Publish the dead letter of a record that `decode` refused, as `send`: a batch that cannot be stored is received
        again.

        A letter that the brokers refuse, or for which a right is missing, is logged: one bad record must not keep all
        others waiting for it.
        """
        which = (record.place, record.timestamp)
        if which in self._sent:
            return
        log = structlog.get_logger(self.service)
        if not self._rate.admits(record):
            _SUPPRESSED.labels(record.topic).inc()
            if self._rate.suppressed == 1:
                log.warning("dead-letters-suppressed", place=record.place, key=record.key, code=error.code)
            self._sent.append(which)
            return
        log.warning(
            "dead-letter", place=record.place, key=record.key, code=error.code, reason=error.reason, field=error.field
        )
        letter = dead_letter(self.service, self.clock.now(), error, self._rate.take(record))
        traceparent, source = record.headers.get("traceparent", "")[:_MAX_TRACE], self.service
        body, headers = encode(
            letter, type=DEAD_LETTERS.type, source=source, id=letter.id, time=letter.at, traceparent=traceparent
        )
        try:
            await self.bus.publish(DEAD_LETTERS.name, letter.key or "unknown", body, headers)
        except (Refused, Denied) as refused:
            _SUPPRESSED.labels(record.topic).inc()
            self._rate.suppressed += letter.suppressed + 1
            log.warning("dead-letter-refused", place=record.place, code=letter.code, reason=str(refused))
        except BaseException:
            self._rate.give_back(record, letter.suppressed)
            raise
        else:
            _COUNT.labels(record.topic).inc()
        self._sent.append(which)

    async def of_unreadable(
        self, records: Iterable[Record], decoders: Mapping[str, Callable[[Record], object]]
    ) -> None:
        """Send the dead letters of those records that the decoder of their topic refuses."""
        for record in records:
            if not is_tombstone(record):
                try:
                    decoders[record.topic](record)
                except Undecodable as error:
                    await self.undecodable(record, error)
            await asyncio.sleep(0)

    async def watch(self, decoders: Mapping[str, Callable[[Record], object]], stop: Stop) -> None:
        """Send the dead letters of these topics until stopped, as a group of all replicas: none is repeated by another
        replica, or after a restart."""
        consumer = self.bus.consumer(list(decoders), f"weir-{self.service}-unreadable")
        pending: list[Record] = []

        async def cycle() -> None:
            if not pending:  # else the last cycle failed
                pending.extend(await stop.race(consumer.receive(timeout_seconds=WATCH_SECONDS)) or [])
            if pending:
                await self.of_unreadable(pending, decoders)
                await consumer.commit()
                pending.clear()

        try:
            await run_forever("unreadable", cycle, stop)
        finally:
            await consumer.close()


def readable(record: Record, model: type[M]) -> M | None:
    """Return the message of a record that is read without a group; None for a tombstone and for an unreadable record, which
    is logged: its dead letter is sent by a group that reads the topic."""
    if is_tombstone(record):
        return None
    try:
        return decode(record, model).message
    except Undecodable as error:
        log_unreadable(record, error)
        return None


_LOGGED = LetterRate(SystemClock())
"""Limits the lines about records without a dead letter as the letters are limited."""


def log_unreadable(record: Record, error: Undecodable) -> None:
    """Log a record that is skipped without a dead letter."""
    if not _LOGGED.admits(record):
        return
    log, more = structlog.get_logger("unreadable"), _LOGGED.take(record)
    log.warning(
        "unreadable", place=record.place, code=error.code, reason=error.reason, field=error.field, unlogged=more
    )


def dead_letter(service: str, at: datetime, error: Undecodable, suppressed: int = 0) -> DeadLetter:
    """Return the dead letter of a record. Its id depends on service and record only. `suppressed`: records without one
    since the last letter."""
    record, type = error.record, error.record.headers.get("ce_type")
    return DeadLetter(
        id=uuid5(_NAMESPACE, f"{service}:{record.place}"),
        at=at,
        service=service,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key[:1000] if record.key is not None else None,
        type=type[:200] if type else None,
        code=error.code,
        reason=error.reason[:2000] or "unreadable",
        field=error.field[:500] if error.field else None,
        suppressed=suppressed,
        **value_fields(record.value),
    )


def value_fields(value: bytes | None) -> dict[str, Any]:
    """Return the fields of a dead letter that carry a value."""
    if value is None:
        return {}
    return {"value_base64": base64.b64encode(value[:MAX_VALUE_BYTES]).decode(), "value_bytes": len(value)}


@dataclass(eq=False, repr=False)
class GlobalTable(Generic[T]):
    """Follows a topic from its beginning. `latest` is the newest readable value of every key.

    An unreadable record leaves its key unchanged and is logged: every replica reads it, so its dead letter comes from
    `DeadLetters.watch`.
    """

    bus: Bus
    topic: str
    decode: Callable[[Record], T]
    on_change: Callable[[str, T | None], None] | None = None
    latest: dict[str, T] = field(default_factory=dict, init=False)
    _reader: Reader | None = field(default=None, init=False)
    _ready: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def ready(self) -> bool:
        """Whether every partition has been read to its end once."""
        return self._ready.is_set()

    async def wait_ready(self, timeout_seconds: float) -> bool:
        """Wait until ready; False after `timeout_seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), timeout_seconds)
        return self.ready

    async def ping(self) -> None:
        """For readiness: `BusError` until ready."""
        if not self.ready:
            raise BusError(f"{self.topic} is being read")

    async def follow(self, stop: Stop) -> None:
        """Read until stopped, also through an outage of the brokers."""
        self._reader = self.bus.reader(self.topic)
        try:
            while not stop.requested:
                try:
                    await stop.race(self.step())
                except BusError as error:
                    _log.warning("table-waits", topic=self.topic, reason=str(error))
                    await stop.wait(1.0)
        finally:
            await self._reader.close()

    async def step(self, timeout_seconds: float = 0.5) -> int:
        """Read once; return the number of records."""
        if self._reader is None:
            self._reader = self.bus.reader(self.topic)
        records = await self._reader.receive(timeout_seconds=timeout_seconds)
        for record in records:
            self._apply(record)
        if not self.ready and await self._reader.caught_up():
            self._ready.set()
        return len(records)

    def _apply(self, record: Record) -> None:
        if record.key is None:
            return
        value = None
        try:
            if record.value is None:
                self.latest.pop(record.key, None)
            else:
                value = self.latest[record.key] = self.decode(record)
        except Undecodable as error:
            log_unreadable(record, error)
            return
        if self.on_change:
            self.on_change(record.key, value)


async def read_to_end(bus: Bus, topic: str, each: Callable[[Record], None]) -> None:
    """Call `each` with every record of a topic, from the beginning to its present end."""
    reader = bus.reader(topic)
    try:
        while not await reader.caught_up():
            for record in await reader.receive(timeout_seconds=0.2):
                each(record)
    finally:
        await reader.close()
