"""The proposal that passes through the guards, values that they derive from its request, and the policy's limits on a
vector."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
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
    Topology,
    bounded,
    counted,
    short_name,
)
from weir_predictor.capacity import MIN_CONFIDENCE
from weir_sdk.request import Request

MAX_UTILIZATION = 0.92
"""Load over capacity above which an operator is close enough to its limit for any relief to count."""


def load(request: Request, name: str) -> float | None:
    """Return an operator's demand over its capacity as it runs, measured without the fit of a curve; None if either is
    unknown."""
    found, now, demand = request.analyses.get(name), request.deployment.observed[name], request.demand(name)
    if found is None or demand is None:
        return None
    for point in found.capacities:
        if point.parallelism == now and point.confidence >= MIN_CONFIDENCE:
            return demand / point.records_per_second
    rate = found.true_processing_rate
    if not rate.value or found.parallelism != now or rate.confidence < MIN_CONFIDENCE:
        return None
    return demand / rate.value


def lag_seconds(request: Request) -> float | None:
    """Return the lag or latency that the objective bounds, or its lower bound: that much waits in any case."""
    found, is_latency = request.analysis, request.policy.spec.objective.max_latency is not None
    return (found.expected_latency_seconds if is_latency else found.lag_seconds).proven


def backlogged_seconds(request: Request) -> float:
    """Return the lag above which a backlog waits: a quarter of the objective, at least three intervals."""
    spec = request.policy.spec
    return max((spec.objective.bound_seconds or 60.0) / 4, 3 * spec.interval.total_seconds())


def has_backlog(request: Request) -> bool:
    """Return whether the lag or latency that the objective bounds is known to be a backlog."""
    seconds = lag_seconds(request)
    return seconds is not None and seconds > backlogged_seconds(request)


def known_in_part(request: Request) -> str | None:
    """Say which of arrivals and lag only a lower bound is known of; None: neither."""
    analysis = request.analysis
    for what, unit, found in (
        ("arrival rate", "records/s", analysis.arrival_rate),
        ("lag", "s", analysis.lag_seconds),
        ("lag", "records", analysis.lag_records),
    ):
        if found.lower_bound is not None:
            return f"its {what} is known in part: at least {found.lower_bound:,.0f} {unit}"
    return None


def last_growth(request: Request, name: str) -> PastAction | None:
    """Return the newest change of an operator if it was a growth to the current parallelism."""
    newest = next((a for a in reversed(request.state.actions) if name in a.after and not a.undone), None)
    if newest is None or not newest.before[name] < newest.after[name] == request.deployment.observed[name]:
        return None
    return newest


@dataclass(frozen=True)
class Proposal:
    """A decision in the making on a request, whose state has this cycle's recommendations, arrivals and actions.
    `vector is None`: a hold, with its code and sentence."""

    request: Request
    vector: Parallelism | None
    code: str
    sentence: str
    amendments: tuple[Amendment, ...] = ()
    infeasible: tuple[Infeasible, ...] = ()

    @property
    def wanted(self) -> Parallelism:
        """The vector; empty for a hold."""
        return self.vector or {}

    @property
    def current(self) -> Parallelism:
        """The vector that runs."""
        return self.request.deployment.observed

    @cached_property
    def movable(self) -> frozenset[str]:
        """Operators that run within what the policy allows. The others are on their way there, and no guard holds them
        back."""
        request, current = self.request, self.current
        nearest = allowed(current, request.policy.spec, request.topology, request.analysis)[0]
        return frozenset([name for name, p in current.items() if nearest[name] == p])

    @cached_property
    def moves(self) -> tuple[list[str], list[str]]:
        """The operators that the vector raises and those that it lowers, without those on their way into the policy's
        limits."""
        up: list[str] = []
        down: list[str] = []
        for name, p in self.wanted.items():
            now = self.current.get(name, p)
            if p != now and name in self.movable:
                (up if p > now else down).append(name)
        return up, down

    def changed(self, guard: str, reason: str, vector: Mapping[str, int], *, code: str | None = None) -> "Proposal":
        """Return the proposal with another vector; unchanged if it is the same."""
        if self.vector is None or vector == self.vector:
            return self
        after = dict(vector)
        reason = bounded(reason, MAX_SENTENCE)
        amendment = Amendment(guard=guard, code=code or guard, because=reason, before=self.vector, after=after)
        return replace(self, vector=after, amendments=(*self.amendments, amendment))

    def held(self, guard: str, code: str, reason: str) -> "Proposal":
        """Return the proposal as a hold."""
        amendment = Amendment(
            guard=guard, code=code, because=bounded(reason, MAX_SENTENCE), before=self.vector, after=None
        )
        amendments = (*self.amendments, amendment)
        return replace(self, vector=None, code=code, sentence=amendment.because, amendments=amendments)

    def kept(self, guard: str, reason: str, names: Iterable[str]) -> "Proposal":
        """Return the proposal with some operators at their current parallelism."""
        return self.changed(guard, reason, {**self.wanted, **{name: self.current[name] for name in names}})

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
