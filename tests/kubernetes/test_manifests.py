"""deploy/k8s on a real API server: accepted, restricted, each account with exactly its rights, and nothing left
afterwards."""

import asyncio
import contextlib
import json
import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from testbed.kubernetes import KubernetesCluster, binary
from testbed.process import TestbedError, wait_until
from tests.kubernetes.workers import define
from tests.kubernetes.workloads import deployment
from tests.unit.deploy.manifests import FOLDER, in_another_namespace, manifests, rights, role
from tests.unit.engines.kubernetes.workloads_suite import until
from weir_cli.doctor import Finding
from weir_cli.doctor_kubernetes import RIGHTS, WEIR, Kubectl, examine, rights_findings
from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_engines.kubernetes.cluster import KubernetesWorkloads
from weir_engines.kubernetes.scaling import ApiWorkloads

DEADLINE_SECONDS = 300.0
DEFINITION = FOLDER / "components" / "policy-resources" / "scalingpolicies.json"
DEMO, REACTIVE, STREAMS, EXTERNAL = (f"overlays/{each}" for each in ("demo", "reactive", "kafka-streams", "external"))
ACCOUNTS = (*WEIR, "tokens")
RESOURCES = (
    ("", "pods"),
    ("", "pods/exec"),
    ("", "secrets"),
    ("", "configmaps"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("apps", "deployments"),
    ("apps", "deployments/scale"),
    ("apps", "statefulsets"),
    ("apps", "statefulsets/scale"),
    ("apps", "replicasets"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("keda.sh", "scaledobjects"),
    ("flink.apache.org", "flinkdeployments"),
    ("flink.apache.org", "flinksessionjobs"),
    ("weir.dev", "scalingpolicies"),
    ("weir.dev", "scalingpolicies/status"),
    ("metrics.k8s.io", "pods"),
    ("rbac.authorization.k8s.io", "roles"),
)
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
CLUSTER_WIDE = "clusterroles,clusterrolebindings,customresourcedefinitions,priorityclasses,storageclasses,namespaces"


def cluster_wide(cluster: KubernetesCluster) -> set[str]:
    """Return the names of all objects that an installation could leave outside its namespaces."""
    lines = cluster.kubectl("get", CLUSTER_WIDE, "--output", "name").splitlines()
    return {line for line in lines if not line.startswith("namespace/test-")}


@pytest.fixture(scope="module")
def installed(cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """The demonstration, as `kubectl apply -k` installs it, on a cluster that has volumes for its two claims."""
    before = cluster_wide(cluster)
    volumes = [volume(f"weir-{number}") for number in range(2)]
    cluster.apply(*volumes)
    define(cluster, json.loads(DEFINITION.read_text()))
    cluster.kubectl("apply", "-k", str(FOLDER / DEMO), timeout_seconds=DEADLINE_SECONDS)
    for namespace in ("weir", "demo"):
        wait = ("wait", "deployment", "--all", "--for=condition=Available", "--timeout=150s", "-n", namespace)
        cluster.kubectl(*wait, timeout_seconds=180)
    yield cluster
    cluster.kubectl("delete", "-k", str(FOLDER / DEMO), "--ignore-not-found", timeout_seconds=DEADLINE_SECONDS)
    cluster.kubectl("delete", "-f", str(DEFINITION))  # an error if the overlay had removed it
    for each in volumes:
        cluster.kubectl("delete", "pv", each["metadata"]["name"])
    assert cluster_wide(cluster) <= before, "something was left"


def jobs(cluster: KubernetesCluster) -> list[str]:
    listed = cluster.request("GET", "/apis/batch/v1/namespaces/weir/jobs")["items"]
    return [each["metadata"]["name"] for each in listed]


def volume(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"/tmp/{name}"},  # noqa: S108 - kwok mounts nothing
        },
    }


def test_all_pods_become_ready(installed: KubernetesCluster) -> None:
    """In both namespaces, under `restricted`, which the API server enforces; claims are bound, and Jobs end and are removed."""
    for namespace in ("weir", "demo"):
        listed = installed.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]
        replicas = {each["metadata"]["name"]: each["status"]["readyReplicas"] for each in listed}
        wanted = [each for each in manifests(DEMO) if each["kind"] == "Deployment"]
        assert replicas == {
            each["metadata"]["name"]: each["spec"]["replicas"]
            for each in wanted
            if each["metadata"]["namespace"] == namespace
        }
    wait_until(lambda: jobs(installed) == [], timeout_seconds=DEADLINE_SECONDS, what="the removal of all Jobs")


