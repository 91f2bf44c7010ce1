"""State of an application at one instant: its run, its consumer group and its deployment.

Readings of two *runs* are never combined. A plan is made for a *deployment*: a crash-looping job has many runs and one
deployment, so it can still be scaled. Requested and observed parallelism are separate.
"""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from .base import Count, Message, NonNegative, Parallelism, Seconds, Share, Timestamp


class Instance(Message):
    """Process of an application that is a consumer group; its threads are members of the group."""

    id: Annotated[str, Field(max_length=300)]
    """Identity of the process: its process id in Kafka Streams, else the common part of its members' client ids."""
    host: Annotated[str, Field(max_length=300)] = ""
    """Host of its members, as the brokers know it. Empty: unknown."""
    threads: Count
    """Number of its members of the group."""
    members: Annotated[list[Annotated[str, Field(max_length=400)]], Field(max_length=1000)] = Field(
        default_factory=list
    )
    """Ids of its members, as the group's coordinator knows them."""
    static_ids: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=1000)] = Field(
        default_factory=list
    )
    """`group.instance.id` of its static members."""
    active_tasks: Count | None = None
    """Number of tasks, or partitions of a plain consumer, that it processes. None: unknown."""
    standby_tasks: Count | None = None
    """Number of tasks whose state it keeps up to date without processing them; a warm-up counts too. None: unknown."""
    warm_up_tasks: Count | None = None
    """Number of standby tasks that the next rebalance may move to it. None: not told apart, or unknown."""
    state: Annotated[str, Field(max_length=50)] = ""
    """State of its Kafka Streams client, such as RUNNING. Empty: unknown."""
    blocked_share: Share | None = None
    """Share of time, 0 to 1, that its threads wait for brokers, mean over the threads. None: unknown, or it restores."""
    restore_remaining_records: Count | None = None
    """Changelog records that it has to read before all of its tasks can run. None: unknown."""
    memory_bytes: Count | None = None
    """Memory in use, in bytes. None: unknown."""

    @property
    def name(self) -> str:
        """Beginning of its threads' ids in Kafka Streams, which is its `client.id`; else its id."""
        first, found, _ = (self.members[0] if self.members else "").partition("-StreamThread-")
        return first if first and found else self.id


class InstanceRef(Message):
    """Instance that an action restarts. The executor restarts the one whose threads these members are, and none if they
    have left the group."""

    id: Annotated[str, Field(max_length=300)]
    """Id of the instance at its target; in a plan the common part of its members' client ids."""
    members: Annotated[list[Annotated[str, Field(max_length=400)]], Field(min_length=1, max_length=1000)]
    """Ids of its members, as the group's coordinator knew them when the plan was made."""
    uid: Annotated[str | None, Field(max_length=100)] = None
    """Identity of what runs it, such as a pod's uid. None: its id belongs to one process only, or it is not found yet."""


class Group(Message):
    """Consumer group at its coordinator."""

    id: Annotated[str, Field(max_length=249)]
    protocol: Literal["classic", "consumer", "streams"] | None = None
    """Rebalance protocol. None: unknown."""
    assignor: Annotated[str, Field(max_length=200)] = ""
    """Name of the assignor, `stream` for Kafka Streams. Empty: unknown."""
    state: Annotated[str, Field(max_length=50)]
    """State as the coordinator names it, such as Stable or PreparingRebalance."""
    members: Count
    """Number of members."""
    probing_rebalance_at: Timestamp | None = None
    """Time of the next probing rebalance: until then a warm-up is under way and tasks may still move. None: none is
    due, or unknown."""


class Run(Message):
    """One uninterrupted execution. Counters of two runs must not be subtracted from each other."""

    key: Annotated[str | None, Field(max_length=200)] = None
    """Identity of the run, the same for every monitor; for a consumer group a hash of its assignment. None: the other
    fields identify it."""
    attempt: Count | None = None
    """Number of restarts before this run, as the engine counts them. None: unknown."""
    running_since: Timestamp
    """Time at which the run began."""

    def is_same(self, other: "Run") -> bool:
        """Return whether both are readings of one run."""
        if self.key is not None and other.key is not None:
            return self.key == other.key
        return (self.attempt, self.running_since) == (other.attempt, other.running_since)


class Slots(Message):
    """Slots of the cluster."""

    total: Count
    """Number of registered slots."""
    available: Count
    """Number of free slots."""


