"""Target of a policy: the driver that scales the application, and what it scales. `engines/README.md` says what a new target
needs besides."""

from dataclasses import dataclass
from math import gcd
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from .base import Name, RestUrl
from .document import Document
from .topology import Topology

_Kind = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$")]
_ApiVersion = Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9.-]{0,252}/)?v[0-9][a-z0-9]{0,30}$")]
WORKLOAD_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
WorkloadName = Annotated[str, StringConstraints(pattern=WORKLOAD_PATTERN)]
"""Name of a Kubernetes object."""
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""Name of a Kubernetes namespace."""


DriverName = Literal["flink", "task-managers", "flink-resubmit", "flink-operator", "kubernetes", "endpoint"]


@dataclass(frozen=True)
class Unit:
    """Parallelism that one instance adds, for a target that is scaled by its number of instances."""

    slots: int
    """Slots or threads of one instance."""
    instance: str = "instance"
    """Noun for one instance in sentences, such as pod."""
    max: int | None = None
    """Maximum number of instances. None: only the limits of parallelism apply."""
    brings_slots: bool = True
    """Whether an instance brings its slots; else it takes those that the cluster has."""

    def instances_for(self, topology: Topology, parallelism: int) -> int:
        """Return the minimum number of instances that give all operators one parallelism of at least `parallelism`.

        A slot sharing group takes as many slots as its parallelism; several groups share the slots evenly.
        """
        groups = topology.slots({})
        step = groups // gcd(groups, self.slots)
        needed = -(-parallelism * groups // self.slots)
        return -(-needed // step) * step

    def parallelism_of(self, topology: Topology, instances: int) -> int:
        """Return the parallelism of each operator with `instances`, before the limits of its key groups."""
        return max(1, instances * self.slots // topology.slots({}))


class WorkloadRef(Document):
    """Kubernetes object with a scale subresource."""

    api_version: _ApiVersion | None = None
    """Group and version, such as `apps/v1`. Default: the preferred version of the only group that has the kind."""
    kind: _Kind
    """Kind, such as `Deployment`, `StatefulSet` or a custom resource with a scale subresource."""
    name: WorkloadName
    """Name of the object, and of the operator that it runs."""


class Workload(WorkloadRef):
    """One of several workloads, each an operator of the application."""

    inputs: Annotated[list[WorkloadName], Field(max_length=50)] = Field(default_factory=list)
    """Names of the workloads whose output it reads; these are listed before it. Default: none, it is a source."""


class KubernetesTarget(Document):
    """Replicas of a Kubernetes workload, or of several, each an operator. Anything with a scale subresource can be a
    target."""

    api_version: _ApiVersion | None = None
    """Group and version of the workload, such as `apps/v1`. Default: the preferred version of the only group that has
    the kind."""
    kind: _Kind | None = None
    """Kind of the workload, such as `Deployment` or `StatefulSet`. Required without `workloads`."""
    name: WorkloadName | None = None
    """Name of the workload. Required without `workloads`."""
    namespace: Namespace | None = None
    """Namespace of the workload; the settings of monitor and executor must list it, and `WEIR_TARGET_NAMESPACES` the pair of
    both namespaces. Default: the policy's own, which needs no pair."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    """Slots of one pod: `taskmanager.numberOfTaskSlots` of a Flink job in reactive mode, or the threads of a consumer group's
    instance (`num.stream.threads`). Default 1."""
    workloads: Annotated[list[Workload], Field(min_length=1, max_length=50)] | None = None
    """Workloads in topological order, each an operator that is scaled on its own; not with `kind` and `name`."""
    restart_instances: bool = False
    """Whether the pod of a consumer group's instance that is stuck while others are not is evicted, so that another takes its
    place, at most one an hour. It needs the right to create `pods/eviction`. Default false."""

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        single = (self.kind, self.name, self.api_version)
        if self.workloads is None:
            for field, value in (("kind", self.kind), ("name", self.name)):
                if value is None:
                    raise ValueError(f"{field} is required, or list workloads")
            return self
        if single != (None, None, None) or self.slots != 1:
            raise ValueError("workloads: not together with kind, name, apiVersion or slots")
        before: set[str] = set()
        for i, workload in enumerate(self.workloads):
            if workload.name in before:
                raise ValueError(
                    f"workloads.{i}: {workload.name!r} is listed twice; names are operators and must differ"
                )
            for name in workload.inputs:
                if name not in before:
                    raise ValueError(f"workloads.{i}.inputs: {name!r} must be listed before {workload.name!r}")
            before.add(workload.name)
        return self

    @property
    def refs(self) -> list[Workload]:
        """The workloads in topological order."""
        if self.workloads is not None:
            return self.workloads
        return [
            Workload.model_construct(
                api_version=self.api_version, kind=self.kind or "", name=self.name or "", inputs=[]
            )
        ]

    @property
    def unit(self) -> Unit | None:
        """Parallelism that one pod adds; None if each workload is an operator that is scaled on its own."""
        return None if self.workloads is not None else Unit(self.slots, "pod")


class ManagersWorkload(WorkloadRef):
    """Kubernetes workload whose pods are TaskManagers, one each."""

    name: WorkloadName
    """Name of the object."""
    namespace: Namespace | None = None
    """Namespace of the workload; the settings of monitor and executor must list it, and `WEIR_TARGET_NAMESPACES` the pair of
    both namespaces. Default: the policy's own, which needs no pair."""


