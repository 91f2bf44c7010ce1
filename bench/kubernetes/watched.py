"""Many watched workloads at rest: memory of monitor and executor, and their calls of the API server."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.results_file import log
from bench.running import usage_over
from testbed.kubernetes import KubernetesCluster
from testbed.process import wait_until
from weir_contracts import ScalingPolicy, policy_of
from weir_runtime.http_client import client

from .services import USERS, Services, load_average
from .simulation import deployment

NAMESPACE = "fleet"
WORKLOADS, REPLICAS = 200, 2
START_SECONDS, SETTLE_SECONDS, REST_SECONDS = 300.0, 60.0, 300.0


def measure(rest_seconds: float = REST_SECONDS) -> dict[str, Any]:
    """Start the services with a policy for each workload; return what they use while nothing changes."""
    names = [f"orders-{number:03}" for number in range(WORKLOADS)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-bench-")))
        cluster = stack.enter_context(KubernetesCluster(folder / "kubernetes", metrics=True))
        cluster.create_namespace(NAMESPACE)
        cluster.apply(*(deployment(name, REPLICAS, ready_seconds=0) for name in names), namespace=NAMESPACE)
        wait_until(lambda: _are_ready(cluster), timeout_seconds=START_SECONDS, what="pods ready", poll_seconds=2.0)
        services = stack.enter_context(Services(cluster, NAMESPACE, folder, ("knowledge", *USERS)))
        processes = [services.by_name[name].process for name in USERS]
        empty = {process.name: process.usage() for process in processes}
        services.put([_policy(name) for name in names])
        wait_until(lambda: _are_observed(services, names), timeout_seconds=START_SECONDS, what="observed")
        log(f"{WORKLOADS} workloads are observed")
        time.sleep(SETTLE_SECONDS)
        users = {name: access.user for name, access in services.accounts.items()}
        before = {name: len(cluster.audit(user)) for name, user in users.items()}
        usage = usage_over(processes, rest_seconds)
        calls = {name: cluster.audit(user)[before[name] :] for name, user in users.items()}
        return {
            "workloads": WORKLOADS,
            "pods": WORKLOADS * REPLICAS,
            "interval_seconds": 5.0,
            "seconds": rest_seconds,
            "rss_megabytes_without_policies": {
                name: None if each is None else round(each.rss_bytes / 1e6, 1) for name, each in empty.items()
            },
            "usage": usage,
            "api_calls_per_minute": {name: round(len(each) * 60 / rest_seconds, 2) for name, each in calls.items()},
            "api_calls": sorted({f"{each.verb} {each.resource}" for those in calls.values() for each in those}),
            "load_average": load_average(),
        }


def _policy(name: str) -> ScalingPolicy:
    target = {"kubernetes": {"kind": "Deployment", "name": name}}
    return policy_of(f"{NAMESPACE}/{name}", target=target, objective={"utilization": 0.7}, mode="act")


def _are_ready(cluster: KubernetesCluster) -> bool:
    listed = cluster.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    ready: int = sum(each.get("status", {}).get("readyReplicas", 0) for each in listed)
    return ready == WORKLOADS * REPLICAS


def _are_observed(services: Services, names: list[str]) -> bool:
    with client(timeout=5.0) as http:
        urls = (f"{services.api_url}/v1/applications/{NAMESPACE}/{name}/observation" for name in names)
        return all(http.get(url).status_code == 200 for url in urls)
