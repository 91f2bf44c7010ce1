"""The state that one plan hands to the next: recommendations for the stabilisation windows, usual arrivals, the last hour's
actions, the planner's memory. Pure.

Recommendations are bounded, and sufficient for every window. A window needs the smallest and the largest recommendation
of each operator in it, and whether the oldest lies before it.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter

from weir_contracts import (
    NO_OPINION,
    Outcome,
    Parallelism,
    PastAction,
    PlanReply,
    PlanRequest,
    PlanState,
    Recommendation,
    UsualArrivals,
)

from .input_outage import prevents_scale_down, usual_arrivals

MAX_RECOMMENDATIONS = 400
FOLDED = 4
MAX_CHARACTERS = 1_000_000
"""Of the recommendations that a plan carries for a planner: 400 of a hundred operators with usual names."""
MIN_KEPT = 8
"""Recommendations of the largest graph: the oldest, and the extremes of the window."""
REMEMBERED = timedelta(hours=1)
"""How far back past actions reach."""
MAX_ACTIONS = 60
MAX_ENTRIES = 2_000
"""Operators in all past actions together: of very large graphs fewer actions are remembered by operator."""


def next_state(request: PlanRequest, reply: PlanReply, planner: str) -> PlanState:
    """Return the state that this plan hands to the next; this cycle's guards read it, too."""
    before = request.state
    arrivals = usual_arrivals(before.arrivals, request.analysis, request.now)
    # A memory is kept over cycles in which its planner was not called or failed.
    keeps = not reply.memory and reply.code in NO_OPINION
    # All of it was validated.
    return before.model_copy(
        update={
            "recommendations": _recommendations(request, reply, arrivals),
            "memory": request.memory if keeps else reply.memory,
            "planner": planner,
            "arrivals": arrivals,
            "actions": past_actions(before.actions, request.outcomes, request.now),
            "contenders": [],
            "courses": [],
        }
    )


def _recommendations(request: PlanRequest, reply: PlanReply, arrivals: UsualArrivals | None) -> list[Recommendation]:
    """Return the recommendations in the longer stabilisation window and the last one before it, which shows coverage."""
    behavior, deployment = request.policy.spec.behavior, request.deployment
    recommended: Parallelism | None = reply.parallelism
    if recommended is None and reply.code in NO_OPINION:
        # A gap: the window must be covered again.
        return []
    if deployment is not None and (recommended is None or prevents_scale_down(arrivals, behavior, request.now)):
        # A hold recommends the current parallelism; so does any reply while the input is missing, since it may come
        # back.
        recommended = deployment.observed
    if recommended is None:
        return []
    since = request.now - max(behavior.scale_up.stabilization, behavior.scale_down.stabilization)
    latest = Recommendation(at=request.now, parallelism=recommended)
    kept = gathered(latest, request.state.recommendations, since)
    return condensed(kept, max_kept(recommended, MAX_RECOMMENDATIONS))


def max_kept(parallelism: Parallelism, limit: int) -> int:
    """Return how many recommendations a plan may carry: fewer of a large graph, whose names are repeated in each."""
    characters = sum(len(name) + 8 for name in parallelism)
    return max(MIN_KEPT, min(limit, MAX_CHARACTERS // max(1, characters)))


def gathered(latest: Recommendation, before: Sequence[Recommendation], since: datetime) -> list[Recommendation]:
    """Return the recommendations after an instant and the last one before it, which shows coverage; oldest first.

    Of equal ones in a row the first and the last; none that names other operators.
    """
    if latest.at <= since:
        return [latest]
    kept, current, names = [latest], latest.parallelism, latest.parallelism.keys()
    first = bisect_right(before, since, key=attrgetter("at")) - 1
    while first > 0 and before[first].parallelism.keys() != names:
        first -= 1
    in_run = False
    for each in reversed(before[max(0, first) :]):
        earlier = each.parallelism
        if earlier == current:
            if in_run:
                kept[-1] = each
            else:
                kept.append(each)
                in_run = True
        elif earlier.keys() == names:
            kept.append(each)
            current, in_run = earlier, False
    return kept[::-1]


def condensed(recommendations: Sequence[Recommendation], limit: int) -> list[Recommendation]:
    """Return at most `limit` recommendations, oldest first, by which every window decides the same or more cautiously.

    The first and the last of equal ones in a row suffice. If these are too many, groups are replaced by their smallest
    and largest at the time of the last, which leaves them in the window a little longer than necessary.
    """
    kept = _ends_of_runs(recommendations)
    while len(kept) > limit:
        oldest, rest = kept[:1], kept[1:]
        groups = [rest[i : i + FOLDED] for i in range(0, len(rest), FOLDED)]
        # Folding earlier results again keeps the ages in a long window evenly spaced.
        folded = [each for group in groups for each in _extremes(group)]
        if len(folded) + 1 >= len(kept):
            return [*oldest, *kept[-(limit - 1) :]]
        kept = _ends_of_runs([*oldest, *folded])
    return kept


def _ends_of_runs(recommendations: Sequence[Recommendation]) -> list[Recommendation]:
    kept = list(recommendations[:1])
    in_run = False  # whether the last two kept are equal
    for each in recommendations[1:]:
        same = each.parallelism == kept[-1].parallelism
        if same and in_run:
            kept[-1] = each
        else:
            kept.append(each)
        in_run = same
    return kept


def _extremes(group: Sequence[Recommendation]) -> list[Recommendation]:
    if len(group) < FOLDED:
        return list(group)

    def of(pick: Callable[[list[int]], int]) -> Recommendation:
        names = group[0].parallelism
        return Recommendation(at=group[-1].at, parallelism={n: pick([r.parallelism[n] for r in group]) for n in names})

    return [of(min), of(max)]


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
