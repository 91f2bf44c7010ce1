"""A proposed parallelism of an application under given arrivals, as far as the analysis knows.

An operator of unknown capacity suffices if it has no more to do than it does now with as many subtasks, or no more than
its lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from weir_contracts import Analysis, Deployment, Outcome, Parallelism, Topology, Unknown

from .capacity import CapacityCurve, lower_bounds_of
from .forecast import ArrivalPath
from .model import STAY, Backlog, Model, Restart
from .question import InvalidQuestion
from .reading import Gap, model_of, no_capacity
from .restarts import Restarts, restarts_of
from .trajectory import STEPS, Outlook, busiest, outlooks

FULL = 1.0 + 1e-9
CAUGHT_UP_SECONDS = 1.0
"""Seconds of arrivals: a source at which no more waits takes in everything."""
MAX_STEPS = 1200


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
