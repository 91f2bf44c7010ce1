"""`weir doctor --kubernetes`: what it finds in an installation's objects, and the remedy that it names."""

import json
import socket
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.deploy.answers import Answers
from tests.unit.deploy.manifests import rights
from weir_cli import doctor_kubernetes
from weir_cli.doctor import Finding
from weir_cli.doctor_kubernetes import (
    addresses,
    deployment_findings,
    documents,
    job_finding,
    operated_namespaces,
    reviews,
    right_findings,
)

from .test_command import weir


def pod(name: str, *, conditions: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "monitor"}},
        "status": {
            "phase": "Running",
            "conditions": [{"type": kind, "status": status} for kind, status in (conditions or {}).items()],
            "containerStatuses": [container],
        },
    }


def deployment(ready: int) -> dict[str, Any]:
    return {"spec": {"replicas": 2}, "status": {"readyReplicas": ready}}


def findings(ready: int, *pods: dict[str, Any]) -> list[Finding]:
    return list(deployment_findings("monitor", deployment(ready), pods, "weir"))


def test_ready_pods_are_all_right() -> None:
    """As many as the deployment wants."""
    assert findings(2) == [Finding("pods of monitor", True, "2 of 2 ready")]


@pytest.mark.parametrize(
    ("container", "found", "remedy"),
    [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}},
            "ImagePullBackOff: not found",
            "load the image",
        ),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, "CrashLoopBackOff", "logs monitor-1 --previous"),
        (
            {"state": {"running": {}}, "restartCount": 3, "lastState": {"terminated": {"reason": "OOMKilled"}}},
            "OOMKilled: 3 restarts",
            "raise the memory limit of monitor",
        ),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, "ContainerCreating", "describe pod monitor-1"),
    ],
)
def test_a_pod_that_does_not_run_has_its_reason(container: dict[str, Any], found: str, remedy: str) -> None:
    """By the container's state, with the command or the setting that helps."""
    _, trouble = findings(1, pod("monitor-1", **container))
    assert (trouble.check, trouble.ok, trouble.found) == ("pod monitor-1", False, found)
    assert remedy in trouble.remedy


def test_an_unschedulable_pod_has_the_schedulers_message() -> None:
    """A missing StorageClass and a full cluster look alike otherwise."""
    waiting = pod("monitor-1")
    waiting["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient memory"}
    ]
    assert findings(1, waiting)[1].found == "Unschedulable: Insufficient memory"


def test_what_is_not_installed_is_said() -> None:
    """Deployments and Jobs; a Job that was deleted for an upgrade is no failure."""
    (missing,) = deployment_findings("monitor", None, [], "weir")
    assert not missing.ok
    assert "kubectl apply -k" in missing.remedy
    assert not job_finding("topics", None, {}, "weir").ok
    assert job_finding("topics", None, {"monitor": {}}, "weir").ok
    assert job_finding("topics", {"status": {"succeeded": 1}}, {}, "weir").ok
    failed = job_finding("topics", {"status": {"failed": 2}}, {}, "weir")
    assert failed.remedy.endswith("kubectl -n weir logs job/topics")


def test_rights_are_those_of_the_roles() -> None:
    """Verb by verb as in deploy/k8s/target, so that neither grows alone."""
    assert {
        account: {key: set(verbs) for key, verbs in rights.items()}
        for account, rights in doctor_kubernetes.RIGHTS.items()
    } == (rights())


def test_a_missing_verb_is_named() -> None:
    """With resource, subresource and group, and where to bind it."""
    requested = reviews("executor", ["shop", "live"], "weir")
    assert {each["spec"]["user"] for each in requested} == {"system:serviceaccount:weir:executor"}
    for each in requested:
        attributes = each["spec"]["resourceAttributes"]
        denied = (attributes["namespace"], attributes["subresource"], attributes["verb"]) == ("live", "scale", "update")
        each["status"] = {"allowed": not denied}
    shop, live = right_findings("executor", ["shop", "live"], requested)
    assert (shop.ok, shop.remedy) == (True, "")
    assert live.found == "missing: update deployments/scale.apps, update statefulsets/scale.apps"
    assert "namespace: live" in live.remedy


