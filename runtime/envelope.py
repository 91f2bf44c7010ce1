"""Messages to bytes and back: JSON bodies, CloudEvents attributes and the trace context in the headers.

CloudEvents' Kafka binding in binary mode (cloudevents.io, "Kafka Protocol Binding", 3.2); W3C Trace Context for `traceparent`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError
from weir_contracts import InvalidDocument
from weir_contracts.topics import TOPICS

from . import newer
from .records import Record

M = TypeVar("M", bound=BaseModel)

MAX_MESSAGE_BYTES = 8_000_000
"""Nothing the loop says is larger; more is a mistake or an attack."""
_COMPACTED = frozenset(topic.name for topic in TOPICS if topic.is_compacted)


class Undecodable(ValueError):
    """A record that is not what its topic promises. `field` is the dotted path at fault, None if it is not even JSON."""

    def __init__(self, record: Record, reason: str, field: str | None = None) -> None:
        self.place = record.place
        self.reason = reason
        self.field = field
        super().__init__(f"{self.place}: {field + ': ' if field else ''}{reason}")


@dataclass(frozen=True)
class Decoded(Generic[M]):
    """A message with the headers and the record it came in."""

    message: M
    headers: Mapping[str, str]
    record: Record

    @property
    def traceparent(self) -> str | None:
        return self.headers.get("traceparent")


def encode(
    message: BaseModel, *, type: str, source: str, id: UUID, time: datetime, traceparent: str | None = None
) -> tuple[bytes, dict[str, str]]:
    """The body and headers of a message. `type` is the contract's CloudEvents type, `source` the service.

    `ValueError` if it is larger than anybody reads.
    """
    headers = {
        "ce_specversion": "1.0",
        "ce_id": str(id),
        "ce_type": type,
        "ce_source": f"/weir/{source}",
        "ce_time": time.isoformat(),
        "content-type": "application/json",
    }
    if traceparent:
        headers["traceparent"] = traceparent
    body = message.model_dump_json().encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"{type} {id} is {len(body)} bytes, more than {MAX_MESSAGE_BYTES}")
    return body, headers


def decode(record: Record, model: type[M]) -> Decoded[M]:
    """Read a record as `model`; `Undecodable` that names field and place if it is not one.

    A record whose headers name a later version than its topic is not even tried: half of it might fit.
    """
    if record.value is None:
        raise Undecodable(record, "has no value")
    if len(record.value) > MAX_MESSAGE_BYTES:
        raise Undecodable(record, f"is {len(record.value)} bytes, more than {MAX_MESSAGE_BYTES}")
    type = record.headers.get("ce_type", "")
    if newer.newer(type, f"dev.{record.topic}"):
        reason = newer.reason(type, record.topic)
        newer.note(type, f"{record.place} {reason}")
        raise Undecodable(record, reason)
    try:
        return Decoded(model.model_validate_json(record.value), record.headers, record)
    except ValidationError as error:
        field, reason = InvalidDocument.of(error, root="").problems[0]
        raise Undecodable(record, reason, field or None) from None


def is_tombstone(record: Record) -> bool:
    """Whether it only says that there is nothing any more under its key: nothing to read, and nothing wrong."""
    return record.value is None and record.topic in _COMPACTED


def new_traceparent(id: UUID) -> str:
    """The trace of everything that follows from the message `id`: its trace id is the message's own."""
    return f"00-{id.hex}-{id.hex[16:]}-01"


def child_traceparent(parent: str | None, id: UUID) -> str:
    """The same trace, one step further; a new one if the parent's is missing or malformed."""
    parts = (parent or "").split("-")
    if len(parts) != 4 or len(parts[1]) != 32 or not _is_hex(parts[1]) or not int(parts[1], 16):
        return new_traceparent(id)
    return f"00-{parts[1]}-{id.hex[16:]}-01"


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text)
