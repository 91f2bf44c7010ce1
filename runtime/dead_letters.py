"""Sends unreadable messages to the dead-letter topic with the reason, so that the loop continues."""

import base64
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid5

import structlog
from prometheus_client import Counter
from pydantic import BaseModel
from weir_contracts import DeadLetter
from weir_contracts.topics import DEAD_LETTERS

from .bus import Bus
from .clock import Clock
from .envelope import Decoded, Undecodable, decode, encode, is_tombstone
from .records import Record

M = TypeVar("M", bound=BaseModel)

MAX_VALUE_BYTES = 65_536
"""Of a value that a dead letter carries: enough to recognise it."""
_REMEMBERED = 1000
"""Records that are not sent again: as many as any service receives at once."""

_COUNT = Counter(
    "weir_dead_letters_total", "Messages sent to the dead-letter topic because they could not be read", ["topic"]
)
_NAMESPACE = UUID("0d0c7f3e-58cf-5d25-8a55-9d1a0f6f7e7b")


@dataclass(eq=False, repr=False)
class DeadLetters:
    """Sends the dead letters of `service`."""

    bus: Bus
    service: str
    clock: Clock
    _sent: deque[tuple[str, datetime | None]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED), init=False)

    async def send(self, record: Record, code: str, reason: str, field: str | None = None) -> None:
        """Publish the dead letter of a record; `BusError` if the brokers do not accept it."""
        _COUNT.labels(record.topic).inc()
        log = structlog.get_logger(self.service)
        log.warning("dead-letter", place=record.place, key=record.key, code=code, reason=reason, field=field)
        error = Undecodable(record, reason, field, code=code)
        letter = dead_letter(self.service, self.clock.now(), error)
        traceparent, source = record.headers.get("traceparent"), self.service
        body, headers = encode(
            letter, type=DEAD_LETTERS.type, source=source, id=letter.id, time=letter.at, traceparent=traceparent
        )
        await self.bus.publish(DEAD_LETTERS.name, record.key or "unknown", body, headers)

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
        """Send the dead letter of a record that `decode` refused, once: a batch that cannot be stored is received
        again."""
        which = (record.place, record.timestamp)
        if which not in self._sent:
            await self.send(record, error.code, error.reason, error.field)
            self._sent.append(which)


def dead_letter(service: str, at: datetime, error: Undecodable) -> DeadLetter:
    """Return the dead letter of a record. Its id depends on service and record only."""
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
        **value_fields(record.value),
    )


def value_fields(value: bytes | None) -> dict[str, Any]:
    """Return the fields of a dead letter that carry a value."""
    if value is None:
        return {}
    return {"value_base64": base64.b64encode(value[:MAX_VALUE_BYTES]).decode(), "value_bytes": len(value)}
