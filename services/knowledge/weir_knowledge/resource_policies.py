"""Policies from ScalingPolicy resources of Kubernetes, and the status of these resources.

The resources are compared with the stored policies, so nothing depends on an event that may be missed: a policy is
written if its resource has another uid or generation, and deleted if its resource was deleted. Resources that cannot be
read (an interrupted watch, a missing right or definition) delete nothing.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog
from prometheus_client import Gauge

from weir_contracts import VERSION, InvalidPolicy, Outcome, parse_policy
from weir_contracts.resource import GROUP, KIND, PLURAL, document_of
from weir_engines.kubernetes.api import MERGE_PATCH, ApiFailed, Call, KubernetesApi
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.values import mapping
from weir_engines.kubernetes.watches import Pauses, Watch
from weir_runtime.access import Caller, Problem, invalid
from weir_runtime.loop import Stop, run_forever

from .newest import Newest
from .policy_changes import PolicyChanges
from .resource_conditions import InForce, Refusal
from .resource_events import MAX_NOTE_BYTES, Due, RecordedEvents
from .resource_status import Resource, differs, merge_patch, status_of
from .summary import summarise

CHECK_SECONDS = 1.0
COMPARE_SECONDS = 60.0
"""Between two comparisons of all resources with the store; changed resources are compared at once."""
RETRY_SECONDS = 30.0
"""Between two attempts to store the same refused document."""
STATUS_SECONDS = 5.0
"""Between two looks at an application for its status."""
FIGURES_SECONDS = 30.0
"""Between two writes of a status in which only figures changed."""
_NEVER = float("-inf")
_REASONS = {409: "Conflict", 422: "Invalid", 503: "Unavailable"}
_CALLER = Caller("kubernetes", frozenset({"write"}))
_EVENTS = Kind("events.k8s.io", "v1", "Event", "events", is_scalable=False)
_RESOURCES = Kind(GROUP, VERSION, KIND, PLURAL, is_scalable=False)
_SYNC_SECONDS = 5.0
_log = structlog.get_logger("resources")
_REFUSED = Gauge("weir_knowledge_resources_refused", "ScalingPolicy resources whose document is not in force")


class Resources(Protocol):
    """ScalingPolicy resources of a cluster: those of Kubernetes, or the tests' in memory."""

    async def read(self, namespace: str) -> Sequence[Mapping[str, Any]]:
        """Return the resources of a namespace as the API server sends them; `ApiFailed` while they are not current."""

    async def write_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Write fields of a resource's status, and remove those that are None; `ApiFailed` if the resource was deleted or
        the API server refuses."""

    async def record(self, namespace: str, name: str, uid: str, due: Due, at: datetime) -> None:
        """Create an event of a resource unless it exists, or count a repetition; `ApiFailed` if the API server refuses."""


DEFINITION = "deploy/k8s/components/policy-resources/scalingpolicies.json"
"""Definition of the kind, in the repository."""


class KubernetesResources:
    """ScalingPolicy resources of one cluster."""

    def __init__(self, api: KubernetesApi, *, pauses: Pauses | None = None, instance: str = "knowledge") -> None:
        """`instance`: name of this process in events."""
        self._api, self._instance = api, instance[:128]
        self._pauses = pauses
        self._watches: dict[str, Watch[Mapping[str, Any]]] = {}

    async def close(self) -> None:
        """End the watches and close the client."""
        await asyncio.gather(*(watch.close() for watch in self._watches.values()))
        await self._api.close()

    async def read(self, namespace: str) -> Sequence[Mapping[str, Any]]:
        """Return the resources of a namespace as the API server sends them; `ApiFailed` while they are not current."""
        watch = self._watches.get(namespace)
        if watch is None or watch.is_over:
            watch = Watch(self._api, _RESOURCES, namespace, mapping, pauses=self._pauses)
            self._watches[namespace] = watch
        try:
            await watch.synced(_SYNC_SECONDS)
            failure = watch.failure
        except ApiFailed as error:
            failure = error
        if failure is not None and failure.status == 404:
            # in plain text, so that the client takes it for a web server's
            what = (
                f"the cluster has no kind {KIND} (404): kubectl apply -f {DEFINITION}, once for each cluster; or check "
                "WEIR_KUBERNETES_URL"
            )
            raise ApiFailed(failure.call, what, 404, failure.reason) from None
        if failure is not None:
            raise failure.again() from None
        return list(watch.objects.values())

    async def write_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Write fields of a resource's status, and remove those that are None; `ApiFailed` if the resource was deleted or
        the API server refuses."""
        call = Call("patch", f"{PLURAL}/status", namespace, name)
        path = _RESOURCES.path(namespace, name, "status")
        await self._api.send("PATCH", call, path, {"status": status}, content_type=MERGE_PATCH)

    async def record(self, namespace: str, name: str, uid: str, due: Due, at: datetime) -> None:
        """Create an event of a resource unless it exists, or count a repetition; `ApiFailed` if the API server refuses."""
        event, time = due.event, at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        called = f"{name[:200].rstrip('-.')}.{event.key}"
        if due.count > 1:
            path, series = _EVENTS.path(namespace, called), {"count": due.count, "lastObservedTime": time}
            try:
                call = Call("patch", "events", namespace, called)
                await self._api.send("PATCH", call, path, {"series": series}, content_type=MERGE_PATCH)
                return
            except ApiFailed as error:
                if error.status != 404:  # Kubernetes has deleted it: it begins again
                    raise
        body = {
            "metadata": {"name": called, "namespace": namespace},
            "eventTime": time,
            "reportingController": f"{GROUP}/knowledge",
            "reportingInstance": self._instance,
            "action": event.action,
            "reason": event.reason,
            "regarding": {
                "apiVersion": _RESOURCES.api_version,
                "kind": KIND,
                "namespace": namespace,
                "name": name,
                "uid": uid,
            },
            "note": event.note.encode()[:MAX_NOTE_BYTES].decode(errors="ignore"),
            "type": "Warning" if event.is_warning else "Normal",
        }
        try:
            await self._api.send("POST", Call("create", "events", namespace, called), _EVENTS.path(namespace), body)
        except ApiFailed as error:
            if error.status != 409:  # the process before has recorded it
                raise


