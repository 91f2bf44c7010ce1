"""The topology as adjacency, made once for each observation: the contract's own look-ups walk all edges each time."""

from dataclasses import dataclass

from weir_contracts import Topology


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators in topological order; two edges between the same pair count as one."""

    names: tuple[str, ...]
    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, tuple[str, ...]]
    fed_by: dict[str, frozenset[str]]
    """The sources whose records reach an operator; of a source itself."""

    @property
    def sources(self) -> list[str]:
        """Operators without inputs."""
        return [name for name in self.names if not self.inputs[name]]

    @property
    def edges(self) -> list[tuple[str, str]]:
        """All edges, by target."""
        return [(source, target) for target in self.names for source in self.inputs[target]]


def graph_of(topology: Topology) -> Graph:
    """The adjacency of a topology."""
    names = tuple([operator.name for operator in topology.operators])
    inputs: dict[str, dict[str, None]] = {name: {} for name in names}
    outputs: dict[str, dict[str, None]] = {name: {} for name in names}
    for edge in topology.edges:
        inputs[edge.target][edge.source] = None
        outputs[edge.source][edge.target] = None
    fed_by: dict[str, frozenset[str]] = {}
    for name in names:
        fed_by[name] = frozenset().union(*(fed_by[each] for each in inputs[name])) or frozenset((name,))
    return Graph(
        names,
        {name: tuple(others) for name, others in inputs.items()},
        {name: tuple(others) for name, others in outputs.items()},
        fed_by,
    )
