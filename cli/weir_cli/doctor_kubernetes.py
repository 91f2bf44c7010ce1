"""`weir doctor --kubernetes`: checks an installation through kubectl and says what to do about each failure."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from weir_runtime.reach import words

from .client import CommandError, InvalidInput, Unreachable
from .doctor import WARNING_REMEDIES, Finding

WEIR = ("monitor", "analyzer", "planner", "executor", "knowledge")
JOBS = ("tokens",)
Rights = Mapping[str, Mapping[tuple[str, str], Sequence[str]]]
RIGHTS: Rights = {
    "monitor": {
        ("", "pods"): ("list", "watch"),
        ("apps", "deployments"): ("list", "watch"),
        ("apps", "statefulsets"): ("list", "watch"),
        ("", "events"): ("list",),
        ("metrics.k8s.io", "pods"): ("list",),
    },
    "executor": {
        ("", "pods"): ("list", "watch"),
        ("apps", "deployments"): ("get",),
        ("apps", "statefulsets"): ("get",),
        ("", "events"): ("list",),
        ("apps", "deployments/scale"): ("update",),
        ("apps", "statefulsets/scale"): ("update",),
        ("autoscaling", "horizontalpodautoscalers"): ("list",),
        ("keda.sh", "scaledobjects"): ("list",),
    },
    "knowledge": {
        ("weir.dev", "scalingpolicies"): ("list", "watch"),
        ("weir.dev", "scalingpolicies/status"): ("patch",),
        ("events.k8s.io", "events"): ("create", "patch"),
    },
}
"""Verbs that each service account needs in a namespace that it scales, or whose policies are resources, by API group and
resource."""
_OPERATED = [("flink.apache.org", kind) for kind in ("flinkdeployments", "flinksessionjobs")]
OPERATOR_RIGHTS: Rights = {
    "monitor": dict.fromkeys(_OPERATED, ("list", "watch")),
    "executor": dict.fromkeys(_OPERATED, ("get", "patch")),
}
"""The same in a namespace whose resources of the Flink Kubernetes Operator are targets of policies."""
ROLES = {"knowledge": "deploy/k8s/target/policies"}
"""Folder with the role of an account, where it is not `deploy/k8s/target`."""
CALL_SECONDS = 60
MAX_TARGETS = 50
"""Addresses of targets that are tried."""

_POLICIES = """
import pathlib, urllib.request
token = pathlib.Path("/run/weir/operator").read_text()
request = urllib.request.Request("http://127.0.0.1:8080/v1/policies?limit=500", headers={"Authorization": "Bearer " + token})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).read().decode())
"""
_CONNECT = """
import json, socket, sys
found = {}
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 3).close()
        found[address] = None
    except (OSError, ValueError) as error:
        found[address] = str(error) or type(error).__name__
print(json.dumps(found))
"""
_READINESS = """
import json, os, sys, weir_runtime.probe as probe
port, tls = int(os.environ["WEIR_HTTP_PORT"]), bool(os.environ.get("WEIR_HTTP_CERTIFICATE_FILE"))
print(json.dumps(probe.ask("127.0.0.1", port, tls=tls, read=getattr(probe, sys.argv[1]))))
"""
_REMEDIES = {
    "ImagePullBackOff": "load the image into the cluster, or name your registry under `images:` of your overlay",
    "ErrImagePull": "load the image into the cluster, or name your registry under `images:` of your overlay",
    "ErrImageNeverPull": "load the image into the cluster's nodes",
    "CrashLoopBackOff": "read the log of its last run: kubectl -n {namespace} logs {pod} --previous",
    "CreateContainerConfigError": "kubectl -n {namespace} describe pod {pod} names the missing ConfigMap or Secret",
    "ContainerCreating": "kubectl -n {namespace} describe pod {pod} names the Secret or volume that it waits for",
    "OOMKilled": "raise the memory limit of {service} in your overlay",
    "Unschedulable": "free or add what the message names; a claim needs a StorageClass",
}


class Kubectl:
    """kubectl with one context and namespace; each call has a time limit."""

    def __init__(self, context: str | None, namespace: str) -> None:
        self.namespace = namespace
        self.command = ["kubectl", *(["--context", context] if context else []), "--namespace", namespace]

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Return the output; `CommandError` with kubectl's last line if it fails."""
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=CALL_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise InvalidInput("kubectl is not on the PATH: install it, or add its folder") from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"kubectl {arguments[0]} gave no answer within {CALL_SECONDS} s") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise CommandError(f"kubectl {arguments[0]}: {lines[-1]}")
        return done.stdout

    def items(self, kinds: str) -> list[dict[str, Any]]:
        """Return all objects of these kinds in the namespace."""
        return list(json.loads(self.run("get", kinds, "--output", "json"))["items"])

    def python(self, workload: str, script: str, *arguments: str) -> Any:
        """Return what a script prints as JSON in a pod of the workload."""
        return json.loads(self.run("exec", workload, "--", "python", "-c", script, *arguments))


