"""Totals of many hours of scores. Pure.

Formulas: SPEC RG's elasticity metrics, see `PlannerScore`; the hourly sums are the planner service's.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from weir_contracts import CandidateScore, PlannerScore, PolicySpec, ScoredHour, Scores
from weir_contracts.shadows import parameters_id

from . import messages

KEPT = timedelta(days=7)
MIN_SECONDS = 600.0
"""Simulated time of both planners before they are compared."""
MIN_COMPARED_SECONDS = 60.0
EQUAL_VIOLATION = 0.001
"""Share of the time by which a planner may be late longer and still count as equal."""
MAX_CHEAPER_SHARE = 0.99
"""Of the slots: a smaller difference does not count."""
MAX_UNANSWERED_SHARE = 0.05
"""Share of the cycles: the score of a planner without usable answers more often is not its own."""

_Key = tuple[str, str, str, str]
_Row = Mapping[datetime, CandidateScore]
"""One candidate's sums by hour."""
_SUMS = tuple(n for n in CandidateScore.model_fields if n not in ("label", "planner", "parameters_id", "role"))


def _total(row: _Row, hours: Collection[datetime] | None = None) -> CandidateScore:
    """Return the sum of a row, with `hours` only of these."""
    chosen = [score for hour, score in row.items() if hours is None or hour in hours]
    figures = {name: sum(getattr(score, name) for score in chosen) for name in _SUMS}
    return next(iter(row.values())).model_copy(update=figures)


def summarise_scores(
    application: str, hours: Sequence[ScoredHour], spec: PolicySpec | None, since: datetime, until: datetime
) -> Scores | None:
    """Return the scores from the hour of `since` on; None without scores. `spec` lists the current planners."""
    begin = since.replace(minute=0, second=0, microsecond=0)
    covered = [each for each in hours if begin <= each.hour <= until]
    rows = _rows(covered)
    if not rows:
        return None
    listed = _listed(spec)
    chosen = next((row for key, row in rows.items() if key[3] == "chosen" and key in listed), None)
    shadows = [row for key, row in rows.items() if key[3] == "shadow" and key in listed]
    cheaper, sentence = _summary(chosen, shadows)
    compared = _total(chosen) if chosen else None
    seconds = compared.compared_seconds if compared else 0.0
    return Scores(
        application=application,
        since=covered[0].hour,
        until=until,
        sentence=sentence,
        confidence=round(max(0.0, 1 - compared.error / seconds), 3)
        if compared and seconds >= MIN_COMPARED_SECONDS
        else None,
        compared_seconds=round(seconds, 1),
        cheaper=cheaper,
        planners=[_published(row, key in listed) for key, row in sorted(rows.items(), key=_order)][:100],
    )


def _listed(spec: PolicySpec | None) -> set[_Key]:
    if spec is None:
        return set()
    own = (spec.planner.name, parameters_id(spec.planner.parameters))
    shadows = {(s.called, s.name, parameters_id(s.parameters), "shadow") for s in spec.shadows}
    return {(own[0], *own, "chosen"), ("observed", *own, "observed"), *shadows}


def _rows(hours: Sequence[ScoredHour]) -> Mapping[_Key, _Row]:
    found: dict[_Key, dict[datetime, CandidateScore]] = {}
    for each in hours:
        for score in each.scores:
            if score.simulated_seconds > 0 or score.judged_seconds > 0:
                key = (score.label, score.planner, score.parameters_id, score.role)
                found.setdefault(key, {})[each.hour] = score
    return found


def _order(item: tuple[_Key, _Row]) -> tuple[int, str]:
    (label, _, _, role), _ = item
    return ("chosen", "observed", "shadow").index(role), label


def _published(row: _Row, current: bool) -> PlannerScore:
    sums = _total(row)
    seconds, judged = sums.simulated_seconds, sums.judged_seconds

    def percent(value: float) -> float | None:
        return round(100 * value / judged, 3) if judged > 0 else None

    return PlannerScore(
        label=sums.label,
        planner=sums.planner,
        role=sums.role,
        current=current,
        seconds=round(seconds, 1),
        slot_hours=round(sums.slot_seconds / 3600, 4),
        mean_slots=round(sums.slot_seconds / seconds, 3) if seconds > 0 else None,
        needed_slot_hours=round(sums.needed_slot_seconds / 3600, 4) if judged > 0 else None,
        violation_seconds=round(sums.violation_seconds, 1),
        violation_share=round(min(1.0, sums.violation_seconds / seconds), 6) if seconds > 0 else None,
        rescales=sums.rescales,
        under_provisioning=percent(sums.short),
        over_provisioning=percent(sums.spare),
        under_provisioned_time=percent(sums.short_seconds),
        over_provisioned_time=percent(sums.spare_seconds),
        instability=percent(sums.unstable_seconds),
        unanswered=sums.unanswered,
        cycles=sums.cycles,
    )


def _summary(chosen: _Row | None, shadows: Sequence[_Row]) -> tuple[str | None, str]:
    """Return the label of the cheapest shadow without more violation (None: there is none), and a sentence."""
    if chosen is None:
        return None, messages.not_simulated()
    pairs = [pair for row in shadows if (pair := _comparable(row, chosen)) is not None]
    name = next(iter(chosen.values())).label
    if not pairs:
        return None, messages.too_little_simulated(name, MIN_SECONDS)
    better = [
        (own, other)
        for own, other in pairs
        if _slots(own) < MAX_CHEAPER_SHARE * _slots(other) and _late(own) <= _late(other) + EQUAL_VIOLATION
    ]
    if not better:
        return None, messages.none_cheaper(name)
    own, other = min(better, key=lambda pair: _slots(pair[0]) / _slots(pair[1]))
    return own.label, messages.cheaper(own.label, name, (_slots(own), _slots(other)), (_late(own), _late(other)))


def _slots(score: CandidateScore) -> float:
    return score.slot_seconds / score.simulated_seconds


def _late(score: CandidateScore) -> float:
    return score.violation_seconds / score.simulated_seconds


def _comparable(row: _Row, chosen: _Row) -> tuple[CandidateScore, CandidateScore] | None:
    """Return the totals of a shadow and of the chosen planner over the hours in which both were simulated."""
    common = row.keys() & chosen.keys()
    own, other = _total(row, common), _total(chosen, common)
    enough = min(own.simulated_seconds, other.simulated_seconds) >= MIN_SECONDS
    return (own, other) if enough and own.unanswered <= MAX_UNANSWERED_SHARE * max(1, own.cycles) else None
