"""The proposal that passes through the guards, what guards decide by, and the policy's limits on a vector."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property

from weir_contracts import (
    MAX_SENTENCE,
    Amendment,
    Analysis,
    Bounds,
    Infeasible,
    Parallelism,
    PastAction,
    PolicySpec,
    Recommendation,
    Topology,
    UsualArrivals,
    bounded,
    counted,
    short_name,
)
from weir_predictor.capacity import MIN_CONFIDENCE, CapacityCurve
from weir_sdk.request import Request

SATURATED = 0.95
"""Busy share from which an operator counts as saturated."""

MAX_UTILIZATION = 0.92
"""Load over capacity above which an operator is close enough to its limit for any relief to count."""

REMEMBERED = timedelta(hours=1)
"""How far back past actions reach."""


class Context:
    """The planner's request as guards read it, with what the planner service remembers of earlier cycles; independent
    of the proposal."""

    def __init__(
        self,
        request: Request,
        recommendations: Sequence[Recommendation] = (),
        arrivals: UsualArrivals | None = None,
        actions: Sequence[PastAction] = (),
    ) -> None:
        """`recommendations` are the planner's in the stabilisation windows, this cycle's included, and `actions` those
        of the last hour, both oldest first; `arrivals` are the usual ones, and since when they are missing."""
        self.request, self.recommendations, self.arrivals, self.actions = request, recommendations, arrivals, actions
        self.now, self.analysis, self.topology, self.spec = (
            request.now,
            request.analysis,
            request.topology,
            request.policy.spec,
        )
        self.current: Parallelism = request.deployment.observed
        self.operators = {found.operator: found for found in self.analysis.operators}
        self.busy = {name: found.utilization.value for name, found in self.operators.items()}
        """Busy share of each operator."""
        nearest = allowed(self.current, self.spec, self.topology, self.analysis)[0]
        self.movable = frozenset([name for name, p in self.current.items() if nearest[name] == p])
        """Operators that run within what the policy allows. The others are on their way there, and no guard holds them
        back."""

    def counts_records(self, name: str) -> bool:
        """Return whether the policy says how to count an operator's records: a service may have CPU alone."""
        return self.request.policy.counts_records(name, self.topology.sources)

    def load(self, name: str) -> float | None:
        """Return an operator's demand over its capacity as it runs; None if either is unknown."""
        capacity, demand = self._capacity(name), self.demand(name)
        return None if capacity is None or demand is None else demand / capacity

    def _capacity(self, name: str) -> float | None:
        """Return an operator's measured capacity as it runs in records/s, without the fit of a curve."""
        found, now = self.operators.get(name), self.current[name]
        if found is None:
            return None
        for point in found.capacities:
            if point.parallelism == now and point.confidence >= MIN_CONFIDENCE:
                return point.records_per_second
        rate = found.true_processing_rate
        return (rate.value or None) if found.parallelism == now and rate.confidence >= MIN_CONFIDENCE else None

    def curve(self, name: str) -> CapacityCurve | None:
        """Return an operator's capacity at each parallelism."""
        return self.request.model[0].curves.get(name)

    def demand(self, name: str) -> float | None:
        """Return the records/s that would arrive at an operator without backpressure."""
        found = self.operators.get(name)
        return None if found is None else found.target_input_rate.value

    @property
    def lag_seconds(self) -> float | None:
        """The lag or latency that the objective bounds, or its lower bound: that much waits in any case."""
        is_latency = self.spec.objective.max_latency is not None
        return (self.analysis.expected_latency_seconds if is_latency else self.analysis.lag_seconds).proven

    @property
    def backlogged_seconds(self) -> float:
        """The lag above which a backlog waits: a quarter of the objective, at least three intervals."""
        return max((self.spec.objective.bound_seconds or 60.0) / 4, 3 * self.spec.interval.total_seconds())

    @property
    def has_backlog(self) -> bool:
        return self.lag_seconds is not None and self.lag_seconds > self.backlogged_seconds

    @property
    def waiting_seconds(self) -> float | None:
        """The lag or latency that is known, or its lower bound, that of the objective first; 0 if nothing waits. None:
        unknown."""
        found = self.analysis
        for seconds in (self.lag_seconds, found.lag_seconds.proven, found.expected_latency_seconds.proven):
            if seconds is not None:
                return seconds
        return 0.0 if found.lag_records.value == 0 else None

    @property
    def known_in_part(self) -> str | None:
        """Say which of arrivals and lag only a lower bound is known of; None: neither."""
        for what, unit, found in (
            ("arrival rate", "records/s", self.analysis.arrival_rate),
            ("lag", "s", self.analysis.lag_seconds),
            ("lag", "records", self.analysis.lag_records),
        ):
            if found.lower_bound is not None:
                return f"its {what} is known in part: at least {found.lower_bound:,.0f} {unit}"
        return None

    def last_growth(self, name: str) -> PastAction | None:
        """Return the newest change of an operator if it was a growth to the current parallelism."""
        newest = next((a for a in reversed(self.actions) if name in a.after and not a.undone), None)
        if newest is None or not newest.before[name] < newest.after[name] == self.current[name]:
            return None
        return newest

    def needs_more(self, name: str) -> bool:
        """Return whether an operator is close to its limit, or whether that is unknown."""
        busy, load = self.busy.get(name), self.load(name)
        return busy is None or load is None or busy >= SATURATED or load > MAX_UTILIZATION or self.has_backlog