def examine(kubectl: Kubectl, namespace: str) -> Iterator[Finding]:
    """Yield the result of each check; a check that cannot run is a failed one."""
    try:
        found = kubectl.items("deployments,jobs,pods,configmaps")
    except InvalidInput:
        raise
    except CommandError as error:
        raise Unreachable(f"{error}: check the context and your rights in the namespace {namespace}") from None
    by_kind: dict[str, dict[str, dict[str, Any]]] = {}
    for each in found:
        by_kind.setdefault(each["kind"], {})[each["metadata"]["name"]] = each
    deployments, pods = by_kind.get("Deployment", {}), list(by_kind.get("Pod", {}).values())
    for job in JOBS:
        yield job_finding(job, by_kind.get("Job", {}).get(job), deployments, namespace)
    for name in WEIR:
        yield from deployment_findings(name, deployments.get(name), pods, namespace)
    for pod in pods:
        if pod["metadata"]["labels"].get("app.kubernetes.io/name") in WEIR and _waits_for_others(pod):
            yield _dependencies(kubectl, pod["metadata"]["name"])
    yield from _warnings(kubectl)
    for account in RIGHTS:
        names = namespaces_of(account, deployments, by_kind.get("ConfigMap", {}))
        yield from rights_findings(kubectl, account, names, namespace)
    yield from _targets(kubectl, namespace)


def job_finding(name: str, job: Mapping[str, Any] | None, deployments: Mapping[str, Any], namespace: str) -> Finding:
    """Return whether a Job has ended well. A missing one was deleted for an upgrade: no failure of a running
    installation."""
    check = f"job {name}"
    if job is None:
        missing = "it is not there"
        return Finding(
            check, bool(deployments), missing, "" if deployments else "install Weir: kubectl apply -k OVERLAY"
        )
    if job.get("status", {}).get("succeeded"):
        return Finding(check, True, "completed")
    return Finding(check, False, "has not completed", f"read its log: kubectl -n {namespace} logs job/{name}")


def deployment_findings(
    name: str, deployment: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]], namespace: str
) -> Iterator[Finding]:
    """Yield whether all replicas are ready, and the reason of each pod that cannot start."""
    check = f"pods of {name}"
    if deployment is None:
        yield Finding(check, False, "there is no such deployment", "install Weir: kubectl apply -k OVERLAY")
        return
    ready, wanted = deployment.get("status", {}).get("readyReplicas", 0), deployment["spec"]["replicas"]
    own = [pod for pod in pods if pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == name]
    remedy = "" if ready >= wanted else f"kubectl -n {namespace} describe deployment {name}"
    yield Finding(check, ready >= wanted > 0, f"{ready} of {wanted} ready", remedy)
    for pod in own:
        if (trouble := trouble_of(pod)) is not None:
            reason, message = trouble
            advice = _REMEDIES.get(reason, "kubectl -n {namespace} describe pod {pod}")
            pod_name = pod["metadata"]["name"]
            yield Finding(
                f"pod {pod_name}",
                False,
                f"{reason}: {message}" if message else reason,
                advice.format(namespace=namespace, pod=pod_name, service=name),
            )


