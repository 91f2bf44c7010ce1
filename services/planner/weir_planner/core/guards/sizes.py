"""Guards that limit the size of each operator: bounds, useful parallelism, sustained rates, steps."""

import math

from weir_contracts import MAX_SENTENCE, changes, even_subtasks, listed, parallelism_for, short_name

from .proposal import SATURATED, Context, Proposal, above_capacity, clamped, subtasks

TARGET_UTILIZATION = 0.8
"""Utilization that planners size for where the policy's objective is a time."""

MAX_SUSTAINED_RATIO = 1.3
"""Highest rate per subtask after scale-down over the highest rate observed."""


def bounds(proposal: Proposal) -> Proposal:
    """Keep every operator between the policy's bounds."""
    vector = clamped(proposal.wanted, proposal.context.spec.bounds)
    if vector == proposal.wanted:
        return proposal
    return proposal.changed("bounds", f"{changes(proposal.wanted, vector)}: the policy's bounds", vector)


def useful_parallelism(proposal: Proposal) -> Proposal:
    """Lower each changed operator to the smallest parallelism with the same largest share of key groups or partitions.

    A growth that would so do nothing is refused, or raised to the next parallelism that does more where the load needs
    it; a policy whose largest step is shorter gets there in several.
    """
    context, vector = proposal.context, dict(proposal.wanted)
    if migrates(context):
        return proposal  # an instance more moves tasks sooner
    total = context.spec.bounds.total
    minimum = min((total.min if total else None) or 0, subtasks(vector))
    reasons = []
    for name, p in proposal.wanted.items():
        now = context.current.get(name, p)
        if p == now:
            continue  # the planner left it alone, even if it is unbalanced
        # The smallest allowed counts, useful or not.
        useful = max(context.topology.smallest_useful(name, p), min(context.request.limits[name].min, p))
        if useful <= now < p:
            useful, reason = _next_gain(name, p, context)
            if useful != p:
                vector[name] = useful
                reasons.append(reason)
        elif useful != p and subtasks(vector) - p + useful >= minimum:
            vector[name] = useful
            reasons.append(f"{short_name(name)} gains nothing from {p} over {useful}")
    return proposal.changed("useful-parallelism", listed(reasons, MAX_SENTENCE, "; "), vector)


def _next_gain(name: str, p: int, context: Context) -> tuple[int, str]:
    """Return what becomes of a growth to `p` that does no more than the present parallelism, and why."""
    now = context.current[name]
    following = context.topology.next_useful(name, p)
    reason = f"{short_name(name)} gains nothing from {p} over {now}"
    if following > context.request.limits[name].max or not _lacks(name, context):
        return now, reason
    if following > _max_step_up(now, context):
        return p, reason
    return following, f"{reason}; {following} is the next that does more"


def _lacks(name: str, context: Context) -> bool:
    """Return whether an operator's load is known to need more than it has, or its busiest subtask is saturated; if the busy
    share is unknown, too, whether a backlog waits."""
    curve, demand, busy = context.curve(name), context.demand(name), context.busy.get(name)
    if curve is None or demand is None:
        now = context.current[name]
        return (
            context.has_backlog if busy is None else busy * now >= SATURATED * context.topology.even_subtasks(name, now)
        )
    return demand > (context.spec.objective.utilization or 1.0) * curve.rate(context.current[name])


def saturated_stays(proposal: Proposal) -> Proposal:
    """Prevent scale-down of an operator above its target utilization: its low demand may be a misread selectivity."""
    context = proposal.context
    limit = context.spec.objective.utilization or TARGET_UTILIZATION
    vector, reasons = dict(proposal.wanted), []
    for name in proposal.moves[1]:
        busy = context.busy.get(name)
        enough = _enough(name, context, limit) if busy is None else None
        if enough is not None:
            vector[name] = max(vector[name], min(enough, context.current[name]))
            if vector[name] != proposal.wanted[name]:
                reasons.append(above_capacity(name, proposal.wanted[name], limit))
            continue
        if busy is None or busy > limit:
            vector[name] = context.current[name]
            reasons.append(_busy(name, busy, limit, context))
    return proposal.changed("saturated-stays", listed(reasons, MAX_SENTENCE, "; "), vector, code="saturated")


def _enough(name: str, context: Context, limit: float) -> int | None:
    """Return the parallelism at which a consumer group without metrics gets the target share of its capacity; None
    unless some capacity was measured while records waited, and nothing waits now."""
    found, curve, demand = context.operators.get(name), context.curve(name), context.demand(name)
    if found is None or curve is None or demand is None or not context.request.policy.shares_tasks:
        return None
    was_saturated = any(point.saturated for point in found.capacities)
    return curve.needed(demand / limit) if was_saturated and not context.has_backlog else None


def _busy(name: str, share: float | None, limit: float, context: Context) -> str:
    """Say how busy an operator is, or with which field of the policy that would be known."""
    if share is not None:
        return f"{short_name(name)} is busy {share:.0%} of the time, above its target of {limit:.0%}"
    unread = context.request.policy.subject.application.unread_metrics
    return f"the busy share of {short_name(name)} is unknown" + (f" without {unread}" if unread else "")


