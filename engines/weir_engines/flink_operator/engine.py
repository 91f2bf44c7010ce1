"""The Flink Kubernetes Operator as an engine: its resources are targets of the Flink jobs that they run."""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, cast

from weir_contracts import Deployment, Subject
from weir_engines.flink.engine import FlinkEngine
from weir_engines.registry import Claim, Engine
from weir_engines.scrape import Collector

if TYPE_CHECKING:
    from .collector import ResourceReader
    from .driver import FlinkOperatorDriver


class FlinkOperatorEngine(Engine):
    """The FlinkDeployments and FlinkSessionJobs of one cluster."""

    scales = "flink-operator"

    @staticmethod
    def claims(subject: Subject) -> Iterable[Claim]:
        """Return the resource that the target names, as a `kubernetes` target would that scales its replicas."""
        target = subject.target
        if target.operated is None:
            return ()
        kind = "FlinkDeployment" if target.flink_deployment is not None else "FlinkSessionJob"
        return (("workload", subject.namespace, kind, target.operated.name),)

    @staticmethod
    def may_be_same(own: Subject, claimed: Iterable[Claim]) -> bool:
        """Return whether one of them names a FlinkDeployment, and the other one a job of its cluster."""
        flink, claimed = own.application.flink, list(claimed)
        if flink is None or not any(claim[:2] == ("job", flink.cluster) for claim in claimed):
            return False
        names_it = any(claim[0] == "workload" and claim[2] == "FlinkDeployment" for claim in claimed)
        return own.target.flink_deployment is not None or names_it

    @staticmethod
    def names(subject: Subject, deployment: Deployment) -> bool:
        """Return whether the policy names the FlinkDeployment of the job's cluster, which runs no other job."""
        return subject.target.flink_deployment is not None and deployment.engine == "flink"

    @cached_property
    def resources_read(self) -> "ResourceReader | None":
        """The resources as collectors read them, from shared watches; None without a cluster."""
        from .collector import ResourceReader

        api = self.resources.kubernetes
        return None if api is None else ResourceReader(api)

    def with_target(self, collector: Collector, subject: Subject) -> Collector:
        """Return the collector of the job that the resource runs, with what the resource says of it."""
        from .collector import FlinkResourceCollector, JobCollector

        return FlinkResourceCollector(
            cast("JobCollector", collector), subject, self.resources_read, self.resources.namespaces
        )

    @cached_property
    def driver(self) -> "FlinkOperatorDriver":
        """The driver of all resources."""
        from .driver import ApiObjects, FlinkOperatorDriver

        api, jobs = self.resources.kubernetes, self.engines.of(FlinkEngine).driver
        objects = None if api is None else ApiObjects(api)
        return FlinkOperatorDriver(self.resources.clock, jobs, objects, self.resources.namespaces)

    async def close(self) -> None:
        """End the watches and the connections."""
        if "driver" in self.__dict__:
            await self.driver.close()
        if "resources_read" in self.__dict__ and self.resources_read is not None:
            await self.resources_read.close()
