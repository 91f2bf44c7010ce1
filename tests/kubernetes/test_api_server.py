"""The test cluster itself: its API, its rights, its simulated pods, and that nothing of it outlives its end."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes.utils.quantity import parse_quantity

from testbed.kubernetes import KubernetesCluster
from testbed.process import TestbedError, wait_until
from testbed.register import living
from tests.kubernetes.workloads import deployment, limit_pods

TIMEOUT_SECONDS = 60.0


def _pods(cluster: KubernetesCluster, namespace: str, name: str) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3D{name}"
    found: list[dict[str, Any]] = cluster.request("GET", path)["items"]
    return found


def _ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _wait_pods(cluster: KubernetesCluster, namespace: str, name: str, count: int) -> list[dict[str, Any]]:
    def started() -> list[dict[str, Any]] | None:
        pods = _pods(cluster, namespace, name)
        return pods if len(pods) == count and all("containerStatuses" in pod["status"] for pod in pods) else None

    return wait_until(started, timeout_seconds=TIMEOUT_SECONDS, what=f"{count} pods of {name}")


def _wait_ready(cluster: KubernetesCluster, namespace: str, name: str, count: int) -> None:
    wait_until(
        lambda: sum(_ready(pod) for pod in _pods(cluster, namespace, name)) == count,
        timeout_seconds=TIMEOUT_SECONDS,
        what=f"{count} ready pods of {name}",
    )


def test_it_is_the_version_that_it_is_meant_to_be(cluster: KubernetesCluster) -> None:
    """The API server is the one that was built, with a node that is ready."""
    assert cluster.request("GET", "/version")["gitVersion"] == "v1.34.2"
    assert "Ready" in cluster.kubectl("get", "nodes")


def test_a_request_without_a_token_is_refused(cluster: KubernetesCluster) -> None:
    """There is no anonymous access."""
    with cluster.admin.client() as client:
        del client.headers["Authorization"]
        assert client.get("/api/v1/namespaces").status_code == 401


def test_rights_are_denied_by_name(cluster: KubernetesCluster, namespace: str) -> None:
    """An identity may do what its rules say; the refusal of anything else names verb, resource and namespace."""
    cluster.apply(deployment("orders"), namespace=namespace)
    reader = cluster.identity(
        "reader", [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}], namespace=namespace
    )
    with reader.client() as client:
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/orders"
        assert client.get(path).status_code == 200
        refused = client.patch(
            f"{path}/scale",
            json={"spec": {"replicas": 2}},
            headers={"Content-Type": "application/merge-patch+json"},
        )
    assert refused.status_code == 403
    message = refused.json()["message"]
    assert 'cannot patch resource "deployments/scale"' in message and f'in the namespace "{namespace}"' in message
    with pytest.raises(TestbedError, match="cannot list resource"):
        cluster.kubectl("get", "pods", "-n", "default", access=reader)


def test_the_audit_log_has_each_request_of_a_user(cluster: KubernetesCluster, namespace: str) -> None:
    """Verb, resource with subresource, name and code of each request, so that roles can be compared with it."""
    user = cluster.identity(
        "audited", [{"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get"]}], namespace=namespace
    )
    with user.client() as client:
        client.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/absent/scale")
        client.get(f"/api/v1/namespaces/{namespace}/pods")
    events = wait_until(
        lambda: found if len(found := cluster.audit(user.user)) == 2 else None,
        timeout_seconds=TIMEOUT_SECONDS,
        what="two audit events",
    )
    assert [(e.verb, e.group, e.resource, e.name, e.code) for e in events] == [
        ("get", "apps", "deployments/scale", "absent", 404),
        ("list", "", "pods", "", 403),
    ]


def test_a_deleted_account_is_no_longer_let_in(cluster: KubernetesCluster, namespace: str) -> None:
    """Its token ends with it, as an expired one does: 401."""
    user = cluster.identity("leaver", [], namespace=namespace)
    with user.client() as client:
        assert client.get(f"/api/v1/namespaces/{namespace}/pods").status_code == 403
        cluster.kubectl("delete", "serviceaccount", "leaver", "-n", namespace)
        wait_until(
            lambda: client.get(f"/api/v1/namespaces/{namespace}/pods").status_code == 401,
            timeout_seconds=TIMEOUT_SECONDS,
            what="token invalid",
        )


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_workload_scales_through_its_subresource(cluster: KubernetesCluster, namespace: str, kind: str) -> None:
    """A write of `/scale` with the resource version read before changes the pods; a second one with it is a conflict."""
    cluster.apply(deployment("orders", 2, kind=kind), namespace=namespace)
    path = f"/apis/apps/v1/namespaces/{namespace}/{kind.lower()}s/orders/scale"

    def scaled() -> dict[str, Any] | None:
        # The controller's own writes, of the status, may come between reading and writing.
        scale: dict[str, Any] = cluster.request("GET", path)
        try:
            cluster.request("PUT", path, {**scale, "spec": {"replicas": 4}})
        except TestbedError as error:
            assert " 409 " in str(error)
            return None
        return scale

    scale = wait_until(scaled, timeout_seconds=TIMEOUT_SECONDS, what="a write of /scale")
    assert scale["status"]["selector"] == "app=orders"
    with pytest.raises(TestbedError, match="409"):
        cluster.request("PUT", path, scale)
    _wait_ready(cluster, namespace, "orders", 4)
    cluster.kubectl("scale", kind.lower(), "orders", "--replicas=1", "-n", namespace)
    wait_until(
        lambda: len(_pods(cluster, namespace, "orders")) == 1, timeout_seconds=TIMEOUT_SECONDS, what="one pod left"
    )


def test_a_slow_pod_becomes_ready_after_its_time(cluster: KubernetesCluster, namespace: str) -> None:
    """It runs and is not ready until the seconds of its annotation have passed."""
    cluster.apply(deployment("slow", ready_after="5s"), namespace=namespace)
    pod = _wait_pods(cluster, namespace, "slow", 1)[0]
    assert pod["status"]["phase"] == "Running" and not _ready(pod)
    _wait_ready(cluster, namespace, "slow", 1)
    times = {
        each["type"]: each["lastTransitionTime"]
        for each in _pods(cluster, namespace, "slow")[0]["status"]["conditions"]
    }
    assert times["Ready"] > times["Initialized"]


@pytest.mark.parametrize(
    ("behaviour", "reason", "code"), [("crash-loop", "Error", 1), ("out-of-memory", "OOMKilled", 137)]
)
def test_a_crashing_pod_counts_its_restarts(
    cluster: KubernetesCluster, namespace: str, behaviour: str, reason: str, code: int
) -> None:
    """It never becomes ready; its last state says why it ended."""
    cluster.apply(deployment("crashing", behaviour=behaviour), namespace=namespace)

    def crashed_twice() -> dict[str, Any] | None:
        for pod in _pods(cluster, namespace, "crashing"):
            for container in pod["status"].get("containerStatuses", []):
                if container["restartCount"] >= 2 and container["state"].get("waiting"):
                    return {**container, "pod_ready": _ready(pod)}
        return None

    container = wait_until(crashed_twice, timeout_seconds=TIMEOUT_SECONDS, what="two restarts")
    assert container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    ended = container["lastState"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == (reason, code)
    assert not container["pod_ready"]


def test_a_pod_that_is_never_ready(cluster: KubernetesCluster, namespace: str) -> None:
    """It runs without being ready, until its annotation is taken away."""
    cluster.apply(deployment("stuck", behaviour="never-ready"), deployment("fine"), namespace=namespace)
    _wait_ready(cluster, namespace, "fine", 1)
    pod = _wait_pods(cluster, namespace, "stuck", 1)[0]
    assert pod["status"]["phase"] == "Running" and not _ready(pod)
    cluster.kubectl("annotate", "pod", pod["metadata"]["name"], "testbed.weir.dev/behaviour-", "-n", namespace)
    _wait_ready(cluster, namespace, "stuck", 1)


def test_a_pod_whose_image_is_missing(cluster: KubernetesCluster, namespace: str) -> None:
    """It stays Pending and its container says that the image cannot be pulled."""
    cluster.apply(deployment("typo", behaviour="image-missing"), namespace=namespace)
    pod = _wait_pods(cluster, namespace, "typo", 1)[0]
    assert pod["status"]["phase"] == "Pending"
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"


def test_a_pod_that_no_node_takes(cluster: KubernetesCluster, namespace: str) -> None:
    """The scheduler says that it is unschedulable, and why."""
    wanting = deployment("wanting")
    wanting["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "fast"}
    cluster.apply(wanting, namespace=namespace)

    def unschedulable() -> str | None:
        for pod in _pods(cluster, namespace, "wanting"):
            for each in pod["status"].get("conditions", []):
                if each["type"] == "PodScheduled" and each["reason"] == "Unschedulable":
                    return str(each["message"])
        return None

    message = wait_until(unschedulable, timeout_seconds=TIMEOUT_SECONDS, what="an unschedulable pod")
    assert "node affinity/selector" in message


def test_a_quota_denies_pods(cluster: KubernetesCluster, namespace: str) -> None:
    """A quota of three pods lets three of five exist, and the Deployment names it."""
    limit_pods(cluster, namespace, 3, name="three")
    cluster.apply(deployment("many", 5), namespace=namespace)
    _wait_ready(cluster, namespace, "many", 3)
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/many"

    def failure() -> str | None:
        conditions = cluster.request("GET", path)["status"].get("conditions", [])
        return next((c["message"] for c in conditions if c["type"] == "ReplicaFailure"), None)

    assert "exceeded quota: three" in wait_until(failure, timeout_seconds=TIMEOUT_SECONDS, what="ReplicaFailure")


def test_simulated_usage_is_served_as_metrics(cluster: KubernetesCluster, namespace: str) -> None:
    """metrics.k8s.io has the usage that a pod's annotations ask for, through a real metrics-server, under RBAC."""
    cluster.apply(deployment("busy", 2, cpu="250m", memory="64Mi"), namespace=namespace)
    reader = cluster.identity(
        "usage-reader",
        [{"apiGroups": ["metrics.k8s.io"], "resources": ["pods"], "verbs": ["list"]}],
        namespace=namespace,
    )

    def usages() -> list[dict[str, str]] | None:
        with reader.client() as client:
            items = client.get(f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods").json()["items"]
        return [pod["containers"][0]["usage"] for pod in items] if len(items) == 2 else None

    for usage in wait_until(usages, timeout_seconds=2 * TIMEOUT_SECONDS, what="metrics of two pods"):
        assert float(parse_quantity(usage["cpu"])) == pytest.approx(0.25, rel=0.1)
        assert parse_quantity(usage["memory"]) == 64 * 2**20


def test_pod_security_is_enforced(cluster: KubernetesCluster) -> None:
    """A pod that is not restricted is refused in a namespace that enforces it."""
    name = "test-restricted"
    cluster.create_namespace(name, {"pod-security.kubernetes.io/enforce": "restricted"})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loose"},
        "spec": deployment("x")["spec"]["template"]["spec"],
    }
    try:
        with pytest.raises(TestbedError, match='violates PodSecurity "restricted:latest"'):
            cluster.apply(pod, namespace=name)
    finally:
        cluster.request("DELETE", f"/api/v1/namespaces/{name}")


def test_a_second_start_keeps_what_was_stored_and_nothing_is_left(tmp_path: Path) -> None:
    """The API server may be killed and started alone; all objects survive; the end leaves no process."""
    cluster = KubernetesCluster(tmp_path / "cluster")
    with cluster:
        authority = cluster.authority.certificate.read_bytes()
        cluster.apply(deployment("kept", 3), namespace="default")
        _wait_ready(cluster, "default", "kept", 3)
        cluster.api_server.kill()
        with pytest.raises(httpx.ConnectError):
            cluster.request("GET", "/version")
        cluster.start_api_server()
        cluster.kubectl("scale", "deployment", "kept", "--replicas=2")
        wait_until(
            lambda: len(_pods(cluster, "default", "kept")) == 2, timeout_seconds=TIMEOUT_SECONDS, what="two pods"
        )
    assert not living(tmp_path)
    with cluster:
        assert cluster.authority.certificate.read_bytes() == authority
        assert len(_pods(cluster, "default", "kept")) == 2
    assert not living(tmp_path)
