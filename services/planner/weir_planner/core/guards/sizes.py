"""Guards that limit the size of each operator: bounds, useful parallelism, sustained rates, steps."""

import math

from weir_contracts import MAX_SENTENCE, changes, even_subtasks, listed, parallelism_for, short_name
from weir_predictor.scenario import SATURATED
from weir_sdk.request import Request

from .proposal import Proposal, above_capacity, clamped, has_backlog, subtasks

TARGET_UTILIZATION = 0.8
"""Utilization that planners size for where the policy's objective is a time."""

MAX_SUSTAINED_RATIO = 1.3
"""Highest rate per subtask after scale-down over the highest rate observed."""


def bounds(proposal: Proposal) -> Proposal:
    """Keep every operator between the policy's bounds."""
    vector = clamped(proposal.wanted, proposal.request.policy.spec.bounds)
    if vector == proposal.wanted:
        return proposal
    return proposal.changed("bounds", f"{changes(proposal.wanted, vector)}: the policy's bounds", vector)


def useful_parallelism(proposal: Proposal) -> Proposal:
    """Lower each changed operator to the smallest parallelism with the same largest share of key groups or partitions.

    A growth that would so do nothing is refused, or raised to the next parallelism that does more where the load needs
    it; a policy whose largest step is shorter gets there in several.
    """
    request, vector = proposal.request, dict(proposal.wanted)
    if migrates(request):
        return proposal  # an instance more moves tasks sooner
    total = request.policy.spec.bounds.total
    minimum = min((total.min if total else None) or 0, subtasks(vector))
    reasons = []
    for name, p in proposal.wanted.items():
        now = proposal.current.get(name, p)
        if p == now:
            continue  # the planner left it alone, even if it is unbalanced
        # The smallest allowed counts, useful or not.
        useful = max(request.topology.smallest_useful(name, p), min(request.limits[name].min, p))
        if useful <= now < p:
            useful, reason = _next_gain(name, p, request)
            if useful != p:
                vector[name] = useful
                reasons.append(reason)
        elif useful != p and subtasks(vector) - p + useful >= minimum:
            vector[name] = useful
            reasons.append(f"{short_name(name)} gains nothing from {p} over {useful}")
    return proposal.changed("useful-parallelism", listed(reasons, MAX_SENTENCE, "; "), vector)


def _next_gain(name: str, p: int, request: Request) -> tuple[int, str]:
    """Return what becomes of a growth to `p` that does no more than the present parallelism, and why."""
    now = request.deployment.observed[name]
    following = request.topology.next_useful(name, p)
    reason = f"{short_name(name)} gains nothing from {p} over {now}"
    if not now < following <= request.limits[name].max or not _lacks(name, request):
        return now, reason
    if following > _max_step_up(now, request):
        return p, reason
    return following, f"{reason}; {following} is the next that does more"


def _lacks(name: str, request: Request) -> bool:
    """Return whether an operator's load is known to need more than it has, or its busiest subtask is saturated; if the busy
    share is unknown, too, whether a backlog waits."""
    curve, demand, busy = request.model[0].curves.get(name), request.demand(name), request.busy(name)
    now = request.deployment.observed[name]
    if curve is not None and demand is not None:
        return demand > (request.policy.spec.objective.utilization or 1.0) * curve.rate(now)
    if busy is None:
        return has_backlog(request)
    return busy * now >= SATURATED * request.topology.even_subtasks(name, now)


def saturated_stays(proposal: Proposal) -> Proposal:
    """Prevent scale-down of an operator above its target utilization: its low demand may be a misread selectivity."""
    request = proposal.request
    limit = request.policy.spec.objective.utilization or TARGET_UTILIZATION
    vector, reasons = dict(proposal.wanted), []
    for name in proposal.moves[1]:
        busy = request.busy(name)
        enough = _enough(name, request, limit) if busy is None else None
        if enough is not None:
            vector[name] = max(vector[name], min(enough, proposal.current[name]))
            if vector[name] != proposal.wanted[name]:
                reasons.append(above_capacity(name, proposal.wanted[name], limit))
            continue
        if busy is None or busy > limit:
            vector[name] = proposal.current[name]
            reasons.append(_busy(name, busy, limit, request))
    return proposal.changed("saturated-stays", listed(reasons, MAX_SENTENCE, "; "), vector, code="saturated")


def _enough(name: str, request: Request, limit: float) -> int | None:
    """Return the parallelism at which a consumer group without metrics gets the target share of its capacity; None
    unless some capacity was measured while records waited, and nothing waits now."""
    found, curve, demand = request.analyses.get(name), request.model[0].curves.get(name), request.demand(name)
    if found is None or curve is None or demand is None or not request.policy.shares_tasks:
        return None
    was_saturated = any(point.saturated for point in found.capacities)
    return curve.needed(demand / limit) if was_saturated and not has_backlog(request) else None


