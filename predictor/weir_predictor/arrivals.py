"""Arrival rate of a source that changes over time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

MIN_RAMP_SECONDS = 1e-6
"""A rate that changes in less time is a step."""


@dataclass(frozen=True)
class ArrivalPath:
    """Rate of a source from now on. It changes evenly from point to point, stays at the first rate before them and at
    the last rate behind them; two points of one time are a step."""

    seconds: tuple[float, ...]
    """Times from now in seconds, ascending."""
    rates: tuple[float, ...]
    """Records/s at each of the times."""

    def __post_init__(self) -> None:
        if not self.seconds or len(self.seconds) != len(self.rates):
            raise ValueError(f"{len(self.seconds)} times and {len(self.rates)} rates are no path")
        if not all(math.isfinite(n) and n >= 0 for n in (*self.seconds, *self.rates)):
            raise ValueError("a path's times and rates are finite and not negative")
        if any(later < earlier for earlier, later in zip(self.seconds, self.seconds[1:], strict=False)):
            raise ValueError("a path's times ascend")

    @property
    def is_constant(self) -> bool:
        """Whether the rate never changes."""
        return min(self.rates) == max(self.rates)

    def rate_at(self, seconds: float) -> float:
        """Return records/s at one time; at a step the rate behind it."""
        return float(self.rates_at(np.array([seconds]))[0])

    def rates_at(self, times: np.ndarray) -> np.ndarray:
        """Return records/s at each time."""
        knots, rates, slopes, _ = self._pieces
        at = np.searchsorted(knots, times, side="right") - 1
        found: np.ndarray = rates[at] + slopes[at] * (times - knots[at])
        return found

    def arrived_by(self, times: np.ndarray) -> np.ndarray:
        """Return records that arrive from now until each time."""
        knots, rates, slopes, arrived = self._pieces
        at = np.searchsorted(knots, times, side="right") - 1
        since = times - knots[at]
        found: np.ndarray = arrived[at] + since * (rates[at] + 0.5 * slopes[at] * since)
        return found

    def within(self, horizon_seconds: float) -> list[float]:
        """Return the times before the horizon's end at which the rate begins to change otherwise."""
        return [at for at in self.seconds if 0 < at < horizon_seconds]

    def max_rate(self, horizon_seconds: float) -> float:
        """Return the highest records/s before the horizon's end."""
        inside = [rate for at, rate in zip(self.seconds, self.rates, strict=True) if at <= horizon_seconds]
        return max(self.rate_at(0.0), self.rate_at(horizon_seconds), *inside)

    def later(self, seconds: float) -> "ArrivalPath":
        """Return the path as it is so many seconds from now."""
        left = [(at - seconds, rate) for at, rate in zip(self.seconds, self.rates, strict=True) if at > seconds]
        return ArrivalPath((0.0, *(at for at, _ in left)), (self.rate_at(seconds), *(rate for _, rate in left)))

    def scaled(self, factor: float) -> "ArrivalPath":
        """Return the path with each rate times `factor`."""
        return ArrivalPath(self.seconds, tuple(rate * factor for rate in self.rates))

    @cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Times, the rate from each of them on with its change per second, and the records that arrived until then."""
        knots, rates = np.array([0.0, *self.seconds]), np.array([self.rates[0], *self.rates])
        lengths, rises = np.diff(knots), np.diff(rates)
        slopes = np.divide(rises, lengths, out=np.zeros_like(rises), where=lengths > MIN_RAMP_SECONDS)
        arrived = np.cumsum(lengths * (rates[:-1] + rates[1:]) / 2)
        return knots, rates, np.append(slopes, 0.0), np.insert(arrived, 0, 0.0)


def union_of(times: np.ndarray, others: Iterable[float]) -> np.ndarray:
    """Return the times and the others in order, each once."""
    return np.union1d(times, np.fromiter(others, float))
