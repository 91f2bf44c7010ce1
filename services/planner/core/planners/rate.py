"""The built-in planner `rate`: size by rates, choose on the predictor.

Candidates come from DS2's traversal (Kalavri et al., OSDI 2018): an operator's target input rate is the sources' arrivals through the
edges' selectivities, and its parallelism the smallest whose capacity covers

    target / target_utilisation + (backlog + target · restart) / drain_seconds

(the Flink autoscaler's terms for catching up and for the restart itself). Unlike both, capacity is not assumed linear but taken from
what was seen at other parallelisms, and the answer is not the formula's: holding and each candidate are run on the predictor, and the
cheapest that meets the objective wins, else the one with the least violation. Holding wins wherever it is as good, because it
needs no restart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from weir_contracts import Alternative, Infeasible, Parallelism, PlanReply, PlanRequest, Prediction

from predictor import CapacityCurve, Outlook
from predictor.words import changes

from .rate_case import Case, Demand, RateParameters, case_of


@dataclass(frozen=True)
class _Option:
    vector: Parallelism
    prediction: Outlook
    cost: tuple[int, int]


def plan_by_rate(request: PlanRequest, parameters: RateParameters) -> PlanReply:
    """The answer to one request; see the module."""
    case = case_of(request, parameters)
    if isinstance(case, PlanReply):
        return case
    hold = _Option(dict(case.current), case.predicted(case.current), case.cost(case.current))
    infeasible: list[Infeasible] = []
    why = _why_not_stay(case, hold.prediction)
    if why is None:
        _sized(case, case.demands(0.0), parameters.drain_seconds, infeasible)  # for what it notes
        return _shrink(case, hold, infeasible)
    options = [
        _Option(vector, case.predicted(vector), case.cost(vector))
        for vector in _candidates(case, infeasible)
        if vector != case.current
    ]
    return _grow(case, hold, options, why, infeasible)


def foresee(
    request: PlanRequest, parameters: RateParameters, parallelism: Parallelism
) -> tuple[Prediction, Prediction] | None:
    """What staying and a vector would bring, by this planner's model; None where the model knows too little."""
    case = case_of(request, parameters)
    if isinstance(case, PlanReply):
        return None
    return case.predicted(case.current).told(), case.predicted(parallelism).told()


def _why_not_stay(case: Case, staying: Outlook) -> tuple[str, str] | None:
    """Code and words of why staying is not good enough; None if it is."""
    limit = case.limit_seconds
    used, where = staying.max_utilisation, staying.bottleneck
    if used is not None and used > case.highest_utilisation:
        needs = _needs(case, staying, where)
        return ("overloaded" if used > 1 else "utilisation-high"), needs
    if limit is not None and staying.violation_seconds > 0:
        if case.objective.max_latency is not None:
            return "objective-at-risk", f"records would take more than {limit:.1f} s until they are done"
        return "objective-at-risk", f"lag would reach {staying.max_lag_seconds:.1f} s"
    unknown_but_full = [n for n in case.topology.names if n in case.saturated and _is_blind(case, n)]
    if any(case.current[n] < case.most[n] for n in unknown_but_full):
        return "saturated", f"{unknown_but_full[0]} is busy all the time and its demand is unknown"
    return None


def _is_blind(case: Case, name: str) -> bool:
    """Whether an operator's demand or its capacity cannot be told."""
    return name not in case.model.flow or name not in case.model.curves


def _needs(case: Case, staying: Outlook, where: str | None) -> str:
    if where is None:
        return "demand is above capacity"
    load = case.model.loads.get(where, 0.0)
    p = case.current[where]
    capacity = staying.capacities[where]
    word = "subtask processes" if p == 1 else "subtasks process"
    return f"{load:,.0f} records/s arrive at {where}, {p} {word} {capacity:,.0f}"


def _candidates(case: Case, infeasible: list[Infeasible]) -> Iterator[Parallelism]:
    """Vectors worth comparing, each once: with different haste for the backlog, none for it, and the most there may be."""
    drain, demands = case.parameters.drain_seconds, case.demands(0.0)
    seen: list[Parallelism] = []
    for seconds in (None, 4 * drain, 2 * drain, drain, drain / 2, drain / 4):
        vector = _sized(case, demands, seconds, infeasible if seconds == drain else None)
        if vector not in seen:
            seen.append(vector)
            yield vector
    most = {name: max(case.current[name], most) for name, most in case.most.items()}
    if most not in seen and infeasible:
        yield most


