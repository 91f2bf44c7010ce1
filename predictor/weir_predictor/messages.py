"""Sentences about vectors and what-ifs."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from weir_contracts import (
    Analysis,
    JudgedArrivals,
    JudgedLoad,
    Judgement,
    SourceForecast,
    WhatIf,
    WhatIfOperator,
    changes,
    counted,
    format_duration,
    short_name,
)

from .arrivals import ArrivalPath
from .forecasts import Ahead
from .model import MIN_RATE, Restart


def no_capacity(analysis: Analysis) -> str:
    """Return why no operator's capacity is known: how much of the first window of a run has passed, or that it was in
    vain."""
    numbers = next((each.numbers for each in analysis.symptoms if each.code == "warming-up"), {})
    age, needed = numbers.get("run_age_seconds"), numbers.get("needed_seconds")
    if age is not None and needed is not None and age < needed:
        return f"measuring capacity, {age:.0f} of {needed:.0f} s of the run"
    return "no operator's capacity is known yet: none was measured since the run's warm-up"


def answered(answer: WhatIf, carries: str | None = None) -> str:
    """Return the answer in a sentence: whether it keeps up, the lag, where it breaks and whether it is possible.
    `carries` says what it carries at least if its breaking point is unknown."""
    load = f"{answer.arrival_rate:,.0f} records/s"
    if answer.load_factor is not None:
        load += f" (x{answer.load_factor:.3g})"
    if answer.loads:
        later = f" from {_time(answer.after_seconds)} ahead on" if answer.after_seconds > 0 else ""
        load += f", the highest of the forecast{later},"
    moved = changes(answer.parallelism_now, answer.parallelism)
    vector = "the present parallelism" if moved == "no change" else moved
    parts = [f"At {load} with {vector} {_conclusion(answer)}"]
    if answer.breaks_at_load is not None and answer.breaks_at_rate is not None:
        parts.append(
            f"{'It breaks beyond' if answer.keeps_up else 'It carries up to'} x{answer.breaks_at_load:.3g} "
            f"({answer.breaks_at_rate:,.0f} records/s), where {answer.bottleneck} is full"
        )
    if carries is not None:
        parts.append(carries)
    parts += [
        f"At the forecast's upper edge of {load.max_arrival_rate:,.0f} records/s it is {_late(load.late_seconds, load.recovers)}"
        for load in answer.loads
        if load.arrivals == "upper-edge"
    ]
    if answer.infeasible:
        obstacles = "; ".join(dict.fromkeys(each.because for each in answer.infeasible))
        parts.append(obstacles if answer.possible else f"It is not possible: {obstacles}")
    return ". ".join(parts) + "."


def sustained_by_lower_bound(operator: str, rate: float, rate_now: float) -> str:
    """Return the records/s at all sources below which it does not break, from a lower bound of `operator`."""
    load = f"x{rate / rate_now:.3g} ({rate:,.0f} records/s)" if rate_now > MIN_RATE else f"{rate:,.0f} records/s"
    return f"It carries at least {load}: {operator} was never measured beyond that"


def _conclusion(answer: WhatIf) -> str:
    if answer.keeps_up is None:
        gaps = [f"the {gap.what} of {gap.operator} is unknown ({gap.because})" for gap in answer.unknown]
        gaps = [text for gap, text in zip(answer.unknown, gaps, strict=True) if gap.what != "lag"]
        rest = f", and {len(gaps) - 1} more" if len(gaps) > 1 else ""
        return f"it is unknown whether it keeps up: {gaps[0]}{rest}"
    busiest = next((o for o in answer.operators if o.operator == answer.bottleneck), None)
    if answer.keeps_up:
        return f"it keeps up{_busy(busiest)}{_lag(answer)}"
    return f"it does not keep up: {_shortage(answer, busiest)}{_lag(answer)}"


def _busy(busiest: WhatIfOperator | None) -> str:
    if busiest is None or busiest.utilization is None:
        return ""
    return f", with {busiest.operator} at {busiest.utilization:.0%} of its capacity"


def _shortage(answer: WhatIf, busiest: WhatIfOperator | None) -> str:
    if busiest is None or busiest.capacity is None or busiest.arrival_rate is None:
        return "more arrives than is taken in"
    text = f"{busiest.arrival_rate:,.0f} records/s would arrive at {busiest.operator}"
    text += f", {busiest.parallelism} process {busiest.capacity:,.0f}"
    if busiest.min_parallelism is not None and busiest.min_parallelism > busiest.parallelism:
        text += f" (it needs {busiest.min_parallelism})"
    if answer.arrival_rate > 0 and answer.throughput is not None:
        text += f"; {answer.throughput:,.0f} of {answer.arrival_rate:,.0f} are taken in"
    return text


def _lag(answer: WhatIf) -> str:
    found, objective = answer.prediction, answer.objective_seconds
    if found is None:
        lost = next((gap for gap in answer.unknown if gap.what == "lag"), None)
        return f"; its lag is unknown, because the lag of {lost.operator} is ({lost.because})" if lost else ""
    within = f"{found.horizon_seconds:,.0f} s"
    if answer.keeps_up:
        peak = f"; lag peaks at {found.max_lag_seconds:,.1f} s"
        peak += f" in a restart of {found.downtime_seconds:.2g} s" if found.downtime_seconds > 0 else ""
    else:
        peak = f"; lag reaches {found.final_lag_seconds:,.0f} s in {within}"
    if objective is None:
        return peak
    left, met = found.objective_left_at_seconds, found.objective_met_at_seconds
    if left is None:
        return f"{peak}, within the objective of {objective:g} s"
    if met is None:
        since = "from the start" if left == 0 else f"from {left:,.0f} s on"
        return f"{peak}, above the objective of {objective:g} s {since}"
    return f"{peak}, above the objective of {objective:g} s until {met:,.0f} s from now"


def judged(found: Judgement) -> str:
    """Return the judgement in a sentence: lateness under each course of the arrivals, that of holding, and the cost."""
    moved = changes(found.parallelism_now, found.parallelism)
    holds = moved == "no change"
    within = f"{found.horizon_seconds:,.0f} s"
    parts = [_lateness(load, holds=holds) for load in found.loads]
    cost = counted(found.slots, "slot") + ("" if holds else f" instead of {found.slots_now}")
    if found.restart.seconds > 0:
        cost += f", a restart of {found.restart.seconds:.2g} s"
        cost += f" for {found.restart.away_share:.0%} of it" if found.restart.away_share < 1 else ""
    text = f"{'Holding' if holds else moved}, {within} ahead: {'; '.join(parts)}; {cost}."
    obstacles = "; ".join(dict.fromkeys(each.because for each in found.infeasible))
    if not obstacles:
        return text
    return f"{text} {obstacles if found.possible else f'It is not possible: {obstacles}'}."


_ARRIVALS = {"present": "", "expected": " as forecast", "upper-edge": " at the forecast's upper edge"}


def _lateness(load: JudgedLoad, *, holds: bool) -> str:
    text = _late(load.late_seconds, load.recovers) + _ARRIVALS[load.arrivals]
    return text if holds else f"{text} (holding: {_late(load.hold_late_seconds, load.hold_recovers)})"


def _late(seconds: float | None, recovers: bool | None) -> str:
    if recovers is None:
        return "lateness unknown"
    if not recovers or seconds is None:
        return "late without end"
    return f"late {seconds:,.3g} s" if seconds > 0 else "never late"


def reach_of_forecast(ahead: Ahead | None, horizon_seconds: float) -> list[str]:
    """Return the caveats of a forecast: how far it reaches, and whether its upper edge is unknown."""
    if ahead is None:
        return ["no source has a forecast: the present arrivals are assumed to stay"]
    notes = []
    if ahead.seconds < horizon_seconds:
        notes.append(f"the forecast reaches {ahead.seconds:,.0f} s ahead: its last rate is assumed to stay behind it")
    if ahead.upper is None:
        notes.append("the forecast has no upper edge yet: its history is too short")
    elif ahead.upper_seconds < min(ahead.seconds, horizon_seconds):
        notes.append(
            f"the upper edge is known {ahead.upper_seconds:,.0f} s ahead: its distance is assumed to stay behind it"
        )
    return notes


def beyond_forecast(reach_seconds: float, after_seconds: float, horizon_seconds: float) -> str:
    """Return why a time cannot be answered, and how far the forecast reaches."""
    wanted = f"the horizon of {_time(horizon_seconds)}"
    if after_seconds > 0:
        wanted = f"{_time(after_seconds)} and {wanted} are {_time(after_seconds + horizon_seconds)}"
    else:
        wanted += " is longer"
    return f"the forecast reaches {_time(reach_seconds)} ahead; {wanted}"


def explained(
    answer: WhatIf, analysis: Analysis, courses: Mapping[JudgedArrivals, Mapping[str, ArrivalPath]], restart: Restart
) -> list[str]:
    """Return where each figure of a forecast's what-if comes from: arrivals, upper edges, utilizations, lag."""
    horizon = answer.prediction.horizon_seconds if answer.prediction else 0.0
    found = []
    for source in analysis.sources:
        name, forecast = source.operator, analysis.forecast(source.operator)
        path, upper = (courses.get(each, {}).get(name) for each in ("expected", "upper-edge"))
        if forecast is None or path is None:
            found.append(f"{name}: it has no forecast, so its present rate is assumed to stay")
            continue
        at = answer.after_seconds + max((0.0, *path.within(horizon), horizon), key=path.rate_at)
        found.append(
            f"{name}: {path.max_rate(horizon):,.0f} records/s at the highest, {_time(at)} from now, by its "
            f"{forecast.method.replace('-', ' ')}; {source.arrival_rate.value or 0.0:,.0f} arrive now"
        )
        found.append(f"{name}: {_edge(forecast, upper, answer.after_seconds + horizon, horizon)}")
    for each in answer.operators:
        if each.utilization is not None and each.capacity is not None and each.input_rate is not None:
            points = ", ".join(map(str, each.seen_at)) or "no parallelism"
            found.append(
                f"{each.operator}: {each.input_rate:,.0f} of {each.capacity:,.0f} records/s are {each.utilization:.0%} "
                f"utilization; the capacity of {each.parallelism} was measured at {points}"
            )
    if answer.prediction is not None:
        begins = "without a backlog" if answer.after_seconds > 0 else "with what waits now"
        cost = f" and a restart of {restart.seconds:.2g} s" if restart.seconds > 0 else " and no restart"
        cost += "" if restart.measured else ", which is assumed"
        found.append(f"lag: {answer.prediction.max_lag_seconds:,.1f} s at the highest, {begins}{cost}")
    return found


