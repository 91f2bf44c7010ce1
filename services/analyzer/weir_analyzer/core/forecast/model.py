"""The model of one source's load, advanced by complete minutes, and its forecast at the end of one.

It is bounded: three profiles, an hour or two of rates, and a few forecasts that wait to be judged. `Flow` distinguishes
a load to learn from an input that is missing, and from the backlog that arrives after it.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from .band import Band
from .methods import (
    AT_JUDGED_LEADS,
    AT_LEADS,
    DAY,
    JUDGED_LEADS,
    LATEST,
    LEADS,
    METHODS,
    WEEK,
    WEEKLY,
    Errors,
    Levels,
    Profiles,
    blended,
    high_rate,
    rates_at,
    updated,
)

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


FIXED_MINUTES = (1, 5, 10, 30, 60)
"""Horizons that every source has, in minutes."""
MAX_MINUTES = LEADS[-1]
"""The longest horizon."""
_FORGOTTEN_MINUTES = 30
"""After a longer gap the levels begin with the first rate."""
_USUAL_WEIGHT = 1 / 720
SHIFTS = range(-60, 61, 5)
"""Minutes by which each day's load may come later than the day before's."""
_SHIFT_WEIGHT, _SHIFT_ADVANTAGE = 1 / 288, 0.8

_AROUND = range(-900, 901, 300)


class Minute(NamedTuple):
    """Mean rate of a minute since the epoch. None: unknown."""

    number: int
    rate: float | None


class Horizon(NamedTuple):
    """Peak within one horizon."""

    minutes: int
    point: int
    """Index of the path's highest rate within it."""
    middle: float
    """Factor of the error's unit, by which the peak is above that rate in the median."""
    bound: float | None
    """Factor of the error's unit up to the bound."""
    coverage: float | None
    judged: int


class Outlook(NamedTuple):
    """Forecast at the end of a minute."""

    last: float
    disturbed: bool
    """Whether the latest rates are those of an outage or of the surge after it, and do not count."""
    lowest: float
    usual: float
    method: int
    path: tuple[float, ...]
    """Rates at `LEADS`, as far as the longest horizon."""
    gains: tuple[float, ...]
    """How much each moves with the rate of the latest minute."""
    horizons: tuple[Horizon, ...]


