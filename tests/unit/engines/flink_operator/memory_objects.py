"""Resources of the operator in memory, with versions, generations and managers of fields as an API server keeps them."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from typing import Any

from tests.unit.engines.flink_operator.operator import Operator
from weir_contracts import Subject
from weir_engines.flink_operator.resource import FLINK_DEPLOYMENT, FlinkResource, resource_of
from weir_engines.kubernetes.api import ApiFailed, Call
from weir_engines.kubernetes.discovery import Kind
from weir_engines.kubernetes.state import MANAGER

NAMESPACE = "shop"


class MemoryObjects:
    """Objects of the namespace `shop`, reconciled by `operator` at each read. `away` makes the API server unreachable."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.subjects: dict[str, Subject] = {}
        """Subject by the name of a resource: where the operator serves its job."""
        self.away = ""
        self.denied: set[str] = set()
        self.defined = True
        """Whether the operator's definitions are installed."""
        self.writes: list[Mapping[str, Any]] = []
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._versions = itertools.count(1)

    async def close(self) -> None:
        return None

    # -- what others do -------------------------------------------------------------------------------------------

    def put(self, kind: Kind, name: str, spec: Mapping[str, Any], manager: str = "kubectl") -> None:
        """Create a resource, or replace its spec as `kubectl replace` does."""
        before = self._objects.get((kind.kind, name))
        document = before or {"metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{next(self._versions)}"}}
        self._change(kind, document, {**document, "spec": json.loads(json.dumps(spec))}, manager)

    def edit(self, kind: Kind, name: str, manager: str = "kubectl", **spec: Any) -> None:
        """Change fields of a resource's spec."""
        found = self._objects[kind.kind, name]
        self._change(kind, found, {**found, "spec": _merged(found["spec"], spec)}, manager)

    def delete(self, kind: Kind, name: str) -> None:
        del self._objects[kind.kind, name]

    def spec(self, kind: Kind, name: str) -> dict[str, Any]:
        return dict(self._objects[kind.kind, name]["spec"])

    def report(self, kind: Kind, name: str, **status: Any) -> None:
        """Change a resource's status as the operator does."""
        found = self._objects[kind.kind, name]
        found["status"] = {**found.get("status", {}), **status}
        found["metadata"]["resourceVersion"] = str(next(self._versions))

    # -- the ports --------------------------------------------------------------------------------------------------

    async def get(self, kind: Kind, namespace: str, name: str) -> Mapping[str, Any] | None:
        call = Call("get", kind.resource, namespace, name)
        self._check(call)
        found = self._objects.get((kind.kind, name)) if namespace == NAMESPACE else None
        if found is None:
            return None
        if name in self.subjects:
            status = self.operator.reconcile(found, self.subjects[name])
            if status != found.get("status"):
                self.report(kind, name, **status)
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    async def patch(self, kind: Kind, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        call = Call("patch", kind.resource, namespace, name)
        self._check(call)
        found = self._objects[kind.kind, name]
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise ApiFailed(call, f"cannot {call} (409): the object has been modified", 409, "Conflict")
        self.writes.append(body)
        self._change(kind, found, {**found, "spec": _merged(found["spec"], body["spec"])}, MANAGER)

    async def read(self, kind: Kind, namespace: str, name: str) -> tuple[FlinkResource | None, str]:
        document = await self.get(kind, namespace, name)
        found = None if document is None else resource_of(document, kind)
        if found is None or not found.deployment_name:
            return found, ""
        host = await self.get(FLINK_DEPLOYMENT, namespace, found.deployment_name)
        return replace(found, cluster=None if host is None else resource_of(host, FLINK_DEPLOYMENT)), ""

    def _check(self, call: Call) -> None:
        if self.away or call.namespace == "away":
            raise ApiFailed(call, f"cannot {call}: {self.away or 'connection refused'}")
        if f"{call.verb} {call.resource}" in self.denied:
            raise ApiFailed(call, f"may not {call} (403): forbidden", 403, "Forbidden")
        if not self.defined:
            raise ApiFailed(call, f"cannot {call} (404): the response is not of a Kubernetes API", 404)

    def _change(self, kind: Kind, before: Mapping[str, Any], now: dict[str, Any], manager: str) -> None:
        metadata = dict(now["metadata"])
        old, new = before.get("spec"), now["spec"]
        metadata["generation"] = metadata.get("generation", 0) + (old != new)
        metadata["resourceVersion"] = str(next(self._versions))
        metadata["managedFields"] = self._owners(metadata.get("managedFields", []), old, new, manager)
        self._objects[kind.kind, metadata["name"]] = {**now, "metadata": metadata}

    def _owners(self, owners: list[Any], old: Any, new: Any, manager: str) -> list[Any]:
        """Give each changed field of two levels to the manager, and take it from the others."""
        before, now = _paths(old or {}), _paths(new)
        changed = {path for path in now if before.get(path) != now[path]}
        found = {each["manager"]: each for each in owners}
        at = self.operator.clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found.setdefault(manager, {"manager": manager, "paths": []})
        result = []
        for name, each in found.items():
            paths = {tuple(path) for path in each["paths"]}
            paths = (paths | changed if name == manager else paths - changed) & now.keys()
            fields: dict[str, Any] = {}
            for first, second in paths:
                fields.setdefault(f"f:{first}", {})[f"f:{second}"] = {}
            if not paths:
                continue
            time = at if name == manager else each["time"]
            result.append({"manager": name, "time": time, "paths": sorted(paths), "fieldsV1": {"f:spec": fields}})
        return result


def _paths(spec: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    found = {}
    for key, each in spec.items():
        found.update(
            {(key, inner): value for inner, value in each.items()} if isinstance(each, dict) else {(key, ""): each}
        )
    return found


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a JSON merge patch."""
    found = dict(one)
    for key, each in other.items():
        if each is None:
            found.pop(key, None)
        elif isinstance(each, Mapping):
            there = found.get(key)
            found[key] = _merged(there if isinstance(there, Mapping) else {}, each)
        else:
            found[key] = each
    return found
