"""ScalingPolicy resources in memory, as an API server keeps them."""

import copy
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any

from weir_engines.kubernetes.api import ApiFailed, Call
from weir_knowledge.resource_events import Due, ResourceEvent


class MemoryResources:
    """The resources of all namespaces."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], dict[str, Any]] = {}
        self.failure: str | None = None
        """Why nothing can be read or written; None: it can."""
        self.denied = False
        """Whether the failure is a right that lacks."""
        self.unwritable: set[str] = set()
        """Names whose status the API server refuses."""
        self.writes = 0
        self.events: dict[tuple[str, str, str], ResourceEvent] = {}
        self.counts: dict[tuple[str, str, str], int] = {}
        self.events_status: int | None = None
        """Status with which the API server answers an event; 0: it does not answer. None: it takes it."""
        self._uids = count(1)

    async def read(self, namespace: str) -> Sequence[Mapping[str, Any]]:
        self._fail("list", namespace)
        return [copy.deepcopy(each) for (where, _), each in self.documents.items() if where == namespace]

    async def write_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        self._fail("patch", namespace)
        status_code = 404 if (namespace, name) not in self.documents else 422 if name in self.unwritable else 0
        if status_code:
            call = Call("patch", "scalingpolicies/status", namespace, name)
            raise ApiFailed(call, f"cannot {call} ({status_code})", status_code)
        document = self.documents[namespace, name]
        document["status"] = _merged(document.get("status", {}), copy.deepcopy(dict(status)))
        self.writes += 1

    async def record(self, namespace: str, name: str, uid: str, due: Due, at: datetime) -> None:
        if self.events_status is not None:
            call = Call("create", "events", namespace)
            raise ApiFailed(call, f"cannot {call} ({self.events_status})", self.events_status or None)
        self._fail("create", namespace)
        key = (namespace, name, due.event.key)
        self.events.setdefault(key, due.event)
        self.counts[key] = max(due.count, self.counts.get(key, 1))

    def reasons(self) -> list[tuple[str, int]]:
        """Return reason and count of all events, in their order."""
        return [(event.reason, self.counts[key]) for key, event in self.events.items()]

    async def close(self) -> None:
        return

    def apply(self, document: Mapping[str, Any]) -> None:
        """Create or change a resource; another `spec` is another generation."""
        metadata = document["metadata"]
        key = metadata["namespace"], metadata["name"]
        before = self.documents.get(key)
        own = {"uid": f"uid-{next(self._uids)}", "generation": 1}
        if before is not None:
            changed = before["spec"] != document["spec"]
            own = {"uid": before["metadata"]["uid"], "generation": before["metadata"]["generation"] + changed}
        self.documents[key] = {
            **({} if before is None else before),
            **copy.deepcopy(dict(document)),
            "metadata": {**metadata, **own, "resourceVersion": "7", "managedFields": [{"manager": "kubectl"}]},
        }

    def annotate(self, namespace: str, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set or remove annotations; the generation stays."""
        metadata = self.documents[namespace, name]["metadata"]
        metadata["annotations"] = _merged(metadata.get("annotations", {}), dict(annotations))

    def delete(self, namespace: str, name: str) -> None:
        """Delete a resource."""
        del self.documents[namespace, name]

    def _fail(self, verb: str, namespace: str) -> None:
        if self.failure is not None:
            raise ApiFailed(Call(verb, "scalingpolicies", namespace), self.failure, 403 if self.denied else None)


def _merged(present: Any, patch: Any) -> Any:
    """Return what a merge patch makes of the present value."""
    if not isinstance(patch, dict):
        return patch
    found = dict(present) if isinstance(present, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found
