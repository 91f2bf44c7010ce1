"""Lag of a source in records and in seconds, and how it grows.

Lag in seconds is the age of the oldest unprocessed record: now minus the time its offset was appended, the largest over
the partitions. The source's own position counts; the committed offset, a sawtooth of the checkpoint interval, is a
fallback, named so, and its lag is as of the commit. A job that restarts resumes at its last checkpoint.

Partitions of unknown position leave the lag a lower bound: the others' sum of records, and largest age.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple
from zlib import crc32

from weir_contracts import Estimate, LagMetric, OperatorReading, PartitionReading, counted, unknown

from . import offsets as log
from .offsets import LogHistory, append_time, first_waiting, is_beyond, is_of_another_job, own_position
from .run import RunState, SourceState
from .window import AnalysisSettings, at_least, estimate, since, slope, thinned

NO_METRIC = "; the source reports no "
"""Follows the basis of a lag in place of the metric that the objective names."""
BACKLOG_SECONDS = 5.0
"""A source lagging by less is not backlogged: positions are read up to a few seconds late."""
MIN_WAITING_SECONDS = 10.0
"""Shortest time in which records wait for a group, after which its throughput is its capacity."""
_CARRY_SECONDS = 30.0
"""An unchanged snapshot keeps its lag at most this long; after that an unchanged position counts as a standstill."""
_MAX_POINTS = 40
_POSITION, _EMPTY_LOG = "position of the source", "position: the log is empty"
_SPREAD = "pendingRecords spread over partitions"
_OVERDUE_COMMITS = 2
"""Commit intervals without a commit while records wait, after which the lag grows with the log again."""
_DRAINED = "pendingRecords: what follows the position is no record"
_DRAINED_SECONDS, _DRAINED_SHARE = 10.0, 0.1
"""Time in which no position moved, and largest busy and backpressured share of a source that has nothing to read."""
_OWN_POSITION = frozenset({_POSITION, _EMPTY_LOG})
"""Bases of a lag that the reader's own position gives."""
_COUNTED = _OWN_POSITION | {_SPREAD, _DRAINED}
"""Bases of a lag that grows by what is appended less what is taken in."""


class PartitionLag(NamedTuple):
    """One partition's lag; None is unknown. `confidence` belongs to the seconds."""

    records: float | None
    seconds: float | None
    basis: str
    confidence: float


class Commits(NamedTuple):
    """How an application commits."""

    overdue_seconds: float | None = None
    """Age of a commit from which it is overdue; None for an application without a commit interval."""
    read_after_seconds: float = 0.0
    """Mean time from a commit until a scrape reads it."""


@dataclass(frozen=True, slots=True)
class SourceLag:
    """A source's lag over all its partitions."""

    records: Estimate
    seconds: Estimate
    growth: Estimate


def by_metric(metric: LagMetric, lag: SourceLag, reading: OperatorReading | None, taken: Estimate) -> SourceLag:
    """Return the lag of a source with the seconds of the metric that the objective names; its own if it does not report that.

    Both metrics stand still once no record comes any more: then they are no lag, unless records wait.
    """
    found, confidence = None, 0.0
    if reading is not None and metric == "currentFetchEventTimeLag":
        found, confidence = reading.fetch_lag_seconds, 0.6
    elif reading is not None:
        found, confidence = reading.watermark_lag_seconds, 0.5
    if found is None:
        basis = f"{lag.seconds.basis[:250]}{NO_METRIC}{metric}"
        return replace(lag, seconds=lag.seconds.model_copy(update={"basis": basis}))
    if taken.value == 0 and lag.records.value is None:
        reason = f"nothing is taken in and {metric} stands still: {lag.records.basis}"
        return replace(lag, seconds=at_least(lag.seconds.proven, reason, lag.seconds.confidence, lag.seconds.samples))
    if taken.value == 0 and lag.records.value == 0:
        return replace(
            lag, seconds=estimate(0.0, f"nothing is taken in and nothing waits: {metric} stands still", 0.6, 1)
        )
    return replace(lag, seconds=estimate(found, f"{metric}, which the objective names", confidence, 1))


