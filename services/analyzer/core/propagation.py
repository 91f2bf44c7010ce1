"""Targets through the graph, and the operator that holds the others back.

DS2 (OSDI 2018, equation 4): the ideal input of an operator is the sum over its inputs of their ideal input times the
edge's selectivity; a source's is what arrives. One pass in topological order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from weir_contracts import Estimate, Topology

from .numbers import at_least, estimate

MAX_CACHED = 2000
"""Topologies whose derived views a process keeps: as many as it has applications, within reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Operators in topological order; two edges between the same pair count as one. Equal to itself only."""

    names: tuple[str, ...]
    sources: tuple[str, ...]
    """Operators without inputs."""
    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, tuple[str, ...]]
    fed_by: dict[str, frozenset[str]]
    """The sources whose records reach an operator; of a source itself."""
    edges: tuple[tuple[str, str], ...]
    """All edges, by target."""


def graph_of(topology: Topology) -> Graph:
    """Return the adjacency of a topology; equal topologies share one."""
    return _graph(
        tuple([operator.name for operator in topology.operators]),
        tuple([(edge.source, edge.target) for edge in topology.edges]),
    )


@lru_cache(maxsize=MAX_CACHED)
def _graph(names: tuple[str, ...], edges: tuple[tuple[str, str], ...]) -> Graph:
    inputs: dict[str, dict[str, None]] = {name: {} for name in names}
    outputs: dict[str, dict[str, None]] = {name: {} for name in names}
    for source, target in edges:
        inputs[target][source] = None
        outputs[source][target] = None
    fed_by: dict[str, frozenset[str]] = {}
    for name in names:
        fed_by[name] = frozenset().union(*(fed_by[each] for each in inputs[name])) or frozenset((name,))
    return Graph(
        names,
        tuple([name for name in names if not inputs[name]]),
        {name: tuple(others) for name, others in inputs.items()},
        {name: tuple(others) for name, others in outputs.items()},
        fed_by,
        tuple([(source, target) for target in names for source in inputs[target]]),
    )


def target_rates(
    graph: Graph, arrivals: Mapping[str, Estimate], selectivities: Mapping[tuple[str, str], Estimate]
) -> dict[str, Estimate]:
    """Return the input rate of each operator if every source kept up, records/s. With an unknown part the rest of the sum
    is a lower bound."""
    targets: dict[str, Estimate] = {}
    for name in graph.names:
        inputs = graph.inputs[name]
        targets[name] = _sum_of_inputs(name, inputs, targets, selectivities) if inputs else arrivals[name]
    return targets


def _sum_of_inputs(
    name: str,
    inputs: Sequence[str],
    targets: Mapping[str, Estimate],
    selectivities: Mapping[tuple[str, str], Estimate],
) -> Estimate:
    rate, confidence, missing = 0.0, 1.0, ""
    for upstream in inputs:
        target = targets[upstream]
        if target.value is None:
            missing = missing or f"the target rate of {upstream} is unknown"
        if not target.proven:
            continue  # of nothing no part arrives, whatever the selectivity
        ratio = selectivities[upstream, name]
        if ratio.value is None:
            missing = missing or f"the selectivity from {upstream} is unknown: {ratio.basis}"
            continue
        rate += target.proven * ratio.value
        confidence = min(confidence, target.confidence, ratio.confidence)
    if missing:
        return at_least(rate or None, missing, confidence)
    return estimate(rate, "arrival rates × selectivities", confidence)


def bottleneck(
    graph: Graph,
    load: Mapping[str, float | None],
    busy: Mapping[str, float | None],
    backpressured: Mapping[str, float | None],
    saturated: Mapping[str, bool],
) -> str | None:
    """The operator that limits the application, or comes closest to it; None if nothing can be said.

    First the one that visibly holds its inputs back: backpressured inputs, not backpressured itself, saturated or the
    busiest of such. Else the highest `load` (target rate ÷ capacity).
    """
    holding = [
        name
        for name in graph.names
        if (backpressured.get(name) or 0.0) < 0.1
        and any((backpressured.get(upstream) or 0.0) >= 0.2 for upstream in graph.inputs[name])
        and (saturated.get(name) or (busy.get(name) or 0.0) >= 0.8)
    ]
    if holding:
        return max(holding, key=lambda name: (saturated.get(name, False), busy.get(name) or 0.0))
    loaded = {name: value for name, value in load.items() if value is not None}
    return max(loaded, key=lambda name: loaded[name]) if loaded else None
