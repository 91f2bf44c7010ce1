"""Flink jobs that are stopped with a savepoint and run again from it."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from weir_contracts import Subject
from weir_engines.flink.engine import FlinkEngine
from weir_engines.registry import Engine
from weir_engines.scrape import Collector, Scrape

if TYPE_CHECKING:
    from .driver import FlinkResubmitDriver


class FlinkResubmitEngine(Engine):
    """All jobs whose policies say how they are run again."""

    scales = "flink-resubmit"

    def with_target(self, collector: Collector, subject: Subject) -> Collector:
        """Return the collector of the job and of the successors that Weir runs, as one deployment."""
        return LineageCollector(collector)

    @cached_property
    def driver(self) -> "FlinkResubmitDriver":
        """The driver of all such jobs."""
        from .driver import FlinkResubmitDriver

        return FlinkResubmitDriver(self.resources.clock, self.engines.of(FlinkEngine).driver)


class LineageCollector:
    """Collector of a job that goes on in its successors."""

    def __init__(self, jobs: Collector) -> None:
        self._jobs = jobs

    async def close(self) -> None:
        await self._jobs.close()

    async def scrape(self) -> Scrape:
        """Return the job's scrape, its deployment under what its id has in common with its successors'."""
        from .driver import as_lineage

        found = await self._jobs.scrape()
        return found if found.deployment is None else replace(found, deployment=as_lineage(found.deployment))
