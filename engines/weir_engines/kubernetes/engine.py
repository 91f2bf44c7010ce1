"""Kubernetes as an engine: services, whose workloads are operators, and the pods that run another engine's instances."""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from weir_contracts import Subject
from weir_engines.flink.engine import FlinkEngine
from weir_engines.kafka.engine import KafkaEngine
from weir_engines.registry import Claim, Engine, Meter
from weir_engines.scrape import Collector

from .signals import ServiceMeter

if TYPE_CHECKING:
    from .cluster import WorkloadReader
    from .driver import KubernetesDriver, Workloads


class KubernetesEngine(Engine):
    """The workloads of one cluster."""

    reads = frozenset({"service"})
    scales = "kubernetes"

    @staticmethod
    def claims(subject: Subject) -> Iterable[Claim]:
        """Return the workloads that the target names."""
        target = subject.target.kubernetes
        refs = () if target is None else target.refs
        return [("workload", subject.namespace, ref.kind, ref.name) for ref in refs]

    @cached_property
    def workloads(self) -> "WorkloadReader | None":
        """The workloads as collectors read them, from shared watches; None without a cluster."""
        from .cluster import KubernetesWorkloads

        api = self.resources.kubernetes
        return None if api is None else KubernetesWorkloads(api)

    def collector(self, subject: Subject) -> Collector:
        """Return the collector of a service."""
        from .collector import ServiceCollector

        return ServiceCollector(subject, self.workloads, self.resources.namespaces, self.resources.clock)

    def with_target(self, collector: Collector, subject: Subject) -> Collector:
        """Return the collector with the pods of the instances; a service's has its workloads already."""
        from .collector import InstancePodsCollector

        if subject.application.engine in self.reads:
            return collector
        return InstancePodsCollector(collector, subject, self.workloads, self.resources.namespaces)

    def meter(self, subject: Subject) -> Meter | None:
        """Return the counters that a service's signals make."""
        service = subject.application.service
        return None if service is None else ServiceMeter(service)

    @cached_property
    def scaling(self) -> "Workloads | None":
        """The workloads as drivers read and scale them; None without a cluster."""
        from .scaling import ApiWorkloads

        api = self.resources.kubernetes
        return None if api is None else ApiWorkloads(api)

    @cached_property
    def driver(self) -> "KubernetesDriver":
        """The driver of all workloads."""
        from .driver import KubernetesDriver

        jobs, groups = self.engines.of(FlinkEngine).driver, self.engines.of(KafkaEngine).groups
        return KubernetesDriver(self.resources.clock, jobs, self.scaling, self.resources.namespaces, groups=groups)

    async def close(self) -> None:
        """End the watches."""
        if "driver" in self.__dict__:
            await self.driver.close()
        elif "scaling" in self.__dict__ and self.scaling is not None:
            await self.scaling.close()
        if "workloads" in self.__dict__ and self.workloads is not None:
            await self.workloads.close()