def sustained_rate(proposal: Proposal) -> Proposal:
    """Limit scale-down to where a subtask does at most 1.3 times its highest observed rate, else to one useful step.

    A service that counts no records has no such rate: its CPU alone limits it, in `scale_down_gate`.
    """
    context, wanted = proposal.context, proposal.wanted
    down = proposal.moves[1]
    if not down:
        return proposal
    vector, min_step = dict(wanted), _min_step(context)
    limited: dict[str, tuple[float, float] | None] = {}
    for name in down:
        if not context.counts_records(name):
            continue
        now, sustained, demand = context.current[name], _sustained(name, context), context.demand(name)
        if demand is None or sustained is None:
            vector[name], limited[name] = now, None
            continue
        topology, needed = context.topology, now
        if sustained > 0:
            needed = parallelism_for(demand / (MAX_SUSTAINED_RATIO * sustained), topology.work_shares(name)) or now
        if wanted[name] < needed:
            step = topology.smallest_useful(name, max(1, now - min_step))
            vector[name] = min(now, max(wanted[name], min(needed, step)))
            limited[name] = demand / topology.even_subtasks(name, wanted[name]), sustained
    first = [_above_sustained(name, wanted[name], rates) for name, rates in list(limited.items())[:2]]
    reason = listed([*first, *[""] * (len(limited) - 2)], MAX_SENTENCE, "; ")
    return proposal.changed("sustained-rate", reason, vector)


def _above_sustained(name: str, parallelism: int, rates: tuple[float, float] | None) -> str:
    """Compare the needed with the observed records/s per subtask; None: one of these is unknown."""
    if rates is None:
        return f"the demand of {short_name(name)} or its highest sustained rate is unknown"
    needed, observed = rates
    return (
        f"{short_name(name)} at {parallelism} needs {needed:,.0f} records/s per subtask, {observed:,.0f} were observed"
    )


def _sustained(name: str, context: Context) -> float | None:
    """Return the highest observed records/s of the busiest subtask: of points measured under saturation, of the highest
    input of the others, and of the current input."""
    found, shares = context.operators.get(name), context.topology.work_shares(name)
    if found is None:
        return None
    now = even_subtasks(found.parallelism, shares)
    rates = [] if found.input_rate.value is None else [found.input_rate.value / now]
    for point in found.capacities:
        subtasks = even_subtasks(point.parallelism, shares)
        if point.saturated:
            rates.append(point.records_per_second / subtasks)
        if point.max_input_rate is not None:
            rates.append(point.max_input_rate / subtasks)
    return max(rates, default=None)


def _min_step(context: Context) -> int:
    """Return the smallest change of parallelism: one, or what an instance brings to every operator."""
    unit = context.spec.target.unit
    return 1 if unit is None else unit.parallelism_of(context.topology, unit.instances_for(context.topology, 1))


def step_limits(proposal: Proposal) -> Proposal:
    """Limit each operator to the policy's step per action, by number and by ratio."""
    context, vector = proposal.context, dict(proposal.wanted)
    up, down = proposal.moves
    downwards, step = context.spec.behavior.scale_down, _min_step(context)
    for name in up:
        vector[name] = int(min(vector[name], _max_step_up(context.current[name], context)))
    for name in down:
        now = context.current[name]
        by_step = now - downwards.max_step if downwards.max_step else 1
        by_factor = math.ceil(now / downwards.max_factor) if downwards.max_factor else 1
        vector[name] = int(max(vector[name], min(max(by_step, by_factor), now - step)))
    if vector != proposal.wanted:
        proposal = proposal.changed(
            "step-limits", f"{changes(proposal.wanted, vector)}: the policy's largest step", vector
        )
    if not context.request.policy.shares_tasks:
        return proposal
    return _one_step_in(_one_step_out(proposal, step), step)


def _max_step_up(now: int, context: Context) -> float:
    """Return the largest parallelism that the policy's step allows from `now`."""
    upwards = context.spec.behavior.scale_up
    by_step = now + upwards.max_step if upwards.max_step else math.inf
    by_factor = now * upwards.max_factor if upwards.max_factor else math.inf
    # A ratio below 2 would otherwise never let a single subtask grow.
    return max(min(by_step, by_factor), now + _min_step(context))


def migrates(context: Context) -> bool:
    """Return whether tasks of a consumer group wait for a probing rebalance."""
    return context.analysis.has("migrating")


def _one_step_out(proposal: Proposal, step: int) -> Proposal:
    """Grow a consumer group whose state is warmed up by one useful step, and by one instance while tasks wait: a few tasks
    move with each rebalance, and each step brings one."""
    context, vector = proposal.context, dict(proposal.wanted)
    if not migrates(context) and context.analysis.restart_times.warm_up_seconds is None:
        return proposal
    for name in proposal.moves[0]:
        now, wanted = context.current[name], vector[name]
        steps = (p for p in range(now + step, wanted) if context.topology.smallest_useful(name, p) == p)
        vector[name] = min(wanted, now + step if migrates(context) else next(steps, wanted))
    limited = [name for name, p in vector.items() if p != proposal.wanted[name]]
    if not limited:
        return proposal
    named = listed([f"{short_name(name)} to {vector[name]}" for name in limited])
    return proposal.changed("step-limits", f"one step at a time while state is warmed up: {named}", vector)


def _one_step_in(proposal: Proposal, step: int) -> Proposal:
    """Shrink a consumer group by one useful step: others take over the tasks of what stops, and their state."""
    context, vector = proposal.context, dict(proposal.wanted)
    for name in proposal.moves[1]:
        now = context.current[name]
        vector[name] = max(vector[name], context.topology.smallest_useful(name, max(1, now - step)))
    limited = [name for name, p in vector.items() if p != proposal.wanted[name]]
    if not limited:
        return proposal
    steps = listed([f"{short_name(name)} to {vector[name]}" for name in limited])
    return proposal.changed("step-limits", f"one useful step at a time: {steps}", vector)
