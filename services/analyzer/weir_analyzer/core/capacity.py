"""True processing rates, and the capacities learned from them at each parallelism.

True processing rate (DS2, OSDI 2018): records taken in per second of busy time, times the subtasks. While an operator
is saturated what it takes in is its capacity itself, skew, contention and all; such a measurement beats the other.
Capacity here is what the operator can *sustain*: with an uneven load the busiest subtask saturates first. Of a consumer
group the busy time is its threads'; without it throughput counts while records wait (`lag.waiting_since`).
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from pydantic import TypeAdapter

from weir_contracts import MAX_NUMBER, CapacityPoint, Estimate, OperatorReading, even_subtasks, unknown

from .run import Shares, View
from .window import AnalysisSettings, estimate, interpolate, newest

_POINTS: Callable[[object], list[CapacityPoint]] = TypeAdapter(list[CapacityPoint]).validator.validate_python
"""Makes a curve of dictionaries, all at once: an observation carries one for each operator."""
SATURATED_SHARE = 0.95
"""Busy share from which an operator counts as saturated: its throughput is then its capacity."""
_OFF_SHARE = 0.25
"""A measurement further than this from the learned one at the same parallelism rescales the whole curve, unless the
other parallelisms fit the measurement and not the old point: then it takes that point's place."""

_CONFIDENCE_BY_BUSY = ((0.0, 0.0), (0.05, 0.1), (0.1, 0.3), (0.5, 0.7), (0.8, 0.85), (1.0, 0.95))
"""A rate taken from a mostly idle operator is noise: idle time is booked up to 5 s late."""
_NOTABLE_SKEW = 1.05
"""Below this the subtasks are equally busy: gauges differ by as much."""
_NEARLY_IDLE = 0.05
"""Below this busy share a rate from busy time is worth next to nothing."""
_MIN_CONFIDENCE = 0.1
MIN_RATE = 1e-6
"""Records/s; rates are rounded to this."""
_BUSY = 0.8
_BUSIER = 0.05
"""Busy shares nearer to each other than this are equal: the engine's gauges average another window than its times."""
_HELD_BACK = 0.1
"""Backpressured share from which an operator does not run at its own pace."""
_USUAL_CONTENTION = 0.15
"""What each further group of subtasks may take away from the others without being noteworthy."""


MAX_POINTS = 64
"""Capacity points kept for an operator."""


class Point(NamedTuple):
    """Capacity learned at one parallelism, records/s of all its subtasks."""

    parallelism: int
    rate: float
    confidence: float
    saturated: bool
    samples: int
    at: float
    job_id: str
    off_since: float | None = None
    """Since when measurements disagree with it by more than the tolerance, without being believed yet."""
    taken: float = 0.0
    """Highest records/s taken in over a window; 0: unknown."""
    skew: float | None = None
    """Busiest subtask's busy share over the mean."""


class Pressure(NamedTuple):
    """Surroundings of an operator over the window: they decide whether throughput is capacity."""

    is_source: bool
    source_backlogged: bool
    """A source that feeds it lagged through the whole window, and not at a standstill of growth."""
    upstream_backpressured: float | None
    """Greatest backpressured share of its direct inputs, without those that a sibling holds back."""
    waiting_since: float | None = None
    """Time since which records wait for a consumer group whose throughput is known from commits."""


class Measured(NamedTuple):
    """An operator's capacity in the current window."""

    whole: Estimate
    per_subtask: Estimate
    saturated: bool
    skew: Estimate
    lower_bound: Estimate | None = None
    """A lower bound of `whole`, of an operator that is nearly idle."""
    throughput: float | None = None
    """Records taken in per second over the window."""


def skew(reading: OperatorReading | None) -> Estimate:
    """Busiest subtask's busy share over the mean, by the engine's gauges."""
    if reading is None or reading.busy_share_mean is None or reading.busy_share_max is None:
        return unknown("the engine's busy gauges of the subtasks are unknown")
    if reading.parallelism == 1:
        return estimate(1.0, "one subtask", 1.0, 1)
    if reading.busy_share_mean < 0.02:
        return unknown("nearly idle: the ratio would be noise")
    ratio = max(1.0, reading.busy_share_max / reading.busy_share_mean)
    confidence = min(0.9, interpolate(reading.busy_share_mean, _CONFIDENCE_BY_BUSY) + 0.1)
    return estimate(ratio, "busy gauges of the subtasks, max over mean", confidence, reading.parallelism, 60.0)


