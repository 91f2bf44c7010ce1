"""Estimate what following the plans would have cost, and how late it would have been, while the policy only advises. Pure.

A second parallelism, the *followed* one, takes each plan as if it were applied: the plan's vector, or the present one
where it holds. A hold that recommends nothing (an unknown reading, a planner that failed) leaves it as it was. A plan is
made for what runs, so a shrink that guards limit to a step is the same step again and again: the followed parallelism
takes it once per cooldown, down to what the planner proposed.

Slots come from the graph. Lag is a fluid model: the predictor's capacities of the followed parallelism under the
arrivals that were recorded, and its restart for each change.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from weir_contracts import NO_OPINION, Analysis, Message, Parallelism, Plan
from weir_contracts.base import Timestamp
from weir_predictor import model_of, restart_of

from . import messages
from .spend import Amount, Unit, max_gap_seconds, slots_held, unit_of

MIN_ADVISED_SECONDS = 300.0
"""Counted time below which nothing is shown: shrinking is recommended after two minutes at the earliest."""
MIN_JUDGED_SHARE = 0.9
"""Share of the counted time that must be judged for lateness to be known."""


class Advice(Message):
    """Sums since the policy advises; bounded, whatever time that is."""

    since: Timestamp
    """First analysis with `mode: advise`."""
    at: Timestamp
    """Last analysis."""
    unit: Unit = "slot"
    running_slots: int | None = None
    """Slots that ran at the last analysis. None: unknown."""
    followed: Parallelism = Field(default_factory=dict)
    """The followed parallelism. Empty: no plan was followed yet."""
    followed_slots: int | None = None
    """Its slots. None: unknown."""
    stepped_at: Timestamp | None = None
    """Last change of it."""
    lag_seconds: Amount = 0.0
    """Lag if the plans had been followed."""
    seconds: Amount = 0.0
    """Counted time."""
    running_slot_seconds: Amount = 0.0
    followed_slot_seconds: Amount = 0.0
    rescales: Annotated[int, Field(ge=0)] = 0
    judged_seconds: Amount = 0.0
    """Counted time in which both lags are known."""
    running_late_seconds: Amount = 0.0
    followed_late_seconds: Amount = 0.0


class AdviceView(Message):
    """Estimated cost of following the plans, next to the cost of what ran."""

    since: Timestamp
    hours: float
    """Counted time; gaps in the analyses are left out."""
    unit: Unit
    slot_hours: float
    """Slot-hours if the plans had been followed."""
    running_slot_hours: float
    """Slot-hours that were held."""
    saved_share: float
    """Share of those that would not have been used; negative if more would have been."""
    rescales: int
    """Changes of the parallelism if the plans had been followed."""
    late_seconds: float | None
    """Time above `maxLag` if the plans had been followed, by the predictor on the recorded arrivals. None: the policy has
    no `maxLag`, or the capacity is unknown."""
    running_late_seconds: float | None
    """Time above `maxLag` that was observed. None as above."""
    sentence: str


def advised(before: Advice | None, analysis: Analysis, plan: Plan | None) -> Advice | None:
    """Return the sums after an analysis; None once the policy acts. A pause keeps them and is not counted. `plan` is the
    newest one."""
    mode, at = analysis.policy.spec.mode, analysis.observed_at
    if mode == "act" or (mode == "paused" and before is None):
        return None
    found = before or Advice(since=at, at=at)
    running = slots_held(analysis.topology, analysis.deployment) if mode == "advise" else None
    gap = max_gap_seconds(analysis.policy)
    seconds = (at - found.at).total_seconds()
    if 0 < seconds <= gap and running is not None:
        found = _counted(found, seconds, analysis)
    found = found.model_copy(update={"at": at, "running_slots": running, "unit": unit_of(analysis.policy)})
    if running is None or plan is None or (at - plan.observed_at).total_seconds() > gap:
        return found.model_copy(update={"followed_slots": None})
    return _followed(found, plan, analysis)


def _followed(found: Advice, plan: Plan, analysis: Analysis) -> Advice:
    """Return the sums with the newest plan followed."""
    topology, now = analysis.topology, plan.current
    if topology is None or set(now) != set(topology.names):
        return found.model_copy(update={"followed_slots": None})
    begins = set(found.followed) != set(now)
    before = now if begins else found.followed
    if plan.kind == "hold" and plan.code in NO_OPINION:
        wanted: Mapping[str, int] = before
    else:
        cooldown = analysis.policy.spec.behavior.cooldown
        may_step = found.stepped_at is None or analysis.observed_at - found.stepped_at >= cooldown
        wanted = {name: _next(before[name], name, plan, may_step=may_step) for name in now}
    changes: dict[str, object] = {"followed": dict(wanted), "followed_slots": topology.slots(wanted)}
    if begins:
        changes["lag_seconds"] = analysis.lag_seconds.value or 0.0
    if wanted != before:
        restart = restart_of(analysis, analysis.deployment, ())
        changes["stepped_at"] = analysis.observed_at
        changes["rescales"] = found.rescales + 1
        changes["lag_seconds"] = (
            (analysis.lag_seconds.value or 0.0 if begins else found.lag_seconds)
            + restart.seconds
            + restart.replay_seconds
        )
    return found.model_copy(update=changes)


def _next(before: int, name: str, plan: Plan, *, may_step: bool) -> int:
    """Return an operator's followed parallelism under a plan."""
    now = plan.current[name]
    approved = (plan.approved or plan.current)[name]
    proposed = (plan.proposed or plan.current).get(name, approved)
    if not proposed < approved < now or before > approved:
        return approved
    # Guards allow one step from what runs. The followed parallelism may be several steps further.
    return max(proposed, before - (now - approved)) if may_step else max(proposed, before)


