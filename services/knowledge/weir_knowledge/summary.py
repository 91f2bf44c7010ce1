"""The summary of an application, as a list and a screen show it. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import Field

from weir_contracts import (
    ActionState,
    Message,
    Parallelism,
    PolicySpec,
    ScalingPolicy,
    Score,
)
from weir_contracts.base import Timestamp

from .newest import Digest, Glance
from .spend import (
    NO_PRICES,
    AdviceView,
    Prices,
    SpendView,
    advice_view,
    spend_sentence,
    spend_view,
)

Stage = Literal["monitor", "analyzer", "planner"]

MIN_SILENCE_SECONDS = 15.0
DEFAULT_INTERVAL_SECONDS: float = PolicySpec.model_fields["interval"].default.total_seconds()
"""Of an application without a policy."""


class Ages(Message):
    """Seconds since the last message of each stage; None: none arrived yet."""

    monitor: float | None = None
    analyzer: float | None = None
    planner: float | None = None


class Summary(Message):
    """An application on one screen."""

    application: str
    engine: str | None = None
    """What runs it, as its policy says: flink, kafkaStreams, consumerGroup or service."""
    mode: str | None = None
    status: str | None = None
    objective_seconds: float | None = None
    lag_seconds: float | None = None
    lag_records: float | None = None
    arrival_rate: float | None = None
    lower_bounds: dict[str, float] = Field(default_factory=dict)
    """What is known in part of `lag_seconds`, `lag_records` and `arrival_rate`, by name: the value is this or more."""
    bottleneck: str | None = None
    planned: Parallelism | None = None
    requested: Parallelism | None = None
    observed: dict[str, int] | None = None
    """Subtasks that run; 0 of workloads without a ready replica."""
    decision: str | None = None
    decision_code: str | None = None
    decided_at: Timestamp | None = None
    action: str | None = None
    action_phase: str | None = None
    obstacle: str | None = None
    """Why the application cannot be scaled now. None: no reason is known."""
    obstacle_code: str | None = None
    ages_seconds: Ages = Field(default_factory=Ages)
    silent: list[Stage] = Field(default_factory=list)
    """Stages whose last message is older than three intervals (at least 15 s)."""
    problems: list[str] = Field(default_factory=list)
    """Problems of the last scrape, ten at most."""
    spend: SpendView | None = None
    """Slot-hours since the policy acts. None: it does not act, or too little was observed."""
    advice: AdviceView | None = None
    """What following the plans would have cost, and how late it would have been. None: the policy does not advise, or too
    little was observed."""
    scores: list[Score] = Field(default_factory=list)
    """What the plans of the policy's planner, candidates and shadows would have led to. Empty: it has one planner, or
    nothing was judged yet."""
    spend_sentence: str | None = None
    """The one that is known of both in a sentence, or why nothing is."""


_PASSING = frozenset({"other-deployment", "unreachable", "rollout", "rollback-unreachable"})
_LASTING = frozenset({"contested", "unsupported", "paused-workload", "other-autoscaler", "selector", "forbidden"}) | {
    *("namespace-forbidden", "no-target", "out-of-reach", "rejected", "rollback-rejected")
}
"""Codes of outcomes of a target that is not scaled: until the next plan, and until another outcome."""


def _obstacle(glance: Glance) -> tuple[str, str] | tuple[None, None]:
    """Return code and sentence of what keeps the application from being scaled: the target as it was last observed, or
    the executor's last word."""
    if glance.target is not None:
        return glance.target
    if glance.outcome is not None:
        code, is_planned = glance.outcome[0], glance.plan_kind not in (None, "hold")
        if code in _LASTING or (code in _PASSING and is_planned):
            return glance.outcome
    return None, None


def summarise(
    digest: Digest,
    policy: ScalingPolicy | None,
    action: ActionState | None,
    now: datetime,
    prices: Prices = NO_PRICES,
) -> Summary:
    """Summarise an application. A stage is silent after three intervals (at least 15 s) without a message."""
    glance, times = digest.glance, digest.times
    stages: Mapping[Stage, datetime | None] = {
        "monitor": times.observation, "analyzer": times.analysis, "planner": times.plan
    }  # fmt: skip
    ages = {
        stage: None if at is None else round(max(0.0, (now - at).total_seconds()), 3) for stage, at in stages.items()
    }
    interval_seconds = policy.spec.interval.total_seconds() if policy else DEFAULT_INTERVAL_SECONDS
    limit = max(3 * interval_seconds, MIN_SILENCE_SECONDS)
    mode = policy.spec.mode if policy else None
    spend, advice = spend_view(digest.spend, prices), advice_view(digest.advice, prices)
    code, obstacle = _obstacle(glance)
    return Summary(
        application=digest.application,
        engine=policy.subject.application.field if policy else None,
        mode=mode,
        status=glance.status,
        objective_seconds=policy.spec.objective.bound_seconds if policy else None,
        lag_seconds=glance.lag_seconds,
        lag_records=glance.lag_records,
        arrival_rate=glance.arrival_rate,
        lower_bounds=glance.lower_bounds,
        bottleneck=glance.bottleneck,
        planned=glance.planned,
        requested=glance.requested,
        observed=glance.observed,
        decision=glance.decision,
        decision_code=glance.decision_code,
        decided_at=glance.decided_at,
        action=action.sentence if action else None,
        action_phase=action.phase if action else None,
        obstacle=obstacle,
        obstacle_code=code,
        ages_seconds=Ages.model_validate(ages),
        silent=[name for name, age in ages.items() if age is None or age > limit],
        problems=glance.problems,
        spend=spend,
        advice=advice,
        scores=glance.scores,
        spend_sentence=spend_sentence(spend, advice, digest.advice if mode == "advise" else None),
    )
