"""Actions on a real Flink: up, down, too much, without slots, contested; and over a real Kafka, taken over."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from testbed.kafka import KafkaBroker
from tests.integration.executor.conftest import RealJob, reset, until, vector
from tests.unit.engines.memory_jobs import MemoryDriver
from tests.unit.executor.builders import BEFORE, TOPOLOGY, WANTED, plan, policy
from weir_contracts import Outcome, Parallelism, Plan, ScaleAction
from weir_contracts.topics import OUTCOMES, PLANS, POLICIES
from weir_engines.driver import Driver, Unfenced
from weir_engines.flink.driver import FlinkDriver
from weir_executor.core.parameters import Rules
from weir_executor.knowledge import MemoryKnowledge
from weir_executor.service import Executor
from weir_runtime.bus import Bus
from weir_runtime.clock import SystemClock
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import encode
from weir_runtime.reach import Reach
from weir_runtime.service import topic_specs

APP = "shop/orders"
RULES = Rules(settle_seconds=2.0, deadline_floor_seconds=8.0, restart_estimate_seconds=3.0, capacity_watch_seconds=0)


class Running:
    """An executor on a real Flink, its bus and knowledge in memory."""

    def __init__(self, job: RealJob, driver: Driver, name: str = "flink", rules: Rules = RULES) -> None:
        self.job = job
        self.driver = driver
        self.clock = SystemClock()
        self.bus = MemoryBus()
        self.knowledge = MemoryKnowledge()
        self.knowledge.policies[APP] = job.spec_policy
        self.stop = Stop()
        reach = Reach(resubmit_hosts=("*",))
        drivers = {name: driver}
        executor = Executor(self.bus, drivers, self.knowledge, self.clock, rules, attempt_id=uuid4(), reach=reach)
        self.task = asyncio.create_task(executor.run(self.stop))

    async def introduce(self) -> None:
        """The policy, as knowledge publishes it: a process that takes over finds the target there."""
        body, headers = encode(
            self.job.spec_policy, type=POLICIES.type, source="test", id=uuid4(), time=self.clock.now()
        )
        await self.bus.publish(POLICIES.name, APP, body, headers)

    async def plan(self, wanted: Parallelism) -> Plan:
        """A plan for the job as it is now."""
        there = await self.driver.observe(self.job.subject)
        assert there.deployment is not None
        now = self.clock.now()
        made = plan(wanted, at=now, id=uuid4(), deployment=there.deployment.ref(), current=there.deployment.observed)
        body, headers = encode(made, type=PLANS.type, source="test", id=made.id, time=now)
        await self.bus.publish(PLANS.name, APP, body, headers)
        return made

    def published(self) -> list[Outcome]:
        return [Outcome.model_validate_json(r.value or b"") for r in self.bus.records(OUTCOMES.name)]

    def phases(self) -> list[str]:
        return [outcome.phase for outcome in self.published()]

    async def until_ended(self, made: Plan, seconds: float = 90.0) -> Outcome:
        """The outcome that ends a plan's action."""

        def ended() -> bool:
            return any(o.plan_id == made.id and o.terminal for o in self.published())

        await eventually(ended, seconds, lambda: str([(o.phase, o.code, o.sentence) for o in self.published()]))
        return self.published()[-1]

    async def end(self) -> None:
        self.stop.request("the test is over")
        await self.task


async def eventually(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Await a condition with a deadline."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what()}") from None


@pytest.fixture
async def running(real_job: RealJob) -> AsyncIterator[Running]:
    driver = FlinkDriver(SystemClock())
    await reset(driver, real_job, vector(1))
    made = Running(real_job, driver)
    await made.introduce()
    yield made
    await made.end()
    await driver.close()


async def test_up_and_down_again(running: Running) -> None:
    """Both verified, both in seconds although checkpoints come every 30 s, and the restarts measured."""
    up = await running.until_ended(await running.plan(vector(4, 2)))
    assert (up.phase, up.observed) == ("verified", vector(4, 2))
    assert up.restart_seconds is not None and 0.1 < up.restart_seconds < 15
    down = await running.until_ended(await running.plan(vector(2, 1)))
    assert (down.phase, down.observed) == ("verified", vector(2, 1))
    assert down.restart_seconds is not None and 0.1 < down.restart_seconds < 15
    assert up.action is not None and down.action is not None
    assert up.action.version < down.action.version


async def test_without_slots_it_is_rolled_back_at_the_deadline(running: Running) -> None:
    """200 OK for six subtasks on four slots: Flink runs four, Weir goes back and remembers."""
    made = await running.until_ended(await running.plan(vector(6)))
    assert made.phase == "rolled-back"
    assert "below-requested" in [o.code for o in running.published()]
    assert [q.parallelism for q in made.quarantine] == [vector(6)]
    there = await running.driver.observe(running.job.subject)
    assert there.runs(vector(1))
    assert there.deployment is not None and there.deployment.requested == vector(1)


