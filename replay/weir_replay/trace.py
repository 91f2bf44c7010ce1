"""Load over time: built-in shapes and recordings, scaled to a rate. Pure but for reading a recording's file.

A shape is a curve in any unit; a `LoadTrace` scales its highest value to records/s.
"""

import csv
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Protocol

BUNDLED = Path(__file__).resolve().parent / "traces"
RECORDING_SPEEDUP = 120.0
"""A recorded day in twelve minutes."""

_HEADER = ["timestamp", "value"]
_MORE = ("key_skew", "record_bytes")
"""Optional columns of a recording."""

MAX_SKEW = 5.0
MIN_BYTES, MAX_BYTES = 32, 100_000
"""Of a record."""

MAX_VALUE = 1e12
"""Most records/s, and largest value of a recording: above it, a day's counts are not exact in a double."""
MAX_SPEEDUP = 1e6


class InvalidTrace(Exception):
    """The trace cannot be used; the sentence names file, line and field, or the parameter."""


class Shape(Protocol):
    """Load over trace time (seconds from the trace's beginning), in any unit."""

    @property
    def peak(self) -> float:
        """The highest value it ever takes; above 0."""

    @property
    def turn_seconds(self) -> float:
        """Shortest duration of a peak or of a rise: sampling at a quarter of it misses no peak."""

    def value_at(self, seconds: float) -> float:
        """The load at a time ≥ 0; never negative."""


@dataclass(frozen=True)
class Step:
    """value(t) = the level of the last (time, level) with time ≤ t: by default 1, and 3 from second 40 on."""

    levels: tuple[tuple[float, float], ...] = ((0.0, 1.0), (40.0, 3.0))

    def __post_init__(self) -> None:
        if not self.levels or self.levels[0][0] != 0:
            raise InvalidTrace("levels: the first must begin at second 0")
        if any(later[0] <= earlier[0] for earlier, later in pairwise(self.levels)):
            raise InvalidTrace("levels: times must increase")
        if any(not math.isfinite(part) or part < 0 for level in self.levels for part in level) or self.peak <= 0:
            raise InvalidTrace("levels: must be finite, not negative, and one of them above 0")

    @classmethod
    def parse(cls, text: str) -> "Step":
        """Parse `0:1,40:3`: seconds and level, separated by commas."""
        levels = []
        for part in text.split(","):
            seconds, _, level = part.partition(":")
            try:
                levels.append((float(seconds), float(level)))
            except ValueError:
                raise InvalidTrace(f"levels: {part!r} is not seconds:level") from None
        return cls(tuple(levels))

    @cached_property
    def peak(self) -> float:
        return max(level for _, level in self.levels)

    @property
    def turn_seconds(self) -> float:
        """Shortest level, without the first, which begins before any sample, and the last, which does not end."""
        return min((later - earlier for (earlier, _), (later, _) in pairwise(self.levels[1:])), default=math.inf)

    def value_at(self, seconds: float) -> float:
        return self.levels[max(0, bisect_right(self.levels, seconds, key=lambda level: level[0]) - 1)][1]


@dataclass(frozen=True)
class Sine:
    """value(t) = low + (1 − low) · (1 − cos(2π·t / period)) / 2: begins at `low`, is 1 after half a period."""

    low: float = 0.2
    period_seconds: float = 240.0
    peak: float = 1.0

    @property
    def turn_seconds(self) -> float:
        return self.period_seconds / 2

    def value_at(self, seconds: float) -> float:
        return self.low + (self.peak - self.low) * (1 - math.cos(2 * math.pi * seconds / self.period_seconds)) / 2