class ManagersEndpoint(Document):
    """HTTP endpoint whose instances are TaskManagers; docs/reference/endpoint.openapi.json describes it."""

    url: RestUrl
    """Address of the endpoint, without credentials, query or fragment."""
    credentials: Name | None = None
    """Name of an entry of the executor's setting `WEIR_EXECUTOR_ENDPOINT_CREDENTIALS`, whose token is sent to its own
    origin only. Default: none, no token. The policy never contains a secret."""


class TaskManagersTarget(Document):
    """TaskManagers that Weir starts before the job needs their slots, and ends once it does not. Exactly one of `kubernetes` and
    `endpoint` runs them."""

    kubernetes: ManagersWorkload | None = None
    """Workload whose replicas are the TaskManagers."""
    endpoint: ManagersEndpoint | None = None
    """Endpoint whose instances are the TaskManagers."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    """Slots of one TaskManager, as its `taskmanager.numberOfTaskSlots` says. Default 1, as Flink's. Where a TaskManager has
    another number, Weir changes nothing."""
    max: Annotated[int, Field(ge=1, le=1000)]
    """Maximum number of TaskManagers, which limits the growth of the job."""
    reactive: bool = False
    """Whether the cluster runs in reactive mode (`scheduler-mode: reactive`), where the job takes every slot: Weir then sets only
    the number of TaskManagers, and all operators have the same parallelism. Default false. Where the cluster's mode is
    another one, Weir changes nothing."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.kubernetes is None) == (self.endpoint is None):
            raise ValueError("name exactly one of kubernetes and endpoint, which runs the TaskManagers")
        return self

    @property
    def unit(self) -> Unit | None:
        """Parallelism that one TaskManager adds in reactive mode; None outside of it: each operator is scaled on its own."""
        return Unit(self.slots, "TaskManager", self.max) if self.reactive else None


JAR_PATTERN = r"^[^/\\\s][^/\\\n\r\t]{0,250}\.jar$"
SAVEPOINTS_PATTERN = r"^([a-z][a-z0-9+.-]{0,20}:/{1,3}|/)[^\s?#]{1,900}$"
CLASS_PATTERN = r"^[A-Za-z_$][A-Za-z0-9_$]*(\.[A-Za-z_$][A-Za-z0-9_$]*)*$"


class ResubmitTarget(Document):
    """Jar that runs the job again from a savepoint, for a job that Flink cannot rescale in place, such as with the default
    scheduler. Weir stops the job with a savepoint and runs the jar with the new parallelism."""

    jar: Annotated[str, StringConstraints(pattern=JAR_PATTERN)]
    """Jar on the cluster: its id, or its name as `GET /jars` lists it, of which the newest one counts. A jar of that name that was
    uploaded after the job started is not run, since the job may run another."""
    entry_class: Annotated[str | None, StringConstraints(pattern=CLASS_PATTERN, max_length=400)] = None
    """Class whose main method submits the job. Default: the jar's own, by its manifest."""
    args: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=100)] = Field(default_factory=list)
    """Arguments of the main method, as the running job has them. Default: none. The policy never contains a secret."""
    savepoint_directory: Annotated[str, StringConstraints(pattern=SAVEPOINTS_PATTERN)]
    """Directory of the savepoints, which JobManager and TaskManagers reach, such as `s3://state/savepoints`. Each has its
    own folder in it, and Weir deletes none."""
    uniform: bool = False
    """Whether all operators get one parallelism. Flink 1.18 and 2.x run a jar with no other; 1.19 and 1.20 give each operator its
    own. Default false. Not for a job whose code sets the parallelism of an operator."""

    @property
    def unit(self) -> Unit | None:
        """One more subtask of all operators; None: each operator is scaled on its own."""
        return Unit(1, "slot", brings_slots=False) if self.uniform else None


