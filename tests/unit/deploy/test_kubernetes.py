"""The manifests of deploy/k8s as kubectl renders them: every pod is restricted, every setting exists, every right has a
reason."""

import json
import os
import re
import runpy
import shutil
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from tests.mount import Mount
from weir_analyzer.settings import AnalyzerSettings
from weir_cli.doctor_kubernetes import RIGHTS, namespaces_of
from weir_contracts import ScalingPolicy, parse_policy
from weir_contracts.resource import document_of
from weir_executor.settings import Settings as ExecutorSettings
from weir_knowledge.settings import KnowledgeSettings
from weir_monitor.settings import MonitorSettings
from weir_planner.settings import PlannerSettings
from weir_runtime.settings import variable
from weir_runtime.topics import TopicsSettings
from workloads.sample_job import arguments as sample_costs

from .manifests import (
    FOLDER,
    PROJECT,
    WEIR,
    WORKLOADS,
    Manifest,
    allowed,
    containers,
    environment,
    in_another_namespace,
    kubectl,
    manifests,
    named,
    of_kind,
    pods,
)

DEMO, REACTIVE, STREAMS, EXTERNAL = (f"overlays/{each}" for each in ("demo", "reactive", "kafka-streams", "external"))
OVERLAYS = (DEMO, REACTIVE, STREAMS, EXTERNAL)
COMPOSE = FOLDER.parent / "compose"
SETTINGS: dict[str, type[BaseSettings]] = {
    "monitor": MonitorSettings,
    "analyzer": AnalyzerSettings,
    "planner": PlannerSettings,
    "executor": ExecutorSettings,
    "knowledge": KnowledgeSettings,
}
ANY_TOKENS = '{"a-token-of-some-length": {"name": "nobody", "role": "read"}}'
ALLOWED_VOLUMES = {"emptyDir", "configMap", "secret", "projected", "persistentVolumeClaim"}


def variables(model: type[BaseSettings]) -> set[str]:
    return {variable(model, name, info) for name, info in model.model_fields.items()}


def each_workload(overlay: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in of_kind(overlay, *WORKLOADS)}