def test_what_was_applied_is_what_was_rendered(installed: KubernetesCluster) -> None:
    """Applied again there is nothing to change; every object of the overlay exists, but for Jobs, which have ended."""
    wait_until(lambda: jobs(installed) == [], timeout_seconds=DEADLINE_SECONDS, what="the removal of all Jobs")
    kept = [each for each in manifests(DEMO) if each["kind"] != "Job"]
    text = "\n---\n".join(json.dumps(each) for each in kept)
    assert installed.kubectl("diff", "-f", "-", stdin=text, timeout_seconds=DEADLINE_SECONDS) == ""
    assert len(installed.kubectl("get", "-f", "-", "-o", "name", stdin=text).splitlines()) == len(kept)


@pytest.mark.parametrize("overlay", [DEMO, REACTIVE, STREAMS, EXTERNAL])
def test_the_api_server_accepts_an_overlay(installed: KubernetesCluster, overlay: str) -> None:
    """Every field is known and valid, also where the demonstration is there: a dry run by the API server, strictly
    validated."""
    if overlay == EXTERNAL:
        installed.create_namespace("shop")
    try:
        objects = manifests(overlay)
        text = "\n---\n".join(json.dumps(each) for each in objects)
        options = ("--dry-run=server", "--validate=strict")
        done = installed.kubectl("apply", *options, "-f", "-", stdin=text).splitlines()
        assert len(done) == len(objects)
    finally:
        if overlay == EXTERNAL:
            installed.request("DELETE", "/api/v1/namespaces/shop")


def test_the_api_server_accepts_another_namespace(installed: KubernetesCluster, tmp_path: Path) -> None:
    """The overlay of docs/how-to/kubernetes.md for an installation in `streaming`: every field is known and valid, and no object
    is of the namespace `weir`. (That such accounts have their rights is what RoleBindings say: tests/unit/deploy.)"""
    objects = in_another_namespace(tmp_path, "streaming")
    created = ["streaming", "shop"]
    for each in created:
        installed.kubectl(
            "wait", "--for=delete", f"namespace/{each}", "--timeout=120s", timeout_seconds=DEADLINE_SECONDS
        )
        installed.create_namespace(each)
    try:
        text = "\n---\n".join(json.dumps(each) for each in objects)
        options = ("--dry-run=server", "--validate=strict", "-f", "-")
        done = installed.kubectl("apply", *options, stdin=text, timeout_seconds=DEADLINE_SECONDS).splitlines()
        assert len(done) == len(objects)
        assert all(line.endswith("(server dry run)") for line in done)
        assert "weir" not in {each["metadata"].get("namespace") for each in objects}
    finally:
        installed.kubectl("delete", "namespace", *created, timeout_seconds=DEADLINE_SECONDS)


