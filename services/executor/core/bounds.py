"""Whether a plan keeps to the policy's bounds, its total and its budget, as the policy was read just before."""

from weir_contracts import Deployment, Parallelism, PolicySpec, Topology

from .messages import changes
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
            return Refusal("out-of-bounds", f"{changed} is outside the policy's bounds of {low} to {high}")
    allowed = {name: max(low, min(now[name], high)) for name, (low, high) in limits.items()}
    total, budget = spec.bounds.total, spec.budget.limit
    if budget is not None and topology is None:
        return Refusal(
            "out-of-bounds", "the policy has a budget, and the slots cannot be counted: the graph is unknown"
        )
    slots, min_slots = (topology.slots(wanted), topology.slots(allowed)) if topology is not None else (0, 0)
    if budget is not None and slots > max(budget[0], min_slots):
        return Refusal("out-of-bounds", f"{slots} slots are more than the {budget[0]} of the budget's {budget[1]}")
    if total is None:
        return None
    count, least = sum(wanted.values()), sum(allowed.values())
    if total.max is not None and count > max(total.max, least):
        return Refusal("out-of-bounds", f"{count} subtasks are more than the {total.max} of the policy's total")
    # Where what runs exceeds a maximum or the budget, that comes before the total's minimum.
    fits = least == sum(now.values()) and (budget is None or min_slots <= budget[0])
    if fits and total.min is not None and count < min(total.min, least):
        return Refusal("out-of-bounds", f"{count} subtasks are fewer than the {total.min} of the policy's total")
    return None


def _limits(name: str, spec: PolicySpec, topology: Topology | None) -> tuple[int, int]:
    """Return the policy's lowest and highest parallelism, as far as key groups and whole containers can meet them."""
    low, high = spec.bounds.of(name)
    if topology is None:
        return low, high
    docker = spec.target.docker
    if docker is not None:  # the fewest containers for the minimum may bring more subtasks than the maximum
        low = docker.parallelism_of(topology, docker.containers_for(topology, low))
    low = min(low, topology.operator(name).max_parallelism or low)
    return low, max(low, high)


def _now(name: str, there: Deployment, limits: tuple[int, int]) -> int:
    """Return what runs or what is requested, whichever is nearer to the limits."""
    low, high = limits
    known = (there.observed[name], (there.requested or there.observed).get(name, there.observed[name]))
    return min(known, key=lambda p: max(low - p, p - high, 0))
