"""An overlay of the demonstration on the node, with images that are built here."""

import base64
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from testbed.bootstrap import PROJECT
from testbed.node import KubernetesNode
from testbed.process import TestbedError, wait_until

from .images import provide

OVERLAYS = PROJECT / "deploy" / "k8s" / "overlays"
DEFINITION = OVERLAYS.parent / "components" / "policy-resources" / "scalingpolicies.json"
WEIR, SAMPLE = "weir", "demo"
"""The overlays' namespaces: the loop, and what it scales."""
EXECUTOR = f"system:serviceaccount:{WEIR}:executor"
READY_SECONDS = 600
GONE_SECONDS = 180


class NodeStack:
    """An overlay on one node, controlled by kubectl as its user would: `demo`, `reactive` or `kafka-streams`."""

    def __init__(self, node: KubernetesNode, overlay: str = "demo") -> None:
        self.node = node
        self._folder = OVERLAYS / overlay

    def manifests(self) -> list[dict[str, Any]]:
        """Return the overlay's objects as kubectl renders them."""
        return list(yaml.safe_load_all(self.node.cluster.kubectl("kustomize", str(self._folder))))

    def images(self) -> list[str]:
        """Return the images that the overlay's pods name."""
        specs = [each["spec"]["template"]["spec"] for each in self.manifests() if "template" in each.get("spec", {})]
        return sorted({c["image"] for s in specs for c in (*s["containers"], *s.get("initContainers", ()))})

    def up(self, report: Callable[[str], None] = lambda _: None) -> float:
        """Apply the overlay and wait until every deployment is available; return the seconds that took."""
        self.load_images(report)
        report(f"kubectl apply -k {self._folder.relative_to(PROJECT)}")
        began = time.monotonic()
        self.apply()
        return time.monotonic() - began

    def load_images(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Give the node the images that the overlay's pods name."""
        provide(self.node, self.images(), report)

    def apply(self) -> None:
        """Apply the overlay and wait until every deployment is available."""
        self.node.cluster.kubectl("apply", "-f", str(DEFINITION))
        self.node.cluster.kubectl("apply", "--server-side", "-k", str(self._folder), timeout_seconds=READY_SECONDS)
        for namespace in (WEIR, SAMPLE):
            self.node.wait_available(namespace, READY_SECONDS)

    def change_policy(self, **spec: Any) -> None:
        """Change fields of the `spec` of the sample's policy, a resource, as its user does."""
        patch = json.dumps({"spec": spec})
        self.node.cluster.kubectl("patch", "scalingpolicy", "orders", "-n", SAMPLE, "--type=merge", f"--patch={patch}")

    def policy_status(self) -> dict[str, Any]:
        """Return the status of the sample's policy, with its conditions as `{"Ready": "True", …}`."""
        path = f"/apis/weir.dev/v1alpha1/namespaces/{SAMPLE}/scalingpolicies/orders"
        status = self.node.cluster.request("GET", path).get("status", {})
        return {**status, "conditions": {each["type"]: each["status"] for each in status.get("conditions", [])}}

    def scaled_by(self, workload: str) -> set[str]:
        """Return who changed a workload's replicas through `/scale`, by the API server's audit log: after a server-side
        apply, managed fields do not name them."""
        return {
            event.user
            for event in self.node.cluster.audit()
            if (event.namespace, event.name) == (SAMPLE, workload)
            and event.resource.endswith("/scale")
            and event.verb in ("update", "patch")
        }

    def down(self) -> None:
        """Delete all that the overlay has made."""
        command = ("delete", "-k", str(self._folder), "--ignore-not-found", f"--timeout={GONE_SECONDS}s")
        self.node.cluster.kubectl(*command, timeout_seconds=GONE_SECONDS + 30)

    def end(self) -> None:
        """Delete what is left of the overlay, if anything."""
        if self.left():
            self.down()

    def left(self) -> list[str]:
        """Return the overlay's objects that still exist."""
        return self.node.cluster.kubectl("get", "-k", str(self._folder), "--ignore-not-found", "-o", "name").split()

    def containers_left(self) -> list[str]:
        """Return the ids of containers of the overlay's pods."""
        return [each for namespace in (WEIR, SAMPLE) for each in self.node.containerd.containers(namespace)]

    def exec(self, service: str, *command: str) -> str:
        """Return the output of a command in one of a deployment's pods."""
        return self.node.cluster.kubectl(
            "exec", "-n", self._namespace(service), f"deployment/{service}", "--", *command
        )

    def kill(self, service: str) -> Sequence[str]:
        """Delete all pods of a deployment at once, without a chance to end in order; return their names."""
        names = [pod["metadata"]["name"] for pod in self.pods(service)]
        arguments = ("delete", "pod", *names, "-n", self._namespace(service), "--grace-period=1", "--wait=true")
        self.node.cluster.kubectl(*arguments, timeout_seconds=GONE_SECONDS)
        return names

    def healthy(self, service: str) -> bool:
        """Return whether all pods of a deployment are ready."""
        path = f"/apis/apps/v1/namespaces/{self._namespace(service)}/deployments/{service}"
        found = self.node.cluster.request("GET", path)
        return bool(found["status"].get("readyReplicas", 0) == found["spec"]["replicas"])

    def pods(self, service: str) -> list[dict[str, Any]]:
        """Return the pods of a deployment."""
        return self.node.pods(self._namespace(service), f"app.kubernetes.io/name={service}")

    def logs(self, *services: str, lines: int = 40) -> str:
        """Return the last lines of deployments' logs, and the pods of both namespaces."""
        found = [self.node.cluster.kubectl("get", "pods", "-A")]
        for service in services:
            try:
                chosen = ("-l", f"app.kubernetes.io/name={service}", "-n", self._namespace(service))
                found.append(self.node.cluster.kubectl("logs", *chosen, "--prefix", f"--tail={lines}"))
            except TestbedError as error:
                found.append(str(error))
        return "\n".join(found)

    def operator_token(self) -> str:
        """Return the token of the first start."""
        path = f"/api/v1/namespaces/{WEIR}/secrets/tokens"
        wait_until(lambda: self._has(path), timeout_seconds=READY_SECONDS, what="the tokens' secret")
        return base64.b64decode(self.node.cluster.request("GET", path)["data"]["operator"]).decode()

    def _has(self, path: str) -> bool:
        try:
            return bool(self.node.cluster.request("GET", path))
        except TestbedError:
            return False

    def _namespace(self, service: str) -> str:
        return SAMPLE if service in {"load", "sample-job", "jobmanager", "taskmanager", "streams"} else WEIR
