"""The guard of times in which the policy excludes changes."""

from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim
from weir_contracts import ExcludedPeriod

from services.planner.core import messages

from .proposal import Proposal


def excluded_period(proposal: Proposal) -> Proposal:
    """Prevent changes in the directions that a current excluded period names."""
    now = proposal.context.now
    for period in proposal.context.spec.behavior.excluded_periods:
        up, down = proposal.moves
        names = [*(up if "up" in period.directions else []), *(down if "down" in period.directions else [])]
        until = ends_at(period, now) if names else None
        if until is not None:
            local = until.astimezone(ZoneInfo(period.time_zone))
            proposal = proposal.kept("excluded-period", messages.excluded(names, local, period.time_zone), names)
    return proposal


def ends_at(period: ExcludedPeriod, now: datetime) -> datetime | None:
    """Return the end of the period that contains `now`; None if it lies in none."""
    if period.begins is not None and period.ends is not None:
        return _daily(period.begins, period.ends, period.time_zone, now)
    if period.cron is None or period.duration is None:
        return None
    began = _last_start(period.cron, period.duration, period.time_zone, now.replace(second=0, microsecond=0))
    return None if began is None or now >= began + period.duration else began + period.duration


def _daily(begins: time, ends: time, zone: str, now: datetime) -> datetime | None:
    """Follow the wall clock: an hour that comes twice is excluded twice."""
    local = now.astimezone(ZoneInfo(zone))
    at, overnight = local.time(), ends < begins
    if not (at >= begins or at < ends if overnight else begins <= at < ends):
        return None
    day = local.date() + timedelta(days=1 if overnight and at >= begins else 0)
    return datetime.combine(day, ends, ZoneInfo(zone))


@lru_cache(maxsize=2000)
def _last_start(expression: str, duration: timedelta, zone: str, minute: datetime) -> datetime | None:
    """Return the newest of cron's times that may still last; cached, reason each plan in a minute needs it.

    In UTC, where a duration is as long on the days on which clocks change.
    """
    since, ahead = minute.astimezone(UTC) - duration, minute + timedelta(minutes=1)
    began = next(CronSim(expression, ahead.astimezone(ZoneInfo(zone)), reverse=True), None)
    return began.astimezone(UTC) if began is not None and began >= since else None
