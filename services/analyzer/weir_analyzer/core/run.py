"""The current run: its ring of samples, and rates and shares of time over a window of it.

Only a new run resets a difference. Three readings are no samples: the first of a run (its interval to the run's start
is unknown), an unchanged snapshot (the engine refreshes more slowly than it is scraped), and an incomplete one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from weir_contracts import OperatorReading, Run

from .window import AnalysisSettings, since, slope_weights, thinned, weighted

_MIN_ROWS = 5
"""Kept however old they are: an application scraped every minute has few of them in any window."""
_MAX_ROWS = 40
_MAX_CELLS = 12_000

COUNTERS = 5
"""Counters of an operator in a row: records in, records out, and busy, backpressured and idle time in ms."""


MISSING = -1
"""First counter of an operator whose reading is missing or incomplete; the others are None."""


Row = tuple[float, list[int | None]]
"""Time and counters of one fresh snapshot: those of the first operator of `RunState.names`, those of the second, …"""


class Mark(NamedTuple):
    """The end of an output burst: records that `source` had taken in and that had reached `target` by then."""

    at: float
    taken: int
    reached: int


@dataclass(frozen=True, slots=True)
class EdgeState:
    """An edge's output in the current run, burst by burst."""

    first: Mark
    last: Mark
    growing: bool = False
    """Whether the output grew in the latest interval."""
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source's lag in the current run: points of (time, records), and the latest estimate in seconds. Both are lower
    bounds while the lag of some partitions is unknown."""

    points: tuple[tuple[float, float], ...] = ()
    seconds: float | None = None
    basis: str = ""
    missing: int = 0
    """Checksum of the partitions whose lag is unknown; 0: all are known."""
    guessed_at: float | None = None
    """When the lag of some partition was last as of a commit, for want of a position; None: not in this run."""
    jumped: tuple[float, float] | None = None
    """Time and number of waiting records that the source reported once, after far fewer or more; None: there is none to
    confirm."""
    ages: tuple[tuple[float, float], ...] = ()
    """Points of (time, seconds) of a source that reports how far it is behind, instead of `points`."""
    full: tuple[float, float] | None = None
    """Lowest and highest throughput in records/s at which the source was fully busy; None: it never was, or its busy time
    follows its records."""
    full_before: tuple[float, float] | None = None
    """Parallelism and lowest such throughput of an earlier run."""
    demand: tuple[float, float, float] | None = None
    """Time and records/s of the last demand that was known from throughput alone, and the time since which it was a lower
    bound. Outlives the run."""
    doubt: str = ""
    """Why the busy time is not believed, until it follows the records again. Outlives the run. Empty: it is."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The samples of one run. Another run starts a new one: differences never span two."""

    running_since: float
    """By the engine's clock; identifies a run without a key."""
    started_at: float
    """The same instant by the monitor's clock."""
    attempt: int | None
    key: str | None
    """Identifies the run; None if the monitor gave none."""
    names: tuple[str, ...]
    parallelism: tuple[int, ...]
    rows: tuple[Row, ...] = ()
    snapshot: tuple[int | None, ...] = ()
    """Counters of the latest snapshot, sample or not, to recognise an unchanged one."""
    snapshot_at: float = 0.0
    """When it was first observed."""
    positions: int | None = None
    """Sum of the sources' own positions, which move apart from the counters."""
    positions_at: float = 0.0
    """When they last moved."""
    edges: dict[str, EdgeState] = field(default_factory=dict)
    sources: dict[str, SourceState] = field(default_factory=dict)


_MISSING_READING = (MISSING, None, None, None, None)
Counts = tuple[int | None, ...]


def start(run: Run, readings: Sequence[OperatorReading], started_at: float) -> RunState:
    """An empty ring for a run; `started_at` is its beginning by the monitor's clock."""
    return RunState(
        running_since=run.running_since.timestamp(),
        started_at=started_at,
        attempt=run.attempt,
        key=run.key,
        names=tuple([reading.operator for reading in readings]),
        parallelism=tuple([reading.parallelism for reading in readings]),
    )


