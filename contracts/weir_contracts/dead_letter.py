"""Unreadable messages, with the reason."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from .base import Code, Count, Message, Timestamp


class DeadLetter(Message):
    """An unreadable message, with enough to find it, read it and send it again."""

    id: UUID
    at: Timestamp
    service: Annotated[str, Field(max_length=100)]
    topic: Annotated[str, Field(max_length=249)]
    partition: Count
    offset: Count
    key: Annotated[str | None, Field(max_length=1000)] = None
    type: Annotated[str | None, Field(max_length=200)] = None
    """The message's CloudEvents type; None: it had none."""
    code: Code | None = None
    """Why it could not be read, such as `newer-version`; None: an earlier version of Weir wrote the dead letter."""
    reason: Annotated[str, Field(max_length=2000)]
    field: Annotated[str | None, Field(max_length=500)] = None
    """The field at fault, as a dotted path."""
    value_base64: Annotated[str | None, Field(max_length=90_000)] = None
    """The message's first 64 KiB; None: it had no value."""
    value_bytes: Count | None = None
    """Its whole size."""
