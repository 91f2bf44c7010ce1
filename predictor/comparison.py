"""Holding and other parallelisms of an application, compared by what they would bring.

The model lets operators of unknown demand or capacity take in everything. Where readings contradict it
(`Comparison.suspects`), it has no say.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from weir_contracts import Analysis, Objective, OperatorLimits, Parallelism, PlanRequest, Prediction, Topology

from .at_least import at_least_of
from .flow import loads_of
from .reading import USUAL_RESTART_SECONDS, model_of, restart_of
from .trajectory import STAY, Backlog, Model, Outlook, Restart, outlook

SATURATED = 0.95
"""Busy share from which an operator of unknown demand counts as too small."""
HALF_BUSY = 0.5
"""Busy share below which an operator is not what holds the others back."""
SURE_GROWTH = 0.3
"""Confidence from which growth of lag counts; two readings a few seconds apart have less."""
LONGEST_WARM_UP_SECONDS = 120.0
"""A run that is still warming up after this, or after 4 intervals, has no readings to wait for."""


Badness = tuple[bool, float]
"""Whether the backlog never shrinks into the objective, then seconds: the less, the better."""


class TooLittle(NamedTuple):
    """Why nothing can be compared, as a plan's code and sentence."""

    code: str
    sentence: str


class Assumptions(BaseModel):
    """What a comparison takes for granted; a planner may derive its parameters from it."""

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
    horizon_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="how far to look, in s; by default restart + 2 · drain + objective"
    )


