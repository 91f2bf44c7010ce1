"""Guards that limit a change by its effect: growth that cannot help, shrinking that would hurt or that a peak would undo,
changes too small to matter."""

import math
from typing import NamedTuple

from weir_contracts import (
    MAX_SENTENCE,
    CapacityPoint,
    Parallelism,
    counted,
    listed,
    names,
    parallelism_for,
    short_name,
)
from weir_planner.core.plan_state import REMEMBERED
from weir_predictor import coming, has_believed, loads_of, restart_of, seconds_until_capacity
from weir_predictor.scenario import SATURATED
from weir_sdk.request import Request

from .proposal import (
    MAX_UTILIZATION,
    Proposal,
    above_capacity,
    backlogged_seconds,
    has_backlog,
    known_in_part,
    lag_seconds,
    last_growth,
    load,
)
from .sizes import TARGET_UTILIZATION

HOT = 2.0
"""Busiest subtask over the mean, beyond its larger share of partitions or key groups, above which a single key or
partition is hot."""
PLENTY = 1e6
"""Times what arrives and waits: more than any operator does."""
HELD_BACK = 0.2
"""Backpressured share from which an operator waits for a downstream one."""
MIN_GAIN = 0.1
"""Share of the expected gain in capacity below which growth was ineffective."""
TRUSTED = 0.7
"""Confidence of a capacity that growth is judged by."""
MIN_RISE = 0.05
"""Share above the present arrivals from which expected ones are a peak."""
LOOKS = 60
"""Times within the horizon at which the forecast is compared with capacity."""


def scale_down_gate(proposal: Proposal) -> Proposal:
    """Prevent scale-down during a restore, a warm-up or a backlog, where lag is unknown, and below what the target
    utilization needs."""
    request, down = proposal.request, proposal.moves[1]
    reason = _not_now(request) if down else None
    if reason is not None:
        return proposal.kept("scale-down-gate", f"no scale-down of {names(down)} while {reason}", down)
    objective = request.policy.spec.objective
    # Lag grows slowly beyond capacity; a latency needs room for the queues themselves.
    limit = objective.utilization or (MAX_UTILIZATION if objective.max_lag is None else 1.0)
    vector, reasons = dict(proposal.wanted), []
    for name in down:
        needed = _needed(name, limit, proposal)
        if needed is not None and vector[name] < needed:
            reasons.append(above_capacity(name, vector[name], limit))
            vector[name] = min(needed, proposal.current[name])
    return proposal.changed("scale-down-gate", listed(reasons, MAX_SENTENCE, "; "), vector)


def _not_now(request: Request) -> str | None:
    """Return why the application needs everything it has now."""
    found = request.analysis
    if found.status != "running" or found.has("restarting"):
        return "it restarts"
    # Without `warm_up_seconds` the symptom means a window that never fills: an idle application would never shrink.
    if any(s.code == "warming-up" and "warm_up_seconds" in s.numbers for s in found.symptoms):
        return "it warms up"
    if found.has("catching-up") or found.has("stalled"):
        return "it has a backlog"
    waiting, part = _waiting_seconds(request), known_in_part(request)
    if waiting is not None and waiting > backlogged_seconds(request):
        return f"its backlog is {waiting:.0f} s old"
    if part is not None or waiting is not None:
        return part
    # A service whose CPU alone is known counts no records: nothing could ever show that none wait.
    counts = any(request.policy.counts_records(name, request.topology.sources) for name in request.topology.sources)
    return "its lag is unknown" if counts else None


def _waiting_seconds(request: Request) -> float | None:
    """Return the lag or latency that is known, or its lower bound, that of the objective first; 0 if nothing waits. None:
    unknown."""
    found = request.analysis
    for seconds in (lag_seconds(request), found.lag_seconds.proven, found.expected_latency_seconds.proven):
        if seconds is not None:
            return seconds
    return 0.0 if found.lag_records.value == 0 else None


