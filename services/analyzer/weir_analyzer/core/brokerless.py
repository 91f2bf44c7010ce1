"""Demand and lag of a source whose partitions no broker is read for, by what it reports itself: `pendingRecords`, the age of
what its shards have left, or no more than what it takes in.

It takes in what arrives while it keeps up. Where it may be too slow, its throughput is a lower bound of the demand: enough
to grow, never to shrink. Its busy time is believed only while its throughput does not contradict it.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from weir_contracts import Estimate, OperatorReading, counted, formatted, unknown

from .analysis import OperatorWindow
from .demand import from_lag
from .lag import BACKLOG_SECONDS, SourceLag, as_of_snapshot, growth_of, is_backlogged
from .run import Shares, SourceState, View
from .window import AnalysisSettings, at_least, estimate, since, slope, thinned

_SATURATED_SHARE = 0.9
_HELD_BACK_SHARE = 0.1
"""Backpressured share from which a source does not take in what there is."""
_IDLE_SECONDS = 10.0
"""Time without a record after which a source is idle: Flink's metrics are up to 10 s old."""
_MAX_POINTS = 40
_RISE, _FALL, _NOISE_RECORDS = 10.0, 3.0, 100.0
"""Multiples of what is taken in by which `pendingRecords` may rise and fall between two readings, and a change that needs no
explanation. One beyond them is believed when the next reading repeats it."""
_SAME_GROWTH = 2.0
_LIED = 2.0
"""Rise of the throughput of a source that was fully busy before, with which its busy share cannot be true: a warmer JVM does
less."""
_NOTHING_WAITS, _AT_THE_END = "while nothing waits", "at the end of its shards"
_REFUTED_BY_WAITING = (_NOTHING_WAITS, _AT_THE_END)
"""Ends of the doubts that do not outlast a backlog."""
_USELESS_GAIN = 0.25
"""Share of the proportional gain below which more subtasks did not help a source that is fully busy."""
_CATCH_UP_MARGIN, _MIN_CATCH_UP_SECONDS, _MAX_CATCH_UP_SECONDS = 1.5, 15.0, 300.0
"""Multiple of the time that a new run needs for what came before it at the demand before, and bounds of that time."""
_MISSED_SHARE, _MAX_MISSED_SECONDS = 0.5, 30.0
"""Share of the demand that a source is taken to have left while it was too slow, and the time for which."""
_NO_AGE_SECONDS = 1.0
"""Age below which a shard counts as read to its end: it is requested once a second or less often."""
_MIN_SHARE_OF_TIME = 0.1
"""Least pace at which a source has to move through its shards for their rate to be known."""


class Own(NamedTuple):
    """Demand and lag of a source by its own metrics, and its state in the run."""

    arrives: Estimate
    lag: SourceLag
    state: SourceState
    doubt: str = ""
    """Why its busy time is not believed; empty: it is."""


