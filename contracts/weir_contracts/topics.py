"""Topics of the loop, and the dead letter. Keys are application ids (of planners: names); all topics have the same
number of partitions, but that of changes has one: it orders all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from pydantic import Field

from .analysis import Analysis
from .base import VERSION, Code, Count, Message, Timestamp
from .change import ChangeRecord
from .observation import Observation
from .outcome import ActionState, Outcome
from .planning import Plan
from .plugins import PlannerRegistration
from .policy import ScalingPolicy


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
    code: Code
    """Reason for programs, such as `newer-version`."""
    reason: Annotated[str, Field(max_length=2000)]
    """Reason for people."""
    field: Annotated[str | None, Field(max_length=500)] = None
    """Dotted path of the invalid field. None: no single field."""
    value_base64: Annotated[str | None, Field(max_length=90_000)] = None
    """First 64 KiB of the message, in base64. None: it had no value."""
    value_bytes: Count | None = None
    """Size of the message in bytes. None: it had no value."""
    suppressed: Count = 0
    """Further messages that this process of the service could not read since its last dead letter, and that have no dead letter because
    of the limit a minute."""


_HOUR_MS = 3_600_000

# Without small segments a compacted topic keeps everything for a week: the active segment is never compacted.
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "60000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(24 * _HOUR_MS),
}
_GIBIBYTE = str(2**30)
"""Of a partition: however large and many messages are, they do not fill the brokers' disks."""
_COMPACTED_AND_TIMED = {
    **_COMPACTED,
    "cleanup.policy": "compact,delete",
    "retention.ms": str(7 * 24 * _HOUR_MS),
    "retention.bytes": _GIBIBYTE,
}


@dataclass(frozen=True)
class Topic:
    """Topic: its name, the contract of its values, and its settings at the broker."""

    name: str
    contract: type[Message] | type[ScalingPolicy]
    type: str
    """CloudEvents type in the headers of each message."""
    configs: Mapping[str, str]
    partitions: int | None = None
    """Number of partitions. None: the setting's, one number for all others."""

    @property
    def is_compacted(self) -> bool:
        """Whether a record without a value (a tombstone) deletes its key."""
        return "compact" in self.configs["cleanup.policy"]


def _topic(
    plural: str,
    contract: type[Message] | type[ScalingPolicy],
    configs: Mapping[str, str],
    partitions: int | None = None,
) -> Topic:
    return Topic(f"weir.{plural}.{VERSION}", contract, f"dev.weir.{plural}.{VERSION}", configs, partitions)


POLICIES = _topic("policies", ScalingPolicy, _COMPACTED)
_TWO_HOURS = {
    "cleanup.policy": "delete",
    "retention.ms": str(2 * _HOUR_MS),
    "retention.bytes": _GIBIBYTE,
    "segment.bytes": "67108864",
}
# The brokers' time, whatever the clock of the process that requests.
CHANGES = _topic("changes", ChangeRecord, {**_TWO_HOURS, "message.timestamp.type": "LogAppendTime"}, partitions=1)
"""Requests to write policies and actions, in the order in which they are decided, and the answers."""
ACTIONS = _topic("actions", ActionState, _COMPACTED)
"""The newest action of each application, as it was decided."""
OBSERVATIONS = _topic("observations", Observation, _TWO_HOURS)
ANALYSES = _topic("analyses", Analysis, _COMPACTED_AND_TIMED)
PLANS = _topic("plans", Plan, _COMPACTED_AND_TIMED)
OUTCOMES = _topic("outcomes", Outcome, _COMPACTED_AND_TIMED)
DEAD_LETTERS = _topic(
    "dead-letters",
    DeadLetter,
    {
        "cleanup.policy": "delete",
        "retention.ms": str(7 * 24 * _HOUR_MS),
        "retention.bytes": str(2**28),
        "segment.bytes": "67108864",
    },
)
PLANNERS = _topic("planners", PlannerRegistration, _COMPACTED)
"""Registered planners; a tombstone removes one. Every replica of the planner service reads all records."""

TOPICS: tuple[Topic, ...] = (
    CHANGES,
    POLICIES,
    ACTIONS,
    OBSERVATIONS,
    ANALYSES,
    PLANS,
    OUTCOMES,
    DEAD_LETTERS,
    PLANNERS,
)
