"""Methods of the forecast, and the profiles of a day and of a week that they read.

Each method gives the rates of the minutes to come; the one with the smallest recent error counts. Rates are means of a
minute, leads are minutes after the last whole one. A profile is the usual rate at each time of a day or a week, in UTC,
and the latest day is kept as it was; as text: two bytes a bin in base64, a logarithm of the rate.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, exp2, log, log2
from struct import Struct
from typing import NamedTuple

from weir_analyzer.core.window import interpolate
from weir_contracts import MAX_NUMBER, MIN_NUMBER

_STEPS_PER_OCTAVE = 512
"""Resolution: a rate is kept within 0.07 %."""
_MIN_OCTAVE = log2(MIN_NUMBER)
_UNKNOWN, _ZERO = 0, 1
"""Codes of a bin that was never observed, and of one without arrivals."""
_NEIGHBOURS = Struct("<HH").unpack_from
"""Reads the codes of two bins."""
_CODE = Struct("<H").unpack_from
_HIGH_SHARE, _NEAR_HIGH = 0.5, 0.9
"""Of a profile's highest rate, and of the rate that a quarter of its bins exceed."""


class Cycle(NamedTuple):
    """A cycle of the load and the bins of its profile."""

    seconds: int
    bin_seconds: int
    weight: float
    """Weight of the newest rate in its bin."""

    @property
    def bins(self) -> int:
        return self.seconds // self.bin_seconds


DAY = Cycle(86_400, 300, 0.3)
WEEK = Cycle(7 * 86_400, 300, 0.5)
LATEST = Cycle(26 * 3_600, 300, 1.0)
"""The latest 26 hours: a day, and the most by which the next may begin later."""


def updated(profile: str, cycle: Cycle, at: float, rate: float | None) -> str:
    """Return the profile with the mean rate of the bin around `at` in it; None empties the bin. An empty text is an empty
    profile."""
    content = bytearray(_content(profile, cycle))
    start = 2 * (int(at % cycle.seconds) // cycle.bin_seconds)
    code = _UNKNOWN
    if rate is not None:
        before = _rate(int.from_bytes(content[start : start + 2], "little"))
        code = _code(rate if before is None else before + cycle.weight * (rate - before))
    content[start : start + 2] = code.to_bytes(2, "little")
    return b64encode(content).decode()


def high_rate(profile: str, cycle: Cycle) -> float:
    """Return the rate from which the load is high; 0: nothing is known.

    It is near the one that a quarter of the profile exceeds, and at least half of its highest, or quiet bins would be
    high where peaks are short. The highest hundredth may be an accident.
    """
    codes = sorted(filter(None, memoryview(_content(profile, cycle)).cast("H")))
    if not codes:
        return 0.0
    return max(
        _NEAR_HIGH * (_rate(codes[3 * len(codes) // 4]) or 0.0),
        _HIGH_SHARE * (_rate(codes[-1 - len(codes) // 100]) or 0.0),
    )


def rates_at(profile: str, cycle: Cycle, times: Iterable[float]) -> list[float | None]:
    """Return the usual rates at some times, straight between the bins' middles. None: a bin is unknown."""
    seconds, bin_seconds, _ = cycle
    content = _content(profile, cycle)
    last = cycle.bins - 1
    rates: list[float | None] = []
    for time in times:
        position = time % seconds / bin_seconds - 0.5
        before = int(position) if position >= 0 else -1
        first, second = (
            _NEIGHBOURS(content, 2 * before) if 0 <= before < last else (*_CODE(content, 2 * last), *_CODE(content, 0))
        )
        low, high = _rate(first), _rate(second)
        rates.append(None if low is None or high is None else low + (position - before) * (high - low))
    return rates


@lru_cache(maxsize=8)  # one minute of one source reads it several times
def _content(profile: str, cycle: Cycle) -> bytes:
    """Return the codes of all bins, two bytes each. An empty text is an empty profile."""
    content = b64decode(profile, validate=True) if profile else bytes(2 * cycle.bins)
    if len(content) != 2 * cycle.bins:
        raise ValueError(f"a profile of {len(content)} bytes, not of {2 * cycle.bins}")
    return content


def _code(rate: float) -> int:
    if rate <= MIN_NUMBER:
        return _ZERO
    return 2 + round((log2(min(rate, MAX_NUMBER)) - _MIN_OCTAVE) * _STEPS_PER_OCTAVE)


@lru_cache(maxsize=4096)
def _rate(code: int) -> float | None:
    if code <= _ZERO:
        return None if code == _UNKNOWN else 0.0
    return exp2((code - 2) / _STEPS_PER_OCTAVE + _MIN_OCTAVE)


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
        self._gains.append([_TREND_LEVEL * (1 + _TREND_SLOPE * damped) for damped in self._damped])

    def candidates(self, levels: Levels, profiles: Profiles, at: float) -> list[Candidate]:
        """Return the forecast of each method after `at`. Where the week is unknown the day's profile stands for it, and for
        that the last value."""
        rows = [[rate] * len(self._damped) for rate in (levels.last, *levels.smoothed)]
        rows.append(_not_negative([levels.level + levels.slope * damped for damped in self._damped]))
        without_profile = [*map(Candidate, rows, self._gains)]
        same = without_profile[0], without_profile[0]
        before, _ = self._by_profile(levels.last, same, profiles.latest, LATEST, at - profiles.period_seconds)
        by_day = self._by_profile(levels.last, same, profiles.daily, DAY, at)
        return [*without_profile, before, *by_day, *self._by_profile(levels.last, by_day, profiles.weekly, WEEK, at)]

    def _by_profile(
        self, last: float, others: tuple[Candidate, Candidate], profile: str, cycle: Cycle, at: float
    ) -> tuple[Candidate, Candidate]:
        """Return the difference to a profile and the ratio to it; where it is unknown, `others`."""
        if not profile:
            return others
        now, *usual = rates_at(profile, cycle, [at + seconds for seconds in self._seconds])
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
            gain if rate is None else min(max(rate / now, 1 / _MAX_RATIO), _MAX_RATIO)
            for rate, gain in zip(usual, others[1].gains, strict=True)
        ]
        return difference, Candidate([last * ratio for ratio in ratios], ratios)


AT_LEADS, AT_JUDGED_LEADS = Ahead(LEADS), Ahead(JUDGED_LEADS)


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
    [interpolate(log(lead), [(log(knot), float(knot == judged)) for knot in JUDGED_LEADS]) for lead in LEADS]
    for judged in JUDGED_LEADS
]
"""Weights of each judged lead at `LEADS`."""
