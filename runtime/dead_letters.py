"""What could not be read goes to a topic for people, with its reason, and the loop goes on."""

import base64
from collections import deque
from datetime import datetime
from typing import TypeVar
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

KEPT_BYTES = 65_536
"""How much of a value a dead letter carries: enough to see what it was."""
_REMEMBERED = 1000
"""Records put aside last, which are not put aside again: as many as any service takes at once."""

_COUNT = Counter("weir_dead_letters_total", "Messages put aside because they could not be read", ["topic"])
_NAMESPACE = UUID("0d0c7f3e-58cf-5d25-8a55-9d1a0f6f7e7b")


class DeadLetters:
    """Puts messages aside for `service`."""

    def __init__(self, bus: Bus, service: str, clock: Clock) -> None:
        self._bus = bus
        self._service = service
        self._clock = clock
        self._log = structlog.get_logger(service)
        self._aside: deque[tuple[str, datetime | None]] = deque(maxlen=_REMEMBERED)

    async def send(self, record: Record, reason: str, field: str | None = None) -> None:
        """Publish the dead letter of a record; `BusError` if the brokers do not take it."""
        _COUNT.labels(record.topic).inc()
        self._log.warning("dead-letter", place=record.place, key=record.key, reason=reason, field=field)
        letter = DeadLetter(
            id=uuid5(_NAMESPACE, f"{self._service}:{record.place}"),
            at=self._clock.now(),
            service=self._service,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key[:1000] if record.key is not None else None,
            reason=reason[:2000] or "unreadable",
            field=field[:500] if field else None,
            value_base64=None if record.value is None else base64.b64encode(record.value[:KEPT_BYTES]).decode(),
            value_bytes=None if record.value is None else len(record.value),
        )
        body, headers = encode(
            letter,
            type=DEAD_LETTERS.type,
            source=self._service,
            id=letter.id,
            time=letter.at,
            traceparent=record.headers.get("traceparent"),
        )
        await self._bus.publish(DEAD_LETTERS.name, record.key or "unknown", body, headers)

    async def decoded(self, record: Record, model: type[M]) -> Decoded[M] | None:
        """What a record says; None where it is a tombstone, or cannot be read, and then it was put aside."""
        if is_tombstone(record):
            return None
        try:
            return decode(record, model)
        except Undecodable as error:
            await self.undecodable(record, error)
            return None

    async def undecodable(self, record: Record, error: Undecodable) -> None:
        """The same, for what `decode` refused. Once for each record: a batch that cannot be stored is taken again and again."""
        which = (record.place, record.timestamp)
        if which not in self._aside:
            await self.send(record, error.reason, error.field)
            self._aside.append(which)
