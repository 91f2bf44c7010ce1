"""Driver for Flink jobs that the Flink Kubernetes Operator runs: it writes the parallelism into the resource, and follows the
job through Flink's REST API until it runs with it.

The operator rescales the running job where it can, and restarts it otherwise. Each write is conditional on the version of the
resource that was read just before.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from weir_contracts import Parallelism, Subject, Topology, changes
from weir_engines.driver import (
    MAX_OBSERVED,
    Accepted,
    Driver,
    Fence,
    Refusal,
    Rejected,
    Snapshot,
    TargetChanged,
    Unanswered,
    WithoutGroups,
    contested,
)
from weir_engines.kubernetes.api import MERGE_PATCH, ApiFailed, Call, KubernetesApi
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.driver import failed_answer, namespace_refusal, short_reason
from weir_engines.kubernetes.state import MANAGER, unanswerable
from weir_engines.kubernetes.values import mapping
from weir_runtime.clock import Clock

from .resource import FLINK_DEPLOYMENT, FLINK_SESSION_JOB, FlinkResource, resource_of

Answer = Accepted | Rejected | TargetChanged | Unanswered | Refusal


class Objects(Protocol):
    """Objects of a cluster by kind and name. Calls raise `ApiFailed`."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return an object as it is now; None if it does not exist."""

    async def patch(self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        """Merge `body` into an object; `ApiFailed` with status 409 if it no longer has the version that `body` names."""

    async def close(self) -> None: ...


class ApiObjects:
    """Objects of an API server. The caller closes the client."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def close(self) -> None:
        await self._api.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Mapping[str, Any] | None:
        try:
            return mapping(await self._api.get(Call("get", kind.resource, namespace, name), kind.path(namespace, name)))
        except ApiFailed as error:
            if error.reason == "NotFound":
                return None
            raise

    async def patch(self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        await self._api.send(
            "PATCH",
            Call("patch", kind.resource, namespace, name),
            kind.path(namespace, name),
            body,
            query={"fieldManager": MANAGER},
            content_type=MERGE_PATCH,
        )


@dataclass(frozen=True)
class _Found:
    """Resource and job of a policy at one instant; `job` is of the resource's deployment."""

    resource: FlinkResource
    job: Snapshot


class FlinkOperatorDriver(WithoutGroups):
    """Driver for resources of the listed namespaces. `jobs` is Flink's own driver, which observes jobs and completes
    checkpoints. Without a namespace every call reports the setting."""

    def __init__(
        self,
        clock: Clock,
        jobs: Driver,
        objects: Objects | None,
        namespaces: Collection[str] = (),
        *,
        checkpoint_seconds: float = 5.0,
    ) -> None:
        self._clock = clock
        self._jobs = jobs
        self._objects = objects
        self._namespaces = namespaces
        self._checkpoint_seconds = checkpoint_seconds
        self._ours: dict[str, str] = {}
        """Fingerprint of the spec in which an application's overrides were last seen as Weir set them."""
        self._log = structlog.get_logger("executor")

    async def close(self) -> None:
        if self._objects is not None:
            await self._objects.close()

    async def observe(self, subject: Subject) -> Snapshot:
        found = await self._find(subject)
        return found.job if isinstance(found, _Found) else found

    async def request(
        self,
        subject: Subject,
        job_id: str,
        parallelism: Parallelism,
        expected: Parallelism,
        fence: Fence,
        *,
        version: str | None = None,
    ) -> Answer:
        found = await self._find(subject)
        if isinstance(found, Snapshot):
            return found.refusal or (Rejected(found.reason) if found.reachable else Unanswered(found.reason))
        resource, job = found.resource, found.job
        missing = unanswerable(job_id, job)
        if missing is not None or job.deployment is None or job.topology is None:
            return missing or Unanswered(job.reason)
        if problem := _unfit(parallelism, job.topology):
            return Rejected(problem)
        there = job.deployment.requested or {}
        managers = resource.task_managers(job.topology, parallelism)
        if there == parallelism and managers in (None, resource.replicas):
            return Accepted(self._clock.now())
        if there not in (expected, parallelism):
            return contested(changes(expected, there), (job.writers or {}).get(next(iter(there), ""), ""))
        if job.refusal is not None:
            return job.refusal
        if version is not None and version != job.version:
            return TargetChanged(f"{resource.label} changed since it was observed")
        held = await fence.begin()
        if held is not None:
            return held
        if job.deployment.rescale.by_restart and resource.upgrade_mode == "last-state":
            await self._complete_checkpoint(subject, resource, job)
            held = await fence.go_on()
            if held is not None:
                return held
        return await self._write(resource, job.topology, parallelism)

    async def trigger_checkpoint(self, subject: Subject, job_id: str) -> str | None:
        found = await self._find(subject)
        if isinstance(found, Snapshot):
            return found.reason
        return await self._jobs.trigger_checkpoint(_with_job(subject, found.resource), found.resource.job_id)

    async def _write(self, resource: FlinkResource, topology: Topology, parallelism: Parallelism) -> Answer:
        body = resource.patch(topology, parallelism)
        try:
            await self._objects_api.patch(resource.kind, resource.namespace, resource.name, body)
        except ApiFailed as error:
            return failed_answer(error)
        self._log.info("resource-written", resource=resource.label, namespace=resource.namespace, spec=body["spec"])
        return Accepted(self._clock.now())

    async def _complete_checkpoint(self, subject: Subject, resource: FlinkResource, before: Snapshot) -> None:
        """Complete a checkpoint within a limit, since the operator restarts the job from the last one."""
        jobs, named = self._jobs, _with_job(subject, resource)
        if await jobs.trigger_checkpoint(named, resource.job_id) is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._checkpoint_seconds):
                while True:
                    now = await jobs.observe(named)
                    if now.checkpoint_completed_at != before.checkpoint_completed_at:
                        return
                    await asyncio.sleep(0.25)

    @property
    def _objects_api(self) -> Objects:
        if self._objects is None:
            raise ValueError("the kubernetes driver is off")
        return self._objects

    async def _find(self, subject: Subject) -> _Found | Snapshot:
        """Return resource and job, or the snapshot that says why there is none of them."""
        now = self._clock.now()
        refused = namespace_refusal(subject.namespace, () if self._objects is None else self._namespaces)
        if refused is not None:
            return Snapshot(now, reachable=False, reason=refused.sentence, refusal=refused)
        try:
            resource = await self._read(subject)
        except ApiFailed as error:
            return Snapshot(now, reachable=False, reason=short_reason(error), refusal=_of_failure(error))
        kind, called = named_by(subject)
        if resource is None:
            return Snapshot(now, reachable=True, reason=f"namespace {subject.namespace} has no {kind.kind} {called}")
        refusal = resource.refusal() or other_job(subject, resource)
        if resource.is_suspended or not resource.job_id:
            reason = "" if refusal is None else refusal.sentence
            reason = reason or f"the operator has not started the job of {resource.label} yet"
            is_over = resource.is_suspended or (refusal is not None and not resource.is_changing)
            return Snapshot(now, reachable=is_over, reason=reason, refusal=refusal, version=resource.version)
        job = await self._jobs.observe(_with_job(subject, resource))
        is_gone = job.deployment is None or job.topology is None or job.deployment.is_final
        if resource.is_changing and is_gone:
            reason = (
                f"the operator restarts the job of {resource.label}: {resource.reconciliation or 'not deployed yet'}"
            )
            return Snapshot(job.at, reachable=False, reason=reason, refusal=refusal, version=resource.version)
        if job.deployment is None or job.topology is None:
            if refusal is not None and resource.lifecycle == "FAILED":
                job = replace(job, reachable=True, reason=refusal.sentence)
            return replace(job, refusal=refusal, version=resource.version)
        deployment = resource.adapted(job.deployment, job.topology)
        adapted = replace(
            job,
            deployment=deployment,
            refusal=refusal,
            version=resource.version,
            writers=self._writers(subject, resource, job.topology),
            can_trigger_checkpoint=job.can_trigger_checkpoint and not deployment.rescale.by_restart,
        )
        return _Found(resource, adapted)

    async def _read(self, subject: Subject) -> FlinkResource | None:
        """Return the resource, a session job's with its cluster; None if it does not exist."""
        kind, called = named_by(subject)
        document = await self._objects_api.get(kind, subject.namespace, called)
        resource = None if document is None else resource_of(document, kind)
        if resource is None or kind is FLINK_DEPLOYMENT or not resource.deployment_name:
            return resource
        host = await self._objects_api.get(FLINK_DEPLOYMENT, subject.namespace, resource.deployment_name)
        return replace(resource, cluster=None if host is None else resource_of(host, FLINK_DEPLOYMENT))

    def _writers(self, subject: Subject, resource: FlinkResource, topology: Topology) -> Mapping[str, str] | None:
        """Return who set the parallelism.

        Overrides that are missing were removed by another client, which the API server does not record, unless the spec changed
        besides: then an upgrade dropped them, and Weir sets them again.
        """
        writer = resource.writer
        if writer == "":
            if subject.id not in self._ours and len(self._ours) >= MAX_OBSERVED:
                self._ours.clear()
            self._ours[subject.id] = resource.fingerprint
        elif writer is None and self._ours.get(subject.id) is not None:
            is_upgrade = self._ours[subject.id] != resource.fingerprint
            writer = "" if is_upgrade else "a removal from flinkConfiguration"
        return None if writer is None else dict.fromkeys(topology.names, writer)