@dataclass(frozen=True)
class Proposal:
    """A decision in the making. `vector is None`: a hold, with its code and sentence."""

    context: Context
    vector: Parallelism | None
    code: str
    sentence: str
    amendments: tuple[Amendment, ...] = ()
    infeasible: tuple[Infeasible, ...] = ()

    @property
    def wanted(self) -> Parallelism:
        """The vector; empty for a hold."""
        return self.vector or {}

    @cached_property
    def moves(self) -> tuple[list[str], list[str]]:
        """The operators that the vector raises and those that it lowers, without those on their way into the policy's
        limits."""
        up: list[str] = []
        down: list[str] = []
        current, movable = self.context.current, self.context.movable
        for name, p in self.wanted.items():
            now = current.get(name, p)
            if p != now and name in movable:
                (up if p > now else down).append(name)
        return up, down

    def changed(self, guard: str, reason: str, vector: Mapping[str, int], *, code: str | None = None) -> "Proposal":
        """Return the proposal with another vector; unchanged if it is the same."""
        if self.vector is None or vector == self.vector:
            return self
        after = dict(vector)
        reason = bounded(reason, MAX_SENTENCE)
        amendment = Amendment(guard=guard, code=code or guard, because=reason, before=self.vector, after=after)
        amendments = (*self.amendments, amendment)
        return Proposal(self.context, after, self.code, self.sentence, amendments, self.infeasible)

    def held(self, guard: str, code: str, reason: str) -> "Proposal":
        """Return the proposal as a hold."""
        amendment = Amendment(
            guard=guard, code=code, because=bounded(reason, MAX_SENTENCE), before=self.vector, after=None
        )
        amendments = (*self.amendments, amendment)
        return Proposal(self.context, None, code, amendment.because, amendments, self.infeasible)

    def kept(self, guard: str, reason: str, names: Iterable[str]) -> "Proposal":
        """Return the proposal with some operators at their current parallelism."""
        return self.changed(guard, reason, {**self.wanted, **{name: self.context.current[name] for name in names}})

    def noting(self, code: str, reason: str, *, wanted: int, limit: int, operator: str | None = None) -> "Proposal":
        """Return the proposal with a note that `wanted` is infeasible."""
        note = Infeasible(
            operator=operator, wanted=wanted, limit=limit, code=code, because=bounded(reason, MAX_SENTENCE)
        )
        return replace(self, infeasible=(*self.infeasible, note))


Cost = Callable[[Mapping[str, int]], int]


