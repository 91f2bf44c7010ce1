"""The built-in planner `keda-kafka`: KEDA's trigger `kafka`, and the HorizontalPodAutoscaler that it feeds.

After KEDA 2.20 (`pkg/scalers/kafka_scaler.go`, `pkg/scaling/executor`). Per partition, in this order:

    no committed offset, latest             1   (0 with scaleToZeroOnInvalidOffset)
    no committed offset, earliest           the log's end   (0 with scaleToZeroOnInvalidOffset)
    excludePersistentLag, nothing committed since the last query     0, but for activation end - committed
    else                                    end - committed

    total = sum of lag;   unless idle consumers are allowed, at most as many replicas as there are partitions (or, with
    limitToPartitionsWithLag, partitions with lag):   if total // lagThreshold > bound: total = bound · lagThreshold
    ensureEvenDistributionOfPartitions:   total = f · lagThreshold, f the smallest divisor of the partitions with f ·
    lagThreshold >= total

The total goes to the autoscaler as an external metric with target AverageValue lagThreshold: `ceil(total /
lagThreshold)`, tolerance 0.1, `behavior`. Its traps are kept, too: the integer division lets totals below (bound + 1) ·
lagThreshold pass.

Active is a group whose lag for activation is above activationLagThreshold. An inactive one goes to 0 after the cooldown
if minReplicaCount is 0; an application here never does: that is reported as infeasible, and the minimum is requested.

Mapping: offsets are the newest observation's, at the policy's isolation level (KEDA reads the high watermark,
uncommitted); the last query is the newest observation that is at least `pollingInterval` older; the group is the
policy's `signals.kafka.groupId`. The workload is the application, with its largest parallelism, or each source
(`scope`). `minReplicaCount` and `maxReplicaCount` are the policy's bounds unless they are set. A failed query holds;
KEDA's `fallback` is the policy's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator

from weir_contracts import Infeasible, Observation, PlanReply
from weir_contracts.observation import PartitionReading
from weir_contracts.planning import Number
from weir_sdk import Request, planner

from .autoscaling import v2
from .autoscaling.decisions import Decision, answer, decide, narrowed
from .autoscaling.records import Workloads
from .hpa import Autoscaler, HpaBehavior

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class KedaKafkaParameters(Autoscaler):
    """Parameters of the planner, written as in the trigger and the ScaledObject."""

    behavior: HpaBehavior | None = Field(default=None, description="advanced.horizontalPodAutoscalerConfig.behavior")
    scope: Literal["application", "sources"] = Field(
        default="application", description="one workload for all operators, or one for each source"
    )
    topic: str | None = Field(
        default=None, min_length=1, max_length=249, description="topic to read; by default all topics of the group"
    )
    lag_threshold: int = Field(default=10, gt=0, le=10**15, description="target lag per replica, in records")
    activation_lag_threshold: int = Field(
        default=0, ge=0, le=10**15, description="lag above which the workload is active, in records"
    )
    offset_reset_policy: Literal["latest", "earliest"] = Field(
        default="latest",
        description="lag of a partition without a commit: latest counts 1 record, earliest all records of the log",
    )
    allow_idle_consumers: bool = Field(default=False, description="allow more replicas than partitions")
    scale_to_zero_on_invalid_offset: bool = Field(
        default=False, description="count no lag for a partition without a commit"
    )
    exclude_persistent_lag: bool = Field(
        default=False, description="ignore partitions whose committed offset does not move"
    )
    limit_to_partitions_with_lag: bool = Field(
        default=False, description="at most as many replicas as partitions with lag; needs a topic"
    )
    ensure_even_distribution_of_partitions: bool = Field(
        default=False, description="as many replicas as divide the partitions evenly; needs a topic"
    )
    partition_limitation: str | None = Field(
        default=None, max_length=1000, description="partitions to read, such as 1,2,10-12; ignored without a topic"
    )
    polling_interval: int = Field(default=15, ge=1, le=3600, description="time between two queries, in s")
    cooldown_period: int = Field(
        default=300, ge=0, le=86_400, description="time without activity before scaling to zero, in s"
    )
    initial_cooldown_period: int = Field(
        default=0, ge=0, le=86_400, description="the same for a workload that has never been active, in s"
    )
    min_replica_count: int | None = Field(default=None, ge=0, le=32768, description="by default the policy's bound")
    max_replica_count: int | None = Field(default=None, ge=1, le=32768, description="by default the policy's bound")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        limited = [
            name
            for name, given in (
                ("limitToPartitionsWithLag", self.limit_to_partitions_with_lag),
                ("ensureEvenDistributionOfPartitions", self.ensure_even_distribution_of_partitions),
            )
            if given
        ]
        if limited and self.topic is None:
            raise ValueError(f"{limited[0]}: needs topic")
        if self.limit_to_partitions_with_lag and (
            self.allow_idle_consumers or self.ensure_even_distribution_of_partitions
        ):
            raise ValueError(
                "limitToPartitionsWithLag: excludes allowIdleConsumers and ensureEvenDistributionOfPartitions"
            )
        low, high = self.min_replica_count, self.max_replica_count
        if low is not None and high is not None and low > high:
            raise ValueError("minReplicaCount: is above maxReplicaCount")
        self.numbers()
        return self

    def numbers(self) -> frozenset[int] | None:
        """The partitions that `partitionLimitation` names; None: all."""
        if not self.partition_limitation:
            return None
        numbers: set[int] = set()
        for part in self.partition_limitation.split(","):
            found = _RANGE.fullmatch(part.strip())
            low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if low > high or high - low > 100_000:
                raise ValueError(f"partitionLimitation: {part.strip()!r} is neither a number nor a range such as 10-12")
            numbers.update(range(low, high + 1))
        return frozenset(numbers)


@dataclass(frozen=True)
class Partition:
    """One partition's offsets. `committed` None: the group has none; `before`: what it had at the last query."""

    committed: int | None
    end: int | None
    before: int | None = None


