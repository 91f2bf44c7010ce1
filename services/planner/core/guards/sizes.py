"""Guards that look at how much, operator by operator: bounds, useful parallelism, sustained rates, steps."""

import math

from predictor.limits import smallest_useful

from .allowed import clamped, subtasks
from .draft import Context, Draft, moves

TARGET_UTILISATION = 0.8
"""Where the policy's objective is a time: what planners size for by default."""

HIGHEST_SUSTAINED_RATIO = 1.3
"""Scaling in may ask of a subtask at most this much more than it was ever seen to do."""


def bounds(draft: Draft, context: Context) -> Draft:
    """Every operator between the policy's bounds."""
    vector = clamped(draft.vector or {}, context.spec)
    changed = [name for name, p in vector.items() if p != (draft.vector or {})[name]]
    return draft.changed("bounds", "bounds", f"the policy bounds {', '.join(changed)}", vector)


def useful_parallelism(draft: Draft, context: Context) -> Draft:
    """Only parallelisms that do something: a source at most as many as its partitions, and of those with the same largest share of
    key groups or partitions the smallest (with G of them, p and the smallest q with ⌈G/q⌉ = ⌈G/p⌉ have equally busy subtasks)."""
    vector = dict(draft.vector or {})
    total = context.spec.bounds.total
    least = total.min if total is not None and total.min is not None else 0
    why = []
    for name, p in (draft.vector or {}).items():
        if p == context.current.get(name):
            continue  # an unbalanced present is no reason to touch what the planner left alone
        low, most = context.spec.bounds.of(name)[0], context.topology.operator(name).max_parallelism
        # The policy's minimum was asked for, useful or not; more than its key groups an operator cannot have.
        useful = max(smallest_useful(context.topology, name, p), min(low, p, most or p))
        if useful != p and subtasks(vector) - p + useful >= min(least, subtasks(vector)):
            vector[name] = useful
            why.append(f"{name} gains nothing from {p} over {useful}")
    return draft.changed("useful-parallelism", "useful-parallelism", "; ".join(why), vector)


def saturated_stays(draft: Draft, context: Context) -> Draft:
    """An operator above its target utilisation is never scaled down: its low demand may be a misread selectivity."""
    limit = context.spec.objective.utilization or TARGET_UTILISATION
    vector = dict(draft.vector or {})
    why = []
    for name in moves(draft, context)[1]:
        found = context.operators.get(name)
        busy = found.utilisation.value if found else None
        if busy is None or busy > limit:
            vector[name] = context.current[name]
            why.append(f"{name} is busy {'for an unknown share' if busy is None else f'{busy:.0%}'} of the time")
    return draft.changed("saturated-stays", "saturated", "; ".join(why), vector)


def sustained_rate(draft: Draft, context: Context) -> Draft:
    """Scale in only to where a subtask is asked for at most 1.3 times what one was ever seen to sustain, else one useful step."""
    wished = draft.vector or {}
    vector, why = dict(wished), []
    for name in moves(draft, context)[1]:
        now, highest, target = context.current[name], _sustained(name, context), context.target(name)
        if target is None or highest is None:
            vector[name] = now
            why.append(f"what {name} is asked for or was seen to sustain is unknown")
            continue
        least = math.ceil(target / (HIGHEST_SUSTAINED_RATIO * highest) - 1e-9) if highest > 0 else now
        if wished[name] < least:
            step = smallest_useful(context.topology, name, max(1, now - _least_step(context)))
            vector[name] = min(now, max(wished[name], min(least, step)))
            why.append(
                f"{name} at {wished[name]} would ask {target / wished[name]:,.0f} records/s of a subtask, more than 1.3 times the "
                f"{highest:,.0f} one was seen to sustain"
            )
    return draft.changed("sustained-rate", "sustained-rate", "; ".join(why), vector)


def _sustained(name: str, context: Context) -> float | None:
    """Records/s that a subtask really took in at most: points measured under saturation, and its share of the present input."""
    found = context.operators.get(name)
    if found is None:
        return None
    seen = [c.records_per_second / c.parallelism for c in found.capacities if c.saturated]
    if found.input_rate.value is not None:
        seen.append(found.input_rate.value / found.parallelism)
    return max(seen, default=None)


def _least_step(context: Context) -> int:
    """What parallelism moves by at least: one, or what a container brings to every operator."""
    unit = context.spec.target.unit
    return 1 if unit is None else unit.parallelism_of(context.topology, unit.instances_for(context.topology, 1))


def step_limits(draft: Draft, context: Context) -> Draft:
    """At most the policy's step per action and operator, by number and by ratio."""
    vector = dict(draft.vector or {})
    up, down = moves(draft, context)
    upwards, downwards, least = context.spec.behavior.scale_up, context.spec.behavior.scale_down, _least_step(context)
    for name in up:
        now = context.current[name]
        by_step = now + upwards.max_step if upwards.max_step else math.inf
        by_factor = now * upwards.max_factor if upwards.max_factor else math.inf  # cut to a whole number below
        # A ratio below 2 would otherwise keep a single subtask single for ever.
        vector[name] = int(min(vector[name], max(min(by_step, by_factor), now + least)))
    for name in down:
        now = context.current[name]
        by_step = now - downwards.max_step if downwards.max_step else 1
        by_factor = math.ceil(now / downwards.max_factor) if downwards.max_factor else 1
        vector[name] = int(max(vector[name], min(max(by_step, by_factor), now - least)))
    why = [f"{name} moves to {p} in one action" for name, p in vector.items() if p != (draft.vector or {})[name]]
    return draft.changed("step-limits", "step-limits", "; ".join(why), vector)
