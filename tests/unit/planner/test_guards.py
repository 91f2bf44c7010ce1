"""Each guard, and invariants of the complete chain for any proposal."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import (
    SOURCE,
    WORK,
    action,
    after,
    analysis,
    deployment,
    known,
    operator,
    point,
    policy,
    recommendation,
    request_at,
    scale,
    topology,
)
from weir_contracts import (
    Group,
    Parallelism,
    PastAction,
    PlanReply,
    QuarantinedVector,
    RescaleSettings,
    Run,
    ScalingPolicy,
    Slots,
    Symptom,
)
from weir_planner.core.guards import GUARDS, Proposal, amend
from weir_planner.core.guards.effects import scale_down_gate
from weir_planner.core.guards.sizes import saturated_stays, sustained_rate
from weir_sdk.request import Request

NOW: Parallelism = {SOURCE: 1, WORK: 4}


def passed(wanted: Parallelism, given_: Request) -> Proposal:
    """Return the result of the complete chain."""
    return amend(scale(wanted), given_)


def guards(proposal: Proposal) -> list[str]:
    return [amendment.guard for amendment in proposal.amendments]


def behavior(up: Any = "0s", down: Any = "0s", cooldown: str = "0s") -> dict[str, Any]:
    """Return a policy's behavior; a direction is a stabilisation time or its fields."""

    def direction(value: Any) -> dict[str, Any]:
        return {"stabilization": value} if isinstance(value, str) else {"stabilization": "0s", **value}

    return {"behavior": {"scaleUp": direction(up), "scaleDown": direction(down), "cooldown": cooldown}}


def test_a_valid_proposal_is_not_changed() -> None:
    """No guard amends it."""
    proposal = passed({SOURCE: 1, WORK: 6}, request_at(NOW))
    assert proposal.vector == {SOURCE: 1, WORK: 6}
    assert proposal.amendments == ()


def test_a_hold_passes() -> None:
    """Guards never turn a hold into an action."""
    hold = PlanReply(kind="hold", code="objective-held", sentence="all is well")
    proposal = amend(hold, request_at({SOURCE: 1, WORK: 40}))
    assert (proposal.vector, proposal.code, proposal.sentence, proposal.amendments) == (
        None,
        "objective-held",
        "all is well",
        (),
    )


def test_bounds() -> None:
    """20 are proposed, 12 are allowed; the source has a minimum of 2."""
    proposal = passed(
        {SOURCE: 1, WORK: 20}, request_at(NOW, spec={"bounds": {"max": 12, "operators": {SOURCE: {"min": 2}}}})
    )
    assert proposal.vector == {SOURCE: 2, WORK: 12}
    assert guards(proposal) == ["bounds"]
    assert proposal.amendments[0].because == "orders 1 → 2, work 20 → 12: the policy's bounds"


@pytest.mark.parametrize("phase", ["intended", "applying", "rolling-back"])
def test_one_action_at_a_time(phase: str) -> None:
    """No action starts while the previous one is in flight."""
    last = action(phase, before={SOURCE: 1, WORK: 2}, wanted=NOW)
    proposal = passed({SOURCE: 1, WORK: 6}, request_at(NOW, last_action=last))
    assert (proposal.vector, proposal.code) == (None, "action-in-flight")
    assert f"it is {phase}" in proposal.sentence


def test_while_an_action_is_verified_more_may_follow_but_not_less() -> None:
    """The job runs: a rising load is planned for, a scale-down waits for the verification."""
    last = action("verifying", before={SOURCE: 1, WORK: 2}, wanted=NOW, running_at=after(-5))
    given_ = request_at(NOW, last_action=last)
    assert passed({SOURCE: 1, WORK: 6}, given_).vector == {SOURCE: 1, WORK: 6}
    assert passed({SOURCE: 1, WORK: 3}, given_).code == "action-in-flight"


def test_a_busy_operator_is_never_lowered() -> None:
    """`work` is busy 96 % of the time though its reported input is small: the selectivity is misread."""
    found = analysis(work=4, operators=[operator(SOURCE, 1, 1e5, 100), operator(WORK, 4, 1000.0, 960.0)])
    proposal = passed({SOURCE: 1, WORK: 1}, request_at(NOW, found=found))
    assert (proposal.vector, proposal.code) == (None, "saturated")
    assert "work is busy 96% of the time" in proposal.sentence


