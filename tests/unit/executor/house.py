"""An executor, or several, with everything around them in memory and in virtual time."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID, uuid5

from pydantic import BaseModel

from tests.sentences import assert_reads_well
from tests.unit.engines.memory_jobs import MemoryDriver, MemoryJob
from tests.unit.executor.builders import BEFORE, NOON, SPACE, TOPOLOGY, WANTED, plan, policy
from weir_contracts import Analysis, Outcome, Parallelism, Plan
from weir_contracts.topics import ANALYSES, OUTCOMES, PLANS, POLICIES, TOPICS, Topic
from weir_engines.driver import Driver
from weir_executor.action_runner import Pace
from weir_executor.core.parameters import Rules
from weir_executor.knowledge import Knowledge, MemoryKnowledge
from weir_executor.service import Executor
from weir_runtime.bus import Bus, Record, partition_of
from weir_runtime.clock import FakeClock
from weir_runtime.local_bus import LocalConsumer
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import encode
from weir_runtime.reach import Reach

APP = "shop/orders"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Ports:
    """Ports of one replica. While it is stopped none of its calls continues, as after SIGSTOP."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        """Every call that changes something, before and after, and every look at the policy."""
        self.stop_at: int | None = None
        """Stop at so many effects."""
        self.on_effect: Callable[[str], None] = lambda effect: None
        self._goes = asyncio.Event()
        self._goes.set()

    @property
    def stopped(self) -> bool:
        return not self._goes.is_set()

    def wake(self) -> None:
        self.stop_at = None
        self._goes.set()

    async def pass_by(self, effect: str) -> None:
        if effect:
            self.effects.append(effect)
            self.on_effect(effect)
            if len(self.effects) == self.stop_at:
                self._goes.clear()
        await self._goes.wait()


class _Stoppable:
    """A port of a replica that can be stopped."""

    def __init__(self, port: Any, ports: Ports) -> None:
        self.port = port
        self._ports = ports

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.port, name)
        if name in ("consumer", "reader"):
            return lambda *given, **named: _Stoppable(found(*given, **named), self._ports)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*given: Any, **named: Any) -> Any:
            published = name == "publish" and given[0] == OUTCOMES.name
            effect = (
                name
                if published
                or name in ("record", "request", "provide", "stop", "run", "trigger_checkpoint", "evict", "policy")
                else ""
            )
            await self._ports.pass_by(effect and f"before {effect}")
            result = await found(*given, **named)
            await self._ports.pass_by(effect and f"after {effect}")
            return result

        return call


class Replica:
    """One executor process."""

    def __init__(self, house: "House", number: int, rules: Rules) -> None:
        self.stop = Stop()
        self.ports = Ports()
        self.executor = Executor(
            cast("Bus", _Stoppable(house.bus, self.ports)),
            {name: cast("Driver", _Stoppable(driver, self.ports)) for name, driver in house.drivers.items()},
            cast("Knowledge", _Stoppable(house.knowledge, self.ports)),
            house.clock,
            rules,
            attempt_id=uuid5(SPACE, f"replica {number}"),
            pace=Pace(0.005, 0.005, 0.05, 0.005),
            reach=Reach(resubmit_hosts=("*",)),
        )
        self.task = asyncio.create_task(self.executor.run(self.stop))

    @property
    def member(self) -> LocalConsumer:
        """Its membership of the group."""
        return cast("_Stoppable", self.executor._consumer).port  # type: ignore[no-any-return]

    async def end(self) -> None:
        """An orderly end."""
        self.ports.wake()
        self.stop.request("the test is over")
        await self.task

    async def kill(self) -> None:
        """An abrupt one: nothing more is done; the group notices."""
        for app in self.executor.applications.own.values():
            if app.task is not None:
                app.task.cancel()
        self.stop.request("killed")
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class House:
    """Start replicas with `replica()`; time passes in `until`."""

    def __init__(self, **rules: Any) -> None:
        self.clock = FakeClock(NOON)
        self.bus = MemoryBus(partitions=4, clock=self.clock)
        self.driver = MemoryDriver(self.clock)
        self.drivers: dict[str, Driver] = {"flink": self.driver}
        self.knowledge = MemoryKnowledge()
        self.rules = Rules(**{"settle_seconds": 2.0, "deadline_floor_seconds": 20.0, **rules})
        self.replicas: list[Replica] = []
        self._plans = 0

    async def start(self, count: int = 1) -> None:
        """Topics, replicas, and one application that may be scaled."""
        for topic in TOPICS:
            self.bus.records(topic.name)
        for _ in range(count):
            self.replica()
        await self.add(APP)

    def replica(self) -> Replica:
        """One more."""
        replica = Replica(self, len(self.replicas), self.rules)
        self.replicas.append(replica)
        return replica

    def owner(self, application: str = APP) -> Replica | None:
        """The replica that the group gave an application's partition to last."""
        partition = partition_of(application, 4)
        own = (r for r in self.replicas if r.executor._consumer is not None and partition in r.member.assignment)
        return next((replica for replica in own if not replica.member.expired), None)

    async def add(self, application: str, *, url: str = "http://127.0.0.1:8081", mode: str = "act") -> MemoryJob:
        """An application with its policy, published and stored, and its job."""
        made = policy(application, mode=mode, url=url)
        self.knowledge.policies[application] = made
        await self.publish(POLICIES, application, made)
        return self.driver.add(
            made.subject, TOPOLOGY, BEFORE, uuid5(SPACE, f"{application} {len(self.driver.jobs)}").hex
        )

    def job(self, application: str = APP) -> MemoryJob:
        job = self.knowledge.policies[application].subject.flink
        return self.driver.jobs[str(job.url).rstrip("/"), job.job]

    async def plan(self, wanted: Parallelism | None = WANTED, application: str = APP, **changes: Any) -> Plan:
        """Publish a plan for the job as it is now."""
        self._plans += 1
        made = await self.make(wanted, application, number=self._plans, **changes)
        await self.publish(PLANS, application, made, id=made.id)
        return made

    async def make(self, wanted: Parallelism | None, application: str, number: int, **changes: Any) -> Plan:
        """A plan for the job as it is now."""
        there = await self.driver.observe(self.knowledge.policies[application].subject)
        assert there.deployment is not None
        version = self.knowledge.policies[application].metadata.version
        base = {"deployment": there.deployment.ref(), "current": there.deployment.observed, "policy_version": version}
        return plan(wanted, number=number, application=application, at=self.clock.now(), **{**base, **changes})

    async def analysis(self, made: Analysis) -> None:
        await self.publish(ANALYSES, made.application, made)

    async def publish(self, topic: Topic, key: str, message: BaseModel | bytes, id: UUID = SPACE) -> None:
        """Put a message, or any bytes, on a topic."""
        if isinstance(message, bytes):
            await self.bus.publish(topic.name, key, message, {})
            return
        body, headers = encode(message, type=topic.type, source="test", id=id, time=self.clock.now(), traceparent=TRACE)
        await self.bus.publish(topic.name, key, body, headers)

    def published(self, application: str = APP) -> list[Outcome]:
        """All outcomes of an application, oldest first."""
        return [Outcome.model_validate_json(r.value or b"") for r in self.records() if r.key == application]

    def records(self) -> list[Record]:
        return self.bus.records(OUTCOMES.name)

    def phases(self, application: str = APP) -> list[str]:
        return [outcome.phase for outcome in self.published(application)]

    def ended(self, phase: str, application: str = APP) -> Callable[[], bool]:
        """Whether the newest outcome has this phase."""
        return lambda: self.phases(application)[-1:] == [phase]

    async def until(self, condition: Callable[[], bool], *, seconds: float = 300.0) -> None:
        """Let time pass until `condition`; fails after so many virtual seconds."""
        for _ in range(int(seconds * 2)):
            if condition():
                return
            self.clock.advance(0.5)
            await asyncio.sleep(0.003)
        raise AssertionError(f"not within {seconds} s; told: {[(o.phase, o.code) for o in self.published()]}")

    async def quiet(self, seconds: float = 5.0) -> None:
        """Let time pass."""
        for _ in range(int(seconds * 2)):
            self.clock.advance(0.5)
            await asyncio.sleep(0.003)

    async def end(self) -> None:
        """End all replicas. Every sentence for users is short and reads well."""
        self.bus.mend()
        for record in self.records():
            if record.value is not None:
                sentence = Outcome.model_validate_json(record.value).sentence
                assert len(sentence) <= 160
                assert_reads_well(sentence)
        for replica in self.replicas:
            if not replica.task.done():
                await replica.end()
