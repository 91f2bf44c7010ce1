"""ScalingPolicy resources of Kubernetes, from one watch for each namespace."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from weir_contracts import VERSION
from weir_contracts.resource import GROUP, KIND, PLURAL
from weir_engines.kubernetes.api import MERGE_PATCH, ApiFailed, Call, KubernetesApi
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.values import mapping
from weir_engines.kubernetes.watches import Pauses, Watch
from weir_knowledge.resource_status import ResourceEvent

_EVENTS = Kind("", "v1", "Event", "events", is_scalable=False)
_RESOURCES = Kind(GROUP, VERSION, KIND, PLURAL, is_scalable=False)
_SYNC_SECONDS = 5.0
MAX_MESSAGE = 1000


class KubernetesResources:
    """ScalingPolicy resources of one cluster."""

    def __init__(self, api: KubernetesApi, *, pauses: Pauses | None = None) -> None:
        self._api = api
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
        await watch.synced(_SYNC_SECONDS)
        if watch.failure is not None:
            raise watch.failure.again()
        return list(watch.objects.values())

    async def write_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Write fields of a resource's status, and remove those that are None; `ApiFailed` if the resource was deleted or
        the API server refuses."""
        call = Call("patch", f"{PLURAL}/status", namespace, name)
        path = _RESOURCES.path(namespace, name, "status")
        await self._api.send("PATCH", call, path, {"status": status}, content_type=MERGE_PATCH)

    async def record(self, namespace: str, name: str, uid: str, event: ResourceEvent, at: datetime) -> None:
        """Create an event of a resource unless it exists; `ApiFailed` if the API server refuses."""
        called, time = f"{name[:200]}.{event.key}", at.strftime("%Y-%m-%dT%H:%M:%SZ")
        of = {"apiVersion": _RESOURCES.api_version, "kind": KIND, "namespace": namespace, "name": name, "uid": uid}
        body = {
            "metadata": {"name": called, "namespace": namespace},
            "involvedObject": of,
            "type": "Warning" if event.is_warning else "Normal",
            "reason": event.reason,
            "message": event.message[:MAX_MESSAGE],
            "count": 1,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "source": {"component": "weir"},
        }
        try:
            await self._api.send("POST", Call("create", "events", namespace, called), _EVENTS.path(namespace), body)
        except ApiFailed as error:
            if error.status != 409:  # the process before has recorded it
                raise
