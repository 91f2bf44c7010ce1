"""What the executor decides, as plain functions: no clock, network, thread or framework.

`table` holds the legal moves, `gate` lets a plan in or refuses it, `steps` moves an action on, `accounts` turns every move
into an outcome and remembers it.
"""

from .accounts import Account, Memory, account, expected, recall, refuse, taken_over
from .capacity import Verdict, judge
from .facts import (
    Accepted,
    Answer,
    Conflict,
    Instruction,
    Nudge,
    Observed,
    PolicyReading,
    Record,
    Recorded,
    Rejected,
    Request,
    Snapshot,
    Step,
    Unanswered,
)
from .fleet import Fleet, Wish, wish_after
from .gate import Context, admit, cluster_of, glance, is_for_us, still_wanted
from .recording import Claim, claim
from .refusal import Refusal
from .rules import Rules
from .steps import is_watched, next_step, resume, second_thoughts, supersede
from .table import LEGAL, Event, move

__all__ = [
    "LEGAL",
    "Accepted",
    "Account",
    "Answer",
    "Claim",
    "Conflict",
    "Context",
    "Event",
    "Fleet",
    "Instruction",
    "Memory",
    "Nudge",
    "Observed",
    "PolicyReading",
    "Record",
    "Recorded",
    "Refusal",
    "Rejected",
    "Request",
    "Rules",
    "Snapshot",
    "Step",
    "Unanswered",
    "Verdict",
    "Wish",
    "account",
    "admit",
    "claim",
    "cluster_of",
    "expected",
    "glance",
    "is_for_us",
    "is_watched",
    "judge",
    "move",
    "next_step",
    "recall",
    "refuse",
    "resume",
    "second_thoughts",
    "still_wanted",
    "supersede",
    "taken_over",
    "wish_after",
]
