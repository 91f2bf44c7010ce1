"""The state as a planner's memory: JSON, at most 16 kB, in which operators are numbers. What does not fit is packed, in
columns; if that does not fit, samples are merged, nearest neighbours first.

A merged sample has the first one's counters and the sums of both gauges: averages stay the same, and a rate changes
only by the window's far end, which is earlier by at most one such span.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from weir_contracts import MEMORY_LIMIT_BYTES
from weir_planners.packed import packed, size, unpacked

from .decision import Recommendation, Rescaled, Waiting
from .evaluation import Reading, Sample, Values
from .ieee import INFINITY, NAN, metric
from .loop import Decided, Restart, State

MAX_BYTES = MEMORY_LIMIT_BYTES - 64
MIN_SAMPLES = 3
"""A merged sample at either end would keep the window from moving."""
COUNTERS = 4
"""Numbers of a cell that grow; the gauges follow."""
CELL = COUNTERS + 9
Cell = list[float | None]


class _Written(BaseModel):
    """Form of the memory. Rates may be infinite, written as null in `history` and `decided`."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    graph: str
    running_ms: int
    parallelism: list[int]
    samples: list[tuple[int, int, list[Cell]]]
    """Time in ms since `running_ms`, the time to its last merged sample, then a row for each operator in the graph's
    order."""
    history: dict[int, list[tuple[int, int, int, float | None, float | None]]]
    waiting: dict[int, tuple[int, list[tuple[int, int, bool]]]]
    restarts: list[tuple[int, dict[int, int], int | None]]
    decided: tuple[int, dict[int, tuple[int, int, float | None, float | None]]] | None


def read(memory: Mapping[str, Any], graph: str, names: Sequence[str]) -> State:
    """Return the state of an earlier reply; empty if it is of another graph or unreadable."""
    try:
        if memory.get("graph") != graph:
            return State(graph=graph)
        document = dict(memory)
        if "packed" in document:
            document |= unpacked(document["packed"])
            document["samples"] = _of_columns(**document["samples"])
        written = _Written.model_validate(document)
        return State(
            graph=graph,
            running_ms=written.running_ms,
            parallelism=dict(zip(names, written.parallelism, strict=True)),
            samples=tuple(_sample(written.running_ms + at, span, rows, names) for at, span, rows in written.samples),
            history={
                names[n]: tuple(
                    Rescaled(at, before, after, _number(rate), _number(expected))
                    for at, before, after, rate, expected in h
                )
                for n, h in written.history.items()
            },
            waiting={
                names[n]: Waiting(since, tuple(Recommendation(*w) for w in recommendations))
                for n, (since, recommendations) in written.waiting.items()
            },
            restarts=tuple(
                Restart(at, {names[n]: p for n, p in targets.items()}, ms) for at, targets, ms in written.restarts
            ),
            decided=None
            if written.decided is None
            else Decided(
                written.decided[0],
                {names[n]: (b, w, _number(r), _number(e)) for n, (b, w, r, e) in written.decided[1].items()},
            ),
        )
    except (ValidationError, ValueError, IndexError, TypeError, KeyError):
        return State(graph=graph)


