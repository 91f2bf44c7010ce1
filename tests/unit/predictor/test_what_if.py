"""The what-if answer: outcome at a parallelism and load, breaking point, what forbids it, and no guesses."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import (
    SOURCE,
    WORK,
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
from weir_contracts import MAX_NUMBER, MIN_NUMBER, Analysis, Parallelism, PlanReply, Slots, WhatIf
from weir_planners.rate import plan_by_rate
from weir_predictor import InvalidQuestion, Load, NotYet, parse_load, parse_parallelism, what_if
from weir_sdk import Request


def ask(
    parallelism: Parallelism | None = None, load: str = "x1", found: Analysis | None = None, horizon: float = 600
) -> WhatIf:
    """By default of 800/s that two subtasks of 500/s hold."""
    return what_if(found or analysis(), parallelism or {}, parse_load(load), horizon)


def row(answer: WhatIf, name: str = WORK) -> Any:
    return next(o for o in answer.operators if o.operator == name)


def test_as_it_is_nothing_changes() -> None:
    """800/s on 1,000/s: four fifths busy, no lag, no restart; and at 1.25 times the load it is full."""
    answer = ask()
    assert answer.keeps_up and answer.possible
    assert (answer.throughput, answer.bottleneck, answer.breaks_at_load) == (800.0, WORK, 1.25)
    assert row(answer).utilization == 0.8
    assert answer.prediction is not None
    assert (answer.prediction.downtime_seconds, answer.prediction.max_lag_seconds) == (0, 0)
    assert answer.sentence == (
        "At 800 records/s (x1) with the present parallelism it keeps up, with work at 80% of its capacity; lag peaks at 0.0 s, "
        "within the objective of 30 s. It breaks beyond x1.25 (1,000 records/s), where work is full."
    )


def test_twice_the_load_is_too_much() -> None:
    """1,000 of 1,600/s are taken in: lag grows by 3/8 s each second, so 30 s are passed after 80 s; four subtasks would
    do."""
    answer = ask(load="x2")
    assert answer.keeps_up is False
    assert answer.throughput == 1000.0
    assert row(answer).utilization == 1.0
    assert row(answer).min_parallelism == 4
    assert answer.prediction is not None
    assert answer.prediction.objective_left_at_seconds == pytest.approx(80, abs=5)
    assert answer.prediction.final_lag_seconds == pytest.approx(600 * 3 / 8, abs=1)
    assert "work, 2 process 1,000 (it needs 4); 1,000 of 1,600 are taken in" in answer.sentence
    assert "It carries up to x1.25" in answer.sentence


def test_more_subtasks_cost_a_restart() -> None:
    """4 s without intake, then 2,000/s for 1,600: lag is back to nothing, and the objective was never left."""
    answer = ask({WORK: 4}, "x2")
    assert answer.keeps_up
    assert answer.prediction is not None
    assert answer.prediction.downtime_seconds == 4.0
    assert 4 <= answer.prediction.max_lag_seconds < 10
    assert answer.prediction.final_lag_seconds == 0
    assert len(answer.prediction.points) == 121
    assert answer.notes == ["work was measured at 2 only: its capacity at 4 assumes the usual contention"]
    assert (answer.slots_now, answer.slots) == (2, 4)


def test_a_rate_is_a_load_too() -> None:
    """1,200/s at one source, whatever arrives now; nothing now has no factor."""
    assert ask(load="1200/s").load_factor == 1.5
    from_nothing = ask(load="1200/s", found=analysis(arrivals=0.0))
    assert (from_nothing.arrival_rate, from_nothing.load_factor, from_nothing.breaks_at_load) == (1200.0, None, None)
    assert from_nothing.breaks_at_rate == 1000.0


def test_learned_contention_counts() -> None:
    """Seen at 1, 2 and 4 on a curve with a serial share: 8 do far less than twice 4, and beyond the ceiling nothing
    helps."""
    points = [point(p, 500 * p / (1 + 0.1 * (p - 1))) for p in (1, 2, 4)]
    found = analysis(work=4, per_subtask=500 / 1.3, seen=points)
    eight = ask({WORK: 8}, "2500/s", found)
    assert row(eight).capacity == pytest.approx(500 * 8 / 1.7, rel=0.06)
    assert row(eight).seen_at == [1, 2, 4]
    assert eight.keeps_up is False
    beyond = ask({WORK: 8}, "6000/s", found)
    assert row(beyond).min_parallelism is None
    assert [one.code for one in beyond.infeasible] == ["capacity-ceiling"]
    assert "no parallelism of work sustains more than 5,932 records/s" in beyond.sentence


def test_what_the_planner_predicts_is_what_is_answered() -> None:
    """The same trajectory for the same question: there is one predictor."""
    found = analysis(arrivals=1600.0)
    reply: PlanReply = plan_by_rate(Request.of(request(found)))
    assert reply.parallelism is not None and reply.prediction is not None
    answer = ask({WORK: reply.parallelism[WORK]}, "x1", found, reply.prediction.horizon_seconds)
    assert answer.prediction is not None
    for figure in ("max_lag_seconds", "final_lag_seconds", "downtime_seconds", "max_utilization", "bottleneck"):
        assert getattr(answer.prediction, figure) == getattr(reply.prediction, figure)


def test_unknown_capacity_is_named_and_not_guessed() -> None:
    """No throughput and no trajectory where an operator could be the bottleneck; the reason is the analyzer's."""
    found = analysis()
    without_rate = found.model_copy(update={"operators": [operator(SOURCE, 1, None, 800.0), found.operators[1]]})
    answer = ask({WORK: 6}, "x2", without_rate)
    assert answer.keeps_up is None
    assert (answer.throughput, answer.prediction, answer.breaks_at_load) == (None, None, None)
    assert answer.max_throughput == 1600.0
    assert [(gap.operator, gap.what, gap.because) for gap in answer.unknown] == [(SOURCE, "capacity", "no reading yet")]
    assert "it is unknown whether it keeps up: the capacity of orders is unknown (no reading yet)" in answer.sentence
    # An operator that is certainly too small is still reported.
    assert ask({}, "x2", without_rate).keeps_up is False


