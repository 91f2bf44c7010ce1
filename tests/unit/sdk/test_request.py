"""The typed request: what a planner's author asks of it."""

from itertools import product

import pytest
from pydantic import BaseModel, ValidationError

from weir_contracts import CapacityPoint, OperatorAnalysis, PlanRequest, unknown
from weir_predictor import curve_of
from weir_sdk import InvalidParameters, MetricMissing, Request
from weir_sdk.testing import NAMES, request, requests


def test_the_recorded_requests_are_what_they_are_called() -> None:
    """A planner's tests can rely on them."""
    found = {name: request(name) for name in NAMES}
    assert found["warming-up"].analysis.has("warming-up")
    assert not found["steady"].analysis.symptoms
    late = found["overloaded"]
    assert late.needed(late.demand("enrich"), "demand") > late.needed(late.capacity("enrich"), "capacity")
    assert found["catching-up"].analysis.has("catching-up")
    much = found["over-provisioned"]
    assert much.needed(much.capacity("enrich"), "capacity") > 4 * much.needed(much.demand("enrich"), "demand")
    assert found["metric-missing"].analysis.lag_seconds.value is None
    assert found["diamond"].inputs("join") == ["price", "fraud"]
    assert len(found["two-sources"].sources) == 2
    assert all(r.observations and r.memory == {} for r in found.values())


def test_operators_come_in_topological_order() -> None:
    """Sources first, and no operator before its inputs."""
    for plan_request in requests():
        for i, name in enumerate(plan_request.operators):
            assert set(plan_request.inputs(name)) <= set(plan_request.operators[:i])


def test_limits_are_the_tightest_of_policy_key_groups_and_partitions() -> None:
    """More subtasks than partitions stay idle; they may be requested all the same."""
    plan_request = request("steady", bounds={"min": 1, "max": 100, "operators": {"enrich": {"min": 2, "max": 5}}})
    assert plan_request.limits["enrich"] == (2, 5, 5)
    partitions = plan_request.topology.operator(plan_request.sources[0]).source_partitions
    assert plan_request.limits[plan_request.sources[0]] == (1, partitions, 100)
    wide = request("steady", bounds={"min": 1000, "max": 2000})
    groups = wide.topology.operator("enrich").max_parallelism
    assert wide.limits["enrich"] == (groups, groups, groups)


def test_the_minimum_of_a_policy_counts_where_it_exceeds_the_partitions() -> None:
    """The user asked for it, useful or not; one parallelism for all keeps to the limits of each operator."""
    plan_request = request("steady", bounds={"min": 14, "max": 16, "operators": {"enrich": {"min": 2, "max": 5}}})
    source = plan_request.sources[0]
    assert (plan_request.topology.operator(source).source_partitions or 0) < 14
    assert plan_request.limits[source] == (14, 14, 16)
    assert plan_request.max_replicas == max(limits.max for limits in plan_request.limits.values())
    assert plan_request.uniform(3) == dict.fromkeys(plan_request.operators, 14) | {"enrich": 3}
    assert plan_request.replicas == max(plan_request.current.values())


def test_a_copy_reads_itself_again() -> None:
    """Derived values belong to their own request, and a returned value may be changed."""
    plan_request = request("steady")
    current = plan_request.current
    current["enrich"] = 99
    deployment = plan_request.deployment.model_copy(update={"observed": dict.fromkeys(plan_request.operators, 7)})
    assert plan_request.limits and set(plan_request.model_copy(update={"deployment": deployment}).current.values()) == {
        7
    }
    assert plan_request.current["enrich"] != 99


def test_useful_parallelisms_are_those_that_do_something() -> None:
    """The smallest parallelism with the same largest share of partitions or key groups, as Weir's guard rounds it."""
    plan_request = request("steady", bounds={"min": 1, "max": 200})
    for name in plan_request.operators:
        low, high, _ = plan_request.limits[name]
        rounded = {plan_request.topology.smallest_useful(name, p) for p in range(low, high + 1)}
        assert plan_request.useful_parallelisms(name) == sorted(rounded)


def test_an_allowed_minimum_is_useful_by_definition() -> None:
    """The policy's minimum may lie between two of them."""
    source = request("steady").sources[0]
    plan_request = request("steady", bounds={"min": 1, "max": 200, "operators": {source: {"min": 7, "max": 200}}})
    assert plan_request.useful_parallelisms(source)[0] == 7


STEADY = request("steady")


