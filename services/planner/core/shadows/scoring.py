"""Score planners in retrospect: how far each was from the parallelism that was needed. Scores are sums by hour, which add up.

An instant is scored two minutes later, with the capacities known then, and by the mean of the arrivals around it, because noise is no
demand. SPEC RG's elasticity metrics, with d the smallest parallelism that meets the objective and s the one that ran:

    under-provisioning accuracy   thU = 100/T * sum max(d - s, 0)/d * dt      over: thO = 100/T * sum max(s - d, 0)/d * dt
    wrong-provisioning time share tU  = 100/T * sum max(sgn(d - s), 0) * dt   over: tO  = 100/T * sum max(sgn(s - d), 0) * dt
    instability                   u   = 100/T * sum min(|sgn(ds) - sgn(dd)|, 1) * dt

An application has a parallelism for each operator. Under-provisioning is counted in subtasks of each operator, because another operator
cannot compensate; over-provisioning in slots, because these are the cost.
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
_FIGURES = CandidateScore.model_fields.keys() - {"label", "planner", "parameters_id", "role"}


class Sums:
    """The increments of a candidate's score in one cycle."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def add(self, **figures: float) -> None:
        """Add to the figures of `CandidateScore` by name."""
        for name, value in figures.items():
            if value:
                self.figures[name] = self.figures.get(name, 0) + value

    def on_top_of(self, score: CandidateScore) -> CandidateScore:
        """Return the score with the sums added, to a thousandth, which keeps the message small."""
        added = {}
        for name in _FIGURES & self.figures.keys():
            before = getattr(score, name)
            exact = isinstance(before, int)
            added[name] = before + int(self.figures[name]) if exact else round(before + self.figures[name], 3)
        return score.model_copy(update=added)


def added(
    hours: Sequence[ScoredHour], at: datetime, candidates: Sequence[Candidate], sums: Mapping[str, Sums]
) -> list[ScoredHour]:
    """Return the newest hours, with a cycle's sums added to the hour of `at`."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    found = next((each for each in hours if each.hour == hour), None) or ScoredHour(hour=hour, scores=[])
    scores = {(s.label, s.planner, s.parameters_id): s for s in found.scores}
    for c in candidates:
        key = (c.label, c.planner, c.parameters_id)
        before = scores.pop(key, None) or CandidateScore(
            label=c.label, planner=c.planner, parameters_id=c.parameters_id, role=c.role
        )
        scores[key] = sums[c.label].on_top_of(before)
    # Removed candidates stay in the hour as far as there is room: parameters may change often.
    newest = list(scores.values())[-3 * MAX_CANDIDATES :]
    return [*(each for each in hours if each.hour < hour), ScoredHour(hour=hour, scores=newest)][-MAX_HOURS:]


@dataclass(frozen=True)
class Judged:
    """The instant up to which arrivals are scored, and the subtasks needed at it."""

    until: datetime | None = None
    need: int | None = None


def judge(
    real: Real, candidates: Sequence[Candidate], arrived: Sequence[Arrived], judged: Judged, sums: Mapping[str, Sums]
) -> tuple[list[Candidate], list[Arrived], Judged]:
    """Score the instants that are old enough into `sums`; return the candidates, the arrivals still needed, and how far it went."""
    if not arrived:
        return list(candidates), [], judged
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
            if ran is None or set(ran) != set(real.topology.names):
                continue
            supply = sum(ran[name] for name in need)
            follows = _sign(supply, last[candidate.label]) == _sign(total, need_before)
            sums[candidate.label].add(
                **_figures(real, need, ran, instant.seconds), unstable_seconds=0.0 if follows else instant.seconds
            )
            last[candidate.label] = supply
        need_before = total
    kept = [
        c.model_copy(update={"judged_supply": last[c.label], "supplies": _since(c.supplies, until)}) for c in candidates
    ]
    return kept, [a for a in arrived if a.at > until - AROUND], Judged(until, need_before)


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
    needed, held = real.topology.slots({**ran, **need}), real.topology.slots(ran)
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
