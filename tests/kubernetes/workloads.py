"""Manifests of workloads whose pods behave as a test asks (testbed/kwok.yaml)."""

from typing import Any


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
