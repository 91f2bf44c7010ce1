"""From a request and a reply to a plan: ids, reasons to hold before the planner is called, state for the next plan."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import (
    NOON,
    SOURCE,
    WORK,
    action,
    after,
    analysis,
    deployment,
    known,
    operator,
    outcome,
    point,
    policy,
    recommendation,
    request,
    request_at,
    scale,
)
from weir_contracts import Plan, PlanReply, PlanRequest, PlanState, Recommendation, Slots, derive_id
from weir_planner.core.decide import coverage_problem, make_plan, plan_offline, precheck
from weir_planner.core.guards import amend
from weir_planner.core.plan_state import MAX_RECOMMENDATIONS, MIN_KEPT, condensed, max_kept
from weir_sdk.installed import UnknownPlanner, ask


def plan_of(plan_request: PlanRequest) -> PlanReply:
    """Return the reply of `rate`."""
    return ask(plan_request, "rate")


def made(reply: PlanReply, plan_request: PlanRequest, state: PlanState | None = None) -> Plan:
    plan_request = plan_request.model_copy(update={"state": state or PlanState()})
    return make_plan(plan_request, reply, planner="rate", created_at=plan_request.now)


def test_a_plan_records_its_inputs() -> None:
    """Ids of the analysis and observation, deployment, policy version, mode, the proposed and the approved vector."""
    plan_request = request(of={"arrivals": 2400})
    plan = made(scale({SOURCE: 1, WORK: 20}), plan_request)
    assert plan.id == derive_id(plan_request.analysis.id, "plan")
    assert (plan.analysis_id, plan.observation_id) == (plan_request.analysis.id, plan_request.analysis.observation_id)
    assert (plan.policy_version, plan.mode, plan.planner) == (3, "act", "rate")
    assert plan_request.deployment is not None
    assert plan.deployment == plan_request.deployment.ref()
    assert (plan.current, plan.proposed) == ({SOURCE: 1, WORK: 2}, {SOURCE: 1, WORK: 20})
    assert plan.approved == {SOURCE: 1, WORK: 12}
    assert plan.sentence.startswith(
        "work 2 → 12 (the planner proposed 20; limited by bounds): the planner wants it; lag peaks at "
    )


def test_a_replay_gives_the_same_plan() -> None:
    """The id is equal too, so that the executor acts on it once."""
    plan_request = request(of={"arrivals": 2400})
    assert plan_offline(plan_request) == plan_offline(PlanRequest.model_validate_json(plan_request.model_dump_json()))


@pytest.mark.parametrize(("interval", "seconds"), [("2s", 15), ("10s", 30)])
def test_a_plan_expires(interval: str, seconds: int) -> None:
    """After three intervals, and not before 15 s, so that the executor never acts on an old plan."""
    plan_request = request(analysis(the_policy=policy(interval=interval)))
    plan = made(scale({SOURCE: 1, WORK: 3}), plan_request)
    assert plan.expires_at == NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("plan_request", "code", "text"),
    [
        (request(analysis(the_policy=policy(mode="paused"))), "paused", "paused"),
        (request(now=after(16)), "stale", "16 s old, more than 15 s"),
        (
            request(of={"status": "unreachable", "message": "refused"}),
            "unreachable",
            "cannot be scaled: refused",
        ),
        (request(of={"status": "not_found"}), "not-found", "not found"),
        (request(of={"deployment": None}), "metric-missing", "deployment is unknown"),
        (request(of={"topology": None}), "metric-missing", "graph or deployment is unknown"),
        (request(of={"deployment": deployment({SOURCE: 1, WORK: 2}, state="CANCELED")}), "job-ended", "is CANCELED"),
        (
            request(of={"deployment": deployment({SOURCE: 1})}),
            "metric-missing",
            "parallelism of at least one operator is unknown",
        ),
    ],
)
def test_reasons_to_hold_before_the_planner_is_called(plan_request: PlanRequest, code: str, text: str) -> None:
    """Each gives a plan: a hold with the reason."""
    reply = precheck(plan_request)
    assert reply is not None
    assert (reply.kind, reply.code) == ("hold", code)
    assert text in reply.sentence
    plan = made(reply, plan_request)
    assert (plan.kind, plan.code, plan.action) == ("hold", code, None)


def test_a_fresh_reading_is_planned_for() -> None:
    """15 s old at an interval of 5 s is fresh enough; a job that is not running can be scaled too."""
    assert precheck(request(now=after(15))) is None
    assert precheck(request(of={"status": "not_running"})) is None


@pytest.mark.parametrize(
    ("vector", "text"),
    [({WORK: 3}, "misses orders"), ({SOURCE: 1, WORK: 3, "sink": 1}, "names the unknown operator sink")],
)
def test_a_reply_for_a_part_of_the_topology_is_refused(vector: dict[str, int], text: str) -> None:
    """A planner replies for the complete topology or holds."""
    plan_request = request()
    assert text in str(coverage_problem(scale(vector), plan_request))
    plan = made(scale(vector), plan_request)
    assert (plan.kind, plan.code, plan.approved) == ("hold", "invalid-reply", None)
    assert text in plan.sentence


def test_recommendations_of_the_window_are_passed_on() -> None:
    """A minute of stabilisation: of older ones only the last is kept, which shows that the window is covered."""
    slow: dict[str, Any] = {"behavior": {"scaleDown": {"stabilization": "1m"}}}
    earlier = {-120: 2, -70: 3, -50: 2, -10: 3}
    state = PlanState(recommendations=[recommendation(at, {SOURCE: 1, WORK: p}) for at, p in earlier.items()])
    plan = made(scale({SOURCE: 1, WORK: 1}), request(analysis(the_policy=policy(**slow))), state)
    assert [r.at for r in plan.state.recommendations] == [after(s) for s in (-70, -50, -10, 0)]
    assert plan.state.recommendations[-1].parallelism == {SOURCE: 1, WORK: 1}


def test_a_hold_recommends_the_current_parallelism() -> None:
    """It counts in the windows: a scale-down recommended before a hold was not recommended all the time."""
    hold = PlanReply(kind="hold", code="objective-held", sentence="all is well")
    plan = made(hold, request())
    assert [r.parallelism for r in plan.state.recommendations] == [{SOURCE: 1, WORK: 2}]


def test_a_hold_for_a_missing_metric_is_a_gap() -> None:
    """The recommendation is unknown, so the window starts again."""
    hold = PlanReply(kind="hold", code="metric-missing", sentence="unknown")
    state = PlanState(recommendations=[recommendation(-10, {SOURCE: 1, WORK: 2})])
    assert made(hold, request(), state).state.recommendations == []


def test_recommendations_of_another_graph_are_dropped() -> None:
    """The job was redeployed with another operator."""
    state = PlanState(recommendations=[recommendation(-10, {SOURCE: 1, "old": 2})])
    assert len(made(scale({SOURCE: 1, WORK: 3}), request(), state).state.recommendations) == 1


def test_the_state_is_bounded() -> None:
    """A window of a day at 5 s is thousands of cycles: a plan carries a bounded number, including the newest."""
    slow: dict[str, Any] = {"behavior": {"scaleDown": {"stabilization": "1d"}}}
    state = PlanState(recommendations=[recommendation(-5 * i, {SOURCE: 1, WORK: 2 + i % 7}) for i in range(400, 0, -1)])
    kept = made(scale({SOURCE: 1, WORK: 1}), request(analysis(the_policy=policy(**slow))), state).state.recommendations
    assert len(kept) <= MAX_RECOMMENDATIONS
    assert (kept[0].at, kept[-1].at) == (after(-2000), NOON)


def test_a_window_longer_than_the_stored_recommendations_is_still_covered() -> None:
    """Half an hour at an interval of 1 s, 1 and 2 subtasks recommended in turn: the vector falls to 2."""
    kept: list[Recommendation] = []
    for second in range(-1_900, 1):
        kept = condensed([*kept, recommendation(second, {SOURCE: 1, WORK: 2 if second % 3 else 1})], 400)
    spec: dict[str, Any] = {"behavior": {"scaleDown": {"stabilization": "30m"}, "cooldown": "0s"}}
    found = analysis(work=4, arrivals=300, per_subtask=1000, seen=[point(1, 900)])
    proposal = amend(
        scale({SOURCE: 1, WORK: 1}), request_at({SOURCE: 1, WORK: 4}, spec=spec, recommendations=kept, found=found)
    )
    assert proposal.vector == {SOURCE: 1, WORK: 2}


@examples(25)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=60),
    st.integers(0, 60),
    st.sampled_from([MIN_KEPT, 20]),
)
def test_condensing_is_lossless_or_cautious(wanted: list[tuple[int, int]], length: int, limit: int) -> None:
    """Any window over the condensed recommendations: same coverage, no smaller maximum, no larger minimum."""
    complete = [recommendation(at, {SOURCE: a, WORK: b}) for at, (a, b) in enumerate(wanted, -len(wanted) + 1)]
    few = condensed(complete, limit)
    assert len(few) <= limit
    assert (few[0].at, few[-1].at) == (complete[0].at, complete[-1].at)
    inside = [[w.parallelism for w in recommendations if w.at >= after(-length)] for recommendations in (complete, few)]
    for name in (SOURCE, WORK):
        everything, condensed_ = ([vector[name] for vector in vectors] for vectors in inside)
        assert max(condensed_) >= max(everything)
        assert min(condensed_) <= min(everything)


def test_a_plan_carries_fewer_recommendations_of_a_large_graph() -> None:
    """All 400 of a usual job, and a few megabytes at most of 1,000 operators with the longest names there may be."""
    assert max_kept({f"operator-{i}": 2 for i in range(100)}, 400) == 400
    large = {f"{i:04}{'x' * 396}": 2 for i in range(1000)}
    kept: list[Recommendation] = []
    for second in range(12):
        vector = dict.fromkeys(large, 2 + second % 5)
        kept = condensed([*kept, recommendation(second, vector)], max_kept(vector, 400))
    assert sum(len(each.model_dump_json()) for each in kept) < 4_000_000
    assert max(each.parallelism[next(iter(large))] for each in kept) == 6


def test_the_planners_memory_is_stored_with_its_name() -> None:
    """Another planner must not read it as its own."""
    reply = PlanReply(kind="hold", code="objective-held", sentence="all is well", memory={"level": 3})
    state = made(reply, request()).state
    assert (state.memory, state.planner) == ({"level": 3}, "rate")


def test_the_newest_action_is_found_behind_a_refusal() -> None:
    """A refused plan starts no action; its outcome carries the previous action."""
    done = action(before={WORK: 1}, wanted={WORK: 2})
    refused = outcome(None, at=after(5), last_action=done)
    assert request(outcomes=[refused, outcome(done)]).newest_action == done
    assert request().newest_action is None


def test_offline_names_an_unknown_planner() -> None:
    """The error lists the available planners."""
    with pytest.raises(UnknownPlanner, match=r"no planner 'magic'; there are: .*rate"):
        plan_offline(request(), "magic")


def test_what_runs_outside_the_bounds_is_brought_into_them() -> None:
    """The user has narrowed them and the planner would hold. Neither a busy operator nor a stabilisation window is a
    reason to stay above the bounds."""
    low = request(analysis(the_policy=policy(bounds={"min": 1, "max": 12, "operators": {WORK: {"min": 4}}})))
    plan = made(plan_of(low), low)
    assert (plan.code, plan.approved) == ("out-of-bounds", {SOURCE: 1, WORK: 4})
    assert plan.sentence == "work 2 → 4: work runs at 2, the policy allows 4 to 12"

    slow = {"scaleDown": {"stabilization": "120s"}, "scaleUp": {"stabilization": "0s"}, "cooldown": "60s"}
    high = request(analysis(work=8, arrivals=3900, the_policy=policy(bounds={"min": 1, "max": 4}, behavior=slow)))
    plan = made(plan_of(high), high)
    assert plan.approved == {SOURCE: 1, WORK: 4}

    unknown = request(of={"arrivals": None})
    assert made(plan_of(unknown), unknown).kind == "hold"


def test_a_plan_predicts_the_approved_vector() -> None:
    """3 of the 6 proposed subtasks are approved: the prediction is for 3."""
    plan_request = request(of={"arrivals": 2400})
    assert plan_request.deployment is not None
    few = plan_request.model_copy(
        update={"deployment": plan_request.deployment.model_copy(update={"slots": Slots(total=3, available=1)})}
    )
    plan = made(plan_of(few), few)
    assert plan.approved == {SOURCE: 1, WORK: 3}
    assert plan.prediction is not None
    assert plan.prediction.max_utilization == pytest.approx(2400 / 1500, rel=0.05)
    assert "limited by slots-available)" in plan.sentence


def test_a_hold_by_guards_predicts_holding() -> None:
    """The planner would shrink to 1, the guards hold: the plan's prediction is that of 8 subtasks, not of one."""
    kept = policy(behavior={"scaleDown": {"stabilization": "60s"}, "scaleUp": {"stabilization": "0s"}})
    shrinks = request(of={"arrivals": 300.0, "work": 8, "the_policy": kept})
    plan = plan_offline(shrinks, "rate")
    assert (plan.kind, plan.proposed is None) == ("hold", False)
    assert plan.prediction is not None
    assert plan.prediction.max_utilization == pytest.approx(300 / (8 * 500), rel=0.05)


