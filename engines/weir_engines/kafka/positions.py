"""Log ends of a partition over the scrapes, and the record that waits at its reader's position.

A record's timestamp is whatever its producer wrote: event time, another unit, a clock that is ahead. It counts as append
time only where it agrees with the log ends as the monitor saw them.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from weir_contracts import Problem

ENDS_KEPT = timedelta(minutes=30)
"""How far back log ends are kept: the analyzer's own history reaches as far."""
ENDS_STEP = timedelta(seconds=10)
CLOCKS_DIFFER_SECONDS = 10.0
"""Largest difference between the clocks of producers, brokers and monitor that is no contradiction."""
SHIFT_SHARE = 0.1
"""Largest error of an age by timestamps that are no append times, as a share of the age."""
SHIFT_KEPT_SECONDS = 60.0
OLDEST_MS = 1_293_840_000_000
"""The year 2011, in which Kafka appeared: an earlier timestamp is no append time."""
_STILL_SCRAPES, _STILL_SECONDS = 2, 10.0
"""Scrapes, or seconds, after which a position that stands still with its log's end is looked up."""
_STUCK_SECONDS = 60.0
"""The same for a position whose log grows: longer than the usual commit intervals."""


@dataclass(frozen=True)
class FirstRecord:
    """First record at or after an offset that a reader gets."""

    offset: int
    """Offset of the record; without one the log's end: between the two are markers, aborted or compacted records."""
    exists: bool = True
    timestamp_ms: int | None = None
    """Timestamp as it is stored, in ms since 1970. None: there is none."""
    is_append_time: bool = False
    """Whether the broker set the timestamp (LogAppendTime), not the producer (CreateTime)."""


@dataclass(frozen=True)
class FirstRecords:
    """First records by topic and partition, and why some are missing."""

    found: Mapping[tuple[str, int], FirstRecord] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


@dataclass
class PartitionHistory:
    """Readings of a partition in earlier scrapes."""

    ends: deque[tuple[datetime, int]] = field(default_factory=deque)
    previous: tuple[datetime, int] | None = None
    """Time and log end of the scrape before the last."""
    last: tuple[datetime, int] | None = None
    committed: int | None = None
    committed_at: datetime | None = None
    rewound_at: datetime | None = None
    shift: tuple[datetime, float] | None = None
    """When a new record's timestamp was compared with the log ends, and by how many seconds it was off."""

    def add_end(self, end: int, now: datetime) -> None:
        self.previous = self.last
        if self.last is not None and end < self.last[1]:
            # the topic was created again, or the log truncated: its offsets mean other records
            self.ends.clear()
            self.previous = self.shift = None
            self.rewound_at = now
        self.last = (now, end)
        if not self.ends or now - self.ends[-1][0] >= ENDS_STEP:
            self.ends.append((now, end))
        while now - self.ends[0][0] > ENDS_KEPT:
            self.ends.popleft()

    def add_commit(self, committed: int, now: datetime) -> None:
        if self.committed is not None and committed < self.committed:
            self.rewound_at = now
        if committed != self.committed:
            self.committed, self.committed_at = committed, now

    def reaches_back_to(self, offset: int) -> bool:
        """Return whether the kept log ends bracket the time at which an offset was appended."""
        return bool(self.ends) and self.ends[0][1] <= offset

    def append_time(self, record: FirstRecord, now: datetime) -> datetime | None:
        """Return the record's timestamp if it can be its append time; None if the log ends contradict it."""
        stamped_ms = record.timestamp_ms
        if stamped_ms is None or stamped_ms < OLDEST_MS or self.last is None:
            return None
        seen_at = next((at for at, end in self.ends if end > record.offset), self.last[0])
        if stamped_ms / 1000 > seen_at.timestamp() + CLOCKS_DIFFER_SECONDS:
            return None
        stamped = datetime.fromtimestamp(stamped_ms / 1000, UTC)
        allowed = max(CLOCKS_DIFFER_SECONDS, SHIFT_SHARE * (now - stamped).total_seconds())
        if self.shift is not None and not record.is_append_time and abs(self.shift[1]) > allowed:
            return None
        # by clocks that differ a little it may have been stamped after it was seen
        return min(stamped, seen_at)

    def next_probe(self, now: datetime) -> int | None:
        """Return the offset of a record that was appended between the last two scrapes, to compare its timestamp with
        them; None if there is none, or the last comparison is recent."""
        if self.previous is None or self.last is None or self.previous[1] >= self.last[1]:
            return None
        if self.shift is not None and (now - self.shift[0]).total_seconds() < SHIFT_KEPT_SECONDS:
            return None
        return self.previous[1]

    def compare(self, probe: FirstRecord) -> None:
        """Take in the timestamp of such a record."""
        if self.previous is None or self.last is None or not probe.exists or probe.timestamp_ms is None:
            return
        (before, _), (now, end) = self.previous, self.last
        if probe.offset < end:
            stamped = probe.timestamp_ms / 1000
            late, early = stamped - now.timestamp(), before.timestamp() - stamped
            self.shift = (now, late if late > 0 else -early if early > 0 else 0.0)


@dataclass
class Waiting:
    """Position of a reader that is not its log's end, over the scrapes in which it did not move."""

    position: int
    since: datetime
    end: int
    end_since: datetime
    scrapes: int = 0
    """Scrapes in which neither the position nor the log's end moved."""
    found: FirstRecord | None = None
    """First record at or after the position, where it was looked up."""
    is_stale: bool = False
    """Whether the position was beyond every record of the log: it is of an earlier topic or of a part cut off since."""

    def see(self, end: int, now: datetime) -> None:
        """Take in the log's end of another scrape."""
        if end == self.end:
            self.scrapes += 1
        else:
            self.end, self.end_since, self.scrapes = end, now, 0

    def next_lookup(self, start: int, end: int, now: datetime, *, is_old: bool) -> int | None:
        """Return the offset from which to look for a record; None if it is known, or the reader still moves.

        `is_old`: the position is older than the kept log ends.
        """
        found = self.found
        if found is None or (found.exists and found.offset < start):
            still_seconds = (now - max(self.since, self.end_since)).total_seconds()
            is_still = self.scrapes >= _STILL_SCRAPES or (self.scrapes > 0 and still_seconds >= _STILL_SECONDS)
            is_stuck = (now - self.since).total_seconds() >= _STUCK_SECONDS
            return max(self.position, start) if is_old or is_still or is_stuck else None
        return None if found.exists or found.offset >= end else max(found.offset, start)
