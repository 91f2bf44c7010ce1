"""The planner `rate`: what it does in the situations that it was written for, and why it says so."""

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
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
    outcome,
    point,
    policy,
    request,
    topology,
)
from tests.unit.planner.requests import is_whole, requests
from weir_contracts import (
    Edge,
    OperatorAnalysis,
    PlanReply,
    PlanRequest,
    Run,
    Slots,
    SourceAnalysis,
    Symptom,
    Topology,
)
from weir_contracts.analysis import SymptomCode
from weir_planner.core.decide import precheck
from weir_sdk.installed import ask


def answer(parameters: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **of: Any) -> PlanReply:
    """Return the reply of `rate` to `analysis(**of)`."""
    chosen: dict[str, Any] = {"planner": {"name": "rate", "parameters": parameters or {}}, **(spec or {})}
    return ask(request(analysis(the_policy=policy(**chosen), **of)), "rate")


def test_three_times_the_load_is_answered_before_lag_grows() -> None:
    """800/s become 2,400/s at 2 subtasks of 500/s. No lag yet: it scales at once, to what sustains it and stays in
    bounds."""
    reply = answer(arrivals=2400, work=2)
    assert (reply.kind, reply.code) == ("scale", "overloaded")
    assert reply.parallelism is not None
    assert reply.parallelism[WORK] * 500 * 0.92 >= 2400
    assert reply.parallelism[SOURCE] == 1
    assert reply.sentence.startswith(f"work 2 → {reply.parallelism[WORK]}: 2,400 records/s arrive at work, 2 subtasks")
    assert reply.prediction is not None
    assert reply.hold_prediction is not None
    assert reply.prediction.violation_seconds == 0 < reply.hold_prediction.violation_seconds


def test_enough_is_left_alone() -> None:
    """800/s on 2 subtasks of 500/s: 80 %, no lag, nothing to do; the sentence has the figures."""
    reply = answer(arrivals=800, work=2)
    assert (reply.kind, reply.code) == ("hold", "objective-held")
    assert "work at 80% of its capacity" in reply.sentence
    assert reply.evidence["capacity[work]"] == 1000
    assert reply.evidence["arrival_rate_records_per_second"] == 800


@pytest.mark.parametrize(("missing", "message"), [("arrivals", "arrival rate of orders"), ("backlog", "lag of orders")])
def test_a_missing_reading_holds_and_is_named(missing: str, message: str) -> None:
    """Unknown is not 0: an application is never shrunk because its load could not be read."""
    reply = answer(work=8, **{missing: None})
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert message in reply.sentence
    assert "no reading yet" in reply.sentence


def test_without_any_capacity_it_waits() -> None:
    """A fresh run has taught nothing yet."""
    reply = answer(
        operators=[operator(SOURCE, 1, None, None), operator(WORK, 2, None, None)], arrivals=5000, per_subtask=None
    )
    assert (reply.kind, reply.code) == ("hold", "warming-up")


def test_a_quiet_application_is_shrunk() -> None:
    """300/s on 8 subtasks of 500/s, with a restart of 4 s: one would do, with a tenth more, too."""
    reply = answer(arrivals=300, work=8)
    assert (reply.kind, reply.code) == ("scale", "over-provisioned")
    assert reply.parallelism == {SOURCE: 1, WORK: 1}
    assert "need 1 of 8 slots" in reply.sentence


def at_rest(parallelism: int, lower_bound: float, arriving: float) -> OperatorAnalysis:
    """An operator that is too little busy for its capacity to be known."""
    return operator(WORK, parallelism, None, arriving, utilization=known(0.003), min_processing_rate=known(lower_bound))