def test_growth_without_gain_after_the_guards_is_a_hold() -> None:
    """Only the source may grow, and it is not the bottleneck, though its capacity is unknown."""
    plan_request = request(of={"arrivals": 2400})
    wanted = scale({SOURCE: 2, WORK: 6})
    bound = request(
        analysis(
            arrivals=2400,
            operators=[operator(SOURCE, 1, None, 1000.0, utilization=known(0.3)), operator(WORK, 2, 1000.0, 2400.0)],
            the_policy=policy(bounds={"min": 1, "max": 12, "operators": {WORK: {"max": 2}}}),
        )
    )
    assert made(wanted, plan_request).kind == "scale"
    plan = made(wanted, bound)
    assert (plan.kind, plan.code) == ("hold", "no-gain")
    assert plan.sentence == "orders 1 → 2, limited by bounds, would gain nothing for its restart"


@pytest.mark.parametrize("selectivity", [1.0, None])
def test_growth_reduced_by_guards_is_kept_while_a_long_lag_lasts(selectivity: float | None) -> None:
    """1,000 s of lag, beyond any horizon, and a limit of one subtask per action: one more clears it sooner; with the
    demand of `work` unknown it is kept too."""
    slow = {"scaleUp": {"stabilization": "0s", "maxStep": 1}, "cooldown": "0s"}
    found = analysis(
        arrivals=900,
        selectivity=selectivity,
        backlog=900_000,
        lag_seconds=1000,
        operators=[operator(SOURCE, 1, 100_000.0, 900.0), operator(WORK, 2, 1000.0, 1000.0)],
        the_policy=policy(behavior=slow),
    )
    plan = made(scale({SOURCE: 1, WORK: 6}), request(found))
    assert plan.approved == {SOURCE: 1, WORK: 3}, plan.sentence