def _counted(found: Advice, seconds: float, analysis: Analysis) -> Advice:
    """Return the sums with `seconds` more of the followed parallelism and of what ran."""
    if found.running_slots is None or found.followed_slots is None:
        return found
    sums = {
        "seconds": found.seconds + seconds,
        "running_slot_seconds": found.running_slot_seconds + found.running_slots * seconds,
        "followed_slot_seconds": found.followed_slot_seconds + found.followed_slots * seconds,
    }
    limit, observed = analysis.policy.spec.objective.max_lag, analysis.lag_seconds.value
    taken = _share_taken_in(analysis, found.followed) if found.rescales else None
    # Until a plan asks for another parallelism, what is followed is what runs.
    lag = observed if not found.rescales else None
    if taken is not None:
        lag = max(0.0, found.lag_seconds + seconds * (1 - taken))
    if lag is not None:
        sums["lag_seconds"] = lag
        if limit is not None and observed is not None:
            bound = limit.total_seconds()
            sums["judged_seconds"] = found.judged_seconds + seconds
            sums["followed_late_seconds"] = found.followed_late_seconds + seconds * _above(
                found.lag_seconds, lag, bound
            )
            sums["running_late_seconds"] = found.running_late_seconds + seconds * (observed > bound)
    return found.model_copy(update={name: round(value, 3) for name, value in sums.items()})


def _share_taken_in(analysis: Analysis, vector: Mapping[str, int]) -> float | None:
    """Return what a vector can take in of the arrivals, above 1 where it could take in more; None: unknown."""
    if analysis.topology is None:
        return None
    model, _ = model_of(analysis, analysis.topology)
    capacities, loads = model.capacities(vector), model.loads
    shares = [capacity / loads[name] for name, capacity in capacities.items() if loads.get(name, 0.0) > 0]
    return min(shares, default=None)


def _above(before: float, after: float, limit: float) -> float:
    """Return the share of an interval in which a value that moves evenly from `before` to `after` is above a limit."""
    low, high = sorted((before, after))
    if high <= limit or low >= limit:
        return float(high > limit)
    return (high - limit) / (high - low)


def advice_view(advice: Advice | None) -> AdviceView | None:
    """Return the sums in hours; None if there are none or too few."""
    if advice is None or advice.seconds < MIN_ADVISED_SECONDS or advice.running_slot_seconds <= 0:
        return None
    followed, running = advice.followed_slot_seconds / 3600, advice.running_slot_seconds / 3600
    is_judged = advice.judged_seconds >= MIN_JUDGED_SHARE * advice.seconds
    late = (advice.followed_late_seconds, advice.running_late_seconds) if is_judged else (None, None)
    hours = advice.seconds / 3600
    return AdviceView(
        since=advice.since,
        hours=round(hours, 4),
        unit=advice.unit,
        slot_hours=round(followed, 4),
        running_slot_hours=round(running, 4),
        saved_share=round(1 - followed / running, 4),
        rescales=advice.rescales,
        late_seconds=late[0],
        running_late_seconds=late[1],
        sentence=messages.advised(advice.unit, followed, running, late=late, rescales=advice.rescales, hours=hours),
    )