async def test_task_managers_that_the_cluster_starts_are_waited_for(job_of_a_growing_cluster: RealJob) -> None:
    """Six subtasks on four slots, and a TaskManager that starts after the time in which a standalone cluster would have to
    run them: it is verified, by a checkpoint triggered when the slots were there."""
    driver = FlinkDriver(SystemClock())
    running = Running(job_of_a_growing_cluster, driver)
    await running.introduce()
    made = await running.plan(vector(6))
    await eventually(lambda: "verifying" in running.phases(), 30, lambda: str(running.published()))
    limit = RULES.deadline_floor_seconds + 8.0  # the longest wait for a checkpoint
    await asyncio.sleep(limit + 2.0)
    assert running.phases()[-1] == "verifying"
    cluster = job_of_a_growing_cluster.cluster
    cluster.add_task_manager()
    await asyncio.to_thread(cluster.wait_slots, 8)
    found = await until(driver, running.job.subject, lambda s: s.runs(vector(6)), seconds=20)
    assert found.deployment is not None and found.deployment.rescale.max_slots == 2**31 - 1
    done = await running.until_ended(made)
    assert (done.phase, done.observed) == ("verified", vector(6))
    await running.end()
    await driver.close()


async def test_flink_refuses(running: Running) -> None:
    """Above max parallelism: failed with Flink's own reason, nothing changed, and the next plan is welcome."""
    made = await running.until_ended(await running.plan(vector(121)))
    assert (made.phase, made.code) == ("failed", "rejected")
    assert "for the job vertex enrich exceeds its maximum parallelism 120; asked for enrich 1 → 121" in made.sentence
    after = await running.until_ended(await running.plan(vector(2)))
    assert after.phase == "verified"


async def test_somebody_else_scales_it(running: Running) -> None:
    """Requirements are not what Weir wrote last: held."""
    assert (await running.until_ended(await running.plan(vector(2)))).phase == "verified"
    await running.driver.request(running.job.subject, running.job.job_id, vector(3), vector(2), Unfenced())
    await running.driver.trigger_checkpoint(running.job.subject, running.job.job_id)
    await until(running.driver, running.job.subject, lambda s: s.runs(vector(3)))
    refused = await running.until_ended(await running.plan(vector(4)))
    assert (refused.phase, refused.code) == ("refused", "contested")
    assert "enrich 2 → 3" in refused.sentence


async def test_another_process_finishes_it(running: Running) -> None:
    """The first ended right after the request; the second finds it requested and verifies."""
    made = await running.plan(vector(3))
    await eventually(lambda: "verifying" in running.phases(), 30, lambda: str(running.published()))
    await running.end()
    stop = Stop()
    second = Executor(
        running.bus, {"flink": running.driver}, running.knowledge, running.clock, RULES, attempt_id=uuid4()
    )
    task = asyncio.create_task(second.run(stop))
    assert (await running.until_ended(made)).phase == "verified"
    stop.request("the test is over")
    await task


class OnKafka:
    """Executors on a real Kafka, target and knowledge in memory but in real time."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.clock = SystemClock()
        self.driver = MemoryDriver(self.clock)
        self.knowledge = MemoryKnowledge()
        self.group = f"executor-{uuid4().hex[:8]}"
        self.bus: Bus = self.connect()

    def connect(self) -> KafkaBus:
        return KafkaBus(self.broker.bootstrap_servers)

    async def start(self, bus: Bus) -> tuple[Stop, "asyncio.Task[None]"]:
        await bus.start()
        executor = Executor(
            bus,
            {"flink": self.driver},
            self.knowledge,
            self.clock,
            RULES.model_copy(update={"settle_seconds": 3.0}),
            attempt_id=uuid4(),
            group=self.group,
        )
        stop = Stop()
        return stop, asyncio.create_task(executor.run(stop))

    async def publish(self, topic: Any, key: str, message: Any, id: UUID) -> None:
        body, headers = encode(message, type=topic.type, source="test", id=id, time=self.clock.now())
        await self.bus.publish(topic.name, key, body, headers)

    async def published(self, application: str) -> list[Outcome]:
        reader = self.bus.reader(OUTCOMES.name)
        found = []
        while not await reader.caught_up():
            found += await reader.receive(timeout_seconds=0.2)
        await reader.close()
        return [Outcome.model_validate_json(r.value or b"") for r in found if r.key == application]


async def test_taken_over_on_a_real_kafka(own_kafka: KafkaBroker) -> None:
    """A replica leaves in the middle of an action; the other one gets its partitions and ends it. Nothing is done
    twice."""
    house = OnKafka(own_kafka)
    await house.bus.start()
    await house.bus.ensure_topics(topic_specs(4))
    application = f"shop/app-{uuid4().hex[:8]}"
    made = policy(application)
    house.knowledge.policies[application] = made
    job = house.driver.add(made.subject, TOPOLOGY, BEFORE)
    await house.publish(POLICIES, application, made, uuid4())

    first_bus = house.connect()
    stop, first = await house.start(first_bus)
    now = house.clock.now()
    there = await house.driver.observe(made.subject)
    assert there.deployment is not None
    the_plan = plan(
        application=application,
        at=now,
        id=uuid4(),
        deployment=there.deployment.ref(),
        action=ScaleAction(parallelism=WANTED),
    )
    await house.publish(PLANS, application, the_plan, the_plan.id)
    await eventually(lambda: job.requested == WANTED, 30, lambda: str(job))
    stop.request("it leaves")
    await first
    await first_bus.close()

    second_bus = house.connect()
    stop, second = await house.start(second_bus)
    last: list[Outcome] = []
    async with asyncio.timeout(40):
        while not last or not last[-1].terminal:
            last = await house.published(application)
    assert last[-1].phase == "verified"
    assert len(house.driver.requests) == 1
    assert len({o.action.attempt_id for o in last if o.action}) == 1, "an intent that was sent keeps its attempt"
    stop.request("the test is over")
    await second
    await second_bus.close()
    await house.bus.close()
