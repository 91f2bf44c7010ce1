"""What one turn knows of the application: the same for every simulated copy of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from weir_contracts import Analysis, Deployment, Parallelism, PlanRequest, Topology

from predictor import CapacityCurve, Model, Restart, arrivals_at, at_least_of, model_of, restart_of, smallest_useful

FULL = 0.95
"""Busy share from which an operator of unknown capacity may hold back what comes before it."""


@dataclass(frozen=True)
class Known:
    """A turn's request, read once."""

    request: PlanRequest
    analysis: Analysis
    topology: Topology
    deployment: Deployment
    observed: Parallelism
    model: Model
    at_least: Mapping[str, CapacityCurve]
    """Straight lines through what hardly busy operators of unknown capacity sustain at least."""
    restart: Restart
    """What a change of parallelism costs."""

    def capacities(self, parallelism: Parallelism) -> dict[str, float] | None:
        """Records/s of each operator that may hold something back; None: with this parallelism it cannot be told."""
        found = self.model.capacities(parallelism)
        for name in self.topology.names:
            if name in found:
                continue
            if name in self.at_least:
                found[name] = self.at_least[name].rate(parallelism[name])
            elif parallelism[name] < self.observed[name] or self._is_full(name):
                return None
        return found

    def _is_full(self, name: str) -> bool:
        operator = self.analysis.operator(name)
        share = operator.utilisation.value if operator else None
        return share is None or share >= FULL

    def needed(self, arrivals: Mapping[str, float]) -> Parallelism:
        """The smallest useful parallelism that sustains `arrivals` (at the objective's utilisation, if it is one), within bounds, key
        groups and partitions; the most there may be where none does. An operator of which it cannot be told is left out."""
        target = self.request.policy.spec.objective.utilization or 1.0
        found: Parallelism = {}
        for name in self.topology.names:
            curve, load = (
                self.model.curves.get(name) or self.at_least.get(name),
                arrivals_at(self.model.flow, name, arrivals),
            )
            if curve is not None and load is not None:
                found[name] = self._least(name, curve, load / target)
        return found

    def _least(self, name: str, curve: CapacityCurve, demand: float) -> int:
        operator = self.topology.operator(name)
        least, most = self.request.policy.spec.bounds.of(name)
        most = max(1, min(p for p in (most, operator.max_parallelism, operator.source_partitions) if p is not None))
        p = min(most, max(least, curve.needed(demand) or most))
        # One that does no more than a smaller one is not useful, and by its shares the smaller does not suffice.
        while p < most and smallest_useful(self.topology, name, p) < p:
            p += 1
        return p


def known_of(request: PlanRequest) -> Known | None:
    """What a request tells; None where the graph, the arrivals of a source or the parallelism is unknown: then nothing is simulated."""
    analysis, topology, deployment = request.analysis, request.topology, request.deployment
    if topology is None or deployment is None or analysis.status not in ("running", "not_running"):
        return None
    if set(deployment.observed) != set(topology.names):
        return None
    model, gaps = model_of(analysis, topology)
    if any(gap.what in ("arrival rate", "lag") for gap in gaps):
        return None
    return Known(
        request=request,
        analysis=analysis,
        topology=topology,
        deployment=deployment,
        observed=dict(deployment.observed),
        model=model,
        at_least={
            name: CapacityCurve(bound.parallelism / bound.records_per_second)
            for name, bound in at_least_of(analysis.operators, model.curves).items()
        },
        restart=restart_of(analysis, deployment, request.outcomes),
    )