def test_who_does_it_already_can_do_it() -> None:
    """An operator of unknown capacity that takes in 800/s suffices for 800/s and less, with as many subtasks."""
    found = analysis()
    without_rate = found.model_copy(update={"operators": [operator(SOURCE, 1, None, 800.0), found.operators[1]]})
    answer = ask({WORK: 6}, "x0.5", without_rate)
    assert answer.keeps_up
    assert answer.unknown == []
    assert answer.throughput == 400.0


def test_behind_an_unknown_selectivity_the_answer_is_unknown() -> None:
    """The load that reaches `work` is unknown, so whether it keeps up is unknown, too."""
    answer = ask(load="x2", found=analysis(selectivity=None))
    assert answer.keeps_up is None
    assert (row(answer).arrival_rate, row(answer).utilization) == (None, None)
    assert [gap.what for gap in answer.unknown] == ["input"]


def test_an_unknown_lag_leaves_throughput_and_takes_the_trajectory() -> None:
    """Whether it keeps up does not depend on what waits; what becomes of the lag does."""
    answer = ask(load="x2", found=analysis(backlog=None))
    assert answer.keeps_up is False
    assert answer.throughput == 1000.0
    assert answer.prediction is None
    assert "its lag is unknown, because the lag of orders is (no reading yet)" in answer.sentence


@pytest.mark.parametrize(
    ("vector", "spec", "graph", "codes"),
    [
        ({WORK: 13}, {}, topology(), ["bounds"]),
        ({WORK: 1}, {"bounds": {"min": 2, "max": 12}}, topology(), ["bounds"]),
        ({WORK: 9}, {}, topology(groups=8), ["key-groups"]),
        ({WORK: 30}, {"bounds": {"min": 1, "max": 64}}, topology(), ["slots"]),
        ({WORK: 12}, {}, topology(), []),
    ],
)
def test_the_reasons_that_forbid_it_are_reported(
    vector: Parallelism, spec: dict[str, Any], graph: Any, codes: list[str]
) -> None:
    """The policy's bounds, key groups, and the 20 free slots with the 2 it holds."""
    answer = ask(vector, "x0.1", analysis(graph=graph, the_policy=policy(**spec)))
    assert [one.code for one in answer.infeasible] == codes
    assert answer.possible == (not codes)
    assert ("It is not possible: " in answer.sentence) == bool(codes)


def test_more_subtasks_than_partitions_are_idle_and_not_forbidden() -> None:
    """A source of 4 partitions with 6 subtasks can do no more than with 4."""
    answer = ask({SOURCE: 6}, "x1", analysis(graph=topology(partitions=4)))
    assert answer.possible
    assert [one.because for one in answer.infeasible] == ["orders reads 4 partitions, so 2 of 6 subtasks would be idle"]
    assert (
        row(answer, SOURCE).capacity
        == ask({SOURCE: 4}, "x1", analysis(graph=topology(partitions=4))).operators[0].capacity
    )


def test_the_bottleneck_s_need_beyond_its_limit_is_reported() -> None:
    """38 subtasks would be needed with the usual contention, the policy allows 12."""
    answer = ask({WORK: 12}, "10000/s")
    assert "work would need 38 and is limited to 12 by the policy's bounds" in answer.sentence
    assert answer.possible


