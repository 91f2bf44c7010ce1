"""Demand: the rate at which records arrive at a source, from the brokers' log-end offsets.

Over a short window, so that a step shows within two scrapes; from burst to burst where the log grows in bursts (a
transactional producer moves the stable offset once a commit).
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from weir_contracts import Estimate, Observation, PartitionReading, off_level, unknown

from . import offsets as log
from .offsets import Interval, LogHistory
from .run import SourceState, View
from .window import AnalysisSettings, at_least, estimate, slope

_CONTRADICTION_SHARE = 0.3
"""Share by which counter and offsets may differ: positions are read up to 10 s late, in a window of 30 s and more."""
_STEP_SHARE = 0.3
"""Two intervals that both differ from those before by more than this share are a new level, not noise."""


def arrival_rate(
    history: LogHistory, operator: str, at: float, settings: AnalysisSettings
) -> tuple[Estimate, Estimate]:
    """The arrival rate of a source in records/s and its change in records/s per second. Without the log ends of some
    partitions the rate of the others is a lower bound."""
    start, reason = at - settings.demand_window_seconds, ""
    intervals = log.intervals(history, operator, start)
    if intervals is None:
        reason = "log-end offsets of two scrapes are needed and not every partition has them"
        intervals = log.intervals(history, operator, start, of_readable=True)
    if intervals is None:
        return unknown(reason), unknown(reason)
    late = at - intervals[-1].end
    if late > 2 * settings.arrival_window_seconds:
        reason = f"the brokers' offsets are {late:.0f} s old"
        return unknown(reason), unknown(reason)
    if not all(interval.records > 0 for interval in intervals):
        # bursts are parted by intervals without any growth; each ends with its last growing one
        following = [*(interval.records for interval in intervals[1:]), 0.0]
        ends = [i for i, after in enumerate(following) if after == 0 and intervals[i].records > 0]
        flowing = _flowing_again(intervals)
        if flowing is None and len(ends) >= 3:
            trend = unknown("the log grows in bursts: no trend within them")
            return _bound_if(reason, _over_bursts(intervals, ends)), trend
        intervals = flowing or intervals
    rate = _over_short_window(intervals, settings.arrival_window_seconds)
    if late > 1e-6:
        rate = rate.model_copy(update={"confidence": round(rate.confidence * 0.7, 3)})
    return _bound_if(reason, rate), unknown(reason) if reason else _trend(intervals)


def of_known_partitions(rate: Estimate, hidden: int) -> Estimate:
    """Return the rate of the known partitions as a lower bound of that of a source that reads `hidden` others, too."""
    reason = f"the offsets of {hidden} partitions that the source reads are unknown"
    return at_least(rate.value, reason, rate.confidence, rate.samples, rate.window_seconds)


def missing_signals(observation: Observation, partitions: Sequence[PartitionReading]) -> str:
    """Return why the demand of a source that the policy's signals count cannot be measured; empty for another one, and if
    it can."""
    if observation.deployment is None or not observation.policy.subject.application.counts_by_signals:
        return ""
    if not partitions:
        return "application.service needs its signals processed and waiting for it"
    queue = partitions[0]
    return f"the signal {queue.topic} has no usable value" if queue.log_end_offset is None else ""


class Counted(NamedTuple):
    """Records/s that a source took in over a window by its own counter, and by its offsets: what was appended, less the
    growth of its lag."""

    counter: float
    offsets: float


def contradiction(
    arrives: Estimate, history: LogHistory, operator: str, view: View | None, state: SourceState
) -> Counted | None:
    """Return what a source took in by its counter and by its offsets if they contradict each other over the window of
    capacity; None if they agree, or one is unknown."""
    if arrives.value is None or view is None or not view.samples or view.commits:
        return None
    first, last = view.taught, len(view.at) - 1
    rate = view.rate(view.records_in, first)
    if rate is None or off_level(rate, arrives.value, _CONTRADICTION_SHARE) == 0:
        return None
    start, end = view.at[first], view.at[last]
    if state.guessed_at is not None and start <= state.guessed_at:
        return None  # a lag as of a commit stands still, and jumps once the position is known
    lags = [log.end_at(state.points, at) for at in (start, end)]
    appended = 0.0
    for i in log.columns_of(history.keys, operator):
        curve = log.column(history, i)
        ends = [log.end_at(curve, at) for at in (start, end)]
        if ends[0] is None or ends[1] is None:
            return None
        appended += ends[1] - ends[0]
    if lags[0] is None or lags[1] is None or not appended:
        return None
    seconds, offsets = end - start, appended + lags[0] - lags[1]
    if off_level(rate * seconds, max(0.0, offsets), _CONTRADICTION_SHARE) == 0:
        return None
    return Counted(rate, offsets / seconds)


def corrected(arrives: Estimate, counted: Counted) -> Estimate:
    """Return the arrival rate in the counter's records: capacities and selectivities are measured in them.

    More records than offsets come from partitions that are not known, or out of batches: then it is a lower bound. Fewer
    are what a filter in the source leaves.
    """
    reason = f"{counted.counter:,.0f} records/s are taken in by the counter, {counted.offsets:,.0f} by the offsets"
    rate = (arrives.value or 0.0) * counted.counter / max(counted.offsets, 1e-9)
    if counted.counter > counted.offsets:
        rate = max(rate if counted.offsets > 0 else 0.0, counted.counter)
        return at_least(rate, reason, 0.6 * arrives.confidence, arrives.samples, arrives.window_seconds)
    return estimate(rate, reason, 0.6 * arrives.confidence, arrives.samples, arrives.window_seconds)


def from_lag(reason: Estimate, taken: Estimate, growth: Estimate) -> Estimate:
    """Return the arrival rate without the brokers: throughput plus growth of lag; else what is known, for `reason`."""
    if taken.value is None or growth.value is None:
        return reason
    rate = taken.value + growth.value
    if rate < -_STEP_SHARE * taken.value:
        return unknown(f"lag fell by {-growth.value:,.0f} records/s, and only {taken.value:,.0f} were taken in")
    basis = f"source throughput + growth of lag ({reason.basis})"
    confidence = 0.6 * min(taken.confidence, growth.confidence)
    return estimate(max(0.0, rate), basis, confidence, taken.samples, taken.window_seconds)


def _bound_if(reason: str, rate: Estimate) -> Estimate:
    """Return the rate as a lower bound if there is a reason why the whole is unknown."""
    return at_least(rate.value, reason, rate.confidence, rate.samples, rate.window_seconds) if reason else rate


def _flowing_again(intervals: list[Interval]) -> list[Interval] | None:
    """The newest intervals, if they show that the bursts are over: growth in each, and more of it than any burst
    brought.

    So a load that returns after a trickle is measured at its height, not averaged over the trickle's pauses.
    """
    peaks = list(accumulate((interval.records for interval in intervals), max))
    smallest = inf
    flowing = None
    for i in range(len(intervals) - 1, 0, -1):
        smallest = min(smallest, intervals[i].records)
        if smallest == 0:
            break
        if smallest > 2 * peaks[i - 1] and len(intervals) - i >= 2:
            flowing = intervals[i:]
    return flowing


def _over_bursts(intervals: Sequence[Interval], ends: Sequence[int]) -> Estimate:
    """From the end of the first burst to the end of the last; to the last interval if the next burst is overdue."""
    first, last = ends[0], ends[-1]
    period = (intervals[last].end - intervals[first].end) / (len(ends) - 1)
    if intervals[-1].end - intervals[last].end > 2 * period:
        last = len(intervals) - 1
    inside = intervals[first + 1 : last + 1]
    seconds = intervals[last].end - intervals[first].end
    records = sum(interval.records for interval in inside)
    basis = f"log-end offsets, over {len(ends) - 1} bursts"
    return estimate(records / seconds, basis, 0.7, len(inside) + 1, seconds)


def _over_short_window(intervals: Sequence[Interval], window_seconds: float) -> Estimate:
    end = intervals[-1].end
    inside = [interval for interval in intervals if interval.start >= end - window_seconds - 1e-6] or [intervals[-1]]
    step = _step(intervals)
    if step:
        inside = list(step)
    seconds = inside[-1].end - inside[0].start
    rate = sum(interval.records for interval in inside) / seconds
    basis = "log-end offsets" + (", since the level changed" if step else "")
    return estimate(rate, basis, {1: 0.75, 2: 0.85}.get(len(inside), 0.95), len(inside) + 1, seconds)


def _step(intervals: Sequence[Interval]) -> Sequence[Interval] | None:
    """The intervals of a new level, if the newest show one.

    Upwards the newest alone counts while it is the higher (the step fell into the one before), and a doubling needs no
    second interval unless records had been held up before it. Downwards both count, because underestimated demand costs
    more than overestimated demand.
    """
    if len(intervals) < 4:
        return None
    before, newest = intervals[-5:-2], intervals[-2:]
    level = sum(i.records for i in before) / sum(i.seconds for i in before)
    off = [off_level(i.records, level * i.seconds, _STEP_SHARE) for i in newest]
    if off == [1, 1]:
        return newest[1:] if newest[1].rate > newest[0].rate else newest
    if off == [-1, -1]:
        return newest
    doubled = off == [0, 1] and newest[1].rate >= 2 * level and newest[0].rate >= 0.8 * level
    return newest[1:] if doubled else None


def _trend(intervals: Sequence[Interval]) -> Estimate:
    if len(intervals) < 4:
        return unknown(f"{len(intervals)} of 4 intervals seen")
    points = [((interval.start + interval.end) / 2, interval.rate) for interval in intervals]
    seconds = intervals[-1].end - intervals[0].start
    return estimate(slope(points), "log-end offsets, least squares", min(0.8, seconds / 75), len(points) + 1, seconds)
