"""Kubernetes objects for tests, as the API server returns them."""

from typing import Any

from tests.unit.engines.kubernetes.memory_cluster import MemoryCluster
from weir_contracts.target import KubernetesTarget, Workload
from weir_engines.kubernetes.discovery import Kind

CREW = Kind("example.org", "v1", "Crew", "crews")
NAMESPACE = "shop"
STARTED = "2026-03-01T10:00:00Z"


def workload(
    name: str = "orders", replicas: int = 3, *, kind: str = "Deployment", ready: int | None = None, **status: Any
) -> dict[str, Any]:
    """A workload whose replicas are all ready, unless `ready` says otherwise."""
    ready = replicas if ready is None else ready
    counts = {"replicas": replicas, "updatedReplicas": replicas, "readyReplicas": ready, "observedGeneration": 1}
    own = kind in ("Deployment", "StatefulSet")
    return {
        "apiVersion": "apps/v1" if own else "example.org/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "creationTimestamp": STARTED},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"spec": {"version": 1}},
        },
        "status": {**counts, **({} if own else {"selector": f"app={name}"}), **status},
    }


def pod(
    name: str = "orders-1", app: str = "orders", *, ready: bool = True, cpu: str = "1", **status: Any
) -> dict[str, Any]:
    """A running pod, with a CPU limit."""
    resources = {"limits": {"cpu": cpu, "memory": "512Mi"}} if cpu else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {
            "phase": "Running",
            "startTime": STARTED,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            **status,
        },
    }


def controlled(document: dict[str, Any], kind: str, name: str, **labels: str) -> dict[str, Any]:
    """The pod as an object of that kind and name controls it, with more labels."""
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-of-{name}", "controller": True}
    metadata = document["metadata"]
    return {
        **document,
        "metadata": {**metadata, "labels": {**metadata["labels"], **labels}, "ownerReferences": [owner]},
    }


def cluster(replicas: int = 3, name: str = "orders") -> MemoryCluster:
    """A cluster with one Deployment and its pods."""
    found = MemoryCluster([CREW])
    found.put(workload(name, replicas))
    for i in range(replicas):
        found.put(pod(f"{name}-{i}", name))
    return found


def target(*names: str, inputs: dict[str, list[str]] | None = None) -> KubernetesTarget:
    """A target of one Deployment, or of several."""
    if len(names) == 1:
        return KubernetesTarget(kind="Deployment", name=names[0])
    refs = [Workload(kind="Deployment", name=name, inputs=(inputs or {}).get(name, [])) for name in names]
    return KubernetesTarget(workloads=refs)