def test_an_operator_of_unknown_utilization_is_never_lowered() -> None:
    """A missing metric cannot shrink anything."""
    found = analysis(work=4, operators=[operator(SOURCE, 1, 1e5, 100), operator(WORK, 4, None, None)])
    assert passed({SOURCE: 1, WORK: 1}, request_at(NOW, found=found)).code == "saturated"
    assert passed({SOURCE: 1, WORK: 1}, request_at(NOW, found=analysis(work=4, operators=[]))).code == "saturated"


def group_of(*, saturated: bool, demand: float) -> Request:
    """Return a consumer group without busy time, whose four threads did 4,000 records/s."""
    streams = {
        "application": {"kafkaStreams": {"applicationId": "orders"}},
        "target": {"kubernetes": {"kind": "StatefulSet", "name": "orders"}},
        "signals": {"kafka": {"bootstrapServers": "kafka:9092"}},
    }
    lone = operator(SOURCE, 4, None, demand, capacities=[point(4, 4000.0, saturated=saturated)])
    found = analysis(operators=[lone.model_copy(update={"target_input_rate": known(demand)})])
    given_ = request_at({SOURCE: 4}, found=found)
    document = policy().to_document()
    document["spec"] |= streams
    return given_.model_copy(update={"policy": ScalingPolicy.model_validate(document)})


@pytest.mark.parametrize(("saturated", "demand", "threads"), [(True, 1000.0, 3), (True, 3900.0, 4), (False, 1000.0, 4)])
def test_a_group_shrinks_where_its_capacity_was_measured_under_a_backlog(
    saturated: bool, demand: float, threads: int
) -> None:
    """Its busy share is unknown without an endpoint: by the point that was measured while records waited, three threads
    suffice, or not."""
    given_ = group_of(saturated=saturated, demand=demand)
    proposal = saturated_stays(Proposal(given_, {SOURCE: 3}, "overloaded", "the planner wants it", ()))
    assert proposal.vector == {SOURCE: threads}
    because = [amendment.because for amendment in proposal.amendments]
    reason = "above 80% of its capacity" if saturated else "unknown without application.kafkaStreams.metrics"
    assert all(reason in each for each in because)
    assert len(because) == (threads == 4)


def test_scaling_in_requires_of_a_subtask_a_measured_rate() -> None:
    """4 subtasks take 100/s each; 1 would have to do 400/s, over three times the measured maximum: one step only."""
    proposal = passed({SOURCE: 1, WORK: 1}, request_at(NOW, found=analysis(work=4, arrivals=400.0, per_subtask=1000.0)))
    assert proposal.vector == {SOURCE: 1, WORK: 3}
    assert guards(proposal) == ["sustained-rate"]


@pytest.mark.parametrize(
    "unknown", [{"arrivals": None}, {"operators": [operator(WORK, 4, 4000.0, None)]}], ids=["asked for", "seen"]
)
def test_an_unknown_rate_per_subtask_prevents_scaling_in(unknown: dict[str, Any]) -> None:
    """Neither a missing input rate nor a missing measured rate allows scaling in."""
    found = analysis(**{"work": 4, "per_subtask": 1000.0, "arrivals": 400.0, **unknown})
    proposal = sustained_rate(Proposal(request_at(NOW, found=found), {SOURCE: 1, WORK: 1}, "less", "less"))
    assert proposal.vector is not None and proposal.vector[WORK] == 4
    assert "is unknown" in proposal.amendments[-1].because


def service_of(busy: float, **application: Any) -> Request:
    """Return a service of four replicas, of unknown demand, with an objective of 60 % CPU."""
    found = analysis(operators=[operator(SOURCE, 4, None, None).model_copy(update={"utilization": known(busy)})])
    given_ = request_at({SOURCE: 4}, found=found)
    document = policy().to_document()
    document["spec"] |= {
        "application": {"service": application},
        "target": {"kubernetes": {"kind": "Deployment", "name": SOURCE}},
        "signals": {"prometheus": {"url": "http://prometheus:9090", "queries": {"done": "d", "queued": "q"}}},
        "objective": {"utilization": 0.6},
    }
    return given_.model_copy(update={"policy": ScalingPolicy.model_validate(document)})


def test_a_service_without_signals_shrinks_by_its_cpu() -> None:
    """At 10 % of four replicas one does the work, at 20 % two; a service that counts its records waits for them."""
    wanted = {SOURCE: 1}
    for busy, replicas in ((0.1, 1), (0.2, 2)):
        proposal = Proposal(service_of(busy), wanted, "less", "less", ())
        assert sustained_rate(proposal).vector == wanted
        assert scale_down_gate(proposal).vector == {SOURCE: replicas}
    counted = Proposal(service_of(0.1, processed="done", waiting="queued"), wanted, "less", "less", ())
    assert sustained_rate(counted).vector == {SOURCE: 4}