def own_demand(
    window: OperatorWindow,
    state: SourceState,
    at: float,
    *,
    started_at: float,
    stale_seconds: float,
    settings: AnalysisSettings,
) -> Own:
    """Return demand and lag of a source of the current run, which began at `started_at`. `state` is that of the observation
    before."""
    reading, taken, spent = window.reading, window.input_rate, window.spent
    state = _with_full(state, window)
    if state.doubt.endswith(_REFUTED_BY_WAITING) and _backlogged(state, taken, settings):
        state = replace(state, doubt="")
    if reading is None:
        return Own(taken, _nothing_known(taken), state)
    doubt = _doubt(window, state, settings)
    # a chain that waits for its sink takes nothing in, too, which is no lie: its source's idle time is the difference
    lasts = taken.value != 0 or _is_idle(reading, taken, spent)
    state = replace(state, doubt=(doubt if lasts else "") or state.doubt)
    if reading.pending_records is not None:
        found, state = _of_pending(
            reading.pending_records, taken, state, at, stale_seconds=stale_seconds, settings=settings
        )
        arrives = from_lag(unknown("it has no offsets"), taken, found.growth)
        if state.jumped is not None and taken.value is not None:
            arrives = _bound(taken, found.records.basis, _share_of_arrivals(taken, state, settings))
        return Own(arrives, found, state, doubt)
    if reading.behind_seconds is not None and not reading.pending_refused:
        shortest = reading.behind_shortest_seconds
        differ = shortest is not None and shortest <= _NO_AGE_SECONDS < reading.behind_seconds
        return _of_age(reading.behind_seconds, taken, state, at, settings, differ=differ)._replace(doubt=doubt)
    silent_seconds = at - max((points[-1][0] for points in (state.points, state.ages) if points), default=-inf)
    if silent_seconds <= settings.trend_window_seconds and not reading.pending_refused:
        # one request without a response is no source that reports nothing
        reason = f"it has not reported for {silent_seconds:.0f} s what waits"
        arrives = _bound(taken, reason, _share_of_arrivals(taken, state, settings))
        return Own(arrives, _without_positions(arrives), state, doubt)
    state = replace(state, points=(), ages=())
    if reading.pending_refused:
        arrives = _bound(taken, f"its pendingRecords {reading.pending_refused}")
    elif _is_idle(reading, taken, spent):
        arrives = estimate(0.0, f"it has had no record for {reading.idle_seconds:,.0f} s", 0.8, 1)
    elif doubt:
        arrives = _bound(taken, f"it reports no waiting records, and {doubt}")
    else:
        arrives = _of_throughput(taken, spent, reading)
    arrives = _without_catching_up(arrives, state, at, started_at)
    if arrives.proven is not None and (arrives.value is not None or arrives.proven == taken.value):
        is_bound = arrives.value is None and state.demand is not None
        since_at = state.demand[2] if is_bound and state.demand is not None else at
        state = replace(state, demand=(at, arrives.proven, since_at))
    return Own(arrives, _without_positions(arrives), state, doubt)


def carried_over(state: SourceState, parallelism: int) -> SourceState:
    """Return what a run at a parallelism showed of a source that is true of the next run, too."""
    full = state.full_before if state.full is None else (parallelism, state.full[0])
    return SourceState(full_before=full, demand=state.demand, doubt=state.doubt)


def _bound(taken: Estimate, reason: str, share: float = 1.0) -> Estimate:
    """Return what is taken in, or the share of it that arrives meanwhile, as a lower bound of the demand."""
    bound = None if taken.value is None else share * taken.value
    return at_least(bound, reason, 0.6 * taken.confidence, taken.samples, taken.window_seconds)


def _share_of_arrivals(taken: Estimate, state: SourceState, settings: AnalysisSettings) -> float:
    """Return the share of what is taken in that arrives meanwhile; the rest of it had been waiting, as the lag that became
    shorter shows."""
    if state.ages:
        return 1 / max(1.0, 1.0 - (slope(state.ages) or 0.0))
    growth = growth_of(state, settings).value
    return max(0.0, 1 + min(0.0, growth or 0.0) / taken.value) if taken.value else 1.0


def _without_catching_up(arrives: Estimate, state: SourceState, at: float, started_at: float) -> Estimate:
    """Return the demand without what came while nothing was processed before the run: a saturated source takes in both.

    Until that is surely taken in, no more than the demand before is proven.
    """
    if arrives.lower_bound is None or state.demand is None or state.demand[0] >= started_at:
        return arrives
    known_at, rate, full_since = state.demand
    away = started_at - known_at + _MISSED_SHARE * min(_MAX_MISSED_SECONDS, known_at - full_since)
    spare = arrives.lower_bound - rate
    if spare <= 0:
        return arrives
    needed = min(_MAX_CATCH_UP_SECONDS, max(_MIN_CATCH_UP_SECONDS, _CATCH_UP_MARGIN * rate * away / spare))
    if at - started_at >= needed:
        return arrives
    reason = f"until this run is {needed:.0f} s old it may catch up with the {away:.0f} s before it"
    return at_least(rate, reason, arrives.confidence, arrives.samples, arrives.window_seconds)