def _edge(forecast: SourceForecast, upper: ArrivalPath | None, until_seconds: float, horizon_seconds: float) -> str:
    """Return the upper edge of a source, and what it has been worth."""
    if upper is None:
        return "its upper edge is unknown: too few high peaks were judged"
    bounded = [each for each in forecast.horizons if each.peak_upper is not None]
    horizon = next((each for each in bounded if each.horizon_seconds >= until_seconds), bounded[-1])
    text = f"{upper.max_rate(horizon_seconds):,.0f} records/s at its upper edge"
    if horizon.coverage is None:
        return f"{text}, which was not judged yet"
    within = _time(horizon.horizon_seconds)
    return f"{text}: {horizon.coverage:.0%} of {horizon.judged:,} past high peaks within {within} stayed below theirs"


def _time(seconds: float) -> str:
    return format_duration(timedelta(seconds=round(seconds)))


def no_such_operator(name: str, names: Sequence[str]) -> str:
    """Return the error for an operator that the graph does not have."""
    existing = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"there is no operator {name[:100]!r}; there are: {existing}"[:1500]


def beyond_lower_bound(bound: float, demand: float) -> str:
    """Return why it is unknown whether an operator with a lower bound suffices."""
    return f"it carries at least {bound:,.0f} records/s, and was never measured at {demand:,.0f}"


