"""The manifests of deploy/k8s, rendered by kubectl, and what their network policies allow."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import kubernetes_programs

PROJECT = Path(__file__).resolve().parents[3]
FOLDER = PROJECT / "deploy" / "k8s"
WEIR = ("monitor", "analyzer", "planner", "executor", "knowledge")
WORKLOADS = ("Deployment", "StatefulSet", "Job")
Manifest = dict[str, Any]


def kubectl() -> str:
    """Return the path of kubectl: the testbed's or the user's; without one the test is skipped."""
    found = kubernetes_programs.program("kubectl") or shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl on the PATH, which renders the manifests")
    return str(found)


@cache
def rendered(folder: str) -> str:
    """Return a folder of deploy/k8s as `kubectl kustomize` renders it."""
    command = [kubectl(), "kustomize", str(FOLDER / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def manifests(folder: str) -> list[Manifest]:
    return list(yaml.load_all(rendered(folder), yaml.CSafeLoader))


def in_another_namespace(folder: Path, namespace: str) -> list[Manifest]:
    """Return the overlay `external` in another namespace than `weir`, as its comments say; `folder` gets a copy of deploy/k8s."""
    shutil.copytree(FOLDER, folder / "k8s")
    own = folder / "k8s" / "overlays" / "own"
    own.mkdir()
    chosen = {"name": "installation", "namespace": "weir", "literals": [f"namespace={namespace}"]}
    overlay = {
        "resources": ["../external"],
        "components": ["../../components/namespace"],
        "configMapGenerator": [chosen],
    }
    (own / "kustomization.yaml").write_text(json.dumps(overlay))
    done = subprocess.run([kubectl(), "kustomize", str(own)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def of_kind(folder: str, *kinds: str) -> list[Manifest]:
    return [each for each in manifests(folder) if each["kind"] in kinds]


def named(folder: str, kind: str, name: str) -> Manifest:
    return next(each for each in of_kind(folder, kind) if each["metadata"]["name"] == name)


def containers(workload: Manifest) -> list[Manifest]:
    """Return a workload's containers, those of its start included."""
    pod = workload["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def environment(folder: str, workload: Manifest) -> dict[str, str]:
    """Return the variables of a workload's first container, ConfigMaps filled in."""
    container = workload["spec"]["template"]["spec"]["containers"][0]
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= named(folder, "ConfigMap", source["configMapRef"]["name"])["data"]
    return found | {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}


@dataclass(frozen=True)
class Pod:
    """Labels that a network policy selects by, and the listening ports by name."""

    name: str
    namespace: str
    labels: dict[str, str] = field(hash=False)
    ports: dict[str, int] = field(default_factory=dict, hash=False)


def pods(folder: str) -> list[Pod]:
    """Return one pod of each workload."""
    found = []
    for each in of_kind(folder, *WORKLOADS):
        ports = {p["name"]: p["containerPort"] for c in containers(each) for p in c.get("ports", [])}
        labels = each["spec"]["template"]["metadata"]["labels"]
        found.append(Pod(each["metadata"]["name"], each["metadata"]["namespace"], labels, ports))
    return found


def allowed(folder: str, source: Pod, target: Pod, port: int) -> bool:
    """Return whether the policies let `source` connect to this port of `target`."""
    policies = of_kind(folder, "NetworkPolicy")
    return _permitted(policies, "Egress", source, target, (target, port)) and _permitted(
        policies, "Ingress", target, source, (target, port)
    )


def _permitted(policies: list[Manifest], direction: str, subject: Pod, peer: Pod, listener: tuple[Pod, int]) -> bool:
    specs = [
        each["spec"]
        for each in policies
        if each["metadata"]["namespace"] == subject.namespace
        and _selects(each["spec"]["podSelector"], subject.labels)
        and direction in each["spec"]["policyTypes"]
    ]
    return not specs or any(_matches(rule, subject, peer, listener) for rule in _rules(specs, direction))


def _rules(policies: list[Manifest], direction: str) -> Iterator[tuple[list[Manifest], list[Manifest]]]:
    for policy in policies:
        for rule in policy.get(direction.lower(), []):
            yield rule.get("to" if direction == "Egress" else "from", []), rule.get("ports", [])


def _matches(rule: tuple[list[Manifest], list[Manifest]], subject: Pod, peer: Pod, listener: tuple[Pod, int]) -> bool:
    (peers, ports), (target, port) = rule, listener
    numbers = {target.ports.get(each["port"], each["port"]) for each in ports}
    return (not ports or port in numbers) and (not peers or any(_is_peer(each, subject, peer) for each in peers))


def _is_peer(selector: Manifest, subject: Pod, peer: Pod) -> bool:
    if "ipBlock" in selector:
        return False  # addresses outside of the cluster
    if "namespaceSelector" in selector:
        in_namespace = _selects(selector["namespaceSelector"], {"kubernetes.io/metadata.name": peer.namespace})
    else:
        in_namespace = subject.namespace == peer.namespace
    return in_namespace and _selects(selector.get("podSelector", {}), peer.labels)


def _selects(selector: Manifest, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions), "no other operator is implemented here"
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


def role(account: str) -> Manifest:
    """Return the Role of an account in a namespace that Weir scales, or whose policies are resources."""
    folder = "target/policies" if account == "knowledge" else "overlays/demo"
    return named(folder, "Role", f"weir-{account}")


def rights() -> dict[str, dict[tuple[str, str], set[str]]]:
    """Verbs of the accounts by API group and resource, from their Roles."""
    return {
        account: {
            (group, resource): set(rule["verbs"])
            for rule in role(account)["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        for account in ("monitor", "executor", "knowledge")
    }
