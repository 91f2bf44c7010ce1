"""The built-in planner `rate`: size by rates, choose on the predictor.

Candidates come from DS2's traversal (Kalavri et al., OSDI 2018): an operator's target input rate is the sources' arrivals through the
edges' selectivities, and its parallelism the smallest whose capacity covers

    target / target_utilisation + (backlog + target · restart) / drain_seconds

(the Flink autoscaler's terms for catching up and for the restart itself). Unlike both, capacity is not assumed linear but taken from
what was seen at other parallelisms, and the answer is not the formula's: holding and each candidate are run on the predictor, and the
cheapest that meets the objective wins, else the one with the least violation. Holding wins wherever it is as good, because it
needs no restart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field
from weir_contracts import (
    Alternative,
    Analysis,
    Infeasible,
    Objective,
    Parallelism,
    PlanReply,
    PlanRequest,
    Prediction,
    Topology,
)

from predictor import STAY, CapacityCurve, Model, Outlook, Restart, arrivals_at, model_of, outlook, restart_of
from predictor.reading import USUAL_RESTART_SECONDS
from predictor.words import changes

SATURATED = 0.95
"""Busy share from which an operator of unknown demand counts as too small."""


class RateParameters(BaseModel):
    """The planner's own settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target_utilisation: float = Field(
        default=0.8, gt=0.1, le=1, description="load over capacity that a new parallelism is sized for"
    )
    highest_utilisation: float = Field(
        default=0.92, gt=0.1, le=1, description="load over capacity from which staying is not good enough"
    )
    drain_seconds: float = Field(
        default=30.0,
        gt=0,
        le=86_400,
        description="time in which a backlog is to be worked off, in s; not the objective",
    )
    restart_seconds: float = Field(
        default=USUAL_RESTART_SECONDS,
        ge=0,
        le=3_600,
        description="taken for a rescale's downtime until one was seen, in s",
    )
    objective_share: float = Field(
        default=0.8, gt=0, le=1, description="share of the objective that predicted lag may reach: room for error"
    )
    arrival_margin: float = Field(
        default=0.1, ge=0, le=2, description="arrivals are taken to be this much higher before anything is shrunk"
    )
    least_saving: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the slots that must be saved for a scale-down to be worth a restart",
    )
    horizon_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="how far to look, in s; by default restart + 2 · drain + objective"
    )


@dataclass(frozen=True)
class _Case:
    """The request, read once."""

    topology: Topology
    current: Parallelism
    model: Model
    lag_seconds: float | None
    backlog_records: float
    restart: Restart
    objective: Objective
    bounds: Mapping[str, tuple[int, int]]
    saturated: frozenset[str]
    at_least: Mapping[str, float]
    """What operators of unknown capacity sustain at least, in records/s."""
    parameters: RateParameters

    @cached_property
    def most(self) -> Mapping[str, int]:
        """What each operator may have at most: bounds, key groups, partitions."""
        found = {}
        for operator in self.topology.operators:
            limits = (self.bounds[operator.name][1], operator.max_parallelism, operator.source_partitions)
            found[operator.name] = max(1, min(limit for limit in limits if limit is not None))
        return found

    @cached_property
    def waiting(self) -> Mapping[str, float]:
        """Records that the backlogs bring to each operator."""
        backlogs = {s: b.records for s, b in self.model.backlogs.items()}
        return {name: arrivals_at(self.model.flow, name, backlogs) or 0.0 for name in self.topology.names}

    def loads(self, margin: float) -> Mapping[str, float]:
        """Records/s that arrive at each operator of which it can be told, `margin` higher than now."""
        if margin == 0:
            return self.model.loads
        arrivals = {s: rate * (1 + margin) for s, rate in self.model.arrivals.items()}
        return replace(self.model, arrivals=arrivals).loads

    @property
    def limit_seconds(self) -> float | None:
        bound = self.objective.bound_seconds
        return None if bound is None else bound * self.parameters.objective_share

    @property
    def horizon_seconds(self) -> float:
        if self.parameters.horizon_seconds is not None:
            return self.parameters.horizon_seconds
        return self.restart.seconds + 2 * self.parameters.drain_seconds + (self.objective.bound_seconds or 30.0)

    @property
    def target_utilisation(self) -> float:
        return self.objective.utilization or self.parameters.target_utilisation

    @property
    def highest_utilisation(self) -> float:
        if self.objective.utilization is not None:
            return min(1.0, self.objective.utilization * 1.1)
        return max(self.parameters.highest_utilisation, self.parameters.target_utilisation)

    def cost(self, vector: Mapping[str, int]) -> tuple[int, int]:
        """Slots first; of equal slots the fewer subtasks."""
        return self.topology.slots(vector), sum(vector.values())

    def predicted(self, vector: Mapping[str, int]) -> Outlook:
        return outlook(
            self.model,
            vector,
            STAY if vector == self.current else self.restart,
            horizon_seconds=self.horizon_seconds,
            objective_seconds=self.limit_seconds,
            of_latency=self.objective.max_latency is not None,
        )


