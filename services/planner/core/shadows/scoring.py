"""Score planners in retrospect: how far each was from the parallelism that was needed. Scores are sums by hour, which
add up.

An instant is scored two minutes later, with the capacities known then, and by the mean of the arrivals around it,
because noise is no demand. SPEC RG's elasticity metrics, with d the smallest parallelism that meets the objective and s
the one that ran:

    under-provisioning accuracy   thU = 100/T * sum max(d - s, 0)/d * dt      over: thO = 100/T * sum max(s - d, 0)/d *
    dt wrong-provisioning time share tU  = 100/T * sum max(sgn(d - s), 0) * dt   over: tO  = 100/T * sum max(sgn(s - d),
    0) * dt instability                   u   = 100/T * sum min(|sgn(ds) - sgn(dd)|, 1) * dt

An application has a parallelism for each operator. Under-provisioning is counted in subtasks of each operator, because
another operator cannot compensate; over-provisioning in slots, because these are the cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from weir_contracts import Arrived, Candidate, CandidateScore, Parallelism, ScoredHour, Supply
from weir_contracts.shadows import MAX_CANDIDATES, MAX_HOURS

from .real import Real

JUDGED_AFTER = timedelta(minutes=2)
AROUND = timedelta(seconds=30)
"""Arrivals are averaged over this time before and after an instant."""


Figures = Mapping[str, float]
"""Increments of a candidate's score in one cycle, by the names of `CandidateScore`'s fields."""


def together(*parts: Figures) -> dict[str, float]:
    """Return the sums of increments."""
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0) + value
    return found


def _on_top_of(score: CandidateScore, figures: Figures) -> CandidateScore:
    """Return the score with the increments added, to a thousandth, which keeps the message small."""
    sums = {}
    for name, value in figures.items():
        if value:
            before = getattr(score, name)
            sums[name] = before + int(value) if isinstance(before, int) else round(before + value, 3)
    return score.model_copy(update=sums)


def added(
    hours: Sequence[ScoredHour], at: datetime, candidates: Sequence[Candidate], figures: Mapping[str, Figures]
) -> list[ScoredHour]:
    """Return the newest hours, with a cycle's increments by candidate added to the hour of `at`."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    found = next((each for each in hours if each.hour == hour), None) or ScoredHour(hour=hour, scores=[])
    scores = {(s.label, s.planner, s.parameters_id): s for s in found.scores}
    for c in candidates:
        key = (c.label, c.planner, c.parameters_id)
        before = scores.pop(key, None) or CandidateScore(
            label=c.label, planner=c.planner, parameters_id=c.parameters_id, role=c.role
        )
        scores[key] = _on_top_of(before, figures.get(c.label, {}))
    # Removed candidates stay in the hour as far as there is room: parameters may change often.
    newest = list(scores.values())[-3 * MAX_CANDIDATES :]
    return [*(each for each in hours if each.hour < hour), ScoredHour(hour=hour, scores=newest)][-MAX_HOURS:]


@dataclass(frozen=True)
class Judged:
    """The instant up to which arrivals are scored, and the subtasks needed at it."""

    until: datetime | None = None
    need: int | None = None


def judge(
    real: Real, candidates: Sequence[Candidate], arrived: Sequence[Arrived], judged: Judged
) -> tuple[list[Candidate], list[Arrived], Judged, Mapping[str, Figures]]:
    """Score the instants that are old enough; return the candidates, the arrivals still needed, how far it went, and
    the figures."""
    if not arrived:
        return list(candidates), [], judged, {}
    figures: dict[str, Figures] = {c.label: {} for c in candidates}
    until, need_before = arrived[-1].at - JUDGED_AFTER, judged.need
    last = {c.label: c.judged_supply for c in candidates}
    for instant in arrived:
        if instant.at > until or (judged.until is not None and instant.at <= judged.until):
            continue
        need = real.needed(_mean_rates(arrived, instant.at))
        if not need:
            continue
        total = sum(need.values())
        for candidate in candidates:
            ran = supplied(candidate, instant.at)
            if ran is None or set(ran) != set(real.request.topology.names):
                continue
            supply = sum(ran[name] for name in need)
            follows = _sign(supply, last[candidate.label]) == _sign(total, need_before)
            unstable = {"unstable_seconds": 0.0 if follows else instant.seconds}
            scored = _figures(real, need, ran, instant.seconds)
            figures[candidate.label] = together(figures[candidate.label], scored, unstable)
            last[candidate.label] = supply
        need_before = total
    kept = [
        c.model_copy(update={"judged_supply": last[c.label], "supplies": _since(c.supplies, until)}) for c in candidates
    ]
    return kept, [a for a in arrived if a.at > until - AROUND], Judged(until, need_before), figures


def supplied(candidate: Candidate, at: datetime) -> Parallelism | None:
    """Return the parallelism that ran just before `at`; None if it is no longer stored."""
    before = [supply.parallelism for supply in candidate.supplies if supply.at < at]
    return before[-1] if before else None


def _since(supplies: Sequence[Supply], since: datetime) -> list[Supply]:
    """Return the changes from `since` on and the last one before it."""
    before = [i for i, supply in enumerate(supplies) if supply.at < since]
    return list(supplies[before[-1] if before else 0 :])


def _mean_rates(arrived: Sequence[Arrived], at: datetime) -> dict[str, float]:
    near = [a for a in arrived if abs(a.at - at) <= AROUND]
    seconds = sum(a.seconds for a in near)
    if seconds <= 0:
        return dict(near[0].rates)
    return {name: sum(a.rates.get(name, 0.0) * a.seconds for a in near) / seconds for name in near[0].rates}


def _figures(real: Real, need: Parallelism, ran: Parallelism, seconds: float) -> dict[str, float]:
    lacking = sum(max(0, p - ran[name]) for name, p in need.items())
    # An operator of unknown need counts on both sides with what ran.
    needed, held = real.request.topology.slots({**ran, **need}), real.request.topology.slots(ran)
    return {
        "judged_seconds": seconds,
        "needed_slot_seconds": needed * seconds,
        "short": lacking / sum(need.values()) * seconds,
        "short_seconds": seconds if lacking else 0.0,
        "spare": max(0, held - needed) / needed * seconds,
        "spare_seconds": seconds if held > needed else 0.0,
    }


def _sign(now: int, before: int | None) -> int:
    return 0 if before is None else (now > before) - (now < before)
