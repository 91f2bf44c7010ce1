"""Methods of the forecast: each gives the rates of the minutes to come; the one with the smallest recent error counts.

Rates are means of a minute, leads are minutes after the last whole one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import NamedTuple

from services.analyzer.core.numbers import interpolate

from .profile import DAY, LATEST, WEEK, Cycle, rates_at

METHODS = ("last-value", "smoothing", "smoothing", "damped-trend", "daily-profile", "daily-profile", "daily-profile",
           "weekly-profile", "weekly-profile")  # fmt: skip
"""Published name of each candidate: two smoothings, the day before, and of each profile the difference to it and the
ratio."""
LEADS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120)
"""Leads of the path, in minutes."""
LATEST_DAY, DAILY, WEEKLY = 4, 5, 7
"""First candidates of each profile."""
JUDGED_LEADS = (1, 10, 30)
"""Leads at which the methods' errors are measured, in minutes; between them two methods are blended."""
_SMOOTHINGS = (0.5, 0.2)
_TREND_LEVEL, _TREND_SLOPE, _DAMPING = 0.6, 0.15, 0.9
_RETURN_MINUTES = 180.0
"""Time in which the difference to a profile decays to a third."""
_MAX_RATIO = 20.0
_ERROR_MINUTES = 1440.0
"""Time of high load over which a method's error is averaged."""
_MIN_JUDGED = 15
_ADVANTAGE, _WEEKLY_ADVANTAGE = 0.97, 0.9
"""A method takes over from the last value if its error is smaller by this factor, and from the profile of the week, which
alone knows how days differ."""


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


class Profiles(NamedTuple):
    """Usual rates, as texts; an empty one is unknown."""

    daily: str = ""
    weekly: str = ""
    latest: str = ""
    period_seconds: float = 86_400.0
    """Time after which the latest day repeats."""

    def needed(self, used: Collection[int]) -> "Profiles":
        """Return the profiles without those that none of the methods `used` reads."""
        daily, weekly = max(used) >= DAILY, max(used) >= WEEKLY
        return self._replace(
            daily=self.daily * daily, weekly=self.weekly * weekly, latest=self.latest * (LATEST_DAY in used)
        )


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

    def candidates(self, levels: Levels, profiles: Profiles, at: float) -> list[Candidate]:
        """Return the forecast of each method after `at`. Where the week is unknown the day's profile stands for it, and for
        that the last value."""
        rows = [[rate] * len(self._damped) for rate in (levels.last, *levels.smoothed)]
        rows.append(_not_negative([levels.level + levels.slope * each for each in self._damped]))
        found = [*map(Candidate, rows, self._gains)]
        same = found[0], found[0]
        before, _ = self._by_profile(levels.last, same, profiles.latest, LATEST, at - profiles.period_seconds)
        by_day = self._by_profile(levels.last, same, profiles.daily, DAY, at)
        return [*found, before, *by_day, *self._by_profile(levels.last, by_day, profiles.weekly, WEEK, at)]

    def _by_profile(
        self, last: float, others: tuple[Candidate, Candidate], profile: str, cycle: Cycle, at: float
    ) -> tuple[Candidate, Candidate]:
        """Return the difference to a profile and the ratio to it; where it is unknown, `others`."""
        if not profile:
            return others
        now, *usual = rates_at(profile, cycle, [at + each for each in self._seconds])
        if now is None:
            return others
        moving, away = [*zip(usual, self._returned, *others[0], strict=True)], last - now
        difference = Candidate(
            _not_negative([other if rate is None else rate + away * part for rate, part, other, _ in moving]),
            [gain if rate is None else part for rate, part, _, gain in moving],
        )
        if now <= 0:
            return difference, others[1]
        ratios = [
            gain if rate is None else _ratio(rate, now) for rate, gain in zip(usual, others[1].gains, strict=True)
        ]
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
    judged: float = 0.0
    """Forecasts that were judged; those of a low load count in part."""
    errors: list[float] = field(default_factory=lambda: [0.0] * len(METHODS))
    pending: list[list[float]] = field(default_factory=list)
    """Minute that each is due at, then a rate for each candidate."""

    @property
    def step(self) -> int:
        """Minutes between two forecasts that are judged: a few wait at any time, however long the lead."""
        return max(1, -(-self.lead // 6))

    def judge(self, minute: int, rate: float | None, high: float) -> None:
        """Compare the forecasts of this minute with its rate; without a rate they are dropped.

        The less of the rate `high` arrives or was forecast, the less a minute counts: which method knows the busy days is
        not forgotten on quiet ones.
        """
        while self.pending and self.pending[0][0] <= minute:
            due, *rates = self.pending.pop(0)
            if due < minute or rate is None:
                continue
            counts = min(1.0, max(rate, *rates) / high) if high > 0 else 1.0
            self.judged += counts
            weight = counts * max(1 / max(1.0, self.judged), min(1.0, self.step / _ERROR_MINUTES))
            self.errors = [e + weight * (abs(f - rate) - e) for e, f in zip(self.errors, rates, strict=True)]
            if rates[WEEKLY:] == rates[DAILY:WEEKLY]:  # no week is known: it begins with the smallest error
                self.errors[WEEKLY:] = [min(self.errors[:WEEKLY])] * len(self.errors[WEEKLY:])

    def issue(self, minute: int, rates: Sequence[float]) -> None:
        """Keep the candidates' rates until their minute."""
        if minute % self.step == 0:
            self.pending.append([minute + self.lead, *rates])

    def best(self, known: int) -> int:
        """Return which of the first `known` candidates has the smallest error, the last of equal ones; the last value unless
        another is clearly better."""
        if self.judged < _MIN_JUDGED:
            return 0
        i = min(reversed(range(known)), key=lambda i: self.errors[i] * (_WEEKLY_ADVANTAGE if i >= WEEKLY else 1.0))
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