async def resource_exists(resources: Resources, application: str) -> bool:
    """Return whether the resource of an application may exist: none does in a namespace that may not be read, since a
    deleted namespace takes Weir's rights with it."""
    try:
        found = await resources.read(application.partition("/")[0])
    except ApiFailed as error:
        return not error.is_denied
    return any(Resource.of(each).application == application for each in found)


@dataclass
class _Attempt:
    """The last attempt to store a resource, and the work on its status. Times are monotonic seconds."""

    resource: Resource
    refusal: Refusal | None
    stored_at: float
    """Time of the last attempt to store it."""
    recorded: RecordedEvents
    looked_at: float = _NEVER
    written_at: float = _NEVER

    def is_due(self, resource: Resource, now: float) -> bool:
        """Return whether the resource is to be stored: it changed, is to be paused or not, or was refused a while ago."""
        before = self.resource
        if (before.uid, before.generation, before.pause) != (resource.uid, resource.generation, resource.pause):
            return True
        return self.refusal is not None and now - self.stored_at >= RETRY_SECONDS


@dataclass(eq=False, repr=False)
class ResourcePolicies:
    """Keeps policies as the resources of `changes.resource_namespaces` say, on the replica that decides (`decides`)."""

    resources: Resources
    changes: PolicyChanges
    decides: Callable[[], bool]
    _attempts: dict[str, dict[str, _Attempt]] = field(default_factory=dict, init=False)
    """By namespace and application."""
    _compared_at: dict[str, float] = field(default_factory=dict, init=False)
    _failed: dict[str, str] = field(default_factory=dict, init=False)
    """Logged failures by namespace; each is logged again after a minute at the earliest."""

    async def run(self, stop: Stop) -> None:
        """Check every second until stopped."""
        await run_forever("resources", self.check, stop, pause_seconds=CHECK_SECONDS)

    async def check(self) -> None:
        """Store changed resources, delete the policies of deleted ones, and write each status that is due."""
        if not self.decides():
            self._attempts.clear()
            self._compared_at.clear()
            _REFUSED.set(0)
            return
        for unlisted in self._attempts.keys() - set(self.changes.resource_namespaces):
            del self._attempts[unlisted]
            self._compared_at.pop(unlisted, None)
        for namespace in sorted(self.changes.resource_namespaces):
            try:
                found = [Resource.of(each) for each in await self.resources.read(namespace)]
                await self._check(namespace, {each.application: each for each in found})
                failure = await self._show_all(namespace)
            except ApiFailed as error:
                failure = error
            if failure is not None and self._failed.get(namespace) != failure.what:
                _log.warning("kubernetes-failed", namespace=namespace, reason=failure.what)
                self._failed[namespace] = failure.what
        _REFUSED.set(
            sum(each.refusal is not None for attempts in self._attempts.values() for each in attempts.values())
        )

    async def _check(self, namespace: str, found: Mapping[str, Resource]) -> None:
        now, attempts = self.changes.clock.monotonic(), self._attempts.setdefault(namespace, {})
        if now - self._compared_at.get(namespace, _NEVER) >= COMPARE_SECONDS:
            await self._compare(namespace, found)
            self._compared_at[namespace] = now
            self._failed.pop(namespace, None)
        for application in attempts.keys() - found.keys():
            await self._delete(application)
            del attempts[application]
        for application, resource in found.items():
            each = attempts.get(application)
            if each is None or each.is_due(resource, now):
                refusal = await self._store(resource)
                refusal = await self._keep_pause(resource) or refusal
                is_same = each is not None and each.resource.uid == resource.uid
                recorded = each.recorded if each is not None and is_same else RecordedEvents.of(resource)
                each = attempts[application] = _Attempt(resource, refusal, now, recorded)
            each.resource = resource

    async def _compare(self, namespace: str, found: Mapping[str, Resource]) -> None:
        """Delete the policies whose resource was deleted, and forget resources whose policy was lost."""
        attempts, stored = self._attempts[namespace], {}
        for policy in await self.changes.view.policies():
            if policy.metadata.namespace == namespace and policy.metadata.owner == "resource":
                stored[policy.application] = policy
                if policy.application not in found:
                    await self._delete(policy.application)
        for application, each in list(attempts.items()):
            if each.refusal is not None:
                continue
            in_force = stored.get(application)
            if in_force is None or not (each.resource.is_of(in_force) and each.resource.pauses_as(in_force)):
                del attempts[application]

    async def _store(self, resource: Resource) -> Refusal | None:
        """Store the resource's policy unless it is stored; return why it is not in force."""
        try:
            policy = parse_policy(document_of(resource.document))
            stored = await self.changes.view.policy(resource.application)
            if stored is not None and resource.is_of(stored):
                return None
            version = 0 if stored is None else stored.metadata.version
            await self.changes.put(policy, _CALLER, version, "resource")
        except InvalidPolicy as error:
            await self.changes.report_refused(resource.application, _CALLER, invalid(error))
            return Refusal("Invalid", str(error))
        except Problem as problem:
            return Refusal(_REASONS.get(problem.status, "Refused"), problem.detail)
        _log.info("policy-stored", application=resource.application, generation=resource.generation)
        return None

    async def _keep_pause(self, resource: Resource) -> Refusal | None:
        """Pause the policy in force, or end that pause, as the annotation says, also while a newer document is refused;
        return why it is not."""
        try:
            stored = await self.changes.view.policy(resource.application)
            if stored is None or stored.metadata.owner != "resource" or resource.pauses_as(stored):
                return None
            change = self.changes.resume if resource.pause is None else self.changes.pause
            await change(resource.application, _CALLER, resource.pause, "resource")
        except Problem as problem:
            return Refusal(_REASONS.get(problem.status, "Refused"), problem.detail)
        return None

    async def _delete(self, application: str) -> None:
        """Delete the policy of a deleted resource, unless it has another owner."""
        try:
            await self.changes.delete(application, _CALLER, None, "resource")
            _log.info("policy-deleted", application=application)
        except Problem as problem:
            if problem.status == 503:
                raise

    async def _show_all(self, namespace: str) -> ApiFailed | None:
        """Write each status that is due; return why the first one could not be written. Without an answer the others wait:
        each would take as long."""
        now, failure = self.changes.clock.monotonic(), None
        for attempt in self._attempts[namespace].values():
            if now - attempt.looked_at >= STATUS_SECONDS:
                attempt.looked_at = now
                try:
                    await self._show(attempt, now)
                except ApiFailed as error:
                    failure = failure or error
                    if error.status is None:
                        break
        return failure

    async def _show(self, attempt: _Attempt, now: float) -> None:
        """Write the status of a resource if it differs from the present one, and its events."""
        resource, view = attempt.resource, self.changes.view
        application, at = resource.application, self.changes.clock.now()
        ((digest, policy, action),) = await view.known([application])
        found = None
        if policy is not None and policy.metadata.owner == "resource":
            newest = await view.newest(application, ("analysis", "plan", "outcome")) or Newest(application=application)
            found = InForce(policy, newest, summarise(digest, policy, action, at))
        status = status_of(resource, attempt.refusal, found, at)
        if differs(status, resource.status, in_figures=now - attempt.written_at >= FIGURES_SECONDS):
            namespace, _, name = resource.application.partition("/")
            await self.resources.write_status(namespace, name, merge_patch(status, resource.status))
            attempt.written_at = now
        await self._record(attempt, found, now)

    async def _record(self, attempt: _Attempt, found: InForce | None, now: float) -> None:
        """Record what was refused, done or decided otherwise. An event that the API server does not answer for is tried again
        at the next look; one that it refuses is logged."""
        resource, recorded, at = attempt.resource, attempt.recorded, self.changes.clock.now()
        outcomes, plan = list[Outcome](), None if found is None else found.newest.plan
        newest = None if found is None else found.newest.outcome
        if newest is not None and recorded.lacks(newest, at):
            state = await self.changes.view.state(resource.application)
            outcomes = [each for cycle in (state.cycles if state else ()) for each in cycle.outcomes] + [newest]
        for event in recorded.pending(resource, attempt.refusal, outcomes, plan, now=at, now_seconds=now):
            due = recorded.due(event, now)
            if due is not None:
                namespace, _, name = resource.application.partition("/")
                try:
                    await self.resources.record(namespace, name, resource.uid, due, at)
                    recorded.failure = ""
                except ApiFailed as error:
                    if error.status is None or error.status in (401, 429) or error.status >= 500:
                        raise
                    if error.what != recorded.failure:
                        _log.warning("event-not-recorded", application=resource.application, reason=error.what)
                    recorded.failure = error.what
            recorded.wrote(event, due, now)
