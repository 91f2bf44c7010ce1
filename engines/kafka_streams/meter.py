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
    _last: dict[str, float] = field(default_factory=dict)
    _source: str = ""
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

        The two count at different times, so that the first reading after a switch between them counts nothing.
        """
        source, value = ("commits", float(committed)) if by_threads is None else ("threads", by_threads)
        if source == self._source:
            self._counted += max(0.0, value - self._last[source])
        self._source = source
        self._last[source] = value
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