@dataclass(frozen=True)
class _Option:
    vector: Parallelism
    prediction: Outlook
    cost: tuple[int, int]


def plan_by_rate(request: PlanRequest, parameters: RateParameters) -> PlanReply:
    """The answer to one request; see the module."""
    case = _case_of(request, parameters)
    if isinstance(case, PlanReply):
        return case
    hold = _Option(dict(case.current), case.predicted(case.current), case.cost(case.current))
    infeasible: list[Infeasible] = []
    why = _why_not_stay(case, hold.prediction)
    if why is None:
        _sized(case, parameters.drain_seconds, 0.0, infeasible)  # for what it notes
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
    case = _case_of(request, parameters)
    if isinstance(case, PlanReply):
        return None
    return case.predicted(case.current).told(), case.predicted(parallelism).told()


def _case_of(request: PlanRequest, parameters: RateParameters) -> _Case | PlanReply:
    analysis, topology, deployment = request.analysis, request.topology, request.deployment
    if topology is None or deployment is None:
        return PlanReply(
            kind="hold", code="metric-missing", sentence="the application's graph is unknown, so it stays as it is"
        )
    model, gaps = model_of(analysis, topology)
    needs_lag = request.policy.spec.objective.utilization is None
    for gap in gaps:
        if gap.what == "arrival rate" or (gap.what == "lag" and needs_lag):
            return PlanReply(
                kind="hold",
                code="metric-missing",
                sentence=f"the {gap.what} of {gap.operator} is unknown ({gap.because}), so nothing changes",
            )
    at_least = {name: rate for name, rate in _at_rest(analysis).items() if name not in model.curves}
    if not model.curves and not at_least:
        return PlanReply(
            kind="hold",
            code="warming-up",
            sentence="no operator's capacity is known yet: it takes a window of a warmed-up run",
        )
    return _Case(
        topology=topology,
        current=dict(deployment.observed),
        model=model,
        lag_seconds=analysis.lag_seconds.value,
        backlog_records=sum(backlog.records for backlog in model.backlogs.values()),
        restart=restart_of(analysis, deployment, request.outcomes, parameters.restart_seconds),
        objective=request.policy.spec.objective,
        bounds={name: request.policy.spec.bounds.of(name) for name in topology.names},
        saturated=_full(analysis),
        at_least=at_least,
        parameters=parameters,
    )


def _at_rest(analysis: Analysis) -> dict[str, float]:
    """Lower bounds of what hardly busy operators sustain."""
    bounds = {o.operator: o.least_processing_rate for o in analysis.operators}
    return {name: bound.value for name, bound in bounds.items() if bound is not None and bound.value}


def _full(analysis: Analysis) -> frozenset[str]:
    """Operators that are busy all the time. Not while warming up: starting and catching up fill every one of them."""
    if analysis.has("warming-up") or analysis.has("catching-up"):
        return frozenset()
    shares = {o.operator: o.utilisation.value for o in analysis.operators}
    return frozenset(name for name, share in shares.items() if share is not None and share >= SATURATED)


def _why_not_stay(case: _Case, staying: Outlook) -> tuple[str, str] | None:
    """Code and words of why staying is not good enough; None if it is."""
    limit = case.limit_seconds
    used, where = staying.max_utilisation, staying.bottleneck
    if used is not None and used > case.highest_utilisation:
        needs = _needs(case, where)
        return ("overloaded" if used > 1 else "utilisation-high"), needs
    if limit is not None and staying.violation_seconds > 0:
        if case.objective.max_latency is not None:
            return "objective-at-risk", f"records would take more than {limit:.1f} s until they are done"
        return "objective-at-risk", f"lag would reach {staying.max_lag_seconds:.1f} s"
    unknown_but_full = [n for n in case.topology.names if n in case.saturated and _is_blind(case, n)]
    if any(case.current[n] < case.most[n] for n in unknown_but_full):
        return "saturated", f"{unknown_but_full[0]} is busy all the time and its demand is unknown"
    return None


def _is_blind(case: _Case, name: str) -> bool:
    """Whether an operator's demand or its capacity cannot be told."""
    return name not in case.model.flow or name not in case.model.curves


