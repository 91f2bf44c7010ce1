"""A topic as the brokers have it: how many records were appended until when, and how far each partition was read.

All partitions fill in a fixed proportion, so that one cumulative curve serves them all: partition j holds `weight_j · A(t)` records.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

_LEAST_RECORDS = 1e-6
"""Less waiting than this is a rounding error."""
MOST_TURNS = 20
"""Of each partition in one step."""


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
        """So many more, evenly from the last time to `until_seconds`."""
        self._times.append(until_seconds)
        self._counts.append(self._counts[-1] + records)

    def appended_at(self, count: float) -> float:
        """When the record after the first `count` was appended; for one that is still to come, now."""
        counts, times = self._counts, self._times
        after = bisect_right(counts, count)
        if after >= len(counts):
            return times[-1]
        low, high = counts[after - 1], counts[after]
        return times[after - 1] + (times[after] - times[after - 1]) * (count - low) / (high - low)

    def forget_before(self, count: float) -> None:
        """Nobody will ask for records before this any more."""
        first = bisect_right(self._counts, count) - 1
        if first > 0:
            del self._times[:first], self._counts[:first]


class Topic:
    """A source's topic and its reader's position in each partition."""

    def __init__(self, weights: Sequence[float], fetch_records: float = math.inf) -> None:
        whole = sum(weights)
        self.weights = [weight / whole for weight in weights]
        self.curve = AppendCurve()
        self._positions = [0.0] * len(self.weights)
        self._level: float | None = 0.0
        """While all partitions are read equally far: of how many appended records; None: `_positions` holds."""
        self.committed = [0.0] * len(self.weights)
        self._taken = 0.0
        self._fetch_records = fetch_records
        self._fetched = [0.0] * len(self.weights)
        """Up to where each partition's records lie at its reader."""
        self._began = [0.0] * len(self.weights)
        self._subtasks: list[list[int]] = []
        """Their partitions, the one whose turn it is first."""
        self._fullest = 1.0

    @property
    def taken(self) -> float:
        """Records read, the replayed ones once."""
        return self._taken

    @property
    def backlog(self) -> float:
        """Records that wait."""
        return max(0.0, self.curve.total - self._taken)

    def positions(self) -> list[float]:
        """Next record to be read, by partition."""
        if self._level is not None:
            return [weight * self._level for weight in self.weights]
        return list(self._positions)

    def told_positions(self) -> list[float | None]:
        """The same as the reader tells it: nothing of a partition that it has not read from since it was given it."""
        return [p if p > began else None for p, began in zip(self.positions(), self._began, strict=True)]

    def ends(self) -> list[float]:
        """Log-end offsets, by partition."""
        total = self.curve.total
        return [weight * total for weight in self.weights]

    def assign(self, parallelism: int) -> None:
        """Deal the partitions out to so many subtasks."""
        self._subtasks = [
            list(range(first, len(self.weights), parallelism)) for first in range(min(parallelism, len(self.weights)))
        ]
        self._fullest = max(sum(self.weights[j] for j in own) for own in self._subtasks)
        self._fetched = self.positions()
        self._began = self.positions()

    @property
    def busiest_share(self) -> float:
        """Share of all records that the subtask with most of them reads."""
        return self._fullest

    def rewind(self, positions: Sequence[float]) -> None:
        """Back to where reading is to begin again."""
        self._set(list(positions))

    def forget_read(self) -> None:
        """Forget when what lies before the committed offsets was appended."""
        self.curve.forget_before(
            min(position / weight for position, weight in zip(self.committed, self.weights, strict=True))
        )

    def lag_seconds(self, now: float, committed: bool = False) -> float:
        """Age of the oldest record that was not read: the largest over the partitions."""
        if self._level is not None and not committed:
            furthest = self._level
        else:
            where = self.committed if committed else self._positions
            furthest = min(position / weight for position, weight in zip(where, self.weights, strict=True))
        if self.curve.total - furthest <= _LEAST_RECORDS:
            return 0.0
        return max(0.0, now - self.curve.appended_at(furthest))

    def take(self, most: float, per_subtask: float) -> float:
        """Read at most `most` records and `per_subtask` by any one; returns how many were read.

        Who is held back gets the same from each subtask, as far as it has any (max-min fair, as credits are). A subtask reads
        what it has fetched of one partition, fetches that partition again, and goes on with the next one: while much waits,
        the last partition in turn is not read at all for a while, as with Kafka's consumer.
        """
        waiting = self.backlog
        if waiting <= most and self._level is not None and waiting * self._fullest <= per_subtask:
            self._level = self._taken = self.curve.total
            return waiting
        positions, ends = self.positions(), self.ends()
        left = [max(0.0, end - position) for end, position in zip(ends, positions, strict=True)]
        wanted = [sum(left[j] for j in own) for own in self._subtasks]
        level = min(per_subtask, water_level(wanted, most))
        taken = 0.0
        for own, has in zip(self._subtasks, wanted, strict=True):
            gets = min(has, level)
            if gets <= 0:
                continue
            self._read(own, gets, positions, ends)
            taken += gets
        self._set(positions)
        return taken

    def _read(self, own: list[int], records: float, positions: list[float], ends: Sequence[float]) -> None:
        """Let one subtask read so many of the records that wait in its partitions."""
        left = records
        for _ in range(MOST_TURNS * len(own)):
            j = own[0]
            part = min(left, max(0.0, self._fetched[j] - positions[j]))
            positions[j] += part
            left -= part
            if left <= _LEAST_RECORDS:
                return
            self._fetched[j] = min(ends[j], positions[j] + self._fetch_records)
            own.append(own.pop(0))
        # A step in which every partition's fetches were read many times over: then they were read evenly.
        each = water_level([ends[j] - positions[j] for j in own], left)
        for j in own:
            positions[j] += min(ends[j] - positions[j], each)

    def _set(self, positions: list[float]) -> None:
        levels = [position / weight for position, weight in zip(positions, self.weights, strict=True)]
        even = max(levels) - min(levels) <= 1e-9 * max(1.0, *levels)
        self._positions = positions
        self._level = levels[0] if even else None
        self._taken = self._level if self._level is not None else sum(positions)


def water_level(amounts: Sequence[float], whole: float) -> float:
    """The level up to which `amounts` may be filled so that together they make `whole` (water filling)."""
    left = whole
    ordered = sorted(amounts)
    for i, amount in enumerate(ordered):
        many = len(ordered) - i
        if amount * many >= left:
            return left / many
        left -= amount
    return ordered[-1] if ordered else 0.0