@dataclass(frozen=True)
class Spike:
    """`low`, then at `at_seconds` up to 1 within `rise_seconds`, held, and down again as fast; again every period."""

    low: float = 0.25
    at_seconds: float = 40.0
    rise_seconds: float = 5.0
    hold_seconds: float = 30.0
    period_seconds: float = 240.0
    peak: float = 1.0

    @property
    def turn_seconds(self) -> float:
        return 2 * self.rise_seconds + self.hold_seconds

    def value_at(self, seconds: float) -> float:
        since = seconds % self.period_seconds - self.at_seconds
        until = 2 * self.rise_seconds + self.hold_seconds - since
        share = min(1.0, max(0.0, min(since, until) / self.rise_seconds))
        return self.low + (self.peak - self.low) * share


@dataclass(frozen=True)
class Recording:
    """Samples, interpolated linearly; begins again when it ends (after one more interval, from the last to the first).

    Key skew and record size, if it has them, hold from one sample to the next.
    """

    offsets_seconds: tuple[float, ...]
    values: tuple[float, ...]
    key_skews: tuple[float, ...] | None = None
    record_sizes: tuple[int, ...] | None = None

    @cached_property
    def peak(self) -> float:
        return max(self.values)

    @property
    def step_seconds(self) -> float:
        """Between the last two samples, which stands for all."""
        return self.offsets_seconds[-1] - self.offsets_seconds[-2]

    @property
    def turn_seconds(self) -> float:
        """Four samples: between two of them it is straight."""
        return 4 * self.step_seconds

    @cached_property
    def period_seconds(self) -> float:
        """Length of one round: the samples and the interval that leads back to the first."""
        return self.offsets_seconds[-1] + self.step_seconds

    def sample_at(self, seconds: float) -> int:
        """Which sample was the last at a time ≥ 0."""
        return max(0, bisect_right(self.offsets_seconds, seconds % self.period_seconds) - 1)

    def value_at(self, seconds: float) -> float:
        at = seconds % self.period_seconds
        after = bisect_right(self.offsets_seconds, at)
        began, value = self.offsets_seconds[after - 1], self.values[after - 1]
        if after == len(self.values):
            ends, following = self.period_seconds, self.values[0]
        else:
            ends, following = self.offsets_seconds[after], self.values[after]
        return value + (following - value) * (at - began) / (ends - began)


@dataclass(frozen=True)
class LoadTrace:
    """A shape as records/s. `start_seconds` is where in the trace it begins."""

    shape: Shape
    peak_rate: float
    speedup: float = 1.0
    start_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name, limit in (("peak_rate", MAX_VALUE), ("speedup", MAX_SPEEDUP)):
            value = getattr(self, name)
            if not 0 < value <= limit:
                raise InvalidTrace(f"{name}: must be above 0 and at most {limit:g}, is {value:g}")
        if not math.isfinite(self.start_seconds) or self.start_seconds < 0:
            raise InvalidTrace(f"start_seconds: must not be negative, is {self.start_seconds}")

    @property
    def turn_seconds(self) -> float:
        """Shortest duration of a peak or of a rise, at this speed."""
        return self.shape.turn_seconds / self.speedup

    def rate_at(self, seconds: float) -> float:
        """Return the records/s `seconds` after the load began."""
        return self.shape.value_at(self.start_seconds + seconds * self.speedup) / self.shape.peak * self.peak_rate

    def key_skew_at(self, seconds: float) -> float | None:
        """Return Zipf's exponent of the keys; None if the trace has none."""
        if not isinstance(self.shape, Recording) or self.shape.key_skews is None:
            return None
        return self.shape.key_skews[self.shape.sample_at(self.start_seconds + seconds * self.speedup)]

    def record_bytes_at(self, seconds: float) -> int | None:
        """Return the size of a record's value; None if the trace has none."""
        if not isinstance(self.shape, Recording) or self.shape.record_sizes is None:
            return None
        return self.shape.record_sizes[self.shape.sample_at(self.start_seconds + seconds * self.speedup)]


SHAPES: Mapping[str, Callable[[], Shape]] = {"step": Step, "sine": Sine, "spike": Spike}


