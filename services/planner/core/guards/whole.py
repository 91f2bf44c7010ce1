"""The guard of applications that are scaled by instances: every operator has the same parallelism."""

from weir_contracts import Topology, Unit

from services.planner.core import messages

from .allowed import subtasks
from .proposal import Context, Proposal


def one_parallelism(proposal: Proposal) -> Proposal:
    """Give every operator the parallelism of the one that needs the most, in complete instances, within the policy's limits."""
    context, topology = proposal.context, proposal.context.topology
    unit = context.spec.target.unit
    if unit is None:
        return proposal
    wanted = unit.instances_for(topology, max(proposal.wanted.values()))
    count, code, reason = _allowed(wanted, unit, context)
    level = unit.parallelism_of(topology, count)
    if count < wanted:
        proposal = proposal.noting(code, reason, wanted=unit.parallelism_of(topology, wanted), limit=level)
    reason = messages.same_parallelism(level, count, unit.instance, unit.slots, reason)
    if count == unit.instances_for(topology, max(context.current.values())):
        return proposal.changed("one-parallelism", reason, context.current)
    return proposal.changed("one-parallelism", reason, topology.uniform(level))


def _allowed(wanted: int, unit: Unit, context: Context) -> tuple[int, str, str]:
    """Return the allowed number of instances nearest to `wanted`, and code and reason of the limit that applied."""
    topology, step = context.topology, unit.instances_for(context.topology, 1)
    minimum = unit.instances_for(topology, context.spec.bounds.min)
    count, code, reason = wanted, "", ""
    if count < minimum:
        count, code, reason = minimum, "bounds", messages.minimum(context.spec.bounds.min)
    while count > step and (limit := _limit(unit.parallelism_of(topology, count), context)):
        code, reason = limit
        count -= step
    return count, code, reason


def _limit(level: int, context: Context) -> tuple[str, str] | None:
    """Return code and reason of the first limit that forbids this parallelism for all operators."""
    bounds, budget, topology = context.spec.bounds, context.spec.budget.limit, context.topology
    vector, key_groups = topology.uniform(level), _max_key_groups(topology, level)
    if level > bounds.max:
        return "bounds", messages.maximum(bounds.max)
    if level > key_groups:
        return "key-groups", messages.key_groups(key_groups)
    if bounds.total is not None and bounds.total.max is not None and subtasks(vector) > bounds.total.max:
        return "total-bounds", messages.above_total(subtasks(vector), bounds.total.max)
    if budget is not None and topology.slots(vector) > budget[0]:
        return "budget", messages.over_budget(topology.slots(vector), *budget)
    return None


def _max_key_groups(topology: Topology, otherwise: int) -> int:
    return max(operator.max_parallelism or otherwise for operator in topology.operators)
