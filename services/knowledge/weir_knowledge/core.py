"""The stored state of an application, and how each message changes it. Pure."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal, get_args
from uuid import UUID

from pydantic import Field, ValidationError

from weir_contracts import (
    ActionState,
    Analysis,
    Deployment,
    Estimate,
    LoopResult,
    Message,
    Observation,
    Outcome,
    OutcomeOrder,
    Parallelism,
    Plan,
    PolicySpec,
    ScalingPolicy,
    Score,
    Symptom,
    precedes,
)
from weir_contracts.base import Timestamp

from .notifications import Lateness, lateness_after
from .spend import (
    NO_PRICES,
    Advice,
    AdviceView,
    Prices,
    Spend,
    SpendView,
    advice_view,
    advised,
    spend_sentence,
    spend_view,
    spent,
)

Event = Observation | Analysis | Plan | Outcome
Kind = Literal["observation", "analysis", "plan", "outcome"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Stage = Literal["monitor", "analyzer", "planner"]

MAX_HISTORY_COUNT = 10_000
MAX_CYCLES_COUNT = 1_000
MAX_OPEN_CYCLES = 20
USUAL_OPERATORS = 50
MAX_CYCLES_BYTES = 4_000_000
"""Of the explained cycles of an application: each message about it reads and writes them."""
MAX_OUTCOMES = 20
"""Of one cycle: the newest."""
MAX_PROBLEMS = 10
MIN_SILENCE_SECONDS = 15.0
DEFAULT_INTERVAL_SECONDS: float = PolicySpec.model_fields["interval"].default.total_seconds()
"""Of an application without a policy."""


class HistoryLimits(Message):
    """How much history is kept for each application."""

    history_count: Annotated[int, Field(ge=1, le=MAX_HISTORY_COUNT)] = 500
    history_age_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    cycles_count: Annotated[int, Field(ge=1, le=MAX_CYCLES_COUNT)] = 60


class Reading(Message):
    """The part of an observation that explains a decision."""

    observed_at: Timestamp
    status: str
    message: str = ""
    observed: dict[str, int] = Field(default_factory=dict)
    problems: list[str] = Field(default_factory=list)


class Understanding(Message):
    """The part of an analysis that explains a decision."""

    arrival_rate: Estimate
    lag_records: Estimate
    lag_seconds: Estimate
    throughput: float | None = None
    """Records/s that all sources together take in. None: unknown."""
    bottleneck: str | None = None
    symptoms: list[Symptom] = Field(default_factory=list)


class Cycle(Message):
    """One cycle of the loop, joined by the observation's id: observation → analysis → plan with guards → outcomes."""

    correlation_id: UUID
    reading: Reading | None = None
    analysis: Understanding | None = None
    plan: Plan | None = None
    outcomes: list[Outcome] = Field(default_factory=list)


class End(Message):
    """The result of an earlier cycle's plan, or its present phase."""

    plan_id: UUID
    phase: str


HistoryEntry = LoopResult | End
"""An entry of the append-only history, which is stored apart from the state that each message needs."""


class Past(Message):
    """Past cycles of an application under another Weir, which an import carries."""

    history: Annotated[list[LoopResult], Field(max_length=MAX_HISTORY_COUNT)] = Field(default_factory=list)
    """One line each."""
    cycles: Annotated[list[Cycle], Field(max_length=MAX_CYCLES_COUNT)] = Field(default_factory=list)
    """Explained ones, each with its plan."""


class NewestTimes(Message):
    """When the newest message of each kind was observed; of outcomes the order of the newest. None: none arrived yet."""

    observation: Timestamp | None = None
    analysis: Timestamp | None = None
    plan: Timestamp | None = None
    outcome: OutcomeOrder | None = None

    def newer_than(self, outcome: Outcome) -> bool:
        """Return whether an outcome is older than the newest one, whatever order the two arrived in."""
        return self.outcome is not None and precedes(outcome.order, self.outcome)

    @property
    def newest(self) -> datetime | None:
        """When the newest message of all kinds was observed."""
        outcome = self.outcome and self.outcome[1]
        return max((at for at in (self.observation, self.analysis, self.plan, outcome) if at), default=None)


