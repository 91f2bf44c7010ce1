"""Windows of the analysis, and numbers made of the points in one.

Points are tuples that begin with their time, oldest first. All times are seconds of the observations' own clock.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import mul, sub
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter

from weir_contracts import MAX_NUMBER, Estimate, unknown

_VALIDATED: Callable[[object], Estimate] = TypeAdapter(Estimate).validator.validate_python
"""Makes an estimate of a dictionary in two thirds of its constructor's time; an observation makes a hundred of them."""
MAX_LEARNED = 1000
"""Operators, and edges, of which something learned is kept."""
_rounded = lru_cache(maxsize=256)(round)
"""Rounds confidences and windows, which the operators of an observation share."""
P = TypeVar("P", bound=tuple[Any, ...])
T = TypeVar("T")


COMMITS_PER_WINDOW = 4
"""Commit intervals in a window: with fewer, a commit more or less changes a rate by a third."""
_RATE_WINDOW_SECONDS = 15.0


class AnalysisSettings(BaseModel):
    """Windows of the analysis; the defaults are made for Flink scraped every 1 to 10 s."""

    model_config = ConfigDict(frozen=True)

    warm_up_seconds: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="time of a new run from which nothing is learned, in s; a cold JVM looks half as fast as a warm one",
    )
    capacity_window_seconds: float = Field(
        default=30.0,
        ge=5,
        le=3600,
        description="shortest window of capacity, utilization and selectivity, in s; Flink books idle time up to 5 s late",
    )
    arrival_window_seconds: float = Field(
        default=6.0,
        ge=1,
        le=600,
        description="window of the arrival rate, in s; at least two scrapes",
    )

    _commit_seconds: float = PrivateAttr(default=0.0)
    _counts_commits: bool = PrivateAttr(default=False)
    _own_capacity_seconds: float | None = PrivateAttr(default=None)

    def following(self, commit_interval_seconds: float | None, *, counts_commits: bool) -> Self:
        """Return the windows for an application that commits: those of lag span at least four commits, and with
        `counts_commits`, where throughput is known from commits, those of throughput and capacity, too.

        Windows of demand stay as they are, since log ends do not wait for commits.
        """
        if not commit_interval_seconds:
            return self
        seconds = self.capacity_window_seconds
        if counts_commits:
            seconds = max(seconds, COMMITS_PER_WINDOW * commit_interval_seconds)
        longer = self.model_copy(update={"capacity_window_seconds": seconds})
        longer._commit_seconds, longer._counts_commits = commit_interval_seconds, counts_commits
        longer._own_capacity_seconds = self.capacity_window_seconds
        return longer

    @property
    def commit_seconds(self) -> float:
        """Time between two commits, in s; 0 if the application commits none or lag is not known from them."""
        return self._commit_seconds

    @property
    def counts_commits(self) -> bool:
        """Whether throughput is known from commits."""
        return self._counts_commits

    @property
    def rate_window_seconds(self) -> float:
        """Window of the input and output rates of operators."""
        return max(_RATE_WINDOW_SECONDS, COMMITS_PER_WINDOW * self._commit_seconds if self._counts_commits else 0.0)

    @property
    def lag_window_seconds(self) -> float:
        """Window of the growth of lag."""
        return max(self.capacity_window_seconds, COMMITS_PER_WINDOW * self._commit_seconds)

    @property
    def trend_window_seconds(self) -> float:
        """Length of the rings of samples."""
        return max(60.0, 2 * self.lag_window_seconds)

    @property
    def demand_window_seconds(self) -> float:
        """Window of the arrival rate's trend."""
        return max(60.0, 2 * (self._own_capacity_seconds or self.capacity_window_seconds))


def estimate(
    value: float | None, basis: str, confidence: float, samples: int = 0, window_seconds: float | None = None
) -> Estimate:
    """Return an estimate within the bounds of messages; a value beyond them is unknown, a longer basis is cut."""
    basis = basis[:300]
    if value is None or not -MAX_NUMBER <= value <= MAX_NUMBER:
        return unknown(basis)
    if window_seconds is not None:
        window_seconds = _rounded(window_seconds, 3) if window_seconds > 0 else 0.0
    return _VALIDATED(
        {
            "value": round(value, 6),
            "basis": basis,
            "confidence": 0.0 if confidence <= 0 else _rounded(confidence, 3) if confidence < 1 else 1.0,
            "samples": samples,
            "window_seconds": window_seconds,
        }
    )


def at_least(
    bound: float | None, reason: str, confidence: float, samples: int = 0, window_seconds: float | None = None
) -> Estimate:
    """Return an unknown value, for this reason, with the lower bound that its known part proves; None: nothing does."""
    proven = estimate(bound, reason, confidence, samples, window_seconds)
    return proven.model_copy(update={"value": None, "lower_bound": proven.value})


@lru_cache(maxsize=4)  # the operators of one observation share their samples' times
def slope_weights(times: tuple[float, ...]) -> list[float] | None:
    """Return weights whose sum of products with y is the least-squares slope of y over `times`; None without any
    spread."""
    if len(times) < 2:
        return None
    first = times[0]
    mean = sum([time - first for time in times]) / len(times)
    distances = [time - first - mean for time in times]
    spread = sum([distance * distance for distance in distances])
    return [distance / spread for distance in distances] if spread > 1e-9 else None


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of y over x; None with fewer than two distinct x."""
    if len(points) < 2:
        return None
    times, values = zip(*points, strict=True)
    weights = slope_weights(times)
    return None if weights is None else weighted(weights, values)


def weighted(weights: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Return the sum of the weights' products with the values less the first one; None if a value is unknown."""
    try:
        result: float = sum(map(mul, weights, map(sub, values, repeat(values[0]))))
    except TypeError:
        return None
    return result


def since(points: Sequence[P], at: float, minimum: int = 0) -> list[P]:
    """Return the points from `at` on, at least the last `minimum`."""
    inside = [point for point in points if point[0] >= at]
    return inside if len(inside) >= minimum else list(points[-minimum:])


def thinned(points: list[P], limit: int) -> list[P]:
    """Drop points until `limit` are left, each time the one whose neighbours are closest; both ends stay."""
    while len(points) > limit:
        drop = min(range(1, len(points) - 2), key=lambda i: points[i + 1][0] - points[i - 1][0])
        points = points[:drop] + points[drop + 1 :]
    return points


def newest(learned: dict[str, T], measured_at: Callable[[T], float]) -> dict[str, T]:
    """Return at most `MAX_LEARNED` of what was learned; the oldest go."""
    if len(learned) <= MAX_LEARNED:
        return learned
    names = sorted(learned, key=lambda name: measured_at(learned[name]))[-MAX_LEARNED:]
    return {name: learned[name] for name in names}


def interpolate(x: float, knots: Sequence[tuple[float, float]]) -> float:
    """Piecewise linear through `knots` (sorted by x), constant outside."""
    x0, y0 = knots[0]
    if x <= x0:
        return y0
    for x1, y1 in knots[1:]:
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        x0, y0 = x1, y1
    return y0
