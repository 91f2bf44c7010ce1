"""Events of workloads: why a StatefulSet's controller cannot create pods, which the StatefulSet's status does not say."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from .api import ApiFailed, Call, KubernetesApi
from .discovery import Kind
from .values import instant, mapping, sequence, text
from .workloads import WorkloadReading

EVENTS = Kind("", "v1", "Event", "events", is_scalable=False)
_CREATED, _FAILED = "SuccessfulCreate", "FailedCreate"
_PAGE = 500
_RETRY_SECONDS, _KEEP_SECONDS = 10.0, 60.0
"""Time for which no reason is used, and a reason: the controller tries again after up to 16 min."""
_MAX_CACHED = 1000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


def create_failure(document: Any) -> str:
    """Return why the newest attempt to create a pod failed, from an `EventList` of one object; empty if it did not."""
    newest = max(_attempts(document), key=lambda each: (_at(each), each.get("reason") == _FAILED), default=None)
    if newest is None or newest.get("reason") != _FAILED:
        return ""
    message = text(newest.get("message"), 390)
    return f"{_FAILED}: {message}" if message else _FAILED


def _attempts(document: Any) -> Iterable[Mapping[str, Any]]:
    events = map(mapping, sequence(mapping(document).get("items"))[:_PAGE])
    return (each for each in events if each.get("reason") in (_CREATED, _FAILED))


def _at(event: Mapping[str, Any]) -> datetime:
    """Return when an event happened last. Clients of both events APIs write it in another field."""
    series = mapping(event.get("series"))
    created = mapping(event.get("metadata")).get("creationTimestamp")
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"), created)
    return next((at for at in map(instant, times) if at is not None), _NEVER)


class CreateFailures:
    """Reasons of StatefulSets that lack pods, by uid. A complete StatefulSet costs no request."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._cached: dict[str, tuple[float, str]] = {}

    async def explained(self, workload: WorkloadReading) -> WorkloadReading:
        """Return the workload with the reason for which pods cannot be created, or for which that is unknown."""
        status = workload.status
        is_short = status.current is not None and status.current < status.wanted and workload.is_observed
        if status.kind != "StatefulSet" or workload.kind.group != "apps" or status.reason or not is_short:
            return workload
        now = asyncio.get_running_loop().time()
        until, reason = self._cached.get(status.uid, (now, ""))
        if now >= until:
            reason = await self._request(workload)
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            self._cached[status.uid] = (now + (_KEEP_SECONDS if reason else _RETRY_SECONDS), reason)
        return replace(workload, status=status.model_copy(update={"reason": reason})) if reason else workload

    async def _request(self, workload: WorkloadReading) -> str:
        namespace = workload.status.namespace
        query: dict[str, str | int] = {
            "fieldSelector": f"involvedObject.uid={workload.status.uid}",
            "limit": _PAGE,
        }
        try:
            return create_failure(
                await self._api.get(Call("list", EVENTS.resource, namespace), EVENTS.path(namespace), query)
            )
        except ApiFailed as error:
            return text(f"why pods are missing is unknown: {error}", 490)
