"""What binds an operator's parallelism, apart from capacity."""

import math

from weir_contracts import Bounds, Operator, Topology


def smallest_useful(topology: Topology, name: str, p: int) -> int:
    """The smallest parallelism of an operator that is as good as `p`: a source has at most as many busy subtasks as partitions, and of
    those with the same largest share of key groups or partitions the smallest will do (with G of them, q with ⌈G/q⌉ = ⌈G/p⌉)."""
    operator = topology.operator(name)
    units = operator.source_partitions or (operator.max_parallelism if topology.is_keyed(name) else None)
    if units is None:
        return p if operator.max_parallelism is None else min(p, operator.max_parallelism)
    p = min(p, units)
    return math.ceil(units / math.ceil(units / p))


def working(operator: Operator, p: int) -> int:
    """Of `p` subtasks those that have something to do: a source's without a partition are idle."""
    return min(p, operator.source_partitions) if operator.source_partitions else p


def upper_limits(topology: Topology, bounds: Bounds, name: str) -> list[tuple[str, int, str]]:
    """Code, parallelism and words of each thing that an operator cannot grow beyond, the tightest first."""
    operator = topology.operator(name)
    found = [("bounds", bounds.of(name)[1], "by the policy's bounds")]
    if operator.max_parallelism is not None:
        found.append(("key-groups", operator.max_parallelism, "by its key groups"))
    if operator.source_partitions is not None:
        found.append(("partitions", operator.source_partitions, "by its partitions"))
    return sorted(found, key=lambda limit: limit[1])
