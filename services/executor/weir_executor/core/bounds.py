"""Check of a plan against the bounds, total and budget of the policy that was just read."""

from weir_contracts import Deployment, Parallelism, PolicySpec, Topology, changes

from . import messages
from .observed import Refusal


def out_of_bounds(
    wanted: Parallelism, there: Deployment, spec: PolicySpec, topology: Topology | None
) -> Refusal | None:
    """Return the limit of the policy that `wanted` exceeds, or None.

    An operator that runs outside a limit, because the policy changed or the limit cannot be met, may stay there or move
    towards it. `wanted` covers exactly the operators of `there`; `topology` is None if the driver does not report it.
    """
    limits = {name: _limits(name, spec, topology) for name in wanted}
    now = {name: _now(name, there, limits[name]) for name in wanted}
    for name, p in wanted.items():
        low, high = limits[name]
        if not min(low, now[name]) <= p <= max(high, now[name]):
            changed = changes({name: now[name]}, {name: p})
            return Refusal("out-of-bounds", messages.out_of_bounds(changed, low, high))
    allowed = {name: max(low, min(now[name], high)) for name, (low, high) in limits.items()}
    total, budget = spec.bounds.total, spec.budget.limit
    if budget is not None and topology is None:
        return Refusal("out-of-bounds", messages.UNKNOWN_GRAPH)
    slots, min_slots = (topology.slots(wanted), topology.slots(allowed)) if topology is not None else (0, 0)
    if budget is not None and slots > max(budget[0], min_slots):
        return Refusal("out-of-bounds", messages.over_budget(slots, budget[0], budget[1]))
    if total is None:
        return None
    count, min_count = sum(wanted.values()), sum(allowed.values())
    if total.max is not None and count > max(total.max, min_count):
        return Refusal("out-of-bounds", messages.above_total(count, total.max))
    # Where what runs exceeds a maximum or the budget, that comes before the total's minimum.
    fits = min_count == sum(now.values()) and (budget is None or min_slots <= budget[0])
    if fits and total.min is not None and count < min(total.min, min_count):
        return Refusal("out-of-bounds", messages.below_total(count, total.min))
    return None


def _limits(name: str, spec: PolicySpec, topology: Topology | None) -> tuple[int, int]:
    """Return the policy's lowest and highest parallelism, the lowest as far as key groups and instances can meet it.

    A plan above the key groups is the engine's to reject.
    """
    low, high = spec.bounds.of(name)
    if topology is None:
        return low, high
    unit, key_groups = spec.target.unit, topology.operator(name).max_parallelism
    if unit is not None:  # the smallest number of instances for the minimum may bring more subtasks than the maximum
        low = unit.parallelism_of(topology, unit.instances_for(topology, low))
    low = min(low, key_groups or low)
    return low, max(low, high)


def _now(name: str, there: Deployment, limits: tuple[int, int]) -> int:
    """Return what runs or what is requested, whichever is nearer to the limits."""
    low, high = limits
    candidates = (there.observed[name], (there.requested or there.observed).get(name, there.observed[name]))
    return min(candidates, key=lambda p: max(low - p, p - high, 0))
