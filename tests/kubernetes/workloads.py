"""Manifests of workloads whose pods behave as a test asks (testbed/kwok.yaml), and a limit of their number."""

from typing import Any

from testbed.kubernetes import KubernetesCluster
from testbed.process import wait_until


def deployment(name: str, replicas: int = 1, *, kind: str = "Deployment", **annotations: str) -> dict[str, Any]:
    """Return a Deployment or StatefulSet of one container; `annotations` of its pods without prefix, `_` for `-`.

    `ready_after="2s"` makes pods slow; `behaviour`: see testbed/kwok.yaml.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            **({"serviceName": name} if kind == "StatefulSet" else {}),
            "template": {
                "metadata": {
                    "labels": {"app": name},
                    "annotations": {
                        f"testbed.weir.dev/{key.replace('_', '-')}": value for key, value in annotations.items()
                    },
                },
                "spec": {"containers": [{"name": "main", "image": "example/main:1"}]},
            },
        },
    }


def limit_pods(cluster: KubernetesCluster, namespace: str, count: int, name: str = "few") -> None:
    """Create a quota, and wait until the API server counts by it: before, it admits more pods."""
    spec = {"hard": {"pods": str(count)}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}
    cluster.apply(quota, namespace=namespace)
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/{name}"
    wait_until(
        lambda: cluster.request("GET", path).get("status", {}).get("hard"), timeout_seconds=30, what="the quota counts"
    )