def test_skew_is_borne_in_mind() -> None:
    """A hot key makes one subtask do twice the mean: more subtasks need not help, and that is said of who is changed."""
    found = analysis()
    skewed = found.model_copy(
        update={"operators": [found.operators[0], operator(WORK, 2, 1000.0, 800.0, skew=known(2.0))]}
    )
    assert any("busiest subtask of work does 2.0 times the mean" in note for note in ask({WORK: 4}, "x2", skewed).notes)
    assert ask({}, "x1", skewed).notes == []


def test_an_unmeasured_restart_is_reported_as_an_assumption() -> None:
    """8 s, and a note."""
    answer = ask({WORK: 4}, "x2", analysis(restart_seconds=None))
    assert answer.prediction is not None
    assert answer.prediction.downtime_seconds == 8.0
    assert "no rescale was measured yet: 8 s are assumed for its restart" in answer.notes


def test_a_refusal_carries_what_rescales_took() -> None:
    """It was no rescale itself, but it carries the durations of earlier ones, so nothing is called an assumption."""
    refused = outcome(None).model_copy(update={"restarts_seconds": [5.0, 7.0]})
    answer = what_if(analysis(restart_seconds=None), {WORK: 4}, parse_load("x2"), 600, [refused])
    assert answer.prediction is not None
    assert answer.prediction.downtime_seconds == 6.0
    assert not any("no rescale was measured" in note for note in answer.notes)


def test_what_a_rescale_took_last_time_counts() -> None:
    """The longer of the gap between runs and the way from request to running, as for the planner; nothing is assumed
    then."""
    took = outcome(None, restart_seconds=6.0)
    for duration in (None, 4.0):
        answer = what_if(analysis(restart_seconds=duration), {WORK: 4}, parse_load("x2"), 600, [took])
        assert answer.prediction is not None
        assert answer.prediction.downtime_seconds == 6.0
        assert not any("no rescale was measured" in note for note in answer.notes)


def test_a_utilization_objective_is_compared() -> None:
    """No time bound: the busy share is what counts."""
    answer = ask(load="x1.1", found=analysis(the_policy=policy(objective={"utilization": 0.7})))
    assert answer.objective_seconds is None
    assert answer.notes == ["work would be at 88%, above the objective of 70%"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": None}, "graph and parallelism are unknown"),
        ({"arrivals": None}, "the arrival rate of orders is unknown: no reading yet"),
        ({"operators": []}, "no operator's capacity is known yet"),
        ({"deployment": deployment({SOURCE: 1})}, "the parallelism of work is unknown"),
    ],
)
def test_too_little_to_answer_anything(changes: dict[str, Any], message: str) -> None:
    """Each is named; there is no half answer."""
    found = analysis(**{k: v for k, v in changes.items() if k != "topology"})
    if "topology" in changes:
        found = found.model_copy(update=changes)
    with pytest.raises(NotYet, match=message):
        ask({}, "x1", found)


def test_an_operator_that_is_not_there() -> None:
    """The error names those that are."""
    with pytest.raises(InvalidQuestion, match="there is no operator 'worck'; there are: orders, work"):
        ask({"worck": 3})


@pytest.mark.parametrize(
    "text", ["", "2", "x", "x0", "x-1", "x1e3", "x1001", "0/s", "1200", "1200 / s", "nan/s", "xinf", "x" * 500]
)
def test_what_is_no_load(text: str) -> None:
    """A bare number has no unit; the sentence shows both forms."""
    with pytest.raises(InvalidQuestion, match="write x2 for twice"):
        parse_load(text)


def test_what_is_a_load() -> None:
    """Factors and rates, with fractions."""
    assert parse_load("x2") == parse_load("×2.0") == parse_load("2x") == Load(factor=2.0)
    assert parse_load("1200.5/s") == Load(records_per_second=1200.5)


def test_parallelism_as_it_is_written() -> None:
    """Names of engines hold spaces, commas and signs of equality."""
    assert parse_parallelism(["enrich=6", "Window(a=5, b) -> Map=2"]) == {"enrich": 6, "Window(a=5, b) -> Map": 2}
    assert parse_parallelism(["parse=2,enrich=6", "a, b=3"]) == {"parse": 2, "enrich": 6, "a, b": 3}
    assert parse_parallelism(["Window(a=1, b=2) -> Map=2"]) == {"Window(a=1, b=2) -> Map": 2}
    for wrong in (
        ["enrich=2,enrich=3"],
        ["enrich=2,parse"],
        ["enrich"],
        ["=3"],
        ["enrich=0"],
        ["enrich=-1"],
        ["enrich=99999"],
        ["enrich=2", "enrich=3"],
        ["e=1.5"],
    ):
        with pytest.raises(InvalidQuestion):
            parse_parallelism(wrong)


