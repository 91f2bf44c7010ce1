"""Tells an input that has collapsed from a load that is falling."""

from datetime import datetime

from weir_contracts import Analysis, Behavior, UsualArrivals

COLLAPSED_SHARE = 0.05
"""Below this share of what is usual the input has collapsed: no daily wave falls so far within hours."""

HALF_LIFE_SECONDS = 3_600.0
"""In which what is usual fades to half, so that a load that fell for good becomes usual."""


def usual_arrivals(before: UsualArrivals | None, analysis: Analysis, now: datetime) -> UsualArrivals | None:
    """What is usual after this analysis; unchanged while an arrival rate is unknown."""
    rates = [source.arrival_rate.value for source in analysis.sources]
    known = [rate for rate in rates if rate is not None]
    if not rates or len(known) < len(rates):
        return before
    arriving = sum(known)
    if before is None:
        return UsualArrivals(at=now, records_per_second=arriving)
    age = max(0.0, (now - before.at).total_seconds())
    usual = max(arriving, before.records_per_second * 0.5 ** (age / HALF_LIFE_SECONDS))
    collapsed = arriving < COLLAPSED_SHARE * usual
    since = (before.collapsed_since or now) if collapsed else None
    return UsualArrivals(at=now, records_per_second=usual, collapsed_since=since)


def holds_for_collapse(arrivals: UsualArrivals | None, behavior: Behavior, now: datetime) -> bool:
    """Whether the input has collapsed so lately that nothing may go down for it yet."""
    since = arrivals.collapsed_since if arrivals else None
    return since is not None and now < since + behavior.scale_down.collapse_hold
