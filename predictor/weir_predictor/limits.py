"""Limits of a policy, a graph and a cluster on a proposed parallelism."""

from weir_contracts import Infeasible, Unit, WhatIfOperator

from . import messages
from .case import Case

FORBIDDING = ("bounds", "key-groups", "slots", "one-parallelism")
"""Codes of limits. Subtasks of a source beyond its partitions stay idle, but are allowed."""


def _upper_limits(case: Case, name: str) -> list[tuple[str, int]]:
    """Return code and parallelism of each upper limit of an operator, the tightest first."""
    operator = case.topology.operator(name)
    bound = case.analysis.policy.spec.bounds.of(name)[1]
    limits = (("bounds", bound), ("key-groups", operator.max_parallelism), ("partitions", operator.source_partitions))
    return sorted(((code, limit) for code, limit in limits if limit is not None), key=lambda limit: limit[1])


def forbidden(case: Case) -> list[Infeasible]:
    """Return the limits that the wanted vector exceeds, or that leave subtasks idle."""
    found = []
    for name in case.changed:
        wanted, minimum = case.wanted[name], case.analysis.policy.spec.bounds.of(name)[0]
        if wanted < minimum:
            found.append(_limit(name, wanted, minimum, "bounds", f"the policy wants {minimum} of {name} or more"))
        found += [
            _limit(name, wanted, limit, code, messages.above_limit(code, name, wanted, limit))
            for code, limit in _upper_limits(case, name)
            if wanted > limit
        ]
    unit = case.analysis.policy.spec.target.unit
    if unit is not None:
        return [*found, *_uneven(case, unit)]
    free = case.deployment.free_slots
    wanted, held = case.topology.slots(case.wanted), case.topology.slots(case.now)
    if free is not None and wanted > held and wanted > free + held:
        reason = messages.too_few_slots(wanted, free, held)
        found.append(Infeasible(wanted=wanted, limit=free + held, code="slots", because=reason))
    return found


def _uneven(case: Case, unit: Unit) -> list[Infeasible]:
    """Check that instances, which bring their own slots, run every operator alike."""
    maximum, minimum = max(case.wanted.values()), min(case.wanted.values())
    level = unit.parallelism_of(case.topology, unit.instances_for(case.topology, maximum))
    if case.wanted == case.topology.uniform(level):
        return []
    reason = f"{unit.instance}s of {unit.slots} slots run every operator alike: {level} for all is the next"
    wanted = minimum if minimum != level else maximum
    return [Infeasible(wanted=wanted, limit=level, code="one-parallelism", because=reason)]


def unreachable(case: Case, over: list[WhatIfOperator]) -> list[Infeasible]:
    """Return why operators that cannot follow at this load cannot get the parallelism that they need."""
    found = []
    for operator in over:
        name, needs, arriving = operator.operator, operator.min_parallelism, operator.arrival_rate or 0.0
        code, limit = _upper_limits(case, name)[0]
        if needs is None:
            ceiling = case.model.curves[name].ceiling
            reason = messages.above_ceiling(name, ceiling, arriving)
            found.append(_limit(name, arriving, ceiling, "capacity-ceiling", reason))
        elif needs > limit:
            found.append(_limit(name, needs, limit, code, messages.needs_more(code, name, needs, limit)))
    return found


def _limit(name: str, wanted: float, limit: float, code: str, reason: str) -> Infeasible:
    return Infeasible(operator=name, wanted=round(wanted, 2), limit=round(limit, 2), code=code, because=reason)