def _nothing_known(reason: Estimate) -> SourceLag:
    return SourceLag(unknown(reason.basis), unknown(reason.basis), unknown(reason.basis))


def _of_throughput(taken: Estimate, spent: Shares, reading: OperatorReading) -> Estimate:
    """Return the arrival rate of a source of files or change data: what it takes in, which is a lower bound while it may be
    too slow."""
    if taken.value is None:
        return taken
    busy, held_back = spent.busy, spent.backpressured
    if busy is None or held_back is None:
        return _bound(taken, "it reports neither offsets nor waiting records, and its busy share is unknown")
    if busy >= _SATURATED_SHARE or held_back >= _HELD_BACK_SHARE:
        shares = f"is {busy:.0%} busy and {held_back:.0%} backpressured"
        return _bound(taken, f"it reports neither offsets nor waiting records, {shares}")
    hottest = reading.busy_share_max or 0.0
    if reading.parallelism > 1 and hottest >= _SATURATED_SHARE:
        shares = f"one of its subtasks is {hottest:.0%} busy"
        return _bound(taken, f"it reports neither offsets nor waiting records, and {shares}")
    basis = f"throughput of a source that is {busy:.0%} busy"
    return estimate(taken.value, basis, 0.6 * taken.confidence, 1, taken.window_seconds)


def _without_positions(arrives: Estimate) -> SourceLag:
    """Return the lag of a source that reports neither offsets nor waiting records: nothing waits while its arrivals are
    what it takes in, else that is unknown."""
    if arrives.value is not None:
        nothing = estimate(0.0, f"nothing waits: {arrives.basis}", arrives.confidence, arrives.samples)
        return SourceLag(nothing, nothing, nothing)
    bound = at_least(None if arrives.proven is None else 0.0, arrives.basis, arrives.confidence, arrives.samples)
    return SourceLag(bound, bound, unknown(arrives.basis))


def _is_idle(reading: OperatorReading, taken: Estimate, spent: Shares) -> bool:
    """Return whether a source has nothing to read, whatever its busy time. One that is held back keeps the idle time that
    it had before."""
    idle, held_back = reading.idle_seconds, spent.backpressured
    return idle is not None and idle >= _IDLE_SECONDS and taken.value == 0 and (held_back or 0.0) < _HELD_BACK_SHARE


def _of_pending(
    pending: int, taken: Estimate, state: SourceState, at: float, *, stale_seconds: float, settings: AnalysisSettings
) -> tuple[SourceLag, SourceState]:
    """Return the lag by `pendingRecords`: in seconds, the time in which the source takes in as many."""
    if (carried := as_of_snapshot(state, stale_seconds, settings)) is not None:
        return carried, state
    now, points = (at, float(pending)), state.points
    if points and not _is_explained(points, now, taken):
        if state.jumped is None or (confirmed := _confirmed(points, state.jumped, now, taken)) is None:
            before = points[-1][1]
            reason = f"pendingRecords jumped from {before:,.0f} to {pending:,}, which the next reading has to repeat"
            records = at_least(min(before, pending), reason, 0.5, 1)
            seconds = at_least(_drain_seconds(min(before, pending), taken), reason, 0.3, 1)
            return SourceLag(records, seconds, unknown(reason)), replace(state, jumped=now)
        points = confirmed
    kept = since(points, at - settings.trend_window_seconds - 1, 4)
    records = estimate(pending, "pendingRecords of the source", 0.6, 1)
    waits = _drain_seconds(pending, taken)
    if waits is None:
        seconds = unknown("pendingRecords ÷ throughput, which is 0 or unknown")
    else:
        confidence = 0.5 if pending == 0 else 0.5 * taken.confidence
        seconds = estimate(waits, "pendingRecords ÷ throughput", confidence, taken.samples, taken.window_seconds)
    points = tuple(thinned([*kept, now], _MAX_POINTS))
    state = replace(state, points=points, seconds=seconds.value, basis=seconds.basis, jumped=None)
    return SourceLag(records, seconds, growth_of(state, settings)), state


