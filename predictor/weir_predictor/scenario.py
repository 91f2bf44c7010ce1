"""The scenario of a request: the application as it is, on which holding and other parallelisms are predicted and compared.

The model lets operators of unknown demand or capacity take in everything. Where readings contradict it
(`Scenario.suspects`), its prediction is not used.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from weir_contracts import (
    Analysis,
    Deployment,
    Objective,
    OperatorLimits,
    Outcome,
    Parallelism,
    Prediction,
    ScalingPolicy,
    Topology,
    short_name,
)

from .capacity import lower_bounds_of
from .flow import loads_of
from .model import STAY, Backlog, Model, Restart
from .reading import USUAL_RESTART_SECONDS, Gap, no_capacity
from .restarts import Restarts, Serving, restarts_of, serving_of
from .trajectory import Outlook, busiest, outlooks

SATURATED = 0.95
"""Busy share from which an operator counts as saturated, and one of unknown demand as too small."""
HALF_BUSY = 0.5
"""Busy share below which an operator does not limit the others."""
SURE_GROWTH = 0.3
"""Confidence from which growth of lag counts; two readings a few seconds apart have less."""
CLOSE = 0.98
"""Share of the throughput of more subtasks, from which fewer are as good."""
ABOUT = 1.15
"""Ratio of late times, or of rates at which a backlog is worked off, that counts as equally good."""
ENOUGH = 1e6
"""Multiple of the present arrivals that no application lets through."""
MAX_WARM_UP_SECONDS = 120.0
"""A run that is still warming up after this, or after 4 intervals, has no readings to wait for."""


ViolationCost = tuple[bool, float]
"""Whether the backlog never shrinks into the objective, then seconds of violation. Smaller is better."""


class TooLittle(NamedTuple):
    """Reason why nothing can be compared, as a plan's code and sentence."""

    code: str
    sentence: str


