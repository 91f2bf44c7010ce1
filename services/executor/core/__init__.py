"""The executor's decisions as pure functions: no clock, network, thread or framework.

`table` holds the legal moves, `gate` admits or refuses a plan, `steps` moves an action on from its `situation`, `history`
records each transition as an outcome.
"""

from .messages import NO_GROUP, changes
from .observed import (
    Accepted,
    Conflict,
    DepartedMember,
    PolicyReading,
    Refusal,
    Rejected,
    Snapshot,
    TargetChanged,
    Unanswered,
    contested,
)
from .rules import Rules

__all__ = [
    "NO_GROUP",
    "Accepted",
    "Conflict",
    "DepartedMember",
    "PolicyReading",
    "Refusal",
    "Rejected",
    "Rules",
    "Snapshot",
    "TargetChanged",
    "Unanswered",
    "changes",
    "contested",
]
