"""A log in memory, and replicas that apply it to one store."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from structlog.testing import capture_logs

from tests.unit.knowledge.builders import APP, NOON, letters, plan
from tests.unit.knowledge.memory_store import MemoryStore
from weir_contracts import ActionState, Analysis, Change, Observation, Outcome, Plan, ScalingPolicy
from weir_contracts.topics import ACTIONS, ANALYSES, OBSERVATIONS, OUTCOMES, PLANS, POLICIES, Topic
from weir_knowledge.core import HistoryLimits, State
from weir_knowledge.newest import Newest
from weir_knowledge.service import Knowledge
from weir_knowledge.store import StoreUnavailable
from weir_knowledge.view import View
from weir_runtime.bus import VERSION_HEADER
from weir_runtime.clock import FakeClock
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import encode

PARTITIONS = 4
Published = Observation | Analysis | Plan | Outcome
TOPIC_OF: dict[type[Any], Topic] = {
    Observation: OBSERVATIONS,
    Analysis: ANALYSES,
    Plan: PLANS,
    Outcome: OUTCOMES,
    ScalingPolicy: POLICIES,
    ActionState: ACTIONS,
}


class Steps(Protocol):
    """What happens between two steps of a replica."""

    async def step(self, work: Callable[[], Awaitable[Any]], *, is_write: bool = True) -> Any:
        """Do what other processes notice."""


class Stepwise:
    """Another object whose methods are steps."""

    def __init__(self, inner: object, steps: Steps, reads: Sequence[str], writes: Sequence[str]) -> None:
        self._inner, self._steps, self._reads, self._writes = inner, steps, reads, writes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in (*self._reads, *self._writes):
            return found

        async def step(*args: Any, **kwargs: Any) -> Any:
            return await self._steps.step(lambda: found(*args, **kwargs), is_write=name in self._writes)

        return step


class FlakyStore(MemoryStore):
    """A store that can be away, and counts what it refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.refused = 0

    async def apply(self, *args: Any, **kwargs: Any) -> None:
        self.refused += self.full or self.away
        if self.away:
            raise StoreUnavailable("redis: away")
        await super().apply(*args, **kwargs)


class LogWorld:
    """A bus, a store, and replicas between them; the decisions are written as the decider writes them."""

    poll_seconds = 0.001

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self.clock, self.partitions = FakeClock(NOON), partitions
        self.bus = MemoryBus(partitions=partitions, clock=self.clock)
        self.store = FlakyStore()
        self.view = View(self.store, partitions)
        self.requested: list[Change] = []

    def replica(self) -> Knowledge:
        return Knowledge(
            self.bus,
            self.view,
            self.clock,
            HistoryLimits(),
            letters(self.bus, self.clock),
            self.request,
            retry_seconds=0.01,
        )

    async def request(self, changes: Sequence[Change]) -> None:
        self.requested += changes

    async def decide(self, *policies: ScalingPolicy) -> None:
        """Put policies in force, each in its version."""
        for each in policies:
            await self._write(each, each.metadata.version or 0)

    async def delete(self, version: int, application: str = APP) -> None:
        """Delete a policy, and its action, as the decider does."""
        for topic in (POLICIES, ACTIONS):
            await self.bus.publish(topic.name, application, None, {VERSION_HEADER: str(version)})

    async def act(self, action: ActionState, version: int) -> None:
        await self._write(action, version)

    async def _write(self, decided: ScalingPolicy | ActionState, version: int) -> None:
        topic = TOPIC_OF[type(decided)]
        body, headers = encode(
            decided, type=topic.type, source="test", id=plan(1).id, time=NOON, exclude_unset=topic is POLICIES
        )
        await self.bus.publish(topic.name, decided.application, body, {**headers, VERSION_HEADER: str(version)})

    async def send(self, *messages: Published) -> None:
        for message in messages:
            topic = TOPIC_OF[type(message)]
            body, headers = encode(message, type=topic.type, source="test", id=plan(1).id, time=NOON)
            await self.bus.publish(topic.name, message.application, body, headers)

    @asynccontextmanager
    async def running(self, knowledge: Knowledge | None = None) -> Any:
        """A replica follows the log; gives what it logs."""
        stop = Stop()
        with capture_logs() as lines:  # a failed cycle's trace takes longer to paint than the test to run
            following = asyncio.create_task((knowledge or self.replica()).follow(stop))
            try:
                yield lines
            finally:
                stop.request("the test is over")
                await following

    async def run(self, knowledge: Knowledge | None = None) -> list[Any]:
        """Let a replica take all partitions, read to the end of the log, and end."""
        async with self.running(knowledge) as lines:

            async def is_done() -> bool:
                begun = [line for line in lines if line["event"] == "partition-read"]
                return len(begun) >= self.partitions and await self.is_applied()

            await self.until(is_done)
        return list(lines)

    async def is_applied(self) -> bool:
        """Whether the store shows the end of every topic."""
        topics = {topic.name for topic in TOPIC_OF.values()}
        for partition in range(self.partitions):
            position = self.store.positions.get(partition)
            ends = {topic: len(self.bus.log[topic, partition]) for topic in topics}
            if position is None or any(position.offsets.get(topic, 0) < end for topic, end in ends.items()):
                return False
        return True

    async def until(self, condition: Callable[[], Awaitable[bool]], timeout_seconds: float = 5.0) -> None:
        async with asyncio.timeout(timeout_seconds):
            while not await condition():  # noqa: ASYNC110 - the condition is anything, not an event
                await asyncio.sleep(self.poll_seconds)

    async def state(self, application: str = APP) -> State:
        found = await self.view.state(application)
        assert found is not None
        return found

    async def newest(self, application: str = APP) -> Newest:
        found = await self.view.newest(application)
        assert found is not None
        return found

    async def kinds(self) -> list[str]:
        """Return the events of the feed."""
        return [event.kind for event in await self.store.events("0", count=1000)]

    async def has(self, kind: str) -> bool:
        return kind in await self.kinds()

    def ends(self) -> list[dict[str, Any]]:
        """Return the ends of applications that were published."""
        found = [json.loads(record.value or b"{}") for record in self.bus.records(OBSERVATIONS.name)]
        return [each for each in found if each.get("status") == "ended"]

    def lose(self, topic: Topic, count: int, application: str = APP) -> None:
        """The brokers lose the last records of a partition."""
        del self.bus.log[topic.name, self.view.partition(application)][-count:]