class Checkpoints(Message):
    """Checkpoints of the job."""

    interval_seconds: Seconds | None = None
    """Checkpoint interval in seconds. None: checkpointing is off, or unknown."""
    last_completed_at: Timestamp | None = None
    """Completion time of the last completed checkpoint. None: there is none, or unknown."""
    last_duration_seconds: Seconds | None = None
    """Duration of the last completed checkpoint, in seconds. None: there is none, or unknown."""
    completed: Count | None = None
    """Number of completed checkpoints. None: unknown."""
    failed: Count | None = None
    """Number of failed checkpoints. None: unknown."""


class RescaleSettings(Message):
    """Rescale settings of the cluster, from which deadlines of an action are computed."""

    scheduler: Annotated[str | None, Field(max_length=50)] = None
    """Scheduler of the cluster; only `adaptive` rescales in place. None: unknown."""
    cooldown_seconds: Seconds | None = None
    """Minimum time between two rescales, in seconds. None: unknown."""
    stabilization_seconds: Seconds | None = None
    """Time in seconds that the cluster waits for all requested slots. None: not set, or unknown."""
    max_trigger_delay_seconds: Seconds | None = None
    """Maximum time in seconds that the cluster waits for a checkpoint before a rescale. None: unknown."""
    max_slots: Count | None = None
    """Number of slots up to which the cluster starts TaskManagers itself, as Flink does on Kubernetes in native mode and
    on YARN. None: it starts none, or unknown."""
    by_restart: bool = False
    """Whether a rescale ends the job and starts it again from its state, as the Flink Kubernetes Operator does where the
    cluster cannot rescale in place. It costs more time, and needs no scheduler that rescales in place."""


RECOVERED_AFTER = timedelta(minutes=10)
"""Time that a restarted container must run to count as recovered: the kubelet's own, after which it forgets the
back-off."""


class Pod(Message):
    """Replica of the deployment, for planners that read readiness or resources."""

    name: Annotated[str, Field(max_length=253)]
    workload: Annotated[str, Field(max_length=253)] = ""
    """Name of the workload that it belongs to; empty if there is one workload."""
    ready: bool | None = None
    """Whether the replica is ready. None: unknown."""
    started_at: Timestamp | None = None
    """Start of the replica. None: unknown."""
    phase: Annotated[str, Field(max_length=50)] = ""
    """Phase as Kubernetes names it: Pending, Running, Succeeded, Failed. Empty: unknown."""
    reason: Annotated[str, Field(max_length=500)] = ""
    """Why the replica does not run, such as `CrashLoopBackOff` or `Unschedulable: 0/3 nodes are available`."""
    restarts: Count | None = None
    """Restarts of its containers. None: unknown."""
    restarted_at: Timestamp | None = None
    """When the container that restarted last began to run again. None: none restarted, it does not run, or unknown."""
    out_of_memory: bool = False
    """Whether a container last ended because it exceeded its memory limit, however long ago."""
    cpu_cores: NonNegative | None = None
    """CPU in use, in cores. None: unknown."""
    cpu_request_cores: NonNegative | None = None
    """CPU requested, in cores. None: unknown."""
    cpu_limit_cores: NonNegative | None = None
    """Maximum CPU, in cores. None: none, or unknown."""
    memory_bytes: Count | None = None
    """Memory in use, in bytes. None: unknown."""
    memory_request_bytes: Count | None = None
    """Memory requested, in bytes. None: unknown."""
    memory_limit_bytes: Count | None = None
    """Maximum memory, in bytes. None: none, or unknown."""

    def restarts_persist(self, now: datetime) -> bool:
        """Return whether a container restarted, and has not run since for long enough to count as recovered."""
        if not self.restarts and not self.out_of_memory:
            return False
        return self.restarted_at is None or now - self.restarted_at < RECOVERED_AFTER