def test_capacity_is_the_predictors() -> None:
    """The same curve as the planner's and the what-if's, also for operators that were measured to do less with more
    subtasks."""
    template = STEADY.analysed("enrich")
    falling = [
        CapacityPoint(parallelism=p, records_per_second=rate, confidence=0.9, saturated=True, measured_at=STEADY.now)
        for p, rate in ((1, 500.0), (4, 900.0), (8, 400.0))
    ]
    operator = template.model_copy(update={"capacities": falling})
    analysis = STEADY.analysis.model_copy(update={"operators": [operator]})
    plan_request, curve = STEADY.model_copy(update={"analysis": analysis}), curve_of(operator, 120)
    assert curve is not None and curve.best is not None
    assert [plan_request.capacity("enrich", p) for p in (1, 2, 8, 100)] == [curve.rate(p) for p in (1, 2, 8, 100)]
    assert plan_request.capacity("enrich") == curve.rate(STEADY.current["enrich"])


def test_what_was_never_seen_is_unknown() -> None:
    """None, and never 0."""
    operator: OperatorAnalysis = request("steady").analysed("enrich")
    blank = operator.model_copy(update={"true_processing_rate": unknown("-"), "capacities": []})
    assert curve_of(blank) is None
    assert request("warming-up").capacity("enrich") is None
    assert request("warming-up").demand("enrich") is None


def test_what_is_needed_and_missing_is_named_with_its_reason() -> None:
    """The sentence says what is unknown, and why."""
    plan_request = request("metric-missing")
    with pytest.raises(MetricMissing, match=r"the lag is unknown: .+"):
        plan_request.needed(plan_request.analysis.lag_seconds, "the lag")
    with pytest.raises(MetricMissing, match=r"^capacity is unknown$"):
        plan_request.needed(None, "capacity")
    assert plan_request.needed(0.0, "nothing") == 0.0
    with pytest.raises(MetricMissing, match="nothing was analysed of nobody"):
        plan_request.analysed("nobody")


def test_operators_left_out_stay_as_they_are() -> None:
    """A planner names what it changes."""
    plan_request = request("steady")
    reply = plan_request.scale({"enrich": 5}, "because", "five are better", demand_per_second=3.5)
    assert reply.parallelism == {**plan_request.current, "enrich": 5}
    assert reply.evidence == {"demand_per_second": 3.5}


def test_an_operator_that_is_not_there_cannot_be_scaled() -> None:
    """The sentence lists those that are."""
    with pytest.raises(ValueError, match="there is no operator enrihc; there are: Source: orders, parse, enrich"):
        request("steady").scale({"enrihc": 5}, "because", "five are better")


@pytest.mark.parametrize("bad", [0, -1, 2.5, "3"])
def test_parallelism_is_a_whole_number_from_one_on(bad: object) -> None:
    """Told where it is made."""
    with pytest.raises((ValidationError, TypeError)):
        request("steady").scale({"enrich": bad}, "because", "so")  # type: ignore[dict-item]


def test_numbers_of_numpy_are_numbers() -> None:
    """In parallelism and in evidence."""
    import numpy as np

    reply = request("steady").scale({"enrich": np.int64(3)}, "because", "so", rate=np.float64(2.5))  # type: ignore[dict-item]
    assert reply.model_dump(mode="json")["evidence"] == {"rate": 2.5}
    assert reply.parallelism is not None
    assert type(reply.parallelism["enrich"]) is int


def test_memory_is_kept_unless_another_is_given() -> None:
    """A request's memory comes with the next one, too."""
    plan_request = request("steady").model_copy(update={"memory": {"n": 1}})
    replies = [plan_request.hold("a", "b"), plan_request.scale({}, "a", "b"), plan_request.hold("a", "b", memory={})]
    assert [reply.memory for reply in replies] == [{"n": 1}, {"n": 1}, {}]


class _Parameters(BaseModel):
    target: float = 0.8


def test_parameters_are_read_into_a_type() -> None:
    """Wrong parameters are named."""
    plan_request = request("steady", planner={"name": "mine", "parameters": {"target": 0.5}})
    assert plan_request.parameters(_Parameters).target == 0.5
    with pytest.raises(InvalidParameters, match="target: "):
        request("steady", planner={"name": "mine", "parameters": {"target": "x"}}).parameters(_Parameters)


@pytest.mark.parametrize(("missing", "part"), [*product(["topology", "deployment"], ["read", "of"])])
def test_what_cannot_be_planned_is_no_request(missing: str, part: str) -> None:
    """Weir holds without a request; a caller that sends one gets the reason."""
    whole = PlanRequest.model_validate(request("steady").model_dump(mode="json", by_alias=True) | {missing: None})
    with pytest.raises(ValueError, match=f"{missing}: is unknown"):
        Request.of(whole) if part == "of" else Request.model_validate_json(whole.model_dump_json())
