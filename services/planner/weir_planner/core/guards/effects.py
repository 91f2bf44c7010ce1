"""Guards on the effect of a change: growth that cannot help, shrinking that would hurt, changes too small to matter."""

from weir_contracts import parallelism_for
from weir_planner.core import messages

from .proposal import MAX_UTILIZATION, SATURATED, Context, Proposal
from .sizes import TARGET_UTILIZATION

HOT = 2.0
"""Busiest subtask over the mean, beyond its larger share of partitions or key groups, above which a single key or
partition is hot."""
PLENTY = 1e6
"""Times what arrives and waits: more than any operator does."""
HELD_BACK = 0.2
"""Backpressured share from which an operator waits for a downstream one."""


def scale_down_gate(proposal: Proposal) -> Proposal:
    """Prevent scale-down during a restore, a warm-up or a backlog, where lag is unknown, and below what the target
    utilization needs."""
    context, down = proposal.context, proposal.moves[1]
    reason = _not_now(context) if down else None
    if reason is not None:
        return proposal.kept("scale-down-gate", messages.not_now(down, reason), down)
    objective = context.spec.objective
    # Lag grows slowly beyond capacity; a latency needs room for the queues themselves.
    limit = objective.utilization or (MAX_UTILIZATION if objective.max_lag is None else 1.0)
    vector, reasons = dict(proposal.wanted), []
    for name in down:
        needed = _needed(name, limit, proposal)
        if needed is not None and vector[name] < needed:
            reasons.append(messages.above_capacity(name, vector[name], limit))
            vector[name] = min(needed, context.current[name])
    return proposal.changed("scale-down-gate", messages.each(reasons), vector)


def _not_now(context: Context) -> str | None:
    """Return why the application needs everything it has now."""
    found = context.analysis
    if found.status != "running" or found.has("restarting"):
        return "it restarts"
    # Without `warm_up_seconds` the symptom means a window that never fills: an idle application would never shrink.
    if any(s.code == "warming-up" and "warm_up_seconds" in s.numbers for s in found.symptoms):
        return "it warms up"
    if found.has("catching-up") or found.has("stalled"):
        return "it has a backlog"
    waiting, part = context.waiting_seconds, messages.only_in_part(found)
    if waiting is not None and waiting > context.backlogged_seconds:
        return f"its backlog is {waiting:.0f} s old"
    if part is not None or waiting is not None:
        return part
    # A service whose CPU alone is known counts no records: nothing could ever show that none wait.
    counts = any(context.counts_records(name) for name in context.topology.sources)
    return "its lag is unknown" if counts else None


def _needed(name: str, limit: float, proposal: Proposal) -> int | None:
    """Return the smallest parallelism with a utilization of at most `limit`; None if the proposal suffices or that is
    unknown."""
    context = proposal.context
    load, wanted = context.load(name), proposal.wanted[name]
    even, shares = context.topology.even_subtasks, context.topology.work_shares(name)
    if load is not None and load * even(name, context.current[name]) / even(name, wanted) <= limit:
        return None  # fewer subtasks do at least as much each: no curve is needed
    curve, demand = context.curve(name), context.demand(name)
    if curve is not None and demand is not None:
        return curve.needed(demand / limit) or context.current[name]
    busy, found = context.busy.get(name), context.operators.get(name)
    if busy is None or found is None:
        return None
    return parallelism_for(max(1.0, busy * found.parallelism / limit), shares) or context.current[name]


def hot_key(proposal: Proposal) -> Proposal:
    """Limit an operator with one overloaded subtask to the parallelism that an even load needs, or that carries the load
    in spite of the hot key."""
    context = proposal.context
    skewed = {symptom.operator for symptom in context.analysis.symptoms if symptom.code == "skewed"}
    for name in proposal.moves[0] if skewed else []:
        found = context.operators.get(name)
        skew = found.skew.value if found else None
        if name not in skewed or skew is None or found is None:
            continue
        if skew * context.topology.even_subtasks(name, found.parallelism) < HOT * found.parallelism:
            continue
        wanted, useful = proposal.wanted[name], max(_even_need(name, context), _hot_need(name, context))
        if wanted > useful:
            reason = messages.hot_key(name, skew, useful, is_source=name in context.topology.sources)
            proposal = proposal.noting("hot-key", reason, wanted=wanted, limit=useful, operator=name)
            proposal = proposal.changed("hot-key", reason, {**proposal.wanted, name: useful})
    return proposal


def _hot_need(name: str, context: Context) -> int:
    """Return the parallelism at which the subtask with the hot key keeps up; 0 if none is known. Fewer other records reach
    it with each further subtask, as long as the key alone does not fill it."""
    curve, demand = context.curve(name), context.demand(name)
    if curve is None or demand is None or curve.hot_share == 0:
        return 0
    return curve.needed(demand / MAX_UTILIZATION) or curve.needed(demand) or 0


