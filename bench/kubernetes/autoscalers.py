"""The HorizontalPodAutoscaler and Weir side by side: the same load on a workload of each, at the same time.

API server, HPA controller, metrics-server and Weir's services are real, with their default timers. Pods are simulated
and ready after some seconds; behind them is a queue that as many replicas empty as are ready, and their CPU follows.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from testbed.kubernetes import KubernetesCluster
from weir_contracts import ScalingPolicy, policy_of

from .load import CAPACITY, DURATION_SECONDS, needed_replica_seconds, rate_at, summary
from .metric_servers import external_metrics, prometheus
from .services import Services, load_average
from .simulation import READY_SECONDS, Simulation, deployment

NAMESPACE = "shop"
WEIR = "weir"
HPAS: Mapping[str, tuple[str, ...]] = {
    "hpa-cpu": ("cpu",),
    "hpa-lag": ("lag",),
    "hpa-cpu-lag": ("cpu", "lag"),
}
"""Metrics of each HPA, the largest proposal of which counts."""
NAMES = (*HPAS, WEIR)
OBJECTIVE_SECONDS, MIN_REPLICAS, MAX_REPLICAS = 30.0, 1, 12
CPU_PERCENT = 80
LAG_RECORDS_PER_REPLICA = 1000
"""Waiting records of one replica that an HPA on lag aims at: 10 s of its capacity."""


def measure(seconds: float = DURATION_SECONDS) -> dict[str, Any]:
    """Run the load on every workload; return late share, cost and changes of each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-bench-")))
        cluster = stack.enter_context(KubernetesCluster(folder / "kubernetes", metrics=True))
        cluster.create_namespace(NAMESPACE)
        cluster.apply(*map(deployment, NAMES), namespace=NAMESPACE)
        names = ("knowledge", "monitor", "analyzer", "planner", "executor")
        services = stack.enter_context(Services(cluster, NAMESPACE, folder, names))
        simulation = Simulation(cluster, NAMESPACE, NAMES, rate_at)
        url = stack.enter_context(prometheus(simulation.values))
        stack.enter_context(external_metrics(cluster, NAMESPACE, simulation.values))
        cluster.apply(*(_hpa(name, metrics) for name, metrics in HPAS.items()), namespace=NAMESPACE)
        policy = weir_policy(NAMESPACE, WEIR, url)
        services.put([policy])
        load_before = load_average()
        samples = asyncio.run(simulation.run(seconds))
        return {
            "seconds": seconds,
            "objective_seconds": OBJECTIVE_SECONDS,
            "replica_capacity_records_per_second": CAPACITY,
            "bounds": [MIN_REPLICAS, MAX_REPLICAS],
            "pods_ready_seconds": READY_SECONDS,
            "timers": {
                "hpa": "defaults: sync 15 s, tolerance 10 %, downscale stabilisation 300 s; metrics-server every 10 s",
                "weir": "defaults: interval 5 s, scaleDown.stabilization 2m, cooldown 60s; queries answer at once",
            },
            "hpa_targets": {"cpu_percent": CPU_PERCENT, "lag_records_per_replica": LAG_RECORDS_PER_REPLICA},
            "weir_policy": policy.to_document()["spec"],
            "needed_replica_seconds": needed_replica_seconds(samples[WEIR]),
            "autoscalers": {name: summary(samples[name], OBJECTIVE_SECONDS) for name in NAMES},
            "load_average": {"before": load_before, "after": load_average()},
        }


def weir_policy(namespace: str, name: str, prometheus_url: str, **spec: Any) -> ScalingPolicy:
    """Return Weir's policy: the same bounds as the HPAs', everything else as by default."""
    queries = {"done": f"{name}_processed", "queued": f"{name}_waiting"}
    fields = {
        "application": {"service": {"processed": "done", "waiting": "queued"}},
        "target": {"kubernetes": {"kind": "Deployment", "name": name}},
        "signals": {"prometheus": {"url": prometheus_url, "queries": queries}},
        "objective": {"maxLag": f"{OBJECTIVE_SECONDS:g}s"},
        "bounds": {"min": MIN_REPLICAS, "max": MAX_REPLICAS},
        "mode": "act",
    }
    return policy_of(f"{namespace}/{name}", **{**fields, **spec})


def _hpa(name: str, metrics: tuple[str, ...]) -> dict[str, Any]:
    cpu = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": CPU_PERCENT}},
    }
    target = {"type": "AverageValue", "averageValue": str(LAG_RECORDS_PER_REPLICA)}
    lag = {"type": "External", "external": {"metric": {"name": f"{name}_waiting"}, "target": target}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": MIN_REPLICAS,
            "maxReplicas": MAX_REPLICAS,
            "metrics": [{"cpu": cpu, "lag": lag}[each] for each in metrics],
        },
    }
