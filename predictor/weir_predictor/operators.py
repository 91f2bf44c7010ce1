"""The operators of a case one by one: what each does, the caveats of its prediction, and the limits of policy, graph and
cluster on its parallelism."""

from collections.abc import Mapping

from weir_contracts import Infeasible, OperatorAnalysis, Unit, WhatIfOperator, counted, short_name

from .capacity import MIN_CONFIDENCE
from .case import Case
from .flow import loads_of

SKEWED = 1.5
"""Busiest subtask's busy share over the mean, beyond its larger part of partitions or key groups, from which more subtasks
may not help: the analyzer's symptom `skewed`.
"""
FORBIDDING = ("bounds", "key-groups", "slots", "one-parallelism")
"""Codes of limits. Subtasks of a source beyond its partitions stay idle, but are allowed."""
_LIMITED_BY = {"bounds": "by the policy's bounds", "key-groups": "by its key groups", "partitions": "by its partitions"}


def operators_of(case: Case, taken: Mapping[str, float]) -> list[WhatIfOperator]:
    """Return the operators, if the sources take in so many records/s."""
    reaching = loads_of(case.model.flow, taken)
    return [_operator(case, name, reaching.get(name)) for name in case.topology.names]


def _operator(case: Case, name: str, reaching: float | None) -> WhatIfOperator:
    arriving, capacity, curve = case.model.loads.get(name), case.capacities.get(name), case.model.curves.get(name)
    return WhatIfOperator(
        operator=name,
        parallelism_now=case.now.get(name),
        parallelism=case.wanted[name],
        arrival_rate=None if arriving is None else round(arriving, 2),
        input_rate=None if reaching is None else round(reaching, 2),
        capacity=None if capacity is None else round(capacity, 2),
        utilization=None if reaching is None or capacity is None else round(min(1.0, reaching / capacity), 4),
        min_parallelism=None
        if curve is None or arriving is None
        else curve.needed(arriving) or curve.even.needed(arriving),
        seen_at=_measured_at(case.analysis.operator(name)),
        confidence=None if curve is None else curve.confidence,
    )


def _measured_at(operator: OperatorAnalysis | None) -> list[int]:
    """Return the parallelisms of the points that `curve_of` uses."""
    if operator is None:
        return []
    measured = {point.parallelism for point in operator.capacities if point.confidence >= MIN_CONFIDENCE}
    now = operator.true_processing_rate
    return sorted(measured | ({operator.parallelism} if now.value and now.confidence >= MIN_CONFIDENCE else set()))


def notes_of(case: Case, operators: list[WhatIfOperator]) -> list[str]:
    """Return the caveats: extrapolation, skew, an assumed restart time."""
    notes = []
    unknown = {gap.operator for gap in case.gaps if gap.what == "capacity"}
    for operator in operators:
        name, p = operator.operator, operator.parallelism
        if name in case.lower_bounds and name not in unknown:
            bound = case.lower_bounds[name]
            notes.append(f"{name} carries at least {bound:,.0f} records/s with {p}: the prediction assumes no more")
        if operator.capacity is not None and (seen_at := operator.seen_at):
            measured = f"{name} was measured at {', '.join(map(str, seen_at))}"
            if len(seen_at) == 1 and p != seen_at[0]:
                notes.append(f"{measured} only: its capacity at {p} assumes the usual contention")
            elif not seen_at[0] <= p <= seen_at[-1]:
                notes.append(f"{measured}: its capacity at {p} is extrapolated")
        if name not in case.changed:
            continue
        useful = case.topology.smallest_useful(name, p)
        if useful < p:
            notes.append(f"{name} gains nothing from {p} over {useful}")
        found = case.analysis.operator(name)
        skew = found.skew.value if found else None
        if found is None or skew is None:
            continue
        if skew * case.topology.even_subtasks(name, found.parallelism) >= SKEWED * found.parallelism:
            notes.append(
                f"the busiest subtask of {name} does {skew:.1f} times the mean: if a key makes it so, more subtasks help less"
            )
    if case.changed and not case.restart.measured:
        notes.append(f"no rescale was measured yet: {case.restart.seconds:.0f} s are assumed for its restart")
    if case.restart.restore_seconds > 0:
        restart = case.restart
        notes.append(
            f"{restart.away_share:.0%} of it restores state for {restart.restore_seconds:.0f} s: it has no standby tasks"
        )
    target = case.analysis.policy.spec.objective.utilization
    busy = [o for o in operators if target is not None and o.utilization is not None and o.utilization > target]
    notes += [f"{o.operator} would be at {o.utilization:.0%}, above the objective of {target:.0%}" for o in busy]
    if case.analysis.status != "running":
        notes.append(f"the application was {case.analysis.status} when it was last observed")
    return notes


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
            _limit(name, wanted, limit, code, _above_limit(code, name, wanted, limit))
            for code, limit in _upper_limits(case, name)
            if wanted > limit
        ]
    unit = case.analysis.policy.spec.target.unit
    if unit is not None:
        return [*found, *_uneven(case, unit)]
    free = case.deployment.free_slots
    wanted, held = case.topology.slots(case.wanted), case.topology.slots(case.now)
    if free is not None and wanted > held and wanted > free + held:
        needed = f"{counted(wanted, 'slot')} {'is' if wanted == 1 else 'are'} needed"
        reason = f"{needed} and {free + held} available ({free} free, {held} held)"
        found.append(Infeasible(wanted=wanted, limit=free + held, code="slots", because=reason))
    return found


def _above_limit(code: str, name: str, wanted: int, limit: int) -> str:
    """Say which upper limit a parallelism exceeds."""
    if code == "bounds":
        return f"the policy allows {short_name(name)} at most {limit}"
    if code == "key-groups":
        return f"{short_name(name)} has {limit} key groups and cannot be split further"
    return f"{short_name(name)} reads {counted(limit, 'partition')}, so {wanted - limit} of {wanted} subtasks would be idle"


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
            reason = f"no parallelism of {short_name(name)} sustains more than {ceiling:,.0f} records/s; {arriving:,.0f} would arrive"
            found.append(_limit(name, arriving, ceiling, "capacity-ceiling", reason))
        elif needs > limit:
            reason = f"{short_name(name)} would need {needs} and is limited to {limit} {_LIMITED_BY[code]}"
            found.append(_limit(name, needs, limit, code, reason))
    return found


def _limit(name: str, wanted: float, limit: float, code: str, reason: str) -> Infeasible:
    return Infeasible(operator=name, wanted=round(wanted, 2), limit=round(limit, 2), code=code, because=reason)
