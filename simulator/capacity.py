"""What an operator can do at a parallelism."""

import math
from statistics import NormalDist

from .spec import OperatorSpec


def capacity(operator: OperatorSpec, parallelism: int) -> float:
    """Records/s of all warm subtasks together if each were busy all the time.

    C(p) = p / (service · (1 + σ·(p − 1) + κ·p·(p − 1))), never above the operator's limit.
    """
    spread = 1 + operator.contention * (parallelism - 1) + operator.coherence * parallelism * (parallelism - 1)
    rate = parallelism / (operator.service_seconds * spread)
    return rate if operator.limit_per_second is None else min(rate, operator.limit_per_second)


def hottest_share(operator: OperatorSpec, parallelism: int, *, keyed: bool) -> float:
    """Share of an operator's records that its busiest subtask gets; 1/p where they are spread evenly.

    With keys: the key groups (as many as the max parallelism) are dealt out, so that some subtask has ⌈G/p⌉ of them; of few
    keys some subtask gets more than of others by chance; and one key that is hot goes to one subtask with all its records.
    """
    if not keyed:
        return 1 / parallelism
    groups = operator.max_parallelism
    fullest = -(-groups // parallelism) / groups
    if operator.keys is not None and parallelism > 1:
        # The largest of p nearly normal shares, by Blom's approximation of the expected order statistic.
        highest = NormalDist().inv_cdf((parallelism - 0.375) / (parallelism + 0.25))
        fullest = min(1.0, fullest + highest * math.sqrt(fullest * (1 - fullest) / operator.keys))
    return operator.hot_key_share + (1 - operator.hot_key_share) * fullest


def sustained(operator: OperatorSpec, parallelism: int, *, keyed: bool) -> float:
    """Records/s at which the busiest subtask is busy all the time: what the operator can take in the long run."""
    return capacity(operator, parallelism) / (parallelism * hottest_share(operator, parallelism, keyed=keyed))
