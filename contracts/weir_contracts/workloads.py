"""Kubernetes workloads as targets, and services, which are measured by the signals of their workloads alone."""

from collections.abc import Collection
from dataclasses import dataclass
from math import gcd
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from .deployment import Topology
from .document import Document

SignalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$", examples=["queued"])]
"""Name of a signal: the result of a query of the policy."""
_Kind = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$")]
_ApiVersion = Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9.-]{0,252}/)?v[0-9][a-z0-9]{0,30}$")]
WorkloadName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
"""Name of a Kubernetes object."""
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""Name of a Kubernetes namespace."""


@dataclass(frozen=True)
class Unit:
    """Parallelism that one instance adds, for a target that is scaled by its number of instances."""

    slots: int
    """Slots or threads of one instance."""
    instance: str = "instance"
    """Noun for one instance in sentences, such as pod."""

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


class ServiceSignals(Document):
    """Signals of one workload: names of queries in `signals.prometheus.queries`."""

    processed: SignalName | None = None
    """Signal with the number of records or requests processed by all replicas: a counter that only grows. Default:
    none; throughput is then unknown."""
    waiting: SignalName | None = None
    """Signal with the number of records or requests that wait, such as a queue's length. Default: none; lag is then
    unknown."""


class ServiceApplication(ServiceSignals):
    """Service without a stream engine, measured by the CPU of its pods and by signals. `processed` and `waiting` are
    those of its only source."""

    operators: Annotated[dict[WorkloadName, ServiceSignals], Field(max_length=50, fail_fast=True)] = Field(
        default_factory=dict
    )
    """Signals of each workload by its name, for a target with several workloads. Default: none."""

    def signals_of(self, operator: str, sources: Collection[str]) -> ServiceSignals:
        """Return the signals of an operator; those of the application itself are its only source's."""
        own = self.operators.get(operator)
        if own is not None:
            return own
        return self if list(sources) == [operator] else ServiceSignals()


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
