"""What following the plans would have cost, on hand-made analyses and plans: slots and lag worked out by hand."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.knowledge.builders import at
from tests.unit.planner.build import analysis, point, policy, request
from weir_contracts import Analysis, Plan, PlanReply
from weir_knowledge.spend import Advice, advice_view, advised
from weir_planner.core.decide import make_plan

KEPT: dict[str, Any] = {"code": "objective-held", "sentence": "lag stays at 0.0 s or less"}
CURVE = [point(n, 500.0 * n) for n in (1, 2, 4)]


def seen(cycle: int, work: int = 4, *, arrivals: float = 800.0, mode: str = "advise", **changes: Any) -> Analysis:
    """An analysis every 5 s; a subtask of `work` does 500 records/s."""
    the_policy = policy(mode=mode, behavior={"cooldown": "60s", "scaleDown": {"stabilization": "0s"}})
    return analysis(arrivals=arrivals, work=work, at=at(cycle), the_policy=the_policy, seen=CURVE, **changes)


def planned(of: Analysis, wanted: int | None, proposed: int | None = None, **reply: Any) -> Plan:
    """The plan of an analysis: `work` at `wanted`, after guards have limited what was `proposed`; None: a hold."""
    told = PlanReply(kind="hold", **{**KEPT, **reply})
    plan = make_plan(request(of, now=of.observed_at), told, planner="rate", created_at=of.observed_at)
    if wanted is None:
        return plan
    vector = {**plan.current, "work": wanted}
    action = {"kind": "scale", "parallelism": vector}
    changes = {"kind": "scale", "action": action, "proposed": {**vector, "work": proposed or wanted}}
    return Plan.model_validate({**plan.model_dump(), **changes})


def followed(analyses: Sequence[Analysis], plans: Sequence[Plan]) -> Advice | None:
    """Return the sums where each plan arrives after its analysis and before the next."""
    found: Advice | None = None
    for i, each in enumerate(analyses):
        found = advised(found, each, plans[i - 1] if i else None)
    return found


def test_a_smaller_parallelism_costs_less_and_its_restart_is_lag() -> None:
    """Four slots run, two would do: from the second analysis on 2 of 4, and 4 s of restart that are worked off."""
    analyses = [seen(n) for n in range(81)]
    found = followed(analyses, [planned(each, 2) for each in analyses])
    view = advice_view(found)
    assert found is not None
    assert view is not None
    assert (found.seconds, found.running_slot_seconds, found.followed_slot_seconds) == (395.0, 1580.0, 790.0)
    assert (view.saved_share, view.rescales, view.late_seconds, view.running_late_seconds) == (0.5, 1, 0, 0)
    assert view.sentence == (
        "following the plans for 0.1 h: 0.2 slot-hours instead of 0.4 (50% less), late 0 s instead of 0 s, 1 rescale (predicted)"
    )


def test_a_saving_of_nothing_is_none() -> None:
    """Plans that keep the four slots are as many slot-hours, not `0% less`."""
    analyses = [seen(n) for n in range(81)]
    view = advice_view(followed(analyses, [planned(each, 4) for each in analyses]))
    assert view is not None
    assert "0.4 slot-hours instead of 0.4 (as many)" in view.sentence


def test_a_parallelism_that_does_not_do_is_late() -> None:
    """One subtask for 800 records/s takes in 500: lag grows by 0.375 s a second, and is above 30 s in the second minute."""
    analyses = [seen(n) for n in range(81)]
    found = followed(analyses, [planned(each, 1) for each in analyses])
    assert found is not None
    assert found.lag_seconds == pytest.approx(4 + 395 * 0.375, rel=0.03)
    assert found.followed_late_seconds == pytest.approx(395 - (30 - 4) / 0.375, rel=0.03)
    assert found.running_late_seconds == 0


def test_a_step_that_guards_allow_is_taken_once_a_cooldown() -> None:
    """The planner proposes 1 of 4, the guards allow 3: after 60 s it would be 2, after 120 s 1."""
    analyses = [seen(n, arrivals=300.0) for n in range(81)]
    found = followed(analyses, [planned(each, 3, proposed=1) for each in analyses])
    assert found is not None
    assert found.rescales == 3
    assert found.followed["work"] == 1
    assert found.followed_slot_seconds == 60 * 3 + 60 * 2 + 275


def test_a_hold_that_recommends_nothing_changes_nothing() -> None:
    """An unknown metric keeps what is followed; any other hold is followed back to what runs."""
    analyses = [seen(n) for n in range(4)]
    plans = [planned(analyses[0], 2), planned(analyses[1], None, code="metric-missing"), planned(analyses[2], None)]
    kept = followed(analyses[:3], plans)
    back = followed(analyses, plans)
    assert kept is not None
    assert back is not None
    assert (kept.followed["work"], back.followed["work"]) == (2, 4)


def test_what_is_not_known_is_not_counted() -> None:
    """A gap in the analyses, an unknown deployment, a pause; acting ends the sums."""
    first, second = seen(0), seen(1)
    begun = followed([first, second], [planned(first, 2)])
    assert begun is not None
    assert begun.seconds == 0
    plan = planned(second, 2)
    for later in (seen(40), seen(2, deployment=None), seen(2, mode="paused")):
        after = advised(begun, later, plan)
        assert after is not None
        assert after.seconds == 0
    counted = advised(begun, seen(2), plan)
    assert counted is not None
    assert counted.seconds == 5
    assert advised(begun, seen(2, mode="act"), plan) is None
    assert advice_view(counted) is None, "five seconds are too little to show"
