"""Collector of a Flink job that the Flink Kubernetes Operator runs: the job's own readings, and what its resource says."""

import asyncio
from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from weir_contracts import Problem, Subject
from weir_engines.kubernetes.api import ApiFailed, KubernetesApi
from weir_engines.kubernetes.collector import SETTING
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.service import STALE_SECONDS
from weir_engines.kubernetes.watches import Pauses, Watch
from weir_engines.scrape import Collector, Scrape

from .driver import named_by, other_job
from .resource import FLINK_DEPLOYMENT, FlinkResource, resource_of


class JobCollector(Collector, Protocol):
    """Collector of one Flink job."""

    job: str
    """Name or id of the job."""


class Resources(Protocol):
    """Source of resources: a cluster, or one in memory."""

    async def read(self, kind: Kind, namespace: str, name: str) -> tuple[FlinkResource | None, str]:
        """Return a resource, a session job's with its cluster, or None if there is none; and why it may be out of date.

        Raises `ApiFailed` if it cannot be read at all.
        """


class ResourceReader:
    """Resources of one cluster. All collectors share its watches, which end after a while without a reader."""

    def __init__(self, api: KubernetesApi, *, sync_seconds: float = 5.0, pauses: Pauses | None = None) -> None:
        self._api = api
        self._sync_seconds = sync_seconds
        self._pauses = pauses
        self._watches: dict[tuple[str, Kind], Watch[FlinkResource]] = {}

    async def close(self) -> None:
        """End all watches and close the client."""
        await asyncio.gather(*(watch.close() for watch in self._watches.values()))
        self._watches.clear()
        await self._api.close()

    async def read(self, kind: Kind, namespace: str, name: str) -> tuple[FlinkResource | None, str]:
        watch = await self._watch(namespace, kind)
        found, stale = watch.get(name), _staleness(watch)
        if found is None or kind is FLINK_DEPLOYMENT or not found.deployment_name:
            return found, stale
        hosts = await self._watch(namespace, FLINK_DEPLOYMENT)
        return replace(found, cluster=hosts.get(found.deployment_name)), stale or _staleness(hosts)

    async def _watch(self, namespace: str, kind: Kind) -> Watch[FlinkResource]:
        key = (namespace, kind)
        found = self._watches.get(key)
        if found is None or found.is_over:
            for each in [each for each, watch in self._watches.items() if watch.is_over]:
                del self._watches[each]
            parse: Callable[[Any], FlinkResource | None] = partial(resource_of, kind=kind)
            found = Watch(self._api, kind, namespace, parse, leaves_out=True, pauses=self._pauses)
            self._watches[key] = found
        await found.synced(self._sync_seconds)
        return found


def _staleness(watch: Watch[Any]) -> str:
    if watch.failure is None:
        return ""
    if watch.age_seconds > STALE_SECONDS:
        raise watch.failure.again()
    return f"{watch.failure}; its last event is {watch.age_seconds:.0f} s old"


class FlinkResourceCollector:
    """Collector of one job. It reports failures and does not raise them."""

    def __init__(self, engine: JobCollector, subject: Subject, reader: Resources | None, namespaces: Set[str]) -> None:
        self._engine = engine
        self._subject = subject
        self._reader = reader
        self._namespaces = namespaces

    async def close(self) -> None:
        await self._engine.close()

    async def scrape(self) -> Scrape:
        """Return the job's scrape, as the deployment of its resource. A job that does not run is what the resource says why."""
        found = await self._read()
        if isinstance(found, Scrape):
            return found
        resource, problems = found
        refusal = resource.refusal() or other_job(self._subject, resource)
        if refusal is not None:
            problems = (*problems, Problem(where=resource.label, what=refusal.sentence))
        if resource.is_suspended or not resource.job_id:
            message = "the operator has not started its job yet" if refusal is None else refusal.sentence
            return Scrape("not_running", message, problems=problems)
        self._engine.job = resource.job_id
        scrape = await self._engine.scrape()
        problems = (*scrape.problems, *problems)
        is_gone = scrape.deployment is None or scrape.deployment.is_final
        if is_gone and (resource.is_changing or resource.lifecycle == "FAILED"):
            message = f"the operator restarts the job of {resource.label}" if refusal is None else refusal.sentence
            return Scrape("not_running", message, source_time=scrape.source_time, problems=problems)
        if scrape.deployment is None or scrape.topology is None:
            return replace(scrape, problems=problems)
        deployment = resource.adapted(scrape.deployment, scrape.topology)
        return replace(scrape, deployment=deployment, problems=problems)

    async def _read(self) -> tuple[FlinkResource, tuple[Problem, ...]] | Scrape:
        """Return the resource, or the scrape without topology that says why it cannot be read."""
        namespace, (kind, called) = self._subject.namespace, named_by(self._subject)
        if self._reader is None or namespace not in self._namespaces:
            return self._failed(f"the setting {SETTING} does not list the namespace {namespace}")
        try:
            resource, stale = await self._reader.read(kind, namespace, called)
        except ApiFailed as error:
            if error.status == 404:
                return self._failed(f"the cluster has no {kind.resource}: install the Flink Kubernetes Operator")
            return self._failed(str(error))
        if resource is None:
            what = f"{kind.kind} {called} does not exist in namespace {namespace}"
            return Scrape("not_found", what, problems=(Problem(where=self._place, what=what),))
        return resource, (Problem(where=self._place, what=stale),) if stale else ()

    @property
    def _place(self) -> str:
        return f"target.{self._subject.target.field}"

    def _failed(self, what: str) -> Scrape:
        return Scrape("unreachable", what, problems=(Problem(where=self._place, what=what),))
