"""Table of the legal transitions of an action; every other one raises `IllegalMove`."""

from datetime import datetime
from typing import Any, Literal

from weir_contracts import TERMINAL, ActionState, Phase

from .messages import short

Event = Literal[
    "admitted",
    "resumed",
    "recorded",
    "outdated",
    "lost",
    "accepted",
    "found-requested",
    "rejected",
    "unreachable",
    "running",
    "healthy",
    "superseded",
    "not-running",
    "below-requested",
    "restart-loop",
    "worse",
    "contested",
    "gone",
    "restored",
    "stuck",
]

LEGAL: dict[tuple[Phase | None, Event], Phase] = {
    # None: no action yet, or the last one has ended
    (None, "admitted"): "intended",
    (None, "worse"): "rolling-back",  # a warm window came after `verified`
    # recorded as an intent, nothing done
    ("intended", "resumed"): "intended",  # another process goes on: same intent, its own attempt id
    ("intended", "recorded"): "applying",
    ("intended", "outdated"): "refused",
    ("intended", "lost"): "refused",
    # the request is on its way
    ("applying", "accepted"): "verifying",
    ("applying", "found-requested"): "verifying",  # the answer was lost, the request was not
    ("applying", "outdated"): "failed",  # the plan expired or the policy changed before the request
    ("applying", "rejected"): "failed",
    ("applying", "unreachable"): "failed",
    ("applying", "contested"): "failed",
    ("applying", "gone"): "failed",
    # the engine has it: wait until it runs, then watch it settle
    ("verifying", "running"): "verifying",
    ("verifying", "healthy"): "verified",
    ("verifying", "superseded"): "superseded",
    ("verifying", "not-running"): "rolling-back",
    ("verifying", "below-requested"): "rolling-back",
    ("verifying", "restart-loop"): "rolling-back",
    ("verifying", "worse"): "rolling-back",
    ("verifying", "contested"): "failed",
    ("verifying", "unreachable"): "failed",
    ("verifying", "gone"): "failed",
    # back to what was requested before
    ("rolling-back", "accepted"): "rolling-back",
    ("rolling-back", "found-requested"): "rolling-back",
    ("rolling-back", "restored"): "rolled-back",
    ("rolling-back", "rejected"): "failed",
    ("rolling-back", "unreachable"): "failed",
    ("rolling-back", "contested"): "failed",
    ("rolling-back", "gone"): "failed",
    ("rolling-back", "stuck"): "failed",
}

ROLLBACK_EVENTS: frozenset[Event] = frozenset({"not-running", "below-requested", "restart-loop", "worse"})
"""The only reasons to roll back. A growing lag is none, since the planner plans again."""


class IllegalMove(Exception):
    """Bug: an event that is illegal in the action's phase."""


def move(
    action: ActionState, event: Event, now: datetime, *, sentence: str, code: str = "", **changes: Any
) -> ActionState:
    """Return `action` after `event` with the next version; the code defaults to the event's name."""
    phase = LEGAL.get((action.phase, event))
    if phase is None:
        raise IllegalMove(f"{action.application}: {event!r} in phase {action.phase!r}")
    return action.model_copy(
        update={
            "phase": phase,
            "version": action.version + 1,
            "checked_at": now,
            "finished_at": now if phase in TERMINAL else None,
            "code": code or event,
            "sentence": short(sentence),
            **changes,
        }
    )
