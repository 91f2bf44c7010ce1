"""Slot-seconds of an application since its policy acts, next to those of its static peak. Pure.

The static peak is the largest number of slots that was held at once in that time: what an application without an
autoscaler would hold all the time. Only time is counted in which both ends of an interval were observed.
"""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from weir_contracts import Deployment, Message, Observation, ScalingPolicy, Topology
from weir_contracts.base import Timestamp

from . import messages

MIN_GAP_SECONDS = 15.0
MIN_COUNTED_SECONDS = 60.0
"""Less is too little to show."""

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
    return "slot" if policy.subject.application.flink is not None else "instance"


def slots_held(topology: Topology | None, deployment: Deployment | None) -> int | None:
    """Return the slots that the application holds; None if they are unknown or it does not run."""
    if topology is None or deployment is None or deployment.is_final or not deployment.observed:
        return None
    return topology.slots(deployment.observed)


def max_gap_seconds(policy: ScalingPolicy) -> float:
    """Return the time between two messages up to which it is counted."""
    return max(3 * policy.spec.interval.total_seconds(), MIN_GAP_SECONDS)


def spend_view(spend: Spend | None) -> SpendView | None:
    """Return the sums in hours; None if there are none or too few."""
    if spend is None or spend.seconds < MIN_COUNTED_SECONDS:
        return None
    used, peak = spend.slot_seconds / 3600, spend.peak_slots * spend.seconds / 3600
    saved = max(0.0, 1 - used / peak) if peak > 0 else 0.0
    return SpendView(
        since=spend.since,
        hours=round(spend.seconds / 3600, 4),
        unit=spend.unit,
        slot_hours=round(used, 4),
        peak_slots=spend.peak_slots,
        peak_slot_hours=round(peak, 4),
        saved_share=round(saved, 4),
        sentence=messages.spent(spend.unit, used, peak, spend.peak_slots, _uncounted(spend)),
    )


def _uncounted(spend: Spend) -> timedelta:
    """Return the time since the policy acts that is not counted."""
    return max(timedelta(0), spend.at - spend.since - timedelta(seconds=spend.seconds))
