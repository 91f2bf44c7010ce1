"""Guards that look at when: one action in flight, stabilisation, cooldown, quarantine."""

from datetime import timedelta

from weir_contracts import TERMINAL, Recommendation

from services.planner.core.collapse import holds_for_collapse

from .draft import Context, Draft, moves


def one_in_flight(draft: Draft, context: Context) -> Draft:
    """Nothing new until the last action runs. Once it does, more may follow before it is verified (a load that rises meanwhile is
    planned for, not waited out), less may not."""
    action = context.last_action
    if action is None or action.phase in TERMINAL:
        return draft
    if action.phase == "verifying" and action.running_at is not None and not moves(draft, context)[1]:
        return draft
    return draft.held(
        "one-in-flight", "action-in-flight", f"an action is in flight ({action.phase}: {action.sentence})"[:2000]
    )


def input_collapse(draft: Draft, context: Context) -> Draft:
    """Nothing goes down for a while after the input collapsed: what stopped upstream may come back all at once."""
    usual, behavior = context.arrivals, context.spec.behavior
    if usual is None or usual.collapsed_since is None or draft.vector is None:
        return draft
    if not holds_for_collapse(usual, behavior, context.now):
        return draft
    vector = dict(draft.vector)
    for name in moves(draft, context)[1]:
        vector[name] = context.current[name]
    until = usual.collapsed_since + behavior.scale_down.collapse_hold
    because = (
        f"the input collapsed {(context.now - usual.collapsed_since).total_seconds():.0f} s ago (usual are "
        f"{usual.fell_from or usual.records_per_second:,.0f} records/s), which may be an outage upstream: "
        f"no scale-down for another {(until - context.now).total_seconds():.0f} s"
    )
    return draft.changed("input-collapse", "input-collapse", because, vector)


def stabilisation(draft: Draft, context: Context) -> Draft:
    """Each direction by its window: up to the smallest wish of scaleUp's, down to the largest of scaleDown's, and down only once
    the window is covered."""
    vector = dict(draft.vector or {})
    up, down = moves(draft, context)
    behavior = context.spec.behavior
    waits = []
    window = _window(context, behavior.scale_up.stabilization) if up else []
    for name in up:
        wishes = [r.parallelism.get(name, context.current[name]) for r in window]
        vector[name] = max(context.current[name], min([vector[name], *wishes]))
    length = behavior.scale_down.stabilization
    window = _window(context, length) if down else []
    covered = bool(context.recommendations) and context.recommendations[0].at <= context.now - length
    for name in down:
        wishes = [r.parallelism.get(name, context.current[name]) for r in window]
        if covered or length == timedelta(0):
            vector[name] = min(context.current[name], max([vector[name], *wishes]))
        else:
            vector[name] = context.current[name]
            waits.append(name)
    moved = [name for name, p in vector.items() if p != (draft.vector or {})[name]]
    because = f"{', '.join(moved)}: the most cautious wish of the stabilisation window counts"
    if waits:
        since = context.recommendations[0].at if context.recommendations else context.now
        left = (since + length - context.now).total_seconds()
        because = f"{', '.join(waits)}: going down has to be wanted for {length.total_seconds():.0f} s, {max(0.0, left):.0f} s are left"
    return draft.changed("stabilisation", "stabilisation", because, vector)


def _window(context: Context, length: timedelta) -> list[Recommendation]:
    since = context.now - length
    return [r for r in context.recommendations if r.at >= since]


def cooldown(draft: Draft, context: Context) -> Draft:
    """After an action, and after a restart of any cause, parallelism may not go down for a while; going up waits only for the action
    to be done."""
    action, run = context.last_action, context.analysis.run
    quiet = [
        (action.finished_at or action.running_at, "the last action") if action else (None, ""),
        (run.running_since, "a restart") if run else (None, ""),
    ]
    ended, after = max(((at, what) for at, what in quiet if at is not None), default=(None, ""))
    if ended is None:
        return draft
    left = (ended + context.spec.behavior.cooldown - context.now).total_seconds()
    down = moves(draft, context)[1] if left > 0 else []
    return draft.staying("cooldown", f"no scale-down for another {left:.0f} s after {after}", down, context)


def quarantined(draft: Draft, context: Context) -> Draft:
    """A vector that was rolled back is not tried again before its time."""
    for entry in context.quarantine:
        if entry.until > context.now and entry.parallelism == draft.vector:
            left = (entry.until - context.now).total_seconds()
            because = f"this vector was rolled back ({entry.because}); not again for {left:.0f} s"[:2000]
            return draft.held("quarantine", "quarantined", because)
    return draft


def no_change(draft: Draft, context: Context) -> Draft:
    """What is left after the guards may be what is running already."""
    if draft.vector != context.current:
        return draft
    because = draft.amendments[-1].because if draft.amendments else "this is what is running"
    code = draft.amendments[-1].code if draft.amendments else "no-change"
    return draft.held("no-change", code, because)
