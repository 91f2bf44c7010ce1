"""The ring of samples of the current run, and what can be read off a window of it.

Only a new run resets a difference. Three readings are no samples: the first of a run (its interval to the run's start
is unknown), an unchanged snapshot (the engine refreshes slower than it is asked), and an incomplete one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from weir_contracts import Observation, OperatorReading, Run

from .memory import Cell, Row, RunMemory, Sample
from .numbers import slope_weights
from .settings import AnalysisSettings

_MIN_ROWS = 5
"""Kept however old they are: an application scraped every minute has few of them in any window."""
_MAX_ROWS = 40
_MAX_CELLS = 12_000


def start(run: Run, readings: Sequence[OperatorReading], started_at: float) -> RunMemory:
    """An empty ring for a run; `started_at` is its beginning by the monitor's clock."""
    return RunMemory(
        running_since=run.running_since.timestamp(),
        started_at=started_at,
        attempt=run.attempt,
        names=tuple([reading.operator for reading in readings]),
        parallelism=tuple([reading.parallelism for reading in readings]),
    )


def same_run(memory: RunMemory, run: Run, readings: Sequence[OperatorReading]) -> bool:
    """Whether an observation belongs to the run remembered.

    Another parallelism or set of operators is another run, whatever the engine says of its start.
    """
    return (
        memory.running_since == run.running_since.timestamp()
        and (memory.attempt is None or run.attempt is None or memory.attempt == run.attempt)
        and memory.names == tuple([reading.operator for reading in readings])
        and memory.parallelism == tuple([reading.parallelism for reading in readings])
    )


def positions_of(observation: Observation) -> int | None:
    """Sum of the sources' own positions: it moves whenever a source does."""
    present = [p.current_offset for p in observation.partitions if p.current_offset is not None]
    return sum(present) if present else None


def extend(
    run: RunMemory, readings: Sequence[OperatorReading], at: float, settings: AnalysisSettings
) -> tuple[RunMemory, bool]:
    """Take an observation's counters in. Returns the ring and whether the snapshot was a new one."""
    cells = [_cell(reading) for reading in readings]
    if run.snapshot and _unchanged(run.snapshot, cells):
        return run, False
    first = not run.snapshot
    run = replace(run, snapshot=tuple(cells), snapshot_at=at)
    if first:
        return run, True
    kept, cells = _without_fallen(run.rows, cells)
    rows = _bounded([*kept, Row(at, cells)], at, len(run.names), settings.trend_window_seconds)
    return replace(run, rows=rows), True


def _cell(reading: OperatorReading) -> Cell | None:
    if not reading.complete:
        return None
    # rounded to milliseconds: a tenth of the state would be digits below the engine's resolution
    times = (reading.busy_ms, reading.backpressured_ms, reading.idle_ms)
    return [reading.records_in, reading.records_out, *[None if time is None else round(time) for time in times]]


def _unchanged(before: Sequence[Cell | None], now: Sequence[Cell | None]) -> bool:
    """Equal counters are the same snapshot if they hold accumulated times: those never stand still for all."""
    return list(before) == list(now) and any(cell is not None and any(cell[2:]) for cell in now)


def _without_fallen(rows: Sequence[Row], cells: list[Cell | None]) -> tuple[list[Row], list[Cell | None]]:
    """Where a record counter fell within a run (a task restarted by itself), that operator's window starts again.

    The fallen reading itself is no sample: it may have missed some subtasks, and the next one would then jump.
    """
    fallen = {i for i, cell in enumerate(cells) if cell is not None and _fell(_last_cell(rows, i), cell)}
    if not fallen:
        return list(rows), cells
    kept = [Row(row.at, [None if i in fallen else cell for i, cell in enumerate(row.cells)]) for row in rows]
    return kept, [None if i in fallen else cell for i, cell in enumerate(cells)]


def _last_cell(rows: Sequence[Row], index: int) -> Cell | None:
    return next((row.cells[index] for row in reversed(rows) if row.cells[index] is not None), None)


def _fell(before: Cell | None, now: Cell) -> bool:
    if before is None:
        return False
    return any(a is not None and b is not None and b < a for a, b in zip(before[:2], now[:2], strict=True))


