"""Metrics of the loop: decisions, and the age of the observations that they are based on."""

from datetime import datetime

from prometheus_client import Counter, Histogram

from weir_contracts import Analysis, Plan
from weir_runtime.loop import CardinalityLimiter

MAX_CODES = 200
"""Distinct codes in the metric: remote planners choose their own."""
_BUCKETS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10, 30)
_PLANS = Counter("weir_planner_plans_total", "Plans published", ["kind", "code"])
_AMENDMENTS = Counter("weir_planner_amendments_total", "Plans that a guard amended", ["guard"])
_ANALYSED = Histogram(
    "weir_planner_analysis_age_seconds", "From an observation to its analysis in Kafka", buckets=_BUCKETS
)
_AGE = Histogram("weir_planner_observation_age_seconds", "From an observation to its plan", buckets=_BUCKETS)
_TOOK = Histogram(
    "weir_planner_planning_seconds",
    "For one decision, its planner included",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
_code = CardinalityLimiter(MAX_CODES)


def analysed(analysis: Analysis, written_at: datetime | None) -> None:
    """Record the age of an analysis; `written_at` is its record's time."""
    if written_at is not None:
        _ANALYSED.observe(max(0.0, (written_at - analysis.observed_at).total_seconds()))


def planned(plan: Plan) -> None:
    """Record a plan that the brokers acknowledged."""
    _PLANS.labels(plan.kind, _code(plan.code)).inc()
    for guard in {amendment.guard for amendment in plan.amendments}:
        _AMENDMENTS.labels(guard).inc()
    _AGE.observe(max(0.0, age_seconds(plan)))
    if plan.planning_seconds is not None:
        _TOOK.observe(plan.planning_seconds)


def age_seconds(plan: Plan) -> float:
    """Return the age of the observation when the plan was made."""
    return (plan.created_at - plan.observed_at).total_seconds()
