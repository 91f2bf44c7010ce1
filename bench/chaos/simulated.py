"""Campaign on a simulated target: two executors and knowledge as processes, with Kafka and Redis; plans are scripted."""

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from testbed.kafka import KafkaBroker
from testbed.process import free_port
from testbed.service import WeirService, loop_settings, wait_all_ready
from testbed.simulated_flink import NAMES, SOURCE, WORK, Job, ManyJobs
from weir_contracts import DeploymentRef, Parallelism, Plan, ScaleAction, ScalingPolicy
from weir_contracts.topics import PLANS
from weir_runtime.bus import BusError, partition_of
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import encode
from weir_runtime.service import topic_specs

from .campaign import Campaign, behind
from .faults import faults_of
from .flink import POINTS, rescale_of
from .judge import PublishedPlan
from .proxy import Exchange, FailPoint, RecordingProxy
from .service import FOLDER, NAME

PARTITIONS = 2
JOBS = tuple(
    next(name for number in range(100) if partition_of(f"fleet/{(name := f'job-{number}')}", PARTITIONS) == partition)
    for partition in range(PARTITIONS)
)
"""One in each partition."""
EXECUTORS = ("exec-0", "exec-1")
RESCALE_SECONDS = 1.0
PLAN_SECONDS = 1.0
PLAN_LIFE_SECONDS = 10.0
FORBIDDEN_SHARE = 0.3
"""Of the planner's cycles in which plans come that expired before, and that are out of bounds."""
FAULTS = faults_of(
    kill=("executor", "other-executor", "knowledge", "kafka", "redis"),
    stop=("executor", "knowledge", "kafka"),
    emptied=("redis",),
    clock=("executor", "knowledge"),
)