def subtasks(vector: Mapping[str, int]) -> int:
    """Return the number of all operators' subtasks."""
    return sum(vector.values())


def clamped(vector: Mapping[str, int], bounds: Bounds) -> Parallelism:
    """Return the vector with each operator between its own bounds."""
    found, common, own = {}, (bounds.min, bounds.max), bounds.operators
    for name, p in vector.items():
        low, high = bounds.of(name) if name in own else common
        found[name] = p if low <= p <= high else max(low, min(p, high))
    return found


def cut(vector: Mapping[str, int], floors: Mapping[str, int], cost: Cost, limit: int) -> Parallelism:
    """Return the part of a vector that costs at most `limit`; the largest operators are cut first, down to one level.

    No operator falls below its floor; if even the floors cost more, the floors are returned.
    """
    if cost(vector) <= limit:
        return dict(vector)

    def level(cap: int) -> Parallelism:
        return {name: min(p, max(floors[name], cap)) for name, p in vector.items()}

    low, high = 0, max(vector.values())  # `high` costs too much, `low` does not or nothing helps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(level(middle)) <= limit else (low, middle)
    found = level(low)
    for name, p in vector.items():  # one more level fits some operators even if it does not fit all
        if found[name] < min(p, low + 1):
            found[name] += 1
            if cost(found) > limit:
                found[name] -= 1
    return found


def raised(
    vector: Mapping[str, int], ceilings: Mapping[str, int], minimum: int, busy: Mapping[str, float | None]
) -> Parallelism:
    """Return a vector of at least `minimum` subtasks, none above its ceiling; the busiest operators grow first."""
    found = dict(vector)
    missing = minimum - subtasks(found)
    for name in sorted(found, key=lambda n: -(busy.get(n) or 0.0)):
        more = max(0, min(ceilings[name] - found[name], missing))
        found[name] += more
        missing -= more
    return found


def allowed(
    current: Mapping[str, int], spec: PolicySpec, topology: Topology, analysis: Analysis
) -> tuple[Parallelism, list[str]]:
    """Return the allowed vector nearest to the current one, and why it differs; the same vector if that is allowed."""
    bounds, total, limit = spec.bounds, spec.bounds.total, spec.budget.limit
    found = clamped(current, bounds)
    reasons: list[str] = []
    if total is None and limit is None and found == current:
        return found, reasons
    for name, p in current.items():
        if found[name] != p:
            low, high = bounds.of(name)
            reasons.append(f"{short_name(name)} runs at {p}, the policy allows {low} to {high}")
    floors = {name: bounds.of(name)[0] for name in current}
    if total is not None and total.min is not None and subtasks(found) < total.min:
        reasons.append(below_total(subtasks(found), total.min))
        ceilings = {name: limits.max for name, limits in topology.limits(bounds).items()}
        busy = {each.operator: each.utilization.value for each in analysis.operators}
        found = raised(found, ceilings, total.min, busy)
    if total is not None and total.max is not None and subtasks(found) > total.max:
        reasons.append(above_total(subtasks(found), total.max))
        found = cut(found, floors, subtasks, total.max)
    if limit is not None and topology.slots(found) > limit[0]:
        reasons.append(over_budget(topology.slots(found), *limit))
        found = cut(found, floors, topology.slots, limit[0])
    return found, reasons


def above_total(count: int, limit: int) -> str:
    return f"{count} subtasks exceed the policy's total of {limit}"


def below_total(count: int, limit: int) -> str:
    return (
        f"{counted(count, 'subtask')} {'is' if count == 1 else 'are'} fewer than the policy's total minimum of {limit}"
    )


def over_budget(slots: int, limit: int, budget: str) -> str:
    return f"{counted(slots, 'slot')} {'exceeds' if slots == 1 else 'exceed'} the {limit} of the budget's {budget}"


def above_capacity(name: str, parallelism: int, limit: float) -> str:
    return f"{short_name(name)} at {parallelism} would be above {limit:.0%} of its capacity"
