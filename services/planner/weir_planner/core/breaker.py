"""Circuit breaker for one planner: after several failures in a row it is not called for a while. Pure: time is an
argument.

Closed: every call passes. Open: none does, for `pause_seconds`, twice as long after each failed probe. Half-open: one
probe passes, and closes or reopens the circuit. (M. Nygard, Release It!, 2nd ed., ch. 5.) If all failures were
timeouts, a call with a longer timeout passes: the impatience of one policy is no fault of the planner.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

FAILURES_TO_OPEN = 5
FIRST_PAUSE_SECONDS = 10.0
MAX_PAUSE_SECONDS = 300.0

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
    """The deadline of a probe in progress."""
    last_failure: str | None = None
    given_seconds: float = 0.0
    """The longest timeout of the failures; infinite if one was no timeout."""

    def circuit(self, now: float) -> Circuit:
        """Return the state for users."""
        if self.open_until is None:
            return "closed"
        return "open" if now < self.open_until else "half-open"

    def waits_seconds(self, now: float, timeout_seconds: float = 0.0) -> float:
        """Return how long a call with this timeout has to wait; 0: it passes."""
        if timeout_seconds > self.given_seconds and now >= (self.probe_until or now):
            return 0.0
        until = max(self.open_until or now, self.probe_until or now)
        return max(0.0, until - now)

    def refusal(self, planner: str, now: float, timeout_seconds: float) -> str | None:
        """Return why a call with this timeout does not pass; None: it passes."""
        if (waits := self.waits_seconds(now, timeout_seconds)) <= 0:
            return None
        return (
            f"planner {planner} is not called for another {waits:.0f} s after {self.failures} failures in a row, "
            f"the last: {self.last_failure}"
        )

    def called(self, now: float, timeout_seconds: float) -> "Breaker":
        """Let a call pass; behind an opened circuit it is the probe, and other calls wait for it."""
        return self if self.open_until is None else replace(self, probe_until=now + timeout_seconds)

    def failed(self, now: float, reason: str, given_seconds: float = math.inf) -> "Breaker":
        """Record a useless reply, or none within `given_seconds`."""
        failures, given = self.failures + 1, max(self.given_seconds, given_seconds)
        counted = replace(self, failures=failures, last_failure=reason, given_seconds=given)
        if self.open_until is not None:
            if now < self.open_until:
                return replace(counted, probe_until=None)  # a call from before it opened, or with a longer timeout
            pause = min(2 * self.pause_seconds, MAX_PAUSE_SECONDS)
        elif failures >= FAILURES_TO_OPEN:
            pause = self.pause_seconds
        else:
            return counted
        return replace(counted, pause_seconds=pause, open_until=now + pause, probe_until=None)

    def answered(self) -> "Breaker":
        """Record a usable reply: closed, without failures."""
        return Breaker()
