"""Methods of the forecast: each gives the rates of the minutes to come; the one with the smallest recent error counts.

Rates are means of a minute, leads are minutes after the last whole one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import NamedTuple

from services.analyzer.core.numbers import interpolate

from .profile import DAY, WEEK, rates_at

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


class Candidate(NamedTuple):
    """One method's forecast at some leads."""

    rates: list[float]
    gains: list[float]
    """How much each rate moves with the latest one."""


class Ahead:
    """Forecasts of the methods at some leads."""

    def __init__(self, leads: Sequence[int]) -> None:
        self._seconds = [60.0 * (lead - 0.5) for lead in (0, *leads)]
        """From the end of a minute to the middles of that minute and of those `leads` later."""
        self._damped = [_DAMPING * (1 - _DAMPING**lead) / (1 - _DAMPING) for lead in leads]
        self._returned = [exp(-lead / _RETURN_MINUTES) for lead in leads]
        self._gains = [[gain] * len(leads) for gain in (1.0, *_SMOOTHINGS)]
        self._gains.append([_TREND_LEVEL * (1 + _TREND_SLOPE * each) for each in self._damped])

    def candidates(self, levels: Levels, daily: str, weekly: str, at: float) -> list[Candidate]:
        """Return the forecast of each method after `at`. The last value stands for a profile where it is unknown."""
        rows = [[rate] * len(self._damped) for rate in (levels.last, *levels.smoothed)]
        rows.append(_not_negative([levels.level + levels.slope * each for each in self._damped]))
        found = [*map(Candidate, rows, self._gains)]
        for profile, cycle in ((daily, DAY), (weekly, WEEK)):
            if profile:
                now, *usual = rates_at(profile, cycle, [at + each for each in self._seconds])
                found += self._by_profile(found[0], now, usual)
            else:
                found += found[0], found[0]
        return found

    def _by_profile(self, same: Candidate, now: float | None, usual: list[float | None]) -> tuple[Candidate, Candidate]:
        """Return the difference to a profile and the ratio to it, from its rates now and at the leads."""
        if now is None:
            return same, same
        last = same.rates[0]
        moving, away = [*zip(usual, self._returned, strict=True)], last - now
        difference = Candidate(
            _not_negative([last if rate is None else rate + away * part for rate, part in moving]),
            [1.0 if rate is None else part for rate, part in moving],
        )
        if now <= 0:
            return difference, same
        ratios = [1.0 if rate is None else _ratio(rate, now) for rate in usual]
        return difference, Candidate([last * ratio for ratio in ratios], ratios)


AT_LEADS, AT_JUDGED_LEADS = Ahead(LEADS), Ahead(JUDGED_LEADS)


def _ratio(rate: float, now: float) -> float:
    return min(max(rate / now, 1 / _MAX_RATIO), _MAX_RATIO)


def _not_negative(rates: list[float]) -> list[float]:
    return [rate if rate > 0 else 0.0 for rate in rates]


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

    def issue(self, minute: int, rates: Sequence[float]) -> None:
        """Keep the candidates' rates until their minute."""
        if minute % self.step == 0:
            self.pending.append([minute + self.lead, *rates])

    @property
    def best(self) -> int:
        """Candidate with the smallest error; the last value unless another is clearly better."""
        if self.judged < _MIN_JUDGED:
            return 0
        i = self.errors.index(min(self.errors))
        return i if self.errors[i] < _ADVANTAGE * self.errors[0] else 0


def blended(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the path from a row for each judged lead: there its value, between two leads a mean of both, weighted by
    distance."""
    near, middle, far = rows
    return [a * x + b * y + c * z for a, b, c, x, y, z in zip(*_WEIGHTS, near, middle, far, strict=True)]


_WEIGHTS = [
    [interpolate(log(lead), [(log(each), float(each == judged)) for each in JUDGED_LEADS]) for lead in LEADS]
    for judged in JUDGED_LEADS
]
"""Weights of each judged lead at `LEADS`."""