def _sized(
    case: Case,
    demands: list[Demand],
    drain_seconds: float | None,
    notes: list[Infeasible] | None,
    *,
    may_shrink: bool = False,
) -> Parallelism:
    """The traversal: the smallest useful parallelism of each operator for arrivals, backlog and restart."""
    vector: Parallelism = {}
    for each in demands:
        name, now, most, curve = each.operator, each.now, each.most, each.curve
        if curve is None and may_shrink and name in case.at_least:
            # A bound is enough to take subtasks away by, and no reason to add any.
            curve = CapacityCurve(now / case.at_least[name])
        if curve is None or each.steady is None:
            # Unknown is not small: it stays, or grows by a useful step where it is visibly full.
            vector[name] = min(most, now + max(1, now // 2)) if name in case.saturated else now
            continue
        demand = each.steady
        if drain_seconds is not None:
            demand += each.waiting / drain_seconds
        wanted = _at_least(each, curve, demand, notes)
        if not may_shrink and wanted < now:
            wanted = max(wanted, min(now, most))
        vector[name] = wanted
    return vector


def _at_least(each: Demand, curve: CapacityCurve, demand: float, notes: list[Infeasible] | None) -> int:
    most, wanted = each.highest, curve.needed(demand)
    if wanted is None:
        if notes is not None:
            notes.append(_no_more(each.operator, demand, curve))
        return most
    if wanted > most:
        if notes is not None:
            notes.append(_out_of_bounds(each.operator, wanted, most))
        wanted = most
    return wanted if wanted > each.least else each.least


def _no_more(name: str, demand: float, curve: CapacityCurve) -> Infeasible:
    return Infeasible(
        operator=name,
        wanted=round(demand, 1),
        limit=round(curve.ceiling, 1),
        code="capacity-ceiling",
        because=f"{demand:,.0f} records/s are wanted and no parallelism of {name} sustains more than {curve.ceiling:,.0f}",
    )


def _out_of_bounds(name: str, wanted: int, most: int) -> Infeasible:
    return Infeasible(
        operator=name,
        wanted=float(wanted),
        limit=float(most),
        code="bounds",
        because=f"{name} would need {wanted} and may have {most}",
    )


def _grow(
    case: Case, hold: _Option, options: list[_Option], why: tuple[str, str], infeasible: list[Infeasible]
) -> PlanReply:
    """Staying is not good enough: the cheapest option that meets the objective, else the least violation."""
    code, words = why
    if not options:
        sentence = f"{words}, and nothing that may be had would help"
        return _reply(case, "hold", hold, hold, "nothing-helps", sentence, infeasible, [])
    good = [o for o in options if _is_good(case, o.prediction)]
    if good:
        best = min(good, key=lambda o: (o.cost, o.prediction.violation_seconds))
    else:
        least = min(_badness(case, o.prediction) for o in options)
        # Nearly as good for less is better.
        near = [o for o in options if _badness(case, o.prediction) <= _nearly(least)]
        best = min(near, key=lambda o: (o.cost, _badness(case, o.prediction)))
    staying, going = _badness(case, hold.prediction), _badness(case, best.prediction)
    # The model cannot see what a full operator of unknown demand would gain: there it must not have the last word.
    blind = code == "saturated"
    overloaded = (hold.prediction.max_utilisation or 0.0) > 1
    # Where it cannot keep up either way, a little less of it is not worth slots and a restart.
    hardly = overloaded and not good and staying <= _nearly(going)
    if (going >= staying - 0.5 or hardly) and not blind and not _steadier(hold.prediction, best.prediction):
        if overloaded:
            sentence = f"{words}, and nothing that may be had would help" + (" much" if going < staying - 0.5 else "")
            return _reply(case, "hold", hold, hold, "nothing-helps", sentence, infeasible, options)
        sentence = (
            f"{words}; staying clears it as soon as {changes(hold.vector, best.vector)} would, without a restart of "
            f"{case.restart.seconds:.0f} s"
        )
        return _reply(case, "hold", hold, hold, "no-gain", sentence, infeasible, options)
    met = best.prediction.objective_met_at_seconds
    outlook = f"lag peaks at {best.prediction.max_lag_seconds:.1f} s"
    if case.limit_seconds is not None and best.prediction.violation_seconds > 0:
        outlook += f" and is back in bounds in {met:.0f} s" if met is not None else " and stays out of bounds"
    sentence = (
        f"{changes(hold.vector, best.vector)}: {words}; then {outlook}, after a restart of {case.restart.seconds:.0f} s"
    )
    return _reply(case, "scale", best, hold, code, sentence, infeasible, [o for o in options if o is not best])


def _is_good(case: Case, prediction: Outlook) -> bool:
    """Meets the objective all the time, and can keep up afterwards."""
    steady = prediction.max_utilisation is None or prediction.max_utilisation <= case.highest_utilisation
    return prediction.violation_seconds == 0 and steady


def _nearly(badness: float) -> float:
    """What is as good as that."""
    return badness * 1.15 + 1.0


def _badness(case: Case, prediction: Outlook) -> float:
    """Seconds of violation; where no time bound was given, the load beyond the target as a share of the horizon."""
    over = max(0.0, (prediction.max_utilisation or 0.0) - case.highest_utilisation)
    late = prediction.violation_seconds if case.limit_seconds is not None else 0.0
    return late + over * prediction.horizon_seconds


def _steadier(staying: Outlook, going: Outlook) -> bool:
    """Whether only the change lets the application keep up."""
    return (staying.max_utilisation or 0.0) > 1.0 >= (going.max_utilisation or 0.0)


def _shrink(case: Case, hold: _Option, infeasible: list[Infeasible]) -> PlanReply:
    """Staying is good enough; is less good enough, too, with arrivals a margin higher and through the restart?"""
    demands = case.demands(case.parameters.arrival_margin)
    smaller = _sized(case, demands, case.parameters.drain_seconds, None, may_shrink=True)
    smaller = {name: min(p, case.current[name]) for name, p in smaller.items()}
    held = f"lag stays at {hold.prediction.max_lag_seconds:.1f} s or less"
    if hold.prediction.max_utilisation is not None:
        held += f" with {hold.prediction.bottleneck} at {hold.prediction.max_utilisation:.0%} of its capacity"
    cost = case.cost(smaller)
    saved = hold.cost[0] - cost[0]
    if cost >= hold.cost or saved < case.parameters.least_saving * hold.cost[0]:
        return _reply(case, "hold", hold, hold, "objective-held", held, infeasible, [])
    option = _Option(smaller, case.predicted(smaller), cost)
    if saved == 0:
        # Fewer subtasks in the same slots free nothing: not worth a restart.
        sentence = f"{held}; {changes(hold.vector, smaller)} would free no slot"
        return _reply(case, "hold", hold, hold, "no-slot-freed", sentence, infeasible, [option])
    if not _is_good(case, option.prediction):
        sentence = (
            f"{held}; {changes(hold.vector, smaller)} would let lag reach {option.prediction.max_lag_seconds:.1f} s in a restart of "
            f"{case.restart.seconds:.0f} s"
        )
        if not case.restart.seen:
            sentence += " (no rescale was seen yet, so its parameter restart_seconds is taken)"
        return _reply(case, "hold", hold, hold, "restart-too-costly", sentence, infeasible, [option])
    total = sum(case.model.arrivals.values())
    sentence = (
        f"{changes(hold.vector, smaller)}: {total:,.0f} records/s arrive and need {option.cost[0]} of {hold.cost[0]} slots; lag peaks at "
        f"{option.prediction.max_lag_seconds:.1f} s in a restart of {case.restart.seconds:.0f} s"
    )
    return _reply(case, "scale", option, hold, "over-provisioned", sentence, infeasible, [])


def _reply(  # noqa: PLR0917 - the parts of a reply, in its order
    case: Case,
    kind: str,
    chosen: _Option,
    hold: _Option,
    code: str,
    sentence: str,
    infeasible: list[Infeasible],
    refused: list[_Option],
) -> PlanReply:
    capacities = hold.prediction.capacities
    evidence: dict[str, float | int | str | bool | None] = {
        "arrival_rate_records_per_second": round(sum(case.model.arrivals.values()), 1),
        "backlog_records": round(case.backlog_records, 0),
        "lag_seconds": None if case.lag_seconds is None else round(case.lag_seconds, 2),
        "restart_seconds": round(case.restart.seconds, 2),
        "objective_seconds": case.objective.bound_seconds,
        "horizon_seconds": round(case.horizon_seconds, 1),
    }
    for name in case.topology.names:
        load = case.model.loads.get(name)
        evidence[f"target_rate[{name}]"] = None if load is None else round(load, 1)
        evidence[f"capacity[{name}]"] = round(capacities[name], 1) if name in capacities else None
        if name in case.at_least:
            evidence[f"capacity_at_least[{name}]"] = round(case.at_least[name], 1)
    confidences = [curve.confidence for curve in case.model.curves.values()]
    return PlanReply(
        kind="scale" if kind == "scale" else "hold",
        parallelism=chosen.vector if kind == "scale" else None,
        code=code,
        sentence=sentence[:2000],
        evidence=dict(list(evidence.items())[:200]),
        prediction=chosen.prediction.told(),
        hold_prediction=None if kind == "hold" else hold.prediction.told(),
        infeasible=infeasible[:100],
        alternatives=[
            Alternative(
                parallelism=o.vector,
                cost_slots=o.cost[0],
                violation_seconds=o.prediction.violation_seconds,
                because=_because(o, chosen),
            )
            for o in refused[:20]
        ],
        confidence=round(min(confidences), 3) if confidences else None,
    )


def _because(option: _Option, chosen: _Option) -> str:
    if option.prediction.violation_seconds > chosen.prediction.violation_seconds:
        return f"{option.prediction.violation_seconds:.0f} s above the objective"
    if option.cost > chosen.cost:
        return f"costs {option.cost[0]} slots and {option.cost[1]} subtasks, and is no better"
    return "no better than what was chosen"