def _bounded(rows: list[Row], now: float, operators: int, reach_seconds: float) -> tuple[Row, ...]:
    """Rows within reach (and a few more where scrapes are far apart), thinned evenly where there are too many."""
    recent = [row for row in rows if row.at >= now - reach_seconds - 1]
    if len(recent) < _MIN_ROWS:
        recent = rows[-_MIN_ROWS:]
    limit = max(_MIN_ROWS + 1, min(_MAX_ROWS, _MAX_CELLS // max(1, operators)))
    while len(recent) > limit:
        # the row whose neighbours are closest to each other is missed least; both ends stay
        drop = min(range(1, len(recent) - 2), key=lambda i: recent[i + 1].at - recent[i - 1].at)
        del recent[drop]
    return tuple(recent)


class View(NamedTuple):
    """One operator's samples of the current run."""

    parallelism: int
    samples: tuple[Sample, ...]
    """All of the ring, oldest first."""
    taught: tuple[Sample, ...]
    """Those after the warm-up, in the shortest suffix that spans the capacity window; empty if there is none yet."""

    @property
    def seconds(self) -> float:
        """The span of `taught`."""
        return self.taught[-1].at - self.taught[0].at if self.taught else 0.0


def views(run: RunMemory, settings: AnalysisSettings, undisturbed_from: float | None = None) -> dict[str, View]:
    """Return the samples of every operator of the run, as far back as any window of it reaches.

    Samples before `undisturbed_from`, and in a warm-up after it, teach no capacity.
    """
    rows = run.rows
    reach = max(settings.capacity_window_seconds, settings.rate_window_seconds)
    first = len(rows) - 1
    # one row more than the window spans, so that the suffix can reach over it; never fewer than the windows need
    while first > 0 and (rows[-1].at - rows[first].at < reach or len(rows) - first < _MIN_ROWS):
        first -= 1
    rows = rows[max(0, first - 1) :]
    warm_from = max(run.started_at, undisturbed_from or run.started_at) + settings.warm_up_seconds
    start_of_all = _start_of_window(rows, warm_from, settings.capacity_window_seconds)
    found = {}
    for i, (name, parallelism) in enumerate(zip(run.names, run.parallelism, strict=True)):
        # cheaper than the generated constructor, which ten operators call a hundred times an observation
        samples = tuple([tuple.__new__(Sample, (row.at, *cell)) for row in rows if (cell := row.cells[i]) is not None])
        start = start_of_all
        if len(samples) < len(rows):
            start = _start_of_window(samples, warm_from, settings.capacity_window_seconds)
        found[name] = View(parallelism, samples, samples[start:])
    return found


def _start_of_window(samples: Sequence[Sample | Row], warm_from: float, span_seconds: float) -> int:
    """Return where the shortest suffix of three or more warm samples that spans the window begins; the end if none does."""
    for i in range(len(samples) - 3, -1, -1):
        if samples[i].at < warm_from:
            break
        if samples[-1].at - samples[i].at >= span_seconds - 1e-6:
            return i
    return len(samples)


def recent(samples: Sequence[Sample], span_seconds: float) -> Sequence[Sample]:
    """The longest suffix that spans at most `span_seconds`, of at least two samples where there are two."""
    if not samples:
        return ()
    end = samples[-1].at
    i = max(0, len(samples) - 2)
    while i > 0 and end - samples[i - 1].at <= span_seconds:
        i -= 1
    return samples[i:]


def elapsed_seconds(first: Sample, last: Sample, parallelism: int) -> float:
    """Time between two samples, by the engine's own accounting if it is plausible.

    Busy, idle and backpressured time of a subtask add up to the time it ran, as of the very snapshot the counters are
    from; the observations' times are only when that snapshot was looked at.
    """
    wall = last.at - first.at
    before, after = _accounted_ms(first), _accounted_ms(last)
    if before is None or after is None:
        return wall
    engine = (after - before) / 1000 / parallelism
    return engine if 0.5 * wall <= engine <= 2 * wall else wall


def _accounted_ms(sample: Sample) -> float | None:
    if sample.busy_ms is None or sample.idle_ms is None or sample.backpressured_ms is None:
        return None
    return sample.busy_ms + sample.idle_ms + sample.backpressured_ms


def rate(samples: Sequence[Sample], field: int, parallelism: int) -> float | None:
    """Records per second between the ends of the window; `field` is 1 for records in, 2 for records out."""
    if not samples or samples[0][field] is None or samples[-1][field] is None:
        samples = [sample for sample in samples if sample[field] is not None]
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    seconds = elapsed_seconds(first, last, parallelism)
    return None if seconds <= 0 else max(0.0, ((last[field] or 0) - (first[field] or 0)) / seconds)


class Shares(NamedTuple):
    """How an operator spent a window, mean over its subtasks. Slopes, not ends: booked times may fall for a while."""

    busy: float | None
    backpressured: float | None
    records_per_busy_second: float | None
    """Records in per second of busy time of one subtask."""


def shares(samples: Sequence[Sample], parallelism: int) -> Shares:
    """Busy and backpressured share by least squares over the window; None where a time is unknown."""
    if len(samples) < 2:
        return Shares(None, None, None)
    times, records, _, busy_ms, blocked_ms, idle_ms = zip(*samples, strict=True)
    weights = slope_weights(times)
    if weights is None:
        return Shares(None, None, None)
    busy, blocked, idle = (_weighted(weights, column) for column in (busy_ms, blocked_ms, idle_ms))
    per_second = 1000.0 * parallelism
    if busy is not None and blocked is not None and idle is not None:
        accounted = busy + blocked + idle
        if 0.5 * per_second <= accounted <= 2 * per_second:
            per_second = accounted
    taken = _weighted(weights, records)
    ratio = None
    if taken is not None and busy is not None and busy > 1e-9:
        ratio = max(0.0, taken) / (busy / 1000.0)
    return Shares(_share(busy, per_second), _share(blocked, per_second), ratio)


def _weighted(weights: Sequence[float], column: Sequence[float]) -> float | None:
    """Return the sum of the weights' products with the column less its first value; None if a value is unknown."""
    first = column[0]
    try:
        return sum([weight * (value - first) for weight, value in zip(weights, column, strict=True)])
    except TypeError:
        return None


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None else min(1.0, max(0.0, part / whole))