class Newest(Message):
    """The newest message of each kind of one application, for clients; the next message does not need them."""

    application: str
    observation: Observation | None = None
    analysis: Analysis | None = None
    plan: Plan | None = None
    outcome: Outcome | None = None

    @classmethod
    def read(cls, application: str, documents: Mapping[str, str]) -> "Newest":
        """Read JSON by kind. `ValueError` for an invalid message."""
        parts = [("application", json.dumps(application)), *documents.items()]
        body = ",".join(f'"{name}":{text}' for name, text in parts)
        return cls.model_validate_json(f"{{{body}}}")

    def times(self) -> NewestTimes:
        """Return the times that a state keeps of these messages."""
        messages = (message for kind in KINDS if (message := getattr(self, kind)) is not None)
        return NewestTimes().model_copy(update={kind_of(message): _position(message) for message in messages})


class Glance(Message):
    """The parts of the newest messages that a summary shows: a hundredth of what they hold. None: no message had it."""

    status: str | None = None
    requested: Parallelism | None = None
    observed: dict[str, int] | None = None
    problems: list[str] = Field(default_factory=list)
    target: tuple[str, str] | None = None
    """Code and sentence of what was wrong with the target when it was last observed."""
    lag_seconds: float | None = None
    lag_records: float | None = None
    arrival_rate: float | None = None
    lower_bounds: dict[str, float] = Field(default_factory=dict)
    bottleneck: str | None = None
    planned: Parallelism | None = None
    plan_kind: str | None = None
    decision: str | None = None
    decision_code: str | None = None
    decided_at: Timestamp | None = None
    scores: list[Score] = Field(default_factory=list)
    outcome: tuple[str, str] | None = None
    """Code and sentence."""

    def after(self, event: Event) -> "Glance":
        """Return what is seen once `event` is the newest of its kind."""
        if isinstance(event, Observation):
            deployment = event.deployment
            return self.model_copy(
                update={
                    "status": event.status,
                    "requested": deployment.requested if deployment else None,
                    "observed": _running(deployment) if deployment else None,
                    "problems": _problems(event),
                    "target": _target_problem(event),
                }
            )
        if isinstance(event, Analysis):
            return self.model_copy(
                update={
                    "lag_seconds": event.lag_seconds.value,
                    "lag_records": event.lag_records.value,
                    "arrival_rate": event.arrival_rate.value,
                    "lower_bounds": _lower_bounds(event),
                    "bottleneck": event.bottleneck,
                }
            )
        if isinstance(event, Plan):
            return self.model_copy(
                update={
                    "planned": event.approved or event.current or None,
                    "plan_kind": event.kind,
                    "decision": event.sentence,
                    "decision_code": event.code,
                    "decided_at": event.created_at,
                    "scores": [course.score for course in event.state.courses],
                }
            )
        return self.model_copy(update={"outcome": (event.code, event.sentence)})


class Digest(Message):
    """What a summary of an application is made of."""

    application: str
    times: NewestTimes = Field(default_factory=NewestTimes)
    glance: Glance = Field(default_factory=Glance)
    spend: Spend | None = None
    """Slot-seconds since the policy acts. None: it does not act."""
    advice: Advice | None = None
    """What following the plans would have cost. None: the policy does not advise."""
    lateness: Lateness | None = None
    """Time in which the objective is missed. None: it is met, unknown since the beginning, or has no bound."""


class State(Digest):
    """The part of an application that its next message needs: what a summary is made of, and the explained cycles, newest
    first."""

    cycles: list[Cycle] = Field(default_factory=list)
    open_cycles: list[Cycle] = Field(default_factory=list)
    """Cycles without a plan; a plan may arrive after the next observation."""


