"""The graph of operators: selectivities of its edges, targets through it, and the operator that holds the others back.

Selectivity of an edge: records that reach `target` per record that `source` takes in. There is no metric of an edge, so
its count is inferred, first case that applies (as the Flink autoscaler does):
1. `target` has only this input: what `target` took in;
2. every other input of `target` has one output only: what `target` took in, less what those gave out;
3. what `source` gave out.

A window operator gives out in bursts. A ratio needs a span of at least three of them, from the end of one to the end of
another; else it is unknown, unless it was learned before.

Targets as in DS2 (OSDI 2018, equation 4): the ideal input of an operator is the sum over its inputs of their ideal input
times the edge's selectivity; a source's is what arrives. One pass in topological order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from weir_contracts import Estimate, Topology, unknown

from .run import COUNTERS, MISSING, EdgeState, Mark, Row, RunState, Shares
from .window import AnalysisSettings, at_least, estimate, newest, since

_MARKS = 16
_BURSTS = 3
_SILENCE_SECONDS = 600.0
"""Without any output for this long an edge's selectivity is 0 rather than unknown."""
_NOT_RUNNING = unknown("the job is not running")
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
        fed_by[name] = frozenset().union(*(fed_by[upstream] for upstream in inputs[name])) or frozenset((name,))
    return Graph(
        names,
        tuple([name for name in names if not inputs[name]]),
        {name: tuple(others) for name, others in inputs.items()},
        {name: tuple(others) for name, others in outputs.items()},
        fed_by,
        tuple([(source, target) for target in names for source in inputs[target]]),
    )


class Ratio(NamedTuple):
    """A learned selectivity."""

    value: float
    confidence: float
    at: float


@dataclass(frozen=True, slots=True)
class Wiring:
    """The counters of an edge's records: where an operator's begin in a row, -1 for an operator without readings."""

    edge: str
    """The edge's name in the state."""
    source: int
    source_is_first: bool
    """A source may count only what it gives out."""
    only_output: bool
    target: int
    others: tuple[int, ...] | None
    """The target's other inputs; None if one of them has several outputs, so that nothing can be subtracted."""


@lru_cache(maxsize=MAX_CACHED)
def _wirings(graph: Graph, names: tuple[str, ...]) -> dict[tuple[str, str], Wiring]:
    """Return how each edge, a pair of source and target, is counted in rows of `names`."""
    index = {name: i * COUNTERS for i, name in enumerate(names)}
    wirings = {}
    for source, target in graph.edges:
        others = [name for name in graph.inputs[target] if name != source]
        subtractable = all(len(graph.outputs[other]) == 1 for other in others)
        wirings[source, target] = Wiring(
            edge=f"{source}\n{target}",
            source=index.get(source, -1),
            source_is_first=not graph.inputs[source],
            only_output=len(graph.outputs[source]) == 1,
            target=index.get(target, -1),
            others=tuple(index.get(other, -1) for other in others) if subtractable else None,
        )
    return wirings


def edges_with(run: RunState, graph: Graph, settings: AnalysisSettings) -> dict[str, EdgeState]:
    """Return the bursts of every edge with the newest row of the ring. Call once for each fresh row."""
    if not run.rows or run.rows[-1][0] < run.started_at + settings.warm_up_seconds:
        return run.edges
    edges = {}
    for wiring in _wirings(graph, run.names).values():
        before = run.edges.get(wiring.edge)
        mark = _counts(wiring, run.rows[-1])
        if mark is not None:
            edges[wiring.edge] = _advanced(before, mark)
        elif before is not None:
            edges[wiring.edge] = before
    return edges


def _counts(wiring: Wiring, row: Row) -> Mark | None:
    at, counters = row

    def records(i: int) -> tuple[int | None, int | None]:
        """Return an operator's records in and out; unknown without its reading."""
        return (None, None) if i < 0 or counters[i] == MISSING else (counters[i], counters[i + 1])

    taken, given = records(wiring.source)
    if taken is None and wiring.source_is_first:
        taken = given
    if taken is None:
        return None
    arrived, _ = records(wiring.target)
    if wiring.others == ():
        if arrived is None and wiring.only_output:
            arrived = given
        return None if arrived is None else Mark(at, taken, arrived)
    if arrived is not None and wiring.others is not None:
        parts = [records(i)[1] for i in wiring.others]
        present = [part for part in parts if part is not None]
        if len(present) == len(parts):
            return Mark(at, taken, arrived - sum(present))
    return None if given is None else Mark(at, taken, given)