@dataclass(slots=True)
class Model:
    """Everything learned of one source's load."""

    minute: int
    """The minute after the latest that was taken in."""
    levels: Levels
    flow: Flow
    usual: float
    """Mean rate over half a day."""
    rates: list[float | None] = field(default_factory=list)
    """Rates of the latest minutes, oldest first. None: unknown, or no pattern to learn."""
    five: list[float] = field(default_factory=list)
    """Rates of the minutes in the bin of the profiles that is not complete."""
    daily: str = ""
    weekly: str = ""
    latest: str = ""
    shift_errors: list[float] = field(default_factory=lambda: [0.0] * len(SHIFTS))
    """Mean distance to the rate of a day and each of `SHIFTS` before."""
    high: float = 0.0
    """Rate from which the load is high."""
    errors: list[Errors] = field(default_factory=lambda: [Errors(lead) for lead in JUDGED_LEADS])
    bands: list[Band] = field(default_factory=lambda: [Band(minutes) for minutes in FIXED_MINUTES])

    @classmethod
    def start(cls, minute: int, rate: float) -> "Model":
        """Begin with the first rate."""
        return cls(minute, Levels.start(rate), Flow.start(rate), rate)

    def follow(self, own_minutes: int) -> None:
        """Have the fixed horizons and the application's own, which begins with the errors of the next longer one."""
        wanted = _wanted(own_minutes)
        if [band.minutes for band in self.bands] != wanted:
            bands = {band.minutes: band for band in self.bands}
            self.bands = [bands.get(minutes) or self._like_longer(minutes) for minutes in wanted]

    def _like_longer(self, minutes: int) -> Band:
        longer = next((band for band in self.bands if band.minutes > minutes), None)
        if longer is None:
            return Band(minutes)
        quiet, high = (replace(errors, first=[*errors.first]) for errors in (longer.quiet, longer.high))
        return Band(minutes, quiet, high)

    def take(self, number: int, rate: float | None) -> None:
        """Take in the mean rate of a minute; minutes since the latest that was taken in are unknown."""
        missed = number - self.minute
        if missed > 0:
            self._skip(missed)
        self.minute = number + 1
        if rate is not None and missed > _FORGOTTEN_MINUTES:
            self.levels, self.flow = Levels.start(rate), Flow.start(rate)
        if rate is not None and not self._is_pattern(number, rate):
            rate = None
        self.rates = [*self.rates, rate][-self.bands[-1].minutes :]
        for band in self.bands:
            band.judge(number, self.rates, self.high)
        for errors in self.errors:
            errors.judge(number, rate, self.high)
        if rate is not None:
            self.levels.advance(rate)
            self.usual += _USUAL_WEIGHT * (rate - self.usual)
            self.five.append(rate)
        self._close_bins()

    def _skip(self, minutes: int) -> None:
        self.rates = [] if minutes >= MAX_MINUTES else [*self.rates, *[None] * minutes]
        self.five = []
        for minute in range(self.minute, min(self.minute + minutes, self.minute + LATEST.seconds // 60), 5):
            self.latest = updated(self.latest, LATEST, 60.0 * minute, None)

    def _is_pattern(self, number: int, rate: float) -> bool:
        usual = self._usual_at(number) if self.flow.has_fallen(rate) else None
        missing = self.flow.missing_minutes
        if not self.flow.is_pattern(rate, usual):
            if self.flow.missing_minutes == 1:
                # the minute before may be one that the outage began in
                self.levels = Levels.start(self.flow.expected)
            return False
        if missing:
            self.levels = Levels.start(rate)
        if missing >= OUTAGE_MINUTES and rate < BACK_SHARE * self.flow.expected:
            # No outage: the load fell for good, or falls at this time every day.
            for minute in range(number - missing, number, 5):
                self.daily = updated(self.daily, DAY, 60.0 * minute, rate)
        return True

    def _usual_at(self, number: int) -> float | None:
        """Return the lowest usual rate around this time of the day, since no day is punctual. None: unknown."""
        usual = rates_at(self.daily, DAY, [60.0 * number + seconds for seconds in _AROUND])
        return min([rate for rate in usual if rate is not None], default=None)

    def _close_bins(self) -> None:
        """Learn the profiles' bin that ends with this minute, if most of its minutes are known."""
        if self.minute % 5 == 0:
            at, rate = 60.0 * self.minute - 150, None
            if len(self.five) >= 3:
                rate = sum(self.five) / len(self.five)
                self.daily = updated(self.daily, DAY, at, rate)
                self.weekly = updated(self.weekly, WEEK, at, rate)
                if self.minute % 60 == 0 or not self.high:
                    self.high = high_rate(self.weekly, WEEK)
                self._compare_shifts(at, rate)
            self.latest = updated(self.latest, LATEST, at, rate)
            self.five = []

    def _compare_shifts(self, at: float, rate: float) -> None:
        before = rates_at(self.latest, LATEST, [at - 60.0 * shift - DAY.seconds for shift in SHIFTS])
        distances = [abs(rate - other) for other in before if other is not None]
        if len(distances) == len(SHIFTS):
            self.shift_errors = [e + _SHIFT_WEIGHT * (d - e) for e, d in zip(self.shift_errors, distances, strict=True)]

    @property
    def _profiles(self) -> Profiles:
        i, same = self.shift_errors.index(min(self.shift_errors)), SHIFTS.index(0)
        shift = SHIFTS[i if self.shift_errors[i] < _SHIFT_ADVANTAGE * self.shift_errors[same] else same]
        return Profiles(self.daily, self.weekly, self.latest, DAY.seconds + 60.0 * shift)

    def look_ahead(self, *, keep: bool = True) -> Outlook:
        """Forecast; `keep` the forecast for its judgement."""
        profiles, now = self._profiles, 60.0 * self.minute
        candidates = AT_JUDGED_LEADS.candidates(self.levels, profiles, now)
        is_week_known = candidates[-1] is not candidates[WEEKLY - 1]
        best = [errors.best(len(METHODS) if is_week_known else WEEKLY) for errors in self.errors]
        used = AT_LEADS.candidates(self.levels, profiles.needed(best), now)
        path, gains = blended([used[i].rates for i in best]), blended([used[i].gains for i in best])
        learning = keep and bool(self.rates) and self.rates[-1] is not None
        if learning:
            for judged, rates in zip(
                self.errors, zip(*[candidate.rates for candidate in candidates], strict=True), strict=True
            ):
                judged.issue(self.minute - 1, rates)
        points = points_within(self.bands[-1].minutes)
        horizons = []
        for band in self.bands:
            inside = path[: points_within(band.minutes)]
            max_rate = max(inside)
            if learning:
                band.issue(self.minute - 1, max_rate, self.usual, self.high)
            coverage = None if band.coverage is None else round(band.coverage, 4)
            errors = band.errors_of(max_rate, self.high)
            known = errors.middle, errors.bound, coverage, band.judged
            horizons.append(Horizon(band.minutes, inside.index(max_rate), *known))
        return Outlook(
            self.levels.last,
            self.flow.disturbed,
            self.flow.lowest,
            self.usual,
            best[1],
            tuple(path[:points]),
            tuple(gains[:points]),
            tuple(horizons),
        )


def points_within(minutes: int) -> int:
    """Return how many of the path's points a horizon has."""
    return bisect_right(LEADS, minutes)


@lru_cache(maxsize=256)
def _wanted(own_minutes: int) -> list[int]:
    """Return the horizons of a source. The own one is the shortest lead of at least that many minutes, so that it does
    not change with each restart."""
    return sorted({*FIXED_MINUTES, LEADS[min(bisect_left(LEADS, own_minutes), len(LEADS) - 1)]})