def remember(state: State, event: Event, limits: HistoryLimits) -> State:
    """Return `state` with `event` added; the same object for a duplicate and for an event older than the newest of its
    kind."""
    if isinstance(event, Observation) and event.imported is not None:
        return _with_past(state, _past_of(event), limits)
    times, kind = state.times, kind_of(event)
    if isinstance(event, Outcome):
        stored = (earlier.id for cycle in state.cycles for earlier in cycle.outcomes)
        if times.newer_than(event) or event.order == times.outcome or event.id in stored:
            return state
    elif (newest := getattr(times, kind)) is not None and event.observed_at <= newest:
        return state
    if isinstance(event, Outcome):
        changed = _with_outcome(state, event)
    elif isinstance(event, Observation):
        changed = _joined(state, event.id, {"reading": _reading(event)})
        changed = changed.model_copy(update={"spend": spent(state.spend, event)})
    elif isinstance(event, Analysis):
        understanding = Understanding.model_validate(event, from_attributes=True)
        changed = _joined(state, event.observation_id, {"analysis": understanding})
        newest = state.cycles[0].plan if state.cycles else None
        sums = {"advice": advised(state.advice, event, newest), "lateness": lateness_after(state.lateness, event)}
        changed = changed.model_copy(update=sums)
    else:
        changed = _with_plan(state, event, limits)
    moved = times.model_copy(update={kind: _position(event)})
    return changed.model_copy(update={"times": moved, "glance": state.glance.after(event)})


def _past_of(event: Observation) -> Past:
    """Return the past cycles that an import carries; none if another program wrote something else."""
    try:
        return Past.model_validate({} if event.imported is None else event.imported.past)
    except ValidationError:
        return Past()


def _with_past(state: State, past: Past, limits: HistoryLimits) -> State:
    """Add the explained cycles of another Weir that are not there yet, as many as are kept."""
    stored = {cycle.correlation_id for cycle in (*state.cycles, *state.open_cycles)}
    more = [cycle for cycle in past.cycles if cycle.plan is not None and cycle.correlation_id not in stored]
    if not more:
        return state
    planned = [(cycle.plan, cycle) for cycle in (*state.cycles, *more) if cycle.plan is not None]
    planned.sort(key=lambda each: each[0].observed_at, reverse=True)
    kept = _kept(planned[0][0], limits)
    return state.model_copy(update={"cycles": [cycle for _, cycle in planned[:kept]]})


def kind_of(event: Event) -> Kind:
    kinds: Mapping[type[Event], Kind] = {Observation: "observation", Analysis: "analysis", Plan: "plan"}
    return kinds.get(type(event), "outcome")


def _position(event: Event) -> datetime | OutcomeOrder:
    return event.order if isinstance(event, Outcome) else event.observed_at


def _joined(state: State, correlation_id: UUID, part: dict[str, Reading | Understanding]) -> State:
    """Add `part` to its cycle: one with a plan, one that waits for its plan, or a new one."""
    for name, cycles in (("cycles", state.cycles), ("open_cycles", state.open_cycles)):
        if any(cycle.correlation_id == correlation_id for cycle in cycles):
            changed = [c.model_copy(update=part) if c.correlation_id == correlation_id else c for c in cycles]
            return state.model_copy(update={name: changed})
    opened = Cycle(correlation_id=correlation_id).model_copy(update=part)
    return state.model_copy(update={"open_cycles": [opened, *state.open_cycles][:MAX_OPEN_CYCLES]})


def _reading(observation: Observation) -> Reading:
    return Reading(
        observed_at=observation.observed_at,
        status=observation.status,
        message=observation.message,
        observed=_running(observation.deployment) if observation.deployment else {},
        problems=_problems(observation),
    )


def _problems(observation: Observation) -> list[str]:
    return [f"{p.where}: {p.what}" for p in observation.problems][:MAX_PROBLEMS]


def _with_plan(state: State, plan: Plan, limits: HistoryLimits) -> State:
    """Add a plan. Every scale plan is kept, and of consecutive holds with one reason the latest."""
    cycle = next((c for c in state.open_cycles if c.correlation_id == plan.observation_id), None)
    cycle = (cycle or Cycle(correlation_id=plan.observation_id)).model_copy(update={"plan": plan})
    earlier = state.cycles
    last = earlier[0].plan if earlier else None
    if last is not None and (last.kind, last.code) == (plan.kind, plan.code) and plan.kind == "hold":
        earlier = earlier[1:]
    still_open = [c for c in state.open_cycles if c.correlation_id != plan.observation_id]
    cycles = [cycle, *earlier][: _kept(plan, limits)]
    return state.model_copy(update={"cycles": cycles, "open_cycles": still_open})


