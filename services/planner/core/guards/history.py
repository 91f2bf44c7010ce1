"""Guards that look back: what was done in the last hour, and whether it did any good."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby

from weir_contracts import CapacityPoint, Infeasible, Outcome, PastAction

from .draft import Context, Draft, moves

REMEMBERED = timedelta(hours=1)
MOST_ACTIONS = 60
MOST_ENTRIES = 2_000
"""Operators that all past actions together may name: of very large graphs fewer actions are remembered by operator."""
REVERSALS_COUNT = timedelta(minutes=30)
"""Up, down and up again within this is swinging, not following."""
LEAST_GAIN = 0.1
"""Share of what more subtasks should have brought, below which their measured capacity says that they brought nothing."""
TRUSTED = 0.7
"""Confidence of a capacity that growth is judged by."""


def past_actions(before: Sequence[PastAction], outcomes: Sequence[Outcome], now: datetime) -> list[PastAction]:
    """The last hour's actions, oldest first, after what the newest outcomes tell."""
    known = {action.id: action for action in before}
    for action in (outcome.newest_action for outcome in reversed(outcomes)):
        if action is None or action.requested_at is None:
            continue
        moved = [name for name, p in action.wanted.items() if action.before.get(name, p) != p]
        known[action.id] = PastAction(
            id=action.id,
            at=action.requested_at,
            before={name: action.before[name] for name in moved},
            after={name: action.wanted[name] for name in moved},
            undone=action.rollback_requested_at is not None or action.phase in ("rolling-back", "rolled-back"),
        )
    lately = sorted((a for a in known.values() if a.at > now - REMEMBERED), key=lambda a: a.at)[-MOST_ACTIONS:]
    room, kept = MOST_ENTRIES, []
    for past in reversed(lately):
        room -= len(past.after)
        kept.append(past if room >= 0 else past.model_copy(update={"before": {}, "after": {}}))
    return kept[::-1]


def action_budget(draft: Draft, context: Context) -> Draft:
    """So many actions an hour as the policy allows; the last of several is kept for growth."""
    most = context.spec.behavior.max_actions_per_hour
    if most is None:
        return draft
    taken = sum(action.at > context.now - REMEMBERED for action in context.actions)
    up, down = moves(draft, context)
    if taken >= most:
        left = (context.actions[-most].at + REMEMBERED - context.now).total_seconds()
        because = f"{taken} actions were taken within the hour and the policy allows {most}: the next in {left:.0f} s"
        return draft.staying("action-budget", because, [*up, *down], context)
    if taken == most - 1 and most > 1 and down:
        because = f"{taken} of {most} actions an hour were taken: the last is kept for growth"
        return draft.staying("action-budget", because, down, context)
    return draft


def reversal(draft: Draft, context: Context) -> Draft:
    """What went up, down and up again within half an hour is not lowered for longer than stabilisation asks: it swings."""
    hold = context.spec.behavior.scale_down.reversal_hold
    held, until = [], context.now
    for name in moves(draft, context)[1] if context.actions else []:
        seen = [
            (action.after[name] > action.before[name], action.at)
            for action in context.actions
            if name in action.after and not action.undone and action.at > context.now - REVERSALS_COUNT
        ]
        turns = [up for up, _ in groupby(seen, key=lambda each: each[0])]
        if turns[-3:] == [True, False, True] and context.now < seen[-1][1] + hold:
            held.append(name)
            until = max(until, seen[-1][1] + hold)
    left = (until - context.now).total_seconds()
    because = (
        f"{', '.join(held)} went up, down and up again within half an hour: no scale-down for another {left:.0f} s"
    )
    return draft.staying("reversal", because, held, context) if held else draft


def ineffective_growth(draft: Draft, context: Context) -> Draft:
    """What was grown and measured to do no more than before is not grown again for a while: something else limits it.

    Judged only where both capacities were measured under saturation, the second since the growth.
    """
    hold = context.spec.behavior.scale_up.ineffective_hold
    for name in moves(draft, context)[0] if context.actions else []:
        grown = _last_growth(name, context)
        if grown is None or context.now >= grown.at + hold:
            continue
        before, after = grown.before[name], grown.after[name]
        then, here = _measured(name, before, context), _measured(name, after, context)
        if then is None or here is None or here.measured_at <= grown.at or then.measured_at < grown.at - REMEMBERED:
            continue
        expected = then.records_per_second * (after / before - 1)
        if here.records_per_second - then.records_per_second >= LEAST_GAIN * expected:
            continue
        because = (
            f"{name} does {here.records_per_second:,.0f} records/s with {after} and did {then.records_per_second:,.0f} with {before}: "
            f"not grown again for {(grown.at + hold - context.now).total_seconds():.0f} s"
        )
        wanted = (draft.vector or {})[name]
        draft = draft.noting(
            Infeasible(operator=name, wanted=wanted, limit=after, code="ineffective-growth", because=because)
        ).staying("ineffective-growth", because, [name], context)
    return draft


def _last_growth(name: str, context: Context) -> PastAction | None:
    """The newest change of an operator, if it was a growth to what is running."""
    newest = next((a for a in reversed(context.actions) if name in a.after and not a.undone), None)
    if newest is None or not newest.before[name] < newest.after[name] == context.current[name]:
        return None
    return newest


def _measured(name: str, parallelism: int, context: Context) -> CapacityPoint | None:
    found = context.operators.get(name)
    points = found.capacities if found else []
    return next((p for p in points if p.parallelism == parallelism and p.saturated and p.confidence >= TRUSTED), None)
