"""Who holds the intent when knowledge answers a claim with a conflict."""

from dataclasses import dataclass

from weir_contracts import ActionState

from .facts import Conflict, Recorded


@dataclass(frozen=True)
class Claim:
    """Try again against this version (0: nothing there)."""

    version: int


def claim(action: ActionState, current: ActionState | None, known: ActionState | None) -> Recorded | Conflict | Claim:
    """Read a conflict. `known` is the newest action of the application in the outcome topic before this one.

    My own attempt id there means that an earlier try came through and only its answer was lost. Knowledge may lag behind
    the topic, or have been emptied: then what is there is no rival, only old.
    """
    if current is None:
        return Claim(0)
    is_older = current.version < action.version
    same_action = current.id == action.id
    if same_action and current.attempt_id == action.attempt_id and not is_older:
        return Recorded()
    known_to_have_moved_on = known is not None and current.id == known.id
    if is_older and (current.terminal or same_action or known_to_have_moved_on):
        return Claim(current.version)
    return Conflict(current)
