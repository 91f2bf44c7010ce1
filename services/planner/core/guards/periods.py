"""Times in which the policy wants nothing changed."""

from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim
from weir_contracts import ExcludedPeriod

from .draft import Context, Draft, moves


def excluded_period(draft: Draft, context: Context) -> Draft:
    """Nothing moves in a direction that an excluded period names."""
    periods = context.spec.behavior.excluded_periods
    up, down = moves(draft, context) if periods else ([], [])
    for period in periods:
        names = [*(up if "up" in period.directions else []), *(down if "down" in period.directions else [])]
        until = ends_at(period, context.now) if names else None
        if until is not None:
            local = until.astimezone(ZoneInfo(period.time_zone))
            because = f"{', '.join(names)}: an excluded period lasts until {local:%Y-%m-%d %H:%M} {period.time_zone}"
            draft = draft.staying("excluded-period", because, names, context)
            up, down = moves(draft, context)
    return draft


def ends_at(period: ExcludedPeriod, now: datetime) -> datetime | None:
    """When the period that `now` lies in ends; None: it lies in none."""
    if period.begins is not None and period.ends is not None:
        return _daily(period.begins, period.ends, period.time_zone, now)
    if period.cron is None or period.duration is None:
        return None
    return _by_cron(period.cron, period.duration, period.time_zone, now.replace(second=0, microsecond=0), now)


def _daily(begins: time, ends: time, zone: str, now: datetime) -> datetime | None:
    """By the wall clock: what comes twice is excluded twice, what does not come is not missed."""
    local = now.astimezone(ZoneInfo(zone))
    at, overnight = local.time(), ends < begins
    if not (at >= begins or at < ends if overnight else begins <= at < ends):
        return None
    day = local.date() + timedelta(days=1 if overnight and at >= begins else 0)
    return datetime.combine(day, ends, ZoneInfo(zone))


def _by_cron(expression: str, duration: timedelta, zone: str, minute: datetime, now: datetime) -> datetime | None:
    began = _last_of(expression, duration, zone, minute)
    return None if began is None or now >= began + duration else began + duration


@lru_cache(maxsize=2000)
def _last_of(expression: str, duration: timedelta, zone: str, minute: datetime) -> datetime | None:
    """The newest of cron's times that may still last, to the minute: it is asked many times a minute. In UTC, where hours are added as
    they pass: a duration is as long on the days that clocks change."""
    since, ahead = minute.astimezone(UTC) - duration, minute + timedelta(minutes=1)
    began = next(CronSim(expression, ahead.astimezone(ZoneInfo(zone)), reverse=True), None)
    return began.astimezone(UTC) if began is not None and began >= since else None