def test_a_rate_measured_under_saturation_is_trusted() -> None:
    """One subtask did 500/s with a backlog: 400/s is within its capacity."""
    found = analysis(work=4, arrivals=400.0, per_subtask=1000.0, seen=[point(1, 500)])
    proposal = passed({SOURCE: 1, WORK: 1}, request_at(NOW, found=found))
    assert proposal.vector == {SOURCE: 1, WORK: 1}


def test_the_maximum_input_at_another_parallelism_was_sustained() -> None:
    """One subtask was never full, and took in 350/s for a window: 400/s is near enough to that."""
    before = point(1, 500, saturated=False).model_copy(update={"max_input_rate": 350.0})
    found = analysis(work=4, arrivals=400.0, per_subtask=1000.0, seen=[before])
    assert passed({SOURCE: 1, WORK: 1}, request_at(NOW, found=found)).vector == {SOURCE: 1, WORK: 1}


def test_going_up_waits_for_its_window() -> None:
    """20 s of stabilisation: the smallest recommendation of the last 20 s counts, an older one does not."""
    recommendations = [
        recommendation(-25, {SOURCE: 1, WORK: 4}),
        recommendation(-10, {SOURCE: 1, WORK: 5}),
        recommendation(0, {SOURCE: 1, WORK: 9}),
    ]
    proposal = passed({SOURCE: 1, WORK: 9}, request_at(NOW, spec=behavior(up="20s"), recommendations=recommendations))
    assert proposal.vector == {SOURCE: 1, WORK: 5}
    assert guards(proposal) == ["stabilisation"]


def test_going_down_needs_a_covered_window() -> None:
    """60 s of stabilisation: after 40 s it waits 20 s more; after 60 s the largest recommendation counts."""
    spec = behavior(down="60s")
    early = [recommendation(-40, {SOURCE: 1, WORK: 2}), recommendation(0, {SOURCE: 1, WORK: 2})]
    proposal = passed({SOURCE: 1, WORK: 2}, request_at(NOW, spec=spec, recommendations=early, found=seen_busy()))
    assert (proposal.vector, proposal.code) == (None, "stabilisation")
    assert "20 s remain" in proposal.sentence
    late = [
        recommendation(-61, {SOURCE: 1, WORK: 4}),
        recommendation(-30, {SOURCE: 1, WORK: 3}),
        recommendation(0, {SOURCE: 1, WORK: 2}),
    ]
    proposal = passed({SOURCE: 1, WORK: 2}, request_at(NOW, spec=spec, recommendations=late, found=seen_busy()))
    assert proposal.vector == {SOURCE: 1, WORK: 3}


@pytest.mark.parametrize(("at", "taken"), [(-55, None), (-20, {SOURCE: 1, WORK: 3})], ids=["soon", "not soon"])
def test_a_small_step_waits_for_a_larger_one_that_the_window_allows_soon(
    at: float, taken: dict[str, int] | None
) -> None:
    """Now 4 → 3, and 4 → 1 as soon as the recommendation of 3 is old. The cooldown after a first step is 60 s."""
    spec = behavior(down="60s", cooldown="60s")
    recommendations = [
        recommendation(-61, {SOURCE: 1, WORK: 4}),
        recommendation(at, {SOURCE: 1, WORK: 3}),
        recommendation(0, {SOURCE: 1, WORK: 1}),
    ]
    given_ = request_at(NOW, spec=spec, recommendations=recommendations, found=seen_busy())
    proposal = passed({SOURCE: 1, WORK: 1}, given_)
    assert proposal.vector == taken
    assert taken is not None or "one larger step" in proposal.sentence


def seen_busy() -> Any:
    """Return an analysis in which one subtask did 900 records/s when saturated."""
    return analysis(work=4, arrivals=400.0, per_subtask=1000.0, seen=[point(1, 900)])


