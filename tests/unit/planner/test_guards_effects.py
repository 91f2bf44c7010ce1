"""Effects of a change: growth without effect, harmful shrinking, changes within the tolerance."""

from typing import Any

import pytest

from tests.unit.planner.build import SOURCE, WORK, after, analysis, known, operator, point, request_at, topology
from tests.unit.planner.test_guards import NOW, behavior, guards, passed, seen_busy
from weir_contracts import Analysis, OperatorAnalysis, Parallelism, Run, Symptom
from weir_planner.core.guards import Proposal, effects

SINK = "sink"
CHAIN = (SOURCE, WORK, SINK)


def symptom(code: Any, name: str | None = None, **numbers: float) -> Symptom:
    return Symptom(code=code, operator=name, evidence="it is seen", numbers=dict(numbers))


# -- scaling down -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"symptoms": [symptom("restarting")]}, "it restarts"),
        ({"status": "not_running"}, "it restarts"),
        ({"symptoms": [symptom("warming-up", run_age_seconds=4, warm_up_seconds=10)]}, "it warms up"),
        ({"symptoms": [symptom("catching-up", SOURCE)]}, "it has a backlog"),
        ({"lag_seconds": known(16.0)}, "its backlog is 16 s old"),
    ],
)
def test_nothing_goes_down_in_a_restore_a_warm_up_or_a_backlog(changes: dict[str, Any], reason: str) -> None:
    """A recovering application keeps its parallelism; it may still grow."""
    given_ = request_at(NOW, found=seen_busy().model_copy(update=changes))
    proposal = passed({SOURCE: 1, WORK: 2}, given_)
    assert (proposal.vector, proposal.code) == (None, "scale-down-gate")
    assert reason in proposal.sentence
    assert passed({SOURCE: 1, WORK: 6}, given_).vector == {SOURCE: 1, WORK: 6}


@pytest.mark.parametrize(
    "changes",
    [
        {"lag_seconds": known(14.0)},
        {"lag_seconds": known(None)},
        {"symptoms": [symptom("warming-up", needed_seconds=40)]},
    ],
    ids=["three intervals", "lag unknown", "a window that an idle application never fills"],
)
def test_what_is_well_may_go_down(changes: dict[str, Any]) -> None:
    """A few seconds of lag are measurement delay; the planner judges an unknown lag."""
    proposal = passed({SOURCE: 1, WORK: 2}, request_at(NOW, found=seen_busy().model_copy(update=changes)))
    assert proposal.vector == {SOURCE: 1, WORK: 2}


def test_going_down_ends_where_the_target_would_be_passed() -> None:
    """4 subtasks of 1,000/s get 2,400/s: 2 would be 120 % busy, 3 are 80 %; a target of 0.7 keeps all 4."""
    found = analysis(work=4, arrivals=2400.0, per_subtask=1000.0, seen=[point(4, 4000)])
    proposal = passed({SOURCE: 1, WORK: 2}, request_at(NOW, found=found))
    assert proposal.vector == {SOURCE: 1, WORK: 3}
    assert "work at 2 would be above 100% of its capacity" in [a.because for a in proposal.amendments]
    narrow = request_at(NOW, found=found, spec={"objective": {"utilization": 0.7}})
    assert (passed({SOURCE: 1, WORK: 3}, narrow).vector, passed({SOURCE: 1, WORK: 3}, narrow).code) == (
        None,
        "scale-down-gate",
    )


def test_utilization_belongs_to_the_parallelism_it_was_measured_at() -> None:
    """8 subtasks were 40 % busy, so 3.2 are needed: of the 4 that run now none may go."""
    found = analysis(operators=[operator(SOURCE, 1, 100_000.0, 800.0), measured_at_eight()])
    assert effects.scale_down_gate(wanting(2, found)).vector == NOW


def test_a_hot_key_is_judged_at_the_parallelism_it_was_measured_at() -> None:
    """8 subtasks took 800/s 40 % busy: 2,400/s, evenly spread, need 12 at 80 %, though 4 run now."""
    hot = measured_at_eight().model_copy(update={"skew": known(2.5), "target_input_rate": known(2400.0)})
    found = analysis(operators=[operator(SOURCE, 1, 100_000.0, 800.0), hot], symptoms=[symptom("skewed", WORK)])
    assert effects.hot_key(wanting(16, found)).vector == {SOURCE: 1, WORK: 12}


def measured_at_eight() -> OperatorAnalysis:
    """Return `work` measured with 8 subtasks; 4 run."""
    return operator(WORK, 8, None, 800.0, utilization=known(0.4))