def _advanced(before: EdgeState | None, mark: Mark) -> EdgeState:
    if before is None or mark.taken < before.last.taken:
        return EdgeState(mark, mark)
    if mark.reached > before.last.reached:
        return EdgeState(before.first, mark, True, before.marks)
    # a count inferred by subtraction may step back a little while records are on their way: that is no growth
    marks = (*before.marks, before.last)[-_MARKS:] if before.growing else before.marks
    return EdgeState(before.first, mark._replace(reached=before.last.reached), False, marks)


def selectivities(
    graph: Graph, run: RunState | None, learned: Mapping[str, Ratio], at: float, settings: AnalysisSettings
) -> tuple[dict[str, Ratio], dict[tuple[str, str], Estimate]]:
    """Return the learned ratios with this observation in them, and the selectivity of each edge: the measured one, else
    the learned one, named so. `run` is None unless the job is running."""
    ratios, estimates = dict(learned), {}
    for edge, wiring in _wirings(graph, () if run is None else run.names).items():
        now = _NOT_RUNNING if run is None else _measured(wiring, run.edges.get(wiring.edge), run, settings)
        ratio = _learned(ratios.get(wiring.edge), now, at, settings)
        if ratio is not None:
            ratios[wiring.edge] = ratio
            if now.value is None:
                basis = f"learned in an earlier run ({now.basis})"
                now = estimate(ratio.value, basis, 0.8 * ratio.confidence)
        estimates[edge] = now
    return newest(ratios, lambda ratio: ratio.at), estimates


def _measured(wiring: Wiring, state: EdgeState | None, run: RunState, settings: AnalysisSettings) -> Estimate:
    """The ratio of one edge in the current run, or why it is unknown yet."""
    if state is None:
        return unknown("no samples after the warm-up of this run")
    seconds = state.last.at - state.first.at
    if state.last.taken == state.first.taken:
        return unknown("nothing was taken in")
    silent = 0.0 if state.growing else state.last.at - (state.marks[-1].at if state.marks else state.first.at)
    if silent >= _SILENCE_SECONDS:
        return estimate(0.0, f"no output in {silent:.0f} s", 0.3, 1, silent)
    if state.last.reached == state.first.reached:
        return unknown(f"no output yet, {seconds:.0f} s watched: a window may still be filling")
    rows: Sequence[Row] = run.rows
    if rows and rows[0][0] < state.first.at:
        rows = since(rows, state.first.at)
    if state.growing and rows and (not state.marks or state.marks[-1].at < rows[0][0]):
        # it never stood still within the ring, so its ends suffice
        begin = _counts(wiring, rows[0])
        end = state.last if state.last.at == rows[-1][0] else _counts(wiring, rows[-1])
        if begin is not None and end is not None:
            return _continuous(begin, end, len(rows), settings)
    points = [point for row in rows if (point := _counts(wiring, row)) is not None]
    if _in_bursts(points):
        return _over_bursts(state.marks, settings)
    if not points:
        return unknown("no samples after the warm-up of this run")
    return _continuous(points[0], points[-1], len(points), settings)


def _in_bursts(points: Sequence[Mark]) -> bool:
    """Whether the output stood still in a fifth of the intervals in which input was taken in."""
    fed = [(a, b) for a, b in pairwise(points) if b.taken > a.taken]
    quiet = sum(1 for a, b in fed if b.reached <= a.reached)
    return quiet > 0.2 * len(fed)


