"""Guard on the forecast: what a peak will need again is not given back before it."""

import math
from typing import NamedTuple

from weir_contracts import Parallelism
from weir_planner.core import messages
from weir_predictor import coming, has_believed, loads_of, restart_of, seconds_until_capacity

from .proposal import MAX_UTILIZATION, Context, Proposal

MIN_RISE = 0.05
"""Share above the present arrivals from which expected ones are a peak."""
LOOKS = 60
"""Times within the horizon at which the forecast is compared with capacity."""


class _Peak(NamedTuple):
    """The first time at which an operator's smaller parallelism may not do, and the highest that the load may become until
    the horizon."""

    at_seconds: float
    records_per_second: float


def will_be_needed(proposal: Proposal) -> Proposal:
    """Prevent scale-down below what a forecast peak may need, if growing back would come before the shrink has paid for its
    restarts."""
    context, down = proposal.context, proposal.moves[1]
    hold_seconds = context.spec.behavior.scale_down.forecast_hold.total_seconds()
    if not down or hold_seconds <= 0 or not has_believed(context.analysis):
        return proposal
    pays, takes = _pays_after(context, proposal.wanted)
    if pays is None:
        return proposal
    within = min(pays, hold_seconds)
    peaks = _peaks(proposal, down, within + takes)
    vector, reasons = dict(proposal.wanted), []
    for name, peak in peaks.items():
        if peak.at_seconds - takes > within:
            continue
        reasons.append(
            messages.will_be_needed(name, vector[name], peak.records_per_second, peak.at_seconds, pays_seconds=pays)
        )
        curve, now = context.curve(name), context.current[name]
        needed = None if curve is None else curve.needed(peak.records_per_second / _limit(context))
        vector[name] = now if needed is None else max(vector[name], min(needed, now))
    return proposal.changed("will-be-needed", messages.each(reasons), vector)


def _limit(context: Context) -> float:
    return context.spec.objective.utilization or MAX_UTILIZATION


def _pays_after(context: Context, wanted: Parallelism) -> tuple[float | None, float]:
    """Return the seconds after which the slots that a shrink saves are as many as its restart, growing back and the
    wait for that cost (None: it saves none), and the seconds from a look until grown capacity counts."""
    request, slots = context.request, context.topology.slots
    restart = restart_of(context.analysis, request.deployment, request.outcomes)
    capacity = seconds_until_capacity(request.outcomes, context.topology, restart)
    takes = capacity + context.spec.interval.total_seconds()
    held = slots(context.current)
    saved = held - slots(wanted)
    if saved <= 0:
        return None, takes
    return 2 * (restart.seconds + restart.replay_seconds) * held / saved + capacity, takes


def _peaks(proposal: Proposal, down: list[str], seconds: float) -> dict[str, _Peak]:
    """Return the operators that a forecast peak may overload at their smaller parallelism. A load that stays level has
    none: its upper bound lies above it at any time."""
    context = proposal.context
    model, _ = context.request.model
    found = coming(context.analysis, model.arrivals, seconds)
    if found is None:
        return {}
    times = [found.horizon_seconds * i / LOOKS for i in range(LOOKS + 1)]
    if max(sum(found.expected(at).values()) for at in times) <= (1 + MIN_RISE) * sum(model.arrivals.values()):
        return {}
    capacities, limit, peaks = model.capacities(proposal.wanted), _limit(context), dict[str, _Peak]()
    for at in times:
        loads = loads_of(model.flow, found.upper(at))
        for name in down:
            load, capacity = loads.get(name), capacities.get(name, math.inf)
            if load is not None and load > limit * capacity:
                first = peaks[name].at_seconds if name in peaks else at
                max_load = max(load, peaks[name].records_per_second if name in peaks else 0.0)
                peaks[name] = _Peak(first, max_load)
    return peaks
