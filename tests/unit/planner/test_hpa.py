"""The planner `hpa`: worked cases, what stands for replicas and metrics, and what it remembers. Its arithmetic:
test_hpa_golden."""

import json
from collections.abc import Sequence
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
    analysis,
    deployment,
    known,
    operator,
    policy,
    request,
)
from tests.unit.planner.requests import is_whole, requests
from weir_contracts import PlanReply
from weir_contracts.deployment import Pod
from weir_planners.autoscaling import records, v2
from weir_planners.autoscaling.records import Ask, TooManyWorkloads, Workloads
from weir_planners.hpa import HpaParameters
from weir_sdk import InvalidParameters
from weir_sdk.installed import ask, parse_parameters

OFF = v2.Tolerance()
OLD = v2.Tolerance(version="1.32")


def pods(*values: int | None) -> list[v2.Replica]:
    return [v2.Replica(value) for value in values]


def test_the_worked_cases_of_one_metric() -> None:
    """AverageValue of 10 for 10 replicas, the last replica that is never reached, missing and pending pods, integer per
    cent."""
    assert v2.from_average([110_000], 10_000, 10, OFF) == 10
    assert v2.from_average([110_000], 10_000, 10, OLD) == 11
    assert v2.from_average([110_001], 10_000, 10, OFF) == 12
    assert v2.from_average([640_000], 10_000, 63, OFF) == 63
    assert v2.from_average([640_000], 10_000, 58, OFF) == 64
    assert v2.from_values(pods(1500, 1500, None), 1000, 3, OFF) == 3
    assert v2.from_values(pods(500, 500, None), 1000, 3, OFF) == 2
    assert v2.from_values(pods(3000, 3000, None), 1000, 3, OFF) == 6
    pending = v2.Replica(None, phase="Pending")
    assert v2.from_values([*pods(2000), pending, pending], 1000, 3, OFF) == 3
    assert v2.from_utilization(pods(609, 609), 55, 2, OFF) == 2


def test_several_metrics_and_a_missing_one() -> None:
    """The largest; with one missing it may grow and not shrink."""
    absent = v2.NoMetric("gone")
    assert v2.max_proposal([3, 5, 4], 4) == 5
    assert v2.max_proposal([6, absent], 4) == 6
    for proposals in ([3, absent], [absent, absent]):
        with pytest.raises(v2.NoMetric, match="gone"):
            v2.max_proposal(proposals, 4)


def test_defaults_of_a_behavior() -> None:
    """An empty one is not none: 4 pods or 100 % in 15 s up, 100 % down, and 300 s before anything goes down."""
    limits = HpaParameters.model_validate({"behavior": {}}).limits(1, 10)
    assert limits.up == v2.Rules(0, (v2.RatePolicy("Pods", 4, 15), v2.RatePolicy("Percent", 100, 15)))
    assert limits.down == v2.Rules(300, (v2.RatePolicy("Percent", 100, 15),))
    assert HpaParameters().limits(1, 10).up is None


@given(
    st.lists(st.tuples(st.floats(0.5, 400), st.integers(0, 30)), min_size=1, max_size=40),
    st.sampled_from([(0, 300), (60, 120), (600, 0)]),
    st.booleans(),
)
def test_what_is_left_out_of_the_records_changes_nothing(
    steps: Sequence[tuple[float, int]], windows: tuple[int, int], has_behavior: bool
) -> None:
    """Records that a later one outdoes are not carried; with all of them the decisions are the same."""
    everything = (v2.RatePolicy("Percent", 900, 15),)
    rules = (v2.Rules(windows[0], everything), v2.Rules(windows[1], (v2.RatePolicy("Percent", 100, 15),)))
    limits = v2.Limits(1, 30, *rules) if has_behavior else v2.Limits(1, 30)
    pruned, all_of_them = v2.begun(v2.Records(), 5, 0.0), v2.begun(v2.Records(), 5, 0.0)
    now, current = 0.0, 5
    for passed, proposal in steps:
        now += passed
        settled, pruned = v2.settle(pruned, limits, current, proposal, now)
        expected, _ = v2.settle(all_of_them, limits, current, proposal, now)
        all_of_them = v2.Records((*all_of_them.recommendations, (now, proposal)))
        assert settled == expected
        assert len(pruned.recommendations) <= 62
        current = settled.replicas