@pytest.mark.parametrize("source", [operator(SOURCE, 1, 100_000.0, 2.0), operator(SOURCE, 1, None, 2.0)])
def test_what_is_hardly_busy_does_not_pin_its_slots(source: OperatorAnalysis) -> None:
    """8 subtasks that sustain at least 40 records/s together, and get 2: one is enough, whatever they can really do."""
    reply = answer(arrivals=2.0, work=8, operators=[source, at_rest(8, 40.0, 2.0)])
    assert (reply.kind, reply.code) == ("scale", "over-provisioned")
    assert reply.parallelism == {SOURCE: 1, WORK: 1}
    assert reply.evidence[f"capacity[{WORK}]"] is None
    assert reply.evidence[f"capacity_at_least[{WORK}]"] == 40.0


def test_a_bound_counts_for_the_subtasks_that_run() -> None:
    """8 subtasks sustained at least 40 records/s, so 5 each, and 4 run now: 9/s need 3, not the 2 of 40 ÷ 4."""
    source, work = operator(SOURCE, 1, 100_000.0, 9.0), at_rest(8, 40.0, 9.0)
    reply = answer(arrivals=9.0, work=4, operators=[source, work])
    assert reply.evidence[f"capacity_at_least[{WORK}]"] == 20.0
    assert reply.parallelism == {SOURCE: 1, WORK: 3}


def test_a_bound_never_adds_a_subtask() -> None:
    """The load jumps from 2 to 500 records/s: what 2 subtasks can do is unknown, at least 40, and most likely more than
    enough."""
    reply = answer(arrivals=500.0, work=2, operators=[operator(SOURCE, 1, 100_000.0, 500.0), at_rest(2, 40.0, 500.0)])
    assert reply.kind == "hold"


def test_fewer_subtasks_in_the_same_slots_are_not_worth_a_restart() -> None:
    """The source needs 6 subtasks, and its slots are shared: 2 instead of 6 of work would free none."""
    source = operator(SOURCE, 6, 8000.0, 6300.0)
    reply = answer(
        arrivals=6300.0,
        per_subtask=5000.0,
        work=6,
        operators=[source, operator(WORK, 6, 40_000.0, 6300.0)],
        deployment=deployment({SOURCE: 6, WORK: 6}),
    )
    assert (reply.kind, reply.code) == ("hold", "no-slot-freed")


def test_a_restart_that_breaks_the_objective_is_not_worth_the_slots() -> None:
    """It takes 60 s, and 30 s of lag are allowed: 8 stay, although 1 would do."""
    reply = answer(arrivals=300, work=8, restart_seconds=60)
    assert (reply.kind, reply.code) == ("hold", "restart-too-costly")
    assert "in a restart of 60 s; " in reply.sentence


def test_a_guessed_restart_counts_as_a_measured_one() -> None:
    """8 s are assumed and the objective is 6 s: a guess shrinks nothing that a measurement would not, and the sentence
    calls the restart an estimate."""
    for seconds, ends in ((None, "restart of 8 s (estimated); "), (8.0, "restart of 8 s; ")):
        reply = answer(arrivals=300, work=8, restart_seconds=seconds, spec={"objective": {"maxLag": "6s"}})
        assert (reply.kind, reply.code) == ("hold", "restart-too-costly")
        assert ends in reply.sentence
    reply = answer(arrivals=300, work=8, restart_seconds=None)
    assert (reply.kind, reply.code) == ("scale", "over-provisioned")
    assert reply.sentence.endswith("in a restart of 8 s (estimated)")


def test_the_first_start_predicts_the_rescale() -> None:
    """The job was up 14 s after its start and a checkpoint takes 0.5 s. After a restart it is unknown."""
    graph = {"arrivals": 300, "work": 2, "restart_seconds": None, "run": Run(running_since=after(-300))}
    job = deployment({SOURCE: 1, WORK: 2}).model_copy(update={"started_at": after(-314), "restarts": 0})
    assert answer(**graph, deployment=job).evidence["restart_seconds"] == 14.5
    again = job.model_copy(update={"restarts": 1})
    assert answer(**graph, deployment=again).evidence["restart_seconds"] == 8.0


