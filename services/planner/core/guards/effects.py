"""Guards that look at what a change would do: growth that cannot help, shrinking that would hurt, changes too small to matter."""

import math

from weir_contracts import Infeasible

from .draft import HIGHEST_UTILISATION, SATURATED, Context, Draft, moves
from .sizes import TARGET_UTILISATION

HOT = 2.0
"""Busiest subtask over the mean from which no uneven spread of key groups explains it: a single key, or partition, is hot."""
HELD_BACK = 0.2
"""Backpressured share from which an operator waits for what is behind it."""


def scale_down_gate(draft: Draft, context: Context) -> Draft:
    """Nothing goes down while the application restores, warms up or has a backlog, and no further than to where it is not above its
    target utilisation afterwards."""
    down = moves(draft, context)[1]
    why = _not_now(context) if down else None
    if why is not None:
        return draft.staying("scale-down-gate", f"{', '.join(down)}: no scale-down while {why}", down, context)
    limit = context.spec.objective.utilization or HIGHEST_UTILISATION
    vector, words = dict(draft.vector or {}), []
    for name in down:
        least = _least_for(name, limit, draft, context)
        if least is not None and vector[name] < least:
            words.append(f"{name} at {vector[name]} would be above {limit:.0%} of its capacity")
            vector[name] = min(least, context.current[name])
    return draft.changed("scale-down-gate", "scale-down-gate", "; ".join(words)[:2000], vector)


def _not_now(context: Context) -> str | None:
    """What the application is busy with that forbids to take anything from it."""
    found = context.analysis
    if found.status != "running" or found.has("restarting"):
        return "it restarts"
    # Not the symptom's other case, a window that never fills: an idle application would never be shrunk.
    if any(s.code == "warming-up" and "warm_up_seconds" in s.numbers for s in found.symptoms):
        return "it warms up"
    if found.has("catching-up") or found.has("stalled"):
        return "it has a backlog"
    lag, limit = context.backlog_seconds
    return f"its backlog is {lag:.0f} s old" if lag is not None and lag > limit else None


def _least_for(name: str, limit: float, draft: Draft, context: Context) -> int | None:
    """The smallest parallelism at which an operator is not above a utilisation; None where what is wanted is as good, and where
    neither rates nor its busy share tell."""
    load, wanted = context.load(name), (draft.vector or {})[name]
    if load is not None and load * context.current[name] / wanted <= limit:
        return None  # fewer subtasks do at least as much each: no need to fit a curve
    curve, target = context.curve(name), context.target(name)
    if curve is not None and target is not None:
        return curve.needed(target / limit) or context.current[name]
    busy, found = context.busy.get(name), context.operators.get(name)
    return None if busy is None or found is None else max(1, math.ceil(busy * found.parallelism / limit - 1e-9))


def hot_key(draft: Draft, context: Context) -> Draft:
    """An operator of which one subtask does far more than the others is grown no further than an even load would need."""
    skewed = {symptom.operator for symptom in context.analysis.symptoms if symptom.code == "skewed"}
    for name in moves(draft, context)[0] if skewed else []:
        found = context.operators.get(name)
        uneven = found.skew.value if found else None
        if found is None or name not in skewed or uneven is None or uneven < HOT:
            continue
        wanted, even = (draft.vector or {})[name], _even_need(name, context)
        if wanted <= even:
            continue
        what = "partition" if name in context.topology.sources else "key"
        because = (
            f"one subtask of {name} is {uneven:.1f} times as busy as the mean: more of them do not relieve a hot {what}, "
            f"and an even load needs {even}"
        )
        noted = draft.noting(Infeasible(operator=name, wanted=wanted, limit=even, code="hot-key", because=because))
        draft = noted.changed("hot-key", "hot-key", because, {**(draft.vector or {}), name: even})
    return draft


def _even_need(name: str, context: Context) -> int:
    """What an operator would need if all its subtasks were as busy as the mean; at least what runs."""
    now, found = context.current[name], context.operators[name]
    took, busy, target = found.input_rate.value, found.utilisation.value, found.target_input_rate.value
    if not took or not busy or target is None:
        return now
    limit = context.spec.objective.utilization or TARGET_UTILISATION
    return max(now, math.ceil(found.parallelism * target * busy / took / limit - 1e-9))


def downstream_bound(draft: Draft, context: Context) -> Draft:
    """What waits for a saturated operator behind it that does not grow is not grown: it would only wait with more subtasks."""
    waiting = []
    for name in moves(draft, context)[0]:
        found = context.operators.get(name)
        held_back = found.backpressure.value if found else None
        if held_back is not None and held_back >= HELD_BACK:
            waiting.append(name)
    if not waiting:
        return draft
    vector, limits = draft.vector or {}, _stuck(draft, context)
    for name in waiting:
        behind = next((n for n in _behind(name, context) if n in limits), None)
        if behind is not None:
            because = f"{name} waits for {behind}, which is saturated and does not grow: more subtasks would wait, too"
            noted = draft.noting(
                Infeasible(
                    operator=name,
                    wanted=vector[name],
                    limit=context.current[name],
                    code="downstream-bound",
                    because=because,
                )
            )
            draft = noted.staying("downstream-bound", because, [name], context)
    return draft


def _stuck(draft: Draft, context: Context) -> set[str]:
    """Operators that are as busy as they get, or limited by something outside, and not raised."""
    outside = {s.operator for s in context.analysis.symptoms if s.code == "downstream-bound"}
    vector = draft.vector or {}
    return {
        name
        for name, p in context.current.items()
        if vector.get(name, p) <= p and ((context.busy.get(name) or 0.0) >= SATURATED or name in outside)
    }


def _behind(name: str, context: Context) -> list[str]:
    """All that an operator feeds, the nearest first."""
    found: list[str] = []
    waiting = context.topology.outputs(name)
    while waiting:
        nearest = waiting.pop(0)
        if nearest not in found:
            found.append(nearest)
            waiting += context.topology.outputs(nearest)
    return found


def dead_band(draft: Draft, context: Context) -> Draft:
    """A change that is small for every operator is not worth a restart, unless one of them needs it. Counted in whole subtasks: from
    1 to 2 is no small change."""
    tolerance, vector = context.spec.behavior.tolerance, draft.vector or {}
    up, down = moves(draft, context)
    changed = [name for name, p in vector.items() if p != context.current[name]]
    if not changed or len(changed) > len(up) + len(down):  # what is brought into bounds costs the restart anyway
        return draft
    shares = {name: abs(vector[name] / context.current[name] - 1) for name in changed}
    if max(shares.values()) > tolerance + 1e-9 or any(context.needs_more(name) for name in up):
        return draft
    because = (
        f"{', '.join(changed)} would change by {max(shares.values()):.0%}, within the tolerance of {tolerance:.0%}"
    )
    return draft.staying("dead-band", because, changed, context)