def _needs(case: _Case, where: str | None) -> str:
    if where is None:
        return "demand is above capacity"
    load = case.model.loads.get(where, 0.0)
    p = case.current[where]
    capacity = case.model.capacities(case.current)[where]
    word = "subtask processes" if p == 1 else "subtasks process"
    return f"{load:,.0f} records/s arrive at {where}, {p} {word} {capacity:,.0f}"


def _candidates(case: _Case, infeasible: list[Infeasible]) -> Iterator[Parallelism]:
    """Vectors worth comparing, each once: with different haste for the backlog, none for it, and the most there may be."""
    drain = case.parameters.drain_seconds
    seen: list[Parallelism] = []
    for seconds in (None, 4 * drain, 2 * drain, drain, drain / 2, drain / 4):
        notes: list[Infeasible] = []
        vector = _sized(case, seconds, 0.0, notes)
        if seconds == drain:
            infeasible += notes
        if vector not in seen:
            seen.append(vector)
            yield vector
    most = {name: max(case.current[name], most) for name, most in case.most.items()}
    if most not in seen and infeasible:
        yield most


def _sized(
    case: _Case, drain_seconds: float | None, margin: float, notes: list[Infeasible], *, may_shrink: bool = False
) -> Parallelism:
    """The traversal: the smallest useful parallelism of each operator for arrivals, backlog and restart."""
    vector: Parallelism = {}
    loads = case.loads(margin)
    for name, most in case.most.items():
        now = case.current[name]
        curve, load = case.model.curves.get(name), loads.get(name)
        if curve is None and may_shrink and name in case.at_least:
            # A bound is enough to take subtasks away by, and no reason to add any.
            curve = CapacityCurve(now / case.at_least[name])
        if curve is None or load is None:
            # Unknown is not small: it stays, or grows by a useful step where it is visibly full.
            vector[name] = min(most, now + max(1, now // 2)) if name in case.saturated else now
            continue
        demand = load / case.target_utilisation
        if drain_seconds is not None:
            demand += (case.waiting[name] + load * case.restart.seconds) / drain_seconds
        wanted = _at_least(case, name, curve, demand, notes)
        vector[name] = wanted if may_shrink else max(wanted, min(now, most))
    return vector


def _at_least(case: _Case, name: str, curve: CapacityCurve, demand: float, notes: list[Infeasible]) -> int:
    most, least = case.most[name], case.bounds[name][0]
    if curve.best is not None:
        most = min(most, max(curve.best, case.current[name]))  # more would do less
    wanted = curve.needed(demand)
    if wanted is None:
        notes.append(
            Infeasible(
                operator=name,
                wanted=round(demand, 1),
                limit=round(curve.ceiling, 1),
                code="capacity-ceiling",
                because=f"{demand:,.0f} records/s are wanted and no parallelism of {name} sustains more than {curve.ceiling:,.0f}",
            )
        )
        return most
    if wanted > most:
        notes.append(
            Infeasible(
                operator=name,
                wanted=float(wanted),
                limit=float(most),
                code="bounds",
                because=f"{name} would need {wanted} and may have {most}",
            )
        )
    return max(least, min(wanted, most))


def _grow(
    case: _Case, hold: _Option, options: list[_Option], why: tuple[str, str], infeasible: list[Infeasible]
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


def _is_good(case: _Case, prediction: Outlook) -> bool:
    """Meets the objective all the time, and can keep up afterwards."""
    steady = prediction.max_utilisation is None or prediction.max_utilisation <= case.highest_utilisation
    return prediction.violation_seconds == 0 and steady


def _nearly(badness: float) -> float:
    """What is as good as that."""
    return badness * 1.15 + 1.0


def _badness(case: _Case, prediction: Outlook) -> float:
    """Seconds of violation; where no time bound was given, the load beyond the target as a share of the horizon."""
    over = max(0.0, (prediction.max_utilisation or 0.0) - case.highest_utilisation)
    late = prediction.violation_seconds if case.limit_seconds is not None else 0.0
    return late + over * prediction.horizon_seconds


def _steadier(staying: Outlook, going: Outlook) -> bool:
    """Whether only the change lets the application keep up."""
    return (staying.max_utilisation or 0.0) > 1.0 >= (going.max_utilisation or 0.0)


def _shrink(case: _Case, hold: _Option, infeasible: list[Infeasible]) -> PlanReply:
    """Staying is good enough; is less good enough, too, with arrivals a margin higher and through the restart?"""
    smaller = _sized(case, case.parameters.drain_seconds, case.parameters.arrival_margin, [], may_shrink=True)
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
    case: _Case,
    kind: str,
    chosen: _Option,
    hold: _Option,
    code: str,
    sentence: str,
    infeasible: list[Infeasible],
    refused: list[_Option],
) -> PlanReply:
    capacities = case.model.capacities(case.current)
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
