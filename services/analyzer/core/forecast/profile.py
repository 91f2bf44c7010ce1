"""Profiles of a day and of a week: the usual rate at each time of them, in UTC.

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
_WEIGHT = 0.3
"""Weight of the newest day or week in its bin."""


class Cycle(NamedTuple):
    """A cycle of the load and the bins of its profile."""

    seconds: int
    bin_seconds: int

    @property
    def bins(self) -> int:
        return self.seconds // self.bin_seconds


DAY = Cycle(86_400, 300)
WEEK = Cycle(7 * 86_400, 1_800)


def updated(profile: str, cycle: Cycle, at: float, rate: float) -> str:
    """Return the profile with the mean rate of the bin around `at` in it. An empty text is an empty profile."""
    content = bytearray(_content(profile, cycle))
    start = 2 * (int(at % cycle.seconds) // cycle.bin_seconds)
    before = _rate(int.from_bytes(content[start : start + 2], "little"))
    code = _code(rate if before is None else before + _WEIGHT * (rate - before))
    content[start : start + 2] = code.to_bytes(2, "little")
    return b64encode(content).decode()


def rates_at(profile: str, cycle: Cycle, times: Iterable[float]) -> list[float | None]:
    """Return the usual rates at some times, straight between the bins' middles. None: a bin is unknown."""
    seconds, bin_seconds = cycle
    content = _content(profile, cycle)
    content = content[-2:] + content + content[:2]
    rates: list[float | None] = []
    for time in times:
        position = time % seconds / bin_seconds + 0.5
        before = int(position)
        first, second = _NEIGHBOURS(content, 2 * before)
        low, high = _rate(first), _rate(second)
        rates.append(None if low is None or high is None else low + (position - before) * (high - low))
    return rates


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
