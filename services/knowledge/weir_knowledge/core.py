"""The stored state of an application, and how each message changes it. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from pydantic import Field, ValidationError

from weir_contracts import (
    Analysis,
    Estimate,
    LoopResult,
    Message,
    Observation,
    Outcome,
    Plan,
    Symptom,
)
from weir_contracts.base import Timestamp

from .newest import Digest, Event, kind_of, position, problems_of, running
from .notifications import lateness_after
from .spend import (
    advised,
    spent,
)

MAX_HISTORY_COUNT = 10_000
MAX_CYCLES_COUNT = 1_000
MAX_OPEN_CYCLES = 20
USUAL_OPERATORS = 50
MAX_CYCLES_BYTES = 4_000_000
"""Of the explained cycles of an application: each message about it reads and writes them."""
MAX_OUTCOMES = 20
"""Of one cycle: the newest."""


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
    moved = times.model_copy(update={kind: position(event)})
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
        observed=running(observation.deployment) if observation.deployment else {},
        problems=problems_of(observation),
    )


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