def test_a_backlog_that_is_gone_sooner_without_a_restart_is_waited_out() -> None:
    """12,000 wait, 500/s are gained: 24 s and done. Any change would cost a restart of 25 s first."""
    reply = answer(arrivals=500, work=2, backlog=12_000, lag_seconds=26, restart_seconds=25)
    assert (reply.kind, reply.code) == ("hold", "no-gain")
    assert "without a restart of 25 s" in reply.sentence


def test_a_violation_that_a_restart_hardly_shortens_is_waited_out() -> None:
    """7 subtasks gain 225/s on a lag of 9.5 s: the objective is met again in 6 s, with 12 and a restart in 4 s."""
    points = [point(p, 165 * p / (1 + 0.03 * (p - 1))) for p in range(1, 8)]
    reply = answer(
        arrivals=754,
        work=7,
        per_subtask=None,
        seen=points,
        backlog=7163,
        lag_seconds=9.5,
        restart_seconds=1.0,
        spec={"objective": {"maxLag": "10s"}, "bounds": {"min": 1, "max": 12}},
    )
    assert (reply.kind, reply.code) == ("hold", "no-gain")
    assert "7 → 12" in reply.sentence


def test_a_backlog_that_would_take_too_long_is_worked_off_by_more() -> None:
    """40,000 wait and 100/s are gained: 400 s. With more subtasks and a restart of 4 s it is done far sooner."""
    reply = answer(arrivals=900, work=2, backlog=40_000, lag_seconds=45)
    assert reply.kind == "scale"
    assert reply.parallelism is not None
    assert reply.parallelism[WORK] > 2
    assert reply.prediction is not None
    assert reply.hold_prediction is not None
    assert reply.prediction.violation_seconds < reply.hold_prediction.violation_seconds / 2


def test_beyond_the_ceiling_the_unmet_demand_is_reported() -> None:
    """Work bends towards about 2,000/s in all; 3,000/s arrive: as much as helps, and the ceiling is reported."""
    points = [point(p, 500 * p / (1 + 0.25 * (p - 1))) for p in (1, 2, 4)]
    reply = answer(arrivals=3000, work=4, per_subtask=None, seen=points)
    limited = [i for i in reply.infeasible if i.code == "capacity-ceiling"]
    assert [i.operator for i in limited] == [WORK]
    assert limited[0].limit == pytest.approx(2000, rel=0.1)


def test_bounds_that_are_too_narrow_are_reported() -> None:
    """20 subtasks would be needed, 4 are allowed: it takes 4 and says so."""
    reply = answer(arrivals=8000, work=2, spec={"bounds": {"min": 1, "max": 4}})
    assert reply.parallelism == {SOURCE: 1, WORK: 4}
    assert [(i.operator, i.code, i.limit) for i in reply.infeasible] == [(WORK, "bounds", 4.0)]


def test_at_the_bound_already_nothing_helps() -> None:
    """4 of 4 run and it is not enough: a hold that says what is wanted."""
    reply = answer(arrivals=8000, work=4, spec={"bounds": {"min": 1, "max": 4}})
    assert (reply.kind, reply.code) == ("hold", "nothing-helps")
    assert reply.infeasible


def test_behind_an_unknown_selectivity_an_operator_keeps_what_it_has() -> None:
    """The arrivals at work are unknown: it keeps its 6 while the source grows to what it needs."""
    reply = answer(
        selectivity=None,
        work=6,
        arrivals=4000,
        operators=[operator(SOURCE, 1, 2000.0, 2000.0), operator(WORK, 6, 3000.0, None)],
    )
    assert reply.kind == "scale"
    assert reply.parallelism is not None
    assert reply.parallelism[WORK] == 6
    assert reply.parallelism[SOURCE] > 1


def test_an_operator_of_unknown_demand_that_is_full_grows_by_a_step() -> None:
    """Its utilization is 100 %: whatever arrives, it is too much for 2; half of them more, to look again."""
    full = operator(WORK, 2, 1000.0, 1000.0)
    reply = answer(selectivity=None, operators=[operator(SOURCE, 1, 100_000.0, 800.0), full])
    assert full.utilization.value == 1.0
    assert (reply.kind, reply.code) == ("scale", "saturated")
    assert reply.parallelism == {SOURCE: 1, WORK: 3}