def _drain_seconds(records: float, taken: Estimate) -> float | None:
    return 0.0 if records == 0 else records / taken.value if taken.value else None


def _is_explained(points: Sequence[tuple[float, float]], now: tuple[float, float], taken: Estimate) -> bool:
    """Return whether waiting records changed by no more than the throughput and the trend before explain."""
    if taken.value is None:
        return True
    (then, before), (at, records) = points[-1], now
    trend = 0.0
    if len(points) > 1 and then > points[-2][0]:
        trend = (before - points[-2][1]) / (then - points[-2][0])
    rise = _RISE * taken.value + _SAME_GROWTH * max(0.0, trend)
    fall = _FALL * taken.value + _SAME_GROWTH * max(0.0, -trend)
    change, seconds = records - before, at - then
    return -fall * seconds - _NOISE_RECORDS <= change <= rise * seconds + _NOISE_RECORDS


def _confirmed(
    points: Sequence[tuple[float, float]], jumped: tuple[float, float], now: tuple[float, float], taken: Estimate
) -> tuple[tuple[float, float], ...] | None:
    """Return the points of a jump that the next reading confirms: those since then where the records stayed, as they came
    at once; all where they go on growing or shrinking as fast. None: it does not."""
    if _is_explained((jumped,), now, taken):
        return (jumped,)
    first = (jumped[1] - points[-1][1]) / max(1e-9, jumped[0] - points[-1][0])
    second = (now[1] - jumped[1]) / max(1e-9, now[0] - jumped[0])
    if first * second > 0 and 1 / _SAME_GROWTH <= second / first <= _SAME_GROWTH:
        return (*points, jumped)
    return None


def _of_age(
    age: float, taken: Estimate, state: SourceState, at: float, settings: AnalysisSettings, *, differ: bool
) -> Own:
    """Return demand and lag of a source whose shards report how far it is behind their ends.

    The pace through the shard that is furthest behind is not that through the others if they `differ`: some are read to
    their end.

    In `s` seconds it moves through `s` less the growth of the age of what was appended, so that what it takes in came at
    that rate.
    """
    ages = since([*state.ages, (at, age)], at - settings.lag_window_seconds - 1e-6, 4)
    state = replace(state, points=(), ages=tuple(thinned(ages, _MAX_POINTS)))
    basis, confidence = "millisBehindLatest of its shards", min(0.8, taken.confidence)
    if taken.value is None:
        arrives = taken
    elif all(each <= _NO_AGE_SECONDS for _, each in ages):
        arrives = estimate(taken.value, f"throughput of a source at the end of its shards ({basis})", confidence)
        nothing = estimate(0.0, basis, confidence)
        return Own(arrives, SourceLag(nothing, estimate(age, basis, 0.8), nothing), state)
    else:
        pace = 1.0 - (slope(ages) or 0.0)
        if len(ages) < 3 or pace < _MIN_SHARE_OF_TIME or differ:
            reason = f"it is {age:,.0f} s behind the end of {'some of ' * differ}its shards"
            arrives = _bound(taken, reason, _share_of_arrivals(taken, state, settings))
        else:
            why = f"throughput ÷ {pace:.2f} s of its shards a second ({basis})"
            arrives = estimate(taken.value / pace, why, 0.7 * confidence, len(ages), ages[-1][0] - ages[0][0])
    seconds = estimate(age, basis, 0.8)
    if arrives.value is None or taken.value is None:
        records = at_least(None if taken.value is None else age * taken.value, arrives.basis, 0.4)
        return Own(arrives, SourceLag(records, seconds, unknown(arrives.basis)), state)
    records = estimate(age * arrives.value, f"{basis} × arrival rate", 0.5 * confidence)
    growth = estimate(arrives.value - taken.value, "arrival rate less throughput", arrives.confidence, len(ages))
    return Own(arrives, SourceLag(records, seconds, growth), state)


