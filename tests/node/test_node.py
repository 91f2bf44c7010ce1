"""The node itself: pods run restricted, are scaled, find one another by name, reach no other machine, and leave
nothing."""

import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from testbed.kubernetes import is_ready
from testbed.node import KubernetesNode
from testbed.process import TestbedError, wait_until

from .servers import RESTRICTED, deployment, service

NAMESPACE = "restricted"
SECONDS = 120


@pytest.fixture(scope="module")
def servers(node: KubernetesNode) -> Iterator[str]:
    """Two pods and a service of theirs, in a namespace whose pods must be restricted; the deployment's name."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    node.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    node.cluster.apply(deployment("web", RESTRICTED), service("web"), namespace=NAMESPACE)
    node.wait_available(NAMESPACE, SECONDS)
    yield "web"
    node.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def names(node: KubernetesNode, deployment_name: str) -> set[str]:
    """Return the names of a deployment's ready pods."""
    pods = node.pods(NAMESPACE, f"app={deployment_name}")
    return {pod["metadata"]["name"] for pod in pods if is_ready(pod)}


def inside(node: KubernetesNode, deployment_name: str, code: str) -> str:
    """Return what Python code prints in one of the pods."""
    target = f"deployment/{deployment_name}"
    return node.cluster.kubectl("exec", "-n", NAMESPACE, target, "--", "python3", "-c", code).strip()


def test_a_restricted_pod_has_no_more_rights(node: KubernetesNode, servers: str) -> None:
    """Another user than root, without capabilities, on a root file system that cannot be written, under seccomp."""
    status = inside(node, servers, "print(open('/proc/self/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["10001"] * 4
    assert int(fields["CapEff"], 16) == 0
    assert fields["Seccomp"].strip() == "2"
    with pytest.raises(TestbedError, match="Read-only file system"):
        inside(node, servers, "open('/written', 'w')")
    assert "serving" in node.cluster.kubectl("logs", "-n", NAMESPACE, f"deployment/{servers}")


def test_a_pod_that_is_not_restricted_is_refused(node: KubernetesNode, servers: str) -> None:
    """The API server enforces what the namespace's label says; the reason is in the replica set's events."""
    node.cluster.apply(deployment("loose", {}, replicas=1), namespace=NAMESPACE)
    try:
        wait_until(
            lambda: "violates PodSecurity" in node.cluster.kubectl("get", "events", "-n", NAMESPACE, "-o", "json"),
            timeout_seconds=SECONDS,
            what="refusal of a pod",
        )
        assert node.pods(NAMESPACE, "app=loose") == []
    finally:
        node.cluster.kubectl("delete", "deployment", "loose", "-n", NAMESPACE)


def test_replicas_follow_the_scale(node: KubernetesNode, servers: str) -> None:
    """Through the scale subresource; pods start and stop."""
    for replicas in (3, 2):
        node.cluster.kubectl("scale", f"deployment/{servers}", f"--replicas={replicas}", "-n", NAMESPACE)
        settled = partial(has_replicas, node, servers, replicas)
        wait_until(settled, timeout_seconds=SECONDS, what=f"{replicas} ready pods")


def has_replicas(node: KubernetesNode, deployment_name: str, replicas: int) -> bool:
    """Return whether a deployment has this many pods, all ready."""
    return len(names(node, deployment_name)) == len(node.pods(NAMESPACE, f"app={deployment_name}")) == replicas


def test_a_service_is_found_by_its_name_and_reaches_every_pod(node: KubernetesNode, servers: str) -> None:
    """By DNS and the service's address, from a pod of the same bridge."""
    code = "import urllib.request as u\nprint(*(u.urlopen('http://web.restricted.svc', timeout=5).read().decode() for _ in range(30)))"
    assert set(inside(node, servers, code).split()) == names(node, servers)


def test_this_machine_reaches_a_service_by_its_address(node: KubernetesNode, servers: str) -> None:
    """The address stays on this machine: its route ends at the node's bridge."""
    address = node.service_address(NAMESPACE, servers)
    route = subprocess.run(["ip", "route", "get", address], capture_output=True, text=True, check=True).stdout
    assert " dev weir-node " in route
    code = f"import urllib.request as u\nprint(u.urlopen('http://{address}', timeout=5).read().decode())"
    done = subprocess.run(["python3", "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() in names(node, servers)


def test_a_pod_has_no_route_to_other_machines(node: KubernetesNode, servers: str) -> None:
    """The routing table has pods, services and the API server, and no default. Reading it sends nothing."""
    table = inside(node, servers, "print(open('/proc/net/route').read())").splitlines()[1:]
    destinations = {bytes.fromhex(line.split()[1])[::-1] for line in table}
    assert {".".join(map(str, each)) for each in destinations} == {"10.88.0.0", "10.89.0.1", "10.96.0.0"}


def test_usage_of_pods_is_measured(node: KubernetesNode, servers: str) -> None:
    """metrics.k8s.io has the memory of processes that run."""
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/pods"

    used: list[str] = []

    def measured() -> bool:
        items = node.cluster.request("GET", path)["items"]
        used[:] = [each["usage"]["memory"] for item in items for each in item["containers"]]
        return len(used) >= 2

    wait_until(measured, timeout_seconds=SECONDS, what="metrics of pods")
    assert all(1000 < int(each.removesuffix("Ki")) < 65536 for each in used), used


def test_a_claim_gets_a_volume_that_any_user_may_write(node: KubernetesNode, servers: str) -> None:
    """As the analyzer's: claimed, bound to the pod's node and owned by the pod's group."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "state"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    keeper = deployment("keeper", RESTRICTED, replicas=1)
    pod = keeper["spec"]["template"]["spec"]
    pod["securityContext"] = {"fsGroup": 10001}
    pod["volumes"] = [{"name": "state", "persistentVolumeClaim": {"claimName": "state"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "state", "mountPath": "/state"}]
    node.cluster.apply(claim, keeper, namespace=NAMESPACE)
    node.wait_available(NAMESPACE, SECONDS)
    inside(node, "keeper", "open('/state/kept', 'w').write('kept')")
    (before,) = names(node, "keeper")
    node.cluster.kubectl("delete", "pod", before, "-n", NAMESPACE, timeout_seconds=SECONDS)
    wait_until(lambda: names(node, "keeper") - {before}, timeout_seconds=SECONDS, what="the pod's successor")
    assert inside(node, "keeper", "print(open('/state/kept').read())") == "kept"
