"""What the policy allows in all: bounds of each operator, of their sum, and the budget. Whatever runs outside is brought into it."""

from collections.abc import Callable, Mapping

from weir_contracts import Parallelism, PolicySpec, Topology

Cost = Callable[[Mapping[str, int]], int]


def subtasks(vector: Mapping[str, int]) -> int:
    """Of all operators together."""
    return sum(vector.values())


def clamped(vector: Mapping[str, int], spec: PolicySpec) -> Parallelism:
    """Each operator between its own bounds."""
    found = {}
    for name, p in vector.items():
        least, highest = spec.bounds.of(name)
        found[name] = p if least <= p <= highest else max(least, min(p, highest))
    return found


def cut(vector: Mapping[str, int], floors: Mapping[str, int], cost: Cost, limit: int) -> Parallelism:
    """As much of a vector as costs no more than `limit`, none below its floor: the largest give first, down to one level.

    Where not even the floors cost so little, the floors.
    """
    if cost(vector) <= limit:
        return dict(vector)

    def level(cap: int) -> Parallelism:
        return {name: min(p, max(floors[name], cap)) for name, p in vector.items()}

    low, high = 0, max(vector.values())  # at `high` it costs too much, at `low` it does not or nothing helps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(level(middle)) <= limit else (low, middle)
    found = level(low)
    for name, p in vector.items():  # what one more level for all would exceed may do for some
        if found[name] < min(p, low + 1):
            found[name] += 1
            if cost(found) > limit:
                found[name] -= 1
    return found


def raised(
    vector: Mapping[str, int], ceilings: Mapping[str, int], least: int, busy: Mapping[str, float | None]
) -> Parallelism:
    """A vector of at least so many subtasks, none above its ceiling: the busiest get them first."""
    found = dict(vector)
    missing = least - subtasks(found)
    for name in sorted(found, key=lambda n: -(busy.get(n) or 0.0)):
        more = max(0, min(ceilings[name] - found[name], missing))
        found[name] += more
        missing -= more
    return found


def most(name: str, spec: PolicySpec, topology: Topology) -> int:
    """The highest parallelism of an operator that bounds, key groups and partitions leave."""
    operator = topology.operator(name)
    limits = (spec.bounds.of(name)[1], operator.max_parallelism, operator.source_partitions)
    return max(spec.bounds.of(name)[0], min(limit for limit in limits if limit is not None))


def allowed(
    current: Mapping[str, int], spec: PolicySpec, topology: Topology, busy: Mapping[str, float | None]
) -> tuple[Parallelism, list[str]]:
    """What comes nearest to the present of what the policy allows, and why it is another; the same if it is allowed."""
    bounds, total, limit = spec.bounds, spec.bounds.total, spec.budget.limit
    found = clamped(current, spec)
    why: list[str] = []
    if total is None and limit is None and found == current:
        return found, why
    for name, p in current.items():
        if found[name] != p:
            least, highest = bounds.of(name)
            why.append(f"{name} runs at {p} and the policy allows {least} to {highest}")
    least_of = {name: bounds.of(name)[0] for name in current}
    if total is not None and total.min is not None and subtasks(found) < total.min:
        why.append(f"{subtasks(found)} subtasks are fewer than the {total.min} of the policy's total")
        found = raised(found, {name: most(name, spec, topology) for name in found}, total.min, busy)
    if total is not None and total.max is not None and subtasks(found) > total.max:
        why.append(f"{subtasks(found)} subtasks are more than the {total.max} of the policy's total")
        found = cut(found, least_of, subtasks, total.max)
    if limit is not None and topology.slots(found) > limit[0]:
        why.append(f"{topology.slots(found)} slots are more than the {limit[0]} that the budget's {limit[1]} allows")
        found = cut(found, least_of, topology.slots, limit[0])
    return found, why
