"""What was needed, and how far off each planner was: known only afterwards.

An instant is judged two minutes later, with the capacities known by then, and by the mean of the arrivals around it, so that noise is
no demand. Formulas: SPEC RG's elasticity metrics, with d the least parallelism that meets the objective and s what ran:

    under-provisioning accuracy   thU = 100/T * sum max(d - s, 0)/d * dt      over: thO = 100/T * sum max(s - d, 0)/d * dt
    wrong-provisioning time share tU  = 100/T * sum max(sgn(d - s), 0) * dt   over: tO  = 100/T * sum max(sgn(s - d), 0) * dt
    instability                   u   = 100/T * sum min(|sgn(ds) - sgn(dd)|, 1) * dt

An application has a parallelism for each operator: what is too little is counted in subtasks, operator by operator, because one that
is too small cannot be made up for by another; what is too much is counted in slots, because that is what it costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from weir_contracts import Arrived, Candidate, Parallelism, Supply

from .known import Known
from .sums import Sums

JUDGED_AFTER = timedelta(minutes=2)
AROUND = timedelta(seconds=30)
"""Arrivals are averaged over as long before and after."""


@dataclass(frozen=True)
class Judged:
    """Until when arrivals were judged, and the subtasks needed at that instant."""

    until: datetime | None = None
    need: int | None = None


def judge(
    known: Known, candidates: Sequence[Candidate], arrived: Sequence[Arrived], judged: Judged, sums: Mapping[str, Sums]
) -> tuple[list[Candidate], list[Arrived], Judged]:
    """Judge what is old enough, into `sums`; returns the candidates, the arrivals that are still wanted, and how far it is judged."""
    if not arrived:
        return list(candidates), [], judged
    until, need_before = arrived[-1].at - JUDGED_AFTER, judged.need
    last = {c.label: c.judged_supply for c in candidates}
    for instant in arrived:
        if instant.at > until or (judged.until is not None and instant.at <= judged.until):
            continue
        need = known.needed(_mean_rates(arrived, instant.at))
        if not need:
            continue
        total = sum(need.values())
        for candidate in candidates:
            ran = supplied(candidate, instant.at)
            if ran is None or set(ran) != set(known.topology.names):
                continue
            supply = sum(ran[name] for name in need)
            moved_alike = _sign(supply, last[candidate.label]) == _sign(total, need_before)
            sums[candidate.label].add(
                **_figures(known, need, ran, instant.seconds), unstable_seconds=0.0 if moved_alike else instant.seconds
            )
            last[candidate.label] = supply
        need_before = total
    kept = [
        c.model_copy(update={"judged_supply": last[c.label], "supplies": _since(c.supplies, until)}) for c in candidates
    ]
    return kept, [a for a in arrived if a.at > until - AROUND], Judged(until, need_before)


def supplied(candidate: Candidate, at: datetime) -> Parallelism | None:
    """What ran at the end of the time up to `at`; None: it is not known any more."""
    ran = None
    for supply in candidate.supplies:
        if supply.at >= at and ran is not None:
            break
        ran = supply.parallelism if supply.at < at else ran
    return ran


def _since(supplies: Sequence[Supply], since: datetime) -> list[Supply]:
    """The changes from `since` on and the last one before it."""
    before = [i for i, supply in enumerate(supplies) if supply.at < since]
    return list(supplies[before[-1] if before else 0 :])


def _mean_rates(arrived: Sequence[Arrived], at: datetime) -> dict[str, float]:
    near = [a for a in arrived if abs(a.at - at) <= AROUND]
    seconds = sum(a.seconds for a in near)
    if seconds <= 0:
        return dict(near[0].rates)
    return {name: sum(a.rates.get(name, 0.0) * a.seconds for a in near) / seconds for name in near[0].rates}


def _figures(known: Known, need: Parallelism, ran: Parallelism, seconds: float) -> dict[str, float]:
    lacking = sum(max(0, p - ran[name]) for name, p in need.items())
    # Operators of unknown need count on both sides as they are.
    least, held = known.topology.slots({**ran, **need}), known.topology.slots(ran)
    return {
        "judged_seconds": seconds,
        "needed_slot_seconds": least * seconds,
        "short": lacking / sum(need.values()) * seconds,
        "short_seconds": seconds if lacking else 0.0,
        "spare": max(0, held - least) / least * seconds,
        "spare_seconds": seconds if held > least else 0.0,
    }


def _sign(now: int, before: int | None) -> int:
    return 0 if before is None else (now > before) - (now < before)
