"""Profiles of a day and of a week: the usual rate at each time of them, in UTC; and the latest day as it was.

A profile is kept as text: two bytes a bin in base64, a logarithm of the rate. It is read at the end of a minute only.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from functools import lru_cache
from math import exp2, log2
from struct import Struct
from typing import NamedTuple

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
