"""A what-if, as users write it, and its answer: what a parallelism and a load would bring, from the latest analysis. Pure.

It uses the model, curves and trajectory by which the planner decides. Results that depend on an unknown value are
omitted and named, never guessed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weir_contracts import (
    Analysis,
    JudgedArrivals,
    Outcome,
    Parallelism,
    SourceForecast,
    WhatIf,
    WhatIfOperator,
    changes,
    duration_text,
    parse_duration,
)

from .case import FORBIDDING, Case, InvalidQuestion, NotYet, case_of, forbidden, notes_of, operators_of, unreachable
from .flow import arrivals_at, throttled
from .forecast import ArrivalPath, ahead_of
from .judgement import judged_load, lateness_text, reach_of_forecast
from .model import MIN_RATE, Restart

POINTS = 121
MAX_FACTOR = 1000.0
MAX_RATE = 1e9
MAX_PARALLELISM = 32_768
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_FACTOR = re.compile(rf"[x×]({_NUMBER})|({_NUMBER})[x×]")
_PART = re.compile(r"[^=]+=[0-9]{1,6}\s*")
_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)/s")


@dataclass(frozen=True)
class Load:
    """A factor of the arrivals, or records/s at all sources together."""

    factor: float | None = None
    records_per_second: float | None = None
    is_forecast: bool = False
    """Whether the factor is of the forecast; else of the present arrivals."""

    def on(self, arrivals: Mapping[str, float]) -> dict[str, float]:
        """Return records/s at each source under this load, in the present proportions. Raises `InvalidQuestion` if
        nothing arrives now."""
        total = sum(arrivals.values())
        if self.records_per_second is None:
            factor = 1.0 if self.factor is None else self.factor
            return {source: rate * factor for source, rate in arrivals.items()}
        if len(arrivals) == 1:
            return dict.fromkeys(arrivals, self.records_per_second)
        if total <= MIN_RATE:
            raise InvalidQuestion("load", "nothing arrives now, so it is unknown how a rate is shared by the sources")
        return {source: rate / total * self.records_per_second for source, rate in arrivals.items()}


def parse_load(text: str) -> Load:
    """Return a load: `x2` or `2x` is twice the present one, `1200/s` records per second, `forecast` what is to come. Raises
    `InvalidQuestion`."""
    if text == "forecast":
        return Load(factor=1.0, is_forecast=True)
    if match := _FACTOR.fullmatch(text):
        factor = float(match[1] or match[2])
        if 0 < factor <= MAX_FACTOR:
            return Load(factor=factor)
    elif match := _RATE.fullmatch(text):
        rate = float(match[1])
        if 0 < rate <= MAX_RATE:
            return Load(records_per_second=rate)
    raise InvalidQuestion(
        "load",
        f"{text[:40]!r} is no load: write x2 for twice the present one (up to x1000), 1200/s for records/s, or forecast",
    )


def parse_at(text: str) -> float:
    """Return the seconds of `now`, `in 2h` or `2h`. Raises `InvalidQuestion`."""
    if text == "now":
        return 0.0
    try:
        return parse_duration(text.removeprefix("in ")).total_seconds()
    except ValueError as error:
        raise InvalidQuestion("at", f"{text[:40]!r} is no time from now: write 2h, or now ({error})") from None


def parse_parallelism(texts: Sequence[str]) -> Parallelism:
    """Return the parallelism of texts such as `enrich=6` or `parse=2,enrich=6`; names may contain `=`, and commas in
    brackets. Raises `InvalidQuestion`."""
    found: Parallelism = {}
    for text in (part for each in texts for part in _parts(each)):
        name, equals, number = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"[0-9]{1,6}", number):
            raise InvalidQuestion("parallelism", f"{text[:100]!r} is no operator=number")
        if not 1 <= int(number) <= MAX_PARALLELISM:
            raise InvalidQuestion("parallelism", f"{name[:100]}: must lie between 1 and {MAX_PARALLELISM}")
        if name in found:
            raise InvalidQuestion("parallelism", f"{name[:100]} is named twice")
        found[name] = int(number)
    return found


def _parts(text: str) -> list[str]:
    """Return the texts between commas, if each names an operator and its parallelism; else the text is one name."""
    parts = text.split(",")
    if all(_PART.fullmatch(each) and each.count("(") == each.count(")") for each in parts):
        return [each.strip() for each in parts]
    return [text]


def what_if(
    analysis: Analysis,
    parallelism: Parallelism,
    load: Load,
    horizon_seconds: float,
    outcomes: Sequence[Outcome] = (),
    *,
    after_seconds: float = 0.0,
) -> WhatIf:
    """Return the answer. Operators that are not named keep their parallelism; `outcomes` of past actions, newest first,
    have their durations. After `after_seconds` the load is that of the forecast.

    Raises `InvalidQuestion` for an operator that does not exist and for a time beyond the forecast, `NotYet` if graph,
    arrivals, every capacity or the forecast is unknown.
    """
    case = case_of(analysis, parallelism, outcomes)
    if load.is_forecast or after_seconds > 0:
        return _ahead(case, load, horizon_seconds, after_seconds)
    answer, unsure = _answer(case.under(load.on(case.model.arrivals)), horizon_seconds)
    return answer.model_copy(update={"sentence": _sentence(answer, unsure)})


def _ahead(case: Case, load: Load, horizon_seconds: float, after_seconds: float) -> WhatIf:
    """Return the answer under the forecast's middle, and the outcome under its upper edge."""
    if load.records_per_second is not None:
        raise InvalidQuestion(
            "load", "later than now the load is the forecast: write forecast, or x2 for twice as much"
        )
    ahead = ahead_of(case.analysis, case.model.arrivals)
    if ahead is None:
        raise NotYet("no source has a forecast yet: it takes a full minute of known arrivals")
    if after_seconds + horizon_seconds > ahead.seconds:
        field = "at" if after_seconds > 0 else "horizon"
        wanted = f"the horizon of {duration_text(horizon_seconds)} is longer"
        if after_seconds > 0:
            both = duration_text(after_seconds + horizon_seconds)
            wanted = f"{duration_text(after_seconds)} and the horizon of {duration_text(horizon_seconds)} are {both}"
        raise InvalidQuestion(field, f"the forecast reaches {duration_text(ahead.seconds)} ahead; {wanted}")
    factor = 1.0 if load.factor is None else load.factor
    case = case.under({source: rate * factor for source, rate in case.model.arrivals.items()})
    if after_seconds > 0:
        case = case.caught_up
    courses: dict[JudgedArrivals, Mapping[str, ArrivalPath] | None] = {
        "expected": ahead.expected,
        "upper-edge": ahead.upper,
    }
    later = {
        name: {source: path.later(after_seconds).scaled(factor) for source, path in paths.items()}
        for name, paths in courses.items()
        if paths is not None
    }
    cases = {name: case.along(paths, horizon_seconds) for name, paths in later.items()}
    answer, unsure = _answer(cases["expected"], horizon_seconds)
    loads = [judged_load(each, name, horizon_seconds) for name, each in cases.items()]
    answer = answer.model_copy(update={"after_seconds": after_seconds, "loads": loads})
    explained = _explained(answer, case.analysis, later, cases["expected"].restart)
    notes = [*answer.notes, *reach_of_forecast(ahead, after_seconds + horizon_seconds)]
    if after_seconds > 0:
        notes.append("what waits now is assumed to be worked off until then")
    return answer.model_copy(
        update={"sentence": _sentence(answer, unsure), "explained": explained[:1000], "notes": notes[:100]}
    )


