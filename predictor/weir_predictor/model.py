"""An application as the predictor knows it: graph, capacities, arrivals, backlogs, and the cost of a rescale."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from weir_contracts import Topology

from .capacity import CapacityCurve
from .flow import Fed, Flow, fed_by, loads_of, reaching
from .forecast import ArrivalPath

MIN_RATE = 1e-6
"""Records/s below which nothing arrives (one record in eleven days): a smoothed rate on its way to 0."""


@dataclass(frozen=True)
class Backlog:
    """Records that wait at a source, and the age of the oldest (None: as old as it takes to arrive)."""

    records: float
    age_seconds: float | None = None


@dataclass(frozen=True)
class Restart:
    """Cost of changing the parallelism. All times are 0 for staying."""

    seconds: float = 0.0
    """Time in which a part of the application does not process."""
    replay_seconds: float = 0.0
    """Age of the checkpoint at the moment when processing stops."""
    measured: bool = True
    """Whether a rescale was measured; else `seconds` is an assumption."""
    away_share: float = 1.0
    """Share of the application that does not process for `seconds`: all of it in Flink, in a consumer group the tasks that
    move."""
    capacity_after_seconds: float = 0.0
    """Time until added capacity counts; until then the application has the smaller of both capacities. Less than `seconds`:
    it counts as soon as everything processes again."""
    restore_seconds: float = 0.0
    """Part of `seconds` in which tasks restore their state, as no other instance has a copy of it."""

    @property
    def settled_seconds(self) -> float:
        """Time until everything processes with the new capacity."""
        return max(self.seconds, self.capacity_after_seconds)


STAY = Restart()


@dataclass(frozen=True)
class Model:
    """An application as far as it is known: the same for every vector that is compared."""

    topology: Topology
    flow: Flow
    curves: Mapping[str, CapacityCurve]
    arrivals: Mapping[str, float]
    """Records/s of each source now."""
    backlogs: Mapping[str, Backlog]
    paths: Mapping[str, ArrivalPath] = field(default_factory=dict)
    """Rates from now on of the sources whose rate changes; those of the others stay."""

    def under(self, paths: Mapping[str, ArrivalPath]) -> "Model":
        """Return the model with these arrival rates over time. Sources without a path keep their rate."""
        starts = {source: path.rate_at(0.0) for source, path in paths.items() if source in self.arrivals}
        changing = {source: paths[source] for source in starts if not paths[source].is_constant}
        return replace(self, arrivals={**self.arrivals, **starts}, paths=changing)

    def capacities(self, parallelism: Mapping[str, int]) -> dict[str, float]:
        """Return records/s that each operator with a curve sustains."""
        curves = self.curves
        return {n: curves[n].rate(parallelism[n]) for n in self.topology.names if n in curves and n in parallelism}

    @cached_property
    def loads(self) -> Mapping[str, float]:
        """Records/s that arrive at each operator with a known flow."""
        return loads_of(self.flow, self.arrivals)

    def reaching(self, wanted: Mapping[str, float], capacities: Mapping[str, float]) -> dict[str, float]:
        """Return records/s that may reach each operator with a known flow if the sources want to take in `wanted` and the
        named operators do no more than `capacities`.

        An upper bound: where sources meet at an operator that is too small, how they share it is not known, and each is
        taken to get what it can use. So what reaches an operator never falls because more arrives elsewhere.
        """
        return reaching(self.flow, wanted, capacities)

    def max_loads(self, horizon_seconds: float) -> Mapping[str, float]:
        """Return the highest load of each operator with a known flow within the horizon."""
        if not self.paths:
            return self.loads
        found = [loads_of(self.flow, rates) for rates in self._extremes(horizon_seconds)]
        return {name: max(loads[name] for loads in found) for name in self.loads}

    def max_arrival_rate(self, horizon_seconds: float) -> float:
        """Return the highest records/s at all sources together within the horizon."""
        return max(sum(rates.values()) for rates in self._extremes(horizon_seconds))

    def _extremes(self, horizon_seconds: float) -> list[dict[str, float]]:
        """Return the rates of all sources at each time at which one of them begins to change otherwise: between two of
        them every sum of rates lies between those at both."""
        times = {0.0, horizon_seconds}.union(*(path.within(horizon_seconds) for path in self.paths.values()))
        # A step has the rate before it and the rate behind it.
        before = {float(np.nextafter(at, 0.0)) for at in times if at > 0}
        return [self.rates_at(at) for at in times | before]

    def rates_at(self, seconds: float) -> dict[str, float]:
        """Return records/s of each source at one time from now."""
        paths = self.paths
        return {s: paths[s].rate_at(seconds) if s in paths else rate for s, rate in self.arrivals.items()}

    @cached_property
    def fed(self) -> Mapping[str, Fed]:
        """The sources that feed each operator, by their index in `arrivals`."""
        return fed_by(self.flow, self.topology.names, list(self.arrivals))