def as_of_snapshot(state: SourceState, stale_seconds: float, settings: AnalysisSettings) -> SourceLag | None:
    """Return the lag as of the engine's last snapshot, if it has not changed for `stale_seconds`; None: it has."""
    if not state.points or not 0 < stale_seconds <= _CARRY_SECONDS:
        return None
    note = f"as of {stale_seconds:.0f} s ago: the engine's snapshot has not changed"
    made = at_least if state.missing else estimate
    records, seconds = (made(value, note, 0.6, 1) for value in (state.points[-1][1], state.seconds))
    return SourceLag(records, seconds, growth_of(state, settings))


def source_lag(
    operator: str,
    partitions: Sequence[PartitionReading],
    reading: OperatorReading | None,
    history: LogHistory,
    run: RunState | None,
    *,
    hidden: int,
    interval_seconds: float,
    resume: Mapping[str, int],
    stale_seconds: float,
    at: float,
    settings: AnalysisSettings,
) -> tuple[SourceLag, SourceState]:
    """Return the lag of one source, and its state in the run. `run` is None unless the job is running.

    `hidden` is the number of partitions that it reads besides `partitions`; `resume` has the offsets by partition at
    which the job resumes at least, as far as they are known; `stale_seconds` is the time for which the engine's
    snapshot, positions included, has not changed.
    """
    state = SourceState() if run is None else run.sources.get(operator, SourceState())
    if run is not None and (carried := as_of_snapshot(state, stale_seconds, settings)) is not None:
        return carried, state
    missing, guessed_at = 0, state.guessed_at
    if partitions:
        commits, commit_seconds = Commits(), settings.commit_seconds
        if commit_seconds:
            overdue_seconds = _OVERDUE_COMMITS * commit_seconds + interval_seconds
            commits = Commits(overdue_seconds, min(interval_seconds, commit_seconds) / 2)
        lags = _of_partitions(partitions, reading, history, run, at, commits=commits, resume=resume, hidden=hidden)
        records, seconds = _over_partitions(lags)
        guessed_at = at if any(lag.basis not in _COUNTED for lag in lags) else guessed_at
        if hidden:
            records, seconds = _with_hidden(records, seconds, reading, len(partitions), hidden)
        if records.value is None:
            unread = [log.key_of(p) for p, lag in zip(partitions, lags, strict=True) if lag.records is None]
            missing = crc32("\n".join([*unread, str(hidden)]).encode())
    elif reading is not None and reading.pending_records is not None:
        records = estimate(reading.pending_records, "pendingRecords of the source", 0.6, 1)
        seconds = unknown("the age of waiting records needs the brokers' offsets")
    else:
        records = seconds = unknown("no partition offsets and no pendingRecords")
    if run is None:
        return SourceLag(records, seconds, unknown("the job is not running")), state
    if records.proven is not None:
        # Sums over different partitions are no trend.
        before = state.points if state.missing == missing else ()
        kept = since(before, at - settings.trend_window_seconds - 1, 4)
        points = thinned([*kept, (at, records.proven)], _MAX_POINTS)
        state = SourceState(tuple(points), seconds.proven, seconds.basis, missing, guessed_at)
    elif state.points and at - state.points[-1][0] > _CARRY_SECONDS:
        return SourceLag(records, seconds, unknown(records.basis)), state
    return SourceLag(records, seconds, growth_of(state, settings)), state


def _with_hidden(
    records: Estimate, seconds: Estimate, reading: OperatorReading | None, known: int, hidden: int
) -> tuple[Estimate, Estimate]:
    """Return the lag of a source that reads `hidden` partitions besides the `known` ones, whose lag is given: pendingRecords
    are of all of them."""
    reason = f"the source reads {known + hidden} partitions, and the offsets of {known} are known"
    pending = None if reading is None else reading.pending_records
    if pending is None:
        bound = at_least(records.proven, reason, records.confidence, records.samples)
        return bound, at_least(seconds.proven, reason, seconds.confidence, seconds.samples)
    whole = estimate(max(pending, records.proven or 0.0), f"pendingRecords; {reason}", 0.6, 1)
    if _SPREAD in seconds.basis:
        return whole, seconds
    return whole, at_least(seconds.proven, reason, seconds.confidence, seconds.samples)


