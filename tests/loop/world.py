"""The whole loop in one process, on a fake clock: five cores, an in-memory bus between them, and a small fluid job.

Everything that would cross a process border crosses the bus as bytes. No thread, no wait: `tick` is one scrape.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid5

from pydantic import BaseModel
from weir_contracts import (
    Analysis,
    Checkpoints,
    Deployment,
    Edge,
    Observation,
    Operator,
    OperatorReading,
    Outcome,
    PartitionReading,
    Plan,
    RescaleSettings,
    Run,
    ScalingPolicy,
    Slots,
    Topology,
    observation_id,
    parse_policy,
)
from weir_contracts.topics import ANALYSES, OBSERVATIONS, OUTCOMES, PLANS, Topic

from runtime.clock import FakeClock
from runtime.envelope import Undecodable, decode, encode
from runtime.memory_bus import MemoryBus
from services.analyzer.core import AnalysisSettings, advance
from services.executor.adapters.memory import MemoryDriver, MemoryJob
from services.executor.core import (
    Context,
    Memory,
    Nudge,
    Observed,
    PolicyReading,
    Record,
    Recorded,
    Refusal,
    Request,
    Rules,
    account,
    admit,
    next_step,
    refuse,
    supersede,
)
from services.knowledge.core import Limits, State, remember
from services.planner.core.decide import make_plan, precheck
from services.planner.core.planners import ask
from services.planner.memory import Applications

M = TypeVar("M", bound=BaseModel)
NAMESPACE = UUID("11111111-2222-5333-8444-555555555555")
SOURCE, WORK = "Source: orders", "work"
TOPOLOGY = Topology(
    operators=[
        Operator(name=SOURCE, id="v0", max_parallelism=120, slot_sharing_group="g", source_partitions=12),
        Operator(name=WORK, id="v1", max_parallelism=120, slot_sharing_group="g"),
    ],
    edges=[Edge(source=SOURCE, target=WORK, ship_strategy="HASH")],
)


def policy(version: int = 1, **spec: Any) -> ScalingPolicy:
    """The stories' policy: act, 30 s of lag, short stabilisation."""
    document = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": "orders", "resourceVersion": version},
        "spec": {
            "target": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}},
            "objective": {"maxLag": "30s"},
            "bounds": {"min": 1, "max": 12},
            "behavior": {"scaleDown": {"stabilization": "40s"}, "cooldown": "20s"},
            "interval": "2s",
            "mode": "act",
            **spec,
        },
    }
    return parse_policy(document)


@dataclass
class Job:
    """A fluid model of a two-operator job: `work` does `per_subtask` records/s and subtask, sharing `serial` of it."""

    per_subtask: float = 500.0
    serial: float = 0.02
    arrivals: float = 400.0
    appended: float = 0.0
    processed: float = 0.0
    run_processed: float = 0.0
    busy_ms: float = 0.0
    idle_ms: float = 0.0
    blocked_ms: float = 0.0

    def capacity(self, parallelism: int) -> float:
        return self.per_subtask * parallelism / (1 + self.serial * (parallelism - 1))

    def flow(self, seconds: float, parallelism: int, running: bool) -> None:
        """Let time pass."""
        self.appended += self.arrivals * seconds
        if not running:
            return
        capacity = self.capacity(parallelism)
        done = min(self.appended - self.processed, capacity * seconds)
        share = done / (capacity * seconds)
        self.processed += done
        self.run_processed += done
        self.busy_ms += share * seconds * 1000 * parallelism
        self.idle_ms += (1 - share) * seconds * 1000 * parallelism
        self.blocked_ms += seconds * 1000 if share > 0.99 else 0.0

    def new_run(self) -> None:
        """Counters begin again at 0."""
        self.run_processed = self.busy_ms = self.idle_ms = self.blocked_ms = 0.0


