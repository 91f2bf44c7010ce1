"""The planner's metrics of its plans."""

from datetime import timedelta

from prometheus_client import REGISTRY

from tests.unit.knowledge.builders import analysis, at, plan
from weir_planner import telemetry


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_a_plan_counts_by_reason_and_its_age_is_timed() -> None:
    """The plan is made a second after its observation."""
    before = value("weir_planner_plans_total", kind="scale", code="capacity-short")
    count, total = (value(f"weir_planner_observation_age_seconds_{part}") for part in ("count", "sum"))
    telemetry.planned(plan(1, wanted=3))
    assert value("weir_planner_plans_total", kind="scale", code="capacity-short") == before + 1
    assert value("weir_planner_observation_age_seconds_count") == count + 1
    assert value("weir_planner_observation_age_seconds_sum") == total + 1


def test_an_analysis_is_timed_where_its_record_has_a_time() -> None:
    """By the record's clock; a clock that is behind counts as no time."""
    name = "weir_planner_analysis_age_seconds"
    count, total = value(f"{name}_count"), value(f"{name}_sum")
    telemetry.analysed(analysis(1), at(1) + timedelta(seconds=2))
    telemetry.analysed(analysis(1), at(0))
    telemetry.analysed(analysis(1), None)
    assert value(f"{name}_count") == count + 2
    assert value(f"{name}_sum") == total + 2
