"""How many records are due now, so that a rate is held exactly on a clock that ticks as it likes. Pure."""

from dataclasses import dataclass

MOST_CATCH_UP_SECONDS = 1.0
"""After a longer stall (the machine slept, the broker was away) the rest is let go: a burst would be no honest load."""


@dataclass(frozen=True)
class Pace:
    """What is owed between two ticks."""

    since_seconds: float
    """Clock at the last tick."""
    fraction: float = 0.0
    """Of a record, owed from the last tick; below 1."""
    let_go: float = 0.0
    """Records that were never produced because a stall was too long."""

    def advance(self, now_seconds: float, rate: float) -> "tuple[Pace, int]":
        """The pace after this tick and the records that are due, at `rate` records/s since the last one.

        A clock that goes back owes nothing.
        """
        elapsed = max(0.0, now_seconds - self.since_seconds)
        counted = min(elapsed, MOST_CATCH_UP_SECONDS)
        owed = self.fraction + counted * rate
        due = int(owed)
        let_go = self.let_go + (elapsed - counted) * rate
        return Pace(max(now_seconds, self.since_seconds), owed - due, let_go), due
