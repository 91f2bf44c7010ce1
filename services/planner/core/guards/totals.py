"""Guards on all operators together: the policy's total, its budget, the cluster's slots."""

from collections.abc import Mapping

from services.planner.core import messages

from .allowed import Cost, cut, raised, subtasks
from .proposal import Context, Proposal


def total_bounds(proposal: Proposal) -> Proposal:
    """Keep the sum of all subtasks between the policy's bounds: the largest growth is cut first, the busiest operator last."""
    context = proposal.context
    total = context.spec.bounds.total
    if total is None:
        return proposal
    if total.max is not None and (count := subtasks(proposal.wanted)) > total.max:
        reason = messages.above_total(count, total.max)
        proposal = _cut_to(proposal, subtasks, total.max, guard="total-bounds", reason=reason)
    # Cut in useful steps, the sum may be below the minimum.
    wanted = proposal.wanted
    if total.min is None or subtasks(wanted) >= total.min:
        return proposal
    lowered = {name: max(p, context.current[name]) for name, p in wanted.items()}
    found = raised(wanted, lowered, total.min, context.busy)
    ceilings = {name: max(p, context.request.limits[name].max) for name, p in found.items()}
    found = raised(found, ceilings, total.min, context.busy)
    return proposal.changed("total-bounds", messages.below_total(subtasks(wanted), total.min), found)


def budget(proposal: Proposal) -> Proposal:
    """Limit the slots to the policy's budget, which is in slots, CPU or memory."""
    topology, limit = proposal.context.topology, proposal.context.spec.budget.limit
    if limit is None or (slots := topology.slots(proposal.wanted)) <= limit[0]:
        return proposal
    return _cut_to(proposal, topology.slots, limit[0], guard="budget", reason=messages.over_budget(slots, *limit))


def slots_available(proposal: Proposal) -> Proposal:
    """Limit growth to the free slots and those that the application holds.

    Unknown slots limit nothing, since the engine runs with what it has; neither do they where containers bring their own.
    """
    context = proposal.context
    slots = context.request.deployment.slots
    if slots is None or context.spec.target.unit is not None:
        return proposal
    cost = context.topology.slots
    held, wanted = cost(context.current), cost(proposal.wanted)
    limit = slots.available + held
    if wanted <= limit or wanted <= held:
        return proposal
    reason = messages.slots_missing(wanted, limit, slots.available, held)
    vector = _in_steps(proposal.wanted, context.current, context, cost, limit=limit)
    return proposal.noting("slots", reason, wanted=wanted, limit=limit).changed(
        "slots-available", reason, vector, code="slots"
    )


def _cut_to(proposal: Proposal, cost: Cost, limit: int, *, guard: str, reason: str) -> Proposal:
    """Keep as much of the growth as the limit allows; if it does not even allow the current vector, cut that too."""
    context, wanted = proposal.context, proposal.wanted
    floors = {name: context.spec.bounds.of(name)[0] for name in wanted}
    running = {name: max(context.current[name], floor) for name, floor in floors.items()}
    found = _in_steps(wanted, running, context, cost, limit=limit)
    found = _in_steps(found, floors, context, cost, limit=limit)
    return proposal.noting(guard, reason, wanted=cost(wanted), limit=limit).changed(guard, reason, found)


def _in_steps(
    vector: Mapping[str, int], floors: Mapping[str, int], context: Context, cost: Cost, *, limit: int
) -> dict[str, int]:
    """Return the part of a vector that fits the limit, in useful steps, none below its floor."""
    lowered_floors = {name: min(p, floors[name]) for name, p in vector.items()}
    return {
        name: p if p == vector[name] else max(lowered_floors[name], context.topology.smallest_useful(name, p))
        for name, p in cut(vector, lowered_floors, cost, limit).items()
    }