def lagging(seconds: float, growth: float = 300.0, **of: Any) -> dict[str, Any]:
    """`orders` lags by so many seconds of 800 records/s, and the lag grows by `growth` records/s."""
    source = SourceAnalysis(
        operator=SOURCE,
        arrival_rate=known(800.0),
        arrival_rate_trend=known(0.0),
        lag_records=known(800.0 * seconds),
        lag_growth=known(growth),
        lag_seconds=known(seconds),
        expected_latency_seconds=known(seconds),
    )
    return {"sources": [source], "backlog": 800.0 * seconds, "lag_seconds": seconds, "selectivity": None, **of}


def behind_unknown(busy: float | None, capacity: float | None = 1000.0) -> list[OperatorAnalysis]:
    """2 subtasks of work behind an unknown selectivity, `busy` so much of the time."""
    return [operator(SOURCE, 1, 100_000.0, 500.0), operator(WORK, 2, capacity, 1000.0, utilization=known(busy))]


@pytest.mark.parametrize("seconds", [0.0, 20.0, 25.0, 77.0, 300.0, 1077.0])
@pytest.mark.parametrize("capacity", [1000.0, None])
def test_a_full_operator_of_unknown_demand_grows_however_long_the_lag(seconds: float, capacity: float | None) -> None:
    """The model lets an unknown operator clear any backlog at once, so it is ignored there."""
    reply = answer(**lagging(seconds, operators=behind_unknown(1.0, capacity)))
    assert (reply.kind, reply.code, reply.parallelism) == ("scale", "saturated", {SOURCE: 1, WORK: 3})
    assert (reply.prediction, reply.hold_prediction) == (None, None)
    assert reply.sentence.startswith("work 2 → 3: work is 100% busy and its demand is unknown")


@pytest.mark.parametrize("busy", [None, 0.7])
def test_growing_lag_above_the_objective_is_never_held_for_want_of_a_model(busy: float | None) -> None:
    """No operator is seen to be full; what is unknown grows by a step all the same, and the sentence has the lag."""
    reply = answer(**lagging(77.0, operators=behind_unknown(busy)))
    assert (reply.kind, reply.code, reply.parallelism) == ("scale", "saturated", {SOURCE: 1, WORK: 3})
    assert "lag of 77.0 s grows by 300 records/s" in reply.sentence
    falling = answer(**lagging(77.0, growth=-300.0, operators=behind_unknown(busy)))
    assert falling.kind == "hold"
    idle = answer(**lagging(77.0, operators=behind_unknown(0.2)))
    assert idle.kind == "hold", "no operator is busy, so more subtasks are no answer"


def test_without_any_capacity_growing_lag_is_answered() -> None:
    """An engine without rates stays at "warming up": after two minutes of it, growing lag counts."""
    unread = [operator(SOURCE, 1, None, None), operator(WORK, 2, None, None)]
    warming = [Symptom(code="warming-up", evidence="the window is not full")]
    of = lagging(77.0, operators=unread, symptoms=warming)
    assert answer(**of, run=Run(running_since=after(-60))).code == "warming-up"
    reply = answer(**of, run=Run(running_since=after(-600)))
    assert (reply.kind, reply.code, reply.parallelism) == ("scale", "saturated", {SOURCE: 2, WORK: 3})


def cold(age_seconds: float, busy: float = 0.98, growth: float = 400.0, **of: Any) -> PlanReply:
    """Return the reply in the first overload: no capacity is known, 800/s arrive, and work is `busy`."""
    unread = [operator(SOURCE, 1, None, None), operator(WORK, 2, None, None, utilization=known(busy))]
    warming = [Symptom(code="warming-up", evidence="the window is not full")]
    run = Run(running_since=after(-age_seconds))
    return answer(**lagging(6.0, growth=growth, operators=unread, symptoms=warming, run=run, **of))