def test_cooldown_keeps_from_going_down_only() -> None:
    """20 of 60 s after an action ended: down waits 40 s more, up does not."""
    last = action(before={SOURCE: 1, WORK: 2}, wanted=NOW, finished_at=after(-20))
    given_ = request_at(NOW, spec=behavior(cooldown="60s"), last_action=last, found=seen_busy())
    proposal = passed({SOURCE: 1, WORK: 2}, given_)
    assert (proposal.vector, proposal.code) == (None, "cooldown")
    assert "another 40 s" in proposal.sentence
    assert passed({SOURCE: 1, WORK: 6}, given_).vector == {SOURCE: 1, WORK: 6}


def test_steps_are_limited_by_number_and_by_ratio() -> None:
    """At most 3 more per action, and at most halved."""
    spec = behavior(up={"maxStep": 3}, down={"maxFactor": 2})
    assert passed({SOURCE: 1, WORK: 12}, request_at(NOW, spec=spec)).vector == {SOURCE: 1, WORK: 7}
    proposal = passed({SOURCE: 1, WORK: 1}, request_at(NOW, spec=spec, found=seen_busy()))
    assert proposal.vector == {SOURCE: 1, WORK: 2}
    assert guards(proposal) == ["step-limits"]


def test_a_ratio_below_two_lets_a_single_subtask_grow() -> None:
    """1.5 times one rounds to one; one step is always allowed."""
    spec = behavior(up={"maxFactor": 1.5})
    assert passed({SOURCE: 1, WORK: 9}, request_at({SOURCE: 1, WORK: 1}, spec=spec)).vector == {SOURCE: 1, WORK: 2}


def test_a_parallelism_without_gain_is_reduced() -> None:
    """With 12 partitions 7 subtasks gain nothing over 6; with 12 key groups 5 gain nothing over 4."""
    graph = topology(groups=12, keyed=True)
    proposal = passed({SOURCE: 7, WORK: 5}, request_at({SOURCE: 1, WORK: 2}, graph=graph))
    assert proposal.vector == {SOURCE: 6, WORK: 4}
    assert "orders gains nothing from 7 over 6" in proposal.amendments[0].because


def test_the_policys_minimum_is_kept_even_without_gain() -> None:
    """Minimum 5 with 12 key groups, though 4 would do as well; with 3 key groups the limit is 3."""
    spec = {"bounds": {"min": 1, "operators": {WORK: {"min": 5}}}}
    assert passed({SOURCE: 1, WORK: 5}, request_at(NOW, graph=topology(groups=12, keyed=True), spec=spec)).vector == {
        SOURCE: 1,
        WORK: 5,
    }
    narrow = request_at({SOURCE: 1, WORK: 2}, graph=topology(groups=3, keyed=True), spec=spec)
    assert passed({SOURCE: 1, WORK: 5}, narrow).vector == {SOURCE: 1, WORK: 3}


def test_what_is_unbalanced_already_is_left_alone() -> None:
    """The source runs with 7 subtasks for 12 partitions; a change of `work` does not change it."""
    graph = topology(keyed=True)
    proposal = passed({SOURCE: 7, WORK: 6}, request_at({SOURCE: 7, WORK: 2}, graph=graph))
    assert proposal.vector == {SOURCE: 7, WORK: 6}


def test_growth_is_limited_to_available_slots() -> None:
    """4 held and 2 free: 9 become 6, and the proposal is reported as infeasible."""
    proposal = passed({SOURCE: 1, WORK: 9}, request_at(NOW, slots=Slots(total=6, available=2)))
    assert proposal.vector == {SOURCE: 1, WORK: 6}
    assert [(i.code, i.wanted, i.limit) for i in proposal.infeasible] == [("slots", 9.0, 6.0)]


def test_no_slot_is_free() -> None:
    """No growth remains: a hold with that reason."""
    proposal = passed({SOURCE: 1, WORK: 9}, request_at(NOW, slots=Slots(total=4, available=0)))
    assert (proposal.vector, proposal.code) == (None, "slots")
    assert "9 slots are needed, 4 are available" in proposal.sentence


@pytest.mark.parametrize(("max_slots", "work"), [(None, 6), (8, 6), (14, 8), (15, 9), (2**31 - 1, 9)])
def test_a_cluster_that_starts_task_managers_limits_growth_by_its_own_maximum(max_slots: int | None, work: int) -> None:
    """4 held, 6 of others and 2 free: with 14 slots that the cluster may have, 4 are free."""
    starting = request_at(
        NOW, slots=Slots(total=12, available=2), deployed={"rescale": RescaleSettings(max_slots=max_slots)}
    )
    assert passed({SOURCE: 1, WORK: 9}, starting).vector == {SOURCE: 1, WORK: work}