def _of_partitions(
    partitions: Sequence[PartitionReading],
    reading: OperatorReading | None,
    history: LogHistory,
    run: RunState | None,
    at: float,
    *,
    commits: Commits,
    resume: Mapping[str, int],
    hidden: int,
) -> list[PartitionLag]:
    """Return the lag of each partition. `hidden` is the number of others."""
    curves = _Curves(history)
    positions = _spread_pending(partitions, reading, hidden) if run is not None else {}
    if run is not None and run.positions_at == at and is_of_another_job(partitions):
        partitions = [p.model_copy(update={"committed_offset": None, "committed_at": None}) for p in partitions]
    lags = [
        _partition_lag(
            p,
            curves,
            positions.get(log.key_of(p)) if positions else None,
            run,
            at,
            commits=commits,
            resumes_at=resume.get(log.key_of(p)) if resume else None,
        )
        for p in partitions
    ]
    if run is not None and _is_drained(reading, run, at):
        still_at = run.positions_at + _DRAINED_SECONDS
        for i, (p, lag) in enumerate(zip(partitions, lags, strict=True)):
            # a log that grew since then is read by a source whose metrics stand still
            is_still = p.next_record_offset is None and log.end_at(curves.of(p), still_at) == p.log_end_offset
            if lag.basis == _POSITION and lag.records and is_still:
                lags[i] = PartitionLag(0.0, 0.0, _DRAINED, 0.6)
    return lags


def _is_drained(reading: OperatorReading | None, run: RunState, at: float) -> bool:
    """Return whether the source itself has nothing left to read, though its positions are before the logs' ends.

    A reader passes the markers of transactions without a record, and its position shows records only. Records that were
    fetched and wait for a busy or a blocked operator are not pending either.
    """
    if reading is None or reading.pending_records != 0 or at - run.positions_at < _DRAINED_SECONDS:
        return False
    shares = (reading.busy_share_mean, reading.backpressure_share_mean)
    return all(share is not None and share < _DRAINED_SHARE for share in shares)


def _over_partitions(lags: Sequence[PartitionLag]) -> tuple[Estimate, Estimate]:
    """Return lag in records, the sum over the partitions, and in seconds, the largest of them; lower bounds where some
    are unknown."""
    n, partitions = len(lags), counted(len(lags), "partition")
    known, aged = [lag for lag in lags if lag.records is not None], [lag for lag in lags if lag.seconds is not None]
    bases = " and ".join(sorted({lag.basis for lag in lags}))[:200]
    records = sum(lag.records or 0.0 for lag in known) if known else None
    sure = min((0.95 if lag.basis in _OWN_POSITION else 0.6 for lag in known), default=0.0)
    if len(known) == n:
        total = estimate(records, f"{bases}, {partitions}", sure, n)
    else:
        reason = f"the position in {n - len(known)} of {partitions} is unknown ({bases})"
        total = at_least(records, reason, sure, len(known))
    worst = max(aged, key=lambda lag: lag.seconds or 0.0, default=None)
    seconds, sure = None if worst is None else worst.seconds, min((lag.confidence for lag in aged), default=0.0)
    if worst is None or len(aged) < n:
        reason = f"the age of waiting records in {n - len(aged)} of {partitions} is unknown"
        return total, at_least(seconds, reason, sure, len(aged))
    return total, estimate(seconds, f"{worst.basis}, largest of {partitions}", sure, n)


