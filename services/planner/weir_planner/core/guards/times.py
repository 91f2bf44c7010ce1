"""Guards that limit when there may be a change: what is under way, excluded periods, the number of actions, stabilisation,
cooldown, quarantine."""

from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from itertools import groupby
from zoneinfo import ZoneInfo

from cronsim import CronSim

from weir_contracts import (
    TERMINAL,
    ExcludedPeriod,
    Parallelism,
    changes,
    counted,
    listed,
    names,
    short_name,
)
from weir_planner.core.input_outage import prevents_scale_down
from weir_planner.core.plan_state import REMEMBERED

from .proposal import Proposal, last_growth

MOVING = frozenset({"rebalancing", "migrating", "restoring"})
"""Symptoms of a consumer group whose tasks are not where they will be."""

WARM_UP_SECONDS = 30.0
"""Time since the last assignment in which the instances warm up state that the next one may move."""
REVERSALS_COUNT = timedelta(minutes=30)
"""Up, down and up again within this is oscillation."""


def one_in_flight(proposal: Proposal) -> Proposal:
    """Hold until the last action runs. While it is verified, growth may follow it; scale-down may not."""
    action = proposal.request.newest_action
    if action is None or action.phase in TERMINAL:
        return proposal
    if action.has_run and not proposal.moves[1]:
        return proposal
    return proposal.held(
        "one-in-flight", "action-in-flight", f"an action is in flight, {action.phase}: {action.sentence}"
    )


def tasks_move(proposal: Proposal) -> Proposal:
    """Hold while tasks of a consumer group move or wait for their state: another rebalance would begin that again. While
    they only wait for a probing rebalance, growth may go on, as each new instance brings a rebalance sooner."""
    request = proposal.request
    moving = [s for s in request.analysis.symptoms if s.code in MOVING]
    if not moving or request.deployment.group is None or len(proposal.movable) < len(proposal.current):
        return proposal
    reason, run = f"no change while tasks move: {moving[0].evidence}", request.analysis.run
    waits = all(s.code == "migrating" for s in moving) and run is not None
    if (
        waits
        and run is not None
        and (request.analysis.observed_at - run.running_since).total_seconds() >= WARM_UP_SECONDS
    ):
        return proposal.kept("tasks-move", reason, proposal.moves[1])
    return proposal.held("tasks-move", "tasks-move", reason)


def input_outage(proposal: Proposal) -> Proposal:
    """Prevent scale-down for a while after the input fell: after an upstream outage all records may arrive at once."""
    request = proposal.request
    usual, behavior, now = request.state.arrivals, request.policy.spec.behavior, request.now
    if usual is None or usual.outage_since is None or not prevents_scale_down(usual, behavior, now):
        return proposal
    ago, left = now - usual.outage_since, usual.outage_since + behavior.scale_down.input_outage_hold - now
    rate = usual.rate_before_outage or usual.records_per_second
    reason = (
        f"the input fell {ago.total_seconds():.0f} s ago (usual: {rate:,.0f} records/s), perhaps an outage upstream: "
        f"no scale-down for another {left.total_seconds():.0f} s"
    )
    return proposal.kept("input-outage", reason, proposal.moves[1])


