"""Costs of an application: those since its policy acts, and those of following the plans while it advises. Pure.

*Spend*: slot-seconds since the policy acts, next to those of the static peak, the largest number of slots that was held
at once in that time: what an application without an autoscaler would hold all the time. Only time is counted in which
both ends of an interval were observed.

*Advice*: a second parallelism, the *followed* one, takes each plan as if it were applied: the plan's vector, or the
present one where it holds. A hold that recommends nothing (an unknown reading, a planner that failed) leaves it as it
was. A plan is made for what runs, so a shrink that guards limit to a step is the same step again and again: the followed
parallelism takes it once per cooldown, down to what the planner proposed. Slots come from the graph. Lag is a fluid
model: the predictor's capacities of the followed parallelism under the arrivals that were recorded, and its restart for
each change.
"""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from weir_contracts import (
    NO_OPINION,
    Analysis,
    Deployment,
    Message,
    Observation,
    Parallelism,
    Plan,
    ScalingPolicy,
    Topology,
    counted,
    fitted,
)
from weir_contracts.base import Timestamp
from weir_predictor import model_of, restart_of

MIN_GAP_SECONDS = 15.0
MIN_COUNTED_SECONDS = 60.0
"""Less is too little to show."""
MIN_ADVISED_SECONDS = 300.0
"""Counted time below which nothing is shown: shrinking is recommended after two minutes at the earliest."""
MIN_JUDGED_SHARE = 0.9
"""Share of the counted time that must be judged for lateness to be known."""

Unit = Literal["slot", "instance"]
Amount = Annotated[float, Field(ge=0)]


class Spend(Message):
    """Sums since the policy acts; bounded, whatever time that is."""

    since: Timestamp
    """First observation with `mode: act`."""
    at: Timestamp
    """Last observation."""
    slots: int | None = None
    """Slots at the last observation. None: unknown, or the policy was paused."""
    unit: Unit = "slot"
    seconds: Amount = 0.0
    """Counted time."""
    slot_seconds: Amount = 0.0
    peak_slots: int = 0


class Price(Message):
    """Price of an hour of a slot or of an instance."""

    amount: Amount
    currency: str

    @classmethod
    def read(cls, text: str) -> "Price":
        """Read a price such as `0.042 EUR`, as settings have it. `ValueError` for another text."""
        amount, _, currency = text.partition(" ")
        return cls(amount=float(amount), currency=currency)


Prices = Mapping[Unit, Price]
"""Units without a price are counted in hours alone."""
NO_PRICES: Prices = MappingProxyType({})


class Money(Message):
    """Cost of slot-hours, by the price of knowledge's settings."""

    currency: str
    used: Amount
    """Of those that were used; while a policy advises, of those that following the plans would have used."""
    against: Amount
    """Of the static peak; while a policy advises, of what ran."""

    @property
    def sentence(self) -> str:
        return f"{self.used:,.2f} instead of {self.against:,.2f} {self.currency}"


def _money(prices: Prices, unit: Unit, used_hours: float, against_hours: float) -> Money | None:
    """Return what hours cost; None without a price of their unit."""
    price = prices.get(unit)
    if price is None:
        return None
    used, against = (round(hours * price.amount, 4) for hours in (used_hours, against_hours))
    return Money(currency=price.currency, used=used, against=against)


class SpendView(Message):
    """Slot-hours since the policy acts, against the static peak."""

    since: Timestamp
    hours: float
    """Counted time; gaps in the observations and pauses are left out."""
    unit: Unit
    slot_hours: float
    peak_slots: int
    """Largest number of slots (instances) that was held at once."""
    peak_slot_hours: float
    """Slot-hours if that many had been held all the time."""
    saved_share: float
    """Share of those that were not used."""
    money: Money | None = None
    """None: no price is set."""
    sentence: str


def spent(before: Spend | None, observation: Observation) -> Spend | None:
    """Return the sums after an observation; None while the policy only advises.

    A pause keeps the sums and is not counted.
    """
    mode, at = observation.policy.spec.mode, observation.observed_at
    if mode == "advise" or (mode == "paused" and before is None):
        return None
    slots = slots_held(observation.topology, observation.deployment) if mode == "act" else None
    unit = unit_of(observation.policy)
    if before is None:
        return Spend(since=at, at=at, slots=slots, unit=unit, peak_slots=slots or 0)
    seconds = (at - before.at).total_seconds()
    counts = slots is not None and before.slots is not None and 0 < seconds <= max_gap_seconds(observation.policy)
    peak = max(before.peak_slots, slots or 0)
    changes: dict[str, Any] = {"at": at, "slots": slots, "unit": unit, "peak_slots": peak}
    if counts and before.slots is not None:
        changes["seconds"] = round(before.seconds + seconds, 3)
        changes["slot_seconds"] = round(before.slot_seconds + before.slots * seconds, 3)
    return before.model_copy(update=changes)


