"""Guards that look at all operators together: the policy's total, its budget, the cluster's slots."""

from collections.abc import Mapping

from weir_contracts import Infeasible

from predictor.limits import smallest_useful

from .allowed import Cost, cut, most, raised, subtasks
from .draft import Context, Draft


def total_bounds(draft: Draft, context: Context) -> Draft:
    """The sum of all subtasks between the policy's bounds: the largest growth gives first, the busiest is lowered last."""
    total, vector = context.spec.bounds.total, draft.vector or {}
    if total is None or not vector:
        return draft
    if total.max is not None and subtasks(vector) > total.max:
        because = f"{subtasks(vector)} subtasks are wanted and the policy's total allows {total.max}"
        draft = _cut_to(draft, context, subtasks, total.max, guard="total-bounds", because=because)
        vector = draft.vector or {}  # in useful steps, so perhaps less than the total's minimum
    if total.min is not None and subtasks(vector) < total.min:
        because = f"{subtasks(vector)} subtasks are wanted and the policy's total demands {total.min}"
        lowered = {name: max(p, context.current[name]) for name, p in vector.items()}
        found = raised(vector, lowered, total.min, context.busy)
        ceilings = {name: max(p, most(name, context.spec, context.topology)) for name, p in found.items()}
        found = raised(found, ceilings, total.min, context.busy)
        return draft.changed("total-bounds", "total-bounds", because, found)
    return draft


def budget(draft: Draft, context: Context) -> Draft:
    """No more slots than the policy's budget pays for, in slots, CPU or memory."""
    limit, vector = context.spec.budget.limit, draft.vector or {}
    if limit is None or context.topology.slots(vector) <= limit[0]:
        return draft
    slots = context.topology.slots(vector)
    because = f"{slots} slots are wanted and the budget's {limit[1]} allows {limit[0]}"
    return _cut_to(draft, context, context.topology.slots, limit[0], guard="budget", because=because)


def slots_available(draft: Draft, context: Context) -> Draft:
    """A vector that fits the slots that are free and the ones this application holds; else as much of its growth as fits, with what
    was infeasible. Slots that are unknown hold nothing back: the engine itself will run with what it has; nor do they where
    containers bring their own."""
    slots = context.deployment.slots
    if draft.vector is None or slots is None or context.spec.target.unit is not None:
        return draft
    held = context.topology.slots(context.current)
    limit = slots.available + held
    wanted = context.topology.slots(draft.vector)
    if wanted <= limit or wanted <= held:
        return draft
    because = f"{wanted} slots are needed and {limit} can be had ({slots.available} free, {held} held)"
    noted = draft.noting(Infeasible(wanted=wanted, limit=limit, code="slots", because=because))
    vector = _in_steps(draft.vector, context.current, context, context.topology.slots, limit=limit)
    return noted.changed("slots-available", "slots", because, vector)


def _cut_to(draft: Draft, context: Context, cost: Cost, limit: int, *, guard: str, because: str) -> Draft:
    """As much of the growth as the policy allows; where not even the present is allowed, less than that, too."""
    vector = draft.vector or {}
    noted = draft.noting(Infeasible(wanted=cost(vector), limit=limit, code=guard, because=because))
    lowest = {name: context.spec.bounds.of(name)[0] for name in vector}
    running = {name: max(context.current[name], least) for name, least in lowest.items()}
    found = _in_steps(vector, running, context, cost, limit=limit)
    return noted.changed(guard, guard, because, _in_steps(found, lowest, context, cost, limit=limit))


def _in_steps(
    vector: Mapping[str, int], floors: Mapping[str, int], context: Context, cost: Cost, *, limit: int
) -> dict[str, int]:
    """What fits of a vector, in useful steps, nothing below its floor."""
    least = {name: min(p, floors[name]) for name, p in vector.items()}
    return {
        name: p if p == vector[name] else max(least[name], smallest_useful(context.topology, name, p))
        for name, p in cut(vector, least, cost, limit).items()
    }
