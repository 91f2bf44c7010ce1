"""`kubectl apply -k deploy/k8s/overlays/demo` on a real node: the loop acts, follows a load step, survives the death of
each service's pods, scales by other planners and by a policy that is a resource, and leaves nothing behind."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from testbed.kubernetes import KubernetesCluster
from testbed.node import KubernetesNode
from testbed.process import wait_until
from tests.containers.compose import WEIR as SERVICES
from tests.containers.loop import Loop, slowest

from .servers import RESTRICTED, Callers, deployment, service
from .stack import SAMPLE, WEIR, NodeStack

LOW, HIGH = 700, 2000
"""Records/s: two subtasks of the slowest operator do the one, and at least five the other."""
SLOTS = 4
"""A budget that is too small for the high load."""
SHOP = "checkout"
REQUESTS, CPU_SECONDS, CPU_REQUEST, CPU_PERCENT = 10.0, 0.02, 0.1, 60
"""Load of a service: requests/s and CPU time of each; CPU that its pod requests, in cores, and the target of its use."""


@pytest.fixture(scope="module")
def loop(node: KubernetesNode) -> Iterator[Loop]:
    """The overlay applied, with the images of this tree and what stands in for official ones."""
    stack = NodeStack(node)
    try:
        stack.up()
        loop = Loop(stack, 8080, host=node.service_address(WEIR, "knowledge"))
        loop.set_load(rate=LOW)
        yield loop
        loop.client.close()
    finally:
        stack.end()


def test_the_loop_acts_by_itself(loop: Loop) -> None:
    """No user acts after `apply`: the load exceeds the capacity of the job's initial single subtask."""
    loop.until("a verified rescale", lambda s: s.get("action_phase") == "verified" and slowest(s) >= 2, 600)


def test_the_policys_resource_says_so(loop: Loop) -> None:
    """`kubectl get scalingpolicies`: in force, observed, planned, acting, and the subtasks that run."""
    wanted = dict.fromkeys(("Accepted", "Observed", "Planned", "Acting", "Ready"), "True")

    def reported(summary: Mapping[str, Any]) -> bool:
        status = loop.stack.policy_status()
        return (
            wanted.items() <= status["conditions"].items() and status["parallelism"]["running"] > slowest(summary) >= 2
        )

    loop.until("the conditions", reported)


def test_pods_run_as_the_manifests_say(loop: Loop) -> None:
    """Two of each service but the analyzer, in namespaces whose pods must be restricted."""
    node = loop.stack.node
    for namespace in (WEIR, SAMPLE):
        labels = node.cluster.request("GET", f"/api/v1/namespaces/{namespace}")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    pods = [pod for pod in node.pods(WEIR) if pod["status"]["phase"] == "Running"]
    names = [pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods]
    assert {name: names.count(name) for name in SERVICES} == {name: 1 if name == "analyzer" else 2 for name in SERVICES}


def test_a_load_step_is_followed(loop: Loop) -> None:
    """×3, through the API: more is planned, requested and then observed."""
    # What waited while everything started took more than the load does.
    loop.until("what the low load takes", lambda s: 2 <= slowest(s) <= 4 and s.get("action_phase") == "verified")
    before = slowest(loop.summary())
    loop.set_load(rate=HIGH)
    loop.until("more parallelism", lambda s: slowest(s) > before and s.get("action_phase") == "verified")


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_whose_pods_are_deleted_comes_back_into_the_loop(loop: Loop, service: str) -> None:
    """All pods of one service at once; no user does anything more."""
    deleted = set(loop.stack.kill(service))
    killed = datetime.now(UTC)
    loop.until(f"a plan after {service}'s death", lambda s: loop.decided_since(s, killed, service))
    running = {pod["metadata"]["name"] for pod in loop.stack.pods(service)}
    assert running and not running & deleted


def test_after_all_that_the_loop_still_acts(loop: Loop) -> None:
    """Down again: every service has died once."""
    loop.set_load(rate=LOW / 2)
    loop.until("less parallelism", lambda s: 0 < slowest(s) <= 2 and s.get("action_phase") == "verified")


def plans(loop: Loop) -> list[Mapping[str, Any]]:
    """Return the newest plans, newest first."""
    explained = loop.get(f"/v1/applications/{loop.application}/explain?limit=100") or {"items": []}
    return [cycle["plan"] for cycle in explained["items"] if cycle["plan"]]


