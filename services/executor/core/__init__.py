"""The executor's decisions as pure functions: no clock, network, thread or framework.

`table` holds the legal moves, `gate` admits or refuses a plan, `steps` moves an action on, `history` records each transition
as an outcome.
"""

from .capacity import CapacityComparison, judge
from .fleet import Fleet, Recommendation, recommendation_after
from .gate import Context, admit, is_for_us, precheck, still_wanted
from .history import (
    ActionHistory,
    CompareAndSwap,
    Transition,
    expected,
    recall,
    record_refusal,
    record_transition,
    resolve_conflict,
    taken_over,
)
from .messages import changes, vector
from .observed import (
    Accepted,
    Answer,
    Conflict,
    Instruction,
    Observed,
    PolicyReading,
    Record,
    Recorded,
    Refusal,
    Rejected,
    Request,
    Snapshot,
    Step,
    TargetChanged,
    TriggerCheckpoint,
    Unanswered,
    contested,
)
from .rules import Rules
from .steps import is_watched, late_rollback, next_step, resume, supersede
from .table import LEGAL, Event, EventName, move

__all__ = [
    "LEGAL",
    "Accepted",
    "ActionHistory",
    "Answer",
    "CapacityComparison",
    "CompareAndSwap",
    "Conflict",
    "Context",
    "Event",
    "EventName",
    "Fleet",
    "Instruction",
    "Observed",
    "PolicyReading",
    "Recommendation",
    "Record",
    "Recorded",
    "Refusal",
    "Rejected",
    "Request",
    "Rules",
    "Snapshot",
    "Step",
    "TargetChanged",
    "Transition",
    "TriggerCheckpoint",
    "Unanswered",
    "admit",
    "changes",
    "contested",
    "expected",
    "is_for_us",
    "is_watched",
    "judge",
    "late_rollback",
    "move",
    "next_step",
    "precheck",
    "recall",
    "recommendation_after",
    "record_refusal",
    "record_transition",
    "resolve_conflict",
    "resume",
    "still_wanted",
    "supersede",
    "taken_over",
    "vector",
]