class _Curves:
    """The partitions' (time, log end) points, oldest first; none for a partition that the history does not have."""

    def __init__(self, history: LogHistory) -> None:
        self._history = history
        self._columns = {key: i for i, key in enumerate(history.keys)}

    def of(self, p: PartitionReading) -> list[tuple[float, int]]:
        """Return all points of a partition."""
        i = self._columns.get(log.key_of(p))
        return [] if i is None else log.column(self._history, i)

    def reaching(self, p: PartitionReading, offset: int) -> list[tuple[float, int]]:
        """Return the points that decide when `offset` was appended."""
        i = self._columns.get(log.key_of(p))
        return [] if i is None else log.tail(self._history, i, offset)


def _spread_pending(
    partitions: Sequence[PartitionReading], reading: OperatorReading | None, hidden: int
) -> dict[str, float]:
    """Estimate positions from pendingRecords, spread evenly over the partitions and `hidden` others; none if a partition
    has its own."""
    if reading is None or reading.pending_records is None or any(p.current_offset is not None for p in partitions):
        return {}
    ends = {log.key_of(p): p.log_end_offset for p in partitions}
    if any(end is None for end in ends.values()):
        return {}
    share = reading.pending_records / (len(ends) + hidden)
    return {key: max(0.0, (end or 0) - share) for key, end in ends.items()}


def _partition_lag(
    p: PartitionReading,
    curves: _Curves,
    guessed: float | None,
    run: RunState | None,
    at: float,
    *,
    commits: Commits,
    resumes_at: int | None,
) -> PartitionLag:
    end = p.log_end_offset
    if end is None:
        return PartitionLag(None, None, "log end unknown", 0.0)
    if p.log_start_offset is not None and end <= p.log_start_offset:
        return PartitionLag(0.0, 0.0, _EMPTY_LOG, 0.95)
    # a committed record had been read: the engine stopped reporting a position behind it, as after it lost a worker
    overtaken = (
        p.current_offset is not None and p.committed_offset is not None and p.current_offset < p.committed_offset <= end
    )
    position = p.committed_offset if overtaken else own_position(p)
    if position is not None and is_beyond(p, position):
        return PartitionLag(None, None, "position after the log's end", 0.0)
    if p.current_offset is not None and run is not None and not overtaken:
        return _behind(p, p.current_offset, curves, at, _POSITION)
    if guessed is not None:
        return _behind(p, guessed, curves, at, _SPREAD, confidence=0.5)
    if p.committed_offset is not None:
        return _since_commit(p, p.committed_offset, curves, run, at, commits=commits, resumes_at=resumes_at)
    if p.current_offset is not None:
        return _behind(p, p.current_offset, curves, at, "last position of the source", confidence=0.6)
    return PartitionLag(None, None, "no position", 0.0)


def _since_commit(
    p: PartitionReading,
    committed: int,
    curves: _Curves,
    run: RunState | None,
    at: float,
    *,
    commits: Commits,
    resumes_at: int | None,
) -> PartitionLag:
    """Lag as of the commit while the run that made it goes on; as of now when nothing is being processed, or when the
    next commit is overdue."""
    committed_at = None if p.committed_at is None else p.committed_at.timestamp()
    overdue_seconds = commits.overdue_seconds
    # A group's tasks that did not move have continued; a job resumes at its checkpoint.
    resumed = overdue_seconds is None and committed_at is not None and run is not None and committed_at < run.started_at
    if run is None or committed_at is None or resumed:
        position, basis = committed, "committed offset, "
        # A position behind the log's end is of an earlier topic of this name.
        if resumes_at is not None and committed < resumes_at <= (p.log_end_offset or 0):
            position, basis = resumes_at, "last checkpoint, "
        basis += "where processing resumes" if run is None else "fallback: no position yet"
        return _behind(p, position, curves, at, basis, confidence=0.7 if run is None else 0.5)
    if overdue_seconds is not None and at - committed_at > overdue_seconds:
        now = _behind(p, committed, curves, at, "committed offset, and its next commit is overdue", confidence=0.6)
        if now.seconds is not None and now.seconds > overdue_seconds:
            return now
    points, committed_at = curves.of(p), committed_at - commits.read_after_seconds
    then = log.end_at(points, min(committed_at, points[-1][0])) if points else None
    lag = _behind(p, committed, curves, at, "committed offset, fallback, the commit's age taken off", confidence=0.5)
    records = lag.records if then is None else max(0.0, then - first_waiting(p, committed))
    if records == 0:
        return lag._replace(records=0.0, seconds=0.0)
    seconds = None if lag.seconds is None else max(0.0, lag.seconds - max(0.0, at - committed_at))
    return lag._replace(records=records, seconds=seconds)