def test_no_planner_passes_the_budget(loop: Loop) -> None:
    """It asks for twice the slots of the budget, whatever the load."""
    loop.stack.change_policy(
        planner={"name": "static", "parameters": {"parallelism": 2 * SLOTS}}, budget={"slots": SLOTS}
    )
    loop.set_load(rate=HIGH)
    found: dict[str, Mapping[str, Any]] = {}

    def at_the_limit(summary: Mapping[str, Any]) -> bool:
        found.update({plan["id"]: plan for plan in plans(loop) if plan["planner"] == "static"})
        limited = any(each["guard"] == "budget" for plan in found.values() for each in plan["amendments"])
        return limited and slowest(summary) == SLOTS and summary.get("action_phase") == "verified"

    loop.until("the budget's four slots", at_the_limit)
    assert all(max(plan["action"]["parallelism"].values()) <= SLOTS for plan in found.values() if plan["action"])


def test_a_resource_lets_the_hpa_rule_scale_a_deployment_by_its_cpu(loop: Loop) -> None:
    """200 millicores at pods that request 100 and are to use 60 %: four pods; one once the requests end. The policy is
    applied, watched and deleted by kubectl."""
    resources: KubernetesCluster = loop.stack.node.cluster
    pods = deployment(SHOP, RESTRICTED, 1, cpu=f"{CPU_REQUEST * 1000:g}m", cpu_seconds=CPU_SECONDS)
    resources.apply(pods, service(SHOP), namespace=SAMPLE)
    shop = Loop(loop.stack, 8080, f"{SAMPLE}/{SHOP}", loop.host)
    utilization = {"type": "Utilization", "averageUtilization": CPU_PERCENT}
    parameters = {
        "scope": "application",
        "metrics": [{"name": "cpu", "target": utilization}],
        "downscaleStabilizationSeconds": 10,
    }
    spec = {
        "target": {"kubernetes": {"kind": "Deployment", "name": SHOP}},
        "objective": {"utilization": CPU_PERCENT / 100},
        "bounds": {"max": 6},
        "planner": {"name": "hpa", "parameters": parameters},
        "behavior": {"cooldown": "10s", "scaleDown": {"stabilization": "0s", "reversalHold": "0s"}},
        "mode": "act",
    }
    policy = {"apiVersion": "weir.dev/v1alpha1", "kind": "ScalingPolicy", "metadata": {"name": SHOP}, "spec": spec}
    resources.apply(policy, namespace=SAMPLE)
    resources.kubectl("wait", "-n", SAMPLE, "--for=condition=Accepted", f"scalingpolicy/{SHOP}", "--timeout=60s")

    def replicas(summary: Mapping[str, Any]) -> int:
        return int((summary.get("observed") or {}).get(SHOP, 0))

    def status() -> dict[str, Any]:
        path = f"/apis/weir.dev/v1alpha1/namespaces/{SAMPLE}/scalingpolicies/{SHOP}"
        return dict(resources.request("GET", path).get("status", {}))

    with Callers(f"http://{loop.stack.node.service_address(SAMPLE, SHOP)}", REQUESTS):
        shop.until("four pods", lambda s: 3 <= replicas(s) <= 5 and s.get("action_phase") == "verified")
        grown = [plan for plan in plans(shop) if plan["kind"] == "scale"]
        shop.until("the same in the status", lambda _: 3 <= status().get("parallelism", {}).get("running", 0) <= 5)
    assert {plan["planner"] for plan in grown} == {"hpa"}
    assert grown[-1]["evidence"]["cpu"] > CPU_REQUEST * CPU_PERCENT / 100
    shop.until("one pod", lambda s: replicas(s) == 1 and s.get("action_phase") == "verified")
    resources.kubectl("delete", "scalingpolicy", SHOP, "-n", SAMPLE)
    shop.until("no policy", lambda _: shop.client.get(f"/v1/policies/{shop.application}").status_code == 404, 30)
    resources.kubectl("delete", "deployment,service", SHOP, "-n", SAMPLE)
    shop.client.close()


def test_delete_leaves_nothing(loop: Loop) -> None:
    """No object of the overlay and no container of its pods."""
    assert loop.stack.left()
    loop.stack.down()
    assert loop.stack.left() == []
    wait_until(
        lambda: not loop.stack.containers_left(), timeout_seconds=120, what="end of the containers", poll_seconds=1.0
    )
