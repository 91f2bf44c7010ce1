"""Messages of topics: to bytes and back.

Bodies are JSON, CloudEvents attributes and the trace context are headers: CloudEvents' Kafka binding in binary mode
(cloudevents.io, "Kafka Protocol Binding", 3.2); W3C Trace Context for `traceparent`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError

from weir_contracts import InvalidDocument
from weir_contracts.document import read_json
from weir_contracts.topics import TOPICS

from .bus import UNSIGNED_HEADER, Record, Refused

M = TypeVar("M", bound=BaseModel)

MAX_MESSAGE_BYTES = 8_000_000
"""No message of the loop is larger; more is a mistake or an attack."""
MAX_MESSAGE_ELEMENTS = 300_000
"""Commas and brackets of a message: in an analysis 70 of an operator, in an observation 15 of a partition. Parsed, they take
70 MB."""
LARGE_BYTES = 65_536
"""Of a message that `read_json` reads, which takes longer and less memory."""
ENVELOPE_BYTES = 100_000
"""Of key, headers and batch besides: producers and topics allow them, or a message just below the maximum would be
refused for good as if the brokers were away."""
NEWER_VERSION = "newer-version"
"""Code of a dead letter of a newer version."""
_TYPE = re.compile(r"dev\.weir\.[a-z-]{1,40}\.v(\d{1,4})(?:(alpha|beta)(\d{1,4}))?")
_STAGES = {"alpha": 0, "beta": 1, None: 2}
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_COMPACTED = frozenset(topic.name for topic in TOPICS if topic.is_compacted)


class Undecodable(ValueError):
    """A record that is no message of its topic. `field` is the dotted path at fault, None if it is not JSON."""

    def __init__(self, record: Record, reason: str, field: str | None = None, *, code: str = "invalid") -> None:
        self.record = record
        self.code = code
        self.reason = reason
        self.field = field
        super().__init__(f"{record.place}: {field + ': ' if field else ''}{reason}")


class TooLarge(Refused):
    """A message that no reader would accept."""


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
    message: BaseModel,
    *,
    type: str,
    source: str,
    id: UUID,
    time: datetime,
    traceparent: str | None = None,
    exclude_unset: bool = False,
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a message. `type` is the contract's CloudEvents type, `source` the service.

    `exclude_unset` leaves out fields that were not given. `TooLarge` for one that no reader would accept.
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
    body = message.model_dump_json(exclude_unset=exclude_unset).encode()
    if excess := excess_of(body):
        raise TooLarge(f"the message of type {type} has {excess}")
    return body, headers


def excess_of(value: bytes) -> str:
    """Return what a message has more of than is read, such as `9,000,000 bytes, more than 8,000,000`; empty if nothing."""
    if len(value) > MAX_MESSAGE_BYTES:
        return f"{len(value):,} bytes, more than {MAX_MESSAGE_BYTES:,}"
    if len(value) > MAX_MESSAGE_ELEMENTS:  # a shorter one has no more elements than bytes
        elements = value.count(b",") + value.count(b"[") + value.count(b"{")
        if elements > MAX_MESSAGE_ELEMENTS:  # memory grows with them: 8 MB of `[],` take 1.8 GB
            return f"{elements:,} elements, more than {MAX_MESSAGE_ELEMENTS:,}"
    return ""


def decode(record: Record, model: type[M]) -> Decoded[M]:
    """Read a record as `model`; `Undecodable` that names field and place if it is not one.

    A record whose headers name a later version than its topic is refused unread: a part of it might fit.
    """
    if record.value is None:
        raise Undecodable(record, "has no value", code="no-value")
    if excess := excess_of(record.value):
        raise Undecodable(record, f"has {excess}", code="too-large")
    if setting := record.headers.get(UNSIGNED_HEADER):
        raise Undecodable(record, f"is not signed with a key of {setting}: another program wrote it", code="unsigned")
    type = record.headers.get("ce_type", "")
    if is_newer(type, f"dev.{record.topic}"):
        reason = f"is {type}, from a newer Weir than this, which reads {record.topic}: upgrade readers before writers"
        raise Undecodable(record, reason, code=NEWER_VERSION)
    try:
        is_large = len(record.value) > LARGE_BYTES
        message = read_json(model, record.value) if is_large else model.model_validate_json(record.value)
    except ValidationError as error:
        field, reason = InvalidDocument.of(error, root="").problems[0]
        raise Undecodable(record, reason, field or None) from None
    return Decoded(message, record.headers, record)


def version_rank(type: str) -> tuple[int, int, int] | None:
    """Return the rank of a type's version in Kubernetes' order (v1alpha1, v1beta2, v1, v2alpha1); None if it is no type
    of Weir."""
    found = _TYPE.fullmatch(type)
    if found is None:
        return None
    return int(found[1]), _STAGES[found[2]], int(found[3] or 0)


def is_newer(type: str, own: str) -> bool:
    """Return whether `type` has a later version than the type `own`.

    Within a version only optional fields are added, which a reader ignores; another version is another type.
    """
    if type == own:
        return False  # every message, except during an upgrade
    theirs, ours = version_rank(type), version_rank(own)
    return theirs is not None and ours is not None and theirs > ours


def is_tombstone(record: Record) -> bool:
    """Return whether a record deletes its key: nothing to read, and nothing wrong."""
    return record.value is None and record.topic in _COMPACTED


def new_traceparent(id: UUID) -> str:
    """Start a trace: its trace id is the message's id."""
    return f"00-{id.hex}-{id.hex[16:]}-01"


def child_traceparent(parent: str | None, id: UUID) -> str:
    """Continue a trace with the span `id`; a missing or malformed parent starts a new one."""
    parts = (parent or "").split("-")
    if len(parts) != 4 or not _TRACE_ID.fullmatch(parts[1]):
        return new_traceparent(id)
    return f"00-{parts[1]}-{id.hex[16:]}-01"