def test_the_first_overload_is_answered_by_one_bounded_step() -> None:
    """Half of what arrives is left over while work is full: twice as many, and the sentence says that no curve is
    known."""
    reply = cold(18.0)
    assert (reply.kind, reply.code, reply.parallelism) == ("scale", "saturated", {SOURCE: 1, WORK: 4})
    assert "no capacity is known yet" in reply.sentence
    assert cold(18.0, growth=100.0).parallelism == {SOURCE: 1, WORK: 3}, "a seventh more at 85 % needs half more"
    for none in (cold(16.9), cold(18.0, busy=0.9), cold(18.0, growth=-10.0)):
        assert (none.kind, none.code) == ("hold", "warming-up")


def test_one_source_that_catches_up_does_not_hide_another_that_does_not() -> None:
    """The symptom is of the application; the growing lag is of one source."""
    catching_up = [Symptom(code="catching-up", operator="other", evidence="its lag shrinks")]
    reply = answer(**lagging(77.0, operators=behind_unknown(1.0), symptoms=catching_up))
    assert (reply.kind, reply.code) == ("scale", "saturated")


@pytest.mark.parametrize("lag", [1000.0, 4000.0, 40_000.0])
@pytest.mark.parametrize("arrivals", [700.0, 900.0])
def test_a_backlog_beyond_the_horizon_is_worked_off_by_more(arrivals: float, lag: float) -> None:
    """2 subtasks would take an hour and more for it, 12 some minutes: both are late throughout the horizon of 94 s, and
    yet not equal."""
    reply = answer(arrivals=arrivals, work=2, backlog=lag * arrivals, lag_seconds=lag)
    assert reply.kind == "scale"
    assert reply.parallelism is not None
    assert reply.parallelism[WORK] >= 10
    assert "meets the objective in" in reply.sentence


@pytest.mark.parametrize(("arrivals", "work", "lag"), [(970.0, 2, 23.9), (8000.0, 10, 20.0), (8000.0, 11, 10.0)])
def test_what_grows_without_a_backlog_grows_with_one(arrivals: float, work: int, lag: float) -> None:
    """97 % used, or too small at any parallelism: the restart costs more where something waits already, and is due all
    the same."""
    of: dict[str, Any] = {"arrivals": arrivals, "work": work}
    assert answer(**of).kind == "scale"
    assert answer(**of, backlog=lag * arrivals, lag_seconds=lag).kind == "scale"


@pytest.mark.parametrize("code", ["restarting", "catching-up"])
def test_what_works_off_a_restart_is_not_restarted_for_its_utilization(code: SymptomCode) -> None:
    """97 % used, whatever waits: the next restart would lift the lag of the last one above the objective. Overload is
    answered."""
    of: dict[str, Any] = {"work": 2, "symptoms": [Symptom(code=code, evidence="it has just restarted")]}
    assert answer(arrivals=970.0, **of).kind == "hold"
    assert answer(arrivals=970.0, backlog=20_000.0, lag_seconds=20.6, **of).kind == "hold"
    assert answer(arrivals=1010.0, **of).code == "overloaded"
    assert answer(arrivals=970.0, spec={"objective": {"utilization": 0.7}}, **of).code == "utilization-high"


@pytest.mark.parametrize("code", ["warming-up", "catching-up"])
def test_a_run_that_starts_or_catches_up_is_full_for_a_while(code: SymptomCode) -> None:
    """The same readings are no reason to grow then: it would grow after each of its restarts, up to the bound."""
    reply = answer(
        selectivity=None,
        operators=[operator(SOURCE, 1, 100_000.0, 800.0), operator(WORK, 2, 1000.0, 1000.0)],
        symptoms=[Symptom(code=code, evidence="it has just started")],
    )
    assert (reply.kind, reply.code) == ("hold", "objective-held")