def unit_of(policy: ScalingPolicy) -> Unit:
    """Return what an application's size is counted in."""
    return "slot" if policy.subject.application.has_slots else "instance"


def slots_held(topology: Topology | None, deployment: Deployment | None) -> int | None:
    """Return the slots that the application holds; None if they are unknown or it does not run."""
    if topology is None or deployment is None or deployment.is_final or not deployment.observed:
        return None
    return topology.slots(deployment.observed)


def max_gap_seconds(policy: ScalingPolicy) -> float:
    """Return the time between two messages up to which it is counted."""
    return max(3 * policy.spec.interval.total_seconds(), MIN_GAP_SECONDS)


def spend_view(spend: Spend | None, prices: Prices = NO_PRICES) -> SpendView | None:
    """Return the sums in hours; None if there are none or too few."""
    if spend is None or spend.seconds < MIN_COUNTED_SECONDS:
        return None
    used, peak = spend.slot_seconds / 3600, spend.peak_slots * spend.seconds / 3600
    saved = max(0.0, 1 - used / peak) if peak > 0 else 0.0
    less = f"{saved:.0%} less than" if saved >= 0.005 else "as much as"
    uncounted = max(timedelta(0), spend.at - spend.since - timedelta(seconds=spend.seconds))
    gap = f"; {uncounted.total_seconds() / 3600:,.1f} h unknown or paused" if uncounted > timedelta(minutes=1) else ""
    held = counted(spend.peak_slots, spend.unit)
    money = _money(prices, spend.unit, used, peak)
    paid = f"; {money.sentence}" if money else ""
    return SpendView(
        since=spend.since,
        hours=round(spend.seconds / 3600, 4),
        unit=spend.unit,
        slot_hours=round(used, 4),
        peak_slots=spend.peak_slots,
        peak_slot_hours=round(peak, 4),
        saved_share=round(saved, 4),
        money=money,
        sentence=f"{used:,.1f} {spend.unit}-hours used since the policy acts, {less} a static peak of {held}: {peak:,.1f}{paid}{gap}",
    )


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
    money: Money | None = None
    """None: no price is set."""
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


def advice_view(advice: Advice | None, prices: Prices = NO_PRICES) -> AdviceView | None:
    """Return the sums in hours; None if there are none or too few."""
    if advice is None or advice.seconds < MIN_ADVISED_SECONDS or advice.running_slot_seconds <= 0:
        return None
    followed, running = advice.followed_slot_seconds / 3600, advice.running_slot_seconds / 3600
    is_judged = advice.judged_seconds >= MIN_JUDGED_SHARE * advice.seconds
    late = (advice.followed_late_seconds, advice.running_late_seconds) if is_judged else (None, None)
    hours, money = advice.seconds / 3600, _money(prices, advice.unit, followed, running)
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
        money=money,
        sentence=_advised_sentence(advice, followed, running, late, money),
    )


def _advised_sentence(
    advice: Advice, followed: float, running: float, late: tuple[float, float] | tuple[None, None], money: Money | None
) -> str:
    """Say what following the plans would have cost instead of what ran, how late both are, and by what."""
    unit, hours, share = advice.unit, advice.seconds / 3600, 1 - followed / running
    saved = f"{abs(share):.0%} {'less' if share > 0 else 'more'}" if abs(share) >= 0.005 else "as many"
    then, now = late
    lateness = "lateness unknown" if then is None else f"late {then:,.0f} s instead of {now:,.0f} s"
    return fitted(
        f"following the plans for {hours:,.1f} h: {followed:,.1f} {unit}-hours instead of {running:,.1f} ({saved})",
        f", {money.sentence}" if money else "",
        f", {lateness}",
        f", {counted(advice.rescales, 'rescale')}",
        "" if then is None else " (predicted)",
    )


def spend_sentence(spend: SpendView | None, advice: AdviceView | None, advising: Advice | None) -> str:
    """Return the sentence of the sums that are known, or why neither is; `advising` are the sums of an advising policy."""
    known = advice or spend
    if known is not None:
        return known.sentence
    if advising is None:
        return "slot-hours are unknown: too little was observed since the policy acts"
    recorded, needed = advising.seconds / 60, MIN_ADVISED_SECONDS / 60
    return f"saving unknown yet: {recorded:,.0f} of {needed:,.0f} min of plans and slots are recorded"
