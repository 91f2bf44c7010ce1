"""What would happen: the answer to a parallelism and a load that somebody asks about, from the latest analysis. Pure.

The same model, curves and trajectory that the planner decides by. What rests on something unknown is left out and named; it is never
guessed. An operator of unknown capacity counts as known to suffice where it is asked for no more than it is seen to do, with as many
subtasks, or for no more than it sustains at least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weir_contracts import (
    Analysis,
    Deployment,
    Infeasible,
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

from .at_least import at_least_of
from .capacity import LEAST_CONFIDENCE, CapacityCurve
from .flow import arrivals_at, throttled
from .limits import smallest_useful, upper_limits, working
from .question import InvalidQuestion, Load
from .reading import Gap, model_of, restart_of
from .telling import carries_at_least, sentence_of
from .trajectory import LEAST_RATE, STAY, STEPS, Model, Restart, busiest, predict

FULL = 1.0 + 1e-9
SKEWED = 1.5
"""Busiest subtask's busy share over the mean, from which more subtasks may not help: the analyzer's symptom `skewed`."""
CAUGHT_UP_SECONDS = 1.0
"""Of arrivals: where no source has more waiting, all that arrives is taken in."""
POINTS, MOST_STEPS = 121, 1200
FORBIDDING = ("bounds", "key-groups", "slots", "one-parallelism")
"""Subtasks of a source beyond its partitions stay idle, but may be had."""


class NotYet(Exception):
    """The analysis does not hold enough to answer anything; the message says what is missing."""


@dataclass(frozen=True)
class _Case:
    analysis: Analysis
    topology: Topology
    deployment: Deployment
    now: Parallelism
    asked: Parallelism
    model: Model
    """At the asked load."""
    at_least: Mapping[str, float]
    """Records/s that operators of unknown capacity sustain at least, as asked."""
    arrivals_now: Mapping[str, float]
    gaps: list[Gap]
    """Those that matter to the question."""
    restart: Restart
    """What a change of parallelism costs."""

    @property
    def capacities(self) -> dict[str, float]:
        return self.model.capacities(self.asked)

    def changed(self) -> list[str]:
        return [name for name in self.topology.names if self.asked[name] != self.now.get(name)]


def what_if(
    analysis: Analysis,
    parallelism: Parallelism,
    load: Load,
    horizon_seconds: float,
    outcomes: Sequence[Outcome] = (),
) -> WhatIf:
    """The answer. Operators that are not named stay as they are. `outcomes` are of past actions, newest first: what they took.

    Raises `InvalidQuestion` for an operator that does not exist, `NotYet` where graph, arrivals or every capacity is unknown.
    """
    case = _case_of(analysis, parallelism, load, outcomes)
    capacities = case.capacities
    taken = throttled(case.model.flow, case.topology.names, capacities, case.model.arrivals)
    operators = [_operator(case, name, capacities, taken) for name in case.topology.names]
    over = [o for o in operators if _too_much(case, o.operator, capacities)]
    missing = [gap for gap in case.gaps if gap.what != "lag"]
    keeps_up = False if over else None if missing else True
    bottleneck, breaks_at_rate, at_least = _breaks(case, capacities)
    total_now, total = sum(case.arrivals_now.values()), sum(case.model.arrivals.values())
    arrives = total_now > LEAST_RATE
    limits = _forbidden(case)
    slots, slots_now = case.topology.slots(case.asked), case.topology.slots(case.now)
    answer = WhatIf(
        application=analysis.application,
        analysis_id=analysis.id,
        observed_at=analysis.observed_at,
        sentence="-",
        possible=not any(limit.code in FORBIDDING for limit in limits),
        keeps_up=keeps_up,
        parallelism_now=case.now,
        parallelism=case.asked,
        slots_now=slots_now,
        slots=slots,
        arrival_rate_now=round(total_now, 2),
        arrival_rate=round(total, 2),
        load_factor=round(total / total_now, 4) if arrives else None,
        throughput=None if missing else round(sum(taken.values()), 2),
        throughput_at_most=round(sum(taken.values()), 2),
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
    return answer.model_copy(update={"sentence": sentence_of(answer, at_least)})


def _case_of(analysis: Analysis, parallelism: Parallelism, load: Load, outcomes: Sequence[Outcome]) -> _Case:
    topology, deployment = analysis.topology, analysis.deployment
    if topology is None or deployment is None or not deployment.observed:
        raise NotYet(f"the application's graph and parallelism are unknown: it was {analysis.status}")
    strangers = [name for name in parallelism if name not in topology.names]
    if strangers:
        known = ", ".join(topology.names[:20]) + (", …" if len(topology.names) > 20 else "")
        raise InvalidQuestion("parallelism", f"there is no operator {strangers[0][:100]!r}; there are: {known}"[:1500])
    model, gaps = model_of(analysis, topology)
    silent = [gap for gap in gaps if gap.what == "arrival rate"]
    if silent:
        raise NotYet(f"the arrival rate of {silent[0].operator} is unknown: {silent[0].because}")
    at_least = at_least_of(analysis.operators, model.curves)
    if not model.curves and not at_least:
        raise NotYet("no operator's capacity is known yet: it takes a window of a warmed-up run")
    now = {name: deployment.observed[name] for name in topology.names if name in deployment.observed}
    lost = [name for name in topology.names if name not in now and name not in parallelism]
    if lost:
        raise NotYet(f"the parallelism of {lost[0]} is unknown")
    asked = {name: parallelism.get(name, now.get(name, 1)) for name in topology.names}
    case = _Case(
        analysis=analysis,
        topology=topology,
        deployment=deployment,
        now=now,
        asked=asked,
        model=replace(model, arrivals=load.on(model.arrivals)),
        at_least={
            o.name: at_least[o.name].rate(working(o, asked[o.name])) for o in topology.operators if o.name in at_least
        },
        arrivals_now=model.arrivals,
        gaps=gaps,
        restart=restart_of(analysis, deployment, outcomes),
    )
    case = replace(case, at_least={name: _carried(case, name) for name in case.at_least})
    return replace(case, gaps=[left for gap in gaps if (left := _left(case, gap)) is not None])


def _carried(case: _Case, name: str) -> float:
    """What an operator with a bound is known to carry: what is asked of it, too, where that is known to be no more than it does."""
    demand, least = arrivals_at(case.model.flow, name, case.model.arrivals), case.at_least[name]
    return max(least, demand) if demand is not None and _suffices(case, name) else least


def _left(case: _Case, gap: Gap) -> Gap | None:
    """What is left of a gap for this question: nothing where an operator of unknown capacity is known to suffice."""
    if gap.what != "capacity":
        return gap
    if _suffices(case, gap.operator):
        return None
    demand, least = arrivals_at(case.model.flow, gap.operator, case.model.arrivals), case.at_least.get(gap.operator)
    if demand is None or least is None:
        return gap
    if demand <= least * FULL:
        return None
    because = f"it carries at least {least:,.0f} records/s; {demand:,.0f} are beyond the most that it has been seen able to carry"
    return replace(gap, because=because)


def _suffices(case: _Case, name: str) -> bool:
    """Whether an operator of unknown capacity is asked for no more than it is seen to do, with as many subtasks."""
    operator, demand = case.analysis.operator(name), arrivals_at(case.model.flow, name, case.model.arrivals)
    if operator is None or demand is None or case.asked[name] < operator.parallelism:
        return False
    seen = operator.input_rate.value
    return (seen is not None and demand <= seen) or _carried_now(case)


def _carried_now(case: _Case) -> bool:
    """Whether no source is asked for more than arrives at it now, and all of that is taken in: what was counted of the arrivals and
    what was counted of the intake differ a little even then."""
    if case.analysis.status != "running" or any(gap.what == "lag" for gap in case.gaps):
        return False
    return all(
        case.model.arrivals[source] <= rate and case.model.backlogs[source].records <= rate * CAUGHT_UP_SECONDS
        for source, rate in case.arrivals_now.items()
    )


def _too_much(case: _Case, name: str, capacities: Mapping[str, float]) -> bool:
    """Whether more is known to arrive at an operator than it sustains."""
    arriving, capacity = arrivals_at(case.model.flow, name, case.model.arrivals), capacities.get(name)
    return arriving is not None and capacity is not None and arriving > capacity * FULL


def _operator(case: _Case, name: str, capacities: Mapping[str, float], taken: Mapping[str, float]) -> WhatIfOperator:
    arriving = arrivals_at(case.model.flow, name, case.model.arrivals)
    reaching = arrivals_at(case.model.flow, name, taken)
    capacity, curve = capacities.get(name), case.model.curves.get(name)
    return WhatIfOperator(
        operator=name,
        parallelism_now=case.now.get(name),
        parallelism=case.asked[name],
        arrival_rate=None if arriving is None else round(arriving, 2),
        input_rate=None if reaching is None else round(reaching, 2),
        capacity=None if capacity is None else round(capacity, 2),
        utilisation=None if reaching is None or capacity is None else round(min(1.0, reaching / capacity), 4),
        least_parallelism=None if curve is None or arriving is None else curve.needed(arriving),
        seen_at=_seen_at(case.analysis.operator(name)),
        confidence=None if curve is None else curve.confidence,
    )


def _seen_at(operator: OperatorAnalysis | None) -> list[int]:
    """As `curve_of` counts them."""
    if operator is None:
        return []
    seen = {point.parallelism for point in operator.capacities if point.confidence >= LEAST_CONFIDENCE}
    now = operator.true_processing_rate
    return sorted(seen | ({operator.parallelism} if now.value and now.confidence >= LEAST_CONFIDENCE else set()))


def _breaks(case: _Case, capacities: Mapping[str, float]) -> tuple[str | None, float | None, str | None]:
    """The operator of known capacity that is full first as the load grows, and the records/s at all sources at which the application
    breaks. Where one of which a bound is known may be full before, they are unknown, and words say what it carries at least."""
    first, rate = _first_full(case, capacities)
    # that an operator carries what is asked says nothing of what would be too much for it
    unmeasured = set(case.topology.names) - case.model.curves.keys() - case.at_least.keys()
    if unmeasured or any(gap.what == "input" for gap in case.gaps):
        return first, None, None
    unsure, least = _first_full(case, case.at_least)
    if unsure is None or least is None or (rate is not None and rate <= least):
        return first, rate, None
    return first, None, carries_at_least(unsure, least, sum(case.arrivals_now.values()))


def _first_full(case: _Case, capacities: Mapping[str, float]) -> tuple[str | None, float | None]:
    """Whose capacity is reached first as the load grows in its present mix, and the records/s at all sources at which it is."""
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


def _predicted(case: _Case, horizon_seconds: float) -> Prediction:
    objective = case.analysis.policy.spec.objective
    found = predict(
        _counted_on(case),
        case.asked,
        case.restart if case.changed() else STAY,
        horizon_seconds=horizon_seconds,
        objective_seconds=objective.bound_seconds,
        of_latency=objective.max_latency is not None,
        points=POINTS,
        # Long horizons are gone through in steps that do not blur a restart.
        steps=max(STEPS, min(MOST_STEPS, round(horizon_seconds))),
    )
    # Load over a bound is no utilisation.
    busy, where = busiest(case.model, case.capacities, case.model.arrivals)
    return found.model_copy(update={"max_utilisation": None if busy is None else round(busy, 3), "bottleneck": where})


def _counted_on(case: _Case) -> Model:
    """The model for the asked parallelism in which no operator takes in more than it is known to sustain at least."""
    lines = {
        o.name: CapacityCurve(working(o, case.asked[o.name]) / case.at_least[o.name])
        for o in case.topology.operators
        if o.name in case.at_least
    }
    return replace(case.model, curves={**case.model.curves, **lines})


def _forbidden(case: _Case) -> list[Infeasible]:
    """What of the asked vector cannot be had, or would be idle."""
    found = []
    bounds = case.analysis.policy.spec.bounds
    for name in case.changed():
        asked, least = case.asked[name], bounds.of(name)[0]
        if asked < least:
            found.append(_limit(name, asked, least, "bounds", f"the policy wants {least} of {name} or more"))
        for code, most, _ in upper_limits(case.topology, bounds, name):
            if asked <= most:
                continue
            because = {
                "bounds": f"the policy allows {name} at most {most}",
                "key-groups": f"{name} has {most} key groups and cannot be split further",
                "partitions": f"{name} reads {most} partitions, so {asked - most} of {asked} subtasks would be idle",
            }[code]
            found.append(_limit(name, asked, most, code, because))
    unit = case.analysis.policy.spec.target.unit
    if unit is not None:
        return [*found, *_uneven(case, unit)]
    slots = case.deployment.slots
    wanted, held = case.topology.slots(case.asked), case.topology.slots(case.now)
    if slots is not None and wanted > held and wanted > slots.available + held:
        had = slots.available + held
        because = f"{wanted} slots are needed and {had} can be had ({slots.available} free, {held} held)"
        found.append(Infeasible(wanted=wanted, limit=had, code="slots", because=because))
    return found


def _uneven(case: _Case, unit: Unit) -> list[Infeasible]:
    """Containers run every operator alike, in whole numbers; they bring their own slots."""
    most, least = max(case.asked.values()), min(case.asked.values())
    level = unit.parallelism_of(case.topology, unit.instances_for(case.topology, most))
    if case.asked == case.topology.uniform(level):
        return []
    because = f"{unit.instance}s of {unit.slots} slots run every operator alike: {level} for all is the next"
    return [Infeasible(wanted=least if least != level else most, limit=level, code="one-parallelism", because=because)]


def _unreachable(case: _Case, over: list[WhatIfOperator]) -> list[Infeasible]:
    """Why an operator that cannot follow at this load cannot simply be given what it would need."""
    found = []
    for operator in over:
        name, needs, arriving = operator.operator, operator.least_parallelism, operator.arrival_rate or 0.0
        curve = case.model.curves[name]
        code, most, words = upper_limits(case.topology, case.analysis.policy.spec.bounds, name)[0]
        if needs is None:
            because = f"no parallelism of {name} sustains more than {curve.ceiling:,.0f} records/s; {arriving:,.0f} would arrive"
            found.append(_limit(name, arriving, curve.ceiling, "capacity-ceiling", because))
        elif needs > most:
            found.append(_limit(name, needs, most, code, f"{name} would need {needs} and is limited to {most} {words}"))
    return found


def _limit(name: str, wanted: float, limit: float, code: str, because: str) -> Infeasible:
    return Infeasible(operator=name, wanted=round(wanted, 2), limit=round(limit, 2), code=code, because=because)


def _notes(case: _Case, operators: list[WhatIfOperator]) -> list[str]:
    notes = []
    unknown = {gap.operator for gap in case.gaps if gap.what == "capacity"}
    for operator in operators:
        name, p = operator.operator, operator.parallelism
        if name in case.at_least and name not in unknown:
            least = case.at_least[name]
            notes.append(
                f"{name} carries at least {least:,.0f} records/s with {p}: more was never seen, so no more is counted on"
            )
        if operator.capacity is not None and operator.seen_at and p not in operator.seen_at:
            if len(operator.seen_at) == 1:
                seen = operator.seen_at[0]
                notes.append(f"{name} was seen at {seen} only: its capacity at {p} is taken to be in proportion")
            elif not operator.seen_at[0] <= p <= operator.seen_at[-1]:
                seen_at = ", ".join(map(str, operator.seen_at))
                notes.append(f"{name} was seen at {seen_at}: its capacity at {p} lies on the curve beyond them")
        useful = smallest_useful(case.topology, name, p)
        if name in case.changed() and useful < p:
            notes.append(f"{name} gains nothing from {p} over {useful}")
        found = case.analysis.operator(name)
        skew = found.skew.value if found else None
        if name in case.changed() and skew is not None and skew >= SKEWED:
            notes.append(
                f"the busiest subtask of {name} does {skew:.1f} times the mean: if a key makes it so, more subtasks help less"
            )
    if case.changed() and not case.restart.seen:
        notes.append(f"no rescale was seen yet: {case.restart.seconds:.0f} s are taken for its restart")
    target = case.analysis.policy.spec.objective.utilization
    busy = [o for o in operators if target is not None and o.utilisation is not None and o.utilisation > target]
    notes += [f"{o.operator} would be at {o.utilisation:.0%}, above the objective of {target:.0%}" for o in busy]
    if case.analysis.status != "running":
        notes.append(f"the application was {case.analysis.status} when it was last seen")
    return notes
