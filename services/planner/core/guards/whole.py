"""The guard of applications that are scaled as a whole: where instances are added and removed, every operator has the same parallelism."""

from weir_contracts import Infeasible, Topology, Unit

from .allowed import subtasks
from .draft import Context, Draft


def one_parallelism(draft: Draft, context: Context) -> Draft:
    """What the other guards have left, as a number of containers: enough for the operator that needs the most, and no more than the
    policy allows in all."""
    unit, vector = context.spec.target.unit, draft.vector
    if unit is None or not vector:
        return draft
    topology = context.topology
    wanted = unit.instances_for(topology, max(vector.values()))
    count, code, because = _allowed(wanted, unit, context)
    level = unit.parallelism_of(topology, count)
    if count < wanted:
        asked = unit.parallelism_of(topology, wanted)
        draft = draft.noting(Infeasible(wanted=asked, limit=level, code=code, because=because))
    containers = f"{count} {unit.instance}s of {unit.slots} slot{'s' if unit.slots > 1 else ''}"
    why = f"all operators have the same parallelism, {level} with {containers}" + (f": {because}" if because else "")
    if count == unit.instances_for(topology, max(context.current.values())):
        return draft.changed("one-parallelism", "one-parallelism", why, context.current)
    return draft.changed("one-parallelism", "one-parallelism", why, topology.uniform(level))


def _allowed(wanted: int, unit: Unit, context: Context) -> tuple[int, str, str]:
    """The number of containers nearest to `wanted` that the policy allows, and what it was that did not allow it."""
    spec, topology = context.spec, context.topology
    total, limit = spec.bounds.total, spec.budget.limit
    step = unit.instances_for(topology, 1)
    code, because, count = "", "", wanted
    least = unit.instances_for(topology, spec.bounds.min)
    if count < least:
        count, code, because = least, "bounds", f"the policy wants {spec.bounds.min} or more"
    while count > step:
        level = unit.parallelism_of(topology, count)
        vector = topology.uniform(level)
        if level > spec.bounds.max:
            code, because = "bounds", f"the policy allows {spec.bounds.max}"
        elif level > _most_key_groups(topology, level):
            code, because = "key-groups", f"no operator has more than {_most_key_groups(topology, level)} key groups"
        elif total is not None and total.max is not None and subtasks(vector) > total.max:
            code = "total-bounds"
            because = f"{level} for all are {subtasks(vector)} subtasks and the policy's total allows {total.max}"
        elif limit is not None and topology.slots(vector) > limit[0]:
            code = "budget"
            because = (
                f"{level} for all take {topology.slots(vector)} slots and the budget's {limit[1]} allows {limit[0]}"
            )
        else:
            break
        count -= step
    return count, code, because


def _most_key_groups(topology: Topology, otherwise: int) -> int:
    return max(operator.max_parallelism or otherwise for operator in topology.operators)