def stabilisation(proposal: Proposal) -> Proposal:
    """Grow to the smallest recommendation of scaleUp's window; shrink to the largest of scaleDown's, once that is
    covered."""
    request, vector = proposal.request, dict(proposal.wanted)
    up, down = proposal.moves
    behavior, length = request.policy.spec.behavior, request.policy.spec.behavior.scale_down.stabilization
    recommendations = request.state.recommendations
    since = recommendations[0].at if recommendations else request.now
    covered = length == timedelta(0) or (bool(recommendations) and since <= request.now - length)
    waiting = [] if covered else down
    vector.update({name: proposal.current[name] for name in waiting})
    windows = (up, behavior.scale_up.stabilization, min, max), (down if covered else [], length, max, min)
    for moved, window, cautious, limit in windows:
        if not moved:
            continue
        begins = request.now - window
        recommended = [r.parallelism for r in recommendations if r.at >= begins]
        for name in moved:
            now = proposal.current[name]
            vector[name] = limit(now, cautious([vector[name], *[each.get(name, now) for each in recommended]]))
    if vector == proposal.wanted:
        return proposal
    if covered and not up and (later := _larger_step(proposal, vector)) is not None:
        smaller, seconds = later
        reason = (
            f"{changes(proposal.current, smaller)} is possible in {seconds:.0f} s: "
            "one larger step instead of two with a cooldown"
        )
        return proposal.changed("stabilisation", reason, proposal.current)
    if waiting:
        left = max(0.0, (since + length - request.now).total_seconds())
        reason = f"scale-down of {names(waiting)} must be recommended for {length.total_seconds():.0f} s, {left:.0f} s remain"
    else:
        reason = _stabilised(proposal.current, vector, proposal.wanted)
    return proposal.changed("stabilisation", reason, vector)


def _stabilised(current: Parallelism, after: Parallelism, wanted: Parallelism) -> str:
    """Name the operators that a recommendation in the window limits, as `enrich stays at 6`."""
    limited = [
        (f"{short_name(name)} {'stays at' if p == current[name] else 'moves only to'} {p}", p)
        for name, p in after.items()
        if p != wanted[name]
    ]
    levels = {p for _, p in limited}
    of = f" of {levels.pop()}" if len(levels) == 1 else ""
    return f"{listed([text for text, _ in limited])}: the stabilisation window still contains a recommendation{of}"