def _needed(name: str, limit: float, proposal: Proposal) -> int | None:
    """Return the smallest parallelism with a utilization of at most `limit`, or less by a measurement's error where only the
    busy share is known; None if the proposal suffices or that is unknown."""
    request = proposal.request
    used, wanted = load(request, name), proposal.wanted[name]
    even, shares = request.topology.even_subtasks, request.topology.work_shares(name)
    if used is not None and used * even(name, proposal.current[name]) / even(name, wanted) <= limit:
        return None  # fewer subtasks do at least as much each: no curve is needed
    curve, demand = request.model[0].curves.get(name), request.demand(name)
    if curve is not None and demand is not None:
        return curve.needed(demand / limit) or proposal.current[name]
    busy, found = request.busy(name), request.analyses.get(name)
    if busy is None or found is None:
        return None
    if request.policy.counts_records(name, request.topology.sources):
        limit *= MAX_UTILIZATION  # its capacity, once measured, may be lower than its busy share says
    return parallelism_for(max(1.0, busy * found.parallelism / limit), shares) or proposal.current[name]


class _Peak(NamedTuple):
    """The first time at which an operator's smaller parallelism may not do, and the highest that the load may become until
    the horizon."""

    at_seconds: float
    records_per_second: float


def will_be_needed(proposal: Proposal) -> Proposal:
    """Prevent scale-down below what a forecast peak may need, if growing back would come before the shrink has paid for its
    restarts."""
    request, down = proposal.request, proposal.moves[1]
    hold_seconds = request.policy.spec.behavior.scale_down.forecast_hold.total_seconds()
    if not down or hold_seconds <= 0 or not has_believed(request.analysis):
        return proposal
    pays, takes = _pays_after(request, proposal.wanted)
    if pays is None:
        return proposal
    within = min(pays, hold_seconds)
    peaks = _peaks(proposal, down, within + takes)
    vector, reasons = dict(proposal.wanted), []
    for name, peak in peaks.items():
        if peak.at_seconds - takes > within:
            continue
        begins = "now" if peak.at_seconds < 1 else f"from {_time(peak.at_seconds)} on"
        reasons.append(
            f"{short_name(name)} will be needed: up to {peak.records_per_second:,.0f} records/s are forecast, too many for "
            f"{counted(vector[name], 'subtask')} {begins}; shrinking pays after {_time(pays)}"
        )
        curve, now = request.model[0].curves.get(name), proposal.current[name]
        needed = None if curve is None else curve.needed(peak.records_per_second / _limit(request))
        vector[name] = now if needed is None else max(vector[name], min(needed, now))
    return proposal.changed("will-be-needed", listed(reasons, MAX_SENTENCE, "; "), vector)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:,.0f} min"


def _limit(request: Request) -> float:
    return request.policy.spec.objective.utilization or MAX_UTILIZATION


def _pays_after(request: Request, wanted: Parallelism) -> tuple[float | None, float]:
    """Return the seconds after which the slots that a shrink saves are as many as its restart, growing back and the
    wait for that cost (None: it saves none), and the seconds from a look until grown capacity counts."""
    slots = request.topology.slots
    restart = restart_of(request.analysis, request.deployment, request.outcomes)
    capacity = seconds_until_capacity(request.outcomes, request.topology, restart)
    takes = capacity + request.policy.spec.interval.total_seconds()
    held = slots(request.deployment.observed)
    saved = held - slots(wanted)
    if saved <= 0:
        return None, takes
    return 2 * (restart.seconds + restart.replay_seconds) * held / saved + capacity, takes


def _peaks(proposal: Proposal, down: list[str], seconds: float) -> dict[str, _Peak]:
    """Return the operators that a forecast peak may overload at their smaller parallelism. A load that stays level has
    none: its upper bound lies above it at any time."""
    request = proposal.request
    model, _ = request.model
    found = coming(request.analysis, model.arrivals, seconds)
    if found is None:
        return {}
    times = [found.horizon_seconds * i / LOOKS for i in range(LOOKS + 1)]
    if max(sum(found.expected(at).values()) for at in times) <= (1 + MIN_RISE) * sum(model.arrivals.values()):
        return {}
    capacities, limit, peaks = model.capacities(proposal.wanted), _limit(request), dict[str, _Peak]()
    for at in times:
        loads = loads_of(model.flow, found.upper(at))
        for name in down:
            load, capacity = loads.get(name), capacities.get(name, math.inf)
            if load is not None and load > limit * capacity:
                first = peaks[name].at_seconds if name in peaks else at
                max_load = max(load, peaks[name].records_per_second if name in peaks else 0.0)
                peaks[name] = _Peak(first, max_load)
    return peaks