@given(st.lists(st.tuples(st.floats(0.5, 60), st.integers(1, 30)), min_size=3, max_size=60), st.integers(2, 16))
def test_condensed_records_decide_the_same_or_more_cautiously(
    steps: Sequence[tuple[float, int]], max_records: int
) -> None:
    """Where memory is short a window may hold back longer, and never lets go sooner."""
    limits = v2.Limits(
        1, 30, v2.Rules(120, (v2.RatePolicy("Pods", 30, 15),)), v2.Rules(120, (v2.RatePolicy("Pods", 30, 15),))
    )
    at, proposals = 0.0, []
    for passed, proposal in steps:
        at += passed
        proposals.append((at, proposal))
    full = v2.Records(tuple(proposals))
    short = records.condensed(full, max_records)
    for proposal in (1, 15, 30):
        wanted = v2.settle(full, limits, 15, proposal, at + 1)[0].replicas
        cautious = v2.settle(short, limits, 15, proposal, at + 1)[0].replicas
        assert 15 <= cautious <= wanted or wanted <= cautious <= 15


def answer(parameters: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **of: Any) -> PlanReply:
    """Return the reply of `hpa` to `analysis(**of)`."""
    chosen = policy(planner={"name": "hpa", "parameters": parameters or {}}, **(spec or {}))
    changes = {name: of.pop(name) for name in ("memory", "signals", "now") if name in of}
    return ask(request(analysis(the_policy=chosen, **of), **changes), "hpa")


def test_each_operator_is_a_workload() -> None:
    """Work is busy all the time: 2 · 100 / 80 = 2.5, so 3. The source is at 2 %, and has one."""
    reply = answer(arrivals=2400, work=2)
    assert (reply.kind, reply.code) == ("scale", "above-target")
    assert reply.parallelism == {SOURCE: 1, WORK: 3}
    assert reply.sentence == "work 2 → 3: the metric asks work for 3"
    assert reply.evidence["busy[work]"] == 1.0


def test_the_policys_utilization_is_the_default_target() -> None:
    """Busy at 60 %: 2 · 80 / 50 = 3.2."""
    reply = answer(spec={"objective": {"utilization": 0.5}}, arrivals=800, work=2)
    assert reply.parallelism == {SOURCE: 1, WORK: 4}


def test_a_tenth_is_tolerated() -> None:
    """88 % of a target of 80 % is the last that is."""
    assert answer(arrivals=880, work=2).code == "within-tolerance"
    assert answer(arrivals=900, work=2).parallelism == {SOURCE: 1, WORK: 3}


def test_the_application_as_one_workload() -> None:
    """As many replicas as its widest operator; then every operator gets the same, as far as it may."""
    bounds = {"bounds": {"min": 1, "max": 12, "operators": {SOURCE: {"max": 2}}}}
    reply = answer({"scope": "application"}, bounds, arrivals=2400, work=2)
    assert reply.parallelism == {SOURCE: 2, WORK: 3}
    assert answer({"scope": "application"}, arrivals=800, work=2).kind == "hold"


def test_a_signal_and_lag_as_external_metrics() -> None:
    """A signal by its name, at 100 for each replica; the lag in seconds as a total."""
    signal = {
        "metrics": [{"name": "queue", "target": {"type": "AverageValue", "averageValue": 100}}],
        "scope": "application",
    }
    assert answer(signal, signals={"queue": 350.0}, work=2).parallelism == {SOURCE: 4, WORK: 4}
    unknown = answer(signal, signals={"other": 1.0})
    assert (unknown.kind, unknown.code) == ("hold", "metric-missing")
    assert "queue is no signal of this application (there are: busy" in unknown.sentence
    assert "queue has no value now" in answer(signal, signals={"queue": None}).sentence
    lag = {"metrics": [{"name": "lag_seconds", "target": {"type": "Value", "value": 10}}], "scope": "application"}
    assert answer(lag, lag_seconds=15.0, work=4).parallelism == {SOURCE: 6, WORK: 6}


