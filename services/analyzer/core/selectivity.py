"""Selectivity of every edge: records that reach `target` per record that `source` takes in.

There is no metric of an edge, so its count is inferred, first case that applies (as the Flink autoscaler does):
1. `target` has only this input: what `target` took in;
2. every other input of `target` has one output only: what `target` took in, less what those gave out;
3. what `source` gave out.

A window operator gives out in bursts. A ratio is only told from a span of at least three of them, from the end of one
to the end of another; else it is unknown, unless it was learnt before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from weir_contracts import Edge, Estimate, Topology, unknown

from .memory import MAX_REMEMBERED, EdgeMemory, Mark, Ratio, Row, RunMemory
from .numbers import estimate
from .settings import AnalysisSettings

_MARKS = 16
_BURSTS = 3


def edge_key(source: str, target: str) -> str:
    """An edge's name in the memory."""
    return f"{source}\n{target}"


def track(run: RunMemory, topology: Topology, settings: AnalysisSettings) -> RunMemory:
    """Take the newest row of the ring into the burst memory of every edge. Call once for each fresh row."""
    if not run.rows or run.rows[-1].at < run.started_at + settings.warm_up_seconds:
        return run
    row = run.rows[-1]
    index = {name: i for i, name in enumerate(run.names)}
    edges = {}
    for edge in _distinct(topology):
        key = edge_key(edge.source, edge.target)
        before = run.edges.get(key)
        mark = _counts(edge, topology, row, index)
        if mark is None:
            if before is not None:
                edges[key] = before
            continue
        edges[key] = _advanced(before, mark)
    return replace(run, edges=edges)


def _distinct(topology: Topology) -> list[Edge]:
    """Two edges between the same pair of operators count as one."""
    return list({(edge.source, edge.target): edge for edge in topology.edges}.values())


def _counts(edge: Edge, topology: Topology, row: Row, index: Mapping[str, int]) -> Mark | None:
    taken = _count(row, index, edge.source, 0)
    if taken is None:
        taken = _count(row, index, edge.source, 1) if edge.source in topology.sources else None
    if taken is None:
        return None
    given = _count(row, index, edge.source, 1)
    arrived = _count(row, index, edge.target, 0)
    others = [name for name in topology.inputs(edge.target) if name != edge.source]
    if not others:
        if arrived is None and len(topology.outputs(edge.source)) == 1:
            arrived = given
        return None if arrived is None else Mark(row.at, taken, arrived)
    if arrived is not None and all(len(topology.outputs(other)) == 1 for other in others):
        parts = [_count(row, index, other, 1) for other in others]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return Mark(row.at, taken, arrived - sum(known))
    return None if given is None else Mark(row.at, taken, given)


def _count(row: Row, index: Mapping[str, int], operator: str, field: int) -> int | None:
    i = index.get(operator)
    cell = None if i is None else row.cells[i]
    if cell is None:
        return None
    value: int | None = cell[field]
    return value


def _advanced(before: EdgeMemory | None, mark: Mark) -> EdgeMemory:
    if before is None or mark.taken < before.last.taken:
        return EdgeMemory(mark, mark)
    if mark.reached > before.last.reached:
        return replace(before, last=mark, growing=True)
    # what is inferred by a subtraction may step back a little while records are on their way: that is no growth
    marks = (*before.marks, before.last)[-_MARKS:] if before.growing else before.marks
    return replace(before, last=mark._replace(reached=before.last.reached), growing=False, marks=marks)


def measured(
    edge: Edge, memory: EdgeMemory | None, run: RunMemory, topology: Topology, settings: AnalysisSettings
) -> Estimate:
    """The ratio in the current run, or why it cannot be told yet."""
    if memory is None:
        return unknown("no samples after the warm-up of this run")
    seconds = memory.last.at - memory.first.at
    if memory.last.taken == memory.first.taken:
        return unknown("nothing was taken in")
    silent_since = memory.marks[-1].at if memory.marks else memory.first.at
    silent = 0.0 if memory.growing else memory.last.at - silent_since
    if silent >= settings.silence_seconds:
        return estimate(0.0, f"no output in {silent:.0f} s", 0.3, 1, silent)
    if memory.last.reached == memory.first.reached:
        return unknown(f"no output yet, {seconds:.0f} s watched: a window may still be filling")
    index = {name: i for i, name in enumerate(run.names)}
    points = [_counts(edge, topology, row, index) for row in run.rows if row.at >= memory.first.at]
    known = [point for point in points if point is not None]
    if _in_bursts(known):
        return _over_bursts(memory, settings)
    return _continuous(known, settings)


def _in_bursts(points: Sequence[Mark]) -> bool:
    """Whether the output stood still in a fifth of the intervals in which input was taken in."""
    fed = [(a, b) for a, b in pairwise(points) if b.taken > a.taken]
    quiet = sum(1 for a, b in fed if b.reached <= a.reached)
    return quiet > 0.2 * len(fed)


def _over_bursts(memory: EdgeMemory, settings: AnalysisSettings) -> Estimate:
    marks = memory.marks
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


def _continuous(points: Sequence[Mark], settings: AnalysisSettings) -> Estimate:
    """Over the ring's reach. Bursts closer than two snapshots look continuous: four samples hold three of them."""
    seconds = points[-1].at - points[0].at if points else 0.0
    if len(points) < _BURSTS + 1 or seconds < settings.capacity_window_seconds:
        return unknown(f"{seconds:.0f} of {settings.capacity_window_seconds:.0f} s watched in this run")
    taken = points[-1].taken - points[0].taken
    if taken <= 0:
        return unknown("nothing was taken in")
    ratio = max(0, points[-1].reached - points[0].reached) / taken
    return estimate(ratio, "counters", 0.9, len(points), seconds)


def learn(
    known: Mapping[str, Ratio], key: str, now: Estimate, at: float, settings: AnalysisSettings
) -> dict[str, Ratio]:
    """Move what is known of an edge towards what was measured; the longer since the last time, the further."""
    if now.value is None:
        return dict(known)
    old = known.get(key)
    if old is None or old.confidence < now.confidence / 2:
        ratio = Ratio(now.value, now.confidence, at)
    else:
        weight = 0.5 * min(1.0, max(0.0, at - old.at) / settings.capacity_window_seconds)
        confidence = old.confidence + weight * (now.confidence - old.confidence)
        ratio = Ratio(old.value + weight * (now.value - old.value), round(confidence, 3), at)
    after = {**known, key: ratio}
    if len(after) > MAX_REMEMBERED:
        del after[min(after, key=lambda k: after[k].at)]
    return after


def told(now: Estimate, learnt: Ratio | None) -> Estimate:
    """The measured ratio, else the learnt one, named so."""
    if now.value is not None or learnt is None:
        return now
    return estimate(learnt.value, f"learnt in an earlier run ({now.basis})"[:300], 0.8 * learnt.confidence)
