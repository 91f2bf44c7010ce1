"""Methods of the forecast: each gives the rates of the minutes to come; the one with the smallest recent error counts.

Rates are means of a minute, leads are minutes after the last whole one.
"""

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from .profile import DAY, WEEK, Floats, rates_at

METHODS = ("last-value", "smoothing", "smoothing", "damped-trend", "daily-profile", "daily-profile",
           "weekly-profile", "weekly-profile")  # fmt: skip
"""Published name of each candidate: two smoothings, and of each profile the difference to it and the ratio."""
LEADS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120)
"""Leads of the path, in minutes."""
JUDGED_LEADS = (1, 10, 30)
"""Leads at which the methods' errors are measured, in minutes; between them two methods are blended."""
_SMOOTHINGS = (0.5, 0.2)
_TREND_LEVEL, _TREND_SLOPE, _DAMPING = 0.6, 0.15, 0.9
_RETURN_MINUTES = 180.0
"""Time in which the difference to a profile decays to a third."""
_MAX_RATIO = 20.0
_ERROR_MINUTES = 1440.0
"""Time over which a method's error is averaged."""
_MIN_JUDGED = 20
_ADVANTAGE = 0.97
"""A method takes over from the last value if its error is smaller by this factor."""


@dataclass(slots=True)
class Levels:
    """Values that the methods go on from."""

    last: float
    smoothed: list[float] = field(default_factory=list)
    level: float = 0.0
    slope: float = 0.0

    @classmethod
    def start(cls, rate: float) -> "Levels":
        """Begin with the first rate."""
        return cls(rate, [rate] * len(_SMOOTHINGS), rate, 0.0)

    def advance(self, rate: float) -> None:
        """Take in the rate of a minute."""
        self.last = rate
        self.smoothed = [s + a * (rate - s) for s, a in zip(self.smoothed, _SMOOTHINGS, strict=True)]
        expected = self.level + _DAMPING * self.slope
        level = expected + _TREND_LEVEL * (rate - expected)
        self.slope = _DAMPING * self.slope + _TREND_SLOPE * (level - expected)
        self.level = level


_AHEAD = np.array(LEADS, np.float64)
_DAMPED = _DAMPING * (1 - _DAMPING**_AHEAD) / (1 - _DAMPING)
_RETURNED = np.exp(-_AHEAD / _RETURN_MINUTES)
_TIMES = 60.0 * np.concatenate(([-0.5], _AHEAD - 0.5))
"""Seconds from the end of a minute to the middles of that minute and of those `LEADS` later."""


def candidates(levels: Levels, daily: str, weekly: str, at: float) -> tuple[Floats, Floats]:
    """Return the rates of each method at each of `LEADS` after `at`, and how much each moves with the latest rate.

    The last value stands for a profile where it is unknown.
    """
    rows, gains = np.empty((len(METHODS), len(LEADS))), np.ones((len(METHODS), len(LEADS)))
    rows[:] = levels.last
    rows[1], rows[2] = levels.smoothed
    gains[1], gains[2] = _SMOOTHINGS
    rows[3] = levels.level + levels.slope * _DAMPED
    gains[3] = _TREND_LEVEL * (1 + _TREND_SLOPE * _DAMPED)
    times = at + _TIMES
    for i, profile, cycle in ((4, daily, DAY), (6, weekly, WEEK)):
        usual = rates_at(profile, cycle, times)
        if usual is None or not isfinite(usual[0]):
            continue
        now, ahead = usual[0], usual[1:]
        known = np.isfinite(ahead)
        rows[i] = np.where(known, ahead + (levels.last - now) * _RETURNED, levels.last)
        gains[i] = np.where(known, _RETURNED, 1.0)
        if now > 0:
            gains[i + 1] = np.where(known, np.clip(ahead / now, 1 / _MAX_RATIO, _MAX_RATIO), 1.0)
            rows[i + 1] = levels.last * gains[i + 1]
    return np.maximum(0.0, rows), gains


@dataclass(slots=True)
class Errors:
    """Recent absolute error of each candidate at one lead, and forecasts that wait for their minute."""

    lead: int
    judged: int = 0
    errors: list[float] = field(default_factory=lambda: [0.0] * len(METHODS))
    pending: list[list[float]] = field(default_factory=list)
    """Minute that each is due at, then a rate for each candidate."""

    @property
    def step(self) -> int:
        """Minutes between two forecasts that are judged: a few wait at any time, however long the lead."""
        return max(1, -(-self.lead // 6))

    def judge(self, minute: int, rate: float | None) -> None:
        """Compare the forecasts of this minute with its rate; without a rate they are dropped."""
        while self.pending and self.pending[0][0] <= minute:
            due, *rates = self.pending.pop(0)
            if due < minute or rate is None:
                continue
            self.judged += 1
            weight = max(1 / self.judged, min(1.0, self.step / _ERROR_MINUTES))
            self.errors = [e + weight * (abs(f - rate) - e) for e, f in zip(self.errors, rates, strict=True)]

    def issue(self, minute: int, rates: list[float]) -> None:
        """Keep the candidates' rates until their minute."""
        if minute % self.step == 0:
            self.pending.append([minute + self.lead, *rates])

    @property
    def best(self) -> int:
        """Candidate with the smallest error; the last value unless another is clearly better."""
        if self.judged < _MIN_JUDGED:
            return 0
        i = min(range(len(METHODS)), key=self.errors.__getitem__)
        return i if self.errors[i] < _ADVANTAGE * self.errors[0] else 0


def blended(rows: Floats, best: list[int]) -> Floats:
    """Return the path: at each judged lead its best method, between two of them a mean of both, weighted by distance."""
    path: Floats = np.zeros(len(LEADS))
    for j, i in enumerate(best):
        path += _WEIGHTS[j] * rows[i]
    return path


_WEIGHTS = np.stack([np.interp(np.log(LEADS), np.log(JUDGED_LEADS), row) for row in np.eye(len(JUDGED_LEADS))])