def named_by(subject: Subject) -> tuple[Kind, str]:
    """Return kind and name of the resource that a policy names."""
    target = subject.target
    if target.operated is None:
        raise ValueError(f"{subject.id} names no resource of the Flink Kubernetes Operator")
    return (FLINK_SESSION_JOB if target.flink_session_job is not None else FLINK_DEPLOYMENT), target.operated.name


def other_job(subject: Subject, resource: FlinkResource) -> Refusal | None:
    """Return the refusal for a policy whose application is another job than the resource's, or None."""
    job = subject.flink.job
    if not resource.job_name or job in (resource.name, resource.job_name, resource.job_id):
        return None
    return Refusal("unsupported", f"{resource.label} runs {resource.job_name}, and application.flink.job is {job}")


def _with_job(subject: Subject, resource: FlinkResource) -> Subject:
    """Return the subject with the job that the resource runs now, by its id."""
    flink = subject.flink.model_copy(update={"job": resource.job_id})
    return replace(subject, application=subject.application.model_copy(update={"flink": flink}))


def _of_failure(error: ApiFailed) -> Refusal | None:
    if error.is_denied:
        return Refusal("forbidden", short_reason(error))
    if error.status == 404:
        return Refusal(
            "unsupported", f"the cluster has no {error.call.resource}: install the Flink Kubernetes Operator"
        )
    return None


def _unfit(parallelism: Parallelism, topology: Topology) -> str:
    """Return why the job cannot have this parallelism; empty if it can."""
    odd = sorted(set(parallelism) ^ set(topology.names))
    if odd:
        return f"the job and the request differ in operators: {', '.join(odd[:5])}"
    for operator in topology.operators:
        limit, wanted = operator.max_parallelism, parallelism[operator.name]
        if limit is not None and wanted > limit:
            return f"{operator.name}: {wanted} exceeds its maximum parallelism {limit}"
    return ""
