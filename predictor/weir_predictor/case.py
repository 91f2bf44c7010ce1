"""A proposed parallelism of an application under given arrivals, by its analysis: the state of each operator, the caveats
of the prediction, and the limits of policy, graph and cluster.

An operator of unknown capacity suffices if it has no more to do than it does now with as many subtasks, or no more than
its lower bound.

A `Case` answers a user's question: it has one vector, and arrivals that may differ from the present ones and change over
time, and it reports what is unknown. A `Scenario` serves a decision: it compares vectors, assumes that unknown operators
keep up, and is not used if readings contradict it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from weir_contracts import (
    Analysis,
    Deployment,
    Infeasible,
    OperatorAnalysis,
    Outcome,
    Parallelism,
    Topology,
    Unit,
    Unknown,
    WhatIfOperator,
    counted,
    short_name,
)

from .capacity import MIN_CONFIDENCE, CapacityCurve, lower_bounds_of
from .flow import loads_of
from .forecast import ArrivalPath
from .model import STAY, Backlog, Model, Restart
from .reading import Gap, model_of, no_capacity
from .restarts import Restarts, restarts_of
from .trajectory import STEPS, Outlook, busiest, outlooks

FULL = 1.0 + 1e-9
CAUGHT_UP_SECONDS = 1.0
"""Seconds of arrivals: a source at which no more waits takes in everything."""
MAX_STEPS = 1200
SKEWED = 1.5
"""Busiest subtask's busy share over the mean, beyond its larger part of partitions or key groups, from which more subtasks
may not help: the analyzer's symptom `skewed`.
"""
FORBIDDING = ("bounds", "key-groups", "slots", "one-parallelism")
"""Codes of limits. Subtasks of a source beyond its partitions stay idle, but are allowed."""
_LIMITED_BY = {"bounds": "by the policy's bounds", "key-groups": "by its key groups", "partitions": "by its partitions"}


class InvalidQuestion(ValueError):
    """A what-if that cannot be answered; `field` says which part of it is wrong."""

    def __init__(self, field: str, sentence: str) -> None:
        self.field = field
        super().__init__(sentence)


class NotYet(Exception):
    """The analysis is too incomplete for any answer; the message says what is missing."""


@dataclass(frozen=True)
class Case:
    """The parallelism that is asked for, and all that is known of the application."""

    analysis: Analysis
    topology: Topology
    deployment: Deployment
    now: Parallelism
    wanted: Parallelism
    model: Model
    """With the arrivals of the load in question; of sources that change, the highest rate."""
    arrivals_now: Mapping[str, float]
    all_gaps: Sequence[Gap]
    restarts: Restarts
    """Cost of a change of parallelism."""
    paths: Mapping[str, ArrivalPath] = field(default_factory=dict)
    """Arrivals over time of the sources that change."""

    @cached_property
    def capacities(self) -> dict[str, float]:
        """Records/s that the operators with a curve sustain."""
        return self.model.capacities(self.wanted)

    @cached_property
    def changed(self) -> list[str]:
        """Operators of another parallelism than now."""
        return [name for name in self.topology.names if self.wanted[name] != self.now.get(name)]

    @property
    def restart(self) -> Restart:
        """Cost of changing to the wanted parallelism."""
        return self.restarts.of(self.now, self.wanted) if self.changed else STAY

    @cached_property
    def lower_bounds(self) -> Mapping[str, float]:
        """Records/s that operators of unknown capacity carry at least: their demand, too, if they are known to suffice
        for it."""
        found, loads = {}, self.model.loads
        bounds = lower_bounds_of(self.analysis.operators, self.model.curves, self.topology)
        for operator in self.topology.operators:
            name = operator.name
            if name in bounds:
                rate = bounds[name].rate(self.wanted[name])
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
                    because = f"it carries at least {bound:,.0f} records/s, and was never measured at {demand:,.0f}"
                    found.append(replace(gap, because=because))
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

    def under(self, arrivals: Mapping[str, float], paths: Mapping[str, ArrivalPath] | None = None) -> "Case":
        """Return the case under other arrivals: with `paths` these are the highest rates of sources that change."""
        return replace(self, model=replace(self.model, arrivals=arrivals), paths=paths or {})

    def along(self, paths: Mapping[str, ArrivalPath], horizon_seconds: float) -> "Case":
        """Return the case under arrivals that change over time; sources without a path keep their rate."""
        max_rates = {source: path.max_rate(horizon_seconds) for source, path in paths.items()}
        return self.under({**self.model.arrivals, **max_rates}, paths)

    @property
    def caught_up(self) -> "Case":
        """The case without a backlog, known or unknown."""
        nothing = {source: Backlog(0.0) for source in self.model.arrivals}
        gaps = [gap for gap in self.all_gaps if gap.what != "lag"]
        return replace(self, model=replace(self.model, backlogs=nothing), all_gaps=gaps)

    def is_full(self, name: str) -> bool:
        """Return whether more is known to arrive at an operator than it sustains."""
        return self.model.loads.get(name, 0.0) > self.capacities[name] * FULL

    @property
    def unknown(self) -> list[Unknown]:
        """The gaps as a message."""
        return [Unknown(operator=gap.operator, what=gap.what, because=gap.because) for gap in self.gaps]

    def outlook(self, horizon_seconds: float) -> Outlook:
        """Return the figures of the wanted parallelism; only without gaps."""
        objective = self.analysis.policy.spec.objective
        # No operator takes in more than its lower bound; but load over a lower bound is no utilization.
        topology, wanted = self.topology, self.wanted
        lines = {
            name: CapacityCurve(topology.even_subtasks(name, wanted[name]) / bound, shares=topology.work_shares(name))
            for name, bound in self.lower_bounds.items()
        }
        model = self.model.under(self.paths)
        (found,) = outlooks(
            replace(model, curves={**model.curves, **lines}),
            [self.wanted],
            [self.restart],
            horizon_seconds=horizon_seconds,
            objective_seconds=objective.bound_seconds,
            of_latency=objective.max_latency is not None,
            present=self.now,
            # Steps of a long horizon are short enough to show a restart.
            steps=max(STEPS, min(MAX_STEPS, round(horizon_seconds))),
        )
        busy, where = busiest(model.max_loads(horizon_seconds), self.capacities)
        return found._replace(max_utilization=None if busy is None else round(busy, 3), bottleneck=where)


def case_of(analysis: Analysis, parallelism: Parallelism, outcomes: Sequence[Outcome]) -> Case:
    """Return the case under the present arrivals. Operators that are not named keep their parallelism; `outcomes` of past
    actions, newest first, have their durations.

    Raises `InvalidQuestion` for an operator that does not exist, `NotYet` if graph, arrivals or every capacity is
    unknown.
    """
    topology, deployment = analysis.topology, analysis.deployment
    if topology is None or deployment is None or not deployment.observed:
        raise NotYet(f"the application's graph and parallelism are unknown: it was {analysis.status.replace('_', ' ')}")
    strangers = [name for name in parallelism if name not in topology.names]
    if strangers:
        existing = ", ".join(topology.names[:20]) + (", …" if len(topology.names) > 20 else "")
        sentence = f"there is no operator {strangers[0][:100]!r}; there are: {existing}"
        raise InvalidQuestion("parallelism", sentence[:1500])
    model, gaps = model_of(analysis, topology)
    silent = next((gap for gap in gaps if gap.what == "arrival rate"), None)
    if silent:
        raise NotYet(f"the arrival rate of {silent.operator} is unknown: {silent.because}")
    if not model.curves and not lower_bounds_of(analysis.operators, model.curves, topology):
        raise NotYet(no_capacity(analysis))
    now = {name: deployment.observed[name] for name in topology.names if name in deployment.observed}
    lost = [name for name in topology.names if name not in now and name not in parallelism]
    if lost:
        raise NotYet(f"the parallelism of {lost[0]} is unknown")
    return Case(
        analysis=analysis,
        topology=topology,
        deployment=deployment,
        now=now,
        wanted={name: parallelism.get(name, now.get(name, 1)) for name in topology.names},
        model=model,
        arrivals_now=model.arrivals,
        all_gaps=gaps,
        restarts=restarts_of(analysis, deployment, outcomes),
    )


def operators_of(case: Case, taken: Mapping[str, float]) -> list[WhatIfOperator]:
    """Return the operators, if the sources take in so many records/s."""
    reaching = loads_of(case.model.flow, taken)
    return [_operator(case, name, reaching.get(name)) for name in case.topology.names]


def _operator(case: Case, name: str, reaching: float | None) -> WhatIfOperator:
    arriving, capacity, curve = case.model.loads.get(name), case.capacities.get(name), case.model.curves.get(name)
    return WhatIfOperator(
        operator=name,
        parallelism_now=case.now.get(name),
        parallelism=case.wanted[name],
        arrival_rate=None if arriving is None else round(arriving, 2),
        input_rate=None if reaching is None else round(reaching, 2),
        capacity=None if capacity is None else round(capacity, 2),
        utilization=None if reaching is None or capacity is None else round(min(1.0, reaching / capacity), 4),
        min_parallelism=None
        if curve is None or arriving is None
        else curve.needed(arriving) or curve.even.needed(arriving),
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


def notes_of(case: Case, operators: list[WhatIfOperator]) -> list[str]:
    """Return the caveats: extrapolation, skew, an assumed restart time."""
    notes = []
    unknown = {gap.operator for gap in case.gaps if gap.what == "capacity"}
    for operator in operators:
        name, p = operator.operator, operator.parallelism
        if name in case.lower_bounds and name not in unknown:
            bound = case.lower_bounds[name]
            notes.append(f"{name} carries at least {bound:,.0f} records/s with {p}: the prediction assumes no more")
        if operator.capacity is not None and (seen_at := operator.seen_at):
            measured = f"{name} was measured at {', '.join(map(str, seen_at))}"
            if len(seen_at) == 1 and p != seen_at[0]:
                notes.append(f"{measured} only: its capacity at {p} assumes the usual contention")
            elif not seen_at[0] <= p <= seen_at[-1]:
                notes.append(f"{measured}: its capacity at {p} is extrapolated")
        if name not in case.changed:
            continue
        useful = case.topology.smallest_useful(name, p)
        if useful < p:
            notes.append(f"{name} gains nothing from {p} over {useful}")
        found = case.analysis.operator(name)
        skew = found.skew.value if found else None
        if found is None or skew is None:
            continue
        if skew * case.topology.even_subtasks(name, found.parallelism) >= SKEWED * found.parallelism:
            notes.append(
                f"the busiest subtask of {name} does {skew:.1f} times the mean: if a key makes it so, more subtasks help less"
            )
    if case.changed and not case.restart.measured:
        notes.append(f"no rescale was measured yet: {case.restart.seconds:.0f} s are assumed for its restart")
    if case.restart.restore_seconds > 0:
        restart = case.restart
        notes.append(
            f"{restart.away_share:.0%} of it restores state for {restart.restore_seconds:.0f} s: it has no standby tasks"
        )
    target = case.analysis.policy.spec.objective.utilization
    busy = [o for o in operators if target is not None and o.utilization is not None and o.utilization > target]
    notes += [f"{o.operator} would be at {o.utilization:.0%}, above the objective of {target:.0%}" for o in busy]
    if case.analysis.status != "running":
        notes.append(f"the application was {case.analysis.status} when it was last observed")
    return notes


def _upper_limits(case: Case, name: str) -> list[tuple[str, int]]:
    """Return code and parallelism of each upper limit of an operator, the tightest first."""
    operator = case.topology.operator(name)
    bound = case.analysis.policy.spec.bounds.of(name)[1]
    limits = (("bounds", bound), ("key-groups", operator.max_parallelism), ("partitions", operator.source_partitions))
    return sorted(((code, limit) for code, limit in limits if limit is not None), key=lambda limit: limit[1])


def forbidden(case: Case) -> list[Infeasible]:
    """Return the limits that the wanted vector exceeds, or that leave subtasks idle."""
    found = []
    for name in case.changed:
        wanted, minimum = case.wanted[name], case.analysis.policy.spec.bounds.of(name)[0]
        if wanted < minimum:
            found.append(_limit(name, wanted, minimum, "bounds", f"the policy wants {minimum} of {name} or more"))
        found += [
            _limit(name, wanted, limit, code, _above_limit(code, name, wanted, limit))
            for code, limit in _upper_limits(case, name)
            if wanted > limit
        ]
    unit = case.analysis.policy.spec.target.unit
    if unit is not None:
        found += _uneven(case, unit)
        if unit.brings_slots:
            return found
    free = case.deployment.free_slots
    wanted, held = case.topology.slots(case.wanted), case.topology.slots(case.now)
    if free is not None and wanted > held and wanted > free + held:
        needed = f"{counted(wanted, 'slot')} {'is' if wanted == 1 else 'are'} needed"
        reason = f"{needed} and {free + held} available ({free} free, {held} held)"
        found.append(Infeasible(wanted=wanted, limit=free + held, code="slots", because=reason))
    return found


def _above_limit(code: str, name: str, wanted: int, limit: int) -> str:
    """Say which upper limit a parallelism exceeds."""
    if code == "bounds":
        return f"the policy allows {short_name(name)} at most {limit}"
    if code == "key-groups":
        return f"{short_name(name)} has {limit} key groups and cannot be split further"
    return f"{short_name(name)} reads {counted(limit, 'partition')}, so {wanted - limit} of {wanted} subtasks would be idle"


def _uneven(case: Case, unit: Unit) -> list[Infeasible]:
    """Check that every operator gets the same parallelism, by no more instances than the policy allows."""
    maximum, minimum = max(case.wanted.values()), min(case.wanted.values())
    count = unit.instances_for(case.topology, maximum)
    level = unit.parallelism_of(case.topology, count)
    if case.wanted == case.topology.uniform(level):
        if unit.max is None or count <= unit.max:
            return []
        limit = unit.parallelism_of(case.topology, unit.max)
        reason = f"{counted(count, unit.instance)} are needed, the policy allows {unit.max}"
        return [Infeasible(wanted=level, limit=limit, code="slots", because=reason)]
    alike = f"{unit.instance}s of {unit.slots} slots run" if unit.brings_slots else "a run of the jar has"
    reason = f"{alike} every operator alike: {level} for all is the next"
    wanted = minimum if minimum != level else maximum
    return [Infeasible(wanted=wanted, limit=level, code="one-parallelism", because=reason)]


def unreachable(case: Case, over: list[WhatIfOperator]) -> list[Infeasible]:
    """Return why operators that cannot follow at this load cannot get the parallelism that they need."""
    found = []
    for operator in over:
        name, needs, arriving = operator.operator, operator.min_parallelism, operator.arrival_rate or 0.0
        code, limit = _upper_limits(case, name)[0]
        if needs is None:
            ceiling = case.model.curves[name].ceiling
            reason = f"no parallelism of {short_name(name)} sustains more than {ceiling:,.0f} records/s; {arriving:,.0f} would arrive"
            found.append(_limit(name, arriving, ceiling, "capacity-ceiling", reason))
        elif needs > limit:
            reason = f"{short_name(name)} would need {needs} and is limited to {limit} {_LIMITED_BY[code]}"
            found.append(_limit(name, needs, limit, code, reason))
    return found


def _limit(name: str, wanted: float, limit: float, code: str, reason: str) -> Infeasible:
    return Infeasible(operator=name, wanted=round(wanted, 2), limit=round(limit, 2), code=code, because=reason)