def test_records_per_second_of_each_subtask() -> None:
    """An average of 400/s is wanted, 1,800/s arrive: 5 subtasks."""
    metrics = [{"name": "input_rate", "target": {"type": "AverageValue", "averageValue": 400}}]
    reply = answer({"metrics": metrics}, arrivals=1800, work=2)
    assert reply.parallelism == {SOURCE: 4, WORK: 4}  # without behavior never more than twice as many, or 4
    assert reply.sentence.endswith(": the metric asks orders for 5 and no more can be added at once; 1 more")


def test_pods_with_their_cpu() -> None:
    """One pod starts and counts as idle going up, one has no sample; requests of a core, 95 % of it in use."""
    started = NOON - timedelta(hours=1)
    running = [Pod(name=f"p{i}", ready=True, started_at=started, cpu_cores=0.95, cpu_request_cores=1) for i in range(2)]
    starting = Pod(name="new", ready=False, started_at=NOON - timedelta(seconds=20), cpu_cores=2.0, cpu_request_cores=1)
    silent = Pod(name="silent", ready=True, started_at=started, cpu_request_cores=1)

    def with_pods(*all_of_them: Pod) -> PlanReply:
        metrics = [{"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}]
        found = deployment({SOURCE: 1, WORK: 2}, pods=list(all_of_them))
        return answer({"metrics": metrics, "scope": "application"}, deployment=found, work=2)

    assert with_pods(*running).parallelism == {SOURCE: 4, WORK: 4}
    assert with_pods(*running, starting).evidence["proposal"] == 4  # 1.9 / 3 over 0.5 is 1.26, truncated to per cent
    assert with_pods(*running, starting, silent).evidence["proposal"] == 2  # 47 % of 4 is tolerated
    nothing = with_pods()
    assert (nothing.code, nothing.sentence) == (
        "metric-missing",
        "cpu is unknown (no pods were observed), so nothing changes",
    )


def test_a_missing_reading_holds_and_is_named() -> None:
    """All of it, or of one operator: that one stays."""
    reply = answer(work=8, operators=[operator(SOURCE, 1, None, None), operator(WORK, 8, None, None)])
    assert (reply.kind, reply.code) == ("hold", "metric-missing")
    assert "busy of work is unknown: no reading yet" in reply.sentence
    without_rate = [operator(SOURCE, 4, None, None), operator(WORK, 2, 1000.0, 2400.0)]
    reply = answer(work=2, operators=without_rate, deployment=deployment({SOURCE: 4, WORK: 2}))
    assert reply.parallelism == {SOURCE: 4, WORK: 3}
    assert "busy of orders is unknown" in reply.sentence


def lives(parameters: dict[str, Any], *cycles: tuple[float, int, float]) -> list[int]:
    """Return the recommendation for `work` of each cycle (seconds after noon, parallelism, busy share)."""
    recommendations: list[int] = []
    memory: dict[str, Any] = {}
    for seconds, work, busy in cycles:
        quiet = operator(SOURCE, 1, 1000.0, 800.0)
        operators = [quiet, operator(WORK, work, 1000.0, 800.0, utilization=known(busy))]
        reply = answer(parameters, work=work, operators=operators, memory=memory, now=NOON + timedelta(seconds=seconds))
        memory = json.loads(json.dumps(reply.memory))
        recommendations.append((reply.parallelism or {WORK: work})[WORK])
    return recommendations


def test_it_goes_down_by_the_max_recommendation_of_five_minutes() -> None:
    """Five were wanted at noon, then one; the size at the start counts, too."""
    assert lives({}, (0, 4, 1.0), (60, 5, 0.1), (299, 5, 0.1), (301, 5, 0.1), (361, 5, 0.1)) == [5, 5, 5, 1, 1]


def test_rates_count_changes_that_were_seen() -> None:
    """One pod in a minute: nothing more until a minute after the change was asked for; a change by others is not
    counted."""
    up = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}
    slow = {"behavior": {"scaleUp": up}}
    assert lives(slow, (0, 2, 1.0), (5, 2, 1.0), (20, 3, 1.0), (64, 3, 1.0), (66, 3, 1.0)) == [3, 3, 3, 3, 4]
    assert lives(slow, (0, 2, 0.8), (20, 3, 1.0)) == [2, 4]


def test_disabled_never_goes_there() -> None:
    """selectPolicy Disabled forbids a direction."""
    assert lives({"behavior": {"scaleUp": {"selectPolicy": "Disabled"}}}, (0, 2, 1.0), (400, 2, 1.0)) == [2, 2]


def test_outside_of_its_limits_it_comes_back_without_metrics() -> None:
    """For any metrics."""
    reply = answer({"maxReplicas": 4}, work=8, operators=[operator(SOURCE, 1, 1.0, 0.8), operator(WORK, 8, None, None)])
    assert reply.parallelism == {SOURCE: 1, WORK: 4}


def test_a_strange_memory_is_forgotten() -> None:
    """Another planner's, or another graph's."""
    for memory in (
        {"autoscaler": 3},
        {"autoscaler": {"of": "x", "base": 0, "workloads": []}},
        {"autoscaler": {"of": 1}},
    ):
        assert answer(arrivals=2400, work=2, memory=memory).parallelism == {SOURCE: 1, WORK: 3}


def test_memory_fits_or_it_holds_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 operators with 40 records each fit, condensed, 1,000 packed, and are read back; thousands hold with advice."""

    def remembered(count: int, many: int = 40) -> Workloads:
        names = [f"operator-{i}" for i in range(count)]
        workloads = Workloads(names)
        for name in names:
            recommendations = tuple((1000.0 + i, (i * 7) % 30) for i in range(many))
            workloads.keep(name, v2.Records(recommendations), 5, Ask(1000.0, 6))
        return workloads

    limits = v2.Limits(minimum=1, maximum=50)
    for count, many in ((150, 40), (1000, 3)):
        workloads = remembered(count, many)
        memory = workloads.memory()
        assert len(json.dumps(memory)) < 16_000
        again = Workloads.of(memory, workloads.names)
        largest = max(n for _, n in workloads.observed("operator-7", limits, 5, 1100.0).recommendations)
        assert max(n for _, n in again.observed("operator-7", limits, 5, 1100.0).recommendations) == largest
    monkeypatch.setattr(records, "MAX_BYTES", 90)
    with pytest.raises(TooManyWorkloads, match="1,000 operators do not fit into a plan: use scope: application"):
        workloads.memory()
    assert answer(arrivals=800).code == "too-many-operators"
    assert answer({"scope": "application"}, arrivals=800).code == "within-tolerance"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"behaviour": {}}, "behaviour: is not a parameter"),
        (
            {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 15}]}}},
            "value: .*greater than 0",
        ),
        ({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 3601}}}, "stabilizationWindowSeconds"),
        (
            {"version": "1.32", "behavior": {"scaleUp": {"tolerance": 0}}},
            "a tolerance per direction needs version 1.34",
        ),
        ({"minReplicas": 5, "maxReplicas": 4}, "minReplicas: is above maxReplicas"),
        (
            {"metrics": [{"name": "busy", "target": {"type": "Value", "value": 1}}]},
            "busy takes Utilization or AverageValue",
        ),
        (
            {"metrics": [{"name": "q", "target": {"type": "Value", "averageValue": 1}}]},
            "of type Value has value, and no other",
        ),
        (
            {"metrics": [{"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}]},
            "needs scope: application",
        ),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    """As in the resource, with its limits."""
    with pytest.raises(InvalidParameters, match=message):
        parse_parameters("hpa", parameters)


def test_a_tolerance_per_direction() -> None:
    """Up at once, down only from a half."""
    both = {
        "behavior": {"scaleUp": {"tolerance": 0.0}, "scaleDown": {"tolerance": 0.5, "stabilizationWindowSeconds": 0}}
    }
    assert answer(both, arrivals=850, work=2).parallelism == {SOURCE: 1, WORK: 3}
    assert answer(both, arrivals=500, work=2).kind == "hold"


@given(
    st.sampled_from(
        [
            {},
            {"scope": "application", "behavior": {}},
            {"metrics": [{"name": "lag_records", "target": {"type": "AverageValue", "averageValue": 0.001}}]},
            {
                "metrics": [{"name": "input_rate", "target": {"type": "AverageValue", "averageValue": 7}}],
                "version": "1.32",
            },
        ]
    ),
    st.data(),
)
@examples(20)
def test_every_request_is_answered(parameters: dict[str, Any], data: st.DataObject) -> None:
    """For any numbers: a complete vector or a hold, with its reason."""
    plan_request = data.draw(requests("hpa", **parameters))
    assert is_whole(ask(plan_request, "hpa"), plan_request)
