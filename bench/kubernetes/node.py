"""Times and memory on a real Kubernetes node: installation to the first action, and load steps that start TaskManager
pods.

`make bench-kubernetes-node`, as root; writes bench/results/kubernetes_node.json. All parts run as pods of
deploy/k8s/overlays/reactive, whose images are built here; nothing is simulated.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from bench.results_file import distribution, log, write
from testbed.kubernetes import is_ready
from testbed.node import KubernetesNode
from testbed.process import TestbedError, wait_until
from tests.containers.loop import Loop, slowest
from tests.node.images import missing
from tests.node.stack import SAMPLE, WEIR, NodeStack
from weir_engines.kubernetes.values import quantity

WORKLOAD, SLOTS = "taskmanager", 2
LOW, HIGHS = 500, (1500, 2000)
"""Records/s: one pod does the low load; the high ones take two pods or more."""
STEPS = 4
POLL_SECONDS = 0.2
LIMIT_SECONDS = 600.0
MEGABYTE = 1e6


@dataclass(frozen=True)
class Action:
    """A verified action: when its plan was made, the target accepted it and it ended, and the parallelism it asked for."""

    plan_at: datetime
    requested_at: datetime
    finished_at: datetime
    parallelism: int


class Demonstration:
    """An overlay that is installed on a node, as a bench reads it."""

    def __init__(self, node: KubernetesNode, overlay: str) -> None:
        self.node, self.stack = node, NodeStack(node, overlay)

    def install(self) -> dict[str, float]:
        """Apply the overlay; return the seconds from that until each stage was reached."""
        self.stack.load_images(log)
        began = datetime.now(UTC)
        self.stack.apply()
        available = datetime.now(UTC)
        self.loop = Loop(self.stack, 8080, host=self.node.service_address(WEIR, "knowledge"))
        action = self.action_since(began)
        return {
            "all_available_seconds": _seconds(began, available),
            "first_plan_seconds": _seconds(began, action.plan_at),
            "first_request_accepted_seconds": _seconds(began, action.requested_at),
            "first_action_verified_seconds": _seconds(began, action.finished_at),
        }

    def action_since(self, since: datetime, more: Callable[[], object] = lambda: None) -> Action:
        """Wait for a verified action whose plan was made after `since`; `more` is called while waiting."""

        def ended() -> Action | None:
            more()
            return self._verified(since)

        return wait_until(ended, timeout_seconds=LIMIT_SECONDS, what="a verified action", poll_seconds=POLL_SECONDS)

    def decisions(self, since: datetime, until: datetime) -> list[dict[str, Any]]:
        """Return the decisions of an interval, oldest first: seconds from its start, kind, code and sentence."""
        plans = [cycle["plan"] for cycle in self._cycles() if cycle["plan"]]
        times = [(_instant(plan["created_at"]), plan) for plan in reversed(plans)]
        return [
            {"t": _seconds(since, at), **{name: plan[name] for name in ("kind", "code", "sentence")}}
            for at, plan in times
            if since <= at <= until
        ]

    def _cycles(self) -> list[dict[str, Any]]:
        """Return the last cycles of the loop, newest first."""
        explained = self.loop.get(f"/v1/applications/{self.loop.application}/explain?limit=50")
        return explained["items"] if explained else []

    def _verified(self, since: datetime) -> Action | None:
        for cycle in self._cycles():
            last = next((o["action"] for o in cycle["outcomes"] if o["action"] and o["phase"] == "verified"), None)
            if last and cycle["plan"] and (plan_at := _instant(cycle["plan"]["created_at"])) > since:
                parallelism = max(last["wanted"].values())
                return Action(plan_at, _instant(last["requested_at"]), _instant(last["finished_at"]), parallelism)
        return None

    def memory_megabytes(self) -> dict[str, float]:
        """Return the working set of each deployment's largest pod, by metrics.k8s.io."""
        items = wait_until(self._metrics, timeout_seconds=LIMIT_SECONDS, what="metrics of all pods", poll_seconds=5)
        found: dict[str, float] = {}
        for item in items:
            name = item["metadata"]["labels"].get("app.kubernetes.io/name", item["metadata"]["name"])
            used = sum(quantity(each["usage"]["memory"]) or 0.0 for each in item["containers"]) / MEGABYTE
            found[name] = max(found.get(name, 0.0), round(used, 1))
        return dict(sorted(found.items()))

    def _metrics(self) -> list[dict[str, Any]] | None:
        try:
            paths = (f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods" for namespace in (WEIR, SAMPLE))
            return [item for path in paths for item in self.node.cluster.request("GET", path)["items"]]
        except TestbedError:
            return None  # On a busy machine the metrics server is away now and then: 503.

    def ready_pods(self) -> int:
        """Return how many TaskManager pods are ready."""
        pods = self.stack.pods(WORKLOAD)
        return sum(1 for pod in pods if is_ready(pod) and "deletionTimestamp" not in pod["metadata"])


class Flink:
    """The job's execution, by Flink's REST API, which a service's address of this machine leads to."""

    def __init__(self, node: KubernetesNode) -> None:
        address = node.service_address(SAMPLE, "jobmanager")
        self._client = httpx.Client(base_url=f"http://{address}:8081", timeout=5)

    def running(self) -> tuple[int, datetime | None]:
        """Return the parallelism with which all tasks run, and since when; 0 if not all run."""
        try:
            jobs = self._client.get("/jobs/overview").json()["jobs"]
            job = self._client.get(f"/jobs/{jobs[0]['jid']}").json()
            tasks = [each["tasks"] for each in job["vertices"]]
            if job["state"] != "RUNNING" or any(sum(each.values()) != each["RUNNING"] for each in tasks):
                return 0, None
            started = datetime.fromtimestamp(job["timestamps"]["RUNNING"] / 1000, UTC)
            return max(each["parallelism"] for each in job["vertices"]), started
        except (httpx.HTTPError, LookupError, ValueError):
            return 0, None

    def close(self) -> None:
        self._client.close()


def _step(demonstration: Demonstration, flink: Flink, rate: int) -> dict[str, Any]:
    """Raise the load and return the seconds until each stage was reached, from the step."""
    began = datetime.now(UTC)
    demonstration.loop.set_load(rate=rate)
    stepped = datetime.now(UTC)
    ready_at: dict[int, datetime] = {}
    running_at: dict[int, datetime] = {}

    def look() -> None:
        ready_at.setdefault(demonstration.ready_pods(), datetime.now(UTC))
        parallelism, since = flink.running()
        if since is not None:
            running_at.setdefault(parallelism, since)

    action = demonstration.action_since(began, look)
    # A newer plan may have superseded the first one while the load rose.
    decisions = demonstration.decisions(stepped, action.plan_at)
    first = next(each["t"] for each in decisions if each["kind"] == "scale")
    pods = action.parallelism // SLOTS
    ready, running = ready_at[pods], running_at[action.parallelism]
    return {
        "from_records_per_second": LOW,
        "to_records_per_second": rate,
        "pods": [1, pods],
        "step_to_first_plan_seconds": first,
        "step_to_plan_seconds": _seconds(stepped, action.plan_at),
        "plan_to_scale_written_seconds": _seconds(action.plan_at, action.requested_at),
        "scale_written_to_pods_ready_seconds": _seconds(action.requested_at, ready),
        "pods_ready_to_job_running_seconds": _seconds(ready, running),
        "step_to_job_running_seconds": _seconds(stepped, running),
        "step_to_verified_seconds": _seconds(stepped, action.finished_at),
        "decisions": decisions,
    }


def _steps(demonstration: Demonstration, count: int) -> list[dict[str, Any]]:
    flink = Flink(demonstration.node)
    found = []
    try:
        for number in range(count):
            demonstration.loop.set_load(rate=LOW)
            # On a busy machine a restart may take longer than the objective allows, and Weir holds.
            demonstration.stack.change_policy(objective={"maxLag": "5m"})
            _settle(demonstration)
            demonstration.stack.change_policy(objective={"maxLag": "30s"})
            # Longer than the cooldown, so that a step's plan waits for nothing but the measurement.
            time.sleep(30)
            found.append(_step(demonstration, flink, HIGHS[number % len(HIGHS)]))
            log(f"step {number + 1}: {found[-1]}")
    finally:
        flink.close()
    return found


def _settle(demonstration: Demonstration) -> None:
    """Wait until the low load runs on one pod."""

    def settled(summary: Mapping[str, Any]) -> bool:
        return (
            slowest(summary) == SLOTS and summary.get("action_phase") != "verifying" and demonstration.ready_pods() == 1
        )

    demonstration.loop.until("one pod", settled, LIMIT_SECONDS)


def measure(node: KubernetesNode, steps: int) -> dict[str, Any]:
    """Install the overlay, change its load, and return times in seconds and memory in MB."""
    demonstration = Demonstration(node, "reactive")
    installed = demonstration.install()
    log(f"installed: {installed}")
    measured = _steps(demonstration, steps)
    memory = demonstration.memory_megabytes()
    log(f"memory: {memory}")
    stages = [name for name in measured[0] if name.endswith("_seconds")]
    return {
        "apply_to": installed,
        "steps": measured,
        "stages": {name: distribution([each[name] for each in measured]) for name in stages},
        "pod_memory_megabytes": memory,
    }


def _seconds(start: datetime, end: datetime) -> float:
    return round((end - start).total_seconds(), 2)


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def main() -> int:
    """Run the benchmark; 1 and the reason if this machine cannot be a node."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"load steps (default {STEPS}; about four minutes each)"
    )
    steps = parser.parse_args().steps
    if reason := missing():
        sys.stderr.write(f"{reason}\n")
        return 1
    try:
        with KubernetesNode() as node:
            results = measure(node, steps)
    except TestbedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    arguments = "" if steps == STEPS else f' ARGS="--steps {steps}"'
    log(str(write("kubernetes_node", f"make bench-kubernetes-node{arguments}", results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