def test_what_runs_outside_the_bounds_is_brought_in_even_without_gain() -> None:
    """`orders` runs at 1 of at least 2; it is scaled even though the budget reduces the recommendation."""
    for limits in (
        {"bounds": {"min": 2, "max": 8}, "budget": {"slots": 3}},
        {"bounds": {"min": 2, "max": 8, "total": {"max": 5}}},
    ):
        plan_request = request(analysis(work=2, arrivals=2400, the_policy=policy(**limits)))
        plan = made(scale({SOURCE: 4, WORK: 4}), plan_request)
        assert plan.kind == "scale", plan.sentence
        assert plan.approved is not None and plan.approved[SOURCE] >= 2


def test_a_saved_request_gives_the_loops_own_decision() -> None:
    """The request carries the guards' state of the last plan: a covered stabilisation window, usual arrivals."""
    calm = policy(
        behavior={"scaleDown": {"stabilization": "60s"}, "scaleUp": {"stabilization": "0s"}, "cooldown": "0s"}
    )
    recommendations = [recommendation(-70 + 10 * i, {SOURCE: 1, WORK: 1}) for i in range(7)]
    plan_request = request(
        analysis(work=4, arrivals=300, the_policy=calm), state=PlanState(recommendations=recommendations)
    )
    assert plan_offline(plan_request).approved is not None
    assert plan_offline(plan_request.model_copy(update={"state": PlanState()})).kind == "hold"