class Assumptions(BaseModel):
    """Assumptions of a scenario; a planner may derive its parameters from them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target_utilization: float = Field(
        default=0.85, gt=0.1, le=1, description="load over capacity that a new parallelism is sized for"
    )
    max_utilization: float = Field(
        default=0.92,
        gt=0.1,
        le=1,
        description="load over capacity from which staying is not good enough",
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
        description="downtime of a rescale until one was measured, in s",
    )
    objective_share: float = Field(
        default=0.8, gt=0, le=1, description="share of the objective that predicted lag may reach: room for error"
    )
    horizon_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="horizon in s; by default restart + 2 · drain + objective"
    )


@dataclass(frozen=True)
class Scenario:
    """The present state of an application, on which holding and other parallelisms are compared."""

    analysis: Analysis
    topology: Topology
    current: Parallelism
    model: Model
    restarts: Restarts
    objective: Objective
    limits: Mapping[str, OperatorLimits]
    lower_bounds: Mapping[str, float]
    """Records/s that operators of unknown capacity sustain at least at their present parallelism."""
    assumptions: Assumptions
    serving: Serving | None = None
    """What serves while tasks of a consumer group wait for their warm-ups; None: none does."""
    partial: tuple[Gap, ...] = ()
    """Arrival rates and lags of which a lower bound is known, or under an objective that needs no lag nothing. They
    justify growth, never shrinking."""

    @property
    def restart(self) -> Restart:
        """Cost of growing."""
        return self.restarts.up

    def restart_to(self, vector: Parallelism) -> Restart:
        """Return the cost of changing to a vector."""
        found = self.restarts.of(self.current, vector)
        if self.serving is None:
            return found
        # The rebalance for a new instance comes before the probing one, and moves what is warmed up.
        left = self.serving.seconds - self.serving.next_seconds
        return replace(found, capacity_after_seconds=left + min(self.serving.next_seconds, found.settled_seconds))

    @property
    def joined(self) -> Parallelism:
        """One thread more of each operator, within its limits."""
        return {name: max(now, min(self.limits[name].max, now + 1)) for name, now in self.current.items()}

    @property
    def backlog_records(self) -> float:
        """Records that wait at all sources."""
        return sum(backlog.records for backlog in self.model.backlogs.values())

    @cached_property
    def suspects(self) -> frozenset[str]:
        """Operators that may be too small although the model cannot show it, as their demand or capacity is unknown:
        the saturated ones, else, while lag above the objective grows, those that are half busy or of unknown
        utilization."""
        model = self.model
        unmeasured = [
            n
            for n, limits in self.limits.items()
            if (n not in model.curves or n not in model.flow) and self.current[n] < limits.max
        ]
        busy = {o.operator: o.utilization.value for o in self.analysis.operators} if unmeasured else {}
        full = frozenset(n for n in unmeasured if (busy.get(n) or 0.0) >= SATURATED)
        if unmeasured and self.growing_lag is not None:
            return full or frozenset(n for n in unmeasured if (share := busy.get(n)) is None or share >= HALF_BUSY)
        # While it starts or catches up every operator is saturated.
        return frozenset() if self.analysis.has("warming-up") or self.analysis.has("catching-up") else full

    @property
    def growing_lag(self) -> tuple[float, float] | None:
        """The longest lag in s above the objective that grows, and its growth in records/s; None: there is none, or the
        run is starting."""
        run, limit, latency = self.analysis.run, self.limit_seconds, self.objective.max_latency is not None
        if limit is None:
            return None
        if self.analysis.has("warming-up"):
            age = 0.0 if run is None else (self.analysis.observed_at - run.running_since).total_seconds()
            if age < max(MAX_WARM_UP_SECONDS, 4 * self.analysis.policy.spec.interval.total_seconds()):
                return None
        found = []
        for source in self.analysis.sources:
            seconds = (source.expected_latency_seconds if latency else source.lag_seconds).proven
            growth = source.lag_growth.proven or 0.0
            if seconds is not None and seconds > limit and growth > 0 and source.lag_growth.confidence >= SURE_GROWTH:
                found.append((seconds, growth))
        return max(found, default=None)

    def with_less_waiting(self) -> Iterator["Scenario"]:
        """Yield the scenario without any backlog; if several sources have one, with that of each alone; and the same with
        what arrives in the limit at most, in twice, four times … as long, of all sources and of each alone.

        A backlog whose end no change brings near may hide a change that a smaller one would show.
        """
        none = dict.fromkeys(self.model.backlogs, Backlog(0.0, 0.0))
        waiting = {s: b for s, b in self.model.backlogs.items() if b.records > 0}
        if not waiting:
            return
        yield self._with_backlogs(none)
        arrivals, seconds = self.model.arrivals, self.limit_seconds or math.inf
        longest = max((b.records / arrivals[s] for s, b in waiting.items() if arrivals.get(s)), default=0.0)
        less = [waiting]
        while seconds < longest:
            most = {s: seconds * arrivals.get(s, 0.0) for s in waiting}
            less.append({s: b if b.records <= most[s] else Backlog(most[s]) for s, b in waiting.items()})
            seconds *= 2
        for backlogs in less:
            if backlogs is not waiting:
                yield self._with_backlogs({**none, **backlogs})
            if len(waiting) > 1:
                yield from (self._with_backlogs({**none, source: b}) for source, b in backlogs.items())

    def _with_backlogs(self, backlogs: Mapping[str, Backlog]) -> "Scenario":
        return replace(self, model=replace(self.model, backlogs=backlogs))

    def at(self, operator: str) -> "Scenario":
        """Return the scenario as one operator with a known flow has it: whatever reaches it comes from one source.

        How sources share an operator depends on what waits at each, so their late times say little about its size.
        """
        arriving, waiting = self.model.loads[operator], Backlog(self.waiting[operator])
        model = replace(
            self.model,
            flow={operator: {operator: 1.0}},
            arrivals={operator: arriving},
            backlogs={operator: waiting},
        )
        return replace(self, model=model)

    @property
    def waiting(self) -> Mapping[str, float]:
        """Records that the backlogs bring to each operator with a known flow."""
        return loads_of(self.model.flow, {s: backlog.records for s, backlog in self.model.backlogs.items()})

    @property
    def limit_seconds(self) -> float | None:
        """Predicted lag or latency that counts as a violation; None: the objective is a utilization."""
        bound = self.objective.bound_seconds
        return None if bound is None else bound * self.assumptions.objective_share

    @property
    def horizon_seconds(self) -> float:
        """Length of the predictions."""
        if self.assumptions.horizon_seconds is not None:
            return self.assumptions.horizon_seconds
        moved = 0.0 if self.serving is None else self.serving.seconds
        return (
            max(self.restarts.settled_seconds, moved)
            + 2 * self.assumptions.drain_seconds
            + (self.objective.bound_seconds or 30.0)
        )

    @property
    def target_utilization(self) -> float:
        """Load over capacity that a new parallelism is sized for."""
        return self.objective.utilization or self.assumptions.target_utilization

    @property
    def max_utilization(self) -> float:
        """Load over capacity from which staying is not good enough."""
        if self.objective.utilization is not None:
            return min(1.0, self.objective.utilization * 1.1)
        return max(self.assumptions.max_utilization, self.assumptions.target_utilization)

    @cached_property
    def staying(self) -> Outlook:
        """The outlook of the present parallelism."""
        stay = STAY if self.serving is None else replace(STAY, capacity_after_seconds=self.serving.seconds)
        return self._outlooks([self.current], [stay])[0]

    def going(self, vectors: Sequence[Parallelism]) -> list[Outlook]:
        """Return the outlook of each vector, with the restart that a change costs."""
        if not vectors:
            found = []
        elif not self.restarts.is_one or self.serving is not None:
            found = [self._outlooks([vector], [self.restart_to(vector)])[0] for vector in vectors]
        elif "staying" in self.__dict__:
            found = self._outlooks(vectors, [self.restart] * len(vectors))
        else:
            # At once, which takes little longer than one of them.
            stay, *found = self._outlooks([self.current, *vectors], [STAY, *[self.restart] * len(vectors)])
            self.__dict__["staying"] = stay
        return [self.staying if vector == self.current else each for vector, each in zip(vectors, found, strict=True)]

    def _outlooks(self, vectors: Sequence[Parallelism], restarts: Sequence[Restart]) -> list[Outlook]:
        return outlooks(
            self.model,
            vectors,
            restarts,
            horizon_seconds=self.horizon_seconds,
            objective_seconds=self.limit_seconds,
            of_latency=self.objective.max_latency is not None,
            present=self.current if self.serving is None else dict(self.serving.parallelism),
        )

    def is_worth(self, going: Outlook, vector: Parallelism) -> bool:
        """Whether the change to `vector`, with its outlook `going`, is worth its restart: it lets more through, which lasts,
        and the application does not keep up, or would never be within the objective; or it helps, or would with less
        backlog: more lag is no reason to stay."""
        more = self._lets_more_through(going)
        if is_overloaded(self.staying):
            return more
        # An instance more of what serves meanwhile may help although it adds no capacity.
        if not more and self.serving is None:
            return False
        return (
            (more and self.violation_cost(self.staying)[0])
            or self.helps(going)
            or any(less.helps(less.going([vector])[0]) for less in self.with_less_waiting())
        )

    def helps(self, going: Outlook) -> bool:
        """Whether a change shortens the violation by enough for slots and a restart."""
        return self.violation_cost(self.staying) > self.within_tolerance(going)

    def is_later(self, going: Outlook) -> bool:
        """Whether holding has room and is above the objective for less of the horizon than after a change, or would be if
        the sources shared their operators otherwise.

        With several sources the prediction beyond the horizon is no reason for a change: it is uncertain how they will share
        an operator, and another prediction comes before. With one source it is: state may warm up for longer than that.
        """
        limit, staying = self.limit_seconds, self.staying
        if limit is None or len(self.model.arrivals) < 2 or (staying.max_utilization or 0.0) > self.max_utilization:
            return False
        # With room and nothing late, lag only rises if a source gets less of an operator than what arrives at it.
        waits = [self.model.backlogs[source].records > limit * rate for source, rate in self.model.arrivals.items()]
        if self.serving is None and not staying.late[0] and not any(waits):
            return True
        return staying.violation_seconds < going.violation_seconds

    def _lets_more_through(self, going: Outlook) -> bool:
        """Whether after a change more could reach an operator than it sustains now, if enough waited at each source.

        Each source is taken to get what it can use (`Model.reaching`): what another one lacks, which the change does not
        give it, is no reason against this one. And whatever arrives: more of it does not make a growth useless.
        """
        waiting = {source: rate * ENOUGH for source, rate in self.model.arrivals.items()}
        reaching = self.model.reaching(waiting, going.capacities)
        return any(rate < CLOSE * reaching.get(name, 0.0) for name, rate in self.staying.capacities.items())

    def is_close(self, going: Outlook, best: Outlook) -> bool:
        """Whether a change is about as good as a larger one: it lets about as much through, works a backlog off about as
        fast, or is late for about as long.

        The first two do not depend on what waits. Late times alone would: what a restart adds to both counts for less
        with more lag, for which the smaller change would be enough.
        """
        used, used_by_best = self._used(going), self._used(best)
        if used * CLOSE <= used_by_best or (0 < used < 1 and 1 / used_by_best - 1 <= ABOUT * (1 / used - 1)):
            return True
        allowed = self.within_tolerance(best)
        return not allowed[0] and self.violation_cost(going) <= allowed

    def _used(self, found: Outlook) -> float:
        """Return the load over the capacity of the busiest operator, not rounded."""
        return busiest(self.model.loads, found.capacities)[0] or 0.0

    def gains(self, going: Outlook) -> bool:
        """Whether a change is better than staying by more than a rounding error."""
        (never, late), (going_never, going_late) = self.violation_cost(self.staying), self.violation_cost(going)
        return never if never != going_never else going_late < late - 0.5

    def is_good(self, found: Outlook) -> bool:
        """Whether the objective always holds and the application keeps up afterwards."""
        return found.violation_seconds == 0 and (found.max_utilization or 0.0) <= self.max_utilization

    def violation_cost(self, found: Outlook) -> ViolationCost:
        """Return seconds of violation, those beyond the horizon included if they end, and the load beyond the target as a
        share of the horizon."""
        over = max(0.0, (found.max_utilization or 0.0) - self.max_utilization) * found.horizon_seconds
        return math.isinf(found.late_after_seconds), over + _late_seconds(found)

    def within_tolerance(self, found: Outlook) -> ViolationCost:
        """Return the largest cost that counts as being as good as `found`.

        Late times may be a share longer, the load beyond the target may not: that share would grow with the load, and more
        arrivals would do with fewer subtasks.
        """
        never, cost = self.violation_cost(found)
        return never, cost + (ABOUT - 1) * _late_seconds(found) + 1.0


def _late_seconds(found: Outlook) -> float:
    """Return the seconds above the objective; only those within the horizon if they never end."""
    return found.violation_seconds if math.isinf(found.late_after_seconds) else found.late_seconds


def is_overloaded(found: Outlook) -> bool:
    """Whether more arrives than the busiest operator sustains."""
    return (found.max_utilization or 0.0) > 1


class ReadRequest(Protocol):
    """Request of a plan for a known graph with its model and limits, as the SDK's `Request`."""

    @property
    def analysis(self) -> Analysis: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def deployment(self) -> Deployment: ...
    @property
    def policy(self) -> ScalingPolicy: ...
    @property
    def outcomes(self) -> Sequence[Outcome]: ...
    @property
    def model(self) -> tuple[Model, Sequence[Gap]]: ...
    @property
    def limits(self) -> Mapping[str, OperatorLimits]: ...


