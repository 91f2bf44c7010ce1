"""Stories of an executor: its target on a real API server, its bus and knowledge in memory."""

import asyncio
from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

from tests.unit.executor.builders import plan
from weir_contracts import Outcome, Parallelism, Plan, ScalingPolicy
from weir_contracts.topics import OUTCOMES, PLANS, POLICIES
from weir_engines.driver import Driver
from weir_executor.core.parameters import Rules
from weir_executor.knowledge import MemoryKnowledge
from weir_executor.service import Executor
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import encode
from weir_runtime.reach import TARGETS, Reach

APP = "shop/orders"
RULES = Rules(
    settle_seconds=2.0,
    deadline_floor_seconds=10.0,
    container_start_seconds=0.0,
    restart_estimate_seconds=1.0,
    capacity_watch_seconds=0,
    unobserved_limit_seconds=30.0,
)


class Closable(Driver, Protocol):
    async def close(self) -> None: ...


class Story:
    """One application, and executors of it. `new_driver` returns one with its own connection."""

    def __init__(
        self, name: str, new_driver: Callable[[], Closable], policy: ScalingPolicy, namespace: str, rules: Rules = RULES
    ) -> None:
        self._name, self._new_driver, self.namespace, self.rules = name, new_driver, namespace, rules
        self.clock, self.bus, self.knowledge = SystemClock(), MemoryBus(), MemoryKnowledge()
        self.knowledge.policies[APP] = self.policy = policy
        self.executors: list[tuple[Executor, Stop, asyncio.Task[None], Closable]] = []

    async def publish_policy(self) -> None:
        body, headers = encode(self.policy, type=POLICIES.type, source="test", id=uuid4(), time=self.clock.now())
        await self.bus.publish(POLICIES.name, APP, body, headers)

    def start(self) -> None:
        """Start one more executor."""
        driver, stop = self._new_driver(), Stop()
        executor = Executor(
            self.bus,
            {self._name: driver},
            self.knowledge,
            self.clock,
            self.rules,
            attempt_id=uuid4(),
            reach=Reach.of(TARGETS, "*", f"shop:{self.namespace}"),
        )
        self.executors.append((executor, stop, asyncio.create_task(executor.run(stop)), driver))

    async def kill(self) -> None:
        """End the executor abruptly: it does nothing more."""
        executor, stop, task, driver = self.executors.pop()
        for app in executor.applications.own.values():
            if app.task is not None:
                app.task.cancel()
        stop.request("killed")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await driver.close()

    async def stop(self) -> None:
        """End all executors in order."""
        for _, stop, task, driver in self.executors:
            stop.request("the test is over")
            await task
            await driver.close()

    async def publish_plan(self, driver: Driver, wanted: Parallelism) -> Plan:
        """Publish a plan for the target as `driver` sees it now."""
        found = await driver.observe(self.policy.subject)
        assert found.deployment is not None, found.reason
        made = plan(
            wanted,
            at=self.clock.now(),
            id=uuid4(),
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
        )
        body, headers = encode(made, type=PLANS.type, source="test", id=made.id, time=self.clock.now())
        await self.bus.publish(PLANS.name, APP, body, headers)
        return made

    def published(self) -> list[Outcome]:
        return [Outcome.model_validate_json(r.value or b"") for r in self.bus.records(OUTCOMES.name)]

    def phases(self) -> list[str]:
        return [outcome.phase for outcome in self.published()]

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110 - no event signals it
                    await asyncio.sleep(0.05)
        except TimeoutError:
            reported = [(o.phase, o.code, o.sentence) for o in self.published()]
            raise AssertionError(f"not within {seconds} s: {reported}") from None

    async def until_ended(self, made: Plan, seconds: float = 90.0) -> Outcome:
        """Return the outcome that ends a plan's action."""
        await self.until(lambda: any(o.plan_id == made.id and o.terminal for o in self.published()), seconds)
        assert all(len(outcome.sentence) <= 160 for outcome in self.published())
        return next(o for o in self.published() if o.plan_id == made.id and o.terminal)

    async def until_phase(self, phase: str) -> None:
        await self.until(lambda: phase in self.phases())
