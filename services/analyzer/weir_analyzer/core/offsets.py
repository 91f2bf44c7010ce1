"""Offsets of partitions: the logs' ends over time, where a reader is, and which record waits for it.

The history of the logs' ends gives demand, and the age of waiting records. It belongs to the brokers, so it outlives
runs. It is decimated with age: every scrape of the last seconds, one in 2 s for a minute, then a spacing of about a
twelfth of the age, so that 40 minutes need some 80 rows and an age read from it is right within a tenth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from weir_contracts import Observation, PartitionReading

from .window import since

HISTORY_SECONDS = 2400.0
"""The oldest lag that is known without extrapolation."""

_ALL_SECONDS = 12.0
_DENSE_SECONDS = 65.0
_SPACING_SECONDS = 2.0
_AGE_PER_SPACING = 12.0
_MAX_CELLS = 60_000
_DISTANCES = 5
_DISTANCES_AWAY = 2.5
_SECONDS_AWAY = 5.0
"""Shortest silence of the brokers that counts as an absence: more than a lost scrape."""
_NO_LONGER_ASKED_SECONDS = 600.0
"""Brokers silent for longer are not the job's, or are not scraped any more: a job whose brokers are away has failed by
then."""


LogRow = tuple[float, list[int | None]]
"""Time and log-end offsets in the order of `LogHistory.keys`; a row may be shorter than the keys."""


@dataclass(frozen=True, slots=True)
class LogHistory:
    """Log-end offsets of all partitions over time. It belongs to the brokers, so it outlives runs."""

    keys: tuple[str, ...] = ()
    rows: tuple[LogRow, ...] = ()
    distances: tuple[float, ...] = ()
    """Seconds between the last few answers of the brokers."""
    back_at: float | None = None
    """When they answered again after the latest absence; None: they were never away."""


def key_of(partition: PartitionReading) -> str:
    """A partition's name in the history."""
    return f"{partition.operator}\n{partition.topic}\n{partition.partition}"


def extend(
    history: LogHistory, partitions: Sequence[PartitionReading], at: float, interval_seconds: float
) -> LogHistory:
    """Take the log-end offsets of an observation in; none at all leave the history as it is."""
    ends = {key_of(p): p.log_end_offset for p in partitions if p.log_end_offset is not None}
    if not ends:
        return history
    present = set(history.keys)
    keys = history.keys + tuple([key for key in ends if key not in present])
    rows = list(history.rows)
    if recreated := _recreated(history.keys, rows, ends):
        rows = [(t, [None if i in recreated else end for i, end in enumerate(row)]) for t, row in rows]
    rows = _decimated([*rows, (at, [ends.get(key) for key in keys])], at, len(keys))
    keys, rows = _without_forgotten(keys, rows)
    distances, back_at = _heard(history, at, interval_seconds)
    return LogHistory(keys, tuple(rows), distances, back_at)


def _heard(history: LogHistory, at: float, interval_seconds: float) -> tuple[tuple[float, ...], float | None]:
    """Return the latest distances between answers of the brokers, and when they answered again after an absence.

    An absence is judged by the last distances as well as by the interval: a monitor whose scrapes take longer than the
    interval hears rarely of brokers that are there. It is noted at once, because rows are thinned out later and then
    lie further apart than they were heard.
    """
    if not history.rows:
        return history.distances, history.back_at
    distance = at - history.rows[-1][0]
    usual = median(history.distances) if len(history.distances) == _DISTANCES else 0.0
    absent = distance > max(_DISTANCES_AWAY * max(interval_seconds, usual), _SECONDS_AWAY)
    return (*history.distances, round(distance, 3))[-_DISTANCES:], at if absent else history.back_at


def brokers_back_at(history: LogHistory, now: float) -> float | None:
    """Return when the brokers answered again after their latest absence; `now` while they do not answer.

    None: they were never away, never answered, or are not scraped any more. A gap in the observations counts too: those
    travel by brokers themselves, which may be the same ones.
    """
    if not history.rows:
        return None
    silent = now - history.rows[-1][0]
    if silent > 0:
        return now if silent <= _NO_LONGER_ASKED_SECONDS else None
    return history.back_at


