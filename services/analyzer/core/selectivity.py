"""Selectivity of every edge: records that reach `target` per record that `source` takes in.

There is no metric of an edge, so its count is inferred, first case that applies (as the Flink autoscaler does):
1. `target` has only this input: what `target` took in;
2. every other input of `target` has one output only: what `target` took in, less what those gave out;
3. what `source` gave out.

A window operator gives out in bursts. A ratio needs a span of at least three of them, from the end of one to the end of
another; else it is unknown, unless it was learned before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from weir_contracts import Estimate, unknown

from .numbers import estimate, since
from .propagation import MAX_CACHED, Graph
from .settings import AnalysisSettings
from .state import COUNTERS, MISSING, EdgeState, Mark, Ratio, Row, RunState

_MARKS = 16
_BURSTS = 3
_SILENCE_SECONDS = 600.0
"""Without any output for this long an edge's selectivity is 0 rather than unknown."""


def edge_key(source: str, target: str) -> str:
    """An edge's name in the state."""
    return f"{source}\n{target}"


@dataclass(frozen=True, slots=True)
class Wiring:
    """The counters of an edge's records: where an operator's begin in a row, -1 for an operator without readings."""

    source: int
    source_is_first: bool
    """A source may count only what it gives out."""
    only_output: bool
    target: int
    others: tuple[int, ...] | None
    """The target's other inputs; None if one of them has several outputs, so that nothing can be subtracted."""


@lru_cache(maxsize=MAX_CACHED)
def wirings_of(graph: Graph, names: tuple[str, ...]) -> dict[tuple[str, str], Wiring]:
    """Return how each edge, a pair of source and target, is counted in rows of `names`."""
    index = {name: i * COUNTERS for i, name in enumerate(names)}
    wirings = {}
    for source, target in graph.edges:
        others = [name for name in graph.inputs[target] if name != source]
        subtractable = all(len(graph.outputs[other]) == 1 for other in others)
        wirings[source, target] = Wiring(
            source=index.get(source, -1),
            source_is_first=not graph.inputs[source],
            only_output=len(graph.outputs[source]) == 1,
            target=index.get(target, -1),
            others=tuple(index.get(other, -1) for other in others) if subtractable else None,
        )
    return wirings


def track(run: RunState, wirings: Mapping[tuple[str, str], Wiring], settings: AnalysisSettings) -> dict[str, EdgeState]:
    """Return the bursts of every edge with the newest row of the ring. Call once for each fresh row."""
    if not run.rows or run.rows[-1][0] < run.started_at + settings.warm_up_seconds:
        return run.edges
    edges = {}
    for (source, target), wiring in wirings.items():
        key = edge_key(source, target)
        before = run.edges.get(key)
        mark = _counts(wiring, run.rows[-1])
        if mark is not None:
            edges[key] = _advanced(before, mark)
        elif before is not None:
            edges[key] = before
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


def measured(wiring: Wiring, state: EdgeState | None, run: RunState, settings: AnalysisSettings) -> Estimate:
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
        begin, end = _counts(wiring, rows[0]), _counts(wiring, rows[-1])
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


def learn(old: Ratio | None, now: Estimate, at: float, settings: AnalysisSettings) -> Ratio | None:
    """Move the learned ratio of an edge towards the measured one; the longer since the last time, the further."""
    if now.value is None:
        return old
    if old is None or old.confidence < now.confidence / 2:
        return Ratio(now.value, now.confidence, at)
    weight = 0.5 * min(1.0, max(0.0, at - old.at) / settings.capacity_window_seconds)
    confidence = old.confidence + weight * (now.confidence - old.confidence)
    return Ratio(old.value + weight * (now.value - old.value), round(confidence, 4), at)


def published_ratio(now: Estimate, learned: Ratio | None) -> Estimate:
    """The measured ratio, else the learned one, named so."""
    if now.value is not None or learned is None:
        return now
    return estimate(learned.value, f"learned in an earlier run ({now.basis})"[:300], 0.8 * learned.confidence)