def write(state: State, names: Sequence[str], stable_ms: int) -> dict[str, Any] | None:
    """Return the memory, with samples merged until it fits; None if three samples do not fit."""
    rest = _written(state, names)
    samples = list(state.samples)
    plain = {**rest, "samples": [_row(each, names, state.running_ms) for each in samples]}
    if size(plain) <= MAX_BYTES:
        return plain
    while True:
        rows = [_row(each, names, state.running_ms) for each in samples]
        memory = {"graph": state.graph, "packed": packed({**rest, "samples": _columns(rows)})}
        if (found := size(memory)) <= MAX_BYTES:
            return memory
        # To pack is slow: as many samples at once as will certainly be too many.
        for _ in range(max(1, len(samples) - max(MIN_SAMPLES, len(samples) * MAX_BYTES // found + 1))):
            pair = _nearest(samples, stable_ms)
            if pair is None:
                return None
            samples[pair : pair + 2] = [_together(samples[pair], samples[pair + 1])]


def _written(state: State, names: Sequence[str]) -> dict[str, Any]:
    decided, index = state.decided, {name: str(i) for i, name in enumerate(names)}
    return {
        "graph": state.graph,
        "running_ms": state.running_ms,
        "parallelism": [state.parallelism[name] for name in names],
        "samples": [],
        "history": {
            index[n]: [
                [p.at_ms, p.before, p.after, _finite(p.true_processing_rate), _finite(p.expected_processing_rate)]
                for p in h
            ]
            for n, h in state.history.items()
        },
        "waiting": {
            index[n]: [w.since_ms, [[x.at_ms, x.parallelism, x.outside] for x in w.recommendations]]
            for n, w in state.waiting.items()
        },
        "restarts": [[r.at_ms, {index[n]: p for n, p in r.targets.items()}, r.ms] for r in state.restarts],
        "decided": None
        if decided is None
        else [
            decided.at_ms,
            {index[n]: [b, w, _finite(r), _finite(e)] for n, (b, w, r, e) in decided.vertices.items()},
        ],
    }


def _columns(rows: Sequence[list[Any]]) -> dict[str, Any]:
    """Return the samples with all values of a kind side by side, operator by operator. Counters are differences from one
    sample to the next, in whole records or thousandths; gauges have the precision of a sample's metrics."""
    columns: list[tuple[int, list[float | None]]] = []
    for kind in range(CELL):
        values = [
            row[kind] if kind < len(row) else 0 for cells in zip(*(r[2] for r in rows), strict=True) for row in cells
        ]
        if kind >= COUNTERS:
            columns.append((0, [value and _short(metric(value)) for value in values]))
            continue
        scale = 1 if all(value is None or value == int(value) for value in values) else 1000
        before, column = 0, list[float | None]()
        for i, value in enumerate(values):
            before = 0 if i % len(rows) == 0 else before
            column.append(None if value is None else round(value * scale) - before)
            before = before if value is None else round(value * scale)
        columns.append((scale, column))
    return {"times": [row[:2] for row in rows], "columns": columns}


def _of_columns(times: Sequence[tuple[int, int]], columns: Sequence[tuple[int, Sequence[float | None]]]) -> list[Any]:
    """Return the rows of `_columns`."""
    restored = []
    for scale, column in columns:
        before, values = 0.0, list[float | None]()
        for i, value in enumerate(column):
            before = 0.0 if i % len(times) == 0 else before
            before = before if value is None else before + value
            values.append(None if value is None else before / scale if scale else value)
        restored.append(values)
    cells = list(zip(*restored, strict=True))
    return [[*time, [list(cell) for cell in cells[i :: len(times)]]] for i, time in enumerate(times)]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _number(value: float | None) -> float:
    """Return the rate; null is infinite: nothing came in."""
    return INFINITY if value is None else value


def _nearest(samples: Sequence[Sample], stable_ms: int) -> int | None:
    """Return the first of the two neighbours with the shortest span, except the newest sample and stabilization's end."""
    spans = [
        (samples[i + 2].at_ms - samples[i].at_ms, i)
        for i in range(len(samples) - 2)
        if not samples[i].at_ms < stable_ms <= samples[i + 1].at_ms
    ]
    return min(spans)[1] if spans and len(samples) > MIN_SAMPLES else None


def _together(older: Sample, newer: Sample) -> Sample:
    return Sample(
        at_ms=older.at_ms,
        until_ms=newer.last_ms,
        readings={
            name: replace(
                a,
                load=a.load + newer.readings[name].load,
                input_rate=a.input_rate + newer.readings[name].input_rate,
                observed_rate=a.observed_rate + newer.readings[name].observed_rate,
            )
            for name, a in older.readings.items()
        },
    )


def _row(sample: Sample, names: Sequence[str], running_ms: int) -> list[Any]:
    return [sample.at_ms - running_ms, sample.last_ms - sample.at_ms, [_cell(sample.readings[name]) for name in names]]


def _cell(reading: Reading) -> Cell:
    """Return counters, lag and gauges in a row; trailing unknowns and zeros are dropped."""
    counters = (reading.records_in, reading.records_out, reading.busy_ms, reading.lag)
    cell: Cell = [_short(x) if isfinite(x) else None for x in counters]
    for values in (reading.load, reading.input_rate, reading.observed_rate):
        kept = values if isfinite(values.total) else Values(infinite=True)
        cell += [_short(kept.total), kept.count, int(kept.infinite)]
    while cell and not cell[-1] and len(cell) > 4:
        cell.pop()
    return cell


def _short(value: float) -> float:
    """Return an integer for a number without a fraction."""
    return int(value) if value == int(value) else value


def _sample(at_ms: int, span_ms: int, rows: list[Cell], names: Sequence[str]) -> Sample:
    if len(rows) != len(names):
        raise ValueError("a sample has a row for each operator")
    readings = {name: _reading(row) for name, row in zip(names, rows, strict=True)}
    return Sample(at_ms, readings, at_ms + span_ms if span_ms else None)


def _reading(cell: Cell) -> Reading:
    records_in, records_out, busy_ms, lag = (NAN if x is None else float(x) for x in cell[:4])
    values = [x or 0.0 for x in cell[4:]] + [0.0] * 9
    load, input_rate, observed = (Values(float(values[i]), int(values[i + 1]), bool(values[i + 2])) for i in (0, 3, 6))
    return Reading(records_in, records_out, busy_ms, lag, load, input_rate, observed)
