"""The policy, as a user writes it: one document for the file, the REST body and the Kubernetes resource.

Policies use camelCase and durations such as `30s`; all other messages use snake_case with units in the names.
"""

from datetime import timedelta
from math import gcd
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AnyHttpUrl,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from .base import MAX_COUNT, Duration, Name, OperatorName, Parameters, Timestamp
from .deployment import Topology
from .document import Document, InvalidDocument, read_document
from .limits import Budget, ExcludedPeriod, TotalBounds

LONGEST_CALLER = 200
"""Characters of the name of who changes policies."""


class Metadata(Document):
    namespace: Name
    name: Name
    resource_version: Annotated[int | None, Field(default=None, ge=1, le=MAX_COUNT)] = None
    """Set by the knowledge service at each change; send it back to replace only what you have read. It grows with each change, and
    no version comes twice, also where a policy was deleted and created again."""
    updated_at: Timestamp | None = None
    updated_by: Annotated[str | None, Field(default=None, max_length=LONGEST_CALLER)] = None


class FlinkTarget(Document):
    """A job of a Flink session or application cluster, scaled through the adaptive scheduler."""

    url: AnyHttpUrl
    job: Annotated[str, Field(min_length=1, max_length=300)]
    """The job's name (found again after a resubmission) or its 32-digit id."""

    @field_validator("url")
    @classmethod
    def _no_credentials(cls, url: AnyHttpUrl) -> AnyHttpUrl:
        if url.username or url.password:
            raise ValueError("must not carry credentials: a policy is shown to everyone who may read")
        if url.query or url.fragment:
            raise ValueError("must not have a query or fragment")
        return url


class DockerTarget(FlinkTarget):
    """A job that takes every slot it finds (Flink in reactive mode), scaled by how many containers of a compose service run its
    TaskManagers: one parallelism for all operators."""

    project: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=100)]
    """The compose project; the executor must be allowed to touch it."""
    service: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$", max_length=100)]
    """The service whose containers are TaskManagers, all of them alike."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    """Slots of one container: its `taskmanager.numberOfTaskSlots`."""

    def containers_for(self, topology: Topology, parallelism: int) -> int:
        """The fewest containers with which every operator runs at `parallelism` or more, and all at the same.

        A slot sharing group takes as many slots as its parallelism; several share evenly what there is.
        """
        groups = topology.slots({})
        each = groups // gcd(groups, self.slots)
        needed = -(-parallelism * groups // self.slots)
        return -(-needed // each) * each

    def parallelism_of(self, topology: Topology, containers: int) -> int:
        """What the job runs at with so many containers, if its key groups allow."""
        return max(1, containers * self.slots // topology.slots({}))


class Target(Document):
    """Exactly one driver."""

    flink: FlinkTarget | None = None
    docker: DockerTarget | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.flink is None) == (self.docker is None):
            raise ValueError("name exactly one driver; this version knows: flink, docker")
        return self

    @property
    def driver(self) -> str:
        """The name of the driver that scales this application."""
        return "flink" if self.docker is None else "docker"

    @property
    def job(self) -> FlinkTarget:
        """The job that is watched, whatever scales it."""
        found = self.flink or self.docker
        if found is None:
            raise ValueError("target: names no job")
        return found


class KafkaSignals(Document):
    """Where the sources' partitions are: demand and lag come from the brokers at every scrape."""

    bootstrap_servers: Annotated[str, Field(pattern=r"^[^\s,/@]+:\d+(,[^\s,/@]+:\d+)*$", max_length=2000)]
    group_id: Annotated[str | None, Field(min_length=1, max_length=249)] = None
    """The consumer group whose committed offsets stand in where a source does not tell its own position."""
    topics: Annotated[list[Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]] | None, Field(max_length=100)] = (
        None
    )
    """The sources' topics; by default the ones that the sources themselves report."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"


class Signals(Document):
    kafka: KafkaSignals | None = None


class Objective(Document):
    """What the user wants: exactly one of the three."""

    max_lag: Duration | None = None
    """Bound on the age of the oldest unprocessed record."""
    max_latency: Duration | None = None
    """Bound on when a record appended now will be done (lag records ÷ processing rate)."""
    utilization: Annotated[float | None, Field(default=None, ge=0.01, le=1)] = None
    """Busy share to hold at the busiest operator."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [n for n in ("max_lag", "max_latency", "utilization") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of maxLag, maxLatency and utilization")
        for bound in (self.max_lag, self.max_latency):
            if bound is not None and bound < timedelta(seconds=1):
                raise ValueError("maxLag and maxLatency must be at least 1s")
        return self

    @property
    def bound_seconds(self) -> float | None:
        """The time bound in seconds, whichever of the two was given; None for a utilisation objective."""
        bound = self.max_lag if self.max_lag is not None else self.max_latency
        return None if bound is None else bound.total_seconds()


