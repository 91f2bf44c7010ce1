"""Counters and times of one group that single readings do not show: its run, throughput and commit interval."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import quantiles

from weir_contracts import MAX_COUNT, Run

from .assignment import Place

_MIN_COMMITS = 4
_MAX_COMMITS = 64
_MAX_INTERVAL_SECONDS = 3600.0


@dataclass
class _Commit:
    offset: int
    changed_at: datetime | None = None
    """Time of its last change. None: it has not changed since the first reading."""


@dataclass
class GroupMeter:
    """Memory of one collector. A new one counts from 0, which readers recognise as a fall of the counter."""

    _run: Run | None = None
    _commits: dict[Place, _Commit] = field(default_factory=dict)
    _distances: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_COMMITS))
    _processed: int = 0
    _last_committed: int | None = None
    _threads_began: float | None = None
    """Difference between `_counted` and the threads' counters, when these were first known."""
    _counted: float = 0.0

    def run(self, key: str, at: datetime) -> Run:
        """Return the run of an assignment: it began when the assignment was first seen."""
        if self._run is None or self._run.key != key:
            self._run = Run(key=key, running_since=at)
        return self._run

    def processed(self, committed: Mapping[Place, int], at: datetime) -> int:
        """Return the number of offsets by which commits went forward.

        The first commit that is seen of a partition counts nothing, and neither does one that goes back.
        """
        for place, offset in committed.items():
            last = self._commits.get(place)
            if last is None:
                self._commits[place] = _Commit(offset)
            elif offset != last.offset:
                self._processed += max(0, offset - last.offset)
                if last.changed_at is not None:
                    self._distances.append((at - last.changed_at).total_seconds())
                self._commits[place] = _Commit(offset, at)
        return min(self._processed, MAX_COUNT)

    def counted(self, committed: int, by_threads: float | None) -> int:
        """Return the records processed, by the threads' own counters where they are known, else by commits.

        Both count the same records, commits later: after a gap in the threads' counters the sum waits until these
        have caught up with it, so that no record counts twice.
        """
        if by_threads is None:
            self._counted += 0 if self._last_committed is None else max(0, committed - self._last_committed)
        else:
            if self._threads_began is None:
                self._threads_began = self._counted - by_threads
            self._counted = max(self._counted, self._threads_began + by_threads)
        self._last_committed = committed
        return min(int(self._counted), MAX_COUNT)

    @property
    def commit_interval_seconds(self) -> float | None:
        """Usual time between two commits of a partition, at least the interval of the readings; None until four were
        seen.

        The lower quartile: a partition without new records is committed more rarely.
        """
        if len(self._distances) < _MIN_COMMITS:
            return None
        lower, *_ = quantiles(self._distances, n=4, method="inclusive")
        return round(min(lower, _MAX_INTERVAL_SECONDS), 3)
