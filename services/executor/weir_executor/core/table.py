"""Events of an action, and the table of legal transitions; every other one raises `IllegalMove`.

Invariants: an action changes its phase in `move` only, each move adds 1 to its version, and nothing follows a terminal
phase.
"""

from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from weir_contracts import (
    MAX_SENTENCE,
    TERMINAL,
    ActionEnding,
    ActionState,
    ManagerChange,
    Phase,
    Resubmission,
    bounded,
    following,
)

EventName = Literal[
    "admitted",
    "resumed",
    "recorded",
    "short-of-managers",
    "brought",
    "prepared",
    "to-stop",
    "stopping",
    "stopped",
    "given-up",
    "outdated",
    "lost",
    "accepted",
    "found-requested",
    "rejected",
    "unpublished",
    "unreachable",
    "waiting",
    "evicted",
    "running",
    "settled",
    "given-back",
    "healthy",
    "superseded",
    "not-running",
    "below-requested",
    "restart-loop",
    "worse",
    "contested",
    "gone",
    "restored",
    "late",
    "stuck",
]


@dataclass(frozen=True)
class Event:
    """An event that changes phase, code and sentence only. The code defaults to the name."""

    name: EventName
    sentence: str
    _: KW_ONLY
    code: str = ""


@dataclass(frozen=True)
class TakenOver(Event):
    """This process continues another one's intent."""

    attempt_id: UUID


@dataclass(frozen=True)
class Lost(Event):
    """Knowledge stores another executor's action."""

    rival: ActionState | None


@dataclass(frozen=True)
class Timed(Event):
    """The next phase has a deadline."""

    deadline_at: datetime


@dataclass(frozen=True)
class RequestAccepted(Timed):
    """The engine has the request since `at`."""

    at: datetime


@dataclass(frozen=True)
class Running(Timed):
    """The wanted parallelism runs since `at`."""

    at: datetime


@dataclass(frozen=True)
class ManagersChange(Timed):
    """The number of TaskManagers changes before the request, or after it runs."""

    change: ManagerChange


@dataclass(frozen=True)
class ManagersBrought(Timed):
    """The target has the request for TaskManagers since `at`."""

    at: datetime


@dataclass(frozen=True)
class Prepared(Timed):
    """All TaskManagers that the request needs have registered their slots by `at`."""

    at: datetime


@dataclass(frozen=True)
class JobStop(Timed):
    """The job is stopped, and run again, as `resubmission` says."""

    resubmission: Resubmission


@dataclass(frozen=True)
class Ending(Timed):
    """The action ends so, once its TaskManagers are released."""

    ending: ActionEnding