def same_run(state: RunState, run: Run, readings: Sequence[OperatorReading]) -> bool:
    """Whether an observation belongs to the run in the state.

    Another parallelism or set of operators is another run, whatever the engine reports as its start.
    """
    if state.key is not None and run.key is not None:
        same = state.key == run.key
    else:
        attempts = {state.attempt, run.attempt} - {None}
        same = state.running_since == run.running_since.timestamp() and len(attempts) < 2
    return (
        same
        and state.names == tuple([reading.operator for reading in readings])
        and state.parallelism == tuple([reading.parallelism for reading in readings])
    )


def extend(
    run: RunState, readings: Sequence[OperatorReading], at: float, settings: AnalysisSettings
) -> tuple[RunState, bool]:
    """Take an observation's counters in. Returns the ring and whether the snapshot was a new one."""
    counters = _counters(readings)
    if run.snapshot and _unchanged(run.snapshot, counters):
        return run, False
    rows = run.rows
    if run.snapshot:
        kept, row = _without_fallen(rows, counters)
        rows = _bounded([*kept, (at, row)], at, len(run.names), settings.trend_window_seconds)
    return replace(run, snapshot=tuple(counters), snapshot_at=at, rows=rows), True


def _counters(readings: Sequence[OperatorReading]) -> list[int | None]:
    counters: list[int | None] = []
    for reading in readings:
        if reading.complete:
            # rounded to milliseconds: a tenth of the state would be digits below the engine's resolution
            times = (reading.busy_ms, reading.backpressured_ms, reading.idle_ms)
            counters += (reading.records_in, reading.records_out)
            counters += [None if time is None else round(time) for time in times]
        else:
            counters += _MISSING_READING
    return counters


def _unchanged(before: Sequence[int | None], now: Sequence[int | None]) -> bool:
    """Equal counters are the same snapshot if they hold accumulated times: those never stand still for all."""
    return list(before) == list(now) and any(any(now[i + 2 : i + COUNTERS]) for i in range(0, len(now), COUNTERS))


def _without_fallen(rows: Sequence[Row], counters: list[int | None]) -> tuple[Sequence[Row], list[int | None]]:
    """Where a record counter fell within a run (a task restarted by itself), that operator's window starts again.

    The fallen reading itself is no sample: it may have missed some subtasks, and the next one would then jump.
    """
    fallen = [i for i in range(0, len(counters), COUNTERS) if _fell(rows, counters, i)]
    if not fallen:
        return rows, counters

    def without(row: Sequence[int | None]) -> list[int | None]:
        left = list(row)
        for i in fallen:
            left[i : i + COUNTERS] = _MISSING_READING
        return left

    return [(at, without(row)) for at, row in rows], without(counters)