def hot_key(proposal: Proposal) -> Proposal:
    """Limit an operator with one overloaded subtask to the parallelism that an even load needs, or that carries the load
    in spite of the hot key."""
    request = proposal.request
    skewed = {symptom.operator for symptom in request.analysis.symptoms if symptom.code == "skewed"}
    for name in proposal.moves[0] if skewed else []:
        found = request.analyses.get(name)
        skew = found.skew.value if found else None
        if name not in skewed or skew is None or found is None:
            continue
        if skew * request.topology.even_subtasks(name, found.parallelism) < HOT * found.parallelism:
            continue
        wanted, useful = proposal.wanted[name], max(_even_need(name, request), _hot_need(name, request))
        if wanted > useful:
            what = "partition" if name in request.topology.sources else "key"
            reason = (
                f"one subtask of {short_name(name)} is {skew:.1f} times as busy as the mean: "
                f"more than {counted(useful, 'subtask')} do not relieve a hot {what}"
            )
            proposal = proposal.noting("hot-key", reason, wanted=wanted, limit=useful, operator=name)
            proposal = proposal.changed("hot-key", reason, {**proposal.wanted, name: useful})
    return proposal


def _hot_need(name: str, request: Request) -> int:
    """Return the parallelism at which the subtask with the hot key keeps up; 0 if none is known. Fewer other records reach
    it with each further subtask, as long as the key alone does not fill it."""
    curve, demand = request.model[0].curves.get(name), request.demand(name)
    if curve is None or demand is None or curve.hot_share == 0:
        return 0
    return curve.needed(demand / MAX_UTILIZATION) or curve.needed(demand) or 0


def _even_need(name: str, request: Request) -> int:
    """Return the parallelism that a perfectly even load needs; at least the current one."""
    now, found = request.deployment.observed[name], request.analyses[name]
    taken, busy, demand = found.input_rate.value, found.utilization.value, found.target_input_rate.proven
    if not taken or not busy or demand is None:
        return now
    limit = request.policy.spec.objective.utilization or TARGET_UTILIZATION
    subtasks, shares = found.parallelism * demand * busy / taken / limit, request.topology.work_shares(name)
    return max(now, parallelism_for(subtasks, shares) or request.limits[name].max)


def ineffective_growth(proposal: Proposal) -> Proposal:
    """Prevent growth of an operator whose last growth added no capacity: something else limits it.

    Judged only if both capacities were measured under saturation, the second one since the growth.
    """
    request = proposal.request
    hold = request.policy.spec.behavior.scale_up.ineffective_hold
    for name in proposal.moves[0] if request.state.actions else []:
        grown = last_growth(request, name)
        if grown is None or request.now >= grown.at + hold:
            continue
        before, after = grown.before[name], grown.after[name]
        then, here = _measured(name, before, request), _measured(name, after, request)
        if then is None or here is None or here.measured_at <= grown.at or then.measured_at < grown.at - REMEMBERED:
            continue
        even = request.topology.even_subtasks
        expected = then.records_per_second * (even(name, after) / even(name, before) - 1)
        if expected <= 0 or here.records_per_second - then.records_per_second >= MIN_GAIN * expected:
            continue
        left = (grown.at + hold - request.now).total_seconds()
        reason = (
            f"{short_name(name)} does {here.records_per_second:,.0f} records/s with {after} and did "
            f"{then.records_per_second:,.0f} with {before}: no growth for another {left:.0f} s"
        )
        proposal = proposal.noting(
            "ineffective-growth", reason, wanted=proposal.wanted[name], limit=after, operator=name
        ).kept("ineffective-growth", reason, [name])
    return proposal


def _measured(name: str, parallelism: int, request: Request) -> CapacityPoint | None:
    found = request.analyses.get(name)
    points = found.capacities if found else []
    return next((p for p in points if p.parallelism == parallelism and p.saturated and p.confidence >= TRUSTED), None)


