"""Limits of the policy on a vector: bounds of each operator, of their sum, and the budget."""

from collections.abc import Callable, Mapping

from weir_contracts import Analysis, Bounds, Parallelism, PolicySpec, Topology
from weir_planner.core import messages

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
    reasons += [messages.out_of_bounds(n, p, *bounds.of(n)) for n, p in current.items() if found[n] != p]
    floors = {name: bounds.of(name)[0] for name in current}
    if total is not None and total.min is not None and subtasks(found) < total.min:
        reasons.append(messages.below_total(subtasks(found), total.min))
        ceilings = {name: limits.max for name, limits in topology.limits(bounds).items()}
        busy = {each.operator: each.utilization.value for each in analysis.operators}
        found = raised(found, ceilings, total.min, busy)
    if total is not None and total.max is not None and subtasks(found) > total.max:
        reasons.append(messages.above_total(subtasks(found), total.max))
        found = cut(found, floors, subtasks, total.max)
    if limit is not None and topology.slots(found) > limit[0]:
        reasons.append(messages.over_budget(topology.slots(found), *limit))
        found = cut(found, floors, topology.slots, limit[0])
    return found, reasons