class Target(Protocol):
    """Two applications by the names in `JOBS`, each with one number that is scaled."""

    points: tuple[FailPoint, ...]
    max_parallelism: int

    def serving(self, kafka: KafkaBroker) -> AbstractAsyncContextManager[None]:
        """Serve until left; `urls` are known from then on."""

    @property
    def urls(self) -> Mapping[str, Mapping[str, str]]:
        """Addresses of each application, by the names that its servers have at the proxy."""

    def spec(self, name: str, urls: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields of a policy that name the application at these addresses."""

    def parallelism(self, name: str, number: int) -> Parallelism:
        """Return this number as a parallelism by operator."""

    def deployment(self, name: str) -> DeploymentRef:
        """Return what is requested and runs now."""

    def request_of(self, exchange: Exchange) -> tuple[str, Parallelism] | None:
        """Return the job and the parallelism that a recorded request asks for, or None if it is another request."""

    def troubles(self, name: str, number: int) -> list[str]:
        """Return what else than its parallelism is not as an application with this number needs it."""


class TwoOperators:
    """Part of a target of Flink jobs with a source and one operator that is scaled."""

    max_parallelism = 12

    def parallelism(self, _name: str, number: int) -> Parallelism:
        return {SOURCE: 1, WORK: number}

    def request_of(self, exchange: Exchange) -> tuple[str, Parallelism] | None:
        """Return what a `PUT /jobs/:id/resource-requirements` asks for."""
        return rescale_of(exchange, NAMES)

    def troubles(self, _name: str, _number: int) -> list[str]:
        return []

    def ref(self, job: Job, job_id: str, graph_hash: str) -> DeploymentRef:
        """Return what a job requests and runs now, under an id."""
        vectors = {"requested": dict(job.requested), "observed": dict(job.observed)}
        return DeploymentRef(job_id=job_id, graph_hash=graph_hash, **vectors)


class FlinkJobs(TwoOperators):
    """Jobs of a simulated Flink that honours requirements."""

    points = POINTS

    def __init__(self) -> None:
        self._flink = ManyJobs(list(JOBS), RESCALE_SECONDS)

    def serving(self, _kafka: KafkaBroker) -> AbstractAsyncContextManager[None]:
        return self._flink.serving()

    @property
    def urls(self) -> Mapping[str, Mapping[str, str]]:
        return {name: {"flink": self._flink.url} for name in JOBS}

    def spec(self, name: str, urls: Mapping[str, str]) -> dict[str, Any]:
        return {"application": {"flink": {"url": urls["flink"], "job": name}}}

    def deployment(self, name: str) -> DeploymentRef:
        job = self._flink.jobs[name]
        job.settle()
        return self.ref(job, job.id, self._flink.graph_hash)


class SimulatedStack:
    """The parts of one campaign. The target and the planner's part run in a thread of this process."""

    def __init__(self, folder: Path, proxy: RecordingProxy, seed: int, target: Target) -> None:
        self.folder = folder
        self.kafka, self.redis, self._redis_url = behind(proxy, folder)
        self.services: dict[str, WeirService] = {}
        self.target = target
        self.urls: dict[str, dict[str, str]] = {}
        """Addresses of each application at the proxy, by the names of its servers."""
        self.plans: list[PublishedPlan] = []
        self.wanted = dict.fromkeys(JOBS, 1)
        """What the load of each application needs."""
        self.versions: dict[str, int] = {}
        """Version of each application's policy, as last read."""
        self.random = random.Random(seed)
        self._proxy = proxy
        self._api_port = free_port()
        self._parts = ExitStack()
        self._stopped = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="simulation", daemon=True)

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self._api_port}"

    def start(self, report: Callable[[str], None]) -> None:
        """Start everything, and put the policies."""
        self._parts.enter_context(self.kafka)
        self._parts.enter_context(self.redis)
        self._thread.start()
        self._ready.wait(60)
        urls = self.target.urls
        servers = sorted({server for each in urls.values() for server in each.items()})
        fronts = {server: self._proxy.in_front_of(*server) for server in servers}
        self.urls = {name: {server[0]: fronts[server] for server in each.items()} for name, each in urls.items()}
        knowledge = self._proxy.in_front_of("knowledge", self.api_url)
        loop = loop_settings(self.kafka.bootstrap_servers, PARTITIONS, knowledge, self._redis_url, self.folder)
        environment = {
            **loop,
            "WEIR_EXECUTOR_MAX_ACTIONS": "100",
            "WEIR_EXECUTOR_MAX_ACTIONS_PER_CLUSTER": "100",
            "WEIR_EXECUTOR_SETTLE_SECONDS": "1",
            "WEIR_TARGET_RESUBMIT_HOSTS": "127.0.0.1",
        }
        for name in ("knowledge", *EXECUTORS):
            service = "knowledge" if name == "knowledge" else "executor"
            rig = {FOLDER: str(self.folder), NAME: name}
            port = self._api_port if name == "knowledge" else None
            folder = self.folder / name
            folder.mkdir(parents=True)
            self.services[name] = WeirService(
                service, folder, {**environment, **rig}, port=port, runner="bench.chaos.service"
            )
            self._parts.callback(self.services[name].stop)
            self.services[name].start()
        wait_all_ready(list(self.services.values()), timeout_seconds=400)
        report("the services are ready")

    def stop(self) -> None:
        """End everything. May be called before all has started."""
        for service in self.services.values():
            service.process.kill()
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(20)
        self.kafka.kill()
        self._parts.close()

    async def _serve(self) -> None:
        """Serve the target, and publish plans as a planner would, until stopped."""
        async with self.target.serving(self.kafka):
            bus = KafkaBus(self.kafka.bootstrap_servers)
            await bus.start()
            await bus.ensure_topics(topic_specs(PARTITIONS))
            self._ready.set()
            while not self._stopped.is_set():
                for job in JOBS:
                    if f"fleet/{job}" in self.versions:
                        await self._plan(bus, job)
                await asyncio.sleep(PLAN_SECONDS)
            await bus.close()

    async def _plan(self, bus: KafkaBus, name: str) -> None:
        """Publish a plan if the job does not run what it needs; now and then plans that no executor may follow."""
        deployment, max_parallelism = self.target.deployment(name), self.target.max_parallelism
        wanted = self.target.parallelism(name, self.wanted[name])
        forbidden = self.target.parallelism(name, max_parallelism - self.wanted[name] + 1)
        others = (wanted, deployment.observed, deployment.requested)
        if self.random.random() < FORBIDDEN_SHARE and forbidden not in others:
            await self._publish(bus, name, forbidden, age_seconds=PLAN_LIFE_SECONDS + 5)
            await self._publish(bus, name, self.target.parallelism(name, max_parallelism + self.wanted[name]))
        if deployment.observed != wanted:
            await self._publish(bus, name, wanted)

    async def _publish(self, bus: KafkaBus, name: str, wanted: Parallelism, age_seconds: float = 0.0) -> None:
        ref, application = self.target.deployment(name), f"fleet/{name}"
        at = datetime.now(UTC) - timedelta(seconds=age_seconds)
        plan = Plan(
            id=uuid4(),
            application=application,
            analysis_id=uuid4(),
            observation_id=uuid4(),
            observed_at=at,
            created_at=at,
            expires_at=at + timedelta(seconds=PLAN_LIFE_SECONDS),
            policy_version=self.versions[application],
            mode="act",
            planner="rate",
            deployment=ref,
            current=ref.observed,
            kind="scale",
            action=ScaleAction(parallelism=wanted),
            code="capacity-short",
            sentence="the load needs it",
        )
        self.plans.append(PublishedPlan(time.time(), str(plan.id), application, wanted, plan.expires_at.timestamp()))
        body, headers = encode(plan, type=PLANS.type, source="chaos", id=plan.id, time=plan.created_at)
        with suppress(BusError):
            await bus.publish(PLANS.name, application, body, headers)


