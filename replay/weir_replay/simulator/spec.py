"""Application and cluster as frozen values, read from a file; README.md has an example.

Times in seconds, rates in records/s, sizes in bytes. An error names the wrong field.
"""

from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from weir_contracts import Edge, InvalidDocument, Operator, Topology, read_document
from weir_contracts.base import OperatorName

Seconds = Annotated[float, Field(ge=0, le=31_536_000)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Subtasks = Annotated[int, Field(ge=1, le=32_768)]


class InvalidApplication(ValueError):
    """The application cannot be simulated; the sentence names file and field."""


class Spec(BaseModel):
    """Frozen model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Partitioned(Spec):
    """Topic with a load."""

    topic: str
    partitions: Annotated[int, Field(ge=1, le=10_000)] = 12
    share: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Share of the load: 0.5 is half of the simulation's records/s."""
    weights: tuple[Positive, ...] | None = None
    """Weight of each partition in the producers' distribution; None: even."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.weights is not None and len(self.weights) != self.partitions:
            raise ValueError(f"weights: {len(self.weights)} of them for {self.partitions} partitions")
        return self

    def shares(self) -> list[float]:
        """Return the share of the records that each partition gets."""
        weights = self.weights or (1.0,) * self.partitions
        total = sum(weights)
        return [weight / total for weight in weights]


class SourceSpec(Partitioned):
    """Topic that a source reads."""

    topic: Annotated[str, Field(min_length=1, max_length=249)]
    fetch_records: Positive = 5000.0
    """Most records that a fetch returns of one partition: max.partition.fetch.bytes (1 MiB) over a record's size."""


class OperatorSpec(Spec):
    """One operator: cost of a record, capacity curve, output."""

    name: OperatorName
    service_seconds: Annotated[float, Field(gt=0, le=3600)]
    """Seconds per record of a single warm subtask."""
    contention: Annotated[float, Field(ge=0, le=10)] = 0.0
    """σ of C(p) = p / (service · (1 + σ·(p − 1) + κ·p·(p − 1))), the universal scalability law (Gunther 1993)."""
    coherence: Annotated[float, Field(ge=0, le=10)] = 0.0
    """κ of the same: above 0 there is a parallelism beyond which more subtasks do less."""
    limit_per_second: Positive | None = None
    """Records/s of all subtasks together at any parallelism: the limit of a database behind the operator."""
    selectivity: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    """Records out, on each edge, per record in."""
    selectivity_over_time: tuple[tuple[Seconds, Annotated[float, Field(ge=0, le=1e6)]], ...] = ()
    """(second, selectivity) points with straight lines between them; instead of `selectivity`."""
    hot_key_share: Share = 0.0
    """Share of the records with the most frequent key; the others are spread evenly over the key groups."""
    keys: Annotated[int, Field(ge=1)] | None = None
    """Number of equally frequent keys: a few thousand fall unevenly on the subtasks. None: enough to fall evenly."""
    max_parallelism: Subtasks = 120
    """Key groups of a keyed operator."""
    parallelism: Subtasks = 1
    """Initial parallelism."""
    queue_records: Positive = 250.0
    """Capacity of the queue of each subtask."""
    state_bytes: Annotated[float, Field(ge=0)] = 0.0
    window_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Length of a tumbling window of processing time; its output is emitted when it ends."""
    window_keys: Positive | None = None
    """Number of keys K: a window of n records emits one record per key, K·(1 − e^(−n/K)). None: n · selectivity."""
    slot_sharing_group: str = "default"
    source: SourceSpec | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        times = [second for second, _ in self.selectivity_over_time]
        if any(b <= a for a, b in pairwise(times)):
            raise ValueError("selectivity_over_time: seconds must increase")
        if self.parallelism > self.max_parallelism:
            raise ValueError(f"parallelism: {self.parallelism} is above max_parallelism {self.max_parallelism}")
        if self.window_keys is not None and self.window_seconds is None:
            raise ValueError("window_keys: is of a window, and there is no window_seconds")
        if self.source is not None and self.window_seconds is not None:
            raise ValueError("window_seconds: a source has no window")
        return self

    def selectivity_at(self, seconds: float) -> float:
        """Return the records out per record in at `seconds`."""
        points = self.selectivity_over_time
        if not points:
            return self.selectivity
        if seconds <= points[0][0]:
            return points[0][1]
        for (t0, low), (t1, high) in pairwise(points):
            if seconds <= t1:
                return low + (high - low) * (seconds - t0) / (t1 - t0)
        return points[-1][1]


S = TypeVar("S", bound=Spec)


class Link(Spec):
    """An edge of the graph."""

    source: OperatorName
    target: OperatorName
    ship: Literal["forward", "hash", "rebalance"] = "rebalance"
    share: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Share of the source operator's output: 1 is all of it, 0.5 half."""


class Cluster(Spec):
    """Cluster: slots, checkpoints, and the duration of a restart."""

    slots: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    checkpoint_interval_seconds: Annotated[float, Field(ge=0.01, le=86_400)] | None = 10.0
    """None: no checkpoints; offsets are then never committed, and a restart resumes where the job stopped."""
    checkpoint_seconds: Seconds = 0.2
    """Minimum duration of a checkpoint; writing state and passing the queues is added (aligned barriers)."""
    restart_seconds: Seconds = 2.0
    """Seconds from cancelling to running, without state."""
    bytes_per_second: Positive = 100e6
    """Rate of one subtask for writing and restoring state."""
    warm_up_seconds: Seconds = 8.0
    """Seconds until a started JVM reaches full speed."""
    cold_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of full speed at the start; rises linearly."""
    cooldown_seconds: Seconds = 1.0
    """Minimum time between rescales (jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling)."""
    stabilization_seconds: Seconds = 1.0
    """Wait for missing slots."""
    new_slot_seconds: Seconds = 0.0
    """Seconds from a request for more slots than the job holds until all of them have come (pods that start, nodes that
    are added); until then the job runs on as it is. Slots that are given back are gone. `stabilization_seconds` has to be
    as long: an engine that waits less takes what there is."""
    max_trigger_delay_seconds: Seconds | None = None
    """Longest wait of a rescale for a checkpoint; None: three checkpoint intervals."""

    @model_validator(mode="after")
    def _waits_for_new_slots(self) -> Self:
        if self.new_slot_seconds > self.stabilization_seconds and self.new_slot_seconds > 0:
            raise ValueError(
                f"new_slot_seconds: {self.new_slot_seconds:g} is longer than stabilization_seconds "
                f"{self.stabilization_seconds:g}"
            )
        return self

    @property
    def trigger_delay_seconds(self) -> float:
        """Seconds a rescale waits for a checkpoint before it proceeds without."""
        if self.max_trigger_delay_seconds is not None:
            return self.max_trigger_delay_seconds
        return 3 * (self.checkpoint_interval_seconds or 0.0)


class Application(Spec):
    """Graph of a job: operators in topological order, sources first."""

    name: Annotated[str, Field(min_length=1, max_length=300)] = "orders"
    operators: Annotated[tuple[OperatorSpec, ...], Field(min_length=1, max_length=1000)]
    links: Annotated[tuple[Link, ...], Field(max_length=5000)] = ()
    cluster: Cluster = Cluster()

    @model_validator(mode="after")
    def _check_graph(self) -> Self:
        _check_links(self.operators, self.links)
        topology = self.topology()  # checks names
        fed = {link.target for link in self.links}
        for i, operator in enumerate(self.operators):
            if operator.source is None and operator.name not in fed:
                raise ValueError(f"operators.{i}.source: {operator.name!r} has no input, so it needs a topic to read")
            if operator.source is not None and operator.name in fed:
                raise ValueError(f"operators.{i}.source: {operator.name!r} has an input, so it cannot be a source")
        pairs = {(link.source, link.target) for link in self.links}
        if len(pairs) != len(self.links):
            raise ValueError("links: two of them join the same operators")
        slots = topology.slots(self.parallelism)
        if slots > self.cluster.slots:
            raise ValueError(f"cluster.slots: the application starts with {slots} and there are {self.cluster.slots}")
        return self

    @property
    def parallelism(self) -> dict[str, int]:
        """Initial parallelism by operator."""
        return {operator.name: operator.parallelism for operator in self.operators}

    @property
    def input_share(self) -> float:
        """Records that are appended to all topics per record of the load."""
        return sum(operator.source.share for operator in self.operators if operator.source)

    def started_with(self, parallelism: int | Mapping[str, int]) -> "Application":
        """Return the application with another initial parallelism of all, or of the named, operators."""
        given = parallelism if isinstance(parallelism, Mapping) else dict.fromkeys(self.parallelism, parallelism)
        operators = [o.model_copy(update={"parallelism": given.get(o.name, o.parallelism)}) for o in self.operators]
        return parse({**self.model_dump(), "operators": [o.model_dump() for o in operators]}, "parallelism")

    def on(self, **cluster: Any) -> "Application":
        """Return the application on a cluster that differs in the given fields."""
        return parse({**self.model_dump(), "cluster": {**self.cluster.model_dump(), **cluster}}, "cluster")

    def topology(self) -> Topology:
        """Return the graph as the monitor publishes it."""
        return Topology(
            operators=[
                Operator(
                    name=o.name,
                    id=f"v{i:031x}",
                    max_parallelism=o.max_parallelism,
                    slot_sharing_group=o.slot_sharing_group,
                    source_partitions=o.source.partitions if o.source else None,
                )
                for i, o in enumerate(self.operators)
            ],
            edges=[Edge(source=k.source, target=k.target, ship_strategy=k.ship.upper()) for k in self.links],
        )


def _check_links(operators: Sequence[OperatorSpec], links: Sequence[Link]) -> None:
    """Raise `ValueError` for a link to an unknown operator or a cycle; it names the link's index."""
    position = {operator.name: i for i, operator in enumerate(operators)}
    if len(position) < len(operators):
        return  # the topology raises for that
    inputs: dict[str, list[str]] = {}
    for i, link in enumerate(links):
        for field, name in (("source", link.source), ("target", link.target)):
            if name not in position:
                raise ValueError(f"links.{i}.{field}: unknown operator {name!r}")
        inputs.setdefault(link.target, []).append(link.source)
    try:
        TopologicalSorter(inputs).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        steps = set(pairwise(cycle))
        last = max(i for i, link in enumerate(links) if (link.source, link.target) in steps)
        raise ValueError(f"links.{last}: closes a cycle: {' → '.join(cycle)}") from None
    for i, link in enumerate(links):
        if position[link.source] > position[link.target]:
            raise ValueError(
                f"links.{i}: {link.source!r} is listed after {link.target!r}: operators must be listed in topological order, sources first"
            )


def parse(document: Any, place: str = "application") -> Application:
    """Read an application strictly. Raises `InvalidApplication` that names `place` and the first wrong fields."""
    return parse_as(Application, document, place)


def parse_as(kind: type[S], document: Any, place: str) -> S:
    """Read a model strictly. Raises `InvalidApplication` that names `place` and the first wrong fields."""
    try:
        return read_document(kind, document, root="")
    except InvalidDocument as error:
        raise InvalidApplication(f"{place}: {error}") from None


PRESETS: Mapping[str, Callable[[int], Application]] = {
    name: parse(document, name).started_with
    for name, document in yaml.safe_load(Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")).items()
}
"""Ready-made applications by the names of `weir replay --topology`, for a parallelism."""
chain, diamond, two_sources = (PRESETS[name] for name in ("chain", "diamond", "two-sources"))