def test_pod_security_refuses_a_later_edit(installed: KubernetesCluster) -> None:
    """A deployment of the namespace that asks for more than `restricted` gets no pod, and says why."""
    loose = json.loads(installed.kubectl("get", "deployment", "monitor", "-n", "weir", "-o", "json"))
    spec = loose["spec"]
    spec["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    spec["template"]["metadata"]["labels"] = spec["selector"]["matchLabels"] = {"app": "loose"}
    installed.apply({**loose, "metadata": {"name": "loose"}, "status": {}}, namespace="weir")

    def refusal() -> str | None:
        found = installed.request("GET", "/apis/apps/v1/namespaces/weir/deployments/loose").get("status", {})
        return next((c["message"] for c in found.get("conditions", []) if c["type"] == "ReplicaFailure"), None)

    try:
        message = wait_until(refusal, timeout_seconds=DEADLINE_SECONDS, what="a refusal")
    finally:
        installed.kubectl("delete", "deployment", "loose", "-n", "weir")
    assert 'violates PodSecurity "restricted:latest"' in message
    assert "privileged" in message


def allowed(cluster: KubernetesCluster, account: str, namespace: str) -> set[tuple[str, str, str]]:
    """Return what an account may do in a namespace, of all resources and verbs that are tried."""
    found = set()
    with cluster.admin.client() as client:
        for group, resource in RESOURCES:
            for verb in VERBS:
                name, _, subresource = resource.partition("/")
                attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": name}
                review = {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SubjectAccessReview",
                    "spec": {
                        "user": f"system:serviceaccount:weir:{account}",
                        "groups": ["system:serviceaccounts:weir", "system:serviceaccounts", "system:authenticated"],
                        "resourceAttributes": {**attributes, "subresource": subresource},
                    },
                }
                answer = client.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
                if answer.json()["status"]["allowed"]:
                    found.add((group, resource, verb))
    return found


@pytest.mark.parametrize("account", list(RIGHTS))
def test_a_service_account_has_exactly_the_rights_of_its_role(installed: KubernetesCluster, account: str) -> None:
    """Every verb of every resource that matters, in the namespace that is scaled; elsewhere nothing."""
    wanted = {(group, resource, verb) for (group, resource), verbs in rights()[account].items() for verb in verbs}
    assert allowed(installed, account, "demo") == wanted


@pytest.mark.parametrize("account", ACCOUNTS)
def test_no_account_may_do_anything_elsewhere(installed: KubernetesCluster, account: str) -> None:
    """By the API server's own list of an account's rules, in its namespace and in another; all users may ask about
    themselves."""
    own = [rule["verbs"] for rule in rules(installed, account, "weir")]
    assert own == ([["create"]] if account == "tokens" else [])
    assert rules(installed, account, "kube-system") == []


def rules(cluster: KubernetesCluster, account: str, namespace: str) -> list[dict[str, Any]]:
    """Return the rules of an account in a namespace without those of every user."""
    spec = {"namespace": namespace}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": spec}
    with cluster.service_account(account, namespace="weir").client() as client:
        answer = client.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json=review).json()
    return [
        rule
        for rule in answer["status"]["resourceRules"]
        if not set(rule["apiGroups"]) <= {"authorization.k8s.io", "authentication.k8s.io"}
    ]


def requested(cluster: KubernetesCluster, account: str) -> set[tuple[str, str, str]]:
    """Return what an account has requested in the namespace demo, by the audit log."""
    events = cluster.audit(f"system:serviceaccount:weir:{account}")
    return {(each.group, each.resource, each.verb) for each in events if each.namespace == "demo"}


async def wait_requested(cluster: KubernetesCluster, account: str) -> set[tuple[str, str, str]]:
    """Return what an account's role grants, once the account has requested all of it."""
    granted = {(group, resource, verb) for (group, resource), verbs in rights()[account].items() for verb in verbs}
    with contextlib.suppress(TestbedError):  # the assertion names what is missing
        await asyncio.to_thread(
            wait_until, lambda: requested(cluster, account) >= granted, timeout_seconds=60.0, what=""
        )
    assert sorted(granted - requested(cluster, account)) == []
    return granted


async def test_no_right_of_the_monitor_is_superfluous(installed: KubernetesCluster) -> None:
    """Its collector's own requests, by the audit log, are all that its role grants; and none of them is denied.

    A StatefulSet whose first pod is not ready lacks the second one.
    """
    installed.apply(deployment("stateful", 2, kind="StatefulSet", behaviour="never-ready"), namespace="demo")
    access = installed.service_account("monitor", namespace="weir")
    api = KubernetesApi(Access(access.url, access.ca_file, access.token_file), timeout_seconds=30.0)
    workloads = KubernetesWorkloads(api, sync_seconds=60.0)
    refs = [WorkloadRef(kind="Deployment", name="taskmanager"), WorkloadRef(kind="StatefulSet", name="stateful")]
    try:
        reading = await until(
            lambda: workloads.read("demo", refs, usage=True),
            lambda reading: "stateful" in reading.found,
        )
        assert reading.found["taskmanager"].ready == 2
        granted = await wait_requested(installed, "monitor")
    finally:
        await workloads.close()
        await api.close()
        installed.kubectl("delete", "statefulset", "stateful", "-n", "demo")
    assert requested(installed, "monitor") == granted
    assert not [each for each in installed.audit("system:serviceaccount:weir:monitor") if each.code == 403]


