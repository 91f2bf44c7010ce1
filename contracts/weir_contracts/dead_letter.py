"""Messages that could not be read, with the reason."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from .base import Code, Count, Message, Timestamp


class DeadLetter(Message):
    """Message that a service could not read, with its place, its content and the reason."""

    id: UUID
    at: Timestamp
    """Time at which the service read the message."""
    service: Annotated[str, Field(max_length=100)]
    """Name of the service that could not read the message."""
    topic: Annotated[str, Field(max_length=249)]
    partition: Count
    offset: Count
    key: Annotated[str | None, Field(max_length=1000)] = None
    """Key of the message. None: it had none."""
    type: Annotated[str | None, Field(max_length=200)] = None
    """CloudEvents type of the message. None: it had none."""
    code: Code | None = None
    """Reason for programs, such as `newer-version`. None: written by an earlier version of Weir."""
    reason: Annotated[str, Field(max_length=2000)]
    """Reason for people."""
    field: Annotated[str | None, Field(max_length=500)] = None
    """Dotted path of the invalid field. None: no single field."""
    value_base64: Annotated[str | None, Field(max_length=90_000)] = None
    """First 64 KiB of the message, in base64. None: it had no value."""
    value_bytes: Count | None = None
    """Size of the message in bytes. None: it had no value."""
