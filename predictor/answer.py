"""A what-if: what a parallelism and a load would bring, from the latest analysis. Pure.

It uses the model, curves and trajectory by which the planner decides. Results that depend on an unknown value are
omitted and named, never guessed. An operator of unknown capacity suffices if it has no more to do than it does now with
as many subtasks, or no more than its lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from weir_contracts import (
    Analysis,
    Deployment,
    Infeasible,
    Operator,
    OperatorAnalysis,
    Outcome,
    Parallelism,
    Prediction,
    Topology,
    Unit,
    Unknown,
    WhatIf,
    WhatIfOperator,
)

from . import messages
from .capacity import MIN_CONFIDENCE, CapacityCurve, lower_bounds_of
from .flow import arrivals_at, loads_of, throttled
from .model import MIN_RATE, STAY, Model, Restart
from .question import InvalidQuestion, Load
from .reading import Gap, model_of, restart_of
from .trajectory import STEPS, busiest, predict

FULL = 1.0 + 1e-9
SKEWED = 1.5
"""Busiest subtask's busy share over the mean, from which more subtasks may not help: the analyzer's symptom `skewed`.
"""
CAUGHT_UP_SECONDS = 1.0
"""Seconds of arrivals: a source at which no more waits takes in everything."""
POINTS, MAX_STEPS = 121, 1200
FORBIDDING = ("bounds", "key-groups", "slots", "one-parallelism")
"""Codes of limits. Subtasks of a source beyond its partitions stay idle, but are allowed."""


class NotYet(Exception):
    """The analysis is too incomplete for any answer; the message says what is missing."""


@dataclass(frozen=True)
class _Question:
    analysis: Analysis
    topology: Topology
    deployment: Deployment
    now: Parallelism
    wanted: Parallelism
    model: Model
    """With the arrivals of the load in question."""
    arrivals_now: Mapping[str, float]
    all_gaps: Sequence[Gap]
    restart: Restart
    """Cost of a change of parallelism."""

    @cached_property
    def capacities(self) -> dict[str, float]:
        """Records/s that the operators with a curve sustain."""
        return self.model.capacities(self.wanted)

    @cached_property
    def changed(self) -> list[str]:
        """Operators of another parallelism than now."""
        return [name for name in self.topology.names if self.wanted[name] != self.now.get(name)]

    @cached_property
    def lower_bounds(self) -> Mapping[str, float]:
        """Records/s that operators of unknown capacity carry at least: their demand, too, if they are known to suffice
        for it."""
        found, loads = {}, self.model.loads
        bounds = lower_bounds_of(self.analysis.operators, self.model.curves)
        for operator in self.topology.operators:
            name = operator.name
            if name in bounds:
                rate = bounds[name].rate(_busy_subtasks(operator, self.wanted[name]))
                found[name] = max(rate, loads[name]) if name in loads and self.suffices(name) else rate
        return found

    @cached_property
    def gaps(self) -> list[Gap]:
        """The gaps that matter: none for an operator of unknown capacity that is known to suffice."""
        found = []
        for gap in self.all_gaps:
            if gap.what != "capacity":
                found.append(gap)
            elif not self.suffices(gap.operator):
                demand, bound = self.model.loads.get(gap.operator), self.lower_bounds.get(gap.operator)
                if demand is None or bound is None:
                    found.append(gap)
                elif demand > bound * FULL:
                    found.append(replace(gap, because=messages.beyond_lower_bound(bound, demand)))
        return found

    def suffices(self, name: str) -> bool:
        """Whether an operator of unknown capacity has no more to do than it does now, with as many subtasks."""
        operator, demand = self.analysis.operator(name), self.model.loads.get(name)
        if operator is None or demand is None or self.wanted[name] < operator.parallelism:
            return False
        rate = operator.input_rate.value
        return (rate is not None and demand <= rate) or self._is_carried_now

    @cached_property
    def _is_carried_now(self) -> bool:
        """Whether the load is no more than arrives now, and all of that is taken in: the counted arrivals and the
        counted intake differ a little even then."""
        if self.analysis.status != "running" or any(gap.what == "lag" for gap in self.all_gaps):
            return False
        return all(
            self.model.arrivals[source] <= rate and self.model.backlogs[source].records <= rate * CAUGHT_UP_SECONDS
            for source, rate in self.arrivals_now.items()
        )


def _busy_subtasks(operator: Operator, p: int) -> int:
    """Return how many of `p` subtasks have something to do: those of a source without a partition are idle."""
    return min(p, operator.source_partitions or p)


def what_if(
    analysis: Analysis,
    parallelism: Parallelism,
    load: Load,
    horizon_seconds: float,
    outcomes: Sequence[Outcome] = (),
) -> WhatIf:
    """Return the answer. Operators that are not named keep their parallelism; `outcomes` of past actions, newest first,
    have their durations.

    Raises `InvalidQuestion` for an operator that does not exist, `NotYet` if graph, arrivals or every capacity is
    unknown.
    """
    case = _question_of(analysis, parallelism, load, outcomes)
    capacities, names = case.capacities, case.topology.names
    taken = throttled(case.model.flow, names, capacities, case.model.arrivals)
    reaching = loads_of(case.model.flow, taken)
    operators = [_operator(case, name, reaching.get(name)) for name in names]
    over = [o for o in operators if o.operator in capacities and _is_full(case, o.operator)]
    missing = [gap for gap in case.gaps if gap.what != "lag"]
    bottleneck, breaks_at_rate, unsure = _breaks(case)
    total_now, total = sum(case.arrivals_now.values()), sum(case.model.arrivals.values())
    arrives = total_now > MIN_RATE
    limits = _forbidden(case)
    answer = WhatIf(
        application=analysis.application,
        analysis_id=analysis.id,
        observed_at=analysis.observed_at,
        sentence="-",
        possible=not any(limit.code in FORBIDDING for limit in limits),
        keeps_up=False if over else None if missing else True,
        parallelism_now=case.now,
        parallelism=case.wanted,
        slots_now=case.topology.slots(case.now),
        slots=case.topology.slots(case.wanted),
        arrival_rate_now=round(total_now, 2),
        arrival_rate=round(total, 2),
        load_factor=round(total / total_now, 4) if arrives else None,
        throughput=None if missing else round(sum(taken.values()), 2),
        max_throughput=round(sum(taken.values()), 2),
        bottleneck=bottleneck,
        breaks_at_load=round(breaks_at_rate / total_now, 3) if breaks_at_rate and arrives else None,
        breaks_at_rate=round(breaks_at_rate, 1) if breaks_at_rate else None,
        objective_seconds=analysis.policy.spec.objective.bound_seconds,
        prediction=None if case.gaps else _predicted(case, horizon_seconds),
        operators=operators,
        infeasible=[*limits, *_unreachable(case, over)][:100],
        unknown=[Unknown(operator=gap.operator, what=gap.what, because=gap.because) for gap in case.gaps],
        notes=_notes(case, operators)[:100],
    )
    return answer.model_copy(update={"sentence": messages.answered(answer, unsure)})


def _question_of(analysis: Analysis, parallelism: Parallelism, load: Load, outcomes: Sequence[Outcome]) -> _Question:
    topology, deployment = analysis.topology, analysis.deployment
    if topology is None or deployment is None or not deployment.observed:
        raise NotYet(f"the application's graph and parallelism are unknown: it was {analysis.status}")
    strangers = [name for name in parallelism if name not in topology.names]
    if strangers:
        raise InvalidQuestion("parallelism", messages.no_such_operator(strangers[0], topology.names))
    model, gaps = model_of(analysis, topology)
    silent = next((gap for gap in gaps if gap.what == "arrival rate"), None)
    if silent:
        raise NotYet(f"the arrival rate of {silent.operator} is unknown: {silent.because}")
    if not model.curves and not lower_bounds_of(analysis.operators, model.curves):
        raise NotYet("no operator's capacity is known yet: it takes a window of a warmed-up run")
    now = {name: deployment.observed[name] for name in topology.names if name in deployment.observed}
    lost = [name for name in topology.names if name not in now and name not in parallelism]
    if lost:
        raise NotYet(f"the parallelism of {lost[0]} is unknown")
    return _Question(
        analysis=analysis,
        topology=topology,
        deployment=deployment,
        now=now,
        wanted={name: parallelism.get(name, now.get(name, 1)) for name in topology.names},
        model=replace(model, arrivals=load.on(model.arrivals)),
        arrivals_now=model.arrivals,
        all_gaps=gaps,
        restart=restart_of(analysis, deployment, outcomes),
    )


def _is_full(case: _Question, name: str) -> bool:
    """Whether more is known to arrive at an operator than it sustains."""
    return case.model.loads.get(name, 0.0) > case.capacities[name] * FULL


def _operator(case: _Question, name: str, reaching: float | None) -> WhatIfOperator:
    arriving, capacity, curve = case.model.loads.get(name), case.capacities.get(name), case.model.curves.get(name)
    return WhatIfOperator(
        operator=name,
        parallelism_now=case.now.get(name),
        parallelism=case.wanted[name],
        arrival_rate=None if arriving is None else round(arriving, 2),
        input_rate=None if reaching is None else round(reaching, 2),
        capacity=None if capacity is None else round(capacity, 2),
        utilization=None if reaching is None or capacity is None else round(min(1.0, reaching / capacity), 4),
        min_parallelism=None if curve is None or arriving is None else curve.needed(arriving),
        seen_at=_measured_at(case.analysis.operator(name)),
        confidence=None if curve is None else curve.confidence,
    )


def _measured_at(operator: OperatorAnalysis | None) -> list[int]:
    """Return the parallelisms of the points that `curve_of` uses."""
    if operator is None:
        return []
    measured = {point.parallelism for point in operator.capacities if point.confidence >= MIN_CONFIDENCE}
    now = operator.true_processing_rate
    return sorted(measured | ({operator.parallelism} if now.value and now.confidence >= MIN_CONFIDENCE else set()))


def _breaks(case: _Question) -> tuple[str | None, float | None, str | None]:
    """Return the operator with a curve that is full first as the load grows, and the records/s at all sources at which
    the application breaks. That rate is unknown if an operator with a lower bound may be full before; then a sentence
    says what it carries."""
    first, rate = _first_full(case, case.capacities)
    # That an operator suffices for this load says nothing of the load that is too much for it.
    unmeasured = set(case.topology.names) - case.model.curves.keys() - case.lower_bounds.keys()
    if unmeasured or any(gap.what == "input" for gap in case.gaps):
        return first, None, None
    unsure, bound = _first_full(case, case.lower_bounds)
    if unsure is None or bound is None or (rate is not None and rate <= bound):
        return first, rate, None
    return first, None, messages.sustained_by_lower_bound(unsure, bound, sum(case.arrivals_now.values()))


def _first_full(case: _Question, capacities: Mapping[str, float]) -> tuple[str | None, float | None]:
    """Return the operator whose capacity is reached first as the load grows in its present mix, and the records/s at
    all sources then."""
    arrivals = case.model.arrivals
    total = sum(arrivals.values())
    mix = {s: rate / total for s, rate in arrivals.items()} if total > 0 else dict.fromkeys(arrivals, 1 / len(arrivals))
    full_at = {}
    for name, capacity in capacities.items():
        share = arrivals_at(case.model.flow, name, mix)
        if share:
            full_at[name] = capacity / share
    if not full_at:
        return None, None
    first = min(full_at, key=lambda name: full_at[name])
    return first, full_at[first]


def _predicted(case: _Question, horizon_seconds: float) -> Prediction:
    objective = case.analysis.policy.spec.objective
    # No operator takes in more than its lower bound; but load over a lower bound is no utilization.
    lines = {
        o.name: CapacityCurve(_busy_subtasks(o, case.wanted[o.name]) / case.lower_bounds[o.name])
        for o in case.topology.operators
        if o.name in case.lower_bounds
    }
    found = predict(
        replace(case.model, curves={**case.model.curves, **lines}),
        case.wanted,
        case.restart if case.changed else STAY,
        horizon_seconds=horizon_seconds,
        objective_seconds=objective.bound_seconds,
        of_latency=objective.max_latency is not None,
        points=POINTS,
        # Steps of a long horizon are short enough to show a restart.
        steps=max(STEPS, min(MAX_STEPS, round(horizon_seconds))),
    )
    busy, where = busiest(case.model.loads, case.capacities)
    return found.model_copy(update={"max_utilization": None if busy is None else round(busy, 3), "bottleneck": where})


def _upper_limits(case: _Question, name: str) -> list[tuple[str, int]]:
    """Return code and parallelism of each upper limit of an operator, the tightest first."""
    operator = case.topology.operator(name)
    bound = case.analysis.policy.spec.bounds.of(name)[1]
    limits = (("bounds", bound), ("key-groups", operator.max_parallelism), ("partitions", operator.source_partitions))
    return sorted(((code, limit) for code, limit in limits if limit is not None), key=lambda limit: limit[1])


def _forbidden(case: _Question) -> list[Infeasible]:
    """Return the limits that the wanted vector exceeds, or that leave subtasks idle."""
    found = []
    for name in case.changed:
        wanted, minimum = case.wanted[name], case.analysis.policy.spec.bounds.of(name)[0]
        if wanted < minimum:
            found.append(_limit(name, wanted, minimum, "bounds", f"the policy wants {minimum} of {name} or more"))
        found += [
            _limit(name, wanted, limit, code, messages.above_limit(code, name, wanted, limit))
            for code, limit in _upper_limits(case, name)
            if wanted > limit
        ]
    unit = case.analysis.policy.spec.target.unit
    if unit is not None:
        return [*found, *_uneven(case, unit)]
    slots = case.deployment.slots
    wanted, held = case.topology.slots(case.wanted), case.topology.slots(case.now)
    if slots is not None and wanted > held and wanted > slots.available + held:
        reason = messages.too_few_slots(wanted, slots.available, held)
        found.append(Infeasible(wanted=wanted, limit=slots.available + held, code="slots", because=reason))
    return found


def _uneven(case: _Question, unit: Unit) -> list[Infeasible]:
    """Check that instances, which bring their own slots, run every operator alike."""
    maximum, minimum = max(case.wanted.values()), min(case.wanted.values())
    level = unit.parallelism_of(case.topology, unit.instances_for(case.topology, maximum))
    if case.wanted == case.topology.uniform(level):
        return []
    reason = f"{unit.instance}s of {unit.slots} slots run every operator alike: {level} for all is the next"
    wanted = minimum if minimum != level else maximum
    return [Infeasible(wanted=wanted, limit=level, code="one-parallelism", because=reason)]


def _unreachable(case: _Question, over: list[WhatIfOperator]) -> list[Infeasible]:
    """Return why operators that cannot follow at this load cannot get the parallelism that they need."""
    found = []
    for operator in over:
        name, needs, arriving = operator.operator, operator.min_parallelism, operator.arrival_rate or 0.0
        code, limit = _upper_limits(case, name)[0]
        if needs is None:
            ceiling = case.model.curves[name].ceiling
            reason = messages.above_ceiling(name, ceiling, arriving)
            found.append(_limit(name, arriving, ceiling, "capacity-ceiling", reason))
        elif needs > limit:
            found.append(_limit(name, needs, limit, code, messages.needs_more(code, name, needs, limit)))
    return found


def _limit(name: str, wanted: float, limit: float, code: str, reason: str) -> Infeasible:
    return Infeasible(operator=name, wanted=round(wanted, 2), limit=round(limit, 2), code=code, because=reason)


def _notes(case: _Question, operators: list[WhatIfOperator]) -> list[str]:
    notes = []
    unknown = {gap.operator for gap in case.gaps if gap.what == "capacity"}
    for operator in operators:
        name, p = operator.operator, operator.parallelism
        if name in case.lower_bounds and name not in unknown:
            notes.append(messages.counted_on(name, case.lower_bounds[name], p))
        if operator.capacity is not None and operator.seen_at:
            notes += messages.extrapolated(name, p, operator.seen_at)
        if name not in case.changed:
            continue
        useful = case.topology.smallest_useful(name, p)
        if useful < p:
            notes.append(f"{name} gains nothing from {p} over {useful}")
        found = case.analysis.operator(name)
        skew = found.skew.value if found else None
        if skew is not None and skew >= SKEWED:
            notes.append(messages.skewed(name, skew))
    if case.changed and not case.restart.measured:
        notes.append(f"no rescale was measured yet: {case.restart.seconds:.0f} s are assumed for its restart")
    target = case.analysis.policy.spec.objective.utilization
    busy = [o for o in operators if target is not None and o.utilization is not None and o.utilization > target]
    notes += [f"{o.operator} would be at {o.utilization:.0%}, above the objective of {target:.0%}" for o in busy]
    if case.analysis.status != "running":
        notes.append(f"the application was {case.analysis.status} when it was last observed")
    return notes
