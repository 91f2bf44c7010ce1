"""The only place that reads the clock: everything else takes it as an argument."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for users and messages, monotonic seconds for waiting."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never decrease, from an arbitrary start."""


class SystemClock:
    """This machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class FakeClock:
    """A clock that advances on request only."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> datetime:
        """Advance by `seconds`; returns the new time."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
        return self._now
