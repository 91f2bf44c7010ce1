"""Guards on timing: one action in flight, excluded periods, stabilisation, cooldown, quarantine."""

from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

from weir_contracts import TERMINAL, ExcludedPeriod, Parallelism
from weir_planner.core import messages
from weir_planner.core.input_outage import prevents_scale_down

from .proposal import Proposal

MOVING = frozenset({"rebalancing", "migrating", "restoring"})
"""Symptoms of a consumer group whose tasks are not where they will be."""


WARM_UP_SECONDS = 30.0
"""Time since the last assignment in which the instances warm up state that the next one may move."""


def one_in_flight(proposal: Proposal) -> Proposal:
    """Hold until the last action runs. While it is verified, growth may follow it; scale-down may not."""
    action = proposal.context.request.newest_action
    if action is None or action.phase in TERMINAL:
        return proposal
    if action.phase == "verifying" and action.running_at is not None and not proposal.moves[1]:
        return proposal
    return proposal.held("one-in-flight", "action-in-flight", messages.in_flight(action.phase, action.sentence))


def tasks_move(proposal: Proposal) -> Proposal:
    """Hold while tasks of a consumer group move or wait for their state: another rebalance would begin that again. While
    they only wait for a probing rebalance, growth may go on, as each new instance brings a rebalance sooner."""
    context = proposal.context
    moving = [s for s in context.analysis.symptoms if s.code in MOVING]
    if not moving or context.request.deployment.group is None or len(context.movable) < len(context.current):
        return proposal
    reason, run = moving[0].evidence, context.analysis.run
    waits = all(s.code == "migrating" for s in moving) and run is not None
    if (
        waits
        and run is not None
        and (context.analysis.observed_at - run.running_since).total_seconds() >= WARM_UP_SECONDS
    ):
        return proposal.kept("tasks-move", messages.tasks_move(reason), proposal.moves[1])
    return proposal.held("tasks-move", "tasks-move", messages.tasks_move(reason))


def input_outage(proposal: Proposal) -> Proposal:
    """Prevent scale-down for a while after the input fell: after an upstream outage all records may arrive at once."""
    context = proposal.context
    usual, behavior, now = context.arrivals, context.spec.behavior, context.now
    if usual is None or usual.collapsed_since is None or not prevents_scale_down(usual, behavior, now):
        return proposal
    left = usual.collapsed_since + behavior.scale_down.input_outage_hold - now
    reason = messages.input_fell(
        (now - usual.collapsed_since).total_seconds(),
        usual.fell_from or usual.records_per_second,
        left.total_seconds(),
    )
    return proposal.kept("input-collapse", reason, proposal.moves[1])


def stabilisation(proposal: Proposal) -> Proposal:
    """Grow to the smallest recommendation of scaleUp's window; shrink to the largest of scaleDown's, once that is
    covered."""
    context, vector = proposal.context, dict(proposal.wanted)
    up, down = proposal.moves
    behavior, length = context.spec.behavior, context.spec.behavior.scale_down.stabilization
    since = context.recommendations[0].at if context.recommendations else context.now
    covered = length == timedelta(0) or (bool(context.recommendations) and since <= context.now - length)
    waiting = [] if covered else down
    vector.update({name: context.current[name] for name in waiting})
    windows = (up, behavior.scale_up.stabilization, min, max), (down if covered else [], length, max, min)
    for names, window, cautious, limit in windows:
        if not names:
            continue
        begins = context.now - window
        recommended = [r.parallelism for r in context.recommendations if r.at >= begins]
        for name in names:
            now = context.current[name]
            vector[name] = limit(now, cautious([vector[name], *[each.get(name, now) for each in recommended]]))
    if vector == proposal.wanted:
        return proposal
    if covered and not up and (later := _larger_step(proposal, vector)) is not None:
        reason = messages.waits_for_larger_step(context.current, *later)
        return proposal.changed("stabilisation", reason, context.current)
    if waiting:
        left = (since + length - context.now).total_seconds()
        reason = messages.stabilising(waiting, length.total_seconds(), max(0.0, left))
    else:
        limited = [name for name, p in vector.items() if p != proposal.wanted[name]]
        reason = messages.stabilised(context.current, vector, limited)
    return proposal.changed("stabilisation", reason, vector)


def _larger_step(proposal: Proposal, vector: Parallelism) -> tuple[Parallelism, float] | None:
    """Return a smaller vector that the window allows soon, and in how many seconds, if waiting for it costs fewer
    slot-seconds than `vector` now and the rest after the cooldown; None: nothing is won by waiting."""
    context, slots = proposal.context, proposal.context.topology.slots
    blocked, length = context.spec.behavior.cooldown.total_seconds(), context.spec.behavior.scale_down.stabilization
    held, first = slots(context.current), slots(vector)
    found, interval = None, context.spec.interval.total_seconds()
    if first == held:
        return None
    for each in context.recommendations:
        left = (each.at + length - context.now).total_seconds()
        if not 0 <= left < blocked:
            continue
        wait = (left // interval + 1) * interval
        remaining = [r.parallelism for r in context.recommendations if r.at > each.at]
        later = {
            name: min(context.current[name], max([p, *(r.get(name, p) for r in remaining)]))
            for name, p in proposal.wanted.items()
        }
        smaller = slots(later)
        if smaller < first and (held - smaller) * wait <= (first - smaller) * blocked:
            found = later, wait
    return found


def cooldown(proposal: Proposal) -> Proposal:
    """Prevent scale-down for a while after an action and after a restart of any cause."""
    context = proposal.context
    action, run = context.request.newest_action, context.analysis.run
    causes: list[tuple[datetime, str]] = []
    if action is not None and (ended := action.finished_at or action.running_at) is not None:
        causes.append((ended, "the last action"))
    if run is not None:
        causes.append((run.running_since, "a restart"))
    if not causes:
        return proposal
    at, cause = max(causes)
    left = (at + context.spec.behavior.cooldown - context.now).total_seconds()
    if left <= 0 or not proposal.moves[1]:
        return proposal
    return proposal.kept("cooldown", messages.cooling_down(left, cause), proposal.moves[1])


def quarantined(proposal: Proposal) -> Proposal:
    """Hold if the vector was rolled back and its quarantine lasts."""
    context = proposal.context
    for entry in context.request.quarantine:
        if entry.until > context.now and entry.parallelism == proposal.vector:
            left = (entry.until - context.now).total_seconds()
            return proposal.held("quarantine", "quarantined", messages.quarantined(entry.because, left))
    return proposal


def no_change(proposal: Proposal) -> Proposal:
    """Hold if the result of the guards is the current parallelism."""
    if proposal.vector != proposal.context.current:
        return proposal
    if not proposal.amendments:
        return proposal.held("no-change", "no-change", messages.ALREADY_RUNNING)
    last = proposal.amendments[-1]
    return proposal.held("no-change", last.code, last.because)


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
