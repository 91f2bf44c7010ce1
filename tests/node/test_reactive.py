"""`kubectl apply -k deploy/k8s/overlays/reactive` on a real node: a Flink job in reactive mode gets the TaskManager pods
that its load needs."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from testbed.kubernetes import is_ready
from testbed.node import KubernetesNode
from testbed.trial.options import short_behavior
from tests.containers.loop import Loop, slowest

from .stack import EXECUTOR, SAMPLE, WEIR, NodeStack

WORKLOAD = "taskmanager"
LOW, HIGH = 500, 1500
"""Records/s: the two slots of one pod do the one, and not the other."""


@pytest.fixture(scope="module")
def loop(node: KubernetesNode) -> Iterator[Loop]:
    """The overlay applied, with the images of this tree and what stands in for official ones."""
    stack = NodeStack(node, "reactive")
    try:
        stack.up()
        loop = Loop(stack, 8080, host=node.service_address(WEIR, "knowledge"))
        loop.set_load(rate=LOW)
        yield loop
        loop.client.close()
    finally:
        stack.end()


def running(loop: Loop) -> list[dict[str, Any]]:
    """Return the TaskManagers' pods that are ready and not about to end."""
    return [pod for pod in loop.stack.pods(WORKLOAD) if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]


def all_slots_used(loop: Loop, summary: Mapping[str, Any]) -> bool:
    """Return whether the job runs on two slots of each ready pod, and no pod starts or ends."""
    pods = len(running(loop))
    return slowest(summary) == 2 * pods and len(loop.stack.pods(WORKLOAD)) == pods


def test_more_load_is_more_pods(loop: Loop) -> None:
    """Through `/scale`, by the executor's own account; the job spreads over the new pods' slots."""
    loop.until("the job on one pod", lambda s: slowest(s) == 2 and all_slots_used(loop, s), 600)
    loop.set_load(rate=HIGH)
    loop.until(
        "two pods or more",
        lambda s: slowest(s) >= 4 and s.get("action_phase") == "verified" and all_slots_used(loop, s),
    )
    assert loop.stack.scaled_by(WORKLOAD) == {EXECUTOR}


def test_a_pod_that_dies_is_replaced(loop: Loop) -> None:
    """By the Deployment; the job runs on all slots again, and Weir decides on readings of that."""
    name = running(loop)[0]["metadata"]["name"]
    command = ("delete", "pod", name, "-n", SAMPLE, "--grace-period=1", "--wait=true")
    loop.stack.node.cluster.kubectl(*command, timeout_seconds=180)
    killed = datetime.now(UTC)
    loop.until(
        "the pod's successor at work",
        lambda s: loop.decided_since(s, killed, WORKLOAD) and slowest(s) >= 4 and all_slots_used(loop, s),
    )


def test_applying_the_overlay_again_keeps_the_pods(loop: Loop) -> None:
    """It carries no replicas, so that Weir has nothing to contest, and scales the workload meanwhile and in the next test."""
    path = f"/apis/apps/v1/namespaces/{SAMPLE}/deployments/{WORKLOAD}"
    before = loop.stack.node.cluster.request("GET", path)["spec"]
    loop.stack.apply()
    after = loop.stack.node.cluster.request("GET", path)["spec"]
    assert after["replicas"] >= 2
    assert after == {**before, "replicas": after["replicas"]}
    loop.until("still able to scale", lambda _: loop.stack.policy_status()["conditions"].get("Acting") == "True")


def test_less_load_is_fewer_pods(loop: Loop) -> None:
    """Down to the one it began with."""
    # With all else that runs there, a restart may take longer than the demonstration's objective allows: Weir holds.
    loop.stack.change_policy(objective={"maxLag": "5m"}, behavior=short_behavior(12, 5))
    loop.set_load(rate=LOW)
    loop.until("one pod", lambda s: slowest(s) == 2 and len(loop.stack.pods(WORKLOAD)) == 1 and len(running(loop)) == 1)


def test_delete_leaves_nothing(loop: Loop) -> None:
    """No object of the overlay."""
    loop.stack.down()
    assert loop.stack.left() == []