def counted_on(name: str, bound: float, p: int) -> str:
    """Return the note of an operator that is predicted by its lower bound."""
    return f"{name} carries at least {bound:,.0f} records/s with {p}: the prediction assumes no more"


def extrapolated(name: str, p: int, seen_at: Sequence[int]) -> list[str]:
    """Return a note if the capacity at `p` lies outside the measured parallelisms."""
    if len(seen_at) == 1 and p != seen_at[0]:
        return [f"{name} was measured at {seen_at[0]} only: its capacity at {p} assumes the usual contention"]
    if not seen_at[0] <= p <= seen_at[-1]:
        return [f"{name} was measured at {', '.join(map(str, seen_at))}: its capacity at {p} is extrapolated"]
    return []


def restored(restart: Restart) -> str:
    """Return the note of tasks that restore their state."""
    return f"{restart.away_share:.0%} of it restores state for {restart.restore_seconds:.0f} s: it has no standby tasks"


def skewed(name: str, skew: float) -> str:
    """Return the note of an operator with a hot subtask."""
    return (
        f"the busiest subtask of {name} does {skew:.1f} times the mean: if a key makes it so, more subtasks help less"
    )


_LIMITED_BY = {"bounds": "by the policy's bounds", "key-groups": "by its key groups", "partitions": "by its partitions"}


def needs_more(code: str, name: str, needs: int, limit: int) -> str:
    """Return why an operator cannot get the parallelism that it needs."""
    return f"{short_name(name)} would need {needs} and is limited to {limit} {_LIMITED_BY[code]}"


def above_limit(code: str, name: str, wanted: int, limit: int) -> str:
    """Return which upper limit a parallelism exceeds."""
    if code == "bounds":
        return f"the policy allows {short_name(name)} at most {limit}"
    if code == "key-groups":
        return f"{short_name(name)} has {limit} key groups and cannot be split further"
    return f"{short_name(name)} reads {counted(limit, 'partition')}, so {wanted - limit} of {wanted} subtasks would be idle"


def above_ceiling(name: str, ceiling: float, arriving: float) -> str:
    """Return that no parallelism suffices."""
    return f"no parallelism of {short_name(name)} sustains more than {ceiling:,.0f} records/s; {arriving:,.0f} would arrive"


def too_few_slots(wanted: int, free: int, held: int) -> str:
    """Return that the cluster has too few slots."""
    return f"{counted(wanted, 'slot')} {'is' if wanted == 1 else 'are'} needed and {free + held} available ({free} free, {held} held)"
