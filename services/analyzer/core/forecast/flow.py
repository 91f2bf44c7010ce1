"""Distinguish a load to learn from an input that is missing, and from the backlog that arrives after it."""

from dataclasses import dataclass

MISSING_SHARE = 0.05
"""Below this share of the usual rate the input is missing, as in the planner's `input_outage`."""
FALLEN_SHARE = 0.2
"""Below this share of the last minutes' mean part of the input is missing."""
BACK_SHARE = 0.5
"""Share of the rate before the fall from which the input is back."""
LOW_SHARE = 0.5
"""A rate above this share of the week's lowest, or of the usual one at this time, is no outage."""
_RECENT = 0.5 ** (1 / 3)
_USUAL = 0.5 ** (1 / 60)
_LOWEST = 0.5 ** (1 / 10_080)
"""What remains of each mean after a minute: half-lives of 3 minutes, an hour and a week."""
OUTAGE_MINUTES = 60
"""A load that stays low for longer fell for good."""
_SURGE_SHARE = 1.25
"""Above this share of the expected rate the records that were held back arrive."""


@dataclass(slots=True)
class Flow:
    """Usual rates, and the records that an outage held back."""

    recent: float
    usual: float
    lowest: float
    """Lowest rate of about a week."""
    missing_minutes: int = 0
    """Minutes since the input is missing; 0: it is there."""
    expected: float = 0.0
    """Rate before the latest outage."""
    held_back: float = 0.0
    """Records that an outage held back and that have not arrived yet, in minutes of records/s."""

    @classmethod
    def start(cls, rate: float) -> "Flow":
        """Begin with the first rate."""
        return cls(rate, rate, rate)

    @property
    def disturbed(self) -> bool:
        """Whether the input is missing, or what an outage held back may still arrive."""
        return self.missing_minutes > 0 or self.held_back > 0

    def is_pattern(self, rate: float, usual_now: float | None) -> bool:
        """Take in the rate of a minute. Return whether it is the load's own: False in an outage and in the surge
        after it.

        `usual_now` is the usual rate at this time of the day. None: unknown.
        """
        if self.missing_minutes and not self._is_over(rate):
            return False
        if self.held_back and rate > _SURGE_SHARE * self.expected:
            self.held_back = max(0.0, self.held_back - (rate - self.expected))
            return False
        if self.held_back:
            self.held_back = 0.9 * self.held_back if self.held_back > self.expected else 0.0
        if self._is_missing(rate, usual_now):
            self.missing_minutes, self.expected = 1, self.recent
            self.held_back = self.recent - rate
            return False
        self.recent = rate + _RECENT * (self.recent - rate)
        self.usual = max(self.recent, _USUAL * self.usual)
        self.lowest = min(rate, rate + _LOWEST * (self.lowest - rate))
        return True

    def _is_over(self, rate: float) -> bool:
        if rate >= BACK_SHARE * self.expected:
            self.missing_minutes = 0
            return True
        if self.missing_minutes >= OUTAGE_MINUTES:
            self.missing_minutes, self.held_back = 0, 0.0
            self.recent = self.usual = self.lowest = rate
            return True
        self.missing_minutes += 1
        self.held_back += self.expected - rate
        return False

    def has_fallen(self, rate: float) -> bool:
        """Return whether the rate is far below that of the last minutes or of the last hour."""
        return rate < FALLEN_SHARE * self.recent or rate < MISSING_SHARE * self.usual

    def _is_missing(self, rate: float, usual_now: float | None) -> bool:
        lowest = self.lowest if usual_now is None else min(self.lowest, usual_now)
        return self.has_fallen(rate) and rate < LOW_SHARE * lowest