def skew_of_tasks(reading: OperatorReading | None, tasks: int) -> Estimate:
    """Tasks of the busiest thread over the mean: with T tasks, n threads do as much as T / ceil(T / n) of them would."""
    if reading is None:
        return unknown("no thread is known")
    ratio = reading.parallelism / even_subtasks(reading.parallelism, tasks)
    return estimate(ratio, f"{tasks} tasks on {reading.parallelism} threads, most over mean", 0.9, tasks)


def holds_back(
    spent: Shares, reading: OperatorReading | None, siblings: Sequence[tuple[Shares, OperatorReading | None]]
) -> bool:
    """Return whether an operator may hold back the input that it shares with `siblings`, the other outputs of that
    input.

    It does not if it is not saturated while a sibling is held back itself, or is busy and clearly busier: an input
    waits for the slowest of its outputs.
    """
    fullness = _fullness(spent, reading)
    return fullness >= SATURATED_SHARE or not any(
        (other.backpressured or 0.0) >= _HELD_BACK or _fullness(other, observed) >= max(_BUSY, fullness + _BUSIER)
        for other, observed in siblings
    )


def _fullness(spent: Shares, reading: OperatorReading | None) -> float:
    """Return the busy share of the busiest subtask, or the mean's where that is larger; 0 where neither is known."""
    return max(spent.busy or 0.0, (reading.busy_share_max if reading else None) or 0.0)


def measure(
    view: View | None,
    reading: OperatorReading | None,
    spent: Shares,
    pressure: Pressure,
    settings: AnalysisSettings,
    *,
    tasks: int | None = None,
) -> Measured:
    """The true processing rate of one operator, of all its subtasks and of one. `tasks` are those of a consumer group."""
    uneven = skew(reading) if tasks is None else skew_of_tasks(reading, tasks)
    if view is not None and pressure.waiting_since is not None and spent.busy is None:
        waiting = _while_waiting(view, pressure.waiting_since)
        if waiting is not None:
            return Measured(waiting, unknown("busy time is unknown"), True, uneven, throughput=waiting.value)
    if view is None or not view.samples:
        seconds = settings.capacity_window_seconds
        reason = unknown(
            f"no window of {seconds:.0f} s yet since this run was warm, or since its brokers were last away"
        )
        return Measured(reason, reason, False, uneven)
    taken = throughput = view.rate(view.records_in, view.taught)
    if taken is None and pressure.is_source:
        throughput = view.rate(view.records_out, view.taught)
    per_subtask = _from_busy_time(view, spent)
    waits = tasks is not None and spent.busy is not None and spent.busy * (uneven.value or 1.0) < _BUSY
    # Lag of a group is known from its commits, which are late: threads with time to spare do what arrives.
    observed = None if waits else _observed(view, reading, throughput, spent=spent, pressure=pressure)
    if observed is not None:
        return Measured(observed, per_subtask, True, uneven, throughput=taken)
    whole = _whole(view, per_subtask, uneven, spent)
    return Measured(whole, per_subtask, False, uneven, _lower_bound(view, throughput, spent), taken)


def _while_waiting(view: View, since: float) -> Estimate | None:
    """Return the throughput between the first and the last commit at which records waited."""
    first = next((i for i, at in enumerate(view.at) if at >= since - 1e-6), len(view.at))
    rate, samples = view.rate(view.records_in, first), len(view.at) - first
    if not rate or samples < 3:
        return None
    basis = "throughput from commit to commit while records waited"
    return estimate(rate, basis, 0.9 * min(1.0, samples / 5), samples, view.at[-1] - view.at[first])


def _sureness(view: View) -> float:
    """Share of the confidence that the window's number of samples justifies."""
    return min(1.0, view.samples / 5)


def _lower_bound(view: View, throughput: float | None, spent: Shares) -> Estimate | None:
    """Return a lower bound of the capacity of a nearly idle operator: throughput ÷ `_NEARLY_IDLE`, records/s.

    The exact busy share, which may be noise, is not used.
    """
    if spent.busy is None or spent.busy >= _NEARLY_IDLE or not throughput or view.busy_ms[-1] is None:
        return None
    basis = f"at least: records in ÷ {_NEARLY_IDLE:.0%}, as it is less busy"
    return estimate(throughput / _NEARLY_IDLE, basis, 0.9 * _sureness(view), view.samples, view.seconds)


def _from_busy_time(view: View, spent: Shares) -> Estimate:
    if spent.busy is None:
        return unknown("busy time is unknown")
    if spent.records_per_busy_second is None or spent.busy < 0.005:
        return unknown("not busy: no rate can be derived")
    if spent.records_per_busy_second == 0:
        return unknown("busy without taking anything in")
    confidence = interpolate(spent.busy, _CONFIDENCE_BY_BUSY) * _sureness(view)
    if spent.backpressured is not None and spent.backpressured > 0.5:
        confidence *= 0.7
    basis = "records in ÷ busy time"
    if spent.busy < 0.1:
        basis += ", nearly idle"
    return estimate(spent.records_per_busy_second, basis, confidence, view.samples, view.seconds)


