"""Useful parallelisms of an operator."""

import math

from weir_contracts import Topology


def smallest_useful(topology: Topology, name: str, p: int) -> int:
    """Return the smallest parallelism of an operator that is as good as `p`: a source has at most as many busy subtasks as partitions,
    and of those with the same largest share of key groups or partitions the smallest will do (with G of them, q with ⌈G/q⌉ = ⌈G/p⌉)."""
    operator = topology.operator(name)
    units = operator.source_partitions or (operator.max_parallelism if topology.is_keyed(name) else None)
    if units is None:
        return p if operator.max_parallelism is None else min(p, operator.max_parallelism)
    return math.ceil(units / math.ceil(units / min(p, units)))
