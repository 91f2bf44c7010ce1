"""A custom resource with a scale subresource, and the controller that keeps its pods."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from testbed.kubernetes import NODE, KubernetesCluster
from testbed.process import wait_until

GROUP, PLURAL = "shop.example", "workers"
PAUSE_SECONDS = 0.2
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def worker(name: str, replicas: int) -> dict[str, Any]:
    """Return a Worker, whose selector its controller writes into its status."""
    return {"apiVersion": f"{GROUP}/v1", "kind": "Worker", "metadata": {"name": name}, "spec": {"replicas": replicas}}


def definition(group: str = GROUP, *, scalable: bool = True) -> dict[str, Any]:
    """Return the definition of the kind Worker in a group."""
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    status = {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}}, "status": status},
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, **({"scale": scale} if scalable else {})},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": "worker", "kind": "Worker"},
            "versions": [version],
        },
    }


def define(cluster: KubernetesCluster, *definitions: dict[str, Any]) -> None:
    """Create definitions and wait until discovery lists them, which is later than their condition `Established`."""
    cluster.apply(*definitions)
    for each in definitions:
        wait_until(lambda each=each: _is_listed(cluster, each), timeout_seconds=60.0, what="a definition")  # type: ignore[misc]


def _is_listed(cluster: KubernetesCluster, definition: dict[str, Any]) -> bool:
    """Return whether discovery lists all versions of a definition with their subresources."""
    spec = definition["spec"]
    with cluster.admin.client() as client:
        document = client.get("/apis", headers={"Accept": DISCOVERY}).raise_for_status().json()
    listed = {
        version["version"]: {s["subresource"] for s in resource.get("subresources", [])}
        for group in document["items"]
        if group["metadata"]["name"] == spec["group"]
        for version in group["versions"]
        for resource in version["resources"]
        if resource["resource"] == spec["names"]["plural"]
    }
    return all(
        listed.get(each["name"]) == set(each.get("subresources", ())) for each in spec["versions"] if each["served"]
    )


class Controller:
    """Calls `keep` with each object at a path, again and again until it is closed."""

    def __init__(
        self, cluster: KubernetesCluster, path: str, keep: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self.path, self._keep = path, keep
        self.client = httpx.AsyncClient(
            base_url=cluster.url,
            headers={"Authorization": f"Bearer {cluster.admin.token}"},
            verify=ssl.create_default_context(cafile=str(cluster.admin.ca_file)),
            trust_env=False,
        )
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.client.aclose()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                for each in (await self.get(self.path))["items"]:
                    await self._keep(each)
            await asyncio.sleep(PAUSE_SECONDS)

    async def get(self, path: str) -> Any:
        response = await self.client.get(path)
        response.raise_for_status()
        return response.json()

    async def write_status(self, name: str, status: dict[str, Any], manager: str = "controller") -> None:
        await self.client.patch(
            f"{self.path}/{name}/status?fieldManager={manager}",
            json={"status": status},
            headers={"Content-Type": "application/merge-patch+json"},
        )


class WorkerController(Controller):
    """Keeps as many pods of each Worker of a namespace as it requests, the highest numbers removed first."""

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        super().__init__(cluster, f"/apis/{GROUP}/v1/namespaces/{namespace}/{PLURAL}", self._keep_pods)

    async def _keep_pods(self, worker: dict[str, Any]) -> None:
        name, wanted = worker["metadata"]["name"], worker["spec"]["replicas"]
        listed = (await self.get(f"{self._pods}?labelSelector=app%3D{name}"))["items"]
        there = {pod["metadata"]["name"] for pod in listed if "deletionTimestamp" not in pod["metadata"]}
        numbered = {f"{name}-{i}" for i in range(wanted)}
        for pod in numbered - there:
            metadata = {"name": pod, "labels": {"app": name}}
            spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "example/main:1"}]}
            await self.client.post(self._pods, json={"metadata": metadata, "spec": spec})
        for pod in there - numbered:
            await self.client.delete(f"{self._pods}/{pod}")
        status = {"replicas": len(there), "selector": f"app={name}"}
        if worker.get("status") != status:
            await self.write_status(name, status)