def test_rights_of_the_flink_operators_component_are_named_where_a_policy_needs_them() -> None:
    """In the namespaces of the resources; elsewhere nobody misses them."""
    policies: list[dict[str, Any]] = [
        {"metadata": {"namespace": "shop"}, "spec": {"target": {"flinkDeployment": {"name": "orders"}}}},
        {
            "metadata": {"namespace": "shop"},
            "spec": {"target": {"flinkSessionJob": {"name": "totals", "namespace": "live"}}},
        },
        {"metadata": {"namespace": "other"}, "spec": {"target": {"flink": {}}}},
    ]
    assert operated_namespaces(policies) == ["live", "shop"]
    requested = reviews("executor", ["shop"], "weir", doctor_kubernetes.OPERATOR_RIGHTS)
    for each in requested:
        each["status"] = {"allowed": each["spec"]["resourceAttributes"]["verb"] == "get"}
    (shop,) = right_findings("executor", ["shop"], requested, "add the component")
    missing = [f"patch {kind}.flink.apache.org" for kind in ("flinkdeployments", "flinksessionjobs")]
    assert shop.found == f"missing: {', '.join(missing)}"
    assert shop.remedy == "add the component with `namespace: shop`"


def test_output_of_kubectl_is_read_as_a_list_or_one_by_one() -> None:
    """kubectl prints several created objects one after the other."""
    one = {"kind": "SubjectAccessReview", "n": 1}
    text = json.dumps(one, indent=2)
    assert documents(f"{text}\n{text}\n") == [one, one]
    assert documents(json.dumps({"kind": "List", "items": [one]})) == [one]


def test_addresses_come_from_policies() -> None:
    """Flink's for both services, also if the target names the job; brokers and Prometheus for the monitor; brokers of a
    group and an endpoint also for the executor. A URL without a port has its scheme's."""
    policies = [
        {
            "spec": {
                "application": {"flink": {"url": "http://jobmanager.shop.svc:8081/base", "job": "a"}},
                "signals": {"kafka": {"bootstrapServers": "k1:9092,k2:9092"}, "prometheus": {"url": "https://prom/"}},
            }
        },
        {
            "spec": {
                "application": {"flink": {"url": "http://[fd00::1]:8081"}},
                "signals": None,
            }
        },
        {"spec": {"application": {"flink": {"url": "http://earlier:8081", "job": "b"}}}},
        {"metadata": {"namespace": "shop"}, "spec": {"target": {"flinkDeployment": {"name": "orders"}}}},
        {
            "spec": {
                "application": {"consumerGroup": {"groupId": "totals"}},
                "target": {"endpoint": {"url": "http://scaler/"}},
                "signals": {"kafka": {"bootstrapServers": "k3:9092"}},
            }
        },
    ]
    flink = ["[fd00::1]:8081", "earlier:8081", "jobmanager.shop.svc:8081", "orders-rest.shop.svc:8081"]
    assert addresses(policies) == {
        "executor": sorted([*flink, "k3:9092", "scaler:80"]),
        "monitor": sorted([*flink, "k1:9092", "k2:9092", "k3:9092", "prom:443"]),
    }


def test_the_script_that_connects_says_why_not() -> None:
    """Run as a pod runs it: a listener connects, a closed port has its reason, nonsense ends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        places = [f"127.0.0.1:{each.getsockname()[1]}" for each in (listener, closed)]
        command = [sys.executable, "-c", doctor_kubernetes._CONNECT, *places, "nonsense"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    found = json.loads(done.stdout)
    assert found[places[0]] is None
    assert "refused" in found[places[1]]
    assert found["nonsense"]


class _Policies(Answers):
    def do_GET(self) -> None:
        given = self.path, self.headers.get("Authorization")
        is_allowed = given == ("/v1/policies?limit=500", "Bearer secret")
        self.respond(200 if is_allowed else 401, b'{"items": [], "next": null}')


def test_the_script_that_lists_policies_has_the_operators_token(tmp_path: Path) -> None:
    """Run as knowledge's pod runs it, but for the token's place and the port."""
    (tmp_path / "operator").write_text("secret")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Policies) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        script = doctor_kubernetes._POLICIES.replace("/run/weir", str(tmp_path)).replace(
            ":8080", f":{server.server_port}"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
        server.shutdown()
        thread.join()
    assert json.loads(done.stdout)["items"] == []


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (None, 2, "kubectl is not on the PATH"),
        ("echo 'Unable to connect to the server: refused' >&2; exit 1", 5, "Unable to connect to the server"),
        ("echo '{\"items\": []}'", 1, "checks failed"),
    ],
)
def test_an_installation_that_is_not_there(script: str | None, code: int, said: str, tmp_path: Path) -> None:
    """No kubectl, no cluster, nothing installed: one line and the exit code."""
    if script is not None:
        (tmp_path / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "kubectl").chmod(0o755)
    done = weir("doctor", "--kubernetes", PATH=f"{tmp_path}:/nonexistent" if script is None else f"{tmp_path}:/bin")
    assert done.returncode == code
    assert said in done.stderr