def test_a_job_that_is_run_again_with_one_parallelism_needs_its_slots() -> None:
    """A run brings no slots, as a pod would: 6 are there, so that all operators get 6."""
    resubmit = {"jar": "orders.jar", "savepointDirectory": "/savepoints", "uniform": True}
    application = {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}}
    spec = {"application": application, "target": {"flink": {"resubmit": resubmit}}}
    even = {SOURCE: 4, WORK: 4}
    proposal = passed({SOURCE: 4, WORK: 9}, request_at(even, slots=Slots(total=6, available=2), spec=spec))
    assert proposal.vector == {SOURCE: 6, WORK: 6}
    assert [(i.code, i.wanted, i.limit) for i in proposal.infeasible] == [("slots", 9.0, 6.0)]
    assert "all operators run at the same parallelism, 6" in [a.because for a in proposal.amendments]


def test_unknown_slots_hold_nothing_back() -> None:
    """The engine runs with the slots it has."""
    assert passed({SOURCE: 1, WORK: 9}, request_at(NOW, slots=None)).vector == {SOURCE: 1, WORK: 9}


def test_a_quarantined_vector_is_held() -> None:
    """Quarantined for 5 minutes; another vector, or a later time, passes."""
    bad = QuarantinedVector(parallelism={SOURCE: 1, WORK: 6}, until=after(300), strikes=1, because="restart-loop")
    proposal = passed({SOURCE: 1, WORK: 6}, request_at(NOW, quarantine=[bad]))
    assert (proposal.vector, proposal.code) == (None, "quarantined")
    assert "restart-loop" in proposal.sentence
    assert passed({SOURCE: 1, WORK: 7}, request_at(NOW, quarantine=[bad])).vector == {SOURCE: 1, WORK: 7}
    later = request_at(NOW, quarantine=[bad], now=after(300))
    assert passed({SOURCE: 1, WORK: 6}, later).vector == {SOURCE: 1, WORK: 6}


def test_what_is_running_already_is_a_hold() -> None:
    """The reason is the guard that removed the change, else `no-change`."""
    assert passed(NOW, request_at(NOW)).code == "no-change"
    proposal = passed({SOURCE: 1, WORK: 12}, request_at(NOW, spec={"bounds": {"max": 4}}))
    assert (proposal.vector, proposal.code) == (None, "bounds")


NAMES = (SOURCE, "enrich", WORK)
PERIODS = [
    {"from": "11:00", "to": "13:00", "directions": ["down"]},
    {"from": "22:00", "to": "12:01"},
    {"cron": "0 10 * * *", "duration": "1h"},
]
sizes = st.integers(1, 20)
vectors = st.fixed_dictionaries(dict.fromkeys(NAMES, sizes))


@st.composite
def situations(draw: st.DrawFn) -> Request:
    """Return requests with any parallelism, policy, slots, history and metrics."""
    current = draw(vectors)
    low = draw(st.integers(1, 8))
    steps = st.fixed_dictionaries({}, optional={"maxStep": st.integers(1, 5), "maxFactor": st.floats(1.1, 3)})
    seconds = st.sampled_from(["0s", "20s", "1m"])
    total = draw(st.none() | st.tuples(st.integers(1, 60), st.integers(0, 30)))
    spec: dict[str, Any] = {
        "bounds": {
            "min": low,
            "max": draw(st.integers(low, 24)),
            **({} if total is None else {"total": {"min": total[0], "max": total[0] + total[1]}}),
        },
        "budget": draw(st.fixed_dictionaries({}, optional={"slots": st.integers(1, 30)})),
        "behavior": {
            "tolerance": draw(st.sampled_from([0.0, 0.1, 0.5])),
            "maxActionsPerHour": draw(st.none() | st.integers(1, 3)),
            "excludedPeriods": draw(st.lists(st.sampled_from(PERIODS), max_size=2)),
            "scaleUp": {"stabilization": draw(seconds), **draw(steps)},
            "scaleDown": {"stabilization": draw(seconds), **draw(steps)},
            "cooldown": draw(seconds),
        },
    }
    graph = topology(
        NAMES, partitions=draw(sizes), groups=draw(st.sampled_from([None, 12, 128])), keyed=draw(st.booleans())
    )
    rates = st.none() | st.floats(0, 5000)
    found = analysis(
        graph=graph,
        the_policy=policy(**spec),
        operators=[
            operator(
                name,
                p,
                draw(st.none() | st.floats(1, 5000)),
                draw(rates),
                skew=known(draw(st.none() | st.floats(1, 9))),
                backpressure=known(draw(st.none() | st.floats(0, 1))),
            )
            for name, p in current.items()
        ],
        symptoms=[
            Symptom(code=code, operator=name, evidence="it is seen")
            for code in draw(st.sets(st.sampled_from(["skewed", "catching-up", "downstream-bound"])))
            for name in draw(st.sets(st.sampled_from(NAMES)))
        ],
    )
    phase = draw(st.sampled_from([None, "applying", "verifying", "verified", "rolled-back"]))
    last = phase and action(phase, before=current, wanted=current, running_at=after(-9), finished_at=after(-5))
    return request_at(
        current,
        spec=spec,
        graph=graph,
        found=found,
        last_action=last,
        actions=[
            PastAction(id=uuid4(), at=after(-60 * i), before=draw(vectors), after=draw(vectors))
            for i in range(draw(st.integers(0, 3)), 0, -1)
        ],
        slots=draw(st.none() | st.builds(lambda free: Slots(total=60, available=free), st.integers(0, 20))),
        recommendations=[
            recommendation(at, draw(vectors)) for at in draw(st.sampled_from([(), (0,), (-30, 0), (-70, -10, 0)]))
        ],
    )