ParallelismBound = Annotated[int, Field(ge=1, le=32768)]


class OperatorBounds(Document):
    min: ParallelismBound | None = None
    max: ParallelismBound | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min must not be above max")
        return self


def _at_most_500(operators: Any) -> Any:
    """Counted before they are read: each wrong one is named, and a million of them would be a million sentences."""
    if isinstance(operators, dict) and len(operators) > 500:
        raise ValueError(f"has {len(operators)} operators, more than 500")
    return operators


class Bounds(Document):
    """Parallelism limits of every operator; `operators` narrows single ones by name, `total` all of them together."""

    min: ParallelismBound = 1
    max: ParallelismBound = 32
    total: TotalBounds | None = None
    operators: Annotated[dict[OperatorName, OperatorBounds], BeforeValidator(_at_most_500)] = Field(
        default_factory=dict, max_length=500
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError("min must not be above max")
        for name in self.operators:
            low, high = self.of(name)
            if low > high:
                raise ValueError(f"operators.{name}: min {low} is above max {high}")
        return self

    def of(self, operator: str) -> tuple[int, int]:
        """Smallest and largest allowed parallelism of `operator`."""
        own = self.operators.get(operator)
        if own is None:
            return self.min, self.max
        return (self.min if own.min is None else own.min, self.max if own.max is None else own.max)


class PlannerFallback(Document):
    """A planner that answers where the chosen one gives no usable answer. It starts without a memory each time."""

    name: Name
    parameters: Parameters = Field(default_factory=dict)


class PlannerChoice(Document):
    name: Name = "rate"
    parameters: Parameters = Field(default_factory=dict)
    """The planner's own settings; it publishes their schema and refuses what it does not know."""
    timeout: Duration = timedelta(seconds=2)
    """For the whole exchange with it; its fallback gets the same again."""
    fallback: PlannerFallback | None = None
    """Who decides where it is too slow, fails or answers nonsense; None: nobody, the application stays as it is."""


class ShadowChoice(PlannerChoice):
    """A planner that is asked and scored beside the chosen one, and never obeyed."""

    label: Name | None = None
    """What its scores are told by; by default the planner's name. With labels one planner can be tried with several parameters."""

    @property
    def called(self) -> str:
        """The label, or the planner's name."""
        return self.label or self.name


class Direction(Document):
    """How fast parallelism may move one way."""

    stabilization: Duration
    """A change must have been wanted for this long; the most cautious wish of that time wins."""
    max_step: Annotated[int | None, Field(default=None, ge=1, le=32768)] = None
    """Largest change of one operator in one action, in subtasks."""
    max_factor: Annotated[float | None, Field(default=None, gt=1, le=32768)] = None
    """Largest change of one operator in one action, as a ratio (2 allows doubling or halving)."""


class ScaleUp(Direction):
    stabilization: Duration = timedelta(0)
    ineffective_hold: Duration = timedelta(minutes=10)
    """How long an operator is not grown again whose last growth was measured to have brought next to nothing."""


class ScaleDown(Direction):
    stabilization: Duration = timedelta(minutes=2)
    collapse_hold: Duration = timedelta(minutes=10)
    """How long parallelism is kept after the input collapsed to next to nothing: more often an outage upstream, whose end
    brings everything at once, than the end of the load."""
    reversal_hold: Duration = timedelta(minutes=10)
    """How long an operator is not shrunk that has gone up, down and up again within half an hour."""


class Behavior(Document):
    scale_up: ScaleUp = Field(default_factory=ScaleUp)
    scale_down: ScaleDown = Field(default_factory=ScaleDown)
    cooldown: Duration = timedelta(seconds=60)
    """Quiet time after an action, and after a restart of any cause, before parallelism may go down; a scale-up waits only until
    the action is done."""
    tolerance: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """Share of its parallelism by which an operator has to change at least for an action to be worth it; an operator that is asked for
    more than it can do always grows."""
    max_actions_per_hour: Annotated[int | None, Field(ge=1, le=60)] = None
    """The last of them is kept for growth."""
    excluded_periods: Annotated[list[ExcludedPeriod], Field(max_length=50)] = Field(default_factory=list)
    """Times of quiet."""


class PolicySpec(Document):
    target: Target
    signals: Signals = Field(default_factory=Signals)
    objective: Objective
    bounds: Bounds = Field(default_factory=Bounds)
    budget: Budget = Field(default_factory=Budget)
    planner: PlannerChoice = Field(default_factory=PlannerChoice)
    shadows: Annotated[list[ShadowChoice], Field(max_length=5)] = Field(default_factory=list)
    """Planners that are run on a simulated copy of the application against the arrivals that really come, and scored; never executed."""
    behavior: Behavior = Field(default_factory=Behavior)
    interval: Duration = timedelta(seconds=5)
    """Time between two scrapes of this application."""
    mode: Literal["advise", "act", "paused"] = "advise"
    """A new policy advises; it acts only when told to."""

    @model_validator(mode="after")
    def _sane_times(self) -> Self:
        if not timedelta(seconds=1) <= self.interval <= timedelta(minutes=10):
            raise ValueError("interval must lie between 1s and 10m")
        if not timedelta(milliseconds=50) <= self.planner.timeout <= timedelta(seconds=60):
            raise ValueError("planner.timeout must lie between 50ms and 60s")
        return self

    @model_validator(mode="after")
    def _scaled_as_a_whole(self) -> Self:
        docker = self.target.docker
        if docker is None:
            return self
        if self.bounds.operators:
            raise ValueError(
                "bounds.operators: all operators of a docker target have the same parallelism: use bounds.min and bounds.max"
            )
        if self.bounds.max // docker.slots * docker.slots < self.bounds.min:
            raise ValueError(
                f"bounds: no whole number of containers of {docker.slots} slots gives {self.bounds.min} to {self.bounds.max}"
            )
        return self

    @model_validator(mode="after")
    def _shadows_can_be_told_apart(self) -> Self:
        taken = {self.planner.name: "the planner", "observed": "what really runs"}
        for i, shadow in enumerate(self.shadows):
            if shadow.called in taken:
                raise ValueError(
                    f"shadows.{i}: {shadow.called!r} is the name of {taken[shadow.called]} already: give it another label"
                )
            if not timedelta(milliseconds=50) <= shadow.timeout <= timedelta(seconds=60):
                raise ValueError(f"shadows.{i}.timeout must lie between 50ms and 60s")
            taken[shadow.called] = "another shadow"
        return self


class ScalingPolicy(Document):
    """What to hold, for which application, and how far Weir may go."""

    api_version: Literal["weir.dev/v1alpha1"]
    kind: Literal["ScalingPolicy"]
    metadata: Metadata
    spec: PolicySpec

    @property
    def application(self) -> str:
        """`namespace/name`, the key of every topic."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def to_document(self) -> dict[str, Any]:
        """The policy as a user would write it, unset fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class InvalidPolicy(InvalidDocument):
    """A policy that cannot be used; fields are named as the user wrote them."""


def parse_policy(document: Any) -> ScalingPolicy:
    """Read a document at the users' border, where an unknown field is a mistake and not a newer version.

    Raises `InvalidPolicy` that names the first wrong fields and counts the others.
    """
    policy = read_document(ScalingPolicy, document, root="policy", refusal=InvalidPolicy, by_name=False)
    if contradictions := _contradictions(policy.spec):
        raise InvalidPolicy(contradictions)
    return policy


def _contradictions(spec: PolicySpec) -> list[tuple[str, str]]:
    """Limits that no application could keep, whatever its graph, and addresses that nothing can have. Looked for only where policies
    are written: one that was stored before is to stay readable."""
    least, total, limit = spec.bounds.min, spec.bounds.total, spec.budget.limit
    found = []
    if spec.target.job.url.port == 0:
        found.append((f"spec.target.{spec.target.driver}.url", "its port must lie between 1 and 65535"))
    for broker in spec.signals.kafka.bootstrap_servers.split(",") if spec.signals.kafka else ():
        if not broker.isprintable() or not 1 <= int(broker.rpartition(":")[2][:6]) <= 65_535:
            what = f"{broker[:100]!r} must be host:port with a port between 1 and 65535"
            found.append(("spec.signals.kafka.bootstrapServers", what))
    if total is not None and total.max is not None and total.max < least:
        found.append(
            ("spec.bounds.total.max", f"{total.max} for all operators together is below bounds.min, {least} for each")
        )
    if limit is not None and limit[0] < least:
        found.append(
            ("spec.budget", f"its {limit[1]} pays for {limit[0]} slots, and bounds.min wants {least} for each operator")
        )
    return found
