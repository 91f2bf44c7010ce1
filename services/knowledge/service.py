"""The shell: remembers what the loop says, publishes policies from the outbox, and rebuilds an emptied memory."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

import structlog
from prometheus_client import Counter, Gauge
from pydantic import BaseModel
from weir_contracts import Analysis, Observation, Outcome, Plan, ScalingPolicy, derive_id, observation_id
from weir_contracts.topics import ANALYSES, OBSERVATIONS, OUTCOMES, PLANS, POLICIES, Topic

from runtime.bus import Bus, Consumer, Reader
from runtime.clock import Clock
from runtime.dead_letters import DeadLetters
from runtime.envelope import Undecodable, decode, encode, new_traceparent
from runtime.loop import Stop, run_forever
from runtime.records import Record

from .core import Event, Limits, State, remember
from .store import Store, VersionConflict

M = TypeVar("M", bound=BaseModel)

GROUP = "weir-knowledge"
READ: Mapping[str, tuple[type[Observation | Analysis | Plan | Outcome], str]] = {
    OBSERVATIONS.name: (Observation, "observation"),
    ANALYSES.name: (Analysis, "analysis"),
    PLANS.name: (Plan, "plan"),
    OUTCOMES.name: (Outcome, "outcome"),
}
_REMEMBERED = Counter("weir_knowledge_messages_total", "Messages remembered", ["kind"])
_OUTBOX = Gauge("weir_knowledge_outbox", "Policies stored and not yet published")


class Knowledge:
    """Connects the bus with the store."""

    def __init__(self, bus: Bus, store: Store, clock: Clock, limits: Limits) -> None:
        self._bus = bus
        self._store = store
        self._clock = clock
        self._limits = limits
        self._dead_letters = DeadLetters(bus, "knowledge", clock)
        self._log = structlog.get_logger("knowledge")
        self._pending: list[Record] = []
        self.rebuilt = asyncio.Event()
        self.outbox_filled = asyncio.Event()

    async def check_rebuilt(self) -> None:
        """Readiness: raises until the memory is known to hold what the topics say."""
        if not self.rebuilt.is_set():
            raise RuntimeError("the memory is being compared with the topics")

    async def rebuild(self, timeout_seconds: float) -> None:
        """Bring back policies and actions that the topics know and the store does not: an empty store deletes nothing."""
        restored = 0
        for application, record in (await self._latest(POLICIES, timeout_seconds)).items():
            policy = await self._read(record, ScalingPolicy)
            if policy is not None and policy.metadata.resource_version is not None:
                await self._store.restore_policy(policy)
                restored += application == policy.application
        if not await self._has_states():
            await self._restore_outcomes(timeout_seconds)
        self._log.info("rebuilt", policies=restored)
        self.rebuilt.set()

    async def _has_states(self) -> bool:
        for application in await self._store.applications():
            if await self._store.state(application) is not None:
                return True
        return False

    async def _restore_outcomes(self, timeout_seconds: float) -> None:
        for topic in (ANALYSES, PLANS, OUTCOMES):
            states = []
            for application, record in (await self._latest(topic, timeout_seconds)).items():
                model, _ = READ[topic.name]
                message = await self._read(record, model)
                if message is None:
                    continue
                state = await self._store.state(application) or State(application=application)
                states.append(remember(state, message, self._limits))
                if isinstance(message, Outcome) and message.newest_action is not None:
                    await self._restore_action(message)
            await self._store.save(states, [])

    async def _restore_action(self, outcome: Outcome) -> None:
        action = outcome.newest_action
        if action is not None and await self._store.action(action.application) is None:
            try:
                await self._store.put_action(action, 0)
            except VersionConflict:
                return  # the executor was faster, and knows better

    async def _latest(self, topic: Topic, timeout_seconds: float) -> dict[str, Record]:
        """The newest record of each key, tombstones taken out."""
        reader: Reader = self._bus.reader(topic.name)
        latest: dict[str, Record] = {}
        try:
            async with asyncio.timeout(timeout_seconds):
                while not await reader.caught_up():
                    for record in await reader.receive(timeout_seconds=0.2):
                        if record.key is not None:
                            latest[record.key] = record
        finally:
            await reader.close()
        return {key: record for key, record in latest.items() if record.value is not None}

    async def _read(self, record: Record, model: type[M]) -> M | None:
        try:
            return decode(record, model).message
        except Undecodable as error:
            await self._dead_letters.undecodable(record, error)
            return None

    async def follow(self, stop: Stop) -> None:
        """Remember what the loop says until stopped."""
        await stop.race(self.rebuilt.wait())
        consumer = self._bus.consumer(list(READ), GROUP)
        try:
            await run_forever("knowledge", lambda: self._cycle(consumer), stop)
        finally:
            await consumer.close()

    async def _cycle(self, consumer: Consumer) -> None:
        # What was received is kept until it is stored: an outage of Redis must not skip it.
        if not self._pending:
            self._pending = await consumer.receive(max_records=500, timeout_seconds=0.5)
        if self._pending:
            await self.take(self._pending)
            await consumer.commit()
            self._pending = []

    async def take(self, records: list[Record]) -> None:
        """Remember a batch; `StoreUnavailable` leaves everything as it was, and the batch can be taken again."""
        by_application: dict[str, list[tuple[Event, str]]] = defaultdict(list)
        for record in records:
            model, kind = READ[record.topic]
            message = await self._read(record, model)
            if message is not None:
                by_application[message.application].append((message, kind))
        states, events = [], []
        for application, messages in by_application.items():
            before = await self._store.state(application) or State(application=application)
            state = before
            for message, kind in sorted(messages, key=_instant):
                after = remember(state, message, self._limits)
                if after is not state:
                    events.append((kind, application, message.model_dump_json()))
                    _REMEMBERED.labels(kind).inc()
                state = after
            if state is not before:
                states.append(state)
            if any(isinstance(m, Observation) and m.status == "ended" for m, _ in messages):
                states = [s for s in states if s.application != application]
                await self._store.forget(application)
        if states or events:
            await self._store.save(states, events)

    async def publish_policies(self, stop: Stop) -> None:
        """Publish what the outbox holds, soon after it was filled, until stopped."""

        async def cycle() -> None:
            await self.drain_outbox()
            self.outbox_filled.clear()
            await stop.race(self._filled_or(1.0))

        await run_forever("outbox", cycle, stop)

    async def _filled_or(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.outbox_filled.wait(), seconds)
        except TimeoutError:
            return

    async def drain_outbox(self) -> int:
        """Publish every entry in order and remove it once acknowledged; returns how many."""
        count = 0
        while entries := await self._store.outbox():
            _OUTBOX.set(len(entries))
            for entry in entries:
                body, headers = None, dict[str, str]()
                if entry.value is not None:
                    policy = ScalingPolicy.model_validate_json(entry.value)
                    now = self._clock.now()
                    message_id = derive_id(observation_id(entry.application, now), "policy")
                    body, headers = encode(
                        policy,
                        type=POLICIES.type,
                        source="knowledge",
                        id=message_id,
                        time=now,
                        traceparent=new_traceparent(message_id),
                    )
                await self._bus.publish(POLICIES.name, entry.application, body, headers)
                await self._store.published([entry])
                count += 1
        _OUTBOX.set(0)
        return count


def _instant(item: tuple[Event, str]) -> tuple[float, int]:
    message, _ = item
    at = message.at if isinstance(message, Outcome) else message.observed_at
    order = (Observation, Analysis, Plan, Outcome).index(type(message))
    return at.timestamp(), order
