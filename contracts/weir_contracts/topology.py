"""Graph of an application: operators and the streams between them, and which parallelism of an operator is useful."""

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from .base import MAX_COUNT, Message, OperatorName, Parallelism

if TYPE_CHECKING:
    from .policy_behavior import Bounds


def even_subtasks(parallelism: int, shares: int | None) -> float:
    """Return the number of equally loaded subtasks that do as much as `parallelism`.

    Work that comes in indivisible shares is not divided evenly: the busiest of p subtasks has ⌈shares / p⌉ of them, and
    saturates first. None: the work is divided evenly.
    """
    if shares is None or parallelism <= 0:
        return parallelism
    return shares / -(-shares // parallelism)


def parallelism_for(subtasks: float, shares: int | None) -> int | None:
    """Return the smallest parallelism that does as much as `subtasks` equally loaded ones; None if they are more than the
    indivisible shares."""
    if shares is None:
        return math.ceil(subtasks - 1e-9)
    largest_share = math.floor(shares / max(1.0, subtasks) + 1e-9)
    return None if largest_share < 1 else -(-shares // largest_share)


class OperatorLimits(NamedTuple):
    """Minimum and maximum parallelism of an operator: 1 ≤ min ≤ max ≤ max_allowed ≤ key groups."""

    min: int
    """Minimum of the policy, at most the key groups. It applies even to a source with fewer partitions."""
    max: int
    """Minimum of the policy's maximum, key groups and partitions: more subtasks would be idle."""
    max_allowed: int
    """Minimum of the policy's maximum and key groups: may be requested, even if subtasks of a source are idle."""


class Operator(Message):
    """Node of the graph that is scaled as one unit (a Flink vertex)."""

    name: OperatorName
    id: Annotated[str, Field(max_length=200)]
    """Id of the operator in its engine (a Flink vertex id). It changes with the graph; the name does not."""
    max_parallelism: Annotated[int | None, Field(default=None, ge=1, le=MAX_COUNT)] = None
    """Number of key groups: the maximum parallelism. None: unknown."""
    slot_sharing_group: Annotated[str | None, Field(max_length=200)] = None
    """Id of the group of operators whose subtasks share slots. None: unknown."""
    source_partitions: Annotated[int | None, Field(ge=1, le=MAX_COUNT)] = None
    """Number of indivisible shares of a source's work: partitions, shards, or tasks of Kafka Streams; further subtasks
    are idle. None: not a source, or unknown."""
    has_broker_offsets: bool | None = None
    """Whether the brokers of `signals.kafka` may know the partitions; False for those of another system, such as shards of
    Kinesis. None: unknown."""


class Edge(Message):
    """Stream of records from one operator to another."""

    source: OperatorName
    target: OperatorName
    ship_strategy: Annotated[str, Field(max_length=100)] = "UNKNOWN"
    """Partitioning of the stream: HASH (keyed), REBALANCE, FORWARD, RESCALE, BROADCAST or another of the engine's."""


class Topology(Message):
    """Directed acyclic graph of operators."""

    operators: Annotated[list[Operator], Field(min_length=1, max_length=1000)]
    """Operators in topological order, sources first; names are unique."""
    edges: Annotated[list[Edge], Field(max_length=5000)] = Field(default_factory=list)
    """Edges between operators of `operators`."""

    @model_validator(mode="after")
    def _acyclic_and_ordered(self) -> Self:
        position = {operator.name: i for i, operator in enumerate(self.operators)}
        if len(position) != len(self.operators):
            raise ValueError("operators: names must be unique")
        for i, edge in enumerate(self.edges):
            for end in (edge.source, edge.target):
                if end not in position:
                    raise ValueError(f"edges.{i}: unknown operator {end!r}")
            if position[edge.source] >= position[edge.target]:
                raise ValueError(f"edges.{i}: operators must be listed in topological order, sources first")
        return self

    @cached_property
    def names(self) -> list[str]:
        """Operator names in topological order."""
        return [operator.name for operator in self.operators]

    @cached_property
    def sources(self) -> list[str]:
        """Names of the operators without inputs."""
        return [name for name in self.names if name not in self._inputs]

    @cached_property
    def _by_name(self) -> Mapping[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def _inputs(self) -> Mapping[str, list[str]]:
        found: dict[str, dict[str, None]] = {}
        for edge in self.edges:
            found.setdefault(edge.target, {})[edge.source] = None
        return {name: list(inputs) for name, inputs in found.items()}

    @cached_property
    def _keyed(self) -> frozenset[str]:
        return frozenset(edge.target for edge in self.edges if edge.ship_strategy.upper() == "HASH")

    @cached_property
    def _sharing(self) -> list[list[str]]:
        """Names of the operators of each slot sharing group."""
        found: dict[str | None, list[str]] = {}
        for operator in self.operators:
            found.setdefault(operator.slot_sharing_group, []).append(operator.name)
        return list(found.values())

    def operator(self, name: str) -> Operator:
        """Return the operator `name`; `KeyError` if there is none."""
        return self._by_name[name]

    def slots(self, parallelism: Mapping[str, int]) -> int:
        """Return the slots that a vector takes: the sum over slot sharing groups of their maximum parallelism.

        An operator without an entry counts as 1.
        """
        return sum([max([parallelism.get(name, 1) for name in names]) for names in self._sharing])

    def uniform(self, parallelism: int) -> Parallelism:
        """Return the vector of every operator at `parallelism`, at most its key groups."""
        return {o.name: min(parallelism, o.max_parallelism or parallelism) for o in self.operators}

    def limits(self, bounds: "Bounds") -> dict[str, OperatorLimits]:
        """Return the limits of each operator by a policy's bounds, its key groups and its partitions."""
        found, own, common = {}, bounds.operators, (bounds.min, bounds.max)
        for operator in self.operators:
            name = operator.name
            low, high = bounds.of(name) if name in own else common
            groups, partitions = operator.max_parallelism, operator.source_partitions
            if groups is not None and groups < high:
                low, high = min(low, groups), groups
            useful = high if partitions is None or partitions >= high else max(low, partitions)
            found[name] = OperatorLimits(low, useful, high)
        return found

    def work_shares(self, name: str) -> int | None:
        """Return the number of indivisible shares of an operator's work: partitions or tasks of a source, key groups of a
        keyed operator. None: it is divided evenly, or that is unknown."""
        operator = self._by_name.get(name)
        if operator is None:
            return None
        return operator.source_partitions or (operator.max_parallelism if name in self._keyed else None)

    def even_subtasks(self, name: str, p: int) -> float:
        """Return the number of equally loaded subtasks of an operator that do as much as `p`."""
        return even_subtasks(p, self.work_shares(name))

    def smallest_useful(self, name: str, p: int) -> int:
        """Return the smallest parallelism of an operator that is as good as `p`.

        A source has at most as many busy subtasks as partitions. Partitions and key groups are not divided: of
        parallelisms with the same largest share the smallest will do (with G of them, q with ⌈G/q⌉ = ⌈G/p⌉).
        """
        groups, shares = self._by_name[name].max_parallelism, self.work_shares(name)
        if shares is None:
            return p if groups is None else min(p, groups)
        return math.ceil(even_subtasks(p, shares))

    def next_useful(self, name: str, p: int) -> int:
        """Return `p` if no smaller parallelism of the operator is as good, else the next one that does more, or the one
        beyond which none does."""
        shares, useful = self.work_shares(name), self.smallest_useful(name, p)
        if shares is None or useful >= p:
            return useful
        return -(-shares // max(1, -(-shares // p) - 1))

    def inputs(self, name: str) -> list[str]:
        """Return the direct upstream operators of `name`, each once."""
        return list(self._inputs.get(name, ()))

    def outputs(self, name: str) -> list[str]:
        """Return the direct downstream operators of `name`, each once."""
        return list(dict.fromkeys(edge.target for edge in self.edges if edge.source == name))

    def is_keyed(self, name: str) -> bool:
        """Return whether an input of `name` is partitioned by key, so that key groups limit its parallelism."""
        return name in self._keyed

    def graph_hash(self) -> str:
        """Return a hash of names and edges; parallelism and ids of the engine do not change it."""
        text = "\n".join([*self.names, *(f"{e.source}\t{e.target}" for e in self.edges)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