def lag_of(partition: Partition, parameters: KedaKafkaParameters) -> tuple[int, int]:
    """Records that wait, for scaling and for activation. May be negative, as there."""
    committed, end = partition.committed, partition.end
    if committed is None and parameters.offset_reset_policy == "latest":
        lag = 0 if parameters.scale_to_zero_on_invalid_offset else 1
        return lag, lag
    if end is None or (committed is None and parameters.scale_to_zero_on_invalid_offset):
        return 0, 0
    if committed is None:
        return end, end
    if parameters.exclude_persistent_lag and committed == partition.before:
        return 0, end - committed
    return end - committed, end - committed


def total_of(lags: Sequence[tuple[int, int]], parameters: KedaKafkaParameters) -> tuple[int, int]:
    """Return the trigger's metric, at least 0, and the sum that activates."""
    threshold, bound = parameters.lag_threshold, len(lags)
    total, active = sum(lag for lag, _ in lags), sum(lag for _, lag in lags)
    even, limited = parameters.ensure_even_distribution_of_partitions, parameters.limit_to_partitions_with_lag
    if not parameters.allow_idle_consumers or limited or even:
        if even:
            divisors = [f for f in range(1, bound + 1) if bound % f == 0 and f * threshold >= total]
            total = (divisors[0] if divisors else bound) * threshold
        if limited:
            bound = sum(lag > 0 for lag, _ in lags)
        if total > 0 and total // threshold > bound:
            total = bound * threshold
    return max(total, 0), active


