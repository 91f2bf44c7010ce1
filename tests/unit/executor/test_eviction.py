"""Members of a group whose process has ended: in which phases they are evicted, and how it is reported."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.unit.executor.builders import RULES, WANTED, action, after, observed, restarting, snapshot
from weir_contracts import Phase
from weir_engines.driver import Accepted, DepartedMember, Evicted, Snapshot
from weir_executor.core.observed import Evict, Step
from weir_executor.core.steps import next_step

GONE = (DepartedMember("orders-3-1#1", "orders-3"), DepartedMember("orders-3-2#1", "orders-3"))


def waiting(found: Snapshot | None = None) -> Snapshot:
    """The group waits for two members whose instance has ended."""
    return replace(found or snapshot(WANTED, all_running=False), departed=GONE)


def rolling_back(**changes: Any) -> Any:
    return action("rolling-back", rollback_requested_at=after(2), **changes)


@pytest.mark.parametrize("the_action", [action("verifying"), rolling_back()], ids=["verifying", "rolling back"])
def test_they_are_evicted_and_the_eviction_is_reported(the_action: Any) -> None:
    """First the instruction, then, once the coordinator removed them, the outcome; the phase and its deadline stay."""
    found = waiting() if the_action.phase == "verifying" else waiting(restarting())
    first = next_step(the_action, observed(found), after(5), RULES)
    assert (first.event, first.instruction) == (None, Evict(GONE))
    made = next_step(the_action, observed(found, answer=Evicted(GONE[:1])), after(5), RULES)
    assert (made.name, made.instruction, made.action.phase) == ("evicted", None, the_action.phase)
    assert made.action.sentence == "evicted 1 member of orders-3, which has ended"
    assert made.action.deadline_at == the_action.deadline_at


@pytest.mark.parametrize("phase", get_args(Phase))
def test_no_other_phase_evicts(phase: Phase) -> None:
    """Before the request nothing has changed, and after the end no request waits."""
    made = next_step(action(phase), observed(waiting()), after(5), RULES)
    if phase not in ("verifying", "rolling-back"):
        assert not isinstance(made.instruction, Evict)
        with pytest.raises(ValueError, match="an eviction in phase"):
            Step(action(phase), instruction=Evict(GONE))


@pytest.mark.parametrize("answer", [None, Accepted(after(5))])
def test_past_the_deadline_nothing_is_evicted(answer: Any) -> None:
    """The action is rolled back instead, however often an eviction failed."""
    late = action("verifying", deadline_at=after(4), checked_at=after(4))
    made = next_step(late, observed(waiting(), answer=answer), after(5), RULES)
    assert made.name == "not-running" and not isinstance(made.instruction, Evict)
