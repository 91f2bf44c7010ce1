"""Campaign on a kubernetes target: a Deployment of a real API server, behind whose simulated pods is a queue."""

import asyncio
import math
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from bench.results_file import PROJECT
from testbed.kubernetes import KubernetesCluster
from testbed.process import ManagedProcess, free_port
from testbed.service import WeirService, loop_settings, wait_all_ready
from testbed.trial.options import short_behavior
from testbed.trial.stack import LOOP_PARTITIONS, SERVICES
from weir_contracts import Parallelism
from weir_runtime.bus import partition_of

from .campaign import Campaign, behind
from .faults import faults_of, points_of
from .flink import OBJECTIVE_SECONDS, PlansFollower
from .proxy import Exchange, RecordingProxy
from .service import FOLDER
from .workload import CAPACITY, Simulation, deployment, prometheus, weir_policy

NAMESPACE, NAME = "shop", "orders"
LOW, HIGH = 200.0, 600.0
BOUNDS = {"min": 1, "max": 10}
"""At most what is right for the high load, so that a backlog is worked off without replicas to be removed after it."""
FAULTS = faults_of(
    kill=(*SERVICES, "kafka", "redis", "controllers"),
    stop=("executor", "knowledge", "controllers"),
    emptied=("redis",),
    clock=("executor", "knowledge"),
)
"""`controllers`: the cluster's controller manager, without which no pod is created or deleted."""
POINTS = points_of(("kubernetes", "GET", f"/deployments/{NAME}"), ("kubernetes", "PUT", "/scale"))


def rights(service: str) -> list[dict[str, Any]]:
    """Return the rules of a service's role in namespaces of workloads."""
    text = (PROJECT / "deploy" / "k8s" / "target" / f"{service}.yaml").read_text()
    role = next(each for each in yaml.safe_load_all(text) if each["kind"] == "Role")
    return list(role["rules"])


def right(rate: float) -> range:
    """Return the replicas that are right for a rate: enough for it, and no more than the planner's margins ask for."""
    # `rate` sizes for arrivals a tenth higher at 80 %, and stays at one replica more, which is within the tolerance.
    return range(math.ceil(rate / CAPACITY), math.ceil(rate * 1.1 / 0.8 / CAPACITY) + 2)


class KubernetesStack:
    """Cluster, services and simulated workload of one campaign."""

    def __init__(self, folder: Path, proxy: RecordingProxy) -> None:
        self.folder = folder
        self._proxy = proxy
        self.rate = LOW
        self.cluster = KubernetesCluster(folder / "kubernetes", metrics=True)
        self.simulation = Simulation(self.cluster, NAMESPACE, NAME, lambda: self.rate)
        self.kafka, self.redis, self._redis_url = behind(proxy, folder)
        self.services: dict[str, WeirService] = {}
        self._api_port = free_port()
        self._parts = ExitStack()
        self._thread = threading.Thread(target=self._simulate, name="simulation", daemon=True)

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self._api_port}"

    def start(self, report: Callable[[str], None]) -> None:
        """Start everything."""
        self._parts.enter_context(self.cluster)
        self.cluster.create_namespace(NAMESPACE)
        self.cluster.apply(deployment(NAME), namespace=NAMESPACE)
        self._parts.enter_context(self.kafka)
        self._parts.enter_context(self.redis)
        self._start_services()
        report(f"ready: {', '.join(self.services)}")
        self.prometheus_url = self._parts.enter_context(prometheus(self.simulation.values))
        self._thread.start()
        report("the workload runs")

    def _start_services(self) -> None:
        """Start all services with the rights of deploy/k8s; the executor's calls pass the proxy."""
        loop = loop_settings(self.kafka.bootstrap_servers, LOOP_PARTITIONS, self.api_url, self._redis_url, self.folder)
        trust = ssl.create_default_context(cafile=self.cluster.authority.certificate)
        through = {
            "WEIR_KUBERNETES_URL": self._proxy.in_front_of("kubernetes", self.cluster.url, verify=trust),
            "WEIR_KNOWLEDGE_URL": self._proxy.in_front_of("knowledge", self.api_url),
        }
        for name in SERVICES:
            environment = {**loop, FOLDER: str(self.folder)}
            if name in ("monitor", "executor"):
                account = self.cluster.identity(name, rights(name), namespace=NAMESPACE)
                environment |= {
                    "WEIR_KUBERNETES_URL": account.url,
                    "WEIR_KUBERNETES_CA_FILE": str(account.ca_file),
                    "WEIR_KUBERNETES_TOKEN_FILE": str(account.token_file),
                    f"WEIR_{name.upper()}_KUBERNETES_NAMESPACES": NAMESPACE,
                }
            if name == "executor":
                environment |= through
            port = self._api_port if name == "knowledge" else None
            runner = None if name == "analyzer" else "bench.chaos.service"
            service = WeirService(name, self.folder / "services", environment, port=port, runner=runner)
            self.services[name] = service
            service.start()
            self._parts.callback(service.stop)
        wait_all_ready(list(self.services.values()), timeout_seconds=300.0)

    def stop(self) -> None:
        """End everything. May be called before all has started."""
        self.simulation.stop()
        if self._thread.is_alive():
            self._thread.join(30)
        self._parts.close()

    def _simulate(self) -> None:
        asyncio.run(self.simulation.run())


