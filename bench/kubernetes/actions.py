"""Times of actions on a Deployment: plan to `/scale` written, written to `verified`.

API server, controllers, brokers and the executor are
real, the executor's settings the defaults. Pods are simulated and ready after 2 s; policy and actions are in memory.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.kubernetes.simulation import deployment
from bench.results_file import distribution, log
from testbed.kafka import KafkaBroker
from testbed.kubernetes import KubernetesCluster
from weir_contracts import Outcome, Plan, ScaleAction, policy_of
from weir_contracts.topics import OUTCOMES, PLANS, POLICIES, TOPICS
from weir_engines.kubernetes.api import Access, KubernetesApi
from weir_executor.adapters.flink import FlinkDriver
from weir_executor.adapters.kafka_groups import KafkaGroups
from weir_executor.adapters.kubernetes import KubernetesDriver
from weir_executor.adapters.kubernetes_api import ApiWorkloads
from weir_executor.adapters.memory import MemoryKnowledge
from weir_executor.core.observed import Snapshot
from weir_executor.core.rules import Rules
from weir_executor.service import Executor
from weir_runtime.clock import SystemClock
from weir_runtime.envelope import encode
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.loop import Stop
from weir_runtime.table import GlobalTable

APP, NAMESPACE, NAME = "shop/orders", "shop", "orders"
ACTIONS, READY_SECONDS, SMALL, LARGE = 12, 2.0, 2, 5
LIMIT_SECONDS = 180.0
RIGHTS = [
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]},
    {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "patch"]},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list"]},
]


class Run:
    """An executor, and the plans that it gets."""

    def __init__(self, cluster: KubernetesCluster, broker: KafkaBroker) -> None:
        self.clock, self.rules = SystemClock(), Rules()
        target = {"kubernetes": {"kind": "Deployment", "name": NAME}}
        self.policy = policy_of(APP, version=1, target=target, objective={"utilization": 0.7}, mode="act")
        user = cluster.identity("weir-executor", RIGHTS, namespace=NAMESPACE)
        self.flink = FlinkDriver(self.clock)
        api = KubernetesApi(Access(user.url, user.ca_file, user.token_file))
        groups = KafkaGroups(self.clock)
        self.driver = KubernetesDriver(self.clock, self.flink, ApiWorkloads(api), [NAMESPACE], groups=groups)
        self.bus = KafkaBus(broker.bootstrap_servers)
        self.knowledge = MemoryKnowledge()
        self.knowledge.policies[APP] = self.policy
        self.outcomes: list[Outcome] = []
        self.stop = Stop()

    async def measure(self, actions: int) -> dict[str, Any]:
        """Scale out and in by turns; return the times in seconds."""
        await self.bus.start()
        executor = Executor(
            self.bus, {"kubernetes": self.driver}, self.knowledge, self.clock, self.rules, attempt_id=uuid4()
        )
        table = GlobalTable[Outcome](
            self.bus, OUTCOMES.name, lambda r: self._keep(Outcome.model_validate_json(r.value or b""))
        )
        tasks = [asyncio.create_task(executor.run(self.stop)), asyncio.create_task(table.follow(self.stop))]
        try:
            body, headers = encode(self.policy, type=POLICIES.type, source="bench", id=uuid4(), time=self.clock.now())
            await self.bus.publish(POLICIES.name, APP, body, headers)
            written, verified = [], {"out": [], "in": []}  # type: ignore[var-annotated]
            for number in range(actions + 1):
                way = "out" if number % 2 == 0 else "in"
                plan, last = await self._action(LARGE if way == "out" else SMALL)
                if last.phase != "verified" or last.action is None or last.action.requested_at is None:
                    raise RuntimeError(f"{last.phase}: {last.sentence}")
                if number:  # the first one also waits for the group and opens connections
                    written.append((last.action.requested_at - plan.created_at).total_seconds())
                    verified[way].append((last.at - last.action.requested_at).total_seconds())
                log(f"{way}: {last.sentence}")
            return {
                "actions": actions,
                "pods_ready_seconds": READY_SECONDS,
                "settle_seconds": self.rules.settle_seconds,
                "plan_to_scale_written_seconds": distribution(written),
                "written_to_verified_seconds": {way: distribution(values) for way, values in verified.items()},
            }
        finally:
            self.stop.request("the benchmark is over")
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.driver.close()
            await self.flink.close()
            await self.bus.close()

    def _keep(self, outcome: Outcome) -> Outcome:
        self.outcomes.append(outcome)
        return outcome

    async def _action(self, replicas: int) -> tuple[Plan, Outcome]:
        found = await self._until(lambda snapshot: snapshot.all_running and snapshot.refusal is None)
        if found.deployment is None:
            raise RuntimeError(found.reason)
        now = self.clock.now()
        plan = Plan(
            id=uuid4(),
            application=APP,
            analysis_id=uuid4(),
            observation_id=uuid4(),
            observed_at=now,
            created_at=now,
            expires_at=now + timedelta(seconds=30),
            policy_version=1,
            mode="act",
            planner="rate",
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
            kind="scale",
            action=ScaleAction(parallelism={NAME: replicas}),
            code="capacity-short",
            sentence="measured",
        )
        body, headers = encode(plan, type=PLANS.type, source="bench", id=plan.id, time=now)
        await self.bus.publish(PLANS.name, APP, body, headers)
        async with asyncio.timeout(LIMIT_SECONDS):
            while not (ended := [o for o in self.outcomes if o.plan_id == plan.id and o.terminal]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return plan, ended[0]

    async def _until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        async with asyncio.timeout(LIMIT_SECONDS):
            while not condition(found := await self.driver.observe(self.policy.subject)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return found


def measure(actions: int = ACTIONS) -> dict[str, Any]:
    """Start a cluster and a broker; return the times of `actions`."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-bench-")))
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        cluster = stack.enter_context(KubernetesCluster(folder / "kubernetes"))
        cluster.create_namespace(NAMESPACE)
        cluster.apply(deployment(NAME, replicas=SMALL, ready_seconds=READY_SECONDS), namespace=NAMESPACE)
        for topic in TOPICS:
            broker.create_topic(topic.name, 1)
        log("started")
        return asyncio.run(Run(cluster, broker).measure(actions))
