"""The real application, which simulated ones start from and are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass

from weir_contracts import Parallelism, PlanRequest
from weir_planner.request import Request

from predictor import CapacityCurve, Model, Restart, arrivals_at, lower_bounds_of, restart_of

FULL = 0.95
"""Busy share from which an operator of unknown capacity may hold back its inputs."""


@dataclass(frozen=True)
class Real:
    """A request with the predictor's model of it."""

    request: Request
    model: Model
    lower_bounds: Mapping[str, CapacityCurve]
    """Linear lower bounds of capacity of hardly busy operators without a curve."""
    restart: Restart
    """Cost of a rescale."""

    def capacities(self, parallelism: Mapping[str, int]) -> dict[str, float] | None:
        """Return the records/s of each operator that may hold something back; None if one of them is unknown."""
        found = self.model.capacities(parallelism)
        for name in self.request.topology.names:
            if name in found:
                continue
            if name in self.lower_bounds:
                found[name] = self.lower_bounds[name].rate(parallelism[name])
            elif parallelism[name] < self.request.current[name] or self._may_be_full(name):
                return None
        return found

    def _may_be_full(self, name: str) -> bool:
        operator = self.request.analysis.operator(name)
        busy = operator.utilization.value if operator else None
        return busy is None or busy >= FULL

    def needed(self, arrivals: Mapping[str, float]) -> Parallelism:
        """Return the smallest useful parallelism that sustains `arrivals` within the limits, or the largest one there.

        A utilization objective is met, too. Operators of unknown load or capacity are left out.
        """
        target = self.request.policy.spec.objective.utilization or 1.0
        found: Parallelism = {}
        for name in self.request.topology.names:
            curve = self.model.curves.get(name) or self.lower_bounds.get(name)
            load = arrivals_at(self.model.flow, name, arrivals)
            if curve is not None and load is not None:
                low, high, _ = self.request.limits[name]
                found[name] = min(high, max(low, curve.needed(load / target) or high))
        return found


def real_of(request: PlanRequest) -> Real | None:
    """Read a request; None if nothing can be simulated: the graph, arrivals of a source or the parallelism is unknown."""
    if request.analysis.status not in ("running", "not_running"):
        return None
    try:
        read = Request.of(request)
    except ValueError:
        return None
    model, gaps = read.model
    if any(gap.what in ("arrival rate", "lag") for gap in gaps):
        return None
    bounds = lower_bounds_of(read.analysis.operators, model.curves, read.topology)
    return Real(
        request=read,
        model=model,
        lower_bounds={name: bound.line for name, bound in bounds.items()},
        restart=restart_of(read.analysis, read.deployment, read.outcomes),
    )