def _larger_step(proposal: Proposal, vector: Parallelism) -> tuple[Parallelism, float] | None:
    """Return a smaller vector that the window allows soon, and in how many seconds, if waiting for it costs fewer
    slot-seconds than `vector` now and the rest after the cooldown; None: nothing is won by waiting."""
    request, slots = proposal.request, proposal.request.topology.slots
    spec, recommendations = request.policy.spec, request.state.recommendations
    blocked, length = spec.behavior.cooldown.total_seconds(), spec.behavior.scale_down.stabilization
    held, first = slots(proposal.current), slots(vector)
    found, interval = None, spec.interval.total_seconds()
    if first == held:
        return None
    for each in recommendations:
        left = (each.at + length - request.now).total_seconds()
        if not 0 <= left < blocked:
            continue
        wait = (left // interval + 1) * interval
        remaining = [r.parallelism for r in recommendations if r.at > each.at]
        later = {
            name: min(proposal.current[name], max([p, *(r.get(name, p) for r in remaining)]))
            for name, p in proposal.wanted.items()
        }
        smaller = slots(later)
        if smaller < first and (held - smaller) * wait <= (first - smaller) * blocked:
            found = later, wait
    return found


def cooldown(proposal: Proposal) -> Proposal:
    """Prevent scale-down for a while after an action and after a restart of any cause."""
    request = proposal.request
    action, run = request.newest_action, request.analysis.run
    causes: list[tuple[datetime, str]] = []
    if action is not None and (ended := action.finished_at or action.running_at) is not None:
        causes.append((ended, "the last action"))
    if run is not None:
        causes.append((run.running_since, "a restart"))
    if not causes:
        return proposal
    at, cause = max(causes)
    left = (at + request.policy.spec.behavior.cooldown - request.now).total_seconds()
    if left <= 0 or not proposal.moves[1]:
        return proposal
    return proposal.kept(
        "cooldown", f"cooldown: no scale-down for another {left:.0f} s after {cause}", proposal.moves[1]
    )


def action_budget(proposal: Proposal) -> Proposal:
    """Allow the policy's number of actions an hour; the last of several is reserved for growth."""
    request = proposal.request
    limit = request.policy.spec.behavior.max_actions_per_hour
    if limit is None:
        return proposal
    taken = sum(action.at > request.now - REMEMBERED for action in request.state.actions)
    up, down = proposal.moves
    if taken >= limit:
        left = (request.state.actions[-limit].at + REMEMBERED - request.now).total_seconds()
        reason = f"{counted(taken, 'action')} in the last hour, the policy allows {limit}: the next one in {left:.0f} s"
        return proposal.kept("action-budget", reason, [*up, *down])
    if taken == limit - 1 and limit > 1 and down:
        used = f"{taken} of {counted(limit, 'action')} an hour {'is' if taken == 1 else 'are'} used"
        reason = f"{used}: the last one is reserved for growth"
        return proposal.kept("action-budget", reason, down)
    return proposal


def reversal(proposal: Proposal) -> Proposal:
    """Prevent scale-down of an operator that went up, down and up again within half an hour."""
    request = proposal.request
    hold = request.policy.spec.behavior.scale_down.reversal_hold
    held, until = [], request.now
    for name in proposal.moves[1] if request.state.actions else []:
        moves = [
            (action.after[name] > action.before[name], action.at)
            for action in request.state.actions
            if name in action.after and not action.undone and action.at > request.now - REVERSALS_COUNT
        ]
        if _overshot(name, proposal):
            continue
        directions = [up for up, _ in groupby(moves, key=lambda move: move[0])]
        if directions[-3:] == [True, False, True] and request.now < moves[-1][1] + hold:
            held.append(name)
            until = max(until, moves[-1][1] + hold)
    if not held:
        return proposal
    left = (until - request.now).total_seconds()
    reason = f"{names(held)} went up, down and up within 30 min: no scale-down for another {left:.0f} s"
    return proposal.kept("reversal", reason, held)


def _overshot(name: str, proposal: Proposal) -> bool:
    """Return whether a consumer group would give back only a part of its last growth. Each step in is one useful number
    of threads, so that the first of them is no reversal yet."""
    request = proposal.request
    grown = last_growth(request, name) if request.policy.shares_tasks else None
    return grown is not None and proposal.wanted[name] > grown.before[name]


def quarantined(proposal: Proposal) -> Proposal:
    """Hold if the vector was rolled back and its quarantine lasts."""
    request = proposal.request
    for entry in request.quarantine:
        if entry.until > request.now and entry.parallelism == proposal.vector:
            left = (entry.until - request.now).total_seconds()
            reason = f"this parallelism is quarantined for another {left:.0f} s since its rollback: {entry.because}"
            return proposal.held("quarantine", "quarantined", reason)
    return proposal


def no_change(proposal: Proposal) -> Proposal:
    """Hold if the result of the guards is the current parallelism."""
    if proposal.vector != proposal.current:
        return proposal
    if not proposal.amendments:
        return proposal.held("no-change", "no-change", "the application already runs at this parallelism")
    last = proposal.amendments[-1]
    return proposal.held("no-change", last.code, last.because)


def excluded_period(proposal: Proposal) -> Proposal:
    """Prevent changes in the directions that a current excluded period names."""
    now = proposal.request.now
    for period in proposal.request.policy.spec.behavior.excluded_periods:
        up, down = proposal.moves
        stopped = [*(up if "up" in period.directions else []), *(down if "down" in period.directions else [])]
        until = ends_at(period, now) if stopped else None
        if until is not None:
            local = until.astimezone(ZoneInfo(period.time_zone))
            reason = f"no change of {names(stopped)}: an excluded period lasts until {local:%Y-%m-%d %H:%M} {period.time_zone}"
            proposal = proposal.kept("excluded-period", reason, stopped)
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
    """Return the newest of cron's times that may still last; cached, because each plan in a minute needs it.

    In UTC, where a duration is as long on the days on which clocks change.
    """
    since, ahead = minute.astimezone(UTC) - duration, minute + timedelta(minutes=1)
    began = next(CronSim(expression, ahead.astimezone(ZoneInfo(zone)), reverse=True), None)
    return began.astimezone(UTC) if began is not None and began >= since else None
