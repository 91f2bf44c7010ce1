"""The wishes that a plan carries for the stabilisation windows: few enough to carry, and still all that the windows ask of them.

A window asks of each operator for the smallest and the largest wish in it, and whether the oldest lies before it.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from weir_contracts import Recommendation

FOLDED = 4


def gathered(latest: Recommendation, before: Sequence[Recommendation], since: datetime) -> list[Recommendation]:
    """The wishes after an instant and the last one before it, which shows that it is covered; oldest first, as `before` has them. Of
    equal wishes in a row the first and the last; none that names other operators."""
    kept, wanted, names = [latest], latest.parallelism, latest.parallelism.keys()
    in_run = False
    for wish in reversed(before):
        if kept[-1].at <= since:
            break
        wished = wish.parallelism
        same = wished == wanted
        if not same and wished.keys() != names:
            continue
        if same and in_run:
            kept[-1] = wish
        else:
            kept.append(wish)
        in_run, wanted = same, wished
    return kept[::-1]


def condensed(wishes: Sequence[Recommendation], most: int) -> list[Recommendation]:
    """At most `most` wishes, oldest first, by which every window decides the same or more cautiously.

    Of a run of equal wishes the first and the last tell all. Where that is not enough, wishes in a row are replaced by their
    smallest and their largest, at the time of the last: they stay in the window a little longer than they had to.
    """
    kept = _ends_of_runs(wishes)
    while len(kept) > most:
        oldest, rest = kept[:1], kept[1:]
        groups = [rest[i : i + FOLDED] for i in range(0, len(rest), FOLDED)]
        # What was folded before is folded again with what has come since: the ages of a long window stay evenly spaced.
        folded = [wish for group in groups for wish in _extremes(group)]
        if len(folded) + 1 >= len(kept):
            return [*oldest, *kept[-(most - 1) :]]
        kept = _ends_of_runs([*oldest, *folded])
    return kept


def _ends_of_runs(wishes: Sequence[Recommendation]) -> list[Recommendation]:
    kept = list(wishes[:1])
    in_run = False  # whether the last two that are kept are equal
    for wish in wishes[1:]:
        same = wish.parallelism == kept[-1].parallelism
        if same and in_run:
            kept[-1] = wish
        else:
            kept.append(wish)
        in_run = same
    return kept


def _extremes(group: Sequence[Recommendation]) -> list[Recommendation]:
    if len(group) < FOLDED:
        return list(group)

    def of(pick: Callable[[list[int]], int]) -> Recommendation:
        names = group[0].parallelism
        return Recommendation(at=group[-1].at, parallelism={n: pick([w.parallelism[n] for w in group]) for n in names})

    return [of(min), of(max)]