@examples(25)
@given(vectors, situations())
def test_the_chain(wanted: Parallelism, given_: Request) -> None:
    """For any proposal: the complete topology, no operator further out of its limits, each change reported."""
    proposal = passed(wanted, given_)
    before: Parallelism | None = wanted
    for amendment in proposal.amendments:
        assert amendment.guard in GUARDS
        assert len(amendment.because) <= 160, amendment.because
        assert amendment.before == before != amendment.after
        before = amendment.after
    assert before == proposal.vector
    if proposal.vector is None:
        assert proposal.sentence
        return
    assert set(proposal.vector) == set(given_.topology.names)
    assert proposal.vector != given_.current
    spec = given_.policy.spec
    for name, p in proposal.vector.items():
        low, high = spec.bounds.of(name)
        now = given_.current[name]
        # A step limit may keep an operator on its way back into bounds outside for a while, never further than it is.
        assert min(low, now) <= p <= max(high, now)
    # Above the budget only where the bounds require it or as a reduction of what runs.
    limit, floors = spec.budget.limit, {name: spec.bounds.of(name)[0] for name in proposal.vector}
    if limit is not None:
        assert given_.topology.slots(proposal.vector) <= max(limit[0], given_.topology.slots(floors))
    total = spec.bounds.total
    if total is not None and total.max is not None:
        assert sum(proposal.vector.values()) <= max(total.max, sum(floors.values()))


@pytest.mark.parametrize(
    ("code", "wanted"), [("rebalancing", 2), ("rebalancing", 6), ("restoring", 2), ("restoring", 6), ("migrating", 2)]
)
def test_nothing_changes_while_tasks_move(code: str, wanted: int) -> None:
    """Neither growth nor shrinking of a consumer group; a job without a group has no tasks that move."""
    moving = [Symptom(code=code, evidence="group orders moves 2 tasks")]
    group = Group(id="orders", state="Stable", members=4)
    job = request_at(NOW, found=analysis(work=4, symptoms=moving))
    streams = job.model_copy(update={"deployment": deployment(NOW, group=group)})
    held = passed({SOURCE: 1, WORK: wanted}, streams)
    assert (held.vector, held.code) == (None, "tasks-move")
    assert "group orders moves 2 tasks" in held.sentence
    assert "tasks-move" not in guards(passed({SOURCE: 1, WORK: wanted}, job))


@pytest.mark.parametrize(("seconds", "vector"), [(10, None), (600, {SOURCE: 1, WORK: 6})])
def test_growth_goes_on_while_tasks_wait_for_a_probing_rebalance(seconds: int, vector: Parallelism | None) -> None:
    """A new instance brings a rebalance sooner, which moves what is warmed up: not at once after the last one."""
    found = analysis(work=4, symptoms=[Symptom(code="migrating", evidence="orders migrates")])
    run = Run(running_since=found.observed_at - timedelta(seconds=seconds))
    job = request_at(NOW, found=found.model_copy(update={"run": run}))
    group = Group(id="orders", state="Stable", members=4)
    streams = job.model_copy(update={"deployment": deployment(NOW, group=group)})
    assert passed({SOURCE: 1, WORK: 6}, streams).vector == vector