def test_full_and_unknown_at_the_bound_stays() -> None:
    """12 of 12: there is no step left, and the rest of the job is not touched for it."""
    reply = answer(
        selectivity=None,
        work=12,
        operators=[operator(SOURCE, 1, 100_000.0, 800.0), operator(WORK, 12, 1000.0, 1000.0)],
    )
    assert (reply.kind, reply.code) == ("hold", "objective-held")


def test_a_job_that_crashes_in_a_loop_is_still_scaled() -> None:
    """Its load is known from the brokers, its capacity from before: RESTARTING is no reason to leave it too small."""
    reply = answer(
        arrivals=2400,
        work=2,
        per_subtask=None,
        seen=[point(2, 1000)],
        status="not_running",
        deployment=deployment({SOURCE: 1, WORK: 2}, state="RESTARTING", restarts=40),
    )
    assert reply.kind == "scale"
    assert reply.parallelism is not None
    assert reply.parallelism[WORK] >= 6


def test_a_source_gets_no_more_than_its_partitions() -> None:
    """4 partitions: the fifth subtask would idle, so the source stays at 4 and the limit is reported."""
    graph = topology(partitions=4)
    reply = answer(
        graph=graph,
        arrivals=8000,
        work=12,
        per_subtask=1000,
        operators=[operator(SOURCE, 2, 2000.0, 2000.0), operator(WORK, 12, 12_000.0, 2000.0)],
        deployment=deployment({SOURCE: 2, WORK: 12}),
    )
    assert reply.parallelism == {SOURCE: 4, WORK: 12}
    assert [i.operator for i in reply.infeasible] == [SOURCE]


def test_one_slow_rescale_is_not_the_usual_one() -> None:
    """The last took 18 s, with the brokers away; those before it a second or two. It does not forbid to shrink from
    then on."""
    slow = outcome(action(before={WORK: 2}, wanted={WORK: 3}), restart_seconds=18.0)
    reported = slow.model_copy(update={"restarts_seconds": [18.0, 0.6, 1.2, 1.2, 2.9]})
    of = {"arrivals": 400, "work": 3, "restart_seconds": 0.7}
    assert ask(request(of=of, outcomes=[reported]), "rate").evidence["restart_seconds"] == 1.2
    assert ask(request(of={**of, "restart_seconds": None}, outcomes=[slow]), "rate").evidence["restart_seconds"] == 18.0


def test_the_price_of_a_rescale_is_the_maximum_observed() -> None:
    """The analyzer saw a gap of 4 s, the executor waited 7 s for RUNNING; or the gap was the longer."""
    for waited, price in ((7.0, 7.0), (1.0, 4.0)):
        ran = outcome(action(before={WORK: 1}, wanted={WORK: 2}), restart_seconds=waited)
        reply = ask(request(of={"arrivals": 2400, "work": 2}, outcomes=[ran]), "rate")
        assert reply.evidence["restart_seconds"] == price
    unseen = answer({"restart_seconds": 9.0}, arrivals=2400, work=2, restart_seconds=None)
    assert unseen.evidence["restart_seconds"] == 9.0


def test_while_containers_start_the_old_ones_work() -> None:
    """A minute from request to RUNNING, of which the job was away for 4 s, give or take an interval: that is what a
    restart costs, and 8 subtasks may become fewer."""
    ran = outcome(action(before={WORK: 2}, wanted={WORK: 8}), restart_seconds=58.0)
    reply = ask(request(of={"arrivals": 300, "work": 8}, outcomes=[ran]), "rate")
    assert reply.evidence["restart_seconds"] == 9.0
    assert (reply.kind, reply.code) == ("scale", "over-provisioned")


def test_a_utilization_objective_needs_no_lag() -> None:
    """70 % is the target, 90 % is used, and the lag is unknown: it grows to 3."""
    reply = answer(arrivals=900, work=2, backlog=None, lag_seconds=None, spec={"objective": {"utilization": 0.7}})
    assert (reply.kind, reply.code) == ("scale", "utilization-high")
    assert reply.parallelism == {SOURCE: 1, WORK: 3}