def _behind(
    p: PartitionReading, position: float, curves: _Curves, at: float, basis: str, *, confidence: float = 0.9
) -> PartitionLag:
    """Lag of a reader at `position`, without records that retention has deleted and offsets that are no records."""
    first = first_waiting(p, position)
    records = max(0.0, (p.log_end_offset or 0) - first)
    if records == 0:
        return PartitionLag(0.0, 0.0, basis, confidence)
    points = curves.reaching(p, int(first))
    is_own = position == own_position(p)
    appended = append_time(p, int(first), points) if is_own else log.appended_at(points, int(first))
    if appended is not None:
        return PartitionLag(records, max(0.0, at - appended), basis, confidence)
    return PartitionLag(records, _beyond_history(first, points, at), basis, min(confidence, 0.3))


def _beyond_history(position: float, points: Sequence[tuple[float, int]], at: float) -> float | None:
    """Age of a record older than the history, if it was appended at the history's mean rate; None without a rate."""
    if len(points) < 2 or position >= points[0][1]:
        return None
    (t0, low), (t1, high) = points[0], points[-1]
    if high <= low or t1 <= t0:
        return None
    return max(0.0, at - t0 + (low - position) * (t1 - t0) / (high - low))


def is_backlogged(state: SourceState, taken: Estimate, settings: AnalysisSettings) -> bool:
    """Whether a source lagged throughout the capacity window and is not merely read late.

    A lag that neither grows nor shrinks looks the same as positions that are read late.
    """
    start = state.points[-1][0] - settings.lag_window_seconds if state.points else 0.0
    inside = since(state.points, start - 1e-6)
    if len(inside) < 3 or inside[0][0] > start + settings.lag_window_seconds / 3 or not taken.value:
        return False
    growth = slope(inside)
    smallest = min(records for _, records in inside)
    return growth is not None and smallest >= BACKLOG_SECONDS * taken.value and abs(growth) >= 0.05 * taken.value


def waiting_since(state: SourceState, taken: Estimate, settings: AnalysisSettings) -> float | None:
    """Return the time since which records wait for a group at each of its commits, if that spans two commits and the
    lag changes; None: nothing waits, or the throughput is not known from commits."""
    if not settings.counts_commits or not state.points or not taken.value:
        return None
    # A commit is read late by half its interval in the mean.
    smallest = (settings.commit_seconds / 2 + 1.0) * taken.value
    waits = list(takewhile(lambda point: point[1] >= smallest, reversed(state.points)))
    seconds = waits[0][0] - waits[-1][0] if len(waits) >= 3 else 0.0
    if seconds < max(MIN_WAITING_SECONDS, 2 * settings.commit_seconds):
        return None
    growth = slope(waits)
    return waits[-1][0] if growth is not None and abs(growth) >= 0.05 * taken.value else None


def growth_of(state: SourceState, settings: AnalysisSettings) -> Estimate:
    """Return the change of lag in records/s, over the window of capacity or the last four readings; of a lower bound it is
    one, too, since nothing is read from partitions of unknown position."""
    start = state.points[-1][0] - settings.lag_window_seconds if state.points else 0.0
    points = since(state.points, start - 1e-6, 4)
    if len(points) < 2:
        return unknown(f"{len(points)} of 2 readings of this run seen")
    seconds = points[-1][0] - points[0][0]
    confidence = min(0.9, 0.3 + 0.1 * len(points)) * min(1.0, seconds / 10)
    if state.missing:
        reason = "the position in some partitions is unknown"
        return at_least(slope(points), reason, confidence, len(points), seconds)
    return estimate(slope(points), "lag records, least squares", confidence, len(points), seconds)
