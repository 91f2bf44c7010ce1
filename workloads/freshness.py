"""Age of results: the probe's calculations, without its consumer. Pure; times in seconds since the epoch."""

from collections import deque
from dataclasses import dataclass

RECENT_SECONDS = 2.0
"""Results arrive in a burst per window; the lag is the largest of this interval."""


class UnreadableResult(ValueError):
    """A sink record is not a result; the sentence names the field."""


@dataclass(frozen=True)
class Result:
    """Freshness of a sink record: produce times of its oldest and newest order."""

    oldest_seconds: float
    """Produce time of its oldest order."""
    newest_seconds: float

    @classmethod
    def read(cls, line: bytes) -> "Result":
        """Parse `<key>;<count>;<payload_bytes>;<oldest_ms>;<newest_ms>;<window_end_ms>`."""
        fields = line.split(b";")
        if len(fields) != 6:
            raise UnreadableResult(f"{len(fields)} fields where there should be 6")
        oldest, newest = (_millis(name, text) for name, text in (("oldest_ms", fields[3]), ("newest_ms", fields[4])))
        return cls(oldest / 1000, newest / 1000)


def _millis(name: str, text: bytes) -> int:
    if not text.isdigit():
        raise UnreadableResult(f"field {name}: {text[:40]!r} is not a time in milliseconds")
    return int(text)


class Freshness:
    """Collects results in order of arrival and returns their lag."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque()
        self._newest_oldest: float | None = None
        self._newest: float | None = None

    def add(self, result: Result, arrived_at: float) -> None:
        """Add one result. A producer's clock that is ahead gives a lag of 0."""
        lag = max(0.0, arrived_at - result.oldest_seconds)
        # A falling sequence: its first element is always the largest recent lag.
        while self._recent and self._recent[-1][1] <= lag:
            self._recent.pop()
        self._recent.append((arrived_at, lag))
        self._forget_before(arrived_at - RECENT_SECONDS)
        self._newest_oldest = max(self._newest_oldest or 0.0, result.oldest_seconds)
        self._newest = max(self._newest or 0.0, result.newest_seconds)

    def lag_seconds(self, now: float, newest_input: float | None = None) -> float | None:
        """Return the larger of the largest lag among recent results and the age of the freshest result.

        The age counts only while there is input without a result: `newest_input` is the produce time of the newest
        order in the job's input, None if unknown. Returns None before the first result.
        """
        if self._newest_oldest is None or self._newest is None:
            return None
        self._forget_before(now - RECENT_SECONDS)
        recent = self._recent[0][1] if self._recent else 0.0
        complete = newest_input is not None and newest_input <= self._newest
        return recent if complete else max(recent, now - self._newest_oldest)

    def _forget_before(self, at: float) -> None:
        while self._recent and self._recent[0][0] < at:
            self._recent.popleft()