LOADS = st.fixed_dictionaries(
    {
        "arrivals": st.floats(0, 20_000),
        "work": st.integers(1, 12),
        "per_subtask": st.floats(10, 2000),
        "backlog": st.floats(0, 1e6),
        "selectivity": st.none() | st.floats(0, 3),
        "restart_seconds": st.none() | st.floats(0, 120),
    }
)


def load_of(
    arrivals: float, work: int, backlog: float, selectivity: float | None, restart: float | None
) -> dict[str, Any]:
    """Return a load of LOADS."""
    return {
        "arrivals": arrivals,
        "work": work,
        "per_subtask": 347.0,
        "backlog": backlog,
        "selectivity": selectivity,
        "restart_seconds": restart,
    }


@examples(300)
@given(LOADS, st.none() | st.floats(0, 1), st.floats(0, 1e6), st.floats(0, 2000))
@example(load_of(10_998.0, 9, 613_461.0, 0.06722572897518099, 0.078125), None, 1.0, 0.0).via("another size is the best")
@example(load_of(18_081.0, 1, 566_716.0, None, None), None, 9.0, 0.0).via("the end of a violation crosses a step")
def test_more_lag_never_turns_growth_into_a_hold(
    load: dict[str, Any], busy: float | None, more: float, growth: float
) -> None:
    """With everything else equal; `work` seems to keep up, is full, or reports nothing."""
    arrivals, work = load["arrivals"], load["work"]
    rate = max(arrivals, 1.0)

    def with_lag(records: float) -> PlanReply:
        source = SourceAnalysis(
            operator=SOURCE,
            arrival_rate=known(arrivals),
            arrival_rate_trend=known(0.0),
            lag_records=known(records),
            lag_growth=known(growth),
            lag_seconds=known(records / rate),
            expected_latency_seconds=known(records / rate),
        )
        worker = operator(WORK, work, load["per_subtask"] * work, arrivals, utilization=known(busy))
        return answer(
            **{**load, "backlog": records, "lag_seconds": records / rate},
            sources=[source],
            operators=[operator(SOURCE, 1, 100_000.0, arrivals), worker],
        )

    if grows(with_lag(load["backlog"]), work):
        assert grows(with_lag(load["backlog"] + more), work)


def grows(reply: PlanReply, work: int) -> bool:
    """Whether anything is to be raised."""
    return reply.parallelism is not None and (reply.parallelism[SOURCE] > 1 or reply.parallelism[WORK] > work)


@examples(25)
@given(LOADS)
def test_every_answer_covers_the_topology_within_bounds(load: dict[str, Any]) -> None:
    """For any figures: a complete new vector within the bounds, or a hold with its reason."""
    reply = answer(**load)
    assert reply.sentence
    assert reply.prediction is not None or reply.code == "saturated"
    if reply.parallelism is not None:
        assert set(reply.parallelism) == {SOURCE, WORK}
        assert all(1 <= p <= 12 for p in reply.parallelism.values())
        assert reply.parallelism != {SOURCE: 1, WORK: load["work"]}


def test_slots_count_by_sharing_group() -> None:
    """Two groups: the freed slots of one count although the other stays as it is."""
    graph = Topology(
        operators=[o.model_copy(update={"slot_sharing_group": o.name}) for o in topology().operators],
        edges=[Edge(source=SOURCE, target=WORK)],
    )
    reply = answer(
        graph=graph,
        arrivals=300,
        work=6,
        operators=[operator(SOURCE, 3, 330.0, 300.0), operator(WORK, 6, 3000.0, 300.0)],
        deployment=deployment({SOURCE: 3, WORK: 6}, slots=Slots(total=9, available=0)),
    )
    assert reply.code in {"over-provisioned", "no-slot-freed", "restart-too-costly"}
    assert reply.code == "over-provisioned"
    assert "of 9 slots" in reply.sentence