@examples(40)
@example(
    of={"arrivals": 2.2e-313, "backlog": None, "per_subtask": None, "selectivity": None},
    p=1,
    load="0.001/s",
    horizon=10.0,
)  # a smoothed rate on its way to 0 has no factor
@given(
    of=st.fixed_dictionaries(
        {
            "arrivals": st.floats(0, 1e6) | st.sampled_from([MIN_NUMBER, MAX_NUMBER]),
            "backlog": st.none() | st.floats(0, 1e5) | st.sampled_from([MIN_NUMBER, MAX_NUMBER]),
            "per_subtask": st.none() | st.floats(0.001, 1e5) | st.sampled_from([MIN_NUMBER, MAX_NUMBER / 2]),
            "selectivity": st.none() | st.floats(0, 100) | st.sampled_from([MIN_NUMBER, MAX_NUMBER]),
        }
    ),
    p=st.integers(1, 200),
    load=st.sampled_from(["x0.001", "x1", "x1000", "0.001/s", "1000000000/s"]),
    horizon=st.sampled_from([10.0, 600.0, 86_400.0]),
)
def test_any_question_has_an_answer_that_can_be_sent(of: dict[str, Any], p: int, load: str, horizon: float) -> None:
    """No figure is infinite, nothing is taken in that did not arrive, and an application that keeps up takes in all."""
    found = analysis(**of)
    answer = WhatIf.model_validate_json(ask({WORK: p}, load, found, horizon).model_dump_json())
    assert answer.max_throughput <= answer.arrival_rate * (1 + 1e-9) + 0.01
    if answer.keeps_up:
        assert answer.throughput == pytest.approx(answer.arrival_rate, rel=1e-6, abs=0.011)
    assert (answer.throughput is None) == bool([gap for gap in answer.unknown if gap.what != "lag"])


def test_two_sources_keep_their_mix() -> None:
    """A rate is shared as the arrivals are now; of nothing there is no share."""
    assert Load(records_per_second=100.0).on({"a": 30.0, "b": 10.0}) == {"a": 75.0, "b": 25.0}
    with pytest.raises(InvalidQuestion, match="how a rate is shared"):
        Load(records_per_second=100.0).on({"a": 0.0, "b": 0.0})


@pytest.mark.parametrize(
    ("requested", "limits"),
    [({SOURCE: 4, WORK: 4}, []), ({WORK: 4}, ["one-parallelism"]), ({SOURCE: 3, WORK: 3}, ["one-parallelism"])],
)
def test_pods_run_every_operator_alike(requested: Parallelism, limits: list[str]) -> None:
    """Pods have two slots each and bring their own, so zero free slots forbid nothing."""
    application = {"flink": {"url": "http://jm:8081", "job": "orders"}}
    target = {"kubernetes": {"kind": "Deployment", "name": "tm", "slots": 2}}
    now = deployment({SOURCE: 2, WORK: 2}, slots=Slots(total=2, available=0))
    answer = ask(requested, found=analysis(deployment=now, policy=policy(application=application, target=target)))
    assert [limit.code for limit in answer.infeasible] == limits
    assert answer.possible is (limits == [])


def test_the_policy_limits_the_task_managers_of_a_reactive_job() -> None:
    """Four for 8; the cluster's free slots forbid nothing."""
    pool = {"kubernetes": {"kind": "Deployment", "name": "tm"}, "slots": 2, "max": 3, "reactive": True}
    application, target = {"flink": {"url": "http://jm:8081", "job": "orders"}}, {"flink": {"taskManagers": pool}}
    now = deployment({SOURCE: 2, WORK: 2}, slots=Slots(total=2, available=0))
    found = analysis(deployment=now, policy=policy(application=application, target=target))
    assert ask({SOURCE: 6, WORK: 6}, found=found).possible
    (limit,) = ask({SOURCE: 8, WORK: 8}, found=found).infeasible
    assert (limit.code, limit.wanted, limit.limit) == ("slots", 8, 6)
    assert limit.because == "4 TaskManagers are needed, the policy allows 3"


def test_slots_that_are_unknown_forbid_nothing() -> None:
    """The engine reports none; it will run with what it has."""
    without_slots = analysis(deployment=deployment({SOURCE: 1, WORK: 2}, slots=None))
    assert ask({WORK: 12}, "x1", without_slots).possible
    tight = analysis(deployment=deployment({SOURCE: 1, WORK: 2}, slots=Slots(total=4, available=2)))
    assert not ask({WORK: 5}, "x1", tight).possible
