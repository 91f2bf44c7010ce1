"""The applications' series: they show the newest messages, and are removed with the application."""

from typing import Any

from prometheus_client import CollectorRegistry

from tests.unit.knowledge.builders import APP, analysis, at, observation, outcome, plan, policy
from tests.unit.knowledge.log_world import LogWorld
from weir_contracts import Deployment, Operator, Topology, unknown
from weir_contracts.analysis import OperatorAnalysis, Symptom
from weir_contracts.base import Estimate
from weir_knowledge.gauges import LEFT_OUT, SHOWN, ApplicationGauges

OTHER = "shop/payments"


def estimate(value: float) -> Estimate:
    return Estimate(value=value, basis="measured", confidence=0.9)


def operator(name: str, **changes: Any) -> OperatorAnalysis:
    measured = ("input_rate", "true_processing_rate", "utilization", "backpressure", "skew", "target_input_rate")
    estimates = dict.fromkeys((*measured, "output_rate", "true_processing_rate_per_subtask"), unknown("not measured"))
    return OperatorAnalysis(**{"operator": name, "parallelism": 2, **estimates, **changes})


def deployment(**changes: Any) -> Deployment:
    kinds = {"job_id": "a", "job_name": "orders", "graph_hash": "b", "state": "RUNNING", "observed": {"work": 2}}
    return Deployment(**{**kinds, **changes})


class Shown:
    """A registry with the gauges in it, and its output."""

    def __init__(self, **limits: Any) -> None:
        self.gauges = ApplicationGauges(**limits)
        self._registry = CollectorRegistry()
        self._registry.register(self.gauges)

    def value(self, name: str, application: str | None = APP, **labels: str) -> float | None:
        whose = {} if application is None else {"application": application}
        return self._registry.get_sample_value(name, {**whose, **labels})

    def lines(self, application: str = APP) -> int:
        """How many series an application has."""
        samples = [s for family in self._registry.collect() for s in family.samples]
        return sum(s.labels.get("application") == application for s in samples)


def test_what_the_newest_messages_say_is_shown() -> None:
    """Readings, understanding and decision: each from the stage that knows it."""
    shown = Shown()
    topology = Topology(operators=[Operator(name="work", id="1")])
    shown.gauges.saw(observation(1, deployment=deployment(requested={"work": 3}, restarts=4), topology=topology))
    shown.gauges.saw(
        analysis(
            1,
            lag_seconds=estimate(7.5),
            bottleneck="work",
            operators=[operator("work", true_processing_rate=estimate(900.0)), operator("sink")],
            symptoms=[Symptom(code="skewed", evidence="one of two"), Symptom(code="skewed", evidence="another")],
        )
    )
    shown.gauges.saw(plan(1, wanted=4))
    shown.gauges.saw(outcome(plan(1, wanted=4), "verified"))
    assert shown.value("weir_application_status", status="running") == 1
    assert shown.value("weir_application_mode", mode="advise") == 1
    assert shown.value("weir_application_objective_seconds", bound="lag") == 30
    assert shown.value("weir_application_slots") == 2
    assert shown.value("weir_application_restarts") == 4
    assert shown.value("weir_application_arrival_records_per_second") == 100
    assert shown.value("weir_application_lag_seconds") == 7.5
    assert shown.value("weir_application_symptom", code="skewed") == 1
    assert shown.value("weir_application_decision", kind="scale", code="capacity-short") == 1
    kinds = ("planned", "requested", "observed")
    assert [shown.value(f"weir_operator_parallelism_{fact}", operator="work") for fact in kinds] == [4, 3, 2]
    assert shown.value("weir_operator_capacity_records_per_second", operator="work") == 900
    assert [shown.value("weir_operator_bottleneck", operator=o) for o in ("work", "sink")] == [1, 0]
    assert shown.value("weir_application_last_message_timestamp_seconds", stage="analyzer") == at(1).timestamp()


def test_unknown_is_no_series() -> None:
    """A zero would draw an application without lag, and raise no alarm."""
    shown = Shown()
    shown.gauges.saw(analysis(1, operators=[operator("work")]))
    assert shown.value("weir_application_lag_seconds") is None
    assert shown.value("weir_operator_capacity_records_per_second", operator="work") is None
    shown.gauges.saw(observation(1))
    assert shown.value("weir_operator_parallelism_observed", operator="work") is None


def test_a_newer_message_takes_the_place_of_the_one_before() -> None:
    """Series of the last decision do not stay next to the new ones."""
    shown = Shown()
    shown.gauges.saw(plan(1, wanted=4))
    shown.gauges.saw(plan(2))
    assert shown.value("weir_application_decision", kind="scale", code="capacity-short") is None
    assert shown.value("weir_application_decision", kind="hold", code="within-objective") == 1
    assert shown.value("weir_operator_parallelism_planned", operator="work") == 1


def test_an_application_that_ended_has_no_series() -> None:
    """Whatever comes last."""
    shown = Shown()
    for message in (observation(1), analysis(1), plan(1), observation(2, status="ended")):
        shown.gauges.saw(message)
    assert shown.lines() == 0
    assert shown.value(SHOWN, None) == 0


def test_what_another_replica_took_over_is_shown_there() -> None:
    """Two replicas that both showed it would disagree."""
    shown = Shown(partition=lambda application: int(application == OTHER))
    shown.gauges.saw(observation(1))
    shown.gauges.saw(observation(1, OTHER))
    shown.gauges.lost(frozenset({1}))
    assert shown.lines() > 0
    assert shown.lines(OTHER) == 0


def test_there_are_never_more_series_than_set() -> None:
    """Applications beyond the limit are counted, operators beyond theirs left out; room that is made is used."""
    shown = Shown(applications=1, operators=2)
    shown.gauges.saw(analysis(1, operators=[operator(f"o{i}") for i in range(9)]))
    shown.gauges.saw(observation(1, OTHER))
    assert shown.value("weir_operator_bottleneck", operator="o1") == 0
    assert shown.value("weir_operator_bottleneck", operator="o2") is None
    assert shown.value(LEFT_OUT, None) == 1
    shown.gauges.saw(observation(2, status="ended"))
    shown.gauges.saw(observation(2, OTHER))
    assert shown.lines(OTHER) > 0
    assert shown.value(LEFT_OUT, None) == 0


async def test_the_service_shows_what_it_remembers() -> None:
    """A message on the bus becomes a series; the application's end takes it away."""
    world, gauges = LogWorld(), ApplicationGauges()
    knowledge = world.replica()
    knowledge.gauges = gauges
    await world.decide(policy())
    shown = Shown()
    shown.gauges = gauges
    registry = CollectorRegistry()
    registry.register(gauges)
    status = {"application": APP, "status": "running"}
    await world.send(observation(1), analysis(1), plan(1))
    async with world.running(knowledge):
        await world.until(world.is_applied)
        assert registry.get_sample_value("weir_application_status", status) == 1
        await world.delete(5)
        await world.until(world.is_applied)
    assert registry.get_sample_value("weir_application_status", status) is None
