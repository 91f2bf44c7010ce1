"""A circuit breaker for one planner: after several failures in a row it is not asked for a while. Pure: time is an argument.

Closed: everybody asks. Open: nobody does, for `pause_seconds`, twice as long after each probe that failed. Half-open: one asks, and
what comes of it closes the circuit or opens it again. (M. Nygard, Release It!, 2nd ed., ch. 5.) Where all that failed was too slow for the
time it was given, who gives it longer asks all the same: one policy's impatience is no fault of the planner's.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

FAILURES_TO_OPEN = 5
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0

Circuit = Literal["closed", "open", "half-open"]


@dataclass(frozen=True)
class Breaker:
    """The state of the circuit; times are monotonic seconds."""

    failures: int = 0
    """In a row."""
    pause_seconds: float = FIRST_PAUSE_SECONDS
    open_until: float | None = None
    """None: closed."""
    probe_until: float | None = None
    """Until then somebody else's probe is awaited."""
    because: str | None = None
    """The last failure."""
    given_seconds: float = 0.0
    """The longest time that was given to any of the failures; infinite where one was no matter of time."""

    def circuit(self, now: float) -> Circuit:
        """As it is seen from outside."""
        if self.open_until is None:
            return "closed"
        return "open" if now < self.open_until else "half-open"

    def waits_seconds(self, now: float, timeout_seconds: float = 0.0) -> float:
        """How long nobody who gives it so much time is let through; 0 where the next one is."""
        if timeout_seconds > self.given_seconds and now >= (self.probe_until or now):
            return 0.0
        until = max(self.open_until or now, self.probe_until or now)
        return max(0.0, until - now)

    def asked(self, now: float, timeout_seconds: float) -> "Breaker":
        """Somebody was let through; behind an opened circuit that is the probe, and the others wait for it."""
        return self if self.open_until is None else replace(self, probe_until=now + timeout_seconds)

    def failed(self, now: float, because: str, given_seconds: float = math.inf) -> "Breaker":
        """The answer was of no use, or did not come within `given_seconds`."""
        failures, given = self.failures + 1, max(self.given_seconds, given_seconds)
        if self.open_until is not None:
            if now < self.open_until:
                # Asked before it opened, or by somebody more patient.
                return replace(self, failures=failures, because=because, given_seconds=given, probe_until=None)
            pause = min(2 * self.pause_seconds, LONGEST_PAUSE_SECONDS)
        elif failures >= FAILURES_TO_OPEN:
            pause = self.pause_seconds
        else:
            return replace(self, failures=failures, because=because, given_seconds=given)
        return Breaker(failures, pause, now + pause, None, because, given)

    def answered(self) -> "Breaker":
        """A usable answer came: closed again, as if nothing had been."""
        return Breaker()