def _busy(name: str, share: float | None, limit: float, request: Request) -> str:
    """Say how busy an operator is, or with which field of the policy that would be known."""
    if share is not None:
        return f"{short_name(name)} is busy {share:.0%} of the time, above its target of {limit:.0%}"
    unread = request.policy.subject.application.unread_metrics
    return f"the busy share of {short_name(name)} is unknown" + (f" without {unread}" if unread else "")


def sustained_rate(proposal: Proposal) -> Proposal:
    """Limit scale-down to where a subtask does at most 1.3 times its highest observed rate, else to one useful step.

    A service that counts no records has no such rate: its CPU alone limits it, in `scale_down_gate`.
    """
    request, wanted = proposal.request, proposal.wanted
    down = proposal.moves[1]
    if not down:
        return proposal
    vector, min_step = dict(wanted), _min_step(request)
    limited: dict[str, tuple[float, float] | None] = {}
    for name in down:
        if not request.policy.counts_records(name, request.topology.sources):
            continue
        now, sustained, demand = proposal.current[name], _sustained(name, request), request.demand(name)
        if demand is None or sustained is None:
            vector[name], limited[name] = now, None
            continue
        topology, needed = request.topology, now
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


def _sustained(name: str, request: Request) -> float | None:
    """Return the highest observed records/s of the busiest subtask: of points measured under saturation, of the highest
    input of the others, and of the current input."""
    found, shares = request.analyses.get(name), request.topology.work_shares(name)
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


def _min_step(request: Request) -> int:
    """Return the smallest change of parallelism: one, or what an instance brings to every operator."""
    unit = request.policy.spec.target.unit
    return 1 if unit is None else unit.parallelism_of(request.topology, unit.instances_for(request.topology, 1))


def step_limits(proposal: Proposal) -> Proposal:
    """Limit each operator to the policy's step per action, by number and by ratio."""
    request, vector = proposal.request, dict(proposal.wanted)
    up, down = proposal.moves
    downwards, step = request.policy.spec.behavior.scale_down, _min_step(request)
    for name in up:
        vector[name] = int(min(vector[name], _max_step_up(proposal.current[name], request)))
    for name in down:
        now = proposal.current[name]
        by_step = now - downwards.max_step if downwards.max_step else 1
        by_factor = math.ceil(now / downwards.max_factor) if downwards.max_factor else 1
        vector[name] = int(max(vector[name], min(max(by_step, by_factor), now - step)))
    if vector != proposal.wanted:
        proposal = proposal.changed(
            "step-limits", f"{changes(proposal.wanted, vector)}: the policy's largest step", vector
        )
    if not request.policy.shares_tasks:
        return proposal
    return _one_step_in(_one_step_out(proposal, step), step)


def _max_step_up(now: int, request: Request) -> float:
    """Return the largest parallelism that the policy's step allows from `now`."""
    upwards = request.policy.spec.behavior.scale_up
    by_step = now + upwards.max_step if upwards.max_step else math.inf
    by_factor = now * upwards.max_factor if upwards.max_factor else math.inf
    # A ratio below 2 would otherwise never let a single subtask grow.
    return max(min(by_step, by_factor), now + _min_step(request))


def migrates(request: Request) -> bool:
    """Return whether tasks of a consumer group wait for a probing rebalance."""
    return request.analysis.has("migrating")


def _one_step_out(proposal: Proposal, step: int) -> Proposal:
    """Grow a consumer group whose state is warmed up by one useful step, and by one instance while tasks wait: a few tasks
    move with each rebalance, and each step brings one."""
    request, vector = proposal.request, dict(proposal.wanted)
    if not migrates(request) and request.analysis.restart_times.warm_up_seconds is None:
        return proposal
    for name in proposal.moves[0]:
        now, wanted = proposal.current[name], vector[name]
        steps = (p for p in range(now + step, wanted) if request.topology.smallest_useful(name, p) == p)
        vector[name] = min(wanted, now + step if migrates(request) else next(steps, wanted))
    limited = [name for name, p in vector.items() if p != proposal.wanted[name]]
    if not limited:
        return proposal
    named = listed([f"{short_name(name)} to {vector[name]}" for name in limited])
    return proposal.changed("step-limits", f"one step at a time while state is warmed up: {named}", vector)


def _one_step_in(proposal: Proposal, step: int) -> Proposal:
    """Shrink a consumer group by one useful step: others take over the tasks of what stops, and their state."""
    request, vector = proposal.request, dict(proposal.wanted)
    for name in proposal.moves[1]:
        now = proposal.current[name]
        vector[name] = max(vector[name], request.topology.smallest_useful(name, max(1, now - step)))
    limited = [name for name, p in vector.items() if p != proposal.wanted[name]]
    if not limited:
        return proposal
    steps = listed([f"{short_name(name)} to {vector[name]}" for name in limited])
    return proposal.changed("step-limits", f"one useful step at a time: {steps}", vector)