def _even_need(name: str, context: Context) -> int:
    """Return the parallelism that a perfectly even load needs; at least the current one."""
    now, found = context.current[name], context.operators[name]
    taken, busy, demand = found.input_rate.value, found.utilization.value, found.target_input_rate.proven
    if not taken or not busy or demand is None:
        return now
    limit = context.spec.objective.utilization or TARGET_UTILIZATION
    subtasks, shares = found.parallelism * demand * busy / taken / limit, context.topology.work_shares(name)
    return max(now, parallelism_for(subtasks, shares) or context.request.limits[name].max)


def downstream_bound(proposal: Proposal) -> Proposal:
    """Prevent growth of an operator that waits for a saturated downstream one that does not grow."""
    context, waiting = proposal.context, []
    for name in proposal.moves[0]:
        found = context.operators.get(name)
        backpressure = found.backpressure.value if found else None
        if backpressure is not None and backpressure >= HELD_BACK:
            waiting.append(name)
    if not waiting:
        return proposal
    wanted, stuck = proposal.wanted, _stuck(proposal)
    for name in waiting:
        downstream = next((n for n in _downstream(name, context) if n in stuck), None)
        if downstream is not None:
            reason, limit = messages.downstream_bound(name, downstream), context.current[name]
            proposal = proposal.noting(
                "downstream-bound", reason, wanted=wanted[name], limit=limit, operator=name
            ).kept("downstream-bound", reason, [name])
    return proposal


def _stuck(proposal: Proposal) -> set[str]:
    """Return the operators that are saturated or limited by an external system, and are not raised."""
    context, wanted = proposal.context, proposal.wanted
    outside = {s.operator for s in context.analysis.symptoms if s.code == "downstream-bound"}
    return {
        name
        for name, p in context.current.items()
        if wanted.get(name, p) <= p and ((context.busy.get(name) or 0.0) >= SATURATED or name in outside)
    }


def _downstream(name: str, context: Context) -> list[str]:
    """Return all operators downstream of one, the nearest first."""
    found: list[str] = []
    waiting = context.topology.outputs(name)
    while waiting:
        nearest = waiting.pop(0)
        if nearest not in found:
            found.append(nearest)
            waiting += context.topology.outputs(nearest)
    return found


def upstream_bound(proposal: Proposal) -> Proposal:
    """Limit growth to what can reach an operator where guards have limited another one that slows the same sources."""
    context, model, wanted = proposal.context, proposal.context.request.model[0], proposal.wanted
    proposed = {**wanted, **next((amendment.before for amendment in proposal.amendments if amendment.before), {})}
    known = [name for name in wanted if name in model.curves and name in model.fed]
    rates = {name: (model.curves[name].rate(wanted[name]), model.curves[name].rate(proposed[name])) for name in known}
    ceilings = {name: rate for name, (rate, before) in rates.items() if rate < before and wanted[name] < proposed[name]}
    if not ceilings:
        return proposal
    limit = context.spec.objective.utilization or TARGET_UTILIZATION
    plenty = {source: PLENTY * (1 + rate + model.backlogs[source].records) for source, rate in model.arrivals.items()}
    for name in [name for name in proposal.moves[0] if name in known]:
        reaching = {each: model.reaching(plenty, {each: ceilings[each]})[name] for each in ceilings if each != name}
        slowest = min(reaching, key=lambda each: reaching[each], default=None)
        if slowest is None:
            continue
        needed = model.curves[name].needed(reaching[slowest] / limit)
        follows = max(context.current[name], wanted[name] if needed is None else needed)
        if follows >= wanted[name]:
            continue
        reason = messages.upstream_bound(name, slowest, wanted[slowest], reaching[slowest])
        proposal = proposal.noting("upstream-bound", reason, wanted=wanted[name], limit=follows, operator=name).changed(
            "upstream-bound", reason, {**proposal.wanted, name: follows}
        )
    return proposal


def dead_band(proposal: Proposal) -> Proposal:
    """Drop a change that is small for every operator, unless one of them needs it. It is counted in subtasks: 1 → 2 is
    not small."""
    context, wanted = proposal.context, proposal.wanted
    up, down = proposal.moves
    changed = [name for name, p in wanted.items() if p != context.current[name]]
    if not changed or len(changed) > len(up) + len(down):  # moving into the policy's limits costs the restart anyway
        return proposal
    change = max(abs(wanted[name] / context.current[name] - 1) for name in changed)
    tolerance = context.spec.behavior.tolerance
    if change > tolerance + 1e-9 or any(context.needs_more(name) for name in up):
        return proposal
    return proposal.kept("dead-band", messages.within_tolerance(changed, change, tolerance), changed)