async def test_no_right_of_the_executor_is_superfluous(installed: KubernetesCluster) -> None:
    """Nor one of its driver's, which writes the replicas that it has read."""
    installed.apply(deployment("stateful", 2, kind="StatefulSet", behaviour="never-ready"), namespace="demo")
    observed = "--for=jsonpath={.status.observedGeneration}=1"
    wait = ("wait", "statefulset/stateful", "-n", "demo", observed, "--timeout=30s")
    await asyncio.to_thread(installed.kubectl, *wait)
    access = installed.service_account("executor", namespace="weir")
    api = KubernetesApi(Access(access.url, access.ca_file, access.token_file), timeout_seconds=30.0)
    workloads = ApiWorkloads(api, sync_seconds=60.0)
    refs = [WorkloadRef(kind="Deployment", name="taskmanager"), WorkloadRef(kind="StatefulSet", name="stateful")]
    try:
        for name, found in (await workloads.read("demo", refs)).items():
            await workloads.scale(found, {"taskmanager": 2, "stateful": 2}[name])
        granted = await wait_requested(installed, "executor")
    finally:
        await workloads.close()
        installed.kubectl("delete", "statefulset", "stateful", "-n", "demo")
    assert requested(installed, "executor") == granted


@contextlib.contextmanager
def as_user(cluster: KubernetesCluster) -> Iterator[Kubectl]:
    """kubectl with the rights of the cluster's administrator, found on the PATH."""
    path = f"{Path(binary('kubectl')).parent}:{os.environ['PATH']}"
    with mock.patch.dict(os.environ, {"KUBECONFIG": str(cluster.admin.kubeconfig), "PATH": path}):
        yield Kubectl(None, "weir")


def diagnosed(cluster: KubernetesCluster) -> dict[str, Finding]:
    """Return the findings of `weir doctor --kubernetes` by the name of the check."""
    with as_user(cluster) as kubectl:
        return {each.check: each for each in examine(kubectl, "weir")}


def scaled(cluster: KubernetesCluster) -> httpx.Response:
    """Return the response to the executor's account that writes the replicas of a workload as they are."""
    path = "/apis/apps/v1/namespaces/demo/deployments/taskmanager/scale"
    with cluster.service_account("executor", namespace="weir").client() as client:
        return client.put(path, json=cluster.request("GET", path))


@contextlib.contextmanager
def without(cluster: KubernetesCluster, account: str, *taken: tuple[str, str, str]) -> Iterator[None]:
    """An account's role in the namespace demo without some rights: (group, resource, verb)."""
    applied = role(account)
    granted = [(g, r, verb) for (g, r), verbs in rights()[account].items() for verb in verbs]
    rules = [{"apiGroups": [g], "resources": [r], "verbs": [v]} for g, r, v in granted if (g, r, v) not in taken]
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/demo/roles/weir-{account}"
    cluster.request("PUT", path, {**applied, "rules": rules})
    try:
        yield
    finally:
        cluster.kubectl("apply", "-n", "demo", "-f", "-", stdin=json.dumps(applied))


def test_the_doctor_finds_an_installation_complete(installed: KubernetesCluster) -> None:
    """All pods and rights; without the right to update the scale, the API server refuses the executor by name."""
    found = diagnosed(installed)
    assert all(found[f"pods of {name}"].ok for name in WEIR)
    assert found["rights of monitor in demo"].ok
    assert found["rights of executor in demo"].ok
    assert scaled(installed).status_code == 200
    with without(installed, "executor", ("apps", "deployments/scale", "update")):
        wait_until(lambda: scaled(installed).status_code == 403, timeout_seconds=30, what="a refusal")
        assert 'cannot update resource "deployments/scale"' in scaled(installed).json()["message"]


@pytest.mark.parametrize(
    ("account", "group", "resource", "verb"),
    [
        (account, *each, verb)
        for account, granted in RIGHTS.items()
        for each, verbs in granted.items()
        for verb in verbs
    ],
)
def test_the_doctor_finds_each_verb_that_is_taken_away(
    installed: KubernetesCluster, account: str, group: str, resource: str, verb: str
) -> None:
    """By name, and no other one."""
    name = f"{resource}.{group}" if group else resource
    with without(installed, account, (group, resource, verb)), as_user(installed) as kubectl:
        wait_until(
            lambda: (
                [each.found for each in rights_findings(kubectl, account, ["demo"], "weir")]
                == [f"missing: {verb} {name}"]
            ),
            timeout_seconds=30,
            what=f"a finding that {account} may not {verb} {name}",
        )


