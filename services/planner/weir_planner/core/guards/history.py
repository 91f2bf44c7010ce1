"""Guards on the last hour: how many actions there were, and whether they helped."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby

from weir_contracts import CapacityPoint, Outcome, PastAction
from weir_planner.core import messages

from .proposal import Context, Proposal

REMEMBERED = timedelta(hours=1)
MAX_ACTIONS = 60
MAX_ENTRIES = 2_000
"""Operators in all past actions together: of very large graphs fewer actions are remembered by operator."""
REVERSALS_COUNT = timedelta(minutes=30)
"""Up, down and up again within this is oscillation."""
MIN_GAIN = 0.1
"""Share of the expected gain in capacity below which growth was ineffective."""
TRUSTED = 0.7
"""Confidence of a capacity that growth is judged by."""


def past_actions(before: Sequence[PastAction], outcomes: Sequence[Outcome], now: datetime) -> list[PastAction]:
    """Return the last hour's actions, oldest first, updated by the outcomes (newest first)."""
    if not before and not outcomes:
        return []
    found = {action.id: action for action in before}
    for action in (outcome.newest_action for outcome in reversed(outcomes)):
        if action is None or action.requested_at is None:
            continue
        moved = [name for name, p in action.wanted.items() if action.before.get(name, p) != p]
        found[action.id] = PastAction(
            id=action.id,
            at=action.requested_at,
            before={name: action.before[name] for name in moved},
            after={name: action.wanted[name] for name in moved},
            undone=action.rollback_requested_at is not None or action.phase in ("rolling-back", "rolled-back"),
        )
    recent = sorted((a for a in found.values() if a.at > now - REMEMBERED), key=lambda a: a.at)[-MAX_ACTIONS:]
    room, kept = MAX_ENTRIES, []
    for each in reversed(recent):
        room -= len(each.after)
        kept.append(each if room >= 0 else each.model_copy(update={"before": {}, "after": {}}))
    return kept[::-1]


def action_budget(proposal: Proposal) -> Proposal:
    """Allow the policy's number of actions an hour; the last of several is reserved for growth."""
    context = proposal.context
    limit = context.spec.behavior.max_actions_per_hour
    if limit is None:
        return proposal
    taken = sum(action.at > context.now - REMEMBERED for action in context.actions)
    up, down = proposal.moves
    if taken >= limit:
        left = (context.actions[-limit].at + REMEMBERED - context.now).total_seconds()
        return proposal.kept("action-budget", messages.too_many_actions(taken, limit, left), [*up, *down])
    if taken == limit - 1 and limit > 1 and down:
        return proposal.kept("action-budget", messages.reserved_action(taken, limit), down)
    return proposal


def reversal(proposal: Proposal) -> Proposal:
    """Prevent scale-down of an operator that went up, down and up again within half an hour."""
    context = proposal.context
    hold = context.spec.behavior.scale_down.reversal_hold
    held, until = [], context.now
    for name in proposal.moves[1] if context.actions else []:
        moves = [
            (action.after[name] > action.before[name], action.at)
            for action in context.actions
            if name in action.after and not action.undone and action.at > context.now - REVERSALS_COUNT
        ]
        if _overshot(name, proposal):
            continue
        directions = [up for up, _ in groupby(moves, key=lambda move: move[0])]
        if directions[-3:] == [True, False, True] and context.now < moves[-1][1] + hold:
            held.append(name)
            until = max(until, moves[-1][1] + hold)
    if not held:
        return proposal
    return proposal.kept("reversal", messages.reversing(held, (until - context.now).total_seconds()), held)


def _overshot(name: str, proposal: Proposal) -> bool:
    """Return whether a consumer group would give back only a part of its last growth. Each step in is one useful number
    of threads, so that the first of them is no reversal yet."""
    context = proposal.context
    grown = _last_growth(name, context) if context.request.policy.shares_tasks else None
    return grown is not None and proposal.wanted[name] > grown.before[name]


def ineffective_growth(proposal: Proposal) -> Proposal:
    """Prevent growth of an operator whose last growth added no capacity: something else limits it.

    Judged only if both capacities were measured under saturation, the second one since the growth.
    """
    context = proposal.context
    hold = context.spec.behavior.scale_up.ineffective_hold
    for name in proposal.moves[0] if context.actions else []:
        grown = _last_growth(name, context)
        if grown is None or context.now >= grown.at + hold:
            continue
        before, after = grown.before[name], grown.after[name]
        then, here = _measured(name, before, context), _measured(name, after, context)
        if then is None or here is None or here.measured_at <= grown.at or then.measured_at < grown.at - REMEMBERED:
            continue
        even = context.topology.even_subtasks
        expected = then.records_per_second * (even(name, after) / even(name, before) - 1)
        if expected <= 0 or here.records_per_second - then.records_per_second >= MIN_GAIN * expected:
            continue
        reason = messages.ineffective(
            name,
            (before, then.records_per_second),
            (after, here.records_per_second),
            (grown.at + hold - context.now).total_seconds(),
        )
        proposal = proposal.noting(
            "ineffective-growth", reason, wanted=proposal.wanted[name], limit=after, operator=name
        ).kept("ineffective-growth", reason, [name])
    return proposal


def _last_growth(name: str, context: Context) -> PastAction | None:
    """Return the newest change of an operator if it was a growth to the current parallelism."""
    newest = next((a for a in reversed(context.actions) if name in a.after and not a.undone), None)
    if newest is None or not newest.before[name] < newest.after[name] == context.current[name]:
        return None
    return newest


def _measured(name: str, parallelism: int, context: Context) -> CapacityPoint | None:
    found = context.operators.get(name)
    points = found.capacities if found else []
    return next((p for p in points if p.parallelism == parallelism and p.saturated and p.confidence >= TRUSTED), None)
