"""Campaign on a kubernetes target: a Deployment of a real API server, behind whose simulated pods is a queue."""

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.kubernetes.autoscalers import weir_policy
from bench.kubernetes.load import CAPACITY
from bench.kubernetes.metric_servers import prometheus
from bench.kubernetes.services import Services
from bench.kubernetes.simulation import Simulation, deployment
from testbed.kubernetes import KubernetesCluster
from testbed.process import free_port
from testbed.trial.options import short_behavior
from testbed.trial.stack import SERVICES

from .campaign import OBJECTIVE_SECONDS, Campaign, run

NAMESPACE, NAME = "shop", "orders"
LOW, HIGH = 200.0, 600.0
BOUNDS = {"min": 1, "max": 10}
"""At most what is right for the high load, so that a backlog is worked off without replicas to be removed after it."""
VICTIMS = (*SERVICES, "analyzer-state", "kafka", "redis", "redis-emptied", "controllers")
"""Processes; `controllers`: the cluster's controller manager, without which no pod is created or deleted."""


def right(rate: float) -> range:
    """Return the replicas that are right for a rate: enough for it, and no more than the planner's margins ask for."""
    # `rate` sizes for arrivals a tenth higher at 80 %, and stays at one replica more, which is within the tolerance.
    return range(math.ceil(rate / CAPACITY), math.ceil(rate * 1.1 / 0.8 / CAPACITY) + 2)


class KubernetesStack:
    """Cluster, services and simulated workload of one campaign."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rate = LOW
        self.cluster = KubernetesCluster(folder / "kubernetes", metrics=True)
        self.simulation = Simulation(self.cluster, NAMESPACE, [NAME], lambda _: self.rate)
        self._api_port = free_port()
        self._parts = ExitStack()
        self._thread = threading.Thread(target=self._simulate, name="simulation", daemon=True)

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self._api_port}"

    @property
    def application_url(self) -> str:
        return f"{self.api_url}/v1/applications/{self.policy.application}"

    def start(self, report: Callable[[str], None]) -> None:
        """Start everything and put the policy."""
        self._parts.enter_context(self.cluster)
        self.cluster.create_namespace(NAMESPACE)
        self.cluster.apply(deployment(NAME), namespace=NAMESPACE)
        services = Services(self.cluster, NAMESPACE, self.folder, SERVICES, api_port=self._api_port)
        self._parts.enter_context(services)
        self.kafka, self.redis, self.services = services.kafka, services.redis, services.by_name
        url = self._parts.enter_context(prometheus(self.simulation.values))
        self.policy = weir_policy(NAMESPACE, NAME, url, behavior=short_behavior(12, 5), bounds=BOUNDS)
        services.put([self.policy])
        self._thread.start()
        report("the workload runs")

    def stop(self) -> None:
        """End everything. May be called before all has started."""
        self.simulation.stop()
        if self._thread.is_alive():
            self._thread.join(30)
        self._parts.close()

    def writes(self) -> int:
        """Return the accepted writes of the scale subresource by the executor."""
        user = f"system:serviceaccount:{NAMESPACE}:executor"
        return sum(e.resource == "deployments/scale" and e.code == 200 for e in self.cluster.audit(user))

    def _simulate(self) -> None:
        asyncio.run(self.simulation.run(math.inf, 0.0))


class KubernetesCampaign(Campaign):
    """A service on Kubernetes, scaled through the scale subresource."""

    rates = LOW, HIGH
    stack: KubernetesStack

    def set_load(self, **changes: Any) -> None:
        self.stack.rate = changes.get("rate", self.stack.rate)

    def kill(self, victim: str) -> None:
        if victim == "controllers":
            self.stack.cluster.controllers.kill()
        else:
            super().kill(victim)

    def mend(self, victim: str) -> None:
        if victim == "controllers":
            self.stack.cluster.controllers.start()
        else:
            super().mend(victim)

    def running(self) -> int | None:
        samples = self.stack.simulation.samples[NAME]
        return samples[-1].ready if samples else None

    def target_troubles(self) -> list[str]:
        samples, fits = self.stack.simulation.samples[NAME], right(self.rate)
        if not samples:
            return ["the workload has not begun"]
        plan = next((event.data for event in reversed(self.events.events()) if event.kind == "plan"), None)
        if plan is None:
            return ["no plan was made yet"]
        if plan["code"] == "swings-ridden":
            # The rounds change the load every minute: `rate` may hold what the high load needs.
            fits = range(fits.start, right(HIGH).stop)
        last, found = samples[-1], []
        if last.ready not in fits or last.ready != last.requested:
            found.append(f"{last.ready} of {last.requested} replicas are ready, right for {self.rate:g}/s is {fits}")
        if last.age_seconds > OBJECTIVE_SECONDS:
            found.append(f"the oldest record waits for {last.age_seconds:.0f} s")
        return found


def kubernetes_campaign(kills: list[tuple[str, str]], seed: int, folder: Path) -> dict[str, Any]:
    """Run the campaign; return the results, with the writes of the scale subresource that the API server logged."""
    stack = KubernetesStack(folder)
    found = run(KubernetesCampaign(stack, seed), kills, seed, 0.0)
    return {**found, "scale_writes": stack.writes()}
