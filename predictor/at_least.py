"""What an operator of unknown capacity sustains at least.

A hardly busy operator tells no rate that is worth a curve, but a bound: as little busy as it is with what it takes in, it does so much
more. A bound may say that something suffices, never that it does not.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from weir_contracts import OperatorAnalysis


class AtLeast(NamedTuple):
    """A lower bound of capacity, and the parallelism at which it was found."""

    records_per_second: float
    """Of the whole operator."""
    parallelism: int

    def rate(self, parallelism: int) -> float:
        """Records/s that the whole operator sustains at least at `parallelism`.

        One of fewer subtasks does at least as much as one of more, which share something; that more of them do more was not seen.
        """
        return self.records_per_second * min(1.0, parallelism / self.parallelism)


def at_least_of(operators: Iterable[OperatorAnalysis], curves: Mapping[str, Any]) -> dict[str, AtLeast]:
    """The bounds of those that have none of the `curves` and of which one is known."""
    bounds = ((o, o.least_processing_rate) for o in operators if o.operator not in curves)
    known = ((o, bound.value) for o, bound in bounds if bound is not None and bound.value is not None)
    return {o.operator: AtLeast(value, o.parallelism) for o, value in known if value > 0}
