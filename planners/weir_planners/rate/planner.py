"""The built-in planner `rate`: size by rates, choose on the predictor.

Sizes come from DS2's traversal (Kalavri et al., OSDI 2018): an operator's target input rate is the sources' arrivals
through the edges' selectivities, and its parallelism the smallest whose capacity covers

    target / target_utilization + (backlog + target · restart) / seconds to work them off

(the Flink autoscaler's terms for catching up and for the restart itself), and whose lower edge covers the target. Before
scaling in the target may become `arrival_margin` higher, and the room that the target utilization leaves works off the
restart. Unlike both, it does not assume linear capacity but uses the measurements at other parallelisms. What was not
measured adds no more to a step than another one would cost (`Demand.largest_step`).

The formula gives the fewest and the most subtasks, and the predictor decides: holding and growth are run on it, and
each operator gets the fewest that are about as good as the most (`_smallest`). Holding wins wherever it is as good,
because it needs no restart; but a change that would be right without a backlog is right with one, too. So more
arrivals or more lag never lead to fewer subtasks, and no growth to more lag than holding unless room is short.

Under `maxLag` a load that was steady for some minutes needs less room: as much as it rose by in the time that a growth
takes, and for a shrink 1 % above its mean (`room.py`).

A forecast only adds: growth before a peak for which waiting would be late, and a larger growth where one is needed
(`ahead.py`).

The model lets operators of unknown demand or capacity take in everything. Where readings contradict it
(`Comparison.suspects`), its prediction is not used.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from weir_contracts import Alternative, Infeasible, Parallelism, PlanReply, changes, counted, fitted, short_name
from weir_predictor import (
    Comparison,
    Outlook,
    TooLittle,
    comparison_of,
    has_believed,
    is_overloaded,
)
from weir_sdk import Request, planner

from .ahead import Ahead, before_the_peak, expected_rise, last_growth_seconds
from .cold import first_step
from .rising import Memory, noticed, rise_of
from .room import may_wait, shared, steady_margin, with_room
from .sizing import Demand, RateParameters, demands_of, infeasible, shrunk, sized
from .swings import Ride, looked, ride_of


class _Option(NamedTuple):
    vector: Parallelism
    outlook: Outlook
    cost: tuple[int, int]
    """Slots; of equal slots the number of subtasks."""


class _Situation(NamedTuple):
    comparison: Comparison
    hold: _Option
    infeasible: list[Infeasible]


@planner(
    name="rate",
    description="compares holding with each useful parallelism on a fluid model and takes the cheapest that meets the objective",
    parameters=RateParameters,
    reads=[],
)
def plan_by_rate(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    before = request.remembered(Memory)
    grew = {"growth_seconds": last_growth_seconds(request, before)}
    memory = before.model_copy(
        update={**noticed(request, before), **looked(request, before), **shared(request, before), **grew}
    )
    return _planned(request, memory).model_copy(update={"memory": memory.model_dump(exclude_defaults=True)})


def _planned(request: Request, memory: Memory) -> PlanReply:
    parameters = request.parameters(RateParameters)
    comparison = comparison_of(request, parameters)
    if isinstance(comparison, TooLittle):
        step = first_step(request, parameters) if comparison.code == "warming-up" else None
        if step is not None:
            return step
        return PlanReply(kind="hold", code=comparison.code, sentence=comparison.sentence)
    default, margin = comparison, steady_margin(request, comparison, memory)
    comparison = with_room(request, default, memory)
    rise = rise_of(request, memory, comparison.restart.seconds + parameters.drain_seconds)
    looks_ahead = parameters.look_ahead and has_believed(request.analysis)
    if looks_ahead:
        rise = max(rise, expected_rise(request, comparison, memory, parameters.drain_seconds))
    demands = demands_of(comparison)
    impossible = infeasible(comparison, demands, parameters.drain_seconds, 1 + rise)
    # What holding will be compared with is predicted together with it.
    max_utilization = comparison.max_utilization
    is_busy = any(each.is_above(max_utilization) for each in demands)
    options = _options(comparison, demands, 1 + rise) if is_busy else None
    smaller = None if is_busy or comparison.partial else _smaller(comparison, demands, parameters, margin)
    hold = _Option(comparison.current, comparison.staying, _cost(comparison, comparison.current))
    situation = _Situation(comparison, hold, impossible)
    ride = None if comparison.partial else ride_of(request, comparison, memory, parameters.arrival_margin)
    if ride is not None and _is_ridden(comparison, ride, request):
        return _ridden(situation, ride)
    reason = _lack_of_room(comparison)
    if reason is None or may_wait(request, default, memory, comparison.staying.max_utilization or 0.0):
        reason = _other_risk(comparison)
    if reason is None:
        drain = parameters.drain_seconds
        ahead = before_the_peak(request, comparison, memory, drain) if looks_ahead else None
        if ahead is not None:
            return _grown_ahead(situation, ahead)
        if comparison.partial:
            sentence = f"{comparison.partial[0].bounded}, for which no operator needs more; nothing shrinks on a part"
            return _reply(situation, None, "metric-missing", sentence)
        return _scale_in(situation, _smaller(comparison, demands, parameters, margin) if is_busy else smaller)
    if rise > 0:
        reason = reason[0], f"{reason[1]}, and {rise:.0%} more are expected"
    if options is None:
        options = _options(comparison, demands, 1 + rise)
    return _scale_out(situation, options, reason)


def _cost(comparison: Comparison, vector: Parallelism) -> tuple[int, int]:
    return comparison.topology.slots(vector), sum(vector.values())


def _lack_of_room(comparison: Comparison) -> tuple[str, str] | None:
    """Return code and text if an operator has less room than its load needs; None if each has enough."""
    limit, staying = comparison.limit_seconds, comparison.staying
    used, where = staying.max_utilization, staying.bottleneck
    # An application that drains the backlog of a restart is not restarted again for its utilization alone.
    settling = limit is not None and (comparison.analysis.has("restarting") or comparison.analysis.has("catching-up"))
    if used is None or where is None or used <= (1.0 if settling else comparison.max_utilization):
        return None
    load, p = comparison.model.loads.get(where, 0.0), comparison.current[where]
    subtasks = "subtask processes" if p == 1 else "subtasks process"
    text = f"{load:,.0f} records/s arrive at {short_name(where)}, {p} {subtasks} {staying.capacities[where]:,.0f}"
    return ("overloaded" if used > 1 else "utilization-high"), text


def _other_risk(comparison: Comparison) -> tuple[str, str] | None:
    """Return code and text of another reason not to hold; None if holding is good enough."""
    limit, staying = comparison.limit_seconds, comparison.staying
    if comparison.suspects:
        return "saturated", _suspicion(comparison)
    if limit is not None and staying.violation_seconds > 0:
        if comparison.objective.max_latency is not None:
            return "objective-at-risk", f"records would take more than {limit:,.1f} s to be processed"
        return "objective-at-risk", f"lag would reach {staying.max_lag_seconds:,.1f} s"
    return None


def _is_ridden(comparison: Comparison, ride: Ride, request: Request) -> bool:
    """Return whether the present excursion is one of those that the present parallelism rides out, and growing would be
    in time an interval later if it is not."""
    limit, now = comparison.limit_seconds, comparison.current
    if limit is None or not ride.is_usual or any(now[name] < p for name, p in ride.vector.items()):
        return False
    lag, arriving = comparison.analysis.lag_seconds.value, sum(comparison.model.arrivals.values())
    if lag is None:
        return False
    growing = max(0.0, 1 - ride.rate / arriving) if arriving > 0 else 0.0
    later = lag + request.policy.spec.interval.total_seconds() * growing
    return later + comparison.restart.seconds + comparison.restart.replay_seconds <= limit


def _suspicion(comparison: Comparison) -> str:
    """Return the reason to suspect the first suspect."""
    name = next(n for n in comparison.topology.names if n in comparison.suspects)
    operator = comparison.analysis.operator(name)
    busy = operator.utilization.value if operator else None
    unknown = "demand" if name not in comparison.model.flow else "capacity"
    share = f"is {busy:.0%} busy" if busy is not None else "has an unknown busy share"
    lag = comparison.growing_lag
    grows = "" if lag is None else f", while lag of {lag[0]:,.1f} s grows by {lag[1]:,.0f} records/s"
    return f"{short_name(name)} {share} and its {unknown} is unknown{grows}"


def _options(comparison: Comparison, demands: Sequence[Demand], growth: float) -> list[_Option]:
    """Return the smallest and the largest vector to grow to if arrivals may become `growth` times as high: the load at the
    target utilization, and a backlog and the restart worked off in a quarter of `drain_seconds`, too."""
    if comparison.serving is not None:
        vectors = [comparison.joined] * 2
    else:
        vectors = sized(comparison, demands, (math.inf, comparison.assumptions.drain_seconds / 4), growth)
    return _predicted(comparison, vectors)


def _predicted(comparison: Comparison, vectors: Sequence[Parallelism]) -> list[_Option]:
    outlooks = comparison.going(vectors)
    return [_Option(v, outlook, _cost(comparison, v)) for v, outlook in zip(vectors, outlooks, strict=True)]


def _smallest(comparison: Comparison, fewest: _Option, most: _Option) -> _Option:
    """Return the smallest vector from `fewest` to `most` that is about as good as `most`.

    Each operator gets as few subtasks as would do if the others limited nothing: the slowest of them decides what waits.
    So more arrivals or more lag never give an operator fewer subtasks, which a choice among vectors of the present load
    would.
    """
    low, high = dict(fewest.vector), dict(most.vector)  # `high` is enough, below `low` nothing is
    # Where several sources have a backlog, the longest would hide what the others need.
    alone = [less for less in comparison.with_less_waiting() if less.backlog_records > 0]
    names = [name for name in low if low[name] < high[name]]
    judges = [
        (judge, dict(zip(names, judge.going([{name: high[name]} for name in names]), strict=True)))
        for judge in (comparison, *alone)
    ]
    sizes = {name: low[name] for name in names}
    while sizes:
        enough = dict.fromkeys(sizes, True)
        for judge, best in judges:
            outlooks = judge.going([{name: size} for name, size in sizes.items()])
            for name, outlook in zip(sizes, outlooks, strict=True):
                enough[name] = enough[name] and judge.is_close(outlook, best[name])
        for name, size in sizes.items():
            if enough[name]:
                high[name] = size
            else:
                low[name] = size + 1
        sizes = {name: (low[name] + high[name]) // 2 for name in names if low[name] < high[name]}
    known = [option for option in (fewest, most) if option.vector == high]
    return known[0] if known else _predicted(comparison, [high])[0]


def _scale_out(situation: _Situation, options: Sequence[_Option], reason: tuple[str, str]) -> PlanReply:
    """Holding is not good enough: take the smallest vector that is about as good as any."""
    (code, text), comparison, hold = reason, situation.comparison, situation.hold
    restart, (fewest, most) = comparison.restart.seconds, options
    if most.vector == hold.vector:
        return _reply(situation, None, "nothing-helps", _helpless(situation, text))
    if comparison.suspects:
        return _reply(situation, fewest, code, f"{changes(hold.vector, fewest.vector)}: {text}")
    best = _smallest(comparison, fewest, most)
    others = [option for option in options if option.vector not in (best.vector, hold.vector)]
    if best.vector == hold.vector or not comparison.is_worth(most.outlook, most.vector):
        refused = [most] if most in others else [most, *others]
        if is_overloaded(hold.outlook):
            much = " much" if comparison.gains(most.outlook) else ""
            return _reply(situation, None, "nothing-helps", _helpless(situation, text, much), refused)
        moved = changes(hold.vector, most.vector)
        sentence = fitted(
            f"{text}; holding clears it as soon as {moved} would", f", without a restart of {restart:.0f} s"
        )
        return _reply(situation, None, "no-gain", sentence, refused)
    prospect = [*_prospect(comparison, best.outlook), f", after a restart of {restart:.0f} s"]
    sentence = fitted(f"{changes(hold.vector, best.vector)}: {text}", *([] if comparison.partial else prospect))
    return _reply(situation, best, code, sentence, others)


def _helpless(situation: _Situation, text: str, much: str = "") -> str:
    """Return that growth would not help, and the first limit that prevents a larger one."""
    limits = [f": {each.because}" for each in situation.infeasible[:1]]
    return fitted(f"{text}, and no allowed parallelism would help{much}", *limits)


def _prospect(comparison: Comparison, outlook: Outlook) -> list[str]:
    """Return the details of the sentence: how high lag peaks, and when it meets the objective again."""
    text = f"; then lag peaks at {outlook.max_lag_seconds:,.1f} s"
    if comparison.limit_seconds is None or outlook.violation_seconds == 0:
        return [text]
    met = outlook.objective_met_at_seconds
    if met is None:
        met = outlook.horizon_seconds + outlook.late_after_seconds
    return [text, f" and meets the objective in {met:,.0f} s" if math.isfinite(met) else " and misses the objective"]


def _grown_ahead(situation: _Situation, ahead: Ahead) -> PlanReply:
    """The present plan does not survive the forecast."""
    comparison = situation.comparison
    option = _Option(ahead.vector, comparison.going([ahead.vector])[0], _cost(comparison, ahead.vector))
    return _reply(situation, option, "before-the-peak", ahead.sentence(comparison))


def _smaller(
    comparison: Comparison, demands: Sequence[Demand], parameters: RateParameters, margin: float | None
) -> tuple[_Option, str] | None:
    """Return the smallest option that may be good enough with arrivals a margin higher, and what decided its size; None:
    it saves too little. `margin` is that of a steady load."""
    higher = parameters.arrival_margin if margin is None else min(margin, parameters.arrival_margin)
    drain, is_steady = parameters.drain_seconds, margin is not None
    if all(each.needs_all(each.shrinking_rate(1 + higher, drain, is_steady=is_steady)) for each in demands):
        return None
    vector, decided_by = shrunk(comparison, demands, drain, higher, is_steady=is_steady)
    cost, held = _cost(comparison, vector), _cost(comparison, comparison.current)
    if cost >= held or held[0] - cost[0] < parameters.min_saving * held[0]:
        return None
    return _Option(vector, comparison.going([vector])[0], cost), decided_by


def _scale_in(situation: _Situation, smaller: tuple[_Option, str] | None) -> PlanReply:
    """Holding is good enough: is less good enough, too, through the restart?"""
    comparison, hold, staying = situation.comparison, situation.hold, situation.hold.outlook
    held = f"lag stays at {staying.max_lag_seconds:,.1f} s or less"
    if staying.max_utilization is not None:
        held += f" with {short_name(staying.bottleneck or '')} at {staying.max_utilization:.0%} of its capacity"
    if smaller is None:
        return _reply(situation, None, "objective-held", held)
    option, decided_by = smaller
    vector, cost = option.vector, option.cost
    moved, restart = changes(hold.vector, vector), comparison.restart_to(vector)
    peak = option.outlook.max_lag_seconds
    if cost[0] == hold.cost[0]:
        # Fewer subtasks in the same slots free nothing: not worth a restart.
        return _reply(situation, None, "no-slot-freed", fitted(f"{moved} would free no slot", f"; {held}"), [option])
    if not comparison.is_good(option.outlook):
        estimated = "" if restart.measured else " (estimated)"
        sentence = fitted(
            f"{moved} would let lag reach {peak:,.1f} s in a restart of {restart.seconds:.0f} s{estimated}", f"; {held}"
        )
        return _reply(situation, None, "restart-too-costly", sentence, [option])
    arriving = sum(comparison.model.arrivals.values())
    sentence = fitted(
        f"{moved}: {arriving:,.0f} records/s arrive and need {cost[0]} of {counted(hold.cost[0], 'slot')} by {decided_by}",
        f"; lag peaks at {peak:,.1f} s in a restart of {restart.seconds:.0f} s",
        "" if restart.measured else " (estimated)",
    )
    return _reply(situation, option, "over-provisioned", sentence)


def _ridden(situation: _Situation, ride: Ride) -> PlanReply:
    """Return the reply for a load that swings: the smallest vector on which lag stays within the objective."""
    comparison, hold = situation.comparison, situation.hold
    vector = {name: min(p, ride.vector[name]) for name, p in hold.vector.items()}
    swings = f"the load swings below the {ride.rate:,.0f} records/s that this sustains"
    if ride.excursions:
        times = "once" if ride.excursions == 1 else f"{ride.excursions} times"
        swings = (
            f"the load exceeded {ride.rate:,.0f} records/s {times}, for at most {ride.longest_seconds:.0f} s: "
            f"lag rises to {ride.lag_seconds:.1f} s"
        )
    cost = _cost(comparison, vector)
    if cost[0] >= hold.cost[0]:
        return _reply(situation, None, "swings-ridden", swings)
    option = _Option(vector, comparison.going([vector])[0], cost)
    return _reply(situation, option, "swings-ridden", f"{changes(hold.vector, vector)}: {swings}")


def _reply(
    situation: _Situation, scale: _Option | None, code: str, sentence: str, refused: Sequence[_Option] = ()
) -> PlanReply:
    """Return the reply that takes the option `scale`, or holds."""
    comparison, hold, impossible = situation
    chosen, doubtful = scale or hold, bool(comparison.suspects or comparison.partial)
    confidences = [curve.confidence for curve in comparison.model.curves.values()]
    return PlanReply(
        kind="scale" if scale else "hold",
        parallelism=scale.vector if scale else None,
        code=code,
        sentence=sentence,
        evidence=_evidence(comparison),
        prediction=None if doubtful else chosen.outlook.prediction(),
        hold_prediction=None if doubtful or not scale else hold.outlook.prediction(),
        infeasible=impossible[:100],
        alternatives=[
            Alternative(
                parallelism=option.vector,
                cost_slots=option.cost[0],
                violation_seconds=round(option.outlook.violation_seconds, 2),
                because=_reason_for(option, chosen),
            )
            for option in ([] if doubtful else refused[:20])
        ],
        confidence=round(min(confidences), 3) if confidences else None,
    )


def _evidence(comparison: Comparison) -> dict[str, float | int | str | bool | None]:
    lag = comparison.analysis.lag_seconds
    evidence: dict[str, float | int | str | bool | None] = {
        "arrival_rate_records_per_second": round(sum(comparison.model.arrivals.values()), 1),
        "backlog_records": round(comparison.backlog_records, 0),
        "lag_seconds": None if lag.value is None else round(lag.value, 2),
        "restart_seconds": round(comparison.restart.seconds, 2),
        "objective_seconds": comparison.objective.bound_seconds,
        "horizon_seconds": round(comparison.horizon_seconds, 1),
    }
    if lag.lower_bound is not None:
        evidence["lag_seconds_at_least"] = round(lag.lower_bound, 2)
    loads, capacities, bounds = comparison.model.loads, comparison.staying.capacities, comparison.lower_bounds
    for name in comparison.topology.names[:100]:
        evidence[f"target_rate[{name}]"] = round(loads[name], 1) if name in loads else None
        evidence[f"capacity[{name}]"] = round(capacities[name], 1) if name in capacities else None
        if name in bounds:
            evidence[f"capacity_at_least[{name}]"] = round(bounds[name], 1)
    return evidence if len(evidence) <= 200 else dict(list(evidence.items())[:200])


def _reason_for(option: _Option, chosen: _Option) -> str:
    late = option.outlook.late_seconds
    if late > chosen.outlook.late_seconds:
        return f"{late:,.0f} s above the objective" if math.isfinite(late) else "never meets the objective"
    if option.cost > chosen.cost:
        return f"costs {counted(option.cost[0], 'slot')} and {counted(option.cost[1], 'subtask')}, and is no better"
    return "no better than the chosen vector"