class KubernetesCampaign(Campaign):
    """A service on Kubernetes, scaled through the scale subresource."""

    faults, points = FAULTS, POINTS
    stack: KubernetesStack

    def start(self) -> None:
        self._plans = PlansFollower(self.stack.kafka.bootstrap_servers)
        policy = weir_policy(NAMESPACE, NAME, self.stack.prometheus_url, behavior=short_behavior(12, 5), bounds=BOUNDS)
        self.policies = [policy]
        self.record.partitions = {policy.application: partition_of(policy.application, LOOP_PARTITIONS)}
        self.record.applications = {NAME: policy.application}
        self.record.plans = self._plans.plans

    def stop(self) -> None:
        self._plans.stop()

    def process(self, victim: str) -> ManagedProcess:
        return self.stack.cluster.controllers if victim == "controllers" else super().process(victim)

    def restart(self, victim: str) -> None:
        if victim == "controllers":
            self.stack.cluster.controllers.start()
        else:
            super().restart(victim)

    def change_load(self) -> None:
        """Three times as much, or a third."""
        self.stack.rate = HIGH if self.stack.rate == LOW else LOW

    def target_troubles(self) -> list[str]:
        samples, fits = self.stack.simulation.samples, right(self.stack.rate)
        if not samples:
            return ["the workload has not begun"]
        if not self._plans.newest_code:
            return ["no plan was made yet"]
        if self._plans.newest_code == "swings-ridden":
            # The rounds change the load every minute: `rate` may hold what the high load needs.
            fits = range(fits.start, right(HIGH).stop)
        last, found = samples[-1], []
        if last.ready not in fits or last.ready != last.requested:
            rate = self.stack.rate
            found.append(f"{last.ready} of {last.requested} replicas are ready, right for {rate:g}/s is {fits}")
        if last.age_seconds > OBJECTIVE_SECONDS:
            found.append(f"the oldest record waits for {last.age_seconds:.0f} s")
        return found

    def requirements(self) -> dict[str, Parallelism]:
        path = ("get", "deployment", NAME, "-n", NAMESPACE, "-o", "jsonpath={.spec.replicas}")
        return {NAME: {NAME: int(self.stack.cluster.kubectl(*path))}}

    def request_of(self, exchange: Exchange) -> tuple[str, Parallelism] | None:
        """Return what a write of the scale subresource asks for."""
        if not exchange.path.endswith(f"/deployments/{NAME}/scale") or exchange.method not in ("PUT", "PATCH"):
            return None
        return NAME, {NAME: exchange.body["spec"]["replicas"]}
