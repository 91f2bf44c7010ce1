"""The application as it stands: its graph, its run and its deployment.

A *run* separates readings (windows never span two). A *deployment* is what a plan is made for: a crash-looping job has
many runs and one deployment, so it can still be scaled. Requested and observed parallelism are two facts.
"""

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from .base import MAX_COUNT, Count, Message, NonNegative, OperatorName, Parallelism, Seconds, Timestamp

if TYPE_CHECKING:
    from .policy import Bounds


class OperatorLimits(NamedTuple):
    """Smallest and largest parallelism of an operator: 1 ≤ min ≤ max ≤ max_allowed ≤ key groups."""

    min: int
    """The policy's minimum, as far as the key groups allow. It counts even where a source has fewer partitions."""
    max: int
    """The policy's maximum, the key groups or the partitions, whichever is smallest: more subtasks would be idle."""
    max_allowed: int
    """The policy's maximum or the key groups: what may be requested, idle subtasks of a source included."""


class Operator(Message):
    """One node of the graph: the unit that has a parallelism (a Flink vertex)."""

    name: OperatorName
    id: Annotated[str, Field(max_length=200)]
    """The engine's own id (a Flink vertex id); changes when the graph changes, the name does not."""
    max_parallelism: Annotated[int | None, Field(default=None, ge=1, le=MAX_COUNT)] = None
    """Key groups: parallelism cannot go above; balance depends on it."""
    slot_sharing_group: Annotated[str | None, Field(max_length=200)] = None
    source_partitions: Annotated[int | None, Field(ge=1, le=MAX_COUNT)] = None
    """Partitions a source reads; more subtasks than that stay idle. None: no source, or unknown."""


class Edge(Message):
    source: OperatorName
    target: OperatorName
    ship_strategy: Annotated[str, Field(max_length=100)] = "UNKNOWN"
    """HASH (keyed), REBALANCE, FORWARD, RESCALE, BROADCAST, …"""


