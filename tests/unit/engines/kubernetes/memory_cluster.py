"""In-memory cluster, which passes the same suite as `KubernetesWorkloads`."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes.api import ApiFailed, Call
from weir_engines.kubernetes.cluster import WorkloadsReading, join
from weir_engines.kubernetes.discovery import Kind, chosen
from weir_engines.kubernetes.pods import pod_of
from weir_engines.kubernetes.polled import PodUsage, Usage
from weir_engines.kubernetes.values import mapping
from weir_engines.kubernetes.workloads import has_own_replicas, workload_of

DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
_BUILT_IN = (DEPLOYMENT, STATEFUL_SET, Kind("batch", "v1", "Job", "jobs", is_scalable=False))


class MemoryCluster:
    """Objects as documents of the API. `break_down` and `deny` make reads fail as the API server's do."""

    def __init__(self, kinds: Sequence[Kind] = ()) -> None:
        self.kinds = [*_BUILT_IN, *kinds]
        self.usage: dict[str, PodUsage] = {}
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._away = ""
        self._denied: set[str] = set()

    async def close(self) -> None:
        """Do nothing: no connection was opened."""

    def put(self, document: Mapping[str, Any]) -> None:
        """Create an object, or replace it; another `spec` is another generation."""
        metadata = dict(document["metadata"])
        key = (str(document["kind"]), str(metadata["namespace"]), str(metadata["name"]))
        before = self._objects.get(key, {})
        old = mapping(before.get("metadata"))
        changed = document.get("spec") != before.get("spec")
        metadata["uid"] = old.get("uid") or f"uid-{next(self._uids)}"
        metadata["generation"] = int(old.get("generation", 0)) + changed
        metadata["resourceVersion"] = str(next(self._versions))
        self._objects[key] = {**document, "metadata": metadata}

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object; one that is created again has another uid."""
        del self._objects[kind, namespace, name]

    def document(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return an object."""
        return self._objects[kind, namespace, name]

    def break_down(self, reason: str = "the API server cannot be reached") -> None:
        """Begin an outage: every read fails with `reason`."""
        self._away = reason

    def mend(self) -> None:
        """End the outage."""
        self._away = ""

    def deny(self, resource: str) -> None:
        """Take the right to list a resource away."""
        self._denied.add(resource)

    async def read(self, namespace: str, refs: Sequence[WorkloadRef], *, usage: bool = False) -> WorkloadsReading:
        """Return the workloads `refs` with their pods."""
        kinds = [chosen(self.kinds, ref.kind, ref.api_version) for ref in refs]
        for resource in ("pods", *(kind.resource for kind in kinds)):
            call = Call("list", resource, namespace)
            if self._away:
                raise ApiFailed(call, f"cannot {call}: {self._away}")
            if resource in self._denied:
                raise ApiFailed(call, f"may not {call} (403): forbidden", 403, "Forbidden")
        pods = [pod_of(each) for (kind, at, _), each in self._objects.items() if (kind, at) == ("Pod", namespace)]
        found = {}
        for ref, kind in zip(refs, kinds, strict=True):
            document = self._objects.get((kind.kind, namespace, ref.name))
            workload = None if document is None else workload_of(document, kind)
            if workload is not None and not has_own_replicas(kind):
                workload = workload.with_scale(_scale(document))
            if workload is not None:
                found[ref.name] = join(workload, [pod for pod in pods if pod], named=len(refs) > 1)
        return WorkloadsReading(found, usage=Usage(self.usage) if usage else Usage())


def _scale(document: Any) -> dict[str, Any]:
    """Return the scale subresource, for a kind with the usual paths."""
    spec, status = mapping(document["spec"]), mapping(document.get("status"))
    return {
        "kind": "Scale",
        "metadata": document["metadata"],
        "spec": {"replicas": spec.get("replicas", 0)},
        "status": {"replicas": status.get("replicas", 0), "selector": status.get("selector", "")},
    }