def trouble_of(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return reason and message of a pod that does not run, or None."""
    status = pod.get("status", {})
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("reason", "Unschedulable")), str(condition.get("message", ""))
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = container.get("state", {}).get("waiting")
        last = container.get("lastState", {}).get("terminated", {})
        if last.get("reason") == "OOMKilled":
            return "OOMKilled", f"{container.get('restartCount', 0)} restarts"
        if waiting and waiting.get("reason") != "PodInitializing":
            return str(waiting.get("reason", "Waiting")), str(waiting.get("message", ""))
    return None


def _waits_for_others(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod runs and is not ready: the service answers and names what it lacks."""
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", [])}
    return trouble_of(pod) is None and conditions.get("Ready") == "False" and pod["status"].get("phase") == "Running"


def _dependencies(kubectl: Kubectl, pod: str) -> Finding:
    """Return what a service waits for: Kafka, topics, Redis or another service, by its own words."""
    try:
        missing = str(kubectl.python(f"pod/{pod}", _READINESS, "complaint"))
    except (CommandError, ValueError) as error:
        return Finding(f"dependencies of {pod}", False, str(error), "read its log")
    remedy = "docs/how-to/runbook.md, WeirDependencyAway, lists each dependency" if missing else ""
    return Finding(f"dependencies of {pod}", not missing, missing or "ready now", remedy)


def _warnings(kubectl: Kubectl) -> Iterator[Finding]:
    """Yield what knowledge says of the topics that all services share: none where its pods cannot be asked."""
    with suppress(CommandError, ValueError):
        if found := str(kubectl.python("deployment/knowledge", _READINESS, "warnings")):
            yield Finding("dependencies of knowledge", True, found, WARNING_REMEDIES["topics"], warning=True)


def namespaces_of(account: str, deployments: Mapping[str, Any], configmaps: Mapping[str, Any]) -> list[str]:
    """Return the namespaces that a service's variable lists, and those of the mounted ConfigMap that its file is of."""
    pod = deployments.get(account, {}).get("spec", {}).get("template", {}).get("spec", {})
    variables: dict[str, str] = {}
    folders: dict[str, str] = {}
    for container in pod.get("containers", []):
        for source in container.get("envFrom", []):
            variables |= configmaps.get(source.get("configMapRef", {}).get("name"), {}).get("data", {})
        variables |= {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
        folders |= {each["mountPath"]: each["name"] for each in container.get("volumeMounts", [])}
    mounted = {each["name"]: each.get("configMap", {}).get("name", "") for each in pod.get("volumes", [])}
    variable = f"WEIR_{account.upper()}_KUBERNETES_NAMESPACES"
    folder, _, key = variables.get(f"{variable}_FILE", "").rpartition("/")
    listed = configmaps.get(mounted.get(folders.get(folder, ""), ""), {}).get("data", {}).get(key, "")
    return sorted({*words(variables.get(variable, "")), *words(listed)})


def reviews(
    account: str, namespaces: Sequence[str], installed_in: str, rights: Rights = RIGHTS
) -> list[dict[str, Any]]:
    """Return a SubjectAccessReview for each right that a service account needs."""
    return [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{installed_in}:{account}",
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{installed_in}", "system:authenticated"],
                "resourceAttributes": {
                    "namespace": namespace,
                    "verb": verb,
                    "group": group,
                    "resource": resource.partition("/")[0],
                    "subresource": resource.partition("/")[2],
                },
            },
        }
        for namespace in namespaces
        for (group, resource), verbs in rights[account].items()
        for verb in verbs
    ]


def right_findings(
    account: str, namespaces: Sequence[str], answers: Sequence[Mapping[str, Any]], remedy: str = ""
) -> Iterator[Finding]:
    """Yield a finding for each namespace, with every verb that is missing and the `remedy`, by default to apply the role."""
    remedy = remedy or f"apply {ROLES.get(account, 'deploy/k8s/target')}"
    for namespace in namespaces:
        missing = [
            f"{requested['verb']} {requested['resource']}{'/' if requested.get('subresource') else ''}{requested.get('subresource', '')}"
            f"{'.' if requested.get('group') else ''}{requested.get('group', '')}"
            for answer in answers
            if (requested := answer["spec"]["resourceAttributes"])["namespace"] == namespace
            and not answer.get("status", {}).get("allowed")
        ]
        yield Finding(
            f"rights of {account} in {namespace}",
            not missing,
            f"missing: {', '.join(missing)}" if missing else "complete",
            f"{remedy} with `namespace: {namespace}`" if missing else "",
        )


