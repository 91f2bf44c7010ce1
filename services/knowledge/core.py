"""The stored state of an application, and how each message changes it. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal, get_args
from uuid import UUID

from pydantic import Field
from weir_contracts import (
    ActionState,
    Analysis,
    Estimate,
    LoopResult,
    Message,
    Observation,
    Outcome,
    OutcomeOrder,
    Parallelism,
    Plan,
    Symptom,
    precedes,
)
from weir_contracts.base import Timestamp

Event = Observation | Analysis | Plan | Outcome
Kind = Literal["observation", "analysis", "plan", "outcome"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Stage = Literal["monitor", "analyzer", "planner"]


MAX_HISTORY_COUNT = 10_000


class Limits(Message):
    """How much of the past is kept for each application."""

    history_count: Annotated[int, Field(ge=1, le=MAX_HISTORY_COUNT)] = 500
    history_age_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    turns_count: Annotated[int, Field(ge=1, le=1_000)] = 60


class Reading(Message):
    """An observation in short: the part that is shown with a decision."""

    observed_at: Timestamp
    status: str
    message: str = ""
    observed: Parallelism = Field(default_factory=dict)
    problems: list[str] = Field(default_factory=list)


class Understanding(Message):
    """An analysis in short."""

    arrival_rate: Estimate
    lag_records: Estimate
    lag_seconds: Estimate
    bottleneck: str | None = None
    symptoms: list[Symptom] = Field(default_factory=list)


class Turn(Message):
    """One turn of the loop, joined by the observation's id: reading → analysis → plan with guards → outcomes."""

    correlation_id: UUID
    reading: Reading | None = None
    analysis: Understanding | None = None
    plan: Plan | None = None
    outcomes: list[Outcome] = Field(default_factory=list)


class End(Message):
    """The result of an earlier turn's plan, or its present phase."""

    plan_id: UUID
    phase: str


HistoryEntry = LoopResult | End
"""What an application's history is told: it is only ever added to, and so no part of the state that each message needs."""


class NewestTimes(Message):
    """When the newest message of each kind was observed; of an outcome, when it happened and which it is. None: none came yet."""

    observation: Timestamp | None = None
    analysis: Timestamp | None = None
    plan: Timestamp | None = None
    outcome: Timestamp | None = None
    outcome_id: UUID | None = None
    outcome_order: tuple[int, int] | None = None
    """Its epoch and sequence; None: it has none."""

    def newer_than(self, outcome: Outcome) -> bool:
        """Whether an outcome is older than the newest one, in whatever order the two came."""
        if self.outcome is None or self.outcome_id is None:
            return False
        earlier: OutcomeOrder = (self.outcome_order, self.outcome, self.outcome_id.int)
        return precedes(outcome.order, earlier)

    @property
    def newest(self) -> datetime | None:
        """When the newest message of all kinds was observed."""
        return max((at for at in (self.observation, self.analysis, self.plan, self.outcome) if at), default=None)


class Newest(Message):
    """The newest message of each kind of one application, complete: clients read it, the next message does not need it."""

    application: str
    observation: Observation | None = None
    analysis: Analysis | None = None
    plan: Plan | None = None
    outcome: Outcome | None = None

    @classmethod
    def read(cls, application: str, documents: Mapping[Kind, str]) -> "Newest":
        """From JSON by kind. Raises `ValueError` for what is no such message."""
        parts = [("application", json.dumps(application)), *documents.items()]
        body = ",".join(f'"{name}":{text}' for name, text in parts)
        return cls.model_validate_json(f"{{{body}}}")

    def times(self) -> NewestTimes:
        """Return the times that a state keeps of these messages."""
        observation, analysis, plan, outcome = self.observation, self.analysis, self.plan, self.outcome
        return NewestTimes(
            observation=observation.observed_at if observation else None,
            analysis=analysis.observed_at if analysis else None,
            plan=plan.observed_at if plan else None,
            outcome=outcome.at if outcome else None,
            outcome_id=outcome.id if outcome else None,
            outcome_order=outcome.order[0] if outcome else None,
        )


