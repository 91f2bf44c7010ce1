"""Metrics of decisions, of the age of the observations that they are based on, and of planners without a usable reply,
whose plan is a hold."""

from datetime import datetime

from prometheus_client import Counter, Gauge, Histogram

from weir_contracts import Analysis, Plan, PlanReply
from weir_runtime.loop import CardinalityLimiter

from .core.decide import FAILED

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
_FAILURES = Counter("weir_planner_failures_total", "Planners that gave no answer", ["planner", "reason"])
_OF_SHADOWS = Counter(
    "weir_planner_shadow_failures_total", "Shadows, and planners in trials, that gave no answer", ["planner", "reason"]
)
_code = CardinalityLimiter(MAX_CODES)
_SKIPPED = Counter("weir_planner_analyses_skipped_total", "Analyses left out because a newer one was there")
_PENDING = Gauge("weir_planner_decisions_under_way", "Decisions whose planner has not answered yet")
_planner = CardinalityLimiter(100)


def analysed(analysis: Analysis, written_at: datetime | None) -> None:
    """Record the age of an analysis; `written_at` is its record's time."""
    if written_at is not None:
        _ANALYSED.observe(max(0.0, (written_at - analysis.observed_at).total_seconds()))


def skipped() -> None:
    """Count an analysis that a newer one replaces."""
    _SKIPPED.inc()


def pending(decisions: int) -> None:
    """Record the number of decisions whose planner has not answered."""
    _PENDING.set(decisions)


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


class PlannerFailed(Exception):
    """A planner gave no usable reply. `counts`: the planner itself is slow, down or broken, so that several in a row open
    its circuit; a refusal of one request, or a call that never began, does not count."""

    def __init__(self, sentence: str, *, code: str = FAILED, counts: bool = True) -> None:
        self.sentence = sentence
        self.code = code
        self.counts = counts
        super().__init__(sentence)


def no_reply(
    planner: str, code: str, sentence: str, reason: str | None = None, *, of_shadow: bool = False
) -> PlanReply:
    """Return the hold, and count it; `reason` is the metric's label if it says more than the code.

    Failures of shadows and in trials are counted separately, since they decide nothing.
    """
    (_OF_SHADOWS if of_shadow else _FAILURES).labels(_planner(planner), reason or code).inc()
    return PlanReply(kind="hold", code=code, sentence=sentence)