def wanting(work: int, found: Analysis) -> Proposal:
    return Proposal(request_at(NOW, found=found), {SOURCE: 1, WORK: work}, "wanted", "the planner wants it")


def test_measured_contention_counts_for_fewer_subtasks() -> None:
    """4 do 2,000/s and 2 did 1,500/s, so 1,200/s fit on 2; in proportion to 4 they would not."""
    found = analysis(work=4, arrivals=1200.0, per_subtask=500.0, seen=[point(4, 2000), point(2, 1500)])
    assert passed({SOURCE: 1, WORK: 2}, request_at(NOW, found=found)).vector == {SOURCE: 1, WORK: 2}


def test_cooldown_follows_a_restart_of_any_cause() -> None:
    """The run is 20 of 60 s old without an action: a rebalance or a crash."""
    found = seen_busy().model_copy(update={"run": Run(attempt=2, running_since=after(-20))})
    proposal = passed({SOURCE: 1, WORK: 2}, request_at(NOW, spec=behavior(cooldown="60s"), found=found))
    assert (proposal.vector, proposal.code) == (None, "cooldown")
    assert "another 40 s after a restart" in proposal.sentence
    later = request_at(NOW, spec=behavior(cooldown="60s"), found=found, now=after(40))
    assert passed({SOURCE: 1, WORK: 2}, later).vector == {SOURCE: 1, WORK: 2}


# -- growth without effect -------------------------------------------------------------------------------------------


def uneven(skew: float, busy: float, target: float = 1500.0) -> Analysis:
    """Return an analysis of 4 subtasks that take 800 records/s: one is saturated, `busy` is the mean utilization."""
    hot = operator(WORK, 4, 900.0, 800.0, skew=known(skew), utilization=known(busy), target_input_rate=known(target))
    symptoms = [symptom("skewed", WORK, skew=skew)]
    return analysis(work=4, operators=[operator(SOURCE, 1, 1e5, 800.0), hot], symptoms=symptoms)


def test_a_hot_key_is_reported_and_not_scaled() -> None:
    """One subtask does 2.5 times the mean of 40 %: evenly spread, 4 would do 2,000/s, so more do not help."""
    proposal = passed({SOURCE: 1, WORK: 8}, request_at(NOW, found=uneven(2.5, 0.4)))
    assert (proposal.vector, proposal.code) == (None, "hot-key")
    assert [(i.operator, i.code, i.wanted, i.limit) for i in proposal.infeasible] == [(WORK, "hot-key", 8.0, 4.0)]
    assert "more than 4 subtasks do not relieve a hot key" in proposal.infeasible[0].because


def test_an_uneven_operator_grows_as_far_as_an_even_load_needs() -> None:
    """With 2,400/s an even load needs 6 at 80 %. Skew explained by key groups does not limit growth."""
    assert passed({SOURCE: 1, WORK: 12}, request_at(NOW, found=uneven(2.5, 0.4, 2400.0))).vector == {SOURCE: 1, WORK: 6}
    assert passed({SOURCE: 1, WORK: 8}, request_at(NOW, found=uneven(1.6, 0.6))).vector == {SOURCE: 1, WORK: 8}


def test_a_hot_key_that_does_not_fill_its_subtask_leaves_room_to_grow() -> None:
    """A tenth of all records has one key: 14 subtasks do 2,390/s, as that of the key does 400/s. With 2,400/s an even load
    would do with what runs, and lag would grow for ever; 15 are enough. For 4,100/s no number is."""

    def found(target: float) -> Analysis:
        measured = point(14, 2390.0, saturated=True).model_copy(update={"skew": 2.34})
        rates = {"skew": known(2.34), "utilization": known(0.43), "target_input_rate": known(target)}
        hot = operator(WORK, 14, 2390.0, 2380.0, capacities=[measured], **rates)
        seen = [symptom("skewed", WORK, skew=2.34)]
        return analysis(work=14, operators=[operator(SOURCE, 1, 1e5, 2380.0), hot], symptoms=seen)

    spec = {"bounds": {"max": 64}}
    proposal = passed({SOURCE: 1, WORK: 40}, request_at({SOURCE: 1, WORK: 14}, found=found(2400.0), spec=spec))
    assert proposal.vector == {SOURCE: 1, WORK: 15}
    assert "more than 15 subtasks do not relieve a hot key" in proposal.infeasible[0].because
    hopeless = passed({SOURCE: 1, WORK: 40}, request_at({SOURCE: 1, WORK: 14}, found=found(4100.0), spec=spec))
    assert (hopeless.vector, hopeless.code, hopeless.infeasible[0].limit) == (None, "hot-key", 14)