@dataclass(frozen=True)
class Comparison:
    """An application as it is, on which holding and other parallelisms are compared."""

    analysis: Analysis
    topology: Topology
    current: Parallelism
    model: Model
    lag_seconds: float | None
    backlog_records: float
    restart: Restart
    objective: Objective
    limits: Mapping[str, OperatorLimits]
    at_least: Mapping[str, float]
    """What operators of unknown capacity sustain at least as they run, in records/s."""
    assumptions: Assumptions

    @cached_property
    def suspects(self) -> frozenset[str]:
        """Operators that may be too small although the model cannot say so, as their demand or capacity is unknown: the full ones, else,
        while lag above the objective grows, those that are half busy or tell nothing. They grow by a step, whatever the model says."""
        model, busy = self.model, {o.operator: o.utilisation.value for o in self.analysis.operators}
        blind = [
            n
            for n, limits in self.limits.items()
            if self.current[n] < limits.max and (n not in model.flow or n not in model.curves)
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

    def with_less_waiting(self) -> Iterator["Comparison"]:
        """The same with nothing waiting and, where several sources have a backlog, with that of each alone."""
        nothing, waiting = Backlog(0.0, 0.0), {s: b for s, b in self.model.backlogs.items() if b.records > 0}
        for left in [{}, *({s: b} for s, b in waiting.items() if len(waiting) > 1)] if waiting else []:
            backlogs = {**dict.fromkeys(self.model.backlogs, nothing), **left}
            yield replace(self, model=replace(self.model, backlogs=backlogs))

    @cached_property
    def waiting(self) -> Mapping[str, float]:
        """Records that the backlogs bring to each operator of which it can be told."""
        return loads_of(self.model.flow, {s: backlog.records for s, backlog in self.model.backlogs.items()})

    @cached_property
    def limit_seconds(self) -> float | None:
        bound = self.objective.bound_seconds
        return None if bound is None else bound * self.assumptions.objective_share

    @cached_property
    def horizon_seconds(self) -> float:
        if self.assumptions.horizon_seconds is not None:
            return self.assumptions.horizon_seconds
        return self.restart.seconds + 2 * self.assumptions.drain_seconds + (self.objective.bound_seconds or 30.0)

    @property
    def target_utilisation(self) -> float:
        return self.objective.utilization or self.assumptions.target_utilisation

    @property
    def highest_utilisation(self) -> float:
        if self.objective.utilization is not None:
            return min(1.0, self.objective.utilization * 1.1)
        return max(self.assumptions.highest_utilisation, self.assumptions.target_utilisation)

    def predicted(self, vector: Mapping[str, int]) -> Outlook:
        return outlook(
            self.model,
            vector,
            STAY if vector == self.current else self.restart,
            horizon_seconds=self.horizon_seconds,
            objective_seconds=self.limit_seconds,
            of_latency=self.objective.max_latency is not None,
        )

    def is_worth(self, staying: Outlook, going: Outlook, vectors: Sequence[Parallelism]) -> bool:
        """Whether a change is worth its restart; or whether one of `vectors` would be if less waited: more lag is no reason to stay."""
        if self._helps(staying, going):
            return True
        for less in self.with_less_waiting():
            hold = less.predicted(less.current)
            if any(less._helps(hold, less.predicted(vector)) for vector in vectors):
                return True
        return False

    def _helps(self, staying: Outlook, going: Outlook) -> bool:
        if (staying.max_utilisation or 0.0) > 1.0 >= (going.max_utilisation or 0.0):
            return True  # only the change lets the application keep up
        # Where it cannot keep up either way, a little less of it is not worth slots and a restart.
        hardly = is_overloaded(staying) and not self.is_good(going)
        return self.gains(staying, going) and not (hardly and self.badness(staying) <= nearly(self.badness(going)))

    def gains(self, staying: Outlook, going: Outlook) -> bool:
        """Whether a change is better by more than what may be a rounding error."""
        (never, late), (going_never, going_late) = self.badness(staying), self.badness(going)
        return never if never != going_never else going_late < late - 0.5

    def is_good(self, found: Outlook) -> bool:
        """Meets the objective all the time, and can keep up afterwards."""
        steady = found.max_utilisation is None or found.max_utilisation <= self.highest_utilisation
        return found.violation_seconds == 0 and steady

    def badness(self, found: Outlook) -> Badness:
        """Seconds of violation, those beyond the horizon included where they end; where no time bound was given, the load beyond the
        target as a share of the horizon."""
        over = max(0.0, (found.max_utilisation or 0.0) - self.highest_utilisation) * found.horizon_seconds
        if self.limit_seconds is None:
            return False, over
        never = math.isinf(found.late_after_seconds)
        return never, over + (found.violation_seconds if never else found.late_seconds)


def is_overloaded(found: Outlook) -> bool:
    """Whether more arrives than the busiest operator sustains."""
    return (found.max_utilisation or 0.0) > 1


def nearly(badness: Badness) -> Badness:
    """Return what is as good as that."""
    return badness[0], badness[1] * 1.15 + 1.0


def comparison_of(request: PlanRequest, assumptions: Assumptions) -> Comparison | TooLittle:
    """Return the application of a request, or why too little is known of it to compare anything."""
    analysis, topology, deployment = request.analysis, request.topology, request.deployment
    if topology is None or deployment is None:
        return TooLittle("metric-missing", "the application's graph is unknown, so it stays as it is")
    model, gaps = model_of(analysis, topology)
    needs_lag = request.policy.spec.objective.utilization is None
    for gap in gaps:
        if gap.what == "arrival rate" or (gap.what == "lag" and needs_lag):
            sentence = f"the {gap.what} of {gap.operator} is unknown ({gap.because}), so nothing changes"
            return TooLittle("metric-missing", sentence)
    bounds = at_least_of(analysis.operators, model.curves)
    at_least = {name: bound.rate(deployment.observed.get(name, bound.parallelism)) for name, bound in bounds.items()}
    found = Comparison(
        analysis=analysis,
        topology=topology,
        current=dict(deployment.observed),
        model=model,
        lag_seconds=analysis.lag_seconds.value,
        backlog_records=sum(backlog.records for backlog in model.backlogs.values()),
        restart=restart_of(analysis, deployment, request.outcomes, assumptions.restart_seconds),
        objective=request.policy.spec.objective,
        limits=topology.limits(request.policy.spec.bounds),
        at_least=at_least,
        assumptions=assumptions,
    )
    if not model.curves and not at_least and not found.suspects:
        return TooLittle("warming-up", "no operator's capacity is known yet: it takes a window of a warmed-up run")
    return found


class Compared(NamedTuple):
    """What holding and a vector would bring, and whether the vector is worth its restart."""

    staying: Prediction
    going: Prediction
    gains: bool


def compare(request: PlanRequest, parallelism: Parallelism, assumptions: Assumptions) -> Compared | None:
    """Compare a vector with holding; None where the model knows too little."""
    found = comparison_of(request, assumptions)
    if isinstance(found, TooLittle) or found.suspects:
        return None
    staying, going = found.predicted(found.current), found.predicted(parallelism)
    return Compared(staying.told(), going.told(), found.is_worth(staying, going, [parallelism]))
