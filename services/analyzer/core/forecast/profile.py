"""Profiles of a day and of a week: the usual rate at each time of them, in UTC.

A profile is kept as text: two bytes a bin in base64, a logarithm of the rate. It is read at the end of a minute only.
"""

from base64 import b64decode, b64encode
from math import log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from weir_contracts import MAX_NUMBER, MIN_NUMBER

Floats = npt.NDArray[np.float64]

_STEPS_PER_OCTAVE = 512
"""Resolution: a rate is kept within 0.07 %."""
_MIN_OCTAVE = log2(MIN_NUMBER)
_UNKNOWN, _ZERO = 0, 1
"""Codes of a bin that was never observed, and of one without arrivals."""
_WEIGHT = 0.3
"""Weight of the newest day or week in its bin."""


class Cycle(NamedTuple):
    """A cycle of the load and the bins of its profile."""

    seconds: int
    bin_seconds: int

    @property
    def bins(self) -> int:
        """Number of bins."""
        return self.seconds // self.bin_seconds


DAY = Cycle(86_400, 300)
WEEK = Cycle(7 * 86_400, 1_800)


def updated(profile: str, cycle: Cycle, at: float, rate: float) -> str:
    """Return the profile with the mean rate of the bin around `at` in it. An empty text is an empty profile."""
    codes = _codes(profile, cycle).copy()
    i = int(at % cycle.seconds) // cycle.bin_seconds
    if codes[i] == _UNKNOWN:
        codes[i] = _code(rate)
    else:
        before = float(_rates(codes[i : i + 1])[0])
        codes[i] = _code(before + _WEIGHT * (rate - before))
    return b64encode(codes.tobytes()).decode()


def rates_at(profile: str, cycle: Cycle, times: Floats) -> Floats | None:
    """Return the usual rates at some times, straight between the bins' middles; NaN where a bin is unknown.

    None for an empty profile.
    """
    if not profile:
        return None
    codes = _codes(profile, cycle)
    position = (times % cycle.seconds) / cycle.bin_seconds - 0.5
    before = np.floor(position).astype(np.int64)
    share = position - before
    low, high = _rates(codes[np.array((before, before + 1)) % cycle.bins])
    rates: Floats = low + share * (high - low)
    return rates


def _codes(profile: str, cycle: Cycle) -> npt.NDArray[np.uint16]:
    if not profile:
        return np.zeros(cycle.bins, np.uint16)
    codes = np.frombuffer(b64decode(profile, validate=True), "<u2")
    if len(codes) != cycle.bins:
        raise ValueError(f"a profile of {len(codes)} bins, not of {cycle.bins}")
    return codes


def _code(rate: float) -> int:
    if rate <= MIN_NUMBER:
        return _ZERO
    return 2 + round((log2(min(rate, MAX_NUMBER)) - _MIN_OCTAVE) * _STEPS_PER_OCTAVE)


def _rates(codes: npt.NDArray[np.uint16]) -> Floats:
    rates = np.exp2((codes - 2.0) / _STEPS_PER_OCTAVE + _MIN_OCTAVE)
    return np.where(codes == _UNKNOWN, np.nan, np.where(codes == _ZERO, 0.0, rates))