class Topology(Message):
    """A directed acyclic graph of operators, in topological order, sources first."""

    operators: Annotated[list[Operator], Field(min_length=1, max_length=1000)]
    edges: Annotated[list[Edge], Field(max_length=5000)] = Field(default_factory=list)

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
        """Operators without inputs."""
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

    def operator(self, name: str) -> Operator:
        """The operator called `name`; `KeyError` if there is none."""
        return self._by_name[name]

    def slots(self, parallelism: Mapping[str, int]) -> int:
        """Σ over slot sharing groups of their largest parallelism: the slots that it takes. An operator left out counts 1."""
        groups: dict[str | None, int] = {}
        for operator in self.operators:
            key, p = operator.slot_sharing_group, parallelism.get(operator.name, 1)
            if p > groups.get(key, 0):
                groups[key] = p
        return sum(groups.values())

    def uniform(self, parallelism: int) -> Parallelism:
        """Every operator at `parallelism`, or at what its key groups allow."""
        return {o.name: min(parallelism, o.max_parallelism or parallelism) for o in self.operators}

    def limits(self, bounds: "Bounds") -> dict[str, OperatorLimits]:
        """Return the limits of each operator by a policy's bounds, its key groups and its partitions."""
        found = {}
        for operator in self.operators:
            low, high = bounds.of(operator.name)
            groups, partitions = operator.max_parallelism, operator.source_partitions
            if groups is not None and groups < high:
                low, high = min(low, groups), groups
            useful = high if partitions is None or partitions >= high else max(low, partitions)
            found[operator.name] = OperatorLimits(low, useful, high)
        return found

    def smallest_useful(self, name: str, p: int) -> int:
        """Return the smallest parallelism of an operator that is as good as `p`.

        A source has at most as many busy subtasks as partitions. Partitions and key groups are not divided: of parallelisms with the
        same largest share the smallest will do (with G of them, q with ⌈G/q⌉ = ⌈G/p⌉).
        """
        operator = self._by_name[name]
        groups = operator.max_parallelism
        units = operator.source_partitions or (groups if name in self._keyed else None)
        if units is None:
            return p if groups is None else min(p, groups)
        return math.ceil(units / math.ceil(units / min(p, units)))

    def inputs(self, name: str) -> list[str]:
        """Operators that feed `name`, each once."""
        return list(self._inputs.get(name, ()))

    def outputs(self, name: str) -> list[str]:
        """Operators that `name` feeds, each once."""
        return list(dict.fromkeys(edge.target for edge in self.edges if edge.source == name))

    def is_keyed(self, name: str) -> bool:
        """Whether an input of `name` is partitioned by key, so that key groups bind its parallelism."""
        return name in self._keyed

    def graph_hash(self) -> str:
        """Identifies the graph by names and edges; parallelism and engine ids do not count."""
        text = "\n".join([*self.names, *(f"{e.source}\t{e.target}" for e in self.edges)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Run(Message):
    """One uninterrupted execution: readings of two runs are never subtracted from each other."""

    key: Annotated[str | None, Field(max_length=200)] = None
    """Identifies the run for as long as it lives, also to a restarted monitor. None: told apart by the other fields."""
    attempt: Count | None = None
    running_since: Timestamp

    def is_same(self, other: "Run") -> bool:
        """Return whether both are readings of one run."""
        if self.key is not None and other.key is not None:
            return self.key == other.key
        return (self.attempt, self.running_since) == (other.attempt, other.running_since)


class Slots(Message):
    total: Count
    available: Count
    """Free now; a rescale of this application may use these and the ones it holds already."""


class Checkpoints(Message):
    interval_seconds: Seconds | None = None
    """None: checkpointing is off or unknown."""
    last_completed_at: Timestamp | None = None
    last_duration_seconds: Seconds | None = None
    completed: Count | None = None
    failed: Count | None = None


class RescaleSettings(Message):
    """The cluster's own timings, from which deadlines are made (seconds)."""

    scheduler: Annotated[str | None, Field(max_length=50)] = None
    """`adaptive` can rescale in place; anything else cannot. None: unknown."""
    cooldown_seconds: Seconds | None = None
    stabilization_seconds: Seconds | None = None
    max_trigger_delay_seconds: Seconds | None = None


class Pod(Message):
    """A replica of the deployment, for planners that look at readiness or resources."""

    name: Annotated[str, Field(max_length=253)]
    ready: bool | None = None
    started_at: Timestamp | None = None
    cpu_cores: NonNegative | None = None
    cpu_request_cores: NonNegative | None = None
    memory_bytes: Count | None = None


class DeploymentRef(Message):
    """What a plan is made for. A plan for another deployment is refused."""

    job_id: Annotated[str, Field(max_length=200)]
    graph_hash: Annotated[str, Field(max_length=64)]
    requested: Parallelism | None = None
    observed: Parallelism


Health = Literal["running", "restarting", "failed", "ended"]
"""State of a deployment in the words of every engine. `failed` and `ended` are final; `restarting` includes the first start."""


class Deployment(Message):
    """The application's state at one instant."""

    engine: Annotated[str, Field(max_length=50)] = "flink"
    """What runs it: flink."""
    health: Health | None = None
    """None: unknown."""
    job_id: Annotated[str, Field(max_length=200)]
    job_name: Annotated[str, Field(max_length=300)]
    graph_hash: Annotated[str, Field(max_length=64)]
    state: Annotated[str, Field(max_length=50)]
    """As the engine names it, for people; programs use `health`."""
    started_at: Timestamp | None = None
    requested: Parallelism | None = None
    """What the engine has been asked for; None where it cannot tell."""
    requested_lower: Parallelism | None = None
    """The least the engine was asked to start with."""
    observed: Parallelism
    """What is running."""
    slots: Slots | None = None
    restarts: Count | None = None
    """Restarts since the job's start, rescales included, as the engine counts them."""
    checkpoints: Checkpoints | None = None
    rescale: RescaleSettings = Field(default_factory=RescaleSettings)
    replicas: Count | None = None
    pods: Annotated[list[Pod], Field(max_length=1000)] = Field(default_factory=list)

    @property
    def is_final(self) -> bool:
        """Whether it will not run again by itself."""
        return self.health in ("failed", "ended")

    def ref(self) -> DeploymentRef:
        """The part of the state that names which deployment this is."""
        return DeploymentRef(
            job_id=self.job_id, graph_hash=self.graph_hash, requested=self.requested, observed=self.observed
        )