def scenario_of(request: ReadRequest, assumptions: Assumptions) -> Scenario | TooLittle:
    """Return the application of a request, or why too little is known of it to compare anything."""
    analysis, deployment, objective = request.analysis, request.deployment, request.policy.spec.objective
    model, gaps = request.model
    partial = tuple(gap for gap in gaps if gap.what in ("arrival rate", "lag"))
    for gap in partial:
        if gap.lower_bound is None and (gap.what == "arrival rate" or objective.utilization is None):
            return TooLittle(
                "metric-missing", f"the {gap.what} of {short_name(gap.operator)} is unknown: {gap.because}"
            )
    current = deployment.observed
    bounds = lower_bounds_of(analysis.operators, model.curves, request.topology)
    found = Scenario(
        analysis=analysis,
        topology=request.topology,
        current=current,
        model=model,
        restarts=restarts_of(analysis, deployment, request.outcomes, assumptions.restart_seconds),
        objective=objective,
        limits=request.limits,
        lower_bounds={name: bound.rate(current.get(name, bound.parallelism)) for name, bound in bounds.items()},
        assumptions=assumptions,
        serving=serving_of(analysis, deployment, request.topology),
        partial=partial,
    )
    if not model.curves and not bounds and not found.suspects:
        return TooLittle("warming-up", no_capacity(analysis))
    return found


class Compared(NamedTuple):
    """Predictions of holding and of a vector, and whether the vector is worth its restart."""

    staying: Prediction
    going: Prediction
    gains: bool


def compare(request: ReadRequest, parallelism: Parallelism, assumptions: Assumptions) -> Compared | None:
    """Compare a vector with holding; None if too little is known."""
    found = scenario_of(request, assumptions)
    if isinstance(found, TooLittle) or found.suspects:
        return None
    (going,) = found.going([parallelism])
    return Compared(found.staying.prediction(), going.prediction(), found.is_worth(going, parallelism))
