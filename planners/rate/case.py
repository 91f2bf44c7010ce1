"""What `rate` reads from a request, once: what is known, what is asked of each operator, what may be had; and its parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field
from weir_contracts import Analysis, Objective, Parallelism, PlanReply, PlanRequest, Topology

from predictor import STAY, Backlog, CapacityCurve, Model, Outlook, Restart, at_least_of, model_of, outlook, restart_of
from predictor.flow import loads_of
from predictor.reading import USUAL_RESTART_SECONDS

SATURATED = 0.95
"""Busy share from which an operator of unknown demand counts as too small."""
HALF_BUSY = 0.5
"""Busy share below which an operator is not what holds the others back."""
SURE_GROWTH = 0.3
"""Confidence from which growth of lag counts; two readings a few seconds apart have less."""
LONGEST_WARM_UP_SECONDS = 120.0
"""A run that is still warming up after this, or after 4 intervals, has no readings to wait for."""


class RateParameters(BaseModel):
    """The planner's own settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target_utilisation: float = Field(
        default=0.8, gt=0.1, le=1, description="load over capacity that a new parallelism is sized for"
    )
    highest_utilisation: float = Field(
        default=0.92, gt=0.1, le=1, description="load over capacity from which staying is not good enough"
    )
    drain_seconds: float = Field(
        default=30.0,
        gt=0,
        le=86_400,
        description="time in which a backlog is to be worked off, in s; not the objective",
    )
    restart_seconds: float = Field(
        default=USUAL_RESTART_SECONDS,
        ge=0,
        le=3_600,
        description="taken for a rescale's downtime until one was seen, in s",
    )
    objective_share: float = Field(
        default=0.8, gt=0, le=1, description="share of the objective that predicted lag may reach: room for error"
    )
    arrival_margin: float = Field(
        default=0.1, ge=0, le=2, description="arrivals are taken to be this much higher before anything is shrunk"
    )
    least_saving: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the slots that must be saved for a scale-down to be worth a restart",
    )
    horizon_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="how far to look, in s; by default restart + 2 · drain + objective"
    )


@dataclass(slots=True)
class Demand:
    """What is asked of one operator, whatever the haste, and what it may be given."""

    operator: str
    now: int
    least: int
    most: int
    highest: int
    """What is worth having: `most`, but no more than does more."""
    curve: CapacityCurve | None
    steady: float | None
    """Records/s that arrive, over the target utilisation; None: it cannot be told."""
    waiting: float
    """Records of the backlog and of a restart."""


