"""`kubectl apply -k deploy/k8s/overlays/kafka-streams` on a real node: Weir starts and stops the pods of a Kafka Streams
application, and the group does not wait for the members of stopped ones."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import pytest

from testbed.kubernetes import is_ready
from testbed.node import KubernetesNode
from testbed.trial.options import short_behavior
from tests.containers.loop import Loop

from .stack import EXECUTOR, WEIR, NodeStack

WORKLOAD = "streams"
LOW, HIGH = 120, 450
"""Paid orders/s: one pod does the one, and three at least the other. A fall below a fifth would count as an outage."""
SESSION_SECONDS = 45.0
"""Time for which the brokers wait for a member that ended without leaving."""


@pytest.fixture(scope="module")
def loop(node: KubernetesNode) -> Iterator[Loop]:
    """The overlay applied, with the images of this tree and what stands in for official ones."""
    stack = NodeStack(node, "kafka-streams")
    try:
        stack.up()
        loop = Loop(stack, 8080, host=node.service_address(WEIR, "knowledge"))
        loop.set_load(rate=LOW)
        yield loop
        loop.client.close()
    finally:
        stack.end()


def pods(loop: Loop) -> list[str]:
    """Return the pods of the application if each is ready and none is ending; else none."""
    found = loop.stack.pods(WORKLOAD)
    settled = all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in found)
    return sorted(pod["metadata"]["name"] for pod in found) if settled else []


def threads(summary: Mapping[str, Any]) -> int:
    """Return the members of the group that were observed; 0: unknown."""
    return int((summary.get("observed") or {}).get("orders", 0))


class Outcomes:
    """Outcomes by id, read again and again: the service explains the last minutes only."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._found: dict[str, Mapping[str, Any]] = {}

    def read(self) -> list[Mapping[str, Any]]:
        """Return all outcomes so far, oldest first."""
        explained = self._loop.get(f"/v1/applications/{self._loop.application}/explain?limit=100") or {"items": []}
        self._found |= {outcome["id"]: outcome for cycle in explained["items"] for outcome in cycle["outcomes"]}
        return sorted(self._found.values(), key=lambda outcome: str(outcome["at"]))


def test_more_load_is_more_pods(loop: Loop) -> None:
    """Through `/scale`; each new instance takes its share of the tasks."""
    loop.until("one pod", lambda s: threads(s) == 1 and len(pods(loop)) == 1, 600)
    loop.set_load(rate=HIGH)
    loop.until(
        "three pods or more",
        lambda s: threads(s) == len(pods(loop)) >= 3 and s.get("action_phase") == "verified",
        600,
    )
    assert loop.stack.scaled_by(WORKLOAD) == {EXECUTOR}


def test_less_load_is_fewer_pods_whose_members_are_evicted(loop: Loop) -> None:
    """The highest ordinals go; their tasks run elsewhere long before the brokers would have noticed."""
    before, outcomes = pods(loop), Outcomes(loop)
    loop.stack.change_policy(behavior=short_behavior(12, 5))
    loop.set_load(rate=LOW)
    loop.until(
        "one pod",
        lambda s: outcomes.read() and threads(s) == len(pods(loop)) == 1 and s.get("action_phase") == "verified",
        900,
    )
    assert pods(loop) == ["streams-0"]
    found = outcomes.read()
    sentences = [outcome["sentence"] for outcome in found if outcome["code"] == "evicted"]
    evicted = {name for name in before if any(name in sentence for sentence in sentences)}
    assert evicted == set(before) - {"streams-0"}, sentences
    last = next(outcome["action"] for outcome in reversed(found) if outcome["phase"] == "verified")
    mine = [outcome for outcome in found if outcome["action"] and outcome["action"]["id"] == last["id"]]
    requested, running = (
        datetime.fromisoformat(next(o["at"] for o in mine if o["code"] == code)) for code in ("accepted", "running")
    )
    assert (running - requested).total_seconds() < SESSION_SECONDS


def test_delete_leaves_nothing(loop: Loop) -> None:
    """No object of the overlay."""
    loop.stack.down()
    assert loop.stack.left() == []
