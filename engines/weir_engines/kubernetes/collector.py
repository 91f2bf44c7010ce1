"""Collectors of Kubernetes workloads: of a service, and of an engine's instances."""

import asyncio
from collections.abc import Set
from dataclasses import replace
from datetime import datetime

from weir_contracts import Problem, Subject
from weir_contracts.target import KubernetesTarget
from weir_engines.kubernetes.api import ApiFailed
from weir_engines.kubernetes.cluster import WorkloadReader, WorkloadsReading
from weir_engines.kubernetes.discovery import KindUnknown
from weir_engines.kubernetes.service import merged, scrape_of
from weir_engines.scrape import Collector, Scrape
from weir_runtime.clock import Clock

SETTING = "WEIR_MONITOR_KUBERNETES_NAMESPACES"


class _Workloads:
    """Workloads of one subject, if the settings allow their namespace."""

    def __init__(self, subject: Subject, reader: WorkloadReader | None, namespaces: Set[str]) -> None:
        if subject.target.kubernetes is None:
            raise ValueError(f"{subject.id} has no kubernetes target")
        self.target: KubernetesTarget = subject.target.kubernetes
        self.namespace = subject.namespace
        self._reader = reader
        self._namespaces = namespaces

    async def read(self) -> WorkloadsReading | Scrape:
        """Return the workloads, or the scrape without topology that says why they cannot be read."""
        if self._reader is None or self.namespace not in self._namespaces:
            what = f"the setting {SETTING} does not list the namespace {self.namespace}"
            return _failed("unreachable", what)
        try:
            return await self._reader.read(self.namespace, self.target.refs, usage=True)
        except KindUnknown as error:
            return _failed("not_found", str(error))
        except ApiFailed as error:
            return _failed("unreachable", str(error))


def _failed(status: str, what: str) -> Scrape:
    problem = Problem(where="target.kubernetes", what=what)
    return Scrape("not_found" if status == "not_found" else "unreachable", what, problems=(problem,))


class ServiceCollector:
    """Collector of a service: its workloads are the operators. It reports failures and does not raise them."""

    def __init__(self, subject: Subject, reader: WorkloadReader | None, namespaces: Set[str], clock: Clock) -> None:
        self._workloads = _Workloads(subject, reader, namespaces)
        self._clock = clock
        self._ready: dict[str, frozenset[tuple[str, datetime | None]]] = {}
        self._ready_since: dict[str, datetime] = {}

    async def close(self) -> None:
        """Do nothing: the watches are shared, and end when they are not read."""

    async def scrape(self) -> Scrape:
        """Return the service as its workloads report it now."""
        found = await self._workloads.read()
        if isinstance(found, Scrape):
            return found
        self._note_changes(found)
        return scrape_of(found, self._workloads.target, self._workloads.namespace, self._ready_since)

    def _note_changes(self, reading: WorkloadsReading) -> None:
        """Note the time if other pods are ready than at the last scrape."""
        for name, replicas in reading.found.items():
            ready = frozenset((each.pod.name, each.pod.started_at) for each in replicas.pods if each.serves)
            if self._ready.get(name, ready) != ready:
                self._ready_since[name] = self._clock.now()
            self._ready[name] = ready


class InstancePodsCollector:
    """Collector of an application whose instances are pods of one workload, such as TaskManagers: its engine's scrape
    with replicas and pods."""

    def __init__(
        self, engine: Collector, subject: Subject, reader: WorkloadReader | None, namespaces: Set[str]
    ) -> None:
        self._engine = engine
        self._workloads = _Workloads(subject, reader, namespaces)

    async def close(self) -> None:
        await self._engine.close()

    async def scrape(self) -> Scrape:
        """Return the engine's scrape with its workload. Without the workload its readings are still usable."""
        scrape, found = await asyncio.gather(self._engine.scrape(), self._workloads.read())
        if isinstance(found, Scrape):
            return replace(scrape, problems=(*scrape.problems, *found.problems))
        return merged(scrape, found, self._workloads.target, self._workloads.namespace)