def _whole(view: View, per_subtask: Estimate, uneven: Estimate, spent: Shares) -> Estimate:
    if per_subtask.value is None:
        return per_subtask
    whole, basis = per_subtask.value * view.parallelism, per_subtask.basis
    if uneven.value is not None and uneven.value >= _NOTABLE_SKEW and (spent.busy or 0) >= 0.1:
        # the busiest subtask saturates first: the others' idle time cannot be used
        whole, basis = whole / uneven.value, f"{basis}, ÷ skew {uneven.value:.2f}"
    return estimate(whole, basis, per_subtask.confidence, per_subtask.samples, per_subtask.window_seconds)


def _observed(
    view: View, reading: OperatorReading | None, throughput: float | None, *, spent: Shares, pressure: Pressure
) -> Estimate | None:
    """Throughput as capacity, where nothing but the operator itself held it up all through the window."""
    if throughput is None or throughput <= 0:
        return None

    def as_capacity(basis: str, confidence: float, rate: float = throughput) -> Estimate:
        return estimate(rate, basis, confidence * _sureness(view), view.samples, view.seconds)

    if spent.busy is not None and spent.busy >= SATURATED_SHARE:
        return as_capacity("observed throughput, saturated", 0.95)
    if spent.backpressured is None:
        return None
    if pressure.is_source:
        if not pressure.source_backlogged or spent.backpressured > 0.5:
            return None
        if spent.backpressured < _HELD_BACK:
            return as_capacity("observed throughput of a backlogged source", 0.9)
        own_share = 1 - spent.backpressured
        basis = "throughput of a backlogged source ÷ share not backpressured"
        return as_capacity(basis, 0.9 * own_share, throughput / own_share)
    upstream = pressure.upstream_backpressured or 0.0
    pressed = upstream >= 0.5 or (upstream >= 0.2 and pressure.source_backlogged)
    if not pressed or spent.backpressured >= _HELD_BACK:
        return None
    hot = reading is not None and (reading.busy_share_max or 0.0) >= SATURATED_SHARE
    # neither busy nor with one busy subtask: it waits for something outside, and may take in more another time
    return as_capacity(
        "observed throughput, holding its inputs back", 0.85 if hot or (spent.busy or 0.0) >= _BUSY else 0.6
    )


def learn(
    points: tuple[Point, ...],
    parallelism: int,
    now: Measured,
    *,
    at: float,
    job_id: str,
    settings: AnalysisSettings,
    shares: int | None = None,
) -> tuple[Point, ...]:
    """Take a measurement into the curve of an operator, whose work has so many indivisible `shares`, if any."""
    value, confidence = now.whole.value, now.whole.confidence
    if value is None or value <= 0 or confidence < _MIN_CONFIDENCE:
        return points
    taken = max(0.0, now.throughput or 0.0)
    fresh = Point(parallelism, value, confidence, now.saturated, 1, at, job_id, taken=taken, skew=now.skew.value)
    old = next((point for point in points if point.parallelism == parallelism), None)
    if old is None:
        return _kept([*points, fresh])
    others = [point for point in points if point is not old]
    if abs(fresh.rate - old.rate) <= _OFF_SHARE * old.rate:
        if old.skew is None:
            old = old._replace(skew=fresh.skew)
        return _kept([*others, _blended(old, fresh, settings)._replace(taken=max(old.taken, fresh.taken))])
    if not _believed(old, fresh, now.throughput, settings):
        return _kept([*others, old._replace(off_since=at if old.off_since is None else old.off_since)])
    if not (_fits_others(fresh, others, shares) and not _fits_others(old, others, shares)):
        # the cost of a record changed, at every parallelism alike
        factor = fresh.rate / old.rate
        others = [
            p._replace(
                rate=p.rate * factor,
                confidence=round(p.confidence * 0.8, 4),
                taken=p.taken * min(1.0, factor),
            )
            for p in others
        ]
    return _kept([*others, fresh._replace(samples=old.samples + 1)])