@planner(
    name="keda-kafka",
    description="KEDA's trigger kafka: committed lag over lagThreshold, at most a replica a partition, through the HorizontalPodAutoscaler",
    parameters=KedaKafkaParameters,
    reads=["observations"],
)
def plan_by_keda_kafka(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    parameters = request.parameters(KedaKafkaParameters)
    observed = request.current
    whole = parameters.scope == "application"
    sizes = {"": max(observed.values())} if whole else {name: observed[name] for name in request.sources}
    workloads = Workloads.of(request.memory, list(sizes))
    activity = _Activity.of(request.memory, request.now)
    decisions: dict[str, Decision] = {}
    infeasible: list[Infeasible] = []
    evidence: dict[str, Number] = {}
    for name, current in sizes.items():
        query = _query(request, parameters, None if whole else name)
        if isinstance(query, v2.NoMetric):
            decisions[name] = _decided(request, parameters, workloads, (name, current), query)
            continue
        total, active = query
        label = f"[{name}]" if name else ""
        evidence |= {f"lag_records{label}": total, f"lag_for_activation_records{label}": active}
        is_active = active > parameters.activation_lag_threshold
        activity.saw(name, is_active)
        if not is_active and parameters.min_replica_count == 0 and activity.is_over(name, parameters):
            decisions[name] = _idle(request, name, current, infeasible)
            continue
        decisions[name] = _decided(request, parameters, workloads, (name, current), total)
    reply = answer(request, decisions, observed, workloads, evidence=evidence, infeasible=infeasible)
    return reply.model_copy(update={"memory": {**reply.memory, "activity": activity.kept()}})


def _decided(
    request: Request,
    parameters: KedaKafkaParameters,
    workloads: Workloads,
    workload: tuple[str, int],
    query: int | v2.NoMetric,
) -> Decision:
    """The autoscaler's part."""
    name, current = workload
    minimum, maximum = request.policy.spec.bounds.of(name)
    low = None if parameters.min_replica_count is None else max(1, parameters.min_replica_count)
    limits = parameters.limits(*narrowed(minimum, maximum, low, parameters.max_replica_count))
    proposal: int | v2.NoMetric = query
    if not isinstance(query, v2.NoMetric):
        proposal = v2.from_average([1000 * query], 1000 * parameters.lag_threshold, current, parameters.tolerances())
    return decide(workloads, name, limits, current, proposals=[proposal], now=request.now.timestamp())


def _idle(request: Request, name: str, current: int, infeasible: list[Infeasible]) -> Decision:
    """Decide for an inactive group: KEDA would scale it to none, here it keeps the minimum."""
    lower = request.policy.spec.bounds.of(name)[0]
    infeasible.append(
        Infeasible(
            operator=name or None,
            wanted=0.0,
            limit=float(lower),
            code="scale-to-zero",
            because=f"no records wait, so KEDA would scale to zero; {lower} remain, since a stopped application cannot be observed",
        )
    )
    return Decision(current, min(current, lower), proposal=0, limited="TooFewReplicas")


def _query(request: Request, parameters: KedaKafkaParameters, source: str | None) -> tuple[int, int] | v2.NoMetric:
    """Total and lag for activation; `NoMetric` names what could not be read."""
    kafka = request.policy.spec.signals.kafka
    if kafka is None or kafka.group_id is None:
        return v2.NoMetric("committed offsets are unknown (the policy has no signals.kafka.groupId)")
    if not request.observations:
        return v2.NoMetric("the partitions' offsets are unknown (there is no observation yet)")
    newest = request.observations[-1]
    failed = next((p for p in newest.problems if p.where.startswith(("commit of ", "kafka "))), None)
    if failed is not None:
        return v2.NoMetric(f"the group's commits are unknown ({failed.where}: {failed.what})")
    wanted = _chosen(newest, parameters, source)
    if not wanted:
        return v2.NoMetric(f"no partitions of {parameters.topic or source or 'any source'} were observed")
    before = _chosen(_last_query(request.observations, parameters.polling_interval), parameters, source)
    partitions = []
    for place, read in wanted.items():
        if read.log_end_offset is None:
            return v2.NoMetric(f"the end of {place[0]}/{place[1]} is unknown (the brokers did not report it)")
        last = before.get(place)
        partitions.append(
            Partition(read.committed_offset, read.log_end_offset, last.committed_offset if last else None)
        )
    return total_of([lag_of(p, parameters) for p in partitions], parameters)


_Place = tuple[str, int]


def _chosen(
    observation: Observation | None, parameters: KedaKafkaParameters, source: str | None
) -> Mapping[_Place, PartitionReading]:
    """The trigger's partitions, each once, also where several operators read it."""
    if observation is None:
        return {}
    numbers = parameters.numbers() if parameters.topic is not None else None
    return {
        (p.topic, p.partition): p
        for p in observation.partitions
        if (source is None or p.operator == source)
        and (parameters.topic is None or p.topic == parameters.topic)
        and (numbers is None or p.partition in numbers)
    }


def _last_query(observations: Sequence[Observation], seconds: float) -> Observation | None:
    """The newest that is at least so much older than the newest of all. None: this is the first query."""
    until = observations[-1].observed_at - timedelta(seconds=seconds)
    return next((o for o in reversed(observations[:-1]) if o.observed_at <= until), None)


@dataclass
class _Activity:
    """When each workload was active last, and since when it is known."""

    now: float
    since: float
    active: dict[str, float]

    @classmethod
    def of(cls, memory: Mapping[str, Any], now: datetime) -> "_Activity":
        at = now.timestamp()
        try:
            kept = _Kept.model_validate(memory.get("activity"))
        except ValidationError:
            return cls(at, at, {})
        return cls(at, kept.since, dict(kept.active))

    def saw(self, name: str, is_active: bool) -> None:
        """Remember the time."""
        if is_active:
            self.active[name] = self.now

    def is_over(self, name: str, parameters: KedaKafkaParameters) -> bool:
        """Whether the cooldown is past."""
        last = self.active.get(name)
        if last is None:
            return self.now - self.since > parameters.initial_cooldown_period
        return self.now - last > parameters.cooldown_period

    def kept(self) -> dict[str, Any]:
        """For the plan; of the newest few, so that it stays small."""
        newest = sorted(self.active.items(), key=lambda item: item[1])[-20:]
        return {"since": round(self.since, 3), "active": {name[:60]: round(t, 3) for name, t in newest}}


class _Kept(BaseModel):
    since: FiniteFloat
    active: dict[str, FiniteFloat]
