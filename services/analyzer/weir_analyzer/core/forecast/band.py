"""Bound of the highest rate within a horizon, from the errors of past peaks: adaptive conformal prediction.

The error of a peak is relative to its forecast, so that the bound follows the load. The quantile of the errors is
tracked (Angelopoulos, Candès, Tibshirani: Conformal PID Control, 2023): a peak above its bound raises it by nine times
the step by which one below lowers it. A measured coverage that is off its goal tilts both steps towards it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weir_contracts import PEAK_CONFIDENCE

_MISSED = 1 - PEAK_CONFIDENCE
_STEP = 0.05
"""Step of the quantile, in mean distances of the errors from it."""
_SPREAD_WEIGHT = 0.01
_TILT = 2.0
_MIN_MISSED, _MAX_MISSED = 0.01, 0.4
_REMEMBERED_MINUTES, _MIN_REMEMBERED = 1000, 200
"""Minutes of high peaks, and peaks, over which the coverage is measured."""
_FIRST = 20
"""Errors of past peaks from which the bound begins; nine would be the fewest that have a 0.9 quantile at all."""
_MIN_SHARE = 0.02
"""Errors of a forecast near zero count relative to this share of the usual rate."""
_MIN_ERROR, _MAX_ERROR = -1.0, 100.0


PendingPeak = tuple[int, float, float, float | None]
"""A forecast peak that waits for the end of its horizon: the minute at whose end that is, the expected peak, the rate by
which errors are divided, and the quantile that its bound was made of."""


@dataclass(slots=True)
class PeakErrors:
    """Errors of past peaks of one kind."""

    middle: float = 0.0
    """Median of the errors, tracked."""
    bound: float | None = None
    """Quantile of the errors, tracked. None: too few errors."""
    spread: float = 0.0
    first: list[float] = field(default_factory=list)
    """Errors before there is a bound."""

    def learn(self, error: float, bound: float | None, missed: float) -> None:
        """Take in the error of a peak that was issued with `bound`; the share `missed` of them is to lie above."""
        if self.bound is None:
            self.first.append(error)
            self._begin()
            return
        self.spread += _SPREAD_WEIGHT * (abs(error - self.bound) - self.spread)
        self.middle += _STEP * self.spread * (0.5 if error > self.middle else -0.5 if error < self.middle else 0.0)
        above = error > (self.bound if bound is None else bound) + 1e-6
        self.bound += _STEP * self.spread * ((1 - missed) if above else -missed)

    def _begin(self) -> None:
        if len(self.first) < _FIRST:
            return
        errors = sorted(self.first)
        self.middle = errors[_FIRST // 2]
        self.bound = errors[-2]  # the quantile 0.9 of 20, with the correction for their small number
        self.spread = sum(abs(error - self.bound) for error in errors) / _FIRST
        self.first = []


@dataclass(slots=True)
class Band:
    """Errors of past peaks within one horizon."""

    minutes: int
    quiet: PeakErrors = field(default_factory=PeakErrors)
    high: PeakErrors = field(default_factory=PeakErrors)
    """Where a low and where a high peak was expected: quiet minutes are many, and their errors small."""
    coverage: float | None = None
    """Share of the high peaks, expected or not, that stayed under their bound: growth is decided there."""
    judged: int = 0
    pending: list[PendingPeak] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Minutes between two peaks that are judged: a few wait at any time, however long the horizon."""
        return max(1, -(-self.minutes // 6))

    def errors_of(self, expected: float, high: float) -> PeakErrors:
        """Return the errors of such a peak; `high` is the rate from which one is high."""
        alike, others = (self.high, self.quiet) if expected >= high else (self.quiet, self.high)
        return others if alike.bound is None else alike

    def issue(self, minute: int, expected: float, usual: float, high: float) -> None:
        """Keep the forecast of a peak until its horizon ends."""
        if minute % self.step == 0:
            bound = self.errors_of(expected, high).bound
            self.pending.append((minute + self.minutes, expected, unit_of(expected, usual), bound))

    def judge(self, minute: int, rates: Sequence[float | None], high: float) -> None:
        """Compare the peaks whose horizon ends with this minute with `rates`, the latest minutes, oldest first.

        A horizon with an unknown minute teaches nothing.
        """
        while self.pending and self.pending[0][0] <= minute:
            due, expected, unit, bound = self.pending.pop(0)
            inside = [rate for rate in rates[-self.minutes :] if rate is not None]
            if due == minute and len(inside) == self.minutes:
                self._learn(expected, unit, bound, max(inside), high)

    def _learn(self, expected: float, unit: float, bound: float | None, max_rate: float, high: float) -> None:
        error = (max_rate - expected) / unit if unit > 0 else (_MAX_ERROR if max_rate > 0 else 0.0)
        error = min(max(error, _MIN_ERROR), _MAX_ERROR)
        if bound is not None and max(expected, max_rate) >= high:
            covered = 1.0 if error <= bound + 1e-6 else 0.0
            self.judged += 1
            before = PEAK_CONFIDENCE if self.coverage is None else self.coverage
            remembered = max(_REMEMBERED_MINUTES // self.step, _MIN_REMEMBERED)
            self.coverage = covered if self.judged == 1 else before + (covered - before) / min(self.judged, remembered)
        if expected < high:
            self.quiet.learn(error, bound, _MISSED)
            return
        missed = _MISSED
        if self.coverage is not None:
            trusted = self.judged / (self.judged + _FIRST)
            missed += _TILT * trusted * (self.coverage - PEAK_CONFIDENCE)
            missed = min(max(missed, _MIN_MISSED), _MAX_MISSED)
        self.high.learn(error, bound, missed)


def unit_of(expected: float, usual: float) -> float:
    """Return the rate by which the errors of a peak are divided."""
    return expected + _MIN_SHARE * usual
