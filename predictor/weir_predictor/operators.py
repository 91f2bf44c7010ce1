"""The operators of a case one by one, and the caveats of what is predicted for them."""

from collections.abc import Mapping

from weir_contracts import OperatorAnalysis, WhatIfOperator

from . import messages
from .capacity import MIN_CONFIDENCE
from .case import Case
from .flow import loads_of

SKEWED = 1.5
"""Busiest subtask's busy share over the mean, beyond its larger part of partitions or key groups, from which more subtasks
may not help: the analyzer's symptom `skewed`.
"""


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
            notes.append(messages.counted_on(name, case.lower_bounds[name], p))
        if operator.capacity is not None and operator.seen_at:
            notes += messages.extrapolated(name, p, operator.seen_at)
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
            notes.append(messages.skewed(name, skew))
    if case.changed and not case.restart.measured:
        notes.append(f"no rescale was measured yet: {case.restart.seconds:.0f} s are assumed for its restart")
    if case.restart.restore_seconds > 0:
        notes.append(messages.restored(case.restart))
    target = case.analysis.policy.spec.objective.utilization
    busy = [o for o in operators if target is not None and o.utilization is not None and o.utilization > target]
    notes += [f"{o.operator} would be at {o.utilization:.0%}, above the objective of {target:.0%}" for o in busy]
    if case.analysis.status != "running":
        notes.append(f"the application was {case.analysis.status} when it was last observed")
    return notes
