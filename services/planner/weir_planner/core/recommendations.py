"""Recommendations that a plan carries for the stabilisation windows: bounded, and sufficient for every window.

A window needs the smallest and the largest recommendation of each operator in it, and whether the oldest lies before
it.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter

from weir_contracts import Parallelism, Recommendation

FOLDED = 4
MAX_CHARACTERS = 1_000_000
"""Of the recommendations that a plan carries for a planner: 400 of a hundred operators with usual names."""
MIN_KEPT = 8
"""Recommendations of the largest graph: the oldest, and the extremes of the window."""


def max_kept(parallelism: Parallelism, most: int) -> int:
    """Return how many recommendations a plan may carry: fewer of a large graph, whose names are repeated in each."""
    characters = sum(len(name) + 8 for name in parallelism)
    return max(MIN_KEPT, min(most, MAX_CHARACTERS // max(1, characters)))


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