class State(Message):
    """The part of an application that its next message needs: times of the newest, and the explained turns, newest first."""

    application: str
    seen: NewestTimes = Field(default_factory=NewestTimes)
    turns: list[Turn] = Field(default_factory=list)
    open_turns: list[Turn] = Field(default_factory=list)
    """Turns that have no plan yet, for the time that a plan comes after the next reading."""


OPEN_TURNS = 20


def remember(state: State, event: Event, limits: Limits) -> State:
    """`state` with `event` in it. A duplicate, or what is older than what is known, changes nothing."""
    seen = state.seen
    if isinstance(event, Observation):
        if seen.observation is not None and event.observed_at <= seen.observation:
            return state
        return _saw(_joined(state, event.id, {"reading": _reading(event)}), observation=event.observed_at)
    if isinstance(event, Analysis):
        if seen.analysis is not None and event.observed_at <= seen.analysis:
            return state
        joined = _joined(state, event.observation_id, {"analysis": _understanding(event)})
        return _saw(joined, analysis=event.observed_at)
    if isinstance(event, Plan):
        if seen.plan is not None and event.observed_at <= seen.plan:
            return state
        return _saw(_with_plan(state, event, limits), plan=event.observed_at)
    if seen.newer_than(event) or event.id == seen.outcome_id:
        return state
    if any(earlier.id == event.id for turn in state.turns for earlier in turn.outcomes):
        return state
    return _saw(_with_outcome(state, event), outcome=event.at, outcome_id=event.id, outcome_order=event.order[0])


def _saw(state: State, **newest: datetime | UUID | tuple[int, int] | None) -> State:
    return state.model_copy(update={"seen": state.seen.model_copy(update=newest)})


def _joined(state: State, correlation_id: UUID, part: dict[str, Reading | Understanding]) -> State:
    """`part` added to the turn it belongs to: one that is planned already, or one that waits for its plan."""
    for name, turns in (("turns", state.turns), ("open_turns", state.open_turns)):
        if any(turn.correlation_id == correlation_id for turn in turns):
            changed = [
                turn.model_copy(update=part) if turn.correlation_id == correlation_id else turn for turn in turns
            ]
            return state.model_copy(update={name: changed})
    opened = Turn(correlation_id=correlation_id).model_copy(update=part)
    return state.model_copy(update={"open_turns": [opened, *state.open_turns][:OPEN_TURNS]})


def _reading(observation: Observation) -> Reading:
    return Reading(
        observed_at=observation.observed_at,
        status=observation.status,
        message=observation.message,
        observed=observation.deployment.observed if observation.deployment else {},
        problems=_problems(observation),
    )


def _problems(observation: Observation) -> list[str]:
    return [f"{p.where}: {p.what}" for p in observation.problems][:10]


def _understanding(analysis: Analysis) -> Understanding:
    return Understanding(
        arrival_rate=analysis.arrival_rate,
        lag_records=analysis.lag_records,
        lag_seconds=analysis.lag_seconds,
        bottleneck=analysis.bottleneck,
        symptoms=analysis.symptoms,
    )


def _with_plan(state: State, plan: Plan, limits: Limits) -> State:
    turn = next((t for t in state.open_turns if t.correlation_id == plan.observation_id), None)
    turn = (turn or Turn(correlation_id=plan.observation_id)).model_copy(update={"plan": plan})
    left = [t for t in state.open_turns if t.correlation_id != plan.observation_id]
    return state.model_copy(update={"turns": _turns(state, turn, limits), "open_turns": left})


def history_entries(event: Event, after: State) -> list[tuple[str, HistoryEntry]]:
    """Return the history entries, with their application, of an event that made the state `after`; none for a reading or an analysis."""
    if isinstance(event, Outcome):
        return [(event.application, End(plan_id=event.plan_id, phase=event.phase))]
    if not isinstance(event, Plan):
        return []
    understood = after.turns[0].analysis
    lag, arrivals = (understood.lag_seconds.value, understood.arrival_rate.value) if understood else (None, None)
    return [(event.application, event.in_short(lag, arrivals))]


def with_ends(lines: Iterable[LoopResult], ends: Mapping[UUID, str]) -> list[LoopResult]:
    """Past turns, each once, with what became of their plans."""
    once = {line.plan_id: line for line in lines}
    return [
        line.model_copy(update={"outcome": ends[plan_id]}) if plan_id in ends else line
        for plan_id, line in once.items()
    ]