def _with_full(state: SourceState, window: OperatorWindow) -> SourceState:
    """Return the state with the range of throughputs at which the source was fully busy, over windows of capacity. Once it
    is less busy while it takes records in, its busy time follows the records."""
    view, spent = window.view, window.spent
    if view is None or not view.samples or spent.busy is None or spent.backpressured is None:
        return state
    rate = view.rate(view.records_in, view.taught)
    rate = view.rate(view.records_out, view.taught) if rate is None else rate
    if rate is None or spent.backpressured >= _HELD_BACK_SHARE:
        return state
    if spent.busy < _SATURATED_SHARE:
        return replace(state, full=None, full_before=None, doubt="") if rate > 0 else state
    if _stood_still(view):
        return state  # it waited for its sink: its throughputs before and after are no range
    low, high = state.full or (rate, rate)
    # a fall may be dearer records: it shows nothing, and a later rise counts from there
    return replace(state, full=(rate, rate) if rate < low else (low, max(high, rate)))


def _stood_still(view: View) -> bool:
    """Return whether the source took nothing in for as long as an idle one, within the window of capacity."""
    counts = view.records_out if view.records_in[-1] is None else view.records_in
    start, before = view.at[view.taught], counts[view.taught]
    for at, count in zip(view.at[view.taught :], counts[view.taught :], strict=True):
        if count != before:
            start, before = at, count
        elif at - start >= _IDLE_SECONDS:
            return True
    return False


def _doubt(window: OperatorWindow, state: SourceState, settings: AnalysisSettings) -> str:
    """Return why the busy time of a source is not time that it spends on records; empty if nothing contradicts it."""
    reading, spent, taken = window.reading, window.spent, window.input_rate
    if reading is None or spent.busy is None or spent.busy < _SATURATED_SHARE:
        return ""
    if (spent.backpressured or 0.0) >= _HELD_BACK_SHARE:
        return state.doubt
    busy = f"it is {spent.busy:.0%} busy"
    if _is_idle(reading, taken, spent):
        return f"{busy} without a record for {reading.idle_seconds:,.0f} s"
    if taken.value == 0 and (taken.window_seconds or 0.0) >= _IDLE_SECONDS:
        return f"{busy} and takes nothing in"
    if reading.pending_records == 0 and _waited_never(state, settings):
        return f"{busy} {_NOTHING_WAITS}"
    if reading.behind_seconds is not None and reading.behind_seconds <= _NO_AGE_SECONDS:
        return f"{busy} {_AT_THE_END}"
    if state.full is None:
        return state.doubt
    low, high = state.full
    if high >= _LIED * max(low, 1.0):
        return f"{busy} at {formatted(low)} records/s as at {formatted(high)}"
    if state.full_before is not None:
        fewer, rate = state.full_before
        gain = reading.parallelism / fewer - 1
        if gain > 0 and low < rate * (1 + _USELESS_GAIN * gain):
            at = f"at {formatted(low)} records/s with {counted(reading.parallelism, 'subtask')}"
            return f"{busy} {at} as at {formatted(rate)} with {fewer:.0f}"
    return state.doubt


def _backlogged(state: SourceState, taken: Estimate, settings: AnalysisSettings) -> bool:
    """Return whether records waited throughout the window of capacity, by their number or by their age."""
    ages = since(state.ages, state.ages[-1][0] - settings.lag_window_seconds - 1e-6) if state.ages else []
    if len(ages) >= 3 and ages[-1][0] - ages[0][0] >= settings.lag_window_seconds / 2:
        return all(age >= BACKLOG_SECONDS for _, age in ages)
    return is_backlogged(state, taken, settings)


def _waited_never(state: SourceState, settings: AnalysisSettings) -> bool:
    """Return whether no record waited in the window of capacity."""
    points = since(state.points, state.points[-1][0] - settings.lag_window_seconds - 1e-6) if state.points else []
    spans = bool(points) and points[-1][0] - points[0][0] >= settings.lag_window_seconds / 2
    return len(points) >= 3 and spans and not any(records for _, records in points)