@dataclass
class World:
    """The loop around one job. `edit` may change or drop an observation on its way, as faults do."""

    policy: ScalingPolicy = field(default_factory=policy)
    interval_seconds: float = 2.0
    slots: int = 16
    start: int = 1
    edit: Callable[[Observation], Observation | None] = lambda observation: observation

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.bus = MemoryBus(partitions=2, clock=self.clock)
        self.driver = MemoryDriver(self.clock)
        self.job = Job()
        self.cluster: MemoryJob = self.driver.add(self.policy.spec.target, TOPOLOGY, {SOURCE: 1, WORK: self.start})
        self.cluster.slots = self.slots
        self.rules = Rules()
        self.analyzer_memory: Any = None
        self.planner = Applications(30, 20)
        self.executor = Memory()
        self.answer: Any = None
        self.gate: Callable[[], PolicyReading] = lambda: PolicyReading(reachable=True, policy=self.policy)
        """What the executor reads of the policy just before it acts."""
        self.knowledge = State(application="shop/orders")
        self.analysis: Analysis | None = None
        self.plans: list[Plan] = []
        self.outcomes: list[Outcome] = []
        self.lags: list[float] = []
        self.unreadable = 0
        self._run: datetime | None = None
        self._readers = {topic.name: self.bus.reader(topic.name) for topic in (OBSERVATIONS, ANALYSES, PLANS, OUTCOMES)}

    # -- what a story does --------------------------------------------------------------------------------------

    def run(self, seconds: float) -> "World":
        """Let the loop turn for a while."""
        for _ in range(round(seconds / self.interval_seconds)):
            asyncio.run(self.tick())
        return self

    @property
    def work(self) -> int:
        """What is running."""
        return self.cluster.observed[WORK]

    @property
    def lag_seconds(self) -> float:
        """The true age of the oldest unprocessed record, at the present arrival rate."""
        return (self.job.appended - self.job.processed) / self.job.arrivals if self.job.arrivals else 0.0

    def scaled(self) -> list[tuple[int, int]]:
        """(from, to) of each action that was requested."""
        seen = {
            o.action.id: (o.before[WORK], o.wanted[WORK]) for o in self.outcomes if o.action and o.action.requested_at
        }
        return list(seen.values())

    def codes(self) -> list[str]:
        """The reason codes of all plans, repeats left out."""
        found = [plan.code for plan in self.plans]
        return [code for i, code in enumerate(found) if i == 0 or code != found[i - 1]]

    # -- one turn -----------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """One scrape and all that follows from it."""
        await self._pass_time()
        seen = self.edit(await self._observe())
        if seen is not None:
            await self._say(OBSERVATIONS, seen, seen.id)
        for observation in await self._hear(OBSERVATIONS, Observation):
            self.planner.observed(observation)
            self._remember(observation)
            self.analyzer_memory, analysis = advance(self.analyzer_memory, observation, AnalysisSettings())
            if analysis is not None:
                await self._say(ANALYSES, analysis, analysis.id)
        analyses = await self._hear(ANALYSES, Analysis)
        for analysis in analyses:
            self._remember(analysis)
        if analyses:
            self.analysis = analyses[-1]
            await self._plan(analyses[-1])
        for plan in await self._hear(PLANS, Plan):
            self.plans.append(plan)
            self._remember(plan)
            await self._consider(plan)
        for outcome in await self._hear(OUTCOMES, Outcome):
            self.outcomes.append(outcome)
            self.planner.happened(outcome.application, outcome)
            self._remember(outcome)

    async def _pass_time(self) -> None:
        # In steps of the executor's own pace, so that restarts are seen and timed as they are in the service.
        steps = 4
        for _ in range(steps):
            seconds = self.interval_seconds / steps
            self.clock.advance(seconds)
            running = self.cluster.state == "RUNNING"
            self.job.flow(seconds, self.work, running)
            await self._drive()
        self.lags.append(self.lag_seconds)

    async def _observe(self) -> Observation:
        snapshot = await self.driver.observe(self.policy.spec.target)
        now = self.clock.now()
        if snapshot.deployment is None:
            return Observation(
                id=observation_id("shop/orders", now),
                application="shop/orders",
                observed_at=now,
                policy=self.policy,
                status="not_found" if snapshot.reachable else "unreachable",
                message=snapshot.because,
            )
        running = snapshot.all_running
        if running and snapshot.running_since != self._run:
            self._run = snapshot.running_since
            self.job.new_run()
        deployment: Deployment = snapshot.deployment.model_copy(
            update={
                "slots": Slots(total=self.slots, available=self.slots - max(self.cluster.observed.values())),
                "checkpoints": Checkpoints(interval_seconds=10, last_duration_seconds=0.2),
                "rescale": RescaleSettings(scheduler="adaptive", cooldown_seconds=1, stabilization_seconds=1),
            }
        )
        return Observation(
            id=observation_id("shop/orders", now),
            application="shop/orders",
            observed_at=now,
            policy=self.policy,
            status="running" if running else "not_running",
            run=Run(attempt=deployment.restarts, running_since=self._run) if running and self._run else None,
            deployment=deployment,
            topology=self.cluster.topology,
            operators=self._operators() if running else [],
            partitions=self._partitions(running),
        )

    def _operators(self) -> list[OperatorReading]:
        job, done = self.job, int(self.job.run_processed)
        alive = job.busy_ms + job.idle_ms
        busy = None if alive == 0 else min(1.0, job.busy_ms / alive)
        return [
            OperatorReading(
                operator=SOURCE,
                parallelism=self.cluster.observed[SOURCE],
                records_in=done,
                records_out=done,
                busy_ms=job.busy_ms * 0.02,
                backpressured_ms=job.blocked_ms,
                idle_ms=job.idle_ms,
            ),
            OperatorReading(
                operator=WORK,
                parallelism=self.work,
                records_in=done,
                records_out=done,
                busy_ms=job.busy_ms,
                backpressured_ms=0.0,
                idle_ms=job.idle_ms,
                busy_share_mean=busy,
                busy_share_max=busy,
            ),
        ]

    def _partitions(self, running: bool) -> list[PartitionReading]:
        end, at = int(self.job.appended) // 12, int(self.job.processed) // 12
        return [
            PartitionReading(
                operator=SOURCE,
                topic="orders",
                partition=i,
                log_start_offset=0,
                log_end_offset=end,
                committed_offset=at,
                current_offset=at if running else None,
            )
            for i in range(12)
        ]

    async def _plan(self, analysis: Analysis) -> None:
        request = self.planner.request(analysis, self.clock.now())
        name = analysis.policy.spec.planner.name
        reply = precheck(request) or ask(request, name)
        state = self.planner.state(analysis.application, name)
        plan = make_plan(request, reply, state, planner=name, created_at=self.clock.now())
        self.planner.planned(plan, analysis)
        await self._say(PLANS, plan, plan.id)

    async def _consider(self, plan: Plan) -> None:
        context = Context(
            now=self.clock.now(),
            memory=self.executor,
            policy=self.gate(),
            snapshot=await self.driver.observe(self.policy.spec.target),
            attempt_id=NAMESPACE,
            analysis=self.analysis,
            rules=self.rules,
        )
        found = admit(plan, context)
        if isinstance(found, Refusal):
            told = refuse(self.executor, plan, found, context.snapshot, self.clock.now())
            self.executor = told.memory
            await self._say(OUTCOMES, told.outcome, told.outcome.id)
        elif found is not None:
            if self.executor.action is not None and not self.executor.action.terminal:
                await self._tell(supersede(self.executor.action, self.clock.now()), None)
            self.executor = Memory(**{**self.executor.__dict__, "action": found})
            self.answer = Recorded()

    async def _drive(self) -> None:
        """The executor's own ticks."""
        while self.executor.action is not None and not self.executor.action.terminal:
            snapshot = await self.driver.observe(self.policy.spec.target)
            observed = Observed(
                snapshot,
                self.analysis,
                self.gate(),
                planned_version=self.policy.metadata.resource_version,
                answer=self.answer,
            )
            self.answer = None
            step = next_step(self.executor.action, observed, self.clock.now(), self.rules)
            await self._tell(step, snapshot)
            target, job_id = self.policy.spec.target, self.cluster.job_id
            if isinstance(step.instruction, Record):
                self.answer = Recorded()
            elif isinstance(step.instruction, Request):
                self.answer = await self.driver.request(target, job_id, step.instruction.parallelism)
            elif isinstance(step.instruction, Nudge):
                await self.driver.nudge(target, job_id)
                return
            else:
                return

    async def _tell(self, step: Any, snapshot: Any) -> None:
        if step.event is None:
            self.executor = Memory(**{**self.executor.__dict__, "action": step.action})
            return
        told = account(self.executor, step, snapshot, self.clock.now(), self.rules)
        self.executor = told.memory
        await self._say(OUTCOMES, told.outcome, told.outcome.id)

    # -- the bus ------------------------------------------------------------------------------------------------

    async def _say(self, topic: Topic, message: BaseModel, message_id: UUID) -> None:
        body, headers = encode(message, type=topic.type, source="loop", id=message_id, time=self.clock.now())
        await self.bus.publish(topic.name, "shop/orders", body, headers)

    async def say_bytes(self, topic: Topic, body: bytes) -> None:
        """Something that no service would say."""
        await self.bus.publish(topic.name, "shop/orders", body, {"ce_id": str(uuid5(NAMESPACE, "x"))})

    async def _hear(self, topic: Topic, model: type[M]) -> list[M]:
        heard = []
        for record in await self._readers[topic.name].receive(timeout_seconds=0.0):
            try:
                heard.append(decode(record, model).message)
            except Undecodable:
                self.unreadable += 1
        return heard

    def _remember(self, event: Any) -> None:
        self.knowledge = remember(self.knowledge, event, Limits())


def settled(arrivals: float = 400.0, **settings: Any) -> World:
    """A job that has run long enough for its capacity to be known."""
    world = World(**settings)
    world.job.arrivals = arrivals
    return world.run(80)