def named(name: str) -> Shape:
    """Return the shape, the bundled recording, or the CSV file at that path. Raises `InvalidTrace`."""
    if name in SHAPES:
        return SHAPES[name]()
    bundled = {path.stem: path for path in BUNDLED.glob("*.csv")}
    if name in bundled:
        return load(bundled[name])
    path = Path(name)
    if path.suffix.lower() == ".csv":
        return load(path)
    names = ", ".join([*SHAPES, *sorted(bundled)])
    raise InvalidTrace(f"trace {name!r} is none of {names}, nor a .csv file")


def default_speedup(shape: Shape) -> float:
    """Return 1 for shapes, which last minutes, and `RECORDING_SPEEDUP` for recordings, which last days."""
    return RECORDING_SPEEDUP if isinstance(shape, Recording) else 1.0


def load(path: Path) -> Recording:
    """Read a recording: header `timestamp,value`, times ISO 8601 or seconds and increasing, values ≥ 0, one above;
    optional further columns are `key_skew` (Zipf's exponent, 0 to 5) and `record_bytes` (32 to 100,000).

    Raises `InvalidTrace` naming file, line and field.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _recording(path.name, [*enumerate(csv.reader(file), start=1)])
    except OSError as error:
        raise InvalidTrace(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidTrace(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except csv.Error as error:
        raise InvalidTrace(f"{path}: is not CSV: {error}") from None


def _recording(name: str, lines: list[tuple[int, list[str]]]) -> Recording:
    header = [field.strip() for field in lines[0][1]] if lines else []
    if header[:2] != _HEADER or not set(header[2:]) <= set(_MORE) or len(set(header)) != len(header):
        raise InvalidTrace(f"{name}: line 1: the header must be timestamp,value and may go on with {','.join(_MORE)}")
    columns: dict[str, list[float]] = {field: [] for field in header}
    for number, fields in lines[1:]:
        if not fields:
            continue
        place = f"{name}: line {number}"
        if len(fields) != len(header):
            raise InvalidTrace(f"{place}: {len(fields)} fields where {','.join(header)} are {len(header)}")
        at = _time(place, fields[0].strip())
        times = columns["timestamp"]
        if times and at <= times[-1]:
            raise InvalidTrace(f"{place}, field timestamp: {fields[0]!r} is not after the line before")
        times.append(at)
        for column, text in zip(header[1:], fields[1:], strict=True):
            columns[column].append(_number(place, column, text.strip()))
    times, values = columns["timestamp"], columns["value"]
    if len(values) < 2:
        raise InvalidTrace(f"{name}: has {len(values)} samples; a trace needs two or more")
    if max(values) <= 0:
        raise InvalidTrace(f"{name}: field value: all are 0, which cannot be scaled to a rate")
    skews, sizes = columns.get("key_skew"), columns.get("record_bytes")
    return Recording(
        tuple(at - times[0] for at in times),
        tuple(values),
        None if skews is None else tuple(skews),
        None if sizes is None else tuple(int(size) for size in sizes),
    )


def _time(place: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidTrace(
                f"{place}, field timestamp: {text!r} is neither a time such as 2014-07-01 00:30:00 nor seconds"
            ) from None
        # Only differences matter, so any zone without daylight saving time serves.
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise InvalidTrace(f"{place}, field timestamp: {text!r} is not finite")
    return seconds


_LIMITS: Mapping[str, tuple[float, float]] = {"key_skew": (0.0, MAX_SKEW), "record_bytes": (MIN_BYTES, MAX_BYTES)}


def _number(place: str, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidTrace(f"{place}, field {column}: {text!r} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise InvalidTrace(f"{place}, field {column}: {text!r} must be finite and not negative")
    low, high = _LIMITS.get(column, (0.0, MAX_VALUE))
    if not low <= value <= high:
        raise InvalidTrace(f"{place}, field {column}: {text!r} must lie between {low:g} and {high:g}")
    return value
