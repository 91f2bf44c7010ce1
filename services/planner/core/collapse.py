"""Tells an input that has collapsed from a load that is falling."""

from datetime import datetime

from weir_contracts import Analysis, Behavior, UsualArrivals

COLLAPSED_SHARE = 0.05
"""Below this share of what is usual the input has collapsed: no daily wave falls so far within hours."""

HALF_LIFE_SECONDS = 3_600.0
"""In which what is usual fades to half, so that a load that fell for good becomes usual."""

FALLEN_SHARE = 0.2
"""Below this share of the last minutes' mean the input fell by over 80 % within minutes: no wave does that, an outage of some of
what is upstream does. A mean, and not the highest: a spike's end is no fall."""

LATELY_SECONDS = 180.0
"""In which what has come before counts half in the mean."""

READING_SECONDS = 30.0
"""The most that one reading stands for: after a gap it tells of its own window, and not of the gap."""

BACK_SHARE = 0.5
"""Of what it fell from: with that the input is back."""


def usual_arrivals(before: UsualArrivals | None, analysis: Analysis, now: datetime) -> UsualArrivals | None:
    """What is usual after this analysis; unchanged while an arrival rate is unknown."""
    rates = [source.arrival_rate.value for source in analysis.sources]
    known = [rate for rate in rates if rate is not None]
    if not rates or len(known) < len(rates):
        return before
    arriving = max(0.0, sum(known))  # an estimate may be anything
    if before is None:
        return UsualArrivals(at=now, records_per_second=arriving, lately=arriving)
    age = max(0.0, (now - before.at).total_seconds())
    kept = 0.5 ** (min(age, READING_SECONDS) / LATELY_SECONDS)
    lately = arriving if before.lately is None else kept * before.lately + (1 - kept) * arriving
    # Of the mean, too: what a producer sends in seconds after it was held up would be usual for an hour.
    usual = max(lately, before.records_per_second * 0.5 ** (age / HALF_LIFE_SECONDS))
    fell_from = _fell_from(before, arriving, now)
    collapsed = arriving < COLLAPSED_SHARE * usual or fell_from is not None
    since = (before.collapsed_since or now) if collapsed else None
    return UsualArrivals(
        at=now, records_per_second=usual, collapsed_since=since, lately=lately, fell_from=fell_from if since else None
    )


def _fell_from(before: UsualArrivals, arriving: float, now: datetime) -> float | None:
    """What the input fell from, until half of it is back, at most for the time in which what is usual fades to half."""
    if before.fell_from is not None and before.collapsed_since is not None:
        for_good = (now - before.collapsed_since).total_seconds() > HALF_LIFE_SECONDS
        return None if for_good or arriving >= BACK_SHARE * before.fell_from else before.fell_from
    if before.lately is not None and arriving < FALLEN_SHARE * before.lately:
        return before.lately
    return None


def holds_for_collapse(arrivals: UsualArrivals | None, behavior: Behavior, now: datetime) -> bool:
    """Whether the input has collapsed so lately that nothing may go down for it yet."""
    since = arrivals.collapsed_since if arrivals else None
    return since is not None and now < since + behavior.scale_down.collapse_hold
