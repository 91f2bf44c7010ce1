"""Topics: the records appended over time, and the position of the reader in each partition.

Partitions fill in a fixed proportion, so one cumulative curve serves all: partition j holds `weight_j · A(t)` records.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

_EPSILON_RECORDS = 1e-6
"""A smaller backlog is a rounding error."""
MAX_FETCHES = 20
"""Fetches of each partition in one step."""


class AppendCurve:
    """A(t), piecewise linear and never falling."""

    def __init__(self) -> None:
        self._times = [0.0]
        self._counts = [0.0]

    @property
    def total(self) -> float:
        """Records appended until now."""
        return self._counts[-1]

    def append(self, until_seconds: float, records: float) -> None:
        """Append `records`, evenly from the last time to `until_seconds`."""
        self._times.append(until_seconds)
        self._counts.append(self._counts[-1] + records)

    def appended_at(self, count: float) -> float:
        """Return when the record after the first `count` was appended; the last time if it is still to come."""
        counts, times = self._counts, self._times
        after = bisect_right(counts, count)
        if after >= len(counts):
            return times[-1]
        low, high = counts[after - 1], counts[after]
        return times[after - 1] + (times[after] - times[after - 1]) * (count - low) / (high - low)

    def forget_before(self, count: float) -> None:
        """Drop the times of records before `count`."""
        first = bisect_right(self._counts, count) - 1
        if first > 0:
            del self._times[:first], self._counts[:first]


class Log:
    """A topic: records appended, and committed by its readers, by partition. `shares` of the partitions sum to 1."""

    def __init__(self, shares: Sequence[float]) -> None:
        self.shares = shares
        self.curve = AppendCurve()
        self.committed = [0.0] * len(shares)

    def forget_read(self) -> None:
        """Drop the append times of records before the committed offsets."""
        self.curve.forget_before(self._read_by_all(self.committed))

    def _read_by_all(self, positions: Sequence[float]) -> float:
        """Return the number of records of the topic up to which every partition is read."""
        return min(position / share for position, share in zip(positions, self.shares, strict=True))

    def _age_seconds(self, now: float, read: float) -> float:
        """Return the age of the oldest record after the first `read`."""
        if self.curve.total - read <= _EPSILON_RECORDS:
            return 0.0
        return max(0.0, now - self.curve.appended_at(read))


class Topic(Log):
    """A source's topic and its reader's position in each partition."""

    def __init__(self, shares: Sequence[float], fetch_records: float = math.inf) -> None:
        super().__init__(shares)
        self._positions = [0.0] * len(shares)
        self._level: float | None = 0.0
        """Appended records up to which all partitions are read; None: they differ, see `_positions`."""
        self.taken = 0.0
        """Records read, replayed ones counted once."""
        self._fetch_records = fetch_records
        self._fetched = [0.0] * len(shares)
        """Position up to which each partition is fetched."""
        self._began = [0.0] * len(shares)
        self._subtasks: list[list[int]] = []
        """Partitions of each subtask, the next one to read first."""
        self.busiest_share = 1.0
        """Share of all records that the busiest subtask reads."""

    @property
    def backlog(self) -> float:
        """Records not yet read."""
        return max(0.0, self.curve.total - self.taken)

    def positions(self) -> list[float]:
        """Return the next offset to read, by partition."""
        if self._level is not None:
            return [share * self._level for share in self.shares]
        return list(self._positions)

    def reported_positions(self) -> list[float | None]:
        """Return the positions as the reader reports them: None for a partition without a read since its assignment."""
        return [p if p > began else None for p, began in zip(self.positions(), self._began, strict=True)]

    def ends(self) -> list[float]:
        """Return the log-end offsets, by partition."""
        total = self.curve.total
        return [share * total for share in self.shares]

    def assign(self, parallelism: int) -> None:
        """Assign the partitions to `parallelism` subtasks."""
        self._subtasks = [
            list(range(first, len(self.shares), parallelism)) for first in range(min(parallelism, len(self.shares)))
        ]
        self.busiest_share = max(sum(self.shares[j] for j in own) for own in self._subtasks)
        self._fetched = self.positions()
        self._began = self.positions()

    def lag_seconds(self, now: float) -> float:
        """Return the age of the oldest unread record over the partitions."""
        return self._age_seconds(now, self._read_by_all(self._positions) if self._level is None else self._level)

    def take(self, max_records: float, per_subtask: float) -> float:
        """Read up to `max_records`, up to `per_subtask` by each subtask; returns the number of records read.

        A limit is divided evenly over the subtasks, as far as they have records (max-min fair, as credits are). A
        subtask reads the fetched records of one partition, fetches that partition again, and continues with the next
        one: with a large backlog the last partition waits, as with Kafka's consumer.
        """
        waiting = self.backlog
        if waiting <= max_records and self._level is not None and waiting * self.busiest_share <= per_subtask:
            self._level = self.taken = self.curve.total
            return waiting
        positions, ends = self.positions(), self.ends()
        left = [max(0.0, end - position) for end, position in zip(ends, positions, strict=True)]
        wanted = [sum(left[j] for j in own) for own in self._subtasks]
        level = min(per_subtask, water_level(wanted, max_records))
        taken = 0.0
        for own, has in zip(self._subtasks, wanted, strict=True):
            gets = min(has, level)
            if gets <= 0:
                continue
            self._read(own, gets, positions, ends)
            taken += gets
        self.move_to(positions)
        return taken

    def _read(self, own: list[int], records: float, positions: list[float], ends: Sequence[float]) -> None:
        """Let one subtask read `records` from its partitions."""
        left = records
        for _ in range(MAX_FETCHES * len(own)):
            j = own[0]
            part = min(left, max(0.0, self._fetched[j] - positions[j]))
            positions[j] += part
            left -= part
            if left <= _EPSILON_RECORDS:
                return
            self._fetched[j] = min(ends[j], positions[j] + self._fetch_records)
            own.append(own.pop(0))
        # After many fetches of every partition in one step the partitions were read evenly.
        each = water_level([ends[j] - positions[j] for j in own], left)
        for j in own:
            positions[j] += min(ends[j] - positions[j], each)

    def move_to(self, positions: Sequence[float]) -> None:
        """Set the next offset to read, by partition."""
        levels = [position / share for position, share in zip(positions, self.shares, strict=True)]
        even = max(levels) - min(levels) <= 1e-9 * max(1.0, *levels)
        self._positions = list(positions)
        self._level = levels[0] if even else None
        self.taken = levels[0] if even else sum(positions)


class TaskInput(Log):
    """Topic that one sub-topology reads: what was appended, read and committed, by partition."""

    def __init__(self, shares: Sequence[float]) -> None:
        super().__init__(shares)
        self.ends = [0.0] * len(shares)
        self.positions = [0.0] * len(shares)
        self.committed_times: list[float | None] = [None] * len(shares)
        """Time of the newest record that was processed at the last commit. None: nothing is committed."""

    def append(self, now: float, records: float) -> None:
        self.curve.append(now, records)
        total = self.curve.total
        self.ends = [share * total for share in self.shares]

    def appended_at(self, partition: int, position: float) -> float:
        """Return when the record at a position was appended."""
        return self.curve.appended_at(position / self.shares[partition])

    def lag_seconds(self, now: float) -> float:
        """Return the age of the oldest record that no task has processed."""
        return self._age_seconds(now, self._read_by_all(self.positions))


def water_level(amounts: Sequence[float], total: float) -> float:
    """Return the level at which `amounts`, each cut off there, sum to `total` (water filling)."""
    left = total
    ordered = sorted(amounts)
    for i, amount in enumerate(ordered):
        many = len(ordered) - i
        if amount * many >= left:
            return left / many
        left -= amount
    return ordered[-1] if ordered else 0.0