def _recreated(keys: Sequence[str], rows: Sequence[LogRow], ends: dict[str, int]) -> set[int]:
    """Columns whose log now ends earlier than it did: the topic was created again, its history means nothing."""
    fallen = set()
    for i, key in enumerate(keys):
        end = ends.get(key)
        if end is None:
            continue
        last = next((row[i] for _, row in reversed(rows) if i < len(row) and row[i] is not None), None)
        if last is not None and end < last:
            fallen.add(i)
    return fallen


def _decimated(rows: list[LogRow], now: float, columns: int) -> list[LogRow]:
    """Drop what is too old or too close to its older neighbour for its age; the newest always stays.

    Compared with the older neighbour, because that one stays: compared with the newer, every row would fall as it ages.
    """
    coarser = max(1.0, len(rows) * columns / _MAX_CELLS)
    kept: list[LogRow] = []
    for row in rows:
        age = now - row[0]
        if age > HISTORY_SECONDS:
            continue
        if age > _ALL_SECONDS and kept:
            spacing = _SPACING_SECONDS if age <= _DENSE_SECONDS else age / _AGE_PER_SPACING
            if row[0] - kept[-1][0] < spacing * coarser - 1e-6:
                continue
        kept.append(row)
    return kept


def _without_forgotten(keys: tuple[str, ...], rows: list[LogRow]) -> tuple[tuple[str, ...], list[LogRow]]:
    """Remove partitions that no row has an offset of; the newest row has one of all others in the usual case."""
    forgotten = {
        i
        for i, end in enumerate(rows[-1][1])
        if end is None and not any(i < len(row) and row[i] is not None for _, row in rows)
    }
    if not forgotten:
        return keys, rows
    rows = [(at, [end for i, end in enumerate(row) if i not in forgotten]) for at, row in rows]
    return tuple([key for i, key in enumerate(keys) if i not in forgotten]), rows


class Interval(NamedTuple):
    """Records appended to all partitions of a source between two rows."""

    start: float
    end: float
    records: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / (self.end - self.start)


def column(history: LogHistory, i: int) -> list[tuple[float, int]]:
    """A partition's (time, log end) points, oldest first."""
    return [(at, end) for at, ends in history.rows if i < len(ends) and (end := ends[i]) is not None]


def intervals(history: LogHistory, operator: str, start: float, *, of_readable: bool = False) -> list[Interval] | None:
    """Return the records appended between consecutive rows from `start` on (at least the last two rows), oldest first.

    A gap of a partition is bridged by a straight line; a partition first seen within the window counts from then on.
    None (unknown demand) if the newest row lacks a partition that another row of the window has; `of_readable`: then those
    of the other partitions, None without any.
    """
    columns = columns_of(history.keys, operator)
    rows = since(history.rows, start - 1e-6, 2)
    if not columns or len(rows) < 2:
        return None
    times = [at for at, _ in rows]
    try:
        # the usual case, every partition known in every row
        totals = [sum_of(ends, columns) for _, ends in rows]
        appended = [float(high - low) for low, high in pairwise(totals)]
    except (TypeError, IndexError):
        appended, is_readable = [0.0] * (len(rows) - 1), not of_readable
        for i in columns:
            column = [ends[i] if i < len(ends) else None for _, ends in rows]
            if all(end is None for end in column):
                continue
            if column[-1] is not None:
                is_readable = True
                _add_increments(appended, times, column)
            elif not of_readable:
                return None
        if not is_readable:
            return None
    return [Interval(*interval) for interval in zip(times, times[1:], appended, strict=False)]


@lru_cache(maxsize=16)  # demand and forecast of an observation read the same columns
def columns_of(keys: tuple[str, ...], operator: str) -> tuple[int, ...]:
    """Return the columns of an operator's partitions."""
    prefix = f"{operator}\n"
    return tuple([i for i, key in enumerate(keys) if key.startswith(prefix)])


def sum_of(ends: list[Any], columns: Sequence[int]) -> int:
    """Return the sum of some log ends; `TypeError` or `IndexError` if one is missing."""
    # a row may be shorter than the keys: as many ends as columns need not be those of the columns
    whole = len(columns) == len(ends) == columns[-1] + 1
    return sum(ends) if whole else sum([ends[i] for i in columns])


def _add_increments(appended: list[float], times: Sequence[float], ends: Sequence[int | None]) -> None:
    present = [(j, end) for j, end in enumerate(ends) if end is not None]
    for (i, start), (j, end) in pairwise(present):
        per_second = (end - start) / (times[j] - times[i])
        for k in range(i, j):
            appended[k] += per_second * (times[k + 1] - times[k])