@dataclass(frozen=True)
class Case:
    """The request, read once."""

    analysis: Analysis
    topology: Topology
    current: Parallelism
    model: Model
    lag_seconds: float | None
    backlog_records: float
    restart: Restart
    objective: Objective
    bounds: Mapping[str, tuple[int, int]]
    at_least: Mapping[str, float]
    """What operators of unknown capacity sustain at least as they run, in records/s."""
    parameters: RateParameters

    @cached_property
    def most(self) -> Mapping[str, int]:
        """What each operator may have at most: bounds, key groups, partitions."""
        found = {}
        for operator in self.topology.operators:
            most = self.bounds[operator.name][1]
            for limit in (operator.max_parallelism, operator.source_partitions):
                if limit is not None and limit < most:
                    most = limit
            found[operator.name] = max(1, most)
        return found

    @cached_property
    def suspects(self) -> frozenset[str]:
        """Operators that may be too small although the model cannot say so, as their demand or capacity is unknown: the full ones, else,
        while lag above the objective grows, those that are half busy or tell nothing. They grow by a step, whatever the model says."""
        model, busy = self.model, {o.operator: o.utilisation.value for o in self.analysis.operators}
        blind = [
            n
            for n, most in self.most.items()
            if self.current[n] < most and (n not in model.flow or n not in model.curves)
        ]
        full = frozenset(n for n in blind if (busy.get(n) or 0.0) >= SATURATED)
        if self.growing_lag is not None:
            return full or frozenset(n for n in blind if (share := busy.get(n)) is None or share >= HALF_BUSY)
        # Starting and catching up fill every operator.
        return frozenset() if self.analysis.has("warming-up") or self.analysis.has("catching-up") else full

    @cached_property
    def growing_lag(self) -> tuple[float, float] | None:
        """The longest lag in s above the objective that grows, and by how many records/s; None: there is none, or the run is starting."""
        run, limit, latency = self.analysis.run, self.limit_seconds, self.objective.max_latency is not None
        if limit is None:
            return None
        if self.analysis.has("warming-up"):
            age = 0.0 if run is None else (self.analysis.observed_at - run.running_since).total_seconds()
            if age < max(LONGEST_WARM_UP_SECONDS, 4 * self.analysis.policy.spec.interval.total_seconds()):
                return None
        found = []
        for source in self.analysis.sources:
            seconds = (source.expected_latency_seconds if latency else source.lag_seconds).value
            growth = source.lag_growth
            if (
                seconds is not None
                and seconds > limit
                and (growth.value or 0.0) > 0
                and growth.confidence >= SURE_GROWTH
            ):
                found.append((seconds, growth.value or 0.0))
        return max(found, default=None)

    def with_less_waiting(self) -> Iterator["Case"]:
        """The same with nothing waiting and, where several sources have a backlog, with that of each alone."""
        nothing, waiting = Backlog(0.0, 0.0), {s: b for s, b in self.model.backlogs.items() if b.records > 0}
        for left in [{}, *({s: b} for s, b in waiting.items() if len(waiting) > 1)] if waiting else []:
            backlogs = {**dict.fromkeys(self.model.backlogs, nothing), **left}
            yield replace(self, model=replace(self.model, backlogs=backlogs))

    @cached_property
    def waiting(self) -> Mapping[str, float]:
        """Records that the backlogs bring to each operator of which it can be told."""
        return loads_of(self.model.flow, {s: backlog.records for s, backlog in self.model.backlogs.items()})

    def demands(self, margin: float) -> list[Demand]:
        """Of each operator, with arrivals `margin` higher than now."""
        model, loads = self.model, self.model.loads
        waiting, target, restart = self.waiting, self.target_utilisation, self.restart.seconds
        found = []
        for name, most in self.most.items():
            now, curve, load = self.current[name], model.curves.get(name), loads.get(name)
            best = None if curve is None else curve.best
            highest = most if best is None else min(most, max(best, now))
            steady, left = None, 0.0
            if load is not None:
                asked = load * (1 + margin)  # what reaches an operator grows with the arrivals
                steady, left = asked / target, waiting[name] + asked * restart
            found.append(Demand(name, now, self.bounds[name][0], most, highest, curve, steady, left))
        return found

    @cached_property
    def limit_seconds(self) -> float | None:
        bound = self.objective.bound_seconds
        return None if bound is None else bound * self.parameters.objective_share

    @cached_property
    def horizon_seconds(self) -> float:
        if self.parameters.horizon_seconds is not None:
            return self.parameters.horizon_seconds
        return self.restart.seconds + 2 * self.parameters.drain_seconds + (self.objective.bound_seconds or 30.0)

    @property
    def target_utilisation(self) -> float:
        return self.objective.utilization or self.parameters.target_utilisation

    @property
    def highest_utilisation(self) -> float:
        if self.objective.utilization is not None:
            return min(1.0, self.objective.utilization * 1.1)
        return max(self.parameters.highest_utilisation, self.parameters.target_utilisation)

    def cost(self, vector: Mapping[str, int]) -> tuple[int, int]:
        """Slots first; of equal slots the fewer subtasks."""
        return self.topology.slots(vector), sum(vector.values())

    def predicted(self, vector: Mapping[str, int]) -> Outlook:
        return outlook(
            self.model,
            vector,
            STAY if vector == self.current else self.restart,
            horizon_seconds=self.horizon_seconds,
            objective_seconds=self.limit_seconds,
            of_latency=self.objective.max_latency is not None,
        )


def case_of(request: PlanRequest, parameters: RateParameters) -> Case | PlanReply:
    """The request, read; a hold where something is unknown without which nothing can be decided."""
    analysis, topology, deployment = request.analysis, request.topology, request.deployment
    if topology is None or deployment is None:
        return PlanReply(
            kind="hold", code="metric-missing", sentence="the application's graph is unknown, so it stays as it is"
        )
    model, gaps = model_of(analysis, topology)
    needs_lag = request.policy.spec.objective.utilization is None
    for gap in gaps:
        if gap.what == "arrival rate" or (gap.what == "lag" and needs_lag):
            return PlanReply(
                kind="hold",
                code="metric-missing",
                sentence=f"the {gap.what} of {gap.operator} is unknown ({gap.because}), so nothing changes",
            )
    bounds = at_least_of(analysis.operators, model.curves)
    at_least = {name: bound.rate(deployment.observed.get(name, bound.parallelism)) for name, bound in bounds.items()}
    case = Case(
        analysis=analysis,
        topology=topology,
        current=dict(deployment.observed),
        model=model,
        lag_seconds=analysis.lag_seconds.value,
        backlog_records=sum(backlog.records for backlog in model.backlogs.values()),
        restart=restart_of(analysis, deployment, request.outcomes, parameters.restart_seconds),
        objective=request.policy.spec.objective,
        bounds={name: request.policy.spec.bounds.of(name) for name in topology.names},
        at_least=at_least,
        parameters=parameters,
    )
    if not model.curves and not at_least and not case.suspects:
        return PlanReply(
            kind="hold",
            code="warming-up",
            sentence="no operator's capacity is known yet: it takes a window of a warmed-up run",
        )
    return case