def test_the_doctor_names_a_pod_that_does_not_start(installed: KubernetesCluster) -> None:
    """With the kubelet's reason and the remedy, until it starts."""
    annotation = {"testbed.weir.dev/behaviour": "image-missing"}
    patch = {"spec": {"template": {"metadata": {"annotations": annotation}}}}
    installed.kubectl("patch", "deployment", "planner", "-n", "weir", "-p", json.dumps(patch))

    def failing() -> Finding | None:
        found = diagnosed(installed)
        return next((each for name, each in found.items() if name.startswith("pod planner-")), None)

    try:
        finding = wait_until(failing, timeout_seconds=DEADLINE_SECONDS, what="a pod that does not start")
        assert finding.found.startswith("ImagePullBackOff")
        assert "images:" in finding.remedy
    finally:
        annotation["testbed.weir.dev/behaviour"] = None  # type: ignore[assignment]
        installed.kubectl("patch", "deployment", "planner", "-n", "weir", "-p", json.dumps(patch))
    installed.kubectl("rollout", "status", "deployment", "planner", "-n", "weir", "--timeout=60s", timeout_seconds=90)


def test_tokens_are_created_once(installed: KubernetesCluster, tmp_path: Path) -> None:
    """By the Job's own script and account, which can create the Secret and not read it."""
    access = installed.service_account("tokens", namespace="weir")
    for name, text in {"namespace": "weir", "token": access.token, "ca.crt": access.ca_file.read_text()}.items():
        (tmp_path / name).write_text(text)
    create = runpy.run_path(str(FOLDER / "base" / "tokens.py"))["create"]
    assert create(access.url, tmp_path) == "made new tokens"
    path = "/api/v1/namespaces/weir/secrets/tokens"
    first = installed.request("GET", path)["data"]
    assert create(access.url, tmp_path) == "the Secret exists already"
    assert installed.request("GET", path)["data"] == first
    volumes = [
        item["key"]
        for each in manifests(DEMO)
        if each["kind"] == "Deployment"
        for volume in each["spec"]["template"]["spec"].get("volumes", [])
        for source in volume.get("projected", {}).get("sources", [])
        for item in source["secret"]["items"]
    ]
    assert set(volumes) == first.keys() - {"metrics"}  # which a Prometheus sends
    with pytest.raises(TestbedError, match="cannot get resource"):
        installed.kubectl("get", "secret", "tokens", "-n", "weir", access=access)


def test_an_upgrade_as_the_guide_has_it(installed: KubernetesCluster, tmp_path: Path) -> None:
    """Other images and another setting by an overlay of one's own: all pods are replaced, and no Job is in the way."""
    images = [
        {"name": name, "newName": f"registry.example.org/{name}", "newTag": "next"}
        for name in ("weir", "weir-analyzer")
    ]
    changed = {"name": "settings", "namespace": "weir", "behavior": "merge", "literals": ["WEIR_LOG_LEVEL=DEBUG"]}
    overlay = {
        "resources": [os.path.relpath(FOLDER / DEMO, tmp_path)],
        "images": images,
        "configMapGenerator": [changed],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    wait_until(lambda: jobs(installed) == [], timeout_seconds=DEADLINE_SECONDS, what="the removal of all Jobs")
    installed.kubectl("apply", "-k", str(tmp_path), timeout_seconds=DEADLINE_SECONDS)
    for name in WEIR:
        rollout = ("rollout", "status", f"deployment/{name}", "-n", "weir", "--timeout=100s")
        installed.kubectl(*rollout, timeout_seconds=DEADLINE_SECONDS)
    pods = installed.request("GET", "/api/v1/namespaces/weir/pods?labelSelector=app.kubernetes.io/name")["items"]
    running = {
        pod["spec"]["containers"][0]["image"]
        for pod in pods
        if pod["metadata"]["labels"]["app.kubernetes.io/name"] in WEIR and not pod["metadata"].get("deletionTimestamp")
    }
    assert running == {"registry.example.org/weir:next", "registry.example.org/weir-analyzer:next"}
