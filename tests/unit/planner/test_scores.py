"""Scores in retrospect: late seconds, slot-seconds and restarts of planners whose plans were not executed."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.planner.build import SOURCE, WORK, action, after, analysis, outcome, policy, scale
from tests.unit.planner.test_candidates import Asks, hold, planned
from weir_contracts import Analysis, Plan, PlanReply, Score
from weir_planner.core.decide import TIMEOUT
from weir_planner.request_cache import RequestCache

EIGHT = {SOURCE: 1, WORK: 8}
SPEC: dict[str, Any] = {
    "planner": {"name": "own"},
    "shadows": [{"name": "large"}],
    "objective": {"maxLag": "2s"},
    "interval": "2s",
}


class Story:
    """Cycles of one application, each with the state that the last plan left."""

    def __init__(self, **replies: PlanReply) -> None:
        self.cache, self.asks = RequestCache(30, 20), Asks(**{"own": hold(), "large": scale(EIGHT), **replies})
        self.plan: Plan | None = None

    async def cycle(self, seconds: float, spec: Mapping[str, Any] = SPEC, **of: Any) -> dict[str, Score | None]:
        """Plan `seconds` after noon, and return the scores by label."""
        seen: Analysis = analysis(at=after(seconds), the_policy=policy(**spec), **{"arrivals": 1500, "work": 2, **of})
        self.plan, listed = await planned(self.asks, self.cache.request(seen, seen.observed_at))
        self.cache.planned(self.plan, seen)
        return {label: each.score for label, each in listed.items()}

    async def cycles(self, *seconds: float, **of: Any) -> dict[str, Score]:
        """Plan at several times, and return the last scores, which are known."""
        found: dict[str, Score | None] = {}
        for each in seconds:
            found = await self.cycle(each, **of)
        return {label: score for label, score in found.items() if score is not None}


async def test_a_score_is_what_the_arrivals_that_came_would_have_done() -> None:
    """Two subtasks do 1,000 records/s of the 1,500 that arrive. After t seconds the oldest waiting record arrived at 2/3 t,
    so its age is t/3: above the objective of 2 s from 6 s on, which is 6 s of 12. Two slots for 12 s are 24 slot-seconds.
    The shadow's eight subtasks cost a restart once, and 96."""
    scores = await Story().cycles(*range(0, 14, 2))
    own, large = scores["own"], scores["large"]
    assert own.late_seconds == pytest.approx(6.0, abs=0.5)
    assert (own.seconds, own.slot_seconds, own.restarts, own.since) == (12.0, 24.0, 0, after(0))
    assert (large.seconds, large.slot_seconds, large.restarts, large.unanswered) == (12.0, 96.0, 1, 0)


async def test_a_restart_of_a_shadow_makes_it_late() -> None:
    """It is down for 4 s, so that records wait for longer than 2 s; eight subtasks work them off. The other shadow proposes
    what runs: it is never late with 800 records/s, and needs no restart."""
    spec = {**SPEC, "shadows": [{"name": "large"}, {"name": "same"}]}
    scores = await Story(same=scale({SOURCE: 1, WORK: 2})).cycles(*range(0, 32, 2), spec=spec, arrivals=800)
    assert 2.0 <= scores["large"].late_seconds < 15.0
    assert (scores["same"].late_seconds, scores["same"].restarts) == (0.0, 0)


async def test_a_gap_is_not_scored() -> None:
    """A minute without a cycle: nothing is known of it, and afterwards everything goes on from the real application."""
    story = Story()
    before = await story.cycles(0, 2)
    behind = await story.cycles(62)
    assert behind["own"] == before["own"]
    assert behind["large"].seconds == before["large"].seconds == 2.0
    assert (await story.cycles(64))["large"].seconds == 4.0


async def test_unknown_arrivals_are_not_scored() -> None:
    """They can be judged by no planner; the score shown is that of before."""
    story = Story()
    before = await story.cycles(0, 2)
    assert await story.cycles(4, arrivals=None) == before


async def test_while_the_policy_is_paused_scores_stand_still() -> None:
    """No planner is asked, so the plan lists none; its state keeps the scores."""
    story = Story()
    before = await story.cycles(0, 2)
    assert await story.cycles(4, spec={**SPEC, "mode": "paused"}) == {}
    assert story.plan is not None
    assert [course.score for course in story.plan.state.courses] == list(before.values())


@pytest.mark.parametrize(
    ("changed", "begun_again"),
    [
        ({"shadows": [{"name": "large", "parameters": {"level": 2}}]}, {"large"}),
        ({"objective": {"maxLag": "20s"}}, {"own", "large"}),
        ({"bounds": {"max": 10}}, set()),
    ],
    ids=["parameters", "objective", "bounds"],
)
async def test_a_score_is_about_parameters_and_an_objective(changed: dict[str, Any], begun_again: set[str]) -> None:
    """With others it begins again; what else the policy says may change."""
    story = Story()
    await story.cycles(0, 2, 4)
    scores = await story.cycles(6, spec={**SPEC, **changed})
    assert {label for label, score in scores.items() if score.since == after(6)} == begun_again


async def test_a_change_that_is_under_way_is_one_restart() -> None:
    """The own plan is executed: while its action runs the planner holds, at first still at two subtasks. A shadow that holds
    all the time goes where the application goes."""
    spec = {**SPEC, "shadows": [{"name": "still"}]}
    story = Story(own=scale({SOURCE: 1, WORK: 5}), still=hold())
    await story.cycle(0, spec)
    story.asks.replies["own"] = hold()
    moving = action("applying", before={SOURCE: 1, WORK: 2}, wanted={SOURCE: 1, WORK: 5})
    story.cache.happened(moving.application, outcome(moving, at=after(1)))
    assert (await story.cycles(2, spec=spec))["own"].restarts == 1
    story.cache.happened(moving.application, outcome(moving.model_copy(update={"phase": "verified"}), at=after(3)))
    scores = await story.cycles(4, 6, spec=spec, work=5)
    assert (scores["own"].restarts, scores["own"].slot_seconds) == (1, 5 * 6.0)
    assert (scores["still"].restarts, scores["still"].slot_seconds) == (1, 2 * 4.0 + 5 * 2.0)


async def test_a_planner_without_an_answer_stays_where_it_is() -> None:
    """As an application would be held: the two cycles count, with two slots."""
    scores = await Story(large=hold(TIMEOUT)).cycles(0, 2)
    assert (scores["large"].unanswered, scores["large"].restarts, scores["large"].slot_seconds) == (2, 0, 4.0)


async def test_a_utilization_objective_is_late_above_it() -> None:
    """1,500 records/s are 150 % of what two subtasks do, above the objective of 80 %; of eight they are less."""
    scores = await Story().cycles(0, 2, 4, spec={**SPEC, "objective": {"utilization": 0.8}})
    assert (scores["own"].late_seconds, scores["large"].late_seconds) == (4.0, 0.0)