class FlinkTarget(Document):
    """Flink itself. Its adaptive scheduler scales each operator of the application on its own, except in reactive mode; with
    `resubmit` the job is stopped and run again."""

    task_managers: TaskManagersTarget | None = None
    """TaskManagers whose number Weir sets with the parallelism. Default: none, Weir scales within the slots that are there.
    Not where the cluster starts TaskManagers itself, as Flink does in its native modes."""
    resubmit: ResubmitTarget | None = None
    """How the job is run again. Default: none, Flink rescales it in place. Not with `taskManagers`, and `application.flink.job`
    must be the job's name."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.task_managers is not None and self.resubmit is not None:
            raise ValueError("resubmit: not together with taskManagers")
        return self


class EndpointTarget(Document):
    """HTTP endpoint that reads and sets the number of a consumer group's instances; docs/reference/endpoint.openapi.json
    describes it."""

    url: RestUrl
    """Address of the endpoint, without credentials, query or fragment."""
    credentials: Name | None = None
    """Name of an entry of the executor's setting `WEIR_EXECUTOR_ENDPOINT_CREDENTIALS`, whose token is sent to its own
    origin only. Default: none, no token. The policy never contains a secret."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of one instance, each a member of the group: `num.stream.threads` of Kafka Streams. Default 1."""
    restart_instances: bool = False
    """Whether an instance that is stuck while others are not is restarted, at most one an hour. Default false."""

    @property
    def unit(self) -> Unit:
        """Parallelism that one instance adds."""
        return Unit(self.slots)


class OperatorTarget(Document):
    """Resource of the Flink Kubernetes Operator, in which Weir writes the parallelism of each operator."""

    name: WorkloadName
    """Name of the resource."""
    namespace: Namespace | None = None
    """Namespace of the resource; the settings of monitor and executor must list it, and `WEIR_TARGET_NAMESPACES` the pair of
    both namespaces. Default: the policy's own, which needs no pair."""


ONE_DRIVER = (
    "name exactly one driver; this version supports flink, flinkDeployment, flinkSessionJob, kubernetes and endpoint"
)


class Target(Document):
    """The driver that scales the application, at most one, and what it scales."""

    flink: FlinkTarget | None = None
    """Flink itself: `flink: {}`. Default for a Flink application."""
    flink_deployment: OperatorTarget | None = None
    """FlinkDeployment of the Flink Kubernetes Operator, for the Flink job that it runs."""
    flink_session_job: OperatorTarget | None = None
    """FlinkSessionJob of the Flink Kubernetes Operator, for a Flink job of a session cluster."""
    kubernetes: KubernetesTarget | None = None
    """Replicas of Kubernetes workloads, for a service, a Flink job in reactive mode or a consumer group."""
    endpoint: EndpointTarget | None = None
    """Instances behind an HTTP endpoint, for a consumer group."""

    @model_validator(mode="after")
    def _at_most_one(self) -> Self:
        if len(self._named) > 1:
            raise ValueError(ONE_DRIVER)
        return self

    @property
    def _named(self) -> list[tuple[DriverName, str]]:
        """Driver and field of each part that the document names."""
        given: tuple[tuple[DriverName, str, object], ...] = (
            (self._flink_driver, "flink", self.flink),
            ("flink-operator", "flinkDeployment", self.flink_deployment),
            ("flink-operator", "flinkSessionJob", self.flink_session_job),
            ("kubernetes", "kubernetes", self.kubernetes),
            ("endpoint", "endpoint", self.endpoint),
        )
        return [(driver, field) for driver, field, document in given if document is not None]

    @property
    def _flink_driver(self) -> DriverName:
        if self.resubmit is not None:
            return "flink-resubmit"
        return "flink" if self.managers is None else "task-managers"

    @property
    def driver(self) -> DriverName | None:
        """Name of the driver that scales this application; None: Weir only advises on it."""
        return self._named[0][0] if self._named else None

    @property
    def field(self) -> str:
        """Name of the driver's field in the document; empty: it names none."""
        return self._named[0][1] if self._named else ""

    @property
    def operated(self) -> OperatorTarget | None:
        """Resource of the Flink Kubernetes Operator; None for another target."""
        return self.flink_deployment or self.flink_session_job

    @property
    def namespace(self) -> str | None:
        """Kubernetes namespace that the document names; None: the policy's own, or the target is no object of Kubernetes."""
        managers = None if self.managers is None else self.managers.kubernetes
        named = self.kubernetes or self.operated or managers
        return None if named is None else named.namespace

    @property
    def managers(self) -> TaskManagersTarget | None:
        """TaskManagers whose number Weir sets; None: it sets none."""
        return None if self.flink is None else self.flink.task_managers

    @property
    def resubmit(self) -> ResubmitTarget | None:
        """How the job is stopped and run again; None: it is not."""
        return None if self.flink is None else self.flink.resubmit

    @property
    def unit(self) -> Unit | None:
        """Parallelism that one instance adds; None for a target that scales each operator on its own."""
        instances = self.kubernetes or self.endpoint or self.managers or self.resubmit
        return None if instances is None else instances.unit

    @property
    def restarts_instances(self) -> bool:
        """Whether the policy lets Weir restart single instances."""
        instances = self.kubernetes or self.endpoint
        return instances is not None and instances.restart_instances