def tail(history: LogHistory, i: int, offset: int) -> list[tuple[float, int]]:
    """Return the points of one column, oldest first, from the newest that is not beyond `offset` on."""
    points: list[tuple[float, int]] = []
    for at, ends in reversed(history.rows):
        if i < len(ends) and (end := ends[i]) is not None:
            points.append((at, end))
            if end <= offset:
                break
    points.reverse()
    return points


def appended_at(points: Sequence[tuple[float, int]], offset: int) -> float | None:
    """When the record at `offset` was appended, between the rows where the log end passed it.

    None if the log does not reach `offset` yet or the history does not reach back to it.
    """
    if not points or points[-1][1] <= offset:
        return None
    for i in range(len(points) - 1, 0, -1):
        (t0, low), (t1, high) = points[i - 1], points[i]
        if low <= offset < high:
            # the middle of the record's own unit: without bias whether one record or a million came in between
            return t0 + (t1 - t0) * (offset + 0.5 - low) / (high - low)
    return None


def end_at(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """Return the log end, or another value, at a time within its points; None outside of them."""
    if not points or at < points[0][0] or at > points[-1][0]:
        return None
    for (t0, low), (t1, high) in pairwise(points):
        if t0 <= at <= t1:
            return low + (high - low) * (at - t0) / (t1 - t0)
    return float(points[-1][1])


CLOCKS_DIFFER_SECONDS = 10.0
"""Largest difference between clocks that is no contradiction."""


def own_position(p: PartitionReading) -> int | None:
    """Return the source's position, or its commit without one; None if both are unknown."""
    return p.current_offset if p.current_offset is not None else p.committed_offset


def first_waiting(p: PartitionReading, position: float) -> float:
    """Return the offset of the first record that waits for a reader at `position`, as far as it is known.

    Retention may have deleted records from there on, and not every offset is a record: markers of transactions have
    one, and so had aborted and compacted records.
    """
    first = max(position, p.log_start_offset or 0)
    if p.next_record_offset is not None and position == own_position(p):
        first = max(first, p.next_record_offset)
    return first


def is_beyond(p: PartitionReading, position: float) -> bool:
    """Return whether `position` is after all records of the log, those of open transactions included."""
    return p.log_end_offset is not None and position > max(p.log_end_offset, p.high_watermark or 0)


def hidden_partitions(observation: Observation, source: str, known: int) -> int:
    """Return how many partitions a source says it reads besides the `known` ones whose offsets were read: in another
    cluster, or of a topic that the brokers do not list."""
    topology, deployment = observation.topology, observation.deployment
    if topology is None or (deployment is not None and deployment.group is not None):
        return 0  # a group's share of the work is tasks
    reported = topology.operator(source).source_partitions or 0
    return max(0, reported - known)


def is_of_another_job(partitions: Sequence[PartitionReading]) -> bool:
    """Return whether a group's commits are ahead of the positions in every partition that has both. If these positions
    move, another job commits to the group."""
    pairs = [(p.current_offset, p.committed_offset) for p in partitions]
    both = [(position, commit) for position, commit in pairs if position is not None and commit is not None]
    return bool(both) and all(commit > position for position, commit in both)


def append_time(p: PartitionReading, offset: int, points: Sequence[tuple[float, int]]) -> float | None:
    """Return when the record at `offset` was appended, by its timestamp if the log ends agree; None if unknown.

    `points` are (time, log end) around that offset, oldest first.
    """
    if p.position_appended_at is None:
        return appended_at(points, offset)
    earliest, latest = append_bounds(points, offset)
    stamped = p.position_appended_at.timestamp()
    if latest is None or is_contradicted(stamped, earliest, latest):
        return appended_at(points, offset)
    return min(stamped, latest) if earliest is None else max(earliest, min(stamped, latest))


def append_bounds(points: Sequence[tuple[float, int]], offset: int) -> tuple[float | None, float | None]:
    """Return the last time before the log reached beyond `offset`, and the first time after; None where not observed."""
    earliest = None
    for at, end in points:
        if end > offset:
            return earliest, at
        earliest = at
    return earliest, None


def is_contradicted(stamped: float, earliest: float | None, latest: float | None) -> bool:
    is_early = earliest is not None and stamped < earliest - CLOCKS_DIFFER_SECONDS
    return is_early or (latest is not None and stamped > latest + CLOCKS_DIFFER_SECONDS)
