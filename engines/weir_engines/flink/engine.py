"""Flink as an engine: a job of a cluster, read and rescaled through its REST API."""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from weir_contracts import Deployment, Subject
from weir_contracts.application import FLINK_JOB_ID
from weir_engines.registry import Claim, Engine
from weir_engines.scrape import Collector

if TYPE_CHECKING:
    from .driver import FlinkDriver


class FlinkEngine(Engine):
    """All Flink clusters."""

    reads = frozenset({"flink"})
    scales = "flink"

    @staticmethod
    def claims(subject: Subject) -> Iterable[Claim]:
        """Return the job on its cluster."""
        flink = subject.application.flink
        return () if flink is None else (("job", flink.cluster, flink.job),)

    @staticmethod
    def may_be_same(own: Subject, claimed: Iterable[Claim]) -> bool:
        """Return whether one of them names a job of the same cluster by its id, and the other one by its name."""
        flink = own.application.flink
        if flink is None:
            return False
        jobs = [claim[2] for claim in claimed if claim[:2] == ("job", flink.cluster)]
        return any(bool(FLINK_JOB_ID.fullmatch(flink.job)) != bool(FLINK_JOB_ID.fullmatch(job)) for job in jobs)

    @staticmethod
    def names(subject: Subject, deployment: Deployment) -> bool:
        """Return whether the policy names the job by its id or its name."""
        flink = subject.application.flink
        return flink is not None and flink.job in (deployment.job_id, deployment.job_name)

    def collector(self, subject: Subject) -> Collector:
        """Return the collector of a job. Where the target shows its pods these are its TaskManagers."""
        from .collector import FlinkCollector

        return FlinkCollector(
            subject.flink,
            self.resources.timeout_seconds,
            self.resources.reach.allowed,
            credentials=self.resources.flink_credentials,
            reads_task_managers=subject.target.kubernetes is None,
        )

    @cached_property
    def driver(self) -> "FlinkDriver":
        """The driver of all jobs that Flink rescales in place."""
        from .driver import FlinkDriver

        return FlinkDriver(
            self.resources.clock,
            self.resources.flink_credentials,
            timeout_seconds=self.resources.timeout_seconds,
            allowed=self.resources.reach.allowed,
        )

    async def close(self) -> None:
        """End the driver's connections."""
        if "driver" in self.__dict__:
            await self.driver.close()