def downstream_bound(proposal: Proposal) -> Proposal:
    """Prevent growth of an operator that waits for a saturated downstream one that does not grow."""
    request, waiting = proposal.request, []
    for name in proposal.moves[0]:
        found = request.analyses.get(name)
        backpressure = found.backpressure.value if found else None
        if backpressure is not None and backpressure >= HELD_BACK:
            waiting.append(name)
    if not waiting:
        return proposal
    wanted, stuck = proposal.wanted, _stuck(proposal)
    for name in waiting:
        downstream = next((n for n in _downstream(name, request) if n in stuck), None)
        if downstream is not None:
            limit = proposal.current[name]
            reason = f"{short_name(name)} waits for {short_name(downstream)}, which is saturated and does not grow"
            proposal = proposal.noting(
                "downstream-bound", reason, wanted=wanted[name], limit=limit, operator=name
            ).kept("downstream-bound", reason, [name])
    return proposal


def _stuck(proposal: Proposal) -> set[str]:
    """Return the operators that are saturated or limited by an external system, and are not raised."""
    request, wanted = proposal.request, proposal.wanted
    outside = {s.operator for s in request.analysis.symptoms if s.code == "downstream-bound"}
    return {
        name
        for name, p in proposal.current.items()
        if wanted.get(name, p) <= p and ((request.busy(name) or 0.0) >= SATURATED or name in outside)
    }


def _downstream(name: str, request: Request) -> list[str]:
    """Return all operators downstream of one, the nearest first."""
    found: list[str] = []
    waiting = request.topology.outputs(name)
    while waiting:
        nearest = waiting.pop(0)
        if nearest not in found:
            found.append(nearest)
            waiting += request.topology.outputs(nearest)
    return found


def upstream_bound(proposal: Proposal) -> Proposal:
    """Limit growth to what can reach an operator where guards have limited another one that slows the same sources."""
    request, model, wanted = proposal.request, proposal.request.model[0], proposal.wanted
    proposed = {**wanted, **next((amendment.before for amendment in proposal.amendments if amendment.before), {})}
    known = [name for name in wanted if name in model.curves and name in model.fed]
    rates = {name: (model.curves[name].rate(wanted[name]), model.curves[name].rate(proposed[name])) for name in known}
    ceilings = {name: rate for name, (rate, before) in rates.items() if rate < before and wanted[name] < proposed[name]}
    if not ceilings:
        return proposal
    limit = request.policy.spec.objective.utilization or TARGET_UTILIZATION
    plenty = {source: PLENTY * (1 + rate + model.backlogs[source].records) for source, rate in model.arrivals.items()}
    for name in [name for name in proposal.moves[0] if name in known]:
        reaching = {each: model.reaching(plenty, {each: ceilings[each]})[name] for each in ceilings if each != name}
        slowest = min(reaching, key=lambda each: reaching[each], default=None)
        if slowest is None:
            continue
        needed = model.curves[name].needed(reaching[slowest] / limit)
        follows = max(proposal.current[name], wanted[name] if needed is None else needed)
        if follows >= wanted[name]:
            continue
        reason = (
            f"{short_name(slowest)} is limited to {counted(wanted[slowest], 'subtask')}, so at most "
            f"{reaching[slowest]:,.0f} records/s reach {short_name(name)}"
        )
        proposal = proposal.noting("upstream-bound", reason, wanted=wanted[name], limit=follows, operator=name).changed(
            "upstream-bound", reason, {**proposal.wanted, name: follows}
        )
    return proposal


def dead_band(proposal: Proposal) -> Proposal:
    """Drop a change that is small for every operator, unless one of them needs it. It is counted in subtasks: 1 → 2 is
    not small."""
    request, wanted = proposal.request, proposal.wanted
    up, down = proposal.moves
    changed = [name for name, p in wanted.items() if p != proposal.current[name]]
    if not changed or len(changed) > len(up) + len(down):  # moving into the policy's limits costs the restart anyway
        return proposal
    change = max(abs(wanted[name] / proposal.current[name] - 1) for name in changed)
    tolerance = request.policy.spec.behavior.tolerance
    if change > tolerance + 1e-9 or any(_needs_more(request, name) for name in up):
        return proposal
    reason = f"{names(changed)} would change by {change:.0%}, within the tolerance of {tolerance:.0%}"
    return proposal.kept("dead-band", reason, changed)


def _needs_more(request: Request, name: str) -> bool:
    """Return whether an operator is close to its limit, or whether that is unknown."""
    busy, used = request.busy(name), load(request, name)
    return busy is None or used is None or busy >= SATURATED or used > MAX_UTILIZATION or has_backlog(request)