LEGAL: dict[tuple[Phase | None, EventName], Phase] = {
    # None: no action yet, or the last one has ended
    (None, "admitted"): "intended",
    (None, "worse"): "rolling-back",  # a warm window came after `verified`
    # recorded as an intent, nothing done
    ("intended", "resumed"): "intended",  # another process goes on: same intent, its own attempt id
    ("intended", "recorded"): "applying",
    ("intended", "short-of-managers"): "preparing",
    ("intended", "to-stop"): "preparing",
    ("intended", "outdated"): "refused",
    ("intended", "lost"): "refused",
    ("intended", "rejected"): "refused",  # knowledge does not take it
    ("intended", "unpublished"): "refused",
    # TaskManagers that the request needs are on their way, or the job is being stopped
    ("preparing", "brought"): "preparing",
    ("preparing", "waiting"): "preparing",  # they do not start, for a reason worth reporting
    ("preparing", "prepared"): "applying",
    ("preparing", "stopping"): "preparing",
    ("preparing", "stopped"): "applying",
    ("preparing", "given-up"): "releasing",  # what was brought is given back
    ("preparing", "outdated"): "failed",  # nothing was brought yet, here and below
    ("preparing", "rejected"): "failed",
    ("preparing", "late"): "failed",
    ("preparing", "unreachable"): "failed",
    ("preparing", "unpublished"): "failed",
    ("preparing", "contested"): "failed",
    ("preparing", "gone"): "failed",
    # the request is on its way
    ("applying", "accepted"): "verifying",
    ("applying", "found-requested"): "verifying",  # the answer was lost, the request was not
    ("applying", "outdated"): "failed",  # the plan expired or the policy changed before the request
    ("applying", "rejected"): "failed",
    ("applying", "unreachable"): "failed",
    ("applying", "unpublished"): "failed",  # the brokers refuse its outcomes for good, so no replica could go on
    ("applying", "contested"): "failed",
    ("applying", "gone"): "failed",
    ("applying", "given-up"): "releasing",
    ("applying", "not-running"): "rolling-back",  # a stopped job is started again in any case
    ("applying", "waiting"): "applying",  # its run is not answered, here and while rolling back
    # the engine has it: wait until it runs, then watch it settle
    ("verifying", "waiting"): "verifying",  # requested instances do not run yet, for a reason worth reporting
    ("verifying", "evicted"): "verifying",  # members of a group whose instances have ended
    ("verifying", "running"): "verifying",
    ("verifying", "healthy"): "verified",
    ("verifying", "settled"): "releasing",  # it is healthy, and needs fewer TaskManagers than there are
    ("verifying", "superseded"): "superseded",
    ("verifying", "not-running"): "rolling-back",
    ("verifying", "below-requested"): "rolling-back",
    ("verifying", "restart-loop"): "rolling-back",
    ("verifying", "worse"): "rolling-back",
    ("verifying", "contested"): "failed",
    ("verifying", "stuck"): "failed",  # a restarted instance does not run: there is nothing to go back to
    ("verifying", "unreachable"): "failed",
    ("verifying", "unpublished"): "failed",
    ("verifying", "gone"): "failed",
    # TaskManagers that the job does not need go; those that cannot are kept
    ("releasing", "healthy"): "verified",
    ("releasing", "restored"): "rolled-back",
    ("releasing", "given-back"): "failed",
    ("releasing", "superseded"): "superseded",
    ("releasing", "not-running"): "rolling-back",
    ("releasing", "contested"): "failed",
    ("releasing", "unreachable"): "failed",
    ("releasing", "unpublished"): "failed",
    ("releasing", "gone"): "failed",
    # back to what was requested before
    ("rolling-back", "accepted"): "rolling-back",
    ("rolling-back", "found-requested"): "rolling-back",
    ("rolling-back", "waiting"): "rolling-back",
    ("rolling-back", "evicted"): "rolling-back",
    ("rolling-back", "restored"): "rolled-back",
    ("rolling-back", "settled"): "releasing",  # it is restored, and what was brought for it may go
    ("rolling-back", "rejected"): "failed",
    ("rolling-back", "unreachable"): "failed",
    ("rolling-back", "unpublished"): "failed",
    ("rolling-back", "contested"): "failed",
    ("rolling-back", "gone"): "failed",
    ("rolling-back", "stuck"): "failed",
}

ROLLBACK_EVENTS: frozenset[EventName] = frozenset({"not-running", "below-requested", "restart-loop", "worse"})
"""The only reasons to roll back. A growing lag is none, since the planner plans again."""


class IllegalMove(Exception):
    """Bug: an event that is illegal in the action's phase."""


def move(action: ActionState, event: Event, now: datetime) -> ActionState:
    """Return the action after the event. Raises `IllegalMove`."""
    phase = LEGAL.get((action.phase, event.name))
    if phase is None:
        raise IllegalMove(f"{action.application}: {event.name!r} in phase {action.phase!r}")
    fields = {
        "phase": phase,
        "version": following(action.version),
        "checked_at": now,
        "finished_at": now if phase in TERMINAL else None,
        "deadline_at": None if phase in TERMINAL else action.deadline_at,
        "code": event.code or event.name,
        "sentence": bounded(event.sentence, MAX_SENTENCE),
    }
    return action.model_copy(update=fields | _data_of(event, action.phase) | _managers_of(event, action.managers))


def _managers_of(event: Event, change: ManagerChange | None) -> dict[str, Any]:
    """Return what the event says of the action's TaskManagers."""
    match event:
        case ManagersChange():
            return {"managers": event.change}
        case ManagersBrought() if change is not None:
            return {"managers": change.model_copy(update={"brought_at": event.at})}
        case Prepared() if change is not None:
            return {"managers": change.model_copy(update={"ready_at": event.at})}
        case Ending() if change is not None:
            return {"managers": change.model_copy(update={"ending": event.ending})}
        case _:
            return {}


def _data_of(event: Event, phase: Phase) -> dict[str, Any]:
    """Return the fields of an action that the event's own data set."""
    match event:
        case TakenOver():
            return {"attempt_id": event.attempt_id}
        case JobStop():
            return {"resubmission": event.resubmission, "deadline_at": event.deadline_at}
        case RequestAccepted():
            field = "rollback_requested_at" if phase == "rolling-back" else "requested_at"
            return {field: event.at, "deadline_at": event.deadline_at}
        case Running():
            return {"running_at": event.at, "deadline_at": event.deadline_at}
        case Timed():
            return {"deadline_at": event.deadline_at}
        case _:
            return {}