def rights_findings(
    kubectl: Kubectl,
    account: str,
    namespaces: Sequence[str],
    installed_in: str,
    *,
    rights: Rights = RIGHTS,
    remedy: str = "",
) -> Iterator[Finding]:
    """Yield whether a service account has its rights in each namespace that it scales."""
    if not namespaces:
        sentence = "no namespace is listed for it: it does not use the Kubernetes API"
        yield Finding(f"rights of {account}", True, sentence)
        return
    requested = {"apiVersion": "v1", "kind": "List", "items": reviews(account, namespaces, installed_in, rights)}
    try:
        text = kubectl.run("create", "--filename", "-", "--output", "json", stdin=json.dumps(requested))
    except CommandError as error:
        yield Finding(f"rights of {account}", False, str(error), "use a context that may create subjectaccessreviews")
        return
    yield from right_findings(account, namespaces, documents(text), remedy)


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of kubectl's output: a list, or one document after the other."""
    decoder, at = json.JSONDecoder(), 0
    found: list[dict[str, Any]] = []
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        found += document["items"] if document["kind"] == "List" else [document]
    return found


def addresses(policies: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the addresses that monitor and executor connect to, by the name of the service."""
    monitor: set[str] = set()
    executor: set[str] = set()
    for policy in policies:
        spec = policy["spec"]
        signals, application, target = (spec.get(part) or {} for part in ("signals", "application", "target"))
        brokers = set(filter(None, ((signals.get("kafka") or {}).get("bootstrapServers") or "").split(",")))
        flink = _places((application.get("flink") or {}).get("url") or _operators_url(policy))
        monitor.update(brokers, flink, _places((signals.get("prometheus") or {}).get("url")))
        executor.update(flink, _places((target.get("endpoint") or {}).get("url")))
        if {"kafkaStreams", "consumerGroup"} & application.keys():
            executor.update(brokers)  # it reads the group, and removes the members of stopped pods
    return {"monitor": sorted(monitor)[:MAX_TARGETS], "executor": sorted(executor)[:MAX_TARGETS]}


def _operators_url(policy: Mapping[str, Any]) -> str | None:
    """Return the address of the job of a FlinkDeployment, whose policy needs to name none."""
    deployment = (policy["spec"].get("target") or {}).get("flinkDeployment")
    return deployment and f"http://{deployment['name']}-rest.{_namespace(policy, deployment)}.svc:8081"


def operated_namespaces(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the namespaces in which policies name resources of the Flink Kubernetes Operator."""
    found = set()
    for policy in policies:
        target = policy["spec"].get("target") or {}
        if named := target.get("flinkDeployment") or target.get("flinkSessionJob"):
            found.add(_namespace(policy, named))
    return sorted(found)


def _namespace(policy: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    return target.get("namespace") or str(policy["metadata"]["namespace"])


def _places(url: str | None) -> list[str]:
    """Return `host:port` of a URL; nothing without one."""
    if not url:
        return []
    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0].rpartition("@")[2]
    has_port = place.rpartition("]")[2].rpartition(":")[1]
    return [place if has_port else f"{place}:{443 if scheme == 'https' else 80}"]


def _targets(kubectl: Kubectl, namespace: str) -> Iterator[Finding]:
    """Yield whether monitor and executor reach what the policies name, and may read and write its resources of operators."""
    try:
        policies = kubectl.python("deployment/knowledge", _POLICIES)["items"]
        wanted, operated = addresses(policies), operated_namespaces(policies)
    except (CommandError, ValueError) as error:
        yield Finding("policies", False, f"knowledge does not list them: {error}", "mend the pods of knowledge first")
        return
    for account in OPERATOR_RIGHTS if operated else ():
        remedy = "add `components: [deploy/k8s/components/flink-operator]` to the folder"
        yield from rights_findings(kubectl, account, operated, namespace, rights=OPERATOR_RIGHTS, remedy=remedy)
    if not any(wanted.values()):
        yield Finding("targets", True, "no policy names an address")
    for service, places in wanted.items():
        try:
            found = kubectl.python(f"deployment/{service}", _CONNECT, *places) if places else {}
        except (CommandError, ValueError) as error:
            yield Finding(f"targets of {service}", False, str(error), f"mend the pods of {service} first")
            continue
        for place, reason in found.items():
            remedy = "correct the policy, or allow the port in the NetworkPolicies to-targets and to-brokers"
            yield Finding(f"{service} to {place}", reason is None, reason or "connects", remedy if reason else "")
