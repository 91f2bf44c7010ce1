"""A proposed parallelism judged: lateness and cost under the forecast's middle and its upper edge, or under the present
arrivals where no source has a forecast. Pure.

It uses the model and trajectory by which the planner decides, and decides nothing itself.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weir_contracts import (
    Analysis,
    JudgedArrivals,
    JudgedLoad,
    Judgement,
    Outcome,
    Parallelism,
    RestartCost,
    changes,
    counted,
)

from .case import FORBIDDING, FULL, Case, case_of, forbidden, notes_of, operators_of
from .flow import loads_of, throttled
from .forecast import Ahead, ArrivalPath, ahead_of
from .trajectory import Outlook

HORIZON_SECONDS = 600.0
MIN_HORIZON_SECONDS, MAX_HORIZON_SECONDS = 10.0, 86_400.0
POINTS = 61
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class _Course:
    """One course of the arrivals: of the sources that change."""

    arrivals: JudgedArrivals
    paths: Mapping[str, ArrivalPath]


def judged(
    analysis: Analysis,
    parallelism: Parallelism,
    outcomes: Sequence[Outcome] = (),
    *,
    horizon_seconds: float = HORIZON_SECONDS,
) -> Judgement:
    """Return the judgement of a parallelism. Operators that are not named keep theirs; `outcomes` of past actions, newest
    first, have their durations.

    Raises `InvalidQuestion` for an operator that does not exist, `NotYet` if graph, arrivals or every capacity is unknown.
    """
    case = case_of(analysis, parallelism, outcomes)
    ahead = ahead_of(analysis, case.model.arrivals)
    courses = list(_courses(ahead))
    cases = [case.along(course.paths, horizon_seconds) for course in courses]
    loads = [judged_load(each, course.arrivals, horizon_seconds) for each, course in zip(cases, courses, strict=True)]
    limits, slots = forbidden(case), case.topology.slots(case.wanted)
    cost = case.restart
    found = Judgement(
        application=analysis.application,
        analysis_id=analysis.id,
        observed_at=analysis.observed_at,
        sentence="-",
        possible=not any(limit.code in FORBIDDING for limit in limits),
        parallelism_now=case.now,
        parallelism=case.wanted,
        objective_seconds=analysis.policy.spec.objective.bound_seconds,
        horizon_seconds=horizon_seconds,
        forecast_seconds=ahead.seconds if ahead else 0.0,
        restart=RestartCost(
            seconds=round(cost.seconds, 2),
            away_share=round(cost.away_share, 4),
            capacity_after_seconds=round(cost.settled_seconds, 2),
            measured=cost.measured,
        ),
        slots_now=case.topology.slots(case.now),
        slots=slots,
        slot_seconds=slots * horizon_seconds,
        slot_hours=round(slots * horizon_seconds / SECONDS_PER_HOUR, 4),
        loads=loads,
        infeasible=limits[:100],
        notes=[*_notes(cases[-1]), *reach_of_forecast(ahead, horizon_seconds)][:100],
    )
    return found.model_copy(update={"sentence": _sentence(found)})


def cost_of(judgement: Judgement) -> tuple[bool, bool, float, float]:
    """Return what judgements of one analysis and horizon are ordered by, the best first: whether limits forbid the
    vector, whether the time above the objective never ends, that time in full seconds, and slot-seconds; the times under
    the highest arrivals that were judged. An unknown time counts as endless."""
    worst = judgement.worst
    late = math.inf if worst.late_seconds is None else float(round(worst.late_seconds))
    return not judgement.possible, not worst.recovers, late, judgement.slot_seconds


def _courses(ahead: Ahead | None) -> Iterator[_Course]:
    if ahead is None:
        yield _Course("present", {})
        return
    yield _Course("expected", ahead.expected)
    if ahead.upper is not None:
        yield _Course("upper-edge", ahead.upper)


def judged_load(case: Case, arrivals: JudgedArrivals, horizon_seconds: float) -> JudgedLoad:
    """Return the outcome of a case along its arrivals, which are called `arrivals`."""
    model = case.model.under(case.paths)
    loads = model.max_loads(horizon_seconds)
    is_full = any(loads.get(name, 0.0) > capacity * FULL for name, capacity in case.capacities.items())
    missing = any(gap.what != "lag" for gap in case.gaps)
    going = None if case.gaps else case.outlook(horizon_seconds)
    holding = replace(case, wanted={name: case.now.get(name, p) for name, p in case.wanted.items()})
    staying = None if holding.gaps or len(case.now) < len(case.wanted) else holding.outlook(horizon_seconds)
    late, recovers = _lateness(case, going)
    hold_late, hold_recovers = _lateness(case, staying)
    return JudgedLoad(
        arrivals=arrivals,
        max_arrival_rate=round(model.max_arrival_rate(horizon_seconds), 2),
        keeps_up=False if is_full else None if missing else True,
        late_seconds=late,
        recovers=recovers,
        hold_late_seconds=hold_late,
        hold_recovers=hold_recovers,
        prediction=going.prediction(POINTS) if going else None,
        unknown=case.unknown,
    )


def _lateness(case: Case, found: Outlook | None) -> tuple[float | None, bool | None]:
    """Return seconds above the objective, and whether they end."""
    if found is None:
        return None, None
    target = case.analysis.policy.spec.objective.utilization
    if target is not None:
        return round(max(0.0, (found.max_utilization or 0.0) - target) * found.horizon_seconds, 2), True
    at_end = loads_of(case.model.flow, case.model.under(case.paths).rates_at(found.horizon_seconds))
    falls_behind = any(at_end.get(name, 0.0) > rate * FULL for name, rate in found.capacities.items())
    if falls_behind or math.isinf(found.late_after_seconds):
        return None, False
    return round(found.late_seconds, 2), True


def _notes(case: Case) -> list[str]:
    taken = throttled(case.model.flow, case.topology.names, case.capacities, case.model.arrivals)
    return notes_of(case, operators_of(case, taken))


def _sentence(found: Judgement) -> str:
    """Return the judgement in a sentence: lateness under each course of the arrivals, that of holding, and the cost."""
    moved = changes(found.parallelism_now, found.parallelism)
    holds = moved == "no change"
    within = f"{found.horizon_seconds:,.0f} s"
    parts = [_load_text(load, holds=holds) for load in found.loads]
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


def _load_text(load: JudgedLoad, *, holds: bool) -> str:
    text = lateness_text(load.late_seconds, load.recovers) + _ARRIVALS[load.arrivals]
    return text if holds else f"{text} (holding: {lateness_text(load.hold_late_seconds, load.hold_recovers)})"


def lateness_text(seconds: float | None, recovers: bool | None) -> str:
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
