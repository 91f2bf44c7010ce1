"""A what-if: what a parallelism and a load would bring, from the latest analysis. Pure.

It uses the model, curves and trajectory by which the planner decides. Results that depend on an unknown value are
omitted and named, never guessed.
"""

from collections.abc import Mapping, Sequence

from weir_contracts import Analysis, JudgedArrivals, Outcome, Parallelism, WhatIf

from . import messages
from .arrivals import ArrivalPath
from .case import Case, NotYet, case_of
from .flow import arrivals_at, throttled
from .forecasts import ahead_of
from .judgement import judged_load
from .limits import FORBIDDING, forbidden, unreachable
from .model import MIN_RATE
from .operators import notes_of, operators_of
from .question import InvalidQuestion, Load

POINTS = 121


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
    return answer.model_copy(update={"sentence": messages.answered(answer, unsure)})


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
        raise InvalidQuestion(field, messages.beyond_forecast(ahead.seconds, after_seconds, horizon_seconds))
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
    explained = messages.explained(answer, case.analysis, later, cases["expected"].restart)
    notes = [*answer.notes, *messages.reach_of_forecast(ahead, after_seconds + horizon_seconds)]
    if after_seconds > 0:
        notes.append("what waits now is assumed to be worked off until then")
    return answer.model_copy(
        update={"sentence": messages.answered(answer, unsure), "explained": explained[:1000], "notes": notes[:100]}
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
    return first, None, messages.sustained_by_lower_bound(unsure, bound, sum(case.arrivals_now.values()))


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
