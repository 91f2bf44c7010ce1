"""Capacity of an operator at a parallelism, and the offline optimum: the smallest parallelism that carries a known
load."""

import math
from bisect import bisect_left
from statistics import NormalDist

from weir_contracts import Bounds

from .spec import Application, OperatorSpec
from .streams_spec import StreamsApplication


def capacity(operator: OperatorSpec, parallelism: int) -> float:
    """Return the records/s of all warm subtasks together if each were busy all the time.

    C(p) = p / (service · (1 + σ·(p − 1) + κ·p·(p − 1))), never above the operator's limit.
    """
    spread = 1 + operator.contention * (parallelism - 1) + operator.coherence * parallelism * (parallelism - 1)
    rate = parallelism / (operator.service_seconds * spread)
    return rate if operator.limit_per_second is None else min(rate, operator.limit_per_second)


def hottest_share(operator: OperatorSpec, parallelism: int, *, keyed: bool) -> float:
    """Return the share of an operator's records that its busiest subtask gets; 1/p where they are spread evenly.

    A subtask of a source has each p-th partition. With keys: a subtask has up to ⌈G/p⌉ of the key groups (as many as the
    max parallelism); few keys are distributed unevenly by chance; and all records of a hot key go to one subtask.
    """
    if operator.source is not None:
        weights = operator.source.weights or (1.0,) * operator.source.partitions
        return max(sum(weights[first::parallelism]) for first in range(min(parallelism, len(weights)))) / sum(weights)
    if not keyed:
        return 1 / parallelism
    groups = operator.max_parallelism
    fullest = -(-groups // parallelism) / groups
    if operator.keys is not None and parallelism > 1:
        # The largest of p nearly normal shares, by Blom's approximation of the expected order statistic.
        upper = NormalDist().inv_cdf((parallelism - 0.375) / (parallelism + 0.25))
        fullest = min(1.0, fullest + upper * math.sqrt(fullest * (1 - fullest) / operator.keys))
    return operator.hot_key_share + (1 - operator.hot_key_share) * fullest


def sustained(operator: OperatorSpec, parallelism: int, *, keyed: bool) -> float:
    """Return the records/s at which the busiest subtask is always busy: the operator's sustained input rate."""
    return capacity(operator, parallelism) / (parallelism * hottest_share(operator, parallelism, keyed=keyed))


class OfflineOptimum:
    """Smallest parallelism of every operator that carries a load: within a policy's bounds and all together within the
    cluster's slots, or, if `bounds` is a number, with at most so many subtasks each.

    It rescales for free, has no lag to work off and knows the load, so no planner can meet an objective with fewer
    slots, except by the work that a tolerated lag lets it postpone.
    """

    def __init__(self, application: Application, bounds: Bounds | int) -> None:
        self._application = application
        self._max_slots = None if isinstance(bounds, int) else application.cluster.slots
        self._topology = application.topology()
        self._index = {o.name: i for i, o in enumerate(application.operators)}
        keyed = {link.target for link in application.links if link.ship == "hash"}
        self._curves = []
        for operator in application.operators:
            bound = bounds if isinstance(bounds, int) else bounds.of(operator.name)[1]
            limit = min(bound, operator.max_parallelism)
            if operator.source is not None:
                limit = min(limit, operator.source.partitions)
            best, curve = 0.0, []
            for p in range(1, limit + 1):
                best = max(best, sustained(operator, p, keyed=operator.name in keyed))
                curve.append(best)
            self._curves.append(curve)

    def loads(self, rate: float, seconds: float) -> list[float]:
        """Return the records/s that arrive at each operator when the sources keep up with a load of `rate`."""
        loads = [0.0] * len(self._curves)
        for i, operator in enumerate(self._application.operators):
            if operator.source is not None:
                loads[i] = rate * operator.source.share
            out = loads[i] * operator.selectivity_at(seconds)
            if operator.window_seconds is not None and operator.window_keys is not None:
                keys, length = operator.window_keys, operator.window_seconds
                out = keys * -math.expm1(-loads[i] * length / keys) / length
            for link in self._application.links:
                if link.source == operator.name:
                    loads[self._index[link.target]] += out * link.share
        return loads

    def parallelism(self, rate: float, seconds: float = 0.0) -> dict[str, int]:
        """Return the smallest parallelism of each operator that carries `rate`; its upper bound where none does."""
        return {
            operator.name: min(len(curve), bisect_left(curve, load * (1 - 1e-9)) + 1)
            for operator, curve, load in zip(
                self._application.operators, self._curves, self.loads(rate, seconds), strict=True
            )
        }

    def carries(self, rate: float, seconds: float = 0.0) -> bool:
        """Return whether the upper bounds and the slots suffice for `rate`."""
        loads = self.loads(rate, seconds)
        if any(curve[-1] < load * (1 - 1e-9) for curve, load in zip(self._curves, loads, strict=True)):
            return False
        return self._max_slots is None or self._topology.slots(self.parallelism(rate, seconds)) <= self._max_slots

    def slots(self, rate: float, seconds: float = 0.0) -> int:
        """Return the slots of the smallest parallelism for `rate`."""
        needed = self._topology.slots(self.parallelism(rate, seconds))
        return needed if self._max_slots is None else min(self._max_slots, needed)


class StreamsOptimum:
    """Threads of the fewest instances that carry a load; it moves tasks and state for free."""

    def __init__(self, application: StreamsApplication, bounds: Bounds) -> None:
        unit, max_parallelism = application.threads, bounds.of(application.name)[1]
        limit = max(1, min(max_parallelism // unit, application.max_instances))
        self._capacities = [(n * unit, application.capacity(n * unit)) for n in range(1, limit + 1)]

    def carries(self, rate: float, seconds: float = 0.0) -> bool:
        return max(capacity for _, capacity in self._capacities) >= rate * (1 - 1e-9)

    def slots(self, rate: float, seconds: float = 0.0) -> int:
        max_threads = self._capacities[-1][0]
        return next((threads for threads, capacity in self._capacities if capacity >= rate * (1 - 1e-9)), max_threads)


Optimum = OfflineOptimum | StreamsOptimum