def history_at(lines: Iterable[LoopResult], now: datetime, limits: Limits) -> list[LoopResult]:
    """Past turns as they are to be shown now: they also grow old where no plan comes any more."""
    oldest = now - timedelta(seconds=limits.history_age_seconds)
    return [line for line in lines if line.at >= oldest][: limits.history_count]


def _turns(state: State, turn: Turn, limits: Limits) -> list[Turn]:
    """The turns worth explaining: every scale plan, and the latest of each row of holds with the same reason."""
    earlier = list(state.turns)
    if earlier and turn.plan and turn.plan.kind == "hold" and _repeats(earlier[0].plan, turn.plan):
        earlier = earlier[1:]
    return [turn, *earlier][: limits.turns_count]


def _repeats(earlier: Plan | None, later: Plan) -> bool:
    return earlier is not None and earlier.kind == "hold" and earlier.code == later.code


def _with_outcome(state: State, outcome: Outcome) -> State:
    turns = [
        turn.model_copy(update={"outcomes": [*turn.outcomes, outcome][-20:]})
        if turn.plan is not None and turn.plan.id == outcome.plan_id
        else turn
        for turn in state.turns
    ]
    return state.model_copy(update={"turns": turns})


class Ages(Message):
    """Seconds since the last message of each stage; None: none came yet."""

    monitor: float | None = None
    analyzer: float | None = None
    planner: float | None = None


class Summary(Message):
    """An application on one screen."""

    application: str
    mode: str | None = None
    status: str | None = None
    objective_seconds: float | None = None
    lag_seconds: float | None = None
    lag_records: float | None = None
    arrival_rate: float | None = None
    bottleneck: str | None = None
    planned: Parallelism | None = None
    requested: Parallelism | None = None
    observed: Parallelism | None = None
    decision: str | None = None
    decision_code: str | None = None
    decided_at: Timestamp | None = None
    action: str | None = None
    action_phase: str | None = None
    ages_seconds: Ages = Field(default_factory=Ages)
    silent: list[Stage] = Field(default_factory=list)
    """Stages whose last message is older than three intervals (at least 15 s)."""
    problems: list[str] = Field(default_factory=list)
    """What the last scrape could not read or found wrong, ten at most."""


SUMMARISED: Sequence[Kind] = ("observation", "analysis", "plan")
"""What a summary is made from."""


def summarise(
    newest: Newest, action: ActionState | None, now: datetime, *, mode: str | None, objective_seconds: float | None,
    interval_seconds: float,
) -> Summary:  # fmt: skip
    """An application as people want to see it first. Silence is noticed here, by the age of each stage."""
    observation, analysis, plan = newest.observation, newest.analysis, newest.plan
    ages = Ages(
        monitor=_age(observation.observed_at if observation else None, now),
        analyzer=_age(analysis.observed_at if analysis else None, now),
        planner=_age(plan.observed_at if plan else None, now),
    )
    limit = max(3 * interval_seconds, 15.0)
    stages: Sequence[tuple[Stage, float | None]] = (
        ("monitor", ages.monitor),
        ("analyzer", ages.analyzer),
        ("planner", ages.planner),
    )
    deployment = observation.deployment if observation else None
    return Summary(
        application=newest.application,
        mode=mode,
        status=observation.status if observation else None,
        objective_seconds=objective_seconds,
        lag_seconds=analysis.lag_seconds.value if analysis else None,
        lag_records=analysis.lag_records.value if analysis else None,
        arrival_rate=analysis.arrival_rate.value if analysis else None,
        bottleneck=analysis.bottleneck if analysis else None,
        planned=(plan.approved or plan.current or None) if plan else None,
        requested=deployment.requested if deployment else None,
        observed=deployment.observed if deployment else None,
        decision=plan.sentence if plan else None,
        decision_code=plan.code if plan else None,
        decided_at=plan.created_at if plan else None,
        action=action.sentence if action else None,
        action_phase=action.phase if action else None,
        ages_seconds=ages,
        silent=[name for name, age in stages if age is None or age > limit],
        problems=_problems(observation) if observation else [],
    )


def _age(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else round(max(0.0, (now - at).total_seconds()), 3)
