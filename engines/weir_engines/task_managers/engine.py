"""Flink jobs that are rescaled in place, with TaskManagers that Kubernetes or an endpoint runs."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from weir_contracts import Subject, TaskManagersTarget
from weir_engines.endpoint.engine import EndpointEngine
from weir_engines.flink.engine import FlinkEngine
from weir_engines.kubernetes.engine import KubernetesEngine
from weir_engines.registry import Claim, Engine
from weir_engines.scrape import Collector, Scrape

if TYPE_CHECKING:
    from .driver import TaskManagersDriver


class TaskManagersEngine(Engine):
    """The TaskManagers of all Flink clusters whose policies let Weir set their number."""

    scales = "task-managers"

    @staticmethod
    def claims(subject: Subject) -> Iterable[Claim]:
        """Return what runs the TaskManagers, as other targets claim it, and the cluster: its TaskManagers have one number."""
        managers, flink = subject.target.managers, subject.application.flink
        if managers is None or flink is None:
            return []
        found: list[Claim] = [("task-managers", flink.cluster)]
        if managers.kubernetes is not None:
            found.append(("workload", subject.namespace, managers.kubernetes.kind, managers.kubernetes.name))
        if managers.endpoint is not None:
            found.append(("endpoint", str(managers.endpoint.url).rstrip("/")))
        return found

    def with_target(self, collector: Collector, subject: Subject) -> Collector:
        """Return the collector with the slots up to which TaskManagers may be brought."""
        managers = subject.target.managers
        # In reactive mode the policy's unit says how many slots there may be.
        return collector if managers is None or managers.reactive else ManagedCollector(collector, managers)

    @cached_property
    def driver(self) -> "TaskManagersDriver":
        """The driver of all such jobs."""
        from .driver import TaskManagersDriver
        from .pools import EndpointPool, KubernetesPool, Pool

        resources = self.resources
        workloads = self.engines.of(KubernetesEngine).scaling
        pools: dict[str, Pool] = {
            "kubernetes": KubernetesPool(resources.clock, workloads, resources.namespaces),
            "endpoint": EndpointPool(resources.clock, self.engines.of(EndpointEngine).driver.endpoint),
        }
        return TaskManagersDriver(resources.clock, self.engines.of(FlinkEngine).driver, pools)


class ManagedCollector:
    """Collector of a Flink job whose slots may grow by TaskManagers that Weir brings."""

    def __init__(self, jobs: Collector, managers: TaskManagersTarget) -> None:
        self._jobs = jobs
        self._max_slots = managers.max * managers.slots

    async def close(self) -> None:
        await self._jobs.close()

    async def scrape(self) -> Scrape:
        """Return the job's scrape with its slots."""
        found = await self._jobs.scrape()
        deployment = found.deployment
        if deployment is None or deployment.rescale.max_slots is not None:
            return found  # a cluster that starts TaskManagers itself has its own limit
        rescale = deployment.rescale.model_copy(update={"max_slots": self._max_slots})
        return replace(found, deployment=deployment.model_copy(update={"rescale": rescale}))
