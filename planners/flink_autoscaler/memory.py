"""The state as a planner's memory: JSON, at most 16 kB. Samples that would not fit are merged, nearest neighbours
first.

A merged sample has the first one's counters and the sums of both gauges: averages stay the same, and a rate changes
only by the window's far end, which is earlier by at most one such span.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from weir_contracts import MEMORY_LIMIT_BYTES

from .decision import Recommendation, Rescaled, Waiting
from .evaluation import Reading, Sample, Values
from .ieee import INFINITY, NAN
from .loop import Decided, Restart, State

SPARE_BYTES = 64
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
    history: dict[str, list[tuple[int, int, int, float | None, float | None]]]
    waiting: dict[str, tuple[int, list[tuple[int, int, bool]]]]
    restarts: list[tuple[int, dict[str, int], int | None]]
    decided: tuple[int, dict[str, tuple[int, int, float | None, float | None]]] | None


def read(memory: Mapping[str, Any], graph: str, names: Sequence[str]) -> State:
    """Return the state of an earlier reply; empty if it is of another graph or unreadable."""
    try:
        written = _Written.model_validate(dict(memory))
        if written.graph != graph:
            return State(graph=graph)
        return State(
            graph=graph,
            running_ms=written.running_ms,
            parallelism=dict(zip(names, written.parallelism, strict=True)),
            samples=tuple(_sample(written.running_ms + at, span, rows, names) for at, span, rows in written.samples),
            history={
                n: tuple(
                    Rescaled(at, before, after, _number(rate), _number(expected))
                    for at, before, after, rate, expected in h
                )
                for n, h in written.history.items()
            },
            waiting={
                n: Waiting(since, tuple(Recommendation(*w) for w in recommendations))
                for n, (since, recommendations) in written.waiting.items()
            },
            restarts=tuple(Restart(*r) for r in written.restarts),
            decided=None
            if written.decided is None
            else Decided(
                written.decided[0],
                {n: (b, w, _number(r), _number(e)) for n, (b, w, r, e) in written.decided[1].items()},
            ),
        )
    except (ValidationError, ValueError, IndexError, TypeError):
        return State(graph=graph)


def write(state: State, names: Sequence[str], stable_ms: int) -> dict[str, Any] | None:
    """Return the memory, with samples merged until it fits; None if three samples do not fit."""
    rest = _written(state, names)
    room = MEMORY_LIMIT_BYTES - SPARE_BYTES - _size(rest)
    samples = list(state.samples)
    rows = [_row(s, names, state.running_ms) for s in samples]
    sizes = [_size(row) + 1 for row in rows]
    while sum(sizes) > room:
        pair = _nearest(samples, stable_ms)
        if pair is None:
            return None
        samples[pair : pair + 2] = [_together(samples[pair], samples[pair + 1])]
        rows[pair : pair + 2] = [_row(samples[pair], names, state.running_ms)]
        sizes[pair : pair + 2] = [_size(rows[pair]) + 1]
    return {**rest, "samples": rows}


def _written(state: State, names: Sequence[str]) -> dict[str, Any]:
    decided = state.decided
    return {
        "graph": state.graph,
        "running_ms": state.running_ms,
        "parallelism": [state.parallelism[name] for name in names],
        "samples": [],
        "history": {
            n: [
                [p.at_ms, p.before, p.after, _finite(p.true_processing_rate), _finite(p.expected_processing_rate)]
                for p in h
            ]
            for n, h in state.history.items()
        },
        "waiting": {
            n: [w.since_ms, [[x.at_ms, x.parallelism, x.outside] for x in w.recommendations]]
            for n, w in state.waiting.items()
        },
        "restarts": [[r.at_ms, dict(r.targets), r.ms] for r in state.restarts],
        "decided": None
        if decided is None
        else [
            decided.at_ms,
            {n: [b, w, _finite(r), _finite(e)] for n, (b, w, r, e) in decided.vertices.items()},
        ],
    }


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


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
    return min(spans)[1] if spans and len(samples) > 3 else None


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
