"""The built-in planner `rate`: size by rates, choose on the predictor.

Candidates come from DS2's traversal (Kalavri et al., OSDI 2018): an operator's target input rate is the sources' arrivals through the
edges' selectivities, and its parallelism the smallest whose capacity covers

    target / target_utilisation + (backlog + target · restart) / drain_seconds

(the Flink autoscaler's terms for catching up and for the restart itself). Unlike both, capacity is not assumed linear but taken from
what was seen at other parallelisms, and the answer is not the formula's: holding and each candidate are run on the predictor, and the
cheapest that meets the objective wins, else the one with the least violation. Holding wins wherever it is as good, because it
needs no restart; but what would be done without a backlog is done with one, too.

The model lets operators of unknown demand or capacity take in everything. Where readings contradict it
(`Comparison.suspects`), it has no say.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weir_contracts import Alternative, Infeasible, Parallelism, PlanReply
from weir_planner import Request, planner

from predictor import CapacityCurve, Comparison, Outlook, TooLittle, comparison_of, is_overloaded, nearly
from predictor.words import changes

from .case import Demand, RateParameters, demands_of


@dataclass(frozen=True)
class _Option:
    vector: Parallelism
    prediction: Outlook
    cost: tuple[int, int]


@planner(
    name="rate",
    description="compares holding with each useful parallelism on a fluid model and takes the cheapest that meets the objective",
    parameters=RateParameters,
    reads=[],
)
def plan_by_rate(request: Request) -> PlanReply:
    """The answer to one request; see the module."""
    parameters = request.parameters(RateParameters)
    case = comparison_of(request, parameters)
    if isinstance(case, TooLittle):
        return PlanReply(kind="hold", code=case.code, sentence=case.sentence)
    hold = _option(case, dict(case.current))
    infeasible: list[Infeasible] = []
    why = _why_not_stay(case, hold.prediction)
    if why is None:
        _sized(case, demands_of(case, 0.0), parameters.drain_seconds, infeasible)  # for what it notes
        return _shrink(case, parameters, hold, infeasible)
    options = [_option(case, vector) for vector in _candidates(case, infeasible) if vector != case.current]
    return _grow(case, hold, options, why, infeasible)


def _option(case: Comparison, vector: Parallelism) -> _Option:
    return _Option(vector, case.predicted(vector), _cost(case, vector))


def _cost(case: Comparison, vector: Parallelism) -> tuple[int, int]:
    """Slots first; of equal slots the fewer subtasks."""
    return case.topology.slots(vector), sum(vector.values())


def _why_not_stay(case: Comparison, staying: Outlook) -> tuple[str, str] | None:
    """Code and words of why staying is not good enough; None if it is."""
    limit = case.limit_seconds
    used, where = staying.max_utilisation, staying.bottleneck
    # What works off the backlog of a restart is not restarted again for its utilisation alone.
    settling = limit is not None and (case.analysis.has("restarting") or case.analysis.has("catching-up"))
    if used is not None and used > (1.0 if settling else case.highest_utilisation):
        needs = _needs(case, staying, where)
        return ("overloaded" if used > 1 else "utilisation-high"), needs
    if case.suspects:
        return "saturated", _suspicion(case)
    if limit is not None and staying.violation_seconds > 0:
        if case.objective.max_latency is not None:
            return "objective-at-risk", f"records would take more than {limit:.1f} s until they are done"
        return "objective-at-risk", f"lag would reach {staying.max_lag_seconds:.1f} s"
    return None


def _suspicion(case: Comparison) -> str:
    """Why the first of the suspects is one."""
    name = next(n for n in case.topology.names if n in case.suspects)
    operator = case.analysis.operator(name)
    busy = operator.utilisation.value if operator else None
    unknown = "demand" if name not in case.model.flow else "capacity"
    share = f"is {busy:.0%} busy" if busy is not None else "tells no busy time"
    lag = case.growing_lag
    grows = "" if lag is None else f", while lag of {lag[0]:,.1f} s grows by {lag[1]:,.0f} records/s"
    return f"{name} {share} and its {unknown} is unknown{grows}"


def _needs(case: Comparison, staying: Outlook, where: str | None) -> str:
    if where is None:
        return "demand is above capacity"
    load = case.model.loads.get(where, 0.0)
    p = case.current[where]
    capacity = staying.capacities[where]
    word = "subtask processes" if p == 1 else "subtasks process"
    return f"{load:,.0f} records/s arrive at {where}, {p} {word} {capacity:,.0f}"


def _candidates(case: Comparison, infeasible: list[Infeasible]) -> Iterator[Parallelism]:
    """Vectors worth comparing, each once: with different haste for the backlog, none for it, and the most there may be."""
    drain, demands = case.assumptions.drain_seconds, demands_of(case, 0.0)
    seen: list[Parallelism] = []
    for seconds in (None, 4 * drain, 2 * drain, drain, drain / 2, drain / 4):
        vector = _sized(case, demands, seconds, infeasible if seconds == drain else None)
        if vector not in seen:
            seen.append(vector)
            yield vector
    most = {name: max(case.current[name], limits.max) for name, limits in case.limits.items()}
    if most not in seen and infeasible:
        yield most


def _sized(
    case: Comparison,
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
            vector[name] = min(most, now + max(1, now // 2)) if name in case.suspects else now
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
    case: Comparison, hold: _Option, options: list[_Option], why: tuple[str, str], infeasible: list[Infeasible]
) -> PlanReply:
    """Staying is not good enough: the cheapest option that meets the objective, else the least violation."""
    code, words = why
    if not options:
        sentence = f"{words}, and nothing that may be had would help"
        return _reply(case, "hold", hold, hold, "nothing-helps", sentence, infeasible, [])
    best = _best(case, hold, options, blind=code == "saturated")
    if not case.suspects and not case.is_worth(hold.prediction, best.prediction, [o.vector for o in options]):
        if is_overloaded(hold.prediction):
            much = " much" if case.gains(hold.prediction, best.prediction) else ""
            sentence = f"{words}, and nothing that may be had would help{much}"
            return _reply(case, "hold", hold, hold, "nothing-helps", sentence, infeasible, options)
        sentence = (
            f"{words}; staying clears it as soon as {changes(hold.vector, best.vector)} would, without a restart of "
            f"{case.restart.seconds:.0f} s"
        )
        return _reply(case, "hold", hold, hold, "no-gain", sentence, infeasible, options)
    sentence = f"{changes(hold.vector, best.vector)}: {words}"
    if not case.suspects:
        sentence += f"; then {_outlook(case, best.prediction)}, after a restart of {case.restart.seconds:.0f} s"
    return _reply(case, "scale", best, hold, code, sentence, infeasible, [o for o in options if o is not best])


def _outlook(case: Comparison, prediction: Outlook) -> str:
    words = f"lag peaks at {prediction.max_lag_seconds:.1f} s"
    if case.limit_seconds is None or prediction.violation_seconds == 0:
        return words
    met = prediction.objective_met_at_seconds
    if met is None:
        met = prediction.horizon_seconds + prediction.late_after_seconds
    return words + (f" and is back in bounds in {met:,.0f} s" if math.isfinite(met) else " and stays out of bounds")


def _best(case: Comparison, hold: _Option, options: Sequence[_Option], *, blind: bool) -> _Option:
    """The cheapest that meets the objective, else the cheapest of those that are nearly as good as the best; `blind`, the cheapest."""
    good = [o for o in options if case.is_good(o.prediction)]
    if blind or good:
        return min(good or options, key=lambda o: (o.cost, o.prediction.violation_seconds))
    options = [o for o in options if case.gains(hold.prediction, o.prediction)] or options
    least = min(case.badness(o.prediction) for o in options)
    near = [o for o in options if case.badness(o.prediction) <= nearly(least)]
    return min(near, key=lambda o: (o.cost, case.badness(o.prediction)))


def _shrink(case: Comparison, parameters: RateParameters, hold: _Option, infeasible: list[Infeasible]) -> PlanReply:
    """Staying is good enough; is less good enough, too, with arrivals a margin higher and through the restart?"""
    demands = demands_of(case, parameters.arrival_margin)
    smaller = _sized(case, demands, parameters.drain_seconds, None, may_shrink=True)
    smaller = {name: min(p, case.current[name]) for name, p in smaller.items()}
    held = f"lag stays at {hold.prediction.max_lag_seconds:.1f} s or less"
    if hold.prediction.max_utilisation is not None:
        held += f" with {hold.prediction.bottleneck} at {hold.prediction.max_utilisation:.0%} of its capacity"
    cost = _cost(case, smaller)
    saved = hold.cost[0] - cost[0]
    if cost >= hold.cost or saved < parameters.least_saving * hold.cost[0]:
        return _reply(case, "hold", hold, hold, "objective-held", held, infeasible, [])
    option = _Option(smaller, case.predicted(smaller), cost)
    if saved == 0:
        # Fewer subtasks in the same slots free nothing: not worth a restart.
        sentence = f"{held}; {changes(hold.vector, smaller)} would free no slot"
        return _reply(case, "hold", hold, hold, "no-slot-freed", sentence, infeasible, [option])
    if not case.is_good(option.prediction):
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
    case: Comparison,
    kind: str,
    chosen: _Option,
    hold: _Option,
    code: str,
    sentence: str,
    infeasible: list[Infeasible],
    refused: list[_Option],
) -> PlanReply:
    capacities, blind = hold.prediction.capacities, bool(case.suspects)
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
        prediction=None if blind else chosen.prediction.told(),
        hold_prediction=None if blind or kind == "hold" else hold.prediction.told(),
        infeasible=infeasible[:100],
        alternatives=[
            Alternative(
                parallelism=o.vector,
                cost_slots=o.cost[0],
                violation_seconds=o.prediction.violation_seconds,
                because=_because(o, chosen),
            )
            for o in ([] if blind else refused[:20])
        ],
        confidence=round(min(confidences), 3) if confidences else None,
    )


def _because(option: _Option, chosen: _Option) -> str:
    late = option.prediction.late_seconds
    if late > chosen.prediction.late_seconds:
        return f"{late:,.0f} s above the objective" if math.isfinite(late) else "it never meets the objective"
    if option.cost > chosen.cost:
        return f"costs {option.cost[0]} slots and {option.cost[1]} subtasks, and is no better"
    return "no better than what was chosen"