class SimulatedCampaign(Campaign):
    """Two executors whose applications need another parallelism in each round."""

    faults = FAULTS
    executors = EXECUTORS
    stack: SimulatedStack

    def __init__(self, stack: SimulatedStack, proxy: RecordingProxy, seed: int) -> None:
        super().__init__(stack, proxy, seed)
        self.points = stack.target.points
        self._needed: defaultdict[str, list[int]] = defaultdict(list)

    def start(self) -> None:
        stack = self.stack
        self.record.applications = {stack.target.deployment(name).job_id: f"fleet/{name}" for name in JOBS}
        self.record.partitions = {f"fleet/{name}": partition for partition, name in enumerate(JOBS)}
        self.record.plans, stack.versions = stack.plans, self.versions
        for name in JOBS:
            document = {
                "apiVersion": "weir.dev/v1alpha1",
                "kind": "ScalingPolicy",
                "metadata": {"namespace": "fleet", "name": name},
                "spec": {
                    **stack.target.spec(name, stack.urls[name]),
                    "objective": {"maxLag": "30s"},
                    "bounds": {"min": 1, "max": stack.target.max_parallelism},
                    "mode": "act",
                },
            }
            self.policies.append(ScalingPolicy.model_validate(document))

    def change_load(self) -> None:
        """Every application needs a number that it did not need in the last rounds, so that a request belongs to one plan."""
        max_parallelism = self.stack.target.max_parallelism
        for name, now in self.stack.wanted.items():
            self._needed[name].append(now)
            recent = {max_parallelism - now + 1, *self._needed[name][-3:]}
            self.stack.wanted[name] = self.random.choice([p for p in range(1, max_parallelism + 1) if p not in recent])

    def target_troubles(self) -> list[str]:
        found = []
        for name, needed in self.stack.wanted.items():
            now = self.stack.target.deployment(name)
            if not self.stack.target.parallelism(name, needed) == now.observed == now.requested:
                found.append(f"{name} runs {now.observed}, {now.requested} are requested, and it needs {needed}")
            found += self.stack.target.troubles(name, needed)
        return found

    def requirements(self) -> dict[str, Parallelism]:
        deployments = [self.stack.target.deployment(name) for name in JOBS]
        return {each.job_id: dict(each.requested or {}) for each in deployments}

    def request_of(self, exchange: Exchange) -> tuple[str, Parallelism] | None:
        return self.stack.target.request_of(exchange)