def _answer(case: Case, horizon_seconds: float) -> tuple[WhatIf, str | None]:
    """Return the answer without its sentence, and what it carries at least if its breaking point is unknown."""
    analysis, capacities, names = case.analysis, case.capacities, case.topology.names
    taken = throttled(case.model.flow, names, capacities, case.model.arrivals)
    operators = operators_of(case, taken)
    over = [o for o in operators if o.operator in capacities and case.is_full(o.operator)]
    missing = [gap for gap in case.gaps if gap.what != "lag"]
    bottleneck, breaks_at_rate, unsure = _breaks(case)
    total_now, total = sum(case.arrivals_now.values()), sum(case.model.arrivals.values())
    arrives = total_now > MIN_RATE
    limits = forbidden(case)
    answer = WhatIf(
        application=analysis.application,
        analysis_id=analysis.id,
        observed_at=analysis.observed_at,
        sentence="-",
        possible=not any(limit.code in FORBIDDING for limit in limits),
        keeps_up=False if over else None if missing else True,
        parallelism_now=case.now,
        parallelism=case.wanted,
        slots_now=case.topology.slots(case.now),
        slots=case.topology.slots(case.wanted),
        arrival_rate_now=round(total_now, 2),
        arrival_rate=round(total, 2),
        load_factor=round(total / total_now, 4) if arrives else None,
        throughput=None if missing else round(sum(taken.values()), 2),
        max_throughput=round(sum(taken.values()), 2),
        bottleneck=bottleneck,
        breaks_at_load=round(breaks_at_rate / total_now, 3) if breaks_at_rate and arrives else None,
        breaks_at_rate=round(breaks_at_rate, 1) if breaks_at_rate else None,
        objective_seconds=analysis.policy.spec.objective.bound_seconds,
        prediction=None if case.gaps else case.outlook(horizon_seconds).prediction(POINTS),
        operators=operators,
        infeasible=[*limits, *unreachable(case, over)][:100],
        unknown=case.unknown,
        notes=notes_of(case, operators)[:100],
    )
    return answer, unsure