def start_as(overlay: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of a service's pod, with the files of its ConfigMap below a folder."""
    lists = Mount(folder / "namespaces", named(overlay, "ConfigMap", "namespaces")["data"])
    for key, value in environment(overlay, named(overlay, "Deployment", name)).items():
        monkeypatch.setenv(key, value.replace("/etc/weir/namespaces", str(lists.folder)))


EACH = pytest.mark.parametrize("overlay", OVERLAYS)


@EACH
def test_an_overlay_has_all_of_weir(overlay: str) -> None:
    """Two replicas of all but the analyzer, each with its account, Service and, where there are two, disruption budget."""
    replicas = {name: named(overlay, "Deployment", name)["spec"]["replicas"] for name in WEIR}
    assert replicas == {**dict.fromkeys(WEIR, 2), "analyzer": 1}
    for name in WEIR:
        pod = named(overlay, "Deployment", name)["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == named(overlay, "ServiceAccount", name)["metadata"]["name"]
        service = named(overlay, "Service", name)["spec"]
        assert service["ports"][0]["port"] == pod["containers"][0]["ports"][0]["containerPort"]
        assert service["ports"][0]["port"] == SETTINGS[name].model_fields["http_port"].default
        if name != "analyzer":  # whose image has no other service
            assert pod["containers"][0]["args"] == [name]
            assert environment(overlay, named(overlay, "Deployment", name))["WEIR_HTTP_PORT"] == str(
                service["ports"][0]["port"]
            )
    budgets = {each["metadata"]["name"] for each in of_kind(overlay, "PodDisruptionBudget")}
    assert budgets == set(WEIR) - {"analyzer"}
    assert named(overlay, "Deployment", "analyzer")["spec"]["strategy"] == {"type": "Recreate"}


@EACH
def test_every_pod_is_restricted(overlay: str) -> None:
    """As Pod Security wants it, and with a root file system that nothing writes to."""
    for workload in of_kind(overlay, *WORKLOADS):
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert all((volume.keys() - {"name"}) <= ALLOWED_VOLUMES for volume in pod.get("volumes", []))
        for container in containers(workload):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        namespace = named(overlay, "Namespace", workload["metadata"]["namespace"])
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@EACH
def test_no_services_variables_reach_a_pod(overlay: str) -> None:
    """Kubernetes would set KAFKA_PORT for the Service kafka, which Kafka's image takes for a setting."""
    for name, workload in each_workload(overlay).items():
        assert workload["spec"]["template"]["spec"]["enableServiceLinks"] is False, name


@EACH
def test_every_container_has_requests_and_limits(overlay: str) -> None:
    """Memory and processor; a request is no more than its limit."""
    for workload in of_kind(overlay, *WORKLOADS):
        for container in containers(workload):
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert requests.keys() == limits.keys() == {"cpu", "memory"}
            assert mebibytes(requests["memory"]) <= mebibytes(limits["memory"])
            assert millicores(requests["cpu"]) <= millicores(limits["cpu"])


@EACH
def test_every_pod_that_stays_has_probes(overlay: str) -> None:
    """A Job ends instead. The sample job's submission is not restarted for a job that is missing."""
    for name, workload in each_workload(overlay).items():
        if workload["kind"] == "Job":
            continue
        container = workload["spec"]["template"]["spec"]["containers"][0]
        wanted = {"startupProbe", "readinessProbe", "livenessProbe"}
        assert wanted - container.keys() == ({"startupProbe", "livenessProbe"} if name == "sample-job" else set())
        if name in WEIR:
            assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
            assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"


@EACH
def test_only_who_uses_the_kubernetes_api_has_a_token_for_it(overlay: str) -> None:
    """Monitor, executor, the Job that creates the tokens, and knowledge where policies are resources."""
    for name, workload in each_workload(overlay).items():
        pod = workload["spec"]["template"]["spec"]
        mounts = pod.get("automountServiceAccountToken")
        if mounts is None:
            mounts = named(overlay, "ServiceAccount", pod["serviceAccountName"])["automountServiceAccountToken"]
        assert mounts is (name in {"monitor", "executor", "tokens", *(("knowledge",) if overlay != EXTERNAL else ())})


def test_requests_fit_two_cores_and_8_gb() -> None:
    """The demonstration's, on one node next to the control plane."""
    kept = [each for each in of_kind(DEMO, "Deployment") for _ in range(each["spec"]["replicas"])]
    requests = [each["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] for each in kept]
    cores = sum(millicores(each["cpu"]) for each in requests) / 1000
    gibibytes = sum(mebibytes(each["memory"]) for each in requests) / 1024
    assert cores <= 1.6
    assert gibibytes <= 5.5
    page = (PROJECT / "docs" / "how-to" / "kubernetes.md").read_text()
    assert f"Requests are {cores:.1f} cores and {gibibytes:.1f} GiB." in re.sub(r"\s+", " ", page)


@EACH
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_exists(overlay: str, name: str) -> None:
    """One that is misspelt would be ignored."""
    every = set.union(*(variables(model) for model in SETTINGS.values()))
    given = set(environment(overlay, named(overlay, "Deployment", name)))
    assert given <= every
    prefix = f"WEIR_{name.upper()}_"
    assert {each for each in given if each.startswith(prefix)} <= variables(SETTINGS[name])


@EACH
@pytest.mark.parametrize("name", SETTINGS)
def test_every_value_is_taken(overlay: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the pod will be started, with the files of its ConfigMap, but for the folder of tokens, which stands for one here."""
    start_as(overlay, name, tmp_path, monkeypatch)
    monkeypatch.setenv("WEIR_TOKENS", ANY_TOKENS)
    settings = SETTINGS[name]()
    if name in ("monitor", "executor"):
        scaled = {each["metadata"]["namespace"] for each in of_kind(overlay, "Role")} - {"weir"}
        assert settings.namespaces == scaled


def test_the_doctor_reads_the_lists_of_namespaces() -> None:
    """Each service mounts the ConfigMap of its lists; knowledge only where policies are resources."""
    found = {}
    for overlay in (DEMO, EXTERNAL):
        deployments, configmaps = (
            {each["metadata"]["name"]: each for each in of_kind(overlay, kind)} for kind in ("Deployment", "ConfigMap")
        )
        found[overlay] = {name: namespaces_of(name, deployments, configmaps) for name in RIGHTS}
    assert found[DEMO] == {"monitor": ["demo"], "executor": ["demo"], "knowledge": ["demo"]}
    assert found[EXTERNAL] == {"monitor": ["shop"], "executor": ["shop"], "knowledge": []}


def test_a_further_namespace_starts_no_pod(tmp_path: Path) -> None:
    """With and without it an overlay differs only in the ConfigMap of the lists. Services mount that as a folder: Kubernetes
    does not replace a file that is mounted alone."""
    shutil.copytree(FOLDER, tmp_path / "k8s")
    overlay = tmp_path / "k8s" / EXTERNAL
    lists = overlay / "namespaces.env"
    lists.write_text(lists.read_text().replace("workloads=shop", "workloads=shop,carts"))
    command = [kubectl(), "kustomize", str(overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    changed = [each for each in yaml.safe_load_all(done.stdout) if each not in manifests(EXTERNAL)]
    assert [(each["kind"], each["metadata"]["name"], each["data"]["workloads"]) for each in changed] == [
        ("ConfigMap", "namespaces", "shop,carts")
    ]
    for name in ("monitor", "executor", "knowledge"):
        container = named(EXTERNAL, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "namespaces")
        assert "subPath" not in mount


def test_the_settings_of_the_container_that_makes_topics_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a listener it needs no tokens."""
    pod = named(DEMO, "Deployment", "knowledge")["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["initContainers"]] == ["topics"]
    alone = {"spec": {"template": {"spec": {"containers": pod["initContainers"]}}}}
    for key, value in environment(DEMO, alone).items():
        monkeypatch.setenv(key, value)
    assert TopicsSettings().kafka_bootstrap_servers == "kafka.weir.svc:9092"


def test_the_password_of_your_redis_is_a_file() -> None:
    """In no variable and no ConfigMap."""
    pod = named(EXTERNAL, "Deployment", "knowledge")["spec"]["template"]["spec"]
    sources = pod["volumes"][0]["projected"]["sources"]
    assert [source["secret"]["name"] for source in sources] == ["tokens", "redis"]
    assert "WEIR_KNOWLEDGE_REDIS_URL" in variables(KnowledgeSettings)
    assert all("REDIS" not in str(each["data"]) for each in of_kind(EXTERNAL, "ConfigMap"))


def test_each_service_gets_its_own_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mounted keys, written as the kubelet writes them, are read as settings; executor and knowledge are let in."""
    content: dict[str, str] = runpy.run_path(str(FOLDER / "base" / "tokens.py"))["tokens"]()
    used: set[str] = set()
    found: dict[str, Any] = {}
    for service, model in SETTINGS.items():
        deployment = named(DEMO, "Deployment", service)
        items = deployment["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"][0]["secret"]["items"]
        folder = tmp_path / service
        folder.mkdir()
        for item in items:
            (folder / item["path"]).write_text(content[item["key"]])
            used.add(item["key"])
        start_as(DEMO, service, tmp_path / f"lists-{service}", monkeypatch)
        found[service] = model(_secrets_dir=folder)
    assert used == content.keys() - {"metrics"}  # your Prometheus mounts it
    assert all(found[each].callers().caller(content["metrics"]).roles == {"metrics"} for each in SETTINGS)
    executors = found["executor"].knowledge_token.get_secret_value()
    assert found["knowledge"].callers().caller(executors).roles == {"executor"}
    knowledges = found["knowledge"].planner_token.get_secret_value()
    assert found["planner"].callers().caller(knowledges).roles == {"read"}
    assert found["planner"].callers().caller(executors) is None
    assert found["knowledge"].callers().caller(content["operator"]).roles == {"write", "planner-admin"}
    assert all(
        found[each].callers().caller(content["operator"]) is None for each in ("monitor", "analyzer", "executor")
    )
    assert json.loads(content["no-callers"])


def test_every_verb_has_its_reason() -> None:
    """In a comment on its line, in every Role of the tree."""
    lines = [
        (path.name, line)
        for path in sorted(FOLDER.rglob("*.yaml"))
        for block in re.findall(r"verbs:\n((?: {6,}- .*\n?)+)", path.read_text())
        for line in block.splitlines()
    ]
    assert len(lines) >= 13
    assert [each for each in lines if not re.search(r"- [a-z]+ +# \w", each[1])] == []
    assert not any(re.search(r"verbs: *\[", path.read_text()) for path in FOLDER.rglob("*.yaml"))


def test_rights_are_minimal() -> None:
    """The monitor reads; the executor writes `/scale` alone, knowledge `/status` and events; nothing is cluster-wide,
    nothing is a wildcard."""
    roles = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in of_kind(DEMO, "Role")}
    in_demo = {("demo", f"weir-{account}") for account in ("monitor", "executor", "knowledge")}
    assert roles.keys() == {*in_demo, ("weir", "tokens")}
    assert of_kind(DEMO, "ClusterRole", "ClusterRoleBinding") == []
    reads = {"get", "list", "watch"}
    for rule in roles["demo", "weir-monitor"]["rules"]:
        assert set(rule["verbs"]) <= reads
    for rule in roles["demo", "weir-executor"]["rules"]:
        assert set(rule["verbs"]) <= reads or all(each.endswith("/scale") for each in rule["resources"])
    for rule in roles["demo", "weir-knowledge"]["rules"]:
        assert set(rule["verbs"]) <= reads or set(rule["resources"]) <= {"scalingpolicies/status", "events"}
    assert "*" not in str([role["rules"] for role in roles.values()])


def test_images_are_those_of_make_images_and_compose() -> None:
    """Named in one place each, so that an overlay can put a registry before them."""
    dotenv = dict(re.findall(r"^(WEIR_\w*IMAGE)=(.+)$", (COMPOSE / ".env").read_text(), re.MULTILINE))
    found = {container["image"] for each in of_kind(DEMO, *WORKLOADS) for container in containers(each)}
    assert found <= set(dotenv.values())
    names = ("WEIR_IMAGE", *(f"WEIR_{name}_IMAGE" for name in ("ANALYZER", "KAFKA", "REDIS", "FLINK", "LOAD")))
    assert found >= {dotenv[name] for name in names}
    assert not re.search(r"image: \S+:\S", "".join(path.read_text() for path in FOLDER.rglob("*.yaml")))


def policy_of(overlay: str) -> ScalingPolicy:
    """Return the policy of an overlay, which is a resource in the namespace of what it scales."""
    return parse_policy(document_of(named(overlay, "ScalingPolicy", "orders")))


def test_the_sample_is_that_of_compose() -> None:
    """The same Flink settings but for the checkpoints, and the same policy but for the addresses."""
    compose = yaml.safe_load(re.sub(r"\$\{\w+\}", "x", (COMPOSE / "compose.yaml").read_text()))["x-flink"]
    ours = (FOLDER / DEMO / "sample" / "flink.properties").read_text()
    assert {line.split(":")[0] for line in compose["FLINK_PROPERTIES"].splitlines()} ^ {
        line.split(":")[0] for line in ours.splitlines()
    } == {
        "execution.checkpointing.dir",
        "execution.checkpointing.externalized-checkpoint-retention",
        "execution.checkpointing.storage",
    }
    policy = policy_of(DEMO)
    theirs = parse_policy(yaml.safe_load((COMPOSE / "jobs" / "policy.yaml").read_text()))
    assert policy.spec.behavior == theirs.spec.behavior
    assert (policy.application, policy.spec.mode, policy.spec.bounds) == ("demo/orders", "act", theirs.spec.bounds)


def test_the_settings_of_kafka_streams_are_those_of_compose() -> None:
    """The same file twice: an overlay reads none outside its folder."""
    theirs = (COMPOSE / "jobs" / "streams.properties").read_text()
    assert (FOLDER / STREAMS / "sample" / "streams.properties").read_text() == theirs


def test_the_reactive_job_is_the_same_on_pods_that_weir_may_scale() -> None:
    """The sample's costs and topics; its policy differs in target and bounds alone, and names a workload that exists."""
    command = named(REACTIVE, "Deployment", "jobmanager")["spec"]["template"]["spec"]["containers"][0]["args"]
    wanted = [
        *sample_costs(),
        *named(DEMO, "Deployment", "sample-job")["spec"]["template"]["spec"]["containers"][0]["args"],
    ]
    given = dict(zip(command[5::2], command[6::2], strict=True))
    pairs = [each for each in wanted if each not in {"--stay", "--sample-costs", "--"}]
    assert given == dict(zip(pairs[::2], pairs[1::2], strict=True))
    ours, theirs = policy_of(REACTIVE), policy_of(DEMO)
    kept = {"target": theirs.spec.target, "bounds": theirs.spec.bounds}
    assert ours.spec.model_copy(update=kept) == theirs.spec
    workload = ours.spec.target.kubernetes
    assert workload is not None and workload.unit is not None
    pod = named(REACTIVE, *(workload.refs[0].kind, workload.refs[0].name))["spec"]["template"]["spec"]["containers"][0]
    assert f"-Dtaskmanager.numberOfTaskSlots={workload.unit.slots}" in pod["args"]


CONNECTIONS = {
    *((name, "kafka", 9092) for name in (*WEIR, "kafka", "jobmanager", "taskmanager", "load")),
    ("executor", "knowledge", 8080),
    ("knowledge", "planner", 8093),
    ("knowledge", "redis", 6379),
    *((name, "jobmanager", 8081) for name in ("monitor", "executor", "sample-job")),
    *(
        (source, target, port)
        for source in ("jobmanager", "taskmanager")
        for target, ports in (("jobmanager", (8081, 6123, 6124)), ("taskmanager", (6122,)))
        for port in ports
    ),
}
"""All that may be connected to in the demonstration."""
OF_FLINK = {"jobmanager", "taskmanager", "sample-job"}
ALLOWED = {
    DEMO: CONNECTIONS,
    REACTIVE: {each for each in CONNECTIONS if "sample-job" not in each},
    STREAMS: {each for each in CONNECTIONS if not OF_FLINK & set(each)}
    | {("streams", "kafka", 9092), ("monitor", "streams", 9404)},
}
"""Nothing submits the job in reactive mode, and instances of a Kafka Streams application talk to brokers alone."""


@pytest.mark.parametrize("overlay", ALLOWED)
def test_network_policies_allow_what_is_needed_and_nothing_else(overlay: str) -> None:
    """Every pair of pods and every port, by the rules of NetworkPolicy."""
    found = {
        (source.name, target.name, port)
        for source in pods(overlay)
        for target in pods(overlay)
        for port in target.ports.values()
        if allowed(overlay, source, target, port)
    }
    assert found == ALLOWED[overlay]


METADATA_SERVICES = (
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd20:ce::254",
)


@EACH
def test_deleting_an_overlay_keeps_the_definition_of_the_policies(overlay: str) -> None:
    """Without it the API server deletes all resources, those of other installations among them."""
    assert of_kind(overlay, "CustomResourceDefinition") == []


@EACH
def test_no_job_depends_on_a_setting_and_each_is_removed_once_it_has_ended(overlay: str) -> None:
    """A Job cannot be changed: one with a setting, or one that stays, makes the next `kubectl apply -k` fail."""
    for job in of_kind(overlay, "Job"):
        assert job["spec"]["ttlSecondsAfterFinished"] <= 300, job["metadata"]["name"]
        assert "settings-" not in json.dumps(job), job["metadata"]["name"]


@EACH
def test_every_rule_of_a_network_policy_names_its_peers(overlay: str) -> None:
    """A port alone would be open to every address, those of metadata services among them, which hand credentials out."""
    for policy in of_kind(overlay, "NetworkPolicy"):
        spec = policy["spec"]
        for rule, peers in [(r, "from") for r in spec.get("ingress", [])] + [(r, "to") for r in spec.get("egress", [])]:
            assert rule.get(peers), policy["metadata"]["name"]
            for block in (each["ipBlock"] for each in rule[peers] if "ipBlock" in each):
                reached = ip_network(block["cidr"])
                kept = [ip_network(each) for each in block["except"]]
                for address in map(ip_address, METADATA_SERVICES):
                    assert address not in reached or any(address in each for each in kept), policy["metadata"]["name"]


def test_the_streams_policy_fits_its_workload() -> None:
    """A StatefulSet that exists, with the threads, the metrics port and the application that the policy says."""
    spec = policy_of(STREAMS).spec
    application = None if spec.application is None else spec.application.kafka_streams
    workload = spec.target.kubernetes
    assert workload is not None and workload.unit is not None and application is not None
    container = named(STREAMS, workload.refs[0].kind, workload.refs[0].name)["spec"]["template"]["spec"]["containers"][
        0
    ]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert application.application_id == given.get("STREAMS_APPLICATION_ID", "orders")
    assert workload.unit.slots == int(given.get("STREAMS_THREADS", "1"))
    assert application.metrics is not None
    assert container["ports"] == [{"name": "metrics", "containerPort": application.metrics.port}]
    name = next(each for each in container["env"] if each["name"] == "STREAMS_CLIENT_ID")
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


@pytest.mark.parametrize("overlay", [REACTIVE, STREAMS])
def test_a_workload_that_weir_scales_carries_no_replicas(overlay: str) -> None:
    """Else each `kubectl apply -k` would set its number again, and Weir would hold (`contested`)."""
    target = policy_of(overlay).spec.target.kubernetes
    assert target is not None
    assert [ref.name for ref in target.refs if "replicas" in named(overlay, ref.kind, ref.name)["spec"]] == []


def test_every_object_has_a_namespace_of_its_overlay() -> None:
    """So that deleting the overlay leaves nothing."""
    for overlay in OVERLAYS:
        own = {each["metadata"]["name"] for each in of_kind(overlay, "Namespace")}
        places = {each["metadata"].get("namespace") for each in manifests(overlay) if each["kind"] != "Namespace"}
        assert places - own <= ({"shop"} if overlay == EXTERNAL else set())


@pytest.mark.parametrize(
    ("name", "resource", "verb"), [("pod-deletion-cost", "pods", "patch"), ("pod-restart", "pods/eviction", "create")]
)
def test_rights_on_pods_are_optional(name: str, resource: str, verb: str, tmp_path: Path) -> None:
    """Its component alone lets the executor patch pods, or evict them."""
    target, component = (os.path.relpath(FOLDER / each, tmp_path) for each in ("target", f"components/{name}"))
    (tmp_path / "kustomization.yaml").write_text(f"namespace: shop\nresources: [{target}]\ncomponents: [{component}]\n")
    added = named(str(tmp_path), "Role", "weir-executor")["rules"]
    assert added == [
        *named(DEMO, "Role", "weir-executor")["rules"],
        {"apiGroups": [""], "resources": [resource], "verbs": [verb]},
    ]
    assert verb not in str([r for r in added[:-1] if resource in r["resources"]])


def test_rights_on_resources_of_the_flink_operator_are_optional(tmp_path: Path) -> None:
    """Its component alone lets the monitor watch them, and the executor read and patch them."""
    target, component = (os.path.relpath(FOLDER / each, tmp_path) for each in ("target", "components/flink-operator"))
    (tmp_path / "kustomization.yaml").write_text(f"namespace: shop\nresources: [{target}]\ncomponents: [{component}]\n")
    kinds = {"apiGroups": ["flink.apache.org"], "resources": ["flinkdeployments", "flinksessionjobs"]}
    for role, verbs in (("weir-monitor", ["list", "watch"]), ("weir-executor", ["get", "patch"])):
        added = named(str(tmp_path), "Role", role)["rules"]
        assert added == [*named(DEMO, "Role", role)["rules"], {**kinds, "verbs": verbs}]


def mebibytes(text: str) -> int:
    """Return a quantity such as 896Mi."""
    assert text.endswith("Mi")
    return int(text.removesuffix("Mi"))


def millicores(text: str) -> int:
    """Return a quantity such as 50m or 2."""
    return int(text.removesuffix("m")) if text.endswith("m") else 1000 * int(text)


def _uncommented(path: Path, *beginnings: str) -> None:
    """Remove the `#` of the lines that begin so; they go to the end, in place of what they replace."""
    lines = path.read_text().splitlines()
    chosen = [line.removeprefix("# ") for line in lines if line.startswith(beginnings)]
    replaced = tuple(f"{line.partition(':')[0]}:" for line in chosen if not line.startswith(" "))
    kept = [line for line in lines if not line.startswith((*beginnings, *replaced))]
    path.write_text("\n".join([*kept, *chosen]) + "\n")


def test_another_namespace_is_a_choice(tmp_path: Path) -> None:
    """Every object of Weir moves, and the rights in your namespaces are those of the accounts there."""
    objects = in_another_namespace(tmp_path, "streaming")
    assert {each["metadata"].get("namespace") for each in objects} == {"streaming", "shop", None}
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"] == ["streaming"]
    subjects = {s["namespace"] for each in objects if each["kind"] == "RoleBinding" for s in each["subjects"]}
    assert subjects == {"streaming"}
    assert "knowledge.weir" not in json.dumps(objects)


def test_the_patches_in_the_comments_of_an_overlay_apply(tmp_path: Path) -> None:
    """A user removes the `#`: every service mounts the Secret, and the other port is open; policies are
    resources of the namespace shop."""
    shutil.copytree(FOLDER, tmp_path / "k8s")
    overlay = tmp_path / "k8s" / EXTERNAL
    _uncommented(overlay / "kustomization.yaml", "#   - target", "#     ")
    _uncommented(overlay / "kustomization.yaml", "# components:")
    _uncommented(overlay / "workloads" / "kustomization.yaml", "# resources:")
    _uncommented(overlay / "namespaces.env", "# policies=", "# pairs=")
    command = [kubectl(), "kustomize", str(overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))

    def found(kind: str, name: str) -> Manifest:
        (each,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
        return each  # type: ignore[no-any-return]

    workloads = [each for each in objects if each["kind"] in WORKLOADS]

    def mounting(secret: str) -> set[str]:
        return {each["metadata"]["name"] for each in workloads if f'"{secret}"' in json.dumps(each["spec"])}

    assert mounting("kafka") == set(WEIR)
    assert mounting("credentials") == {"monitor", "executor"}
    assert {"port": 9093} in found("NetworkPolicy", "to-brokers")["spec"]["egress"][0]["ports"]

    assert found("ServiceAccount", "knowledge")["automountServiceAccountToken"] is True
    (rule,) = found("NetworkPolicy", "to-kubernetes")["spec"]["podSelector"]["matchExpressions"]
    assert "knowledge" in rule["values"]
    assert found("Role", "weir-knowledge")["metadata"]["namespace"] == "shop"
    assert found("ConfigMap", "namespaces")["data"] == {
        "workloads": "shop",
        "policies": "shop",
        "pairs": "shop:streaming",
    }