def _kept(plan: Plan, limits: HistoryLimits) -> int:
    """Return how many cycles are kept: fewer of a large application, whose every plan names each operator several times."""
    if len(plan.current) <= USUAL_OPERATORS:
        return limits.cycles_count
    return max(1, min(limits.cycles_count, MAX_CYCLES_BYTES // len(plan.model_dump_json())))


def _with_outcome(state: State, outcome: Outcome) -> State:
    cycles = [
        cycle.model_copy(update={"outcomes": [*cycle.outcomes, outcome][-MAX_OUTCOMES:]})
        if cycle.plan is not None and cycle.plan.id == outcome.plan_id
        else cycle
        for cycle in state.cycles
    ]
    return state.model_copy(update={"cycles": cycles})


def history_entries(event: Event, after: State) -> list[tuple[str, HistoryEntry]]:
    """Return the history entries, with their application, of an event that led to the state `after`: those of plans,
    outcomes and imports."""
    if isinstance(event, Observation) and event.imported is not None:
        return [(event.application, line) for line in _past_of(event).history]
    if isinstance(event, Outcome):
        return [(event.application, End(plan_id=event.plan_id, phase=event.phase))]
    if not isinstance(event, Plan):
        return []
    analysis = after.cycles[0].analysis
    if analysis is None:
        return [(event.application, event.in_short(None, None))]
    line = event.in_short(analysis.lag_seconds.value, analysis.arrival_rate.value, analysis.throughput)
    return [(event.application, line)]


def with_ends(lines: Iterable[LoopResult], ends: Mapping[UUID, str]) -> list[LoopResult]:
    """Return past cycles, each once, with the results of their plans."""
    once = {line.plan_id: line for line in lines}
    return [
        line.model_copy(update={"outcome": ends[plan_id]}) if plan_id in ends else line
        for plan_id, line in once.items()
    ]


def history_at(lines: Iterable[LoopResult], now: datetime, limits: HistoryLimits) -> list[LoopResult]:
    """Return the past cycles within the limits at `now`; they age without new plans, too."""
    oldest = now - timedelta(seconds=limits.history_age_seconds)
    return [line for line in lines if line.at >= oldest][: limits.history_count]


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


def _lower_bounds(analysis: Analysis) -> dict[str, float]:
    found = {name: getattr(analysis, name).lower_bound for name in ("lag_seconds", "lag_records", "arrival_rate")}
    return {name: bound for name, bound in found.items() if bound is not None}


_PASSING = frozenset({"other-deployment", "unreachable", "rollout", "rollback-unreachable"})
_LASTING = frozenset({"contested", "unsupported", "paused-workload", "other-autoscaler", "selector", "forbidden"}) | {
    *("namespace-forbidden", "no-target", "out-of-reach", "rejected", "rollback-rejected")
}
"""Codes of outcomes of a target that is not scaled: until the next plan, and until another outcome."""


def _target_problem(observation: Observation) -> tuple[str, str] | None:
    """Return code and sentence of what is wrong with the target."""
    deployment = observation.deployment
    missing = [each.what for each in observation.problems if each.where.startswith("target.")]
    if observation.status in ("not_found", "unreachable"):
        return observation.status.replace("_", "-"), observation.message or "the target was not observed"
    if deployment is not None and deployment.health == "ended":
        return "ended", observation.message or f"the target is {deployment.state}"
    if missing and not (deployment is not None and deployment.workloads):
        return "not-found", missing[0]
    return None


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


def _running(deployment: Deployment) -> dict[str, int]:
    """Return the subtasks that run. A deployment's `observed` is 1 or more, also of workloads without a ready replica."""
    ready = {each.name: each.ready for each in deployment.workloads}
    none = bool(ready) and not any(count != 0 for count in ready.values())
    return {name: 0 if none or ready.get(name) == 0 else p for name, p in deployment.observed.items()}


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
