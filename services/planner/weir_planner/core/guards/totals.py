"""Guards that limit all operators together: the policy's total, its budget, the cluster's slots, and one parallelism for all."""

from collections.abc import Mapping

from weir_contracts import Unit, after_colon, counted
from weir_sdk.request import Request

from .proposal import Cost, Proposal, above_total, below_total, cut, over_budget, raised, subtasks


def total_bounds(proposal: Proposal) -> Proposal:
    """Keep the sum of all subtasks between the policy's bounds: the largest growth is cut first, the busiest operator
    last."""
    request = proposal.request
    total = request.policy.spec.bounds.total
    if total is None:
        return proposal
    if total.max is not None and (count := subtasks(proposal.wanted)) > total.max:
        reason = above_total(count, total.max)
        proposal = _cut_to(proposal, subtasks, total.max, guard="total-bounds", reason=reason)
    # Cut in useful steps, the sum may be below the minimum.
    wanted = proposal.wanted
    if total.min is None or subtasks(wanted) >= total.min:
        return proposal
    busy = {name: request.busy(name) for name in wanted}
    lowered = {name: max(p, proposal.current[name]) for name, p in wanted.items()}
    found = raised(wanted, lowered, total.min, busy)
    ceilings = {name: max(p, request.limits[name].max) for name, p in found.items()}
    found = raised(found, ceilings, total.min, busy)
    return proposal.changed("total-bounds", below_total(subtasks(wanted), total.min), found)


def budget(proposal: Proposal) -> Proposal:
    """Limit the slots to the policy's budget, which is in slots, CPU or memory."""
    topology, limit = proposal.request.topology, proposal.request.policy.spec.budget.limit
    if limit is None or (slots := topology.slots(proposal.wanted)) <= limit[0]:
        return proposal
    return _cut_to(proposal, topology.slots, limit[0], guard="budget", reason=over_budget(slots, *limit))


def slots_available(proposal: Proposal) -> Proposal:
    """Limit growth to the free slots and those that the application holds.

    Unknown slots limit nothing, since the engine runs with what it has; neither do they where instances bring their
    own. A cluster that starts TaskManagers itself limits growth by its own maximum.
    """
    request = proposal.request
    free = request.deployment.free_slots
    unit = request.policy.spec.target.unit
    if free is None or (unit is not None and unit.brings_slots):
        return proposal
    cost = request.topology.slots
    held, wanted = cost(proposal.current), cost(proposal.wanted)
    limit = free + held
    if wanted <= limit or wanted <= held:
        return proposal
    required = f"{counted(wanted, 'slot')} {'is' if wanted == 1 else 'are'} needed"
    reason = f"{required}, {limit} {'is' if limit == 1 else 'are'} available ({free} free, {held} held)"
    vector = _in_steps(proposal.wanted, proposal.current, request, cost, limit=limit)
    return proposal.noting("slots", reason, wanted=wanted, limit=limit).changed(
        "slots-available", reason, vector, code="slots"
    )


def _cut_to(proposal: Proposal, cost: Cost, limit: int, *, guard: str, reason: str) -> Proposal:
    """Keep as much of the growth as the limit allows; if it does not even allow the current vector, cut that too."""
    request, wanted = proposal.request, proposal.wanted
    floors = {name: request.policy.spec.bounds.of(name)[0] for name in wanted}
    running = {name: max(proposal.current[name], floor) for name, floor in floors.items()}
    found = _in_steps(wanted, running, request, cost, limit=limit)
    found = _in_steps(found, floors, request, cost, limit=limit)
    return proposal.noting(guard, reason, wanted=cost(wanted), limit=limit).changed(guard, reason, found)


def _in_steps(
    vector: Mapping[str, int], floors: Mapping[str, int], request: Request, cost: Cost, *, limit: int
) -> dict[str, int]:
    """Return the part of a vector that fits the limit, in useful steps, none below its floor."""
    lowered_floors = {name: min(p, floors[name]) for name, p in vector.items()}
    return {
        name: p if p == vector[name] else max(lowered_floors[name], request.topology.smallest_useful(name, p))
        for name, p in cut(vector, lowered_floors, cost, limit).items()
    }


def one_parallelism(proposal: Proposal) -> Proposal:
    """Give every operator the parallelism of the one that needs the most, in complete instances, within the policy's
    limits."""
    request, topology = proposal.request, proposal.request.topology
    unit = request.policy.spec.target.unit
    if unit is None:
        return proposal
    wanted = unit.instances_for(topology, max(proposal.wanted.values()))
    count, code, reason = _allowed(wanted, unit, request)
    level = unit.parallelism_of(topology, count)
    if count < wanted:
        proposal = proposal.noting(code, reason, wanted=unit.parallelism_of(topology, wanted), limit=level)
    instances = f" with {counted(count, unit.instance)} of {counted(unit.slots, 'slot')}" if unit.brings_slots else ""
    reason = f"all operators run at the same parallelism, {level}{instances}" + after_colon(reason)
    if count == unit.instances_for(topology, max(proposal.current.values())):
        return proposal.changed("one-parallelism", reason, proposal.current)
    return proposal.changed("one-parallelism", reason, topology.uniform(level))


def _allowed(wanted: int, unit: Unit, request: Request) -> tuple[int, str, str]:
    """Return the allowed number of instances nearest to `wanted`, and code and reason of the limit that applied."""
    topology, step = request.topology, unit.instances_for(request.topology, 1)
    minimum = unit.instances_for(topology, request.policy.spec.bounds.min)
    count, code, reason = wanted, "", ""
    if count < minimum:
        count, code, reason = minimum, "bounds", f"the policy's minimum is {request.policy.spec.bounds.min}"
    if unit.max is not None and count > unit.max:
        count, code, reason = (
            max(step, unit.max // step * step),
            "slots",
            f"the policy allows {counted(unit.max, unit.instance)}",
        )
    while count > step and (limit := _limit(unit.parallelism_of(topology, count), request)):
        code, reason = limit
        count -= step
    return count, code, reason


def _limit(level: int, request: Request) -> tuple[str, str] | None:
    """Return code and reason of the first limit that forbids this parallelism for all operators."""
    bounds, budget, topology = request.policy.spec.bounds, request.policy.spec.budget.limit, request.topology
    vector, key_groups = topology.uniform(level), max(each.max_parallelism or level for each in topology.operators)
    if level > bounds.max:
        return "bounds", f"the policy's maximum is {bounds.max}"
    if level > key_groups:
        return "key-groups", f"no operator has more than {key_groups} key groups"
    if bounds.total is not None and bounds.total.max is not None and subtasks(vector) > bounds.total.max:
        return "total-bounds", above_total(subtasks(vector), bounds.total.max)
    if budget is not None and topology.slots(vector) > budget[0]:
        return "budget", over_budget(topology.slots(vector), *budget)
    return None
