"""The executor's metrics of actions: outcomes published, and how long each part of an action took."""

from datetime import datetime

from prometheus_client import Counter, Histogram

from weir_contracts import ActionState, Outcome, Plan

from .core.table import EventName

_LONG = (1, 2, 3, 5, 8, 13, 20, 30, 60, 120, 300)
_OUTCOMES = Counter("weir_executor_outcomes_total", "Outcomes published", ["phase", "code"])
_PLAN_AGE = Histogram(
    "weir_executor_plan_age_seconds",
    "From a plan to the decision to act on it",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 30),
)
_ACCEPT = Histogram(
    "weir_executor_accept_seconds",
    "From the decision to act to the engine's acceptance of the request",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 30),
)
_RESTART = Histogram(
    "weir_executor_restart_seconds",
    "From the engine's acceptance of a request to the new parallelism running",
    buckets=_LONG,
)
_VERIFY = Histogram(
    "weir_executor_verify_seconds", "From the engine's acceptance of a request to its verification", buckets=_LONG
)
_MANAGERS = Histogram(
    "weir_executor_managers_seconds",
    "From the acceptance of a request for TaskManagers to all of their slots registered",
    buckets=_LONG,
)


def admitted(plan: Plan, now: datetime) -> None:
    """Record the age of an admitted plan."""
    _PLAN_AGE.observe(max(0.0, (now - plan.created_at).total_seconds()))


def published(outcome: Outcome) -> None:
    """Count an acknowledged outcome."""
    _OUTCOMES.labels(outcome.phase, outcome.code).inc()


def moved(action: ActionState, event: EventName | None, now: datetime) -> None:
    """Record the durations of a transition, from the action's timestamps."""
    if event == "accepted" and action.phase == "verifying" and action.requested_at is not None:
        _ACCEPT.observe(max(0.0, (action.requested_at - action.started_at).total_seconds()))
    elif event == "running" and action.restart_seconds is not None:
        _RESTART.observe(action.restart_seconds)
    elif event == "prepared" and action.managers is not None and action.managers.start_seconds is not None:
        _MANAGERS.observe(action.managers.start_seconds)
    elif event == "healthy" and action.requested_at is not None:
        _VERIFY.observe(max(0.0, (now - action.requested_at).total_seconds()))
