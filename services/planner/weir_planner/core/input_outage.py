"""Distinguish an input that is missing, probably by an outage upstream, from a load that is falling."""

from datetime import datetime

from weir_contracts import MAX_NUMBER, Analysis, Behavior, UsualArrivals

MISSING_SHARE = 0.05
"""Below this share of the usual rate the input is missing: no daily wave falls so far within hours."""

HALF_LIFE_SECONDS = 3_600.0
"""Time in which the usual rate decays to half, so that a load that fell for good becomes usual."""

FALLEN_SHARE = 0.2
"""Below this share of the last minutes' mean part of the input is missing: no wave falls by over 80 % within minutes.
Of the mean, not the maximum, because the end of a spike is no outage."""

RECENT_SECONDS = 180.0
"""Half-life of the last minutes' mean."""

MAX_DOUBLINGS = 24.0
"""Of the lowest usual rate in one gap between two readings."""

READING_SECONDS = 30.0
"""The longest time that one observation stands for: after a gap it describes only its own window."""

KNOWN_LOW_SHARE = 0.7
"""Share of the lowest usual rate from which a fall is a return to it, as at the end of a flash crowd, and no outage."""

SILENT_SHARE = 0.01
"""Below this share of the usual rate the input is missing, however low it has been before."""

BACK_SHARE = 0.5
"""Share of the rate before the fall from which the input is back."""


def usual_arrivals(before: UsualArrivals | None, analysis: Analysis, now: datetime) -> UsualArrivals | None:
    """Return the usual arrivals after this analysis; unchanged while an arrival rate is unknown."""
    rates = [source.arrival_rate.value for source in analysis.sources]
    measured = [rate for rate in rates if rate is not None]
    if not rates or len(measured) < len(rates):
        return before
    # An estimate may be negative, and the sum of two at the bound of a message exceeds it.
    arriving = min(max(0.0, sum(measured)), MAX_NUMBER)
    if before is None:
        return UsualArrivals(at=now, records_per_second=arriving, lately=arriving, min_lately=arriving)
    age = max(0.0, (now - before.at).total_seconds())
    kept = 0.5 ** (min(age, READING_SECONDS) / RECENT_SECONDS)
    recent = arriving if before.lately is None else min(kept * before.lately + (1 - kept) * arriving, MAX_NUMBER)
    # The maximum of means: a producer's burst of a few seconds must not stay usual for an hour.
    usual = max(recent, before.records_per_second * 0.5 ** (age / HALF_LIFE_SECONDS))
    # About the lowest of the last hours, or above it.
    is_known = bool(before.min_lately) and arriving >= KNOWN_LOW_SHARE * (before.min_lately or 0.0)
    returned = is_known and arriving >= SILENT_SHARE * usual
    rate_before_outage = None if returned else _rate_before_outage(before, arriving, now)
    missing = not returned and (arriving < MISSING_SHARE * usual or rate_before_outage is not None)
    since = (before.outage_since or now) if missing else None
    return UsualArrivals(
        at=now,
        records_per_second=usual,
        outage_since=since,
        lately=recent,
        rate_before_outage=rate_before_outage if since else None,
        min_lately=_min_lately(before, recent, age, missing=missing),
    )


def _min_lately(before: UsualArrivals, recent: float, age: float, *, missing: bool) -> float:
    """Return the lowest usual rate; what arrives in an outage does not count."""
    if not before.min_lately:
        return recent  # nothing arrived until now: that says nothing of the load
    risen = before.min_lately * 2.0 ** min(age / HALF_LIFE_SECONDS, MAX_DOUBLINGS)
    return before.min_lately if missing else min(recent, risen)


def _rate_before_outage(before: UsualArrivals, arriving: float, now: datetime) -> float | None:
    """Return the rate before the fall until half of it is back, at most for the half-life of the usual rate."""
    if before.rate_before_outage is not None and before.outage_since is not None:
        for_good = (now - before.outage_since).total_seconds() > HALF_LIFE_SECONDS
        return None if for_good or arriving >= BACK_SHARE * before.rate_before_outage else before.rate_before_outage
    if before.lately is not None and arriving < FALLEN_SHARE * before.lately:
        return before.lately
    return None


def prevents_scale_down(arrivals: UsualArrivals | None, behavior: Behavior, now: datetime) -> bool:
    """Return whether the input has been missing for less than the policy's hold."""
    since = arrivals.outage_since if arrivals else None
    return since is not None and now < since + behavior.scale_down.input_outage_hold