@settings(examples(25), suppress_health_check=[HealthCheck.filter_too_much])
@given(requests("rate"))
def test_any_numbers_that_a_request_may_hold_are_answered(plan_request: PlanRequest) -> None:
    """At the borders of what a message may hold, too; the reply is a message again."""
    plan_request = plan_request.model_copy(update={"now": plan_request.analysis.observed_at})
    assume(precheck(plan_request) is None)
    reply = ask(plan_request, "rate")
    assert is_whole(reply, plan_request)
    assert PlanReply.model_validate_json(reply.model_dump_json()) == reply


@pytest.mark.parametrize(
    ("measured", "fewest", "edge"),
    [
        ([point(p, 1000 * p, confidence=1.0) for p in (2, 3, 4)], 2, "the load's upper edge"),
        ([point(8, 8000, confidence=0.06, saturated=False)], 3, "the lower edge of capacity"),
    ],
)
def test_shrinking_counts_each_uncertainty_once(measured: list[Any], fewest: int, edge: str) -> None:
    """1,600/s on 8 subtasks of about 1,000/s, with a restart of 4 s: 2 would be at 80 % and work the restart off. They
    are enough where they were measured; a noisy point far away leaves room for one more, and the sentence says why."""
    reply = answer(arrivals=1600, work=8, per_subtask=None, seen=measured)
    assert (reply.kind, reply.code, reply.parallelism) == ("scale", "over-provisioned", {SOURCE: 1, WORK: fewest})
    assert f"need {fewest} of 8 slots by {edge}" in reply.sentence


def rising(arrivals: list[float], trend: float) -> PlanReply:
    """Return the last reply to arrivals of cycle after cycle, each of which gets the memory of the one before."""
    memory: dict[str, Any] = {}
    for each in arrivals:
        source = SourceAnalysis(
            operator=SOURCE,
            arrival_rate=known(each),
            arrival_rate_trend=known(trend),
            lag_records=known(0.0),
            lag_growth=known(0.0),
            lag_seconds=known(0.0),
            expected_latency_seconds=known(0.0),
        )
        plan_request = request(of={"arrivals": each, "work": 2, "sources": [source]})
        reply = ask(plan_request.model_copy(update={"memory": memory}), "rate")
        memory = reply.memory
    return reply


def test_a_load_that_goes_on_to_rise_is_sized_for_what_it_will_be() -> None:
    """Three rises in a row and a trend of 20 records/s per second: 1,300/s will be 60 % more within restart and drain.
    Five subtasks might do for these, and six are sure to: another step would be late, as the load rises on until it
    counts. Noise, a step, a rise that ends and a fall are not extrapolated."""
    steady = rising([1300.0], 20.0)
    assert steady.parallelism is not None
    grown = rising([800.0, 950.0, 1100.0, 1300.0], 20.0)
    assert grown.parallelism is not None
    assert grown.parallelism[WORK] == 6 > steady.parallelism[WORK]
    assert "60% more are expected" in grown.sentence
    for no_rise in (
        [500.0, 700.0, 1150.0, 1300.0],
        [1270.0, 1280.0, 1290.0, 1300.0],
        [400.0, 400.0, 900.0, 1300.0],
        [400.0, 900.0, 1500.0, 1300.0],
    ):
        assert rising(no_rise, 20.0).parallelism == steady.parallelism
    assert rising([800.0, 950.0, 1100.0, 1300.0], -20.0).parallelism == steady.parallelism


def test_a_damaged_memory_is_an_empty_one() -> None:
    """Another version's memory is not read."""
    plan_request = request(of={"arrivals": 1300.0, "work": 2}).model_copy(
        update={"memory": {"arrivals": "many", "rises": -1}}
    )
    at = plan_request.now.timestamp()
    shares = {SOURCE: 1.0, WORK: 1.0}
    expected = {"arrivals": 1300.0, "looked_at": at, "shares": shares, "shares_since": at}
    assert ask(plan_request, "rate").memory == expected