class WorkloadStatus(Message):
    """Kubernetes object whose replicas run the application or one of its operators."""

    kind: Annotated[str, Field(max_length=63)]
    name: Annotated[str, Field(max_length=253)]
    namespace: Annotated[str, Field(max_length=63)]
    """Namespace of the object."""
    uid: Annotated[str, Field(max_length=100)]
    """Identity of the object: an object that is deleted and created again has another uid."""
    wanted: Count
    """Number of replicas requested: `spec.replicas`."""
    current: Count | None = None
    """Number of replicas that exist. None: unknown."""
    updated: Count | None = None
    """Number of replicas of the newest version. None: unknown, or the kind has no versions."""
    ready: Count | None = None
    """Number of ready replicas. None: unknown."""
    one_by_one: bool = False
    """Whether each replica starts only once the one before is ready: a StatefulSet's `OrderedReady`."""
    rolling_out: bool = False
    """Whether replicas of an earlier version are being replaced."""
    paused: bool = False
    """Whether the rollout of the object is paused."""
    reason: Annotated[str, Field(max_length=500)] = ""
    """Why replicas cannot be created, such as `FailedCreate: exceeded quota`. Empty: they can, or it is unknown."""


class DeploymentRef(Message):
    """Identity of the deployment that a plan was made for; the executor refuses the plan for another one."""

    job_id: Annotated[str, Field(max_length=200)]
    """Id of the job in its engine."""
    graph_hash: Annotated[str, Field(max_length=64)]
    """Hash of the graph's names and edges."""
    requested: Parallelism | None = None
    """Parallelism requested from the engine. None: unknown."""
    observed: Parallelism
    """Running parallelism."""


Health = Literal["running", "restarting", "failed", "ended"]
"""State of a deployment, the same for every engine. `failed` and `ended` are final; `restarting` includes the first
start."""


class Deployment(Message):
    """State of the application in its engine at one instant."""

    engine: Annotated[str, Field(max_length=50)] = "flink"
    """Name of the engine: flink, service, kafka-streams, consumer-group."""
    health: Health | None = None
    """State, the same for every engine. `failed` and `ended` are final; `restarting` includes the first start. None:
    unknown."""
    job_id: Annotated[str, Field(max_length=200)]
    """Id of the job in its engine."""
    job_name: Annotated[str, Field(max_length=300)]
    """Name of the job in its engine."""
    graph_hash: Annotated[str, Field(max_length=64)]
    """Hash of the graph's names and edges."""
    state: Annotated[str, Field(max_length=50)]
    """State as the engine names it, for people; programs use `health`."""
    started_at: Timestamp | None = None
    """Start of the job. None: unknown."""
    requested: Parallelism | None = None
    """Parallelism requested from the engine. None: unknown."""
    requested_lower: Parallelism | None = None
    """Minimum parallelism with which the engine may start the job. None: unknown."""
    observed: Parallelism
    """Running parallelism."""
    slots: Slots | None = None
    """Slots of the cluster. None: unknown."""
    restarts: Count | None = None
    """Number of restarts since the start of the job, rescales included, as the engine counts them. None: unknown."""
    checkpoints: Checkpoints | None = None
    """Checkpoints of the job. None: unknown."""
    rescale: RescaleSettings = Field(default_factory=RescaleSettings)
    replicas: Count | None = None
    """Number of replicas of the deployment. None: unknown, or it has none."""
    pods: Annotated[list[Pod], Field(max_length=1000)] = Field(default_factory=list)
    """Replicas of the deployment; empty if they are not read."""
    workloads: Annotated[list[WorkloadStatus], Field(max_length=50)] = Field(default_factory=list)
    """Kubernetes objects whose replicas these are; empty for another target."""
    instances: Annotated[list[Instance], Field(max_length=1000)] = Field(default_factory=list)
    """Processes of a consumer group; empty for another engine, or if they are unknown."""
    group: Group | None = None
    """Consumer group of the application. None: another engine, or unknown."""
    commit_interval_seconds: Seconds | None = None
    """Time between two commits of one partition, in seconds: committed offsets stand still in between. None: another
    engine, or unknown."""

    @property
    def takes_checkpoints(self) -> bool:
        """Whether the engine restores state from checkpoints, so that a rescale in place waits for one."""
        return self.checkpoints is not None

    @property
    def is_final(self) -> bool:
        """Whether the job does not run again without an outside action."""
        return self.health in ("failed", "ended")

    @property
    def free_slots(self) -> int | None:
        """Number of slots that a rescale may use besides those of the application, including those of TaskManagers that
        the cluster would start. None: unknown."""
        slots, limit = self.slots, self.rescale.max_slots
        if slots is None:
            return None
        used = slots.total - slots.available
        return slots.available if limit is None else max(slots.available, limit - used)

    def ref(self) -> DeploymentRef:
        """Return the identity of the deployment."""
        return DeploymentRef(
            job_id=self.job_id, graph_hash=self.graph_hash, requested=self.requested, observed=self.observed
        )