def _breaks(case: Case) -> tuple[str | None, float | None, str | None]:
    """Return the operator with a curve that is full first as the load grows, and the records/s at all sources at which
    the application breaks. That rate is unknown if an operator with a lower bound may be full before; then a sentence
    says what it carries."""
    first, rate = _first_full(case, case.capacities)
    # That an operator suffices for this load says nothing of the load that is too much for it.
    unmeasured = set(case.topology.names) - case.model.curves.keys() - case.lower_bounds.keys()
    if unmeasured or any(gap.what == "input" for gap in case.gaps):
        return first, None, None
    unsure, bound = _first_full(case, case.lower_bounds)
    if unsure is None or bound is None or (rate is not None and rate <= bound):
        return first, rate, None
    rate_now = sum(case.arrivals_now.values())
    load = f"x{bound / rate_now:.3g} ({bound:,.0f} records/s)" if rate_now > MIN_RATE else f"{bound:,.0f} records/s"
    return first, None, f"It carries at least {load}: {unsure} was never measured beyond that"


def _first_full(case: Case, capacities: Mapping[str, float]) -> tuple[str | None, float | None]:
    """Return the operator whose capacity is reached first as the load grows in its present mix, and the records/s at
    all sources then."""
    arrivals = case.model.arrivals
    total = sum(arrivals.values())
    mix = {s: rate / total for s, rate in arrivals.items()} if total > 0 else dict.fromkeys(arrivals, 1 / len(arrivals))
    full_at = {}
    for name, capacity in capacities.items():
        share = arrivals_at(case.model.flow, name, mix)
        if share:
            full_at[name] = capacity / share
    if not full_at:
        return None, None
    first = min(full_at, key=lambda name: full_at[name])
    return first, full_at[first]


def _sentence(answer: WhatIf, carries: str | None = None) -> str:
    """Return the answer in a sentence: whether it keeps up, the lag, where it breaks and whether it is possible.
    `carries` says what it carries at least if its breaking point is unknown."""
    load = f"{answer.arrival_rate:,.0f} records/s"
    if answer.load_factor is not None:
        load += f" (x{answer.load_factor:.3g})"
    if answer.loads:
        later = f" from {duration_text(answer.after_seconds)} ahead on" if answer.after_seconds > 0 else ""
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
        f"At the forecast's upper edge of {load.max_arrival_rate:,.0f} records/s it is {lateness_text(load.late_seconds, load.recovers)}"
        for load in answer.loads
        if load.arrivals == "upper-edge"
    ]
    if answer.infeasible:
        obstacles = "; ".join(dict.fromkeys(each.because for each in answer.infeasible))
        parts.append(obstacles if answer.possible else f"It is not possible: {obstacles}")
    return ". ".join(parts) + "."


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


def _explained(
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
            f"{name}: {path.max_rate(horizon):,.0f} records/s at the highest, {duration_text(at)} from now, by its "
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
    within = duration_text(horizon.horizon_seconds)
    return f"{text}: {horizon.coverage:.0%} of {horizon.judged:,} past high peaks within {within} stayed below theirs"