def _fell(rows: Sequence[Row], now: Sequence[int | None], i: int) -> bool:
    """Whether a record counter of the operator whose counters begin at `i` is lower than in its last sample."""
    before = next((row for _, row in reversed(rows) if row[i] != MISSING), None)
    if before is None or now[i] == MISSING:
        return False
    pairs = ((before[i], now[i]), (before[i + 1], now[i + 1]))
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _bounded(rows: list[Row], now: float, operators: int, reach_seconds: float) -> tuple[Row, ...]:
    """Rows within reach (and a few more where scrapes are far apart), thinned evenly where there are too many."""
    recent = since(rows, now - reach_seconds - 1, _MIN_ROWS)
    return tuple(thinned(recent, max(_MIN_ROWS + 1, min(_MAX_ROWS, _MAX_CELLS // max(1, operators)))))


_SHARE_SLACK = 0.25
"""Share of the window by which times that are booked up to 5 s late may exceed it."""
WARM_SECONDS = 7.0
"""Time for which a run has to be warm until shares are known before the window of capacity is full; Flink books idle time up
to 5 s late."""


class View(NamedTuple):
    """One operator's samples of the current run, a column for each counter, oldest first."""

    parallelism: int
    at: tuple[float, ...]
    records_in: Counts
    records_out: Counts
    busy_ms: Counts
    backpressured_ms: Counts
    idle_ms: Counts
    recent: int
    """Index from which the window of rates begins."""
    taught: int
    """Index from which the window of capacity begins: the shortest suffix after the warm-up that spans it."""
    samples: int
    """Number of samples in the window of capacity; 0 while it is not full."""
    seconds: float
    """Span of the window of capacity."""
    warm: int | None = None
    """Index from which the run is warm, once that is `WARM_SECONDS` long."""
    commits: bool = False
    """Whether the records are known from commits, so that a rate is taken from one commit to another."""

    def rate(self, counts: Counts, first: int) -> float | None:
        """Records per second between the sample `first` and the newest; None without two samples that have the counter."""
        last = len(counts) - 1
        if first < last and (counts[first] is None or counts[last] is None):
            present = [i for i in range(first, last + 1) if counts[i] is not None] or [last]
            first, last = present[0], present[-1]
        if first >= last:
            return None
        if self.commits and self.busy_ms[last] is None:
            first, last = self._between_commits(counts, first, last)
        seconds = self._elapsed_seconds(first, last)
        return None if seconds <= 0 else max(0.0, ((counts[last] or 0) - (counts[first] or 0)) / seconds)

    def _between_commits(self, counts: Counts, first: int, last: int) -> tuple[int, int]:
        """Return the samples of the first and the last commit, or all if the next commit is overdue."""
        present = [i for i in range(first, last + 1) if counts[i] is not None]
        changes = [now for before, now in pairwise(present) if counts[now] != counts[before]]
        if len(changes) < 2:
            return first, last
        period = (self.at[changes[-1]] - self.at[changes[0]]) / (len(changes) - 1)
        is_overdue = self.at[last] - self.at[changes[-1]] > 2 * period
        return (first, last) if is_overdue else (changes[0], changes[-1])

    def _elapsed_seconds(self, first: int, last: int) -> float:
        """Time between two samples, by the engine's own accounting if it is plausible.

        Busy, idle and backpressured time of a subtask add up to the time it ran, as of the very snapshot the counters
        are from; an observation's time is only when that snapshot was read.
        """
        wall = self.at[last] - self.at[first]
        accounted_ms = 0
        for times in (self.busy_ms, self.idle_ms, self.backpressured_ms):
            before, after = times[first], times[last]
            if before is None or after is None:
                return wall
            accounted_ms += after - before
        engine = accounted_ms / 1000 / self.parallelism
        return engine if 0.5 * wall <= engine <= 2 * wall else wall


def views(
    run: RunState, settings: AnalysisSettings, undisturbed_from: float | None = None, *, early: bool = False
) -> dict[str, View]:
    """Return the samples of every operator of the run, as far back as any window of it reaches.

    Samples before `undisturbed_from`, and in a warm-up after it, teach no capacity. `early`: shares of time are known
    from `WARM_SECONDS` of a warm run on, otherwise once the window of capacity is full.
    """
    rows = run.rows
    reach = max(settings.capacity_window_seconds, settings.rate_window_seconds)
    from_commits = settings.counts_commits
    first = len(rows) - 1
    # one row more than the window spans, so that the suffix can reach over it; never fewer than the windows need
    while first > 0 and (rows[-1][0] - rows[first][0] < reach or len(rows) - first < _MIN_ROWS):
        first -= 1
    rows = rows[max(0, first - 1) :]
    warm_from = max(run.started_at, undisturbed_from or run.started_at) + settings.warm_up_seconds

    def windows(times: tuple[float, ...]) -> tuple[int, int, int, float, int | None]:
        taught = _taught(times, warm_from, settings.capacity_window_seconds)
        samples = len(times) - taught
        seconds = times[-1] - times[taught] if samples else 0.0
        # commits are too few in the first seconds of a run
        warm = _warm(times, warm_from) if early and not samples and not from_commits else None
        return _recent(times, settings.rate_window_seconds), taught, samples, seconds, warm

    all_times = tuple([at for at, _ in rows])
    all_windows = windows(all_times)
    all_columns = list(zip(*[counters for _, counters in rows], strict=True)) or [()] * (COUNTERS * len(run.names))
    by_name = {}
    for i, (name, parallelism) in enumerate(zip(run.names, run.parallelism, strict=True)):
        times, bounds = all_times, all_windows
        columns = all_columns[i * COUNTERS : (i + 1) * COUNTERS]
        if MISSING in columns[0]:
            present = [k for k, first in enumerate(columns[0]) if first != MISSING]
            times = tuple([times[k] for k in present])
            columns = [tuple([column[k] for k in present]) for column in columns]
            bounds = windows(times)
        taken, given, busy, blocked, idle = columns
        by_name[name] = View(parallelism, times, taken, given, busy, blocked, idle, *bounds, from_commits)
    return by_name


def _taught(times: Sequence[float], warm_from: float, span_seconds: float) -> int:
    """Index of the shortest suffix of three or more warm samples that spans the window; their number if there is none."""
    for i in range(len(times) - 3, -1, -1):
        if times[i] < warm_from:
            break
        if times[-1] - times[i] >= span_seconds - 1e-6:
            return i
    return len(times)


def _warm(times: Sequence[float], warm_from: float) -> int | None:
    """Index of the first warm sample; None if there are fewer than three, or the run is warm for less than `WARM_SECONDS`."""
    first = next((i for i, at in enumerate(times) if at >= warm_from - 1e-6), len(times))
    return first if len(times) - first >= 3 and times[-1] - warm_from >= WARM_SECONDS - 1e-6 else None


def _recent(times: Sequence[float], window_seconds: float) -> int:
    """Index of the longest suffix within the window of rates, of at least two samples where there are two."""
    i = max(0, len(times) - 2)
    while i > 0 and times[-1] - times[i - 1] <= window_seconds:
        i -= 1
    return i


class Shares(NamedTuple):
    """An operator's time over a window, mean over its subtasks. Slopes, not ends: booked times may fall for a while."""

    busy: float | None = None
    backpressured: float | None = None
    records_per_busy_second: float | None = None
    """Records in per second of busy time of one subtask."""


def shares(view: View) -> Shares:
    """Busy and backpressured share by least squares over the window of capacity, and while that is not full over all
    warm samples; None where a time is unknown."""
    first = view.taught if view.warm is None else view.warm
    weights = slope_weights(view.at[first:])
    if weights is None:
        return Shares()
    busy = weighted(weights, view.busy_ms[first:])
    blocked = weighted(weights, view.backpressured_ms[first:])
    idle = weighted(weights, view.idle_ms[first:])
    taken = weighted(weights, view.records_in[first:])
    per_second = 1000.0 * view.parallelism
    if busy is not None and blocked is not None and idle is not None:
        accounted = busy + blocked + idle
        if 0.5 * per_second <= accounted <= 2 * per_second:
            per_second = accounted
    ratio = None
    if taken is not None and busy is not None and busy > 1e-9:
        ratio = max(0.0, taken) / (busy / 1000.0)
    return Shares(_share(busy, per_second), _share(blocked, per_second), ratio)


def _share(part: float | None, whole: float) -> float | None:
    """Return a share of time; None if it is clearly no share: booked late, it may leave 0 to 1 a little."""
    if part is None or not -_SHARE_SLACK <= part / whole <= 1 + _SHARE_SLACK:
        return None
    return min(1.0, max(0.0, part / whole))