def bound(sink_busy: float, held_back: float) -> dict[str, Any]:
    """Return a request in which `work` waits for the sink for a share of its time."""
    current = {SOURCE: 1, WORK: 2, SINK: 2}
    graph = topology(CHAIN)
    operators = [
        operator(SOURCE, 1, 1e5, 800.0),
        operator(WORK, 2, 1000.0, 800.0, backpressure=known(held_back)),
        operator(SINK, 2, 800.0, 800.0, utilization=known(sink_busy)),
    ]
    return {"current": current, "graph": graph, "found": analysis(graph=graph, operators=operators)}


def test_what_waits_for_a_full_operator_behind_it_is_not_scaled() -> None:
    """The sink is full and may not grow: work would only wait with more subtasks."""
    spec = {"bounds": {"max": 12, "operators": {SINK: {"max": 2}}}}
    proposal = passed({SOURCE: 1, WORK: 4, SINK: 6}, request_at(**bound(1.0, 0.4), spec=spec))
    assert (proposal.vector, proposal.code) == (None, "downstream-bound")
    assert "work waits for sink, which is saturated and does not grow" in proposal.sentence
    assert [(i.operator, i.code) for i in proposal.infeasible] == [(WORK, "downstream-bound")]


@pytest.mark.parametrize(
    ("sink", "wanted"),
    [
        (bound(1.0, 0.4), {SOURCE: 1, WORK: 4, SINK: 4}),
        (bound(0.7, 0.4), {SOURCE: 1, WORK: 4, SINK: 2}),
        (bound(1.0, 0.1), {SOURCE: 1, WORK: 4, SINK: 2}),
        (bound(1.0, 0.4), {SOURCE: 1, WORK: 2, SINK: 4}),
    ],
    ids=["the sink grows, too", "the sink is not full", "work barely waits", "only the sink grows"],
)
def test_growth_that_helps_passes(sink: dict[str, Any], wanted: Parallelism) -> None:
    """Only an operator that certainly waits is held."""
    assert passed(wanted, request_at(**sink)).vector == wanted


# -- small changes -----------------------------------------------------------------------------------------------------

MANY: Parallelism = {SOURCE: 1, WORK: 11}


def loaded(arrivals: float) -> Analysis:
    """11 subtasks do 100/s each."""
    return analysis(work=11, arrivals=arrivals, per_subtask=100.0)


def test_a_small_change_is_not_worth_a_restart() -> None:
    """From 11 to 10 or 12 is less than 10 %; to 9 is more."""
    for p in (10, 12):
        proposal = passed({SOURCE: 1, WORK: p}, request_at(MANY, found=loaded(700.0)))
        assert (proposal.vector, proposal.code) == (None, "dead-band")
    assert "work would change by 9%, within the tolerance of 10%" in proposal.sentence
    assert passed({SOURCE: 1, WORK: 9}, request_at(MANY, found=loaded(700.0))).vector == {SOURCE: 1, WORK: 9}


def test_needed_growth_is_no_small_change() -> None:
    """11 subtasks with a capacity of 1,100/s get 1,060/s, or their demand is unknown, or a backlog waits: 12."""
    backlogged = loaded(700.0).model_copy(update={"lag_seconds": known(20.0)})
    unknown_demand = analysis(work=11, operators=[operator(SOURCE, 1, 1e5, 700.0), operator(WORK, 11, None, None)])
    for found in (loaded(1060.0), backlogged, unknown_demand):
        assert passed({SOURCE: 1, WORK: 12}, request_at(MANY, found=found)).vector == {SOURCE: 1, WORK: 12}


def test_from_one_to_two_is_no_small_change() -> None:
    """Changes count in subtasks; the largest permitted tolerance does not hold it."""
    spec = {"behavior": {"tolerance": 0.5, "scaleDown": {"stabilization": "0s"}, "cooldown": "0s"}}
    one = {SOURCE: 1, WORK: 1}
    quiet = analysis(work=1, arrivals=100.0, per_subtask=500.0)
    assert passed({SOURCE: 1, WORK: 2}, request_at(one, spec=spec, found=quiet)).vector == {SOURCE: 1, WORK: 2}


def test_small_changes_ride_along_with_a_large_one() -> None:
    """The restart happens anyway; likewise with a change that the bounds require."""
    large = {SOURCE: 3, WORK: 12}
    assert passed(large, request_at(MANY, found=loaded(700.0))).vector == large
    spec = {"bounds": {"min": 1, "max": 12, "operators": {SOURCE: {"min": 2}}}}
    proposal = passed({SOURCE: 1, WORK: 12}, request_at(MANY, found=loaded(700.0), spec=spec))
    assert proposal.vector == {SOURCE: 2, WORK: 12}
    assert "dead-band" not in guards(proposal)