def _fits_others(point: Point, others: Sequence[Point], shares: int | None) -> bool:
    """Return whether other parallelisms predict a rate: between theirs, or beyond them in proportion.

    Beyond them contention widens the tolerance in one direction only: more subtasks do less each, fewer do more.
    """
    if not others:
        return False
    low, high = 1 - _OFF_SHARE, 1 + _OFF_SHARE
    here, rates = (
        even_subtasks(point.parallelism, shares),
        {even_subtasks(p.parallelism, shares): p.rate for p in others},
    )
    if min(rates) < here < max(rates):
        expected = interpolate(here, list(rates.items()))
    else:
        nearest = min(rates, key=lambda subtasks: abs(subtasks - here))
        expected = rates[nearest] * here / nearest
        fewer, more = sorted((here, nearest))
        contended = 1 + _USUAL_CONTENTION * (more / fewer - 1)
        low, high = (low / contended, high) if here == more else (low, high * contended)
    return low * expected <= point.rate <= high * expected


def _believed(old: Point, fresh: Point, throughput: float | None, settings: AnalysisSettings) -> bool:
    """Return whether a measurement that is far off replaces the learned point.

    A saturated one does; so does throughput above the learned rate. One from busy time must have more confidence, and
    against a saturated one it must have lasted: busy time gives too high a rate while the load is light. A doubtful
    saturated point (confidence below 0.6) yields to a measurement of equal confidence.
    """
    if fresh.saturated or (throughput is not None and throughput > old.rate * (1 + _OFF_SHARE)):
        return True
    if not old.saturated:
        return fresh.confidence >= 0.5 * old.confidence
    lasted = old.off_since is not None and fresh.at - old.off_since >= 2 * settings.capacity_window_seconds
    return fresh.confidence >= min(0.6, old.confidence) and lasted


def _blended(old: Point, fresh: Point, settings: AnalysisSettings) -> Point:
    """Exponential smoothing, weighed by confidence and by how much of the window is new since the last time."""
    if fresh.saturated and not old.saturated:
        return fresh._replace(samples=old.samples + 1)
    if (old.saturated and not fresh.saturated) or fresh.confidence < old.confidence / 2:
        return old._replace(off_since=None)
    new_share = min(1.0, max(0.0, fresh.at - old.at) / settings.capacity_window_seconds)
    weight = new_share * fresh.confidence / (fresh.confidence + old.confidence)
    return Point(
        old.parallelism,
        old.rate + weight * (fresh.rate - old.rate),
        round(old.confidence + weight * (fresh.confidence - old.confidence), 4),
        old.saturated,
        old.samples + 1,
        fresh.at,
        fresh.job_id,
        skew=old.skew if old.skew is None or fresh.skew is None else old.skew + weight * (fresh.skew - old.skew),
    )


def _kept(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points by parallelism; rates out of bounds go, and beyond the limit the lowest confidence and oldest."""
    points = [point for point in points if MIN_RATE <= point.rate <= MAX_NUMBER]
    if len(points) > MAX_POINTS:
        points = sorted(points, key=lambda p: (p.confidence, p.at))[-MAX_POINTS:]
    return tuple(sorted(points, key=lambda p: p.parallelism))


def merged(
    own: Mapping[str, tuple[Point, ...]], others: Mapping[str, tuple[Point, ...]]
) -> dict[str, tuple[Point, ...]]:
    """Return the curves with the points of others at parallelisms that have none."""
    curves = {**others, **own}
    for name in own.keys() & others.keys():
        measured = {point.parallelism for point in own[name]}
        curves[name] = (*own[name], *(point for point in others[name] if point.parallelism not in measured))
    return kept({name: _kept(points) for name, points in curves.items()})


def kept(curves: dict[str, tuple[Point, ...]]) -> dict[str, tuple[Point, ...]]:
    """Return the curves with points; beyond the limit the operators not measured for longest go."""
    return newest({name: points for name, points in curves.items() if points}, lambda points: max(p.at for p in points))


def halved(curves: Mapping[str, tuple[Point, ...]]) -> dict[str, tuple[Point, ...]]:
    """Return the curves of another job id with half their confidence: the code may have changed."""
    return {
        name: tuple(p._replace(confidence=round(p.confidence / 2, 4), off_since=None, taken=0.0) for p in points)
        for name, points in curves.items()
    }


def published(points: Sequence[Point]) -> list[CapacityPoint]:
    """Return the curve as the analysis carries it."""
    return _POINTS(
        [
            {
                "parallelism": p.parallelism,
                "records_per_second": round(p.rate, 6),
                "max_input_rate": round(p.taken, 6) if p.taken >= MIN_RATE else None,
                "skew": None if p.skew is None else round(p.skew, 3),
                "confidence": p.confidence,
                "saturated": p.saturated,
                "samples": p.samples,
                "measured_at": datetime.fromtimestamp(p.at, UTC),
                "job_id": p.job_id,
            }
            for p in points
        ]
    )