def _over_bursts(marks: Sequence[Mark], settings: AnalysisSettings) -> Estimate:
    if len(marks) <= _BURSTS:
        return unknown(f"{max(0, len(marks) - 1)} of {_BURSTS} output bursts seen from end to end")
    last = marks[-1]
    # the shortest span of three bursts that is as long as a window of capacity, else all there are
    long_enough = (
        i for i in range(len(marks) - 1 - _BURSTS, -1, -1) if last.at - marks[i].at >= settings.capacity_window_seconds
    )
    first = next(long_enough, 0)
    bursts = len(marks) - 1 - first
    taken = last.taken - marks[first].taken
    if taken <= 0:
        return unknown("nothing was taken in between the bursts")
    ratio = (last.reached - marks[first].reached) / taken
    seconds = last.at - marks[first].at
    return estimate(ratio, f"counters over {bursts} output bursts", min(0.9, 0.15 * (bursts + 1)), bursts, seconds)


def _continuous(begin: Mark, end: Mark, samples: int, settings: AnalysisSettings) -> Estimate:
    """Over the ring's reach. Bursts closer than two snapshots look continuous: four samples hold three of them."""
    seconds = end.at - begin.at
    if samples < _BURSTS + 1 or seconds < settings.capacity_window_seconds:
        return unknown(f"{seconds:.0f} of {settings.capacity_window_seconds:.0f} s watched in this run")
    taken = end.taken - begin.taken
    if taken <= 0:
        return unknown("nothing was taken in")
    ratio = max(0, end.reached - begin.reached) / taken
    return estimate(ratio, "counters", 0.9, samples, seconds)


def _learned(old: Ratio | None, now: Estimate, at: float, settings: AnalysisSettings) -> Ratio | None:
    """Move the learned ratio of an edge towards the measured one; the longer since the last time, the further."""
    if now.value is None:
        return old
    if old is None or old.confidence < now.confidence / 2:
        return Ratio(now.value, now.confidence, at)
    weight = 0.5 * min(1.0, max(0.0, at - old.at) / settings.capacity_window_seconds)
    confidence = old.confidence + weight * (now.confidence - old.confidence)
    return Ratio(old.value + weight * (now.value - old.value), round(confidence, 4), at)


def target_rates(
    graph: Graph, arrivals: Mapping[str, Estimate], ratios: Mapping[tuple[str, str], Estimate]
) -> dict[str, Estimate]:
    """Return the input rate of each operator if every source kept up, records/s. With an unknown part the rest of the sum
    is a lower bound."""
    targets: dict[str, Estimate] = {}
    for name in graph.names:
        inputs = graph.inputs[name]
        targets[name] = _sum_of_inputs(name, inputs, targets, ratios) if inputs else arrivals[name]
    return targets


def _sum_of_inputs(
    name: str,
    inputs: Sequence[str],
    targets: Mapping[str, Estimate],
    ratios: Mapping[tuple[str, str], Estimate],
) -> Estimate:
    rate, confidence, missing = 0.0, 1.0, ""
    for upstream in inputs:
        target = targets[upstream]
        if target.value is None:
            missing = missing or f"the target rate of {upstream} is unknown"
        if not target.proven:
            continue  # of nothing no part arrives, whatever the selectivity
        ratio = ratios[upstream, name]
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
    shares: Mapping[str, Shares],
    saturated: Mapping[str, bool],
) -> str | None:
    """Return the operator that limits the application, or comes closest to it; None if nothing can be said.

    First the one that visibly holds its inputs back: backpressured inputs, not backpressured itself, saturated or the
    busiest of such. Else the highest `load` (target rate ÷ capacity), as far as it is known.
    """
    backpressured = {name: spent.backpressured or 0.0 for name, spent in shares.items()}
    busy = {name: spent.busy or 0.0 for name, spent in shares.items()}
    holding = [
        name
        for name in graph.names
        if backpressured.get(name, 0.0) < 0.1
        and any(backpressured.get(upstream, 0.0) >= 0.2 for upstream in graph.inputs[name])
        and (saturated.get(name) or busy.get(name, 0.0) >= 0.8)
    ]
    if holding:
        return max(holding, key=lambda name: (saturated.get(name, False), busy.get(name, 0.0)))
    known = {name: value for name, value in load.items() if value is not None}
    return max(known, key=lambda name: known[name]) if known else None
