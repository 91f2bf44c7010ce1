"""The shell on a bus in memory: nothing is lost, nothing is published twice, and an emptied store is rebuilt."""

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.unit.knowledge.builders import (
    APP,
    NOON,
    action,
    analysis,
    documents,
    letters,
    observation,
    outcome,
    plan,
    policy,
)
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.runtime.memory_lease import MemoryGroup, MemoryLease
from weir_contracts import Analysis, Observation, Outcome, Plan, ScalingPolicy
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANS, POLICIES, Topic
from weir_knowledge.core import HistoryLimits, Newest, State, remember
from weir_knowledge.publisher import PolicyPublisher
from weir_knowledge.service import GROUP, READ, Knowledge
from weir_knowledge.store import StoreUnavailable
from weir_runtime.bus import BusError
from weir_runtime.clock import FakeClock
from weir_runtime.lease import Terms
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import encode

OTHER = "shop/payments"
TERMS = Terms("publisher", standby_seconds=float("inf"))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Published = Observation | Analysis | Plan | Outcome | ScalingPolicy
TOPIC_OF: dict[type[Published], Topic] = {
    Observation: OBSERVATIONS,
    Analysis: ANALYSES,
    Plan: PLANS,
    Outcome: OUTCOMES,
    ScalingPolicy: POLICIES,
}


class FlakyStore(MemoryStore):
    """A store that can be away."""

    def __init__(self, *, complete: bool = True) -> None:
        super().__init__(complete=complete)
        self.away = False
        self.refused = 0

    async def save(self, *args: Any, **kwargs: Any) -> None:
        self.refused += self.full
        if self.away:
            self.refused += 1
            raise StoreUnavailable("redis: away")
        await super().save(*args, **kwargs)


class World:
    """A bus, a store, and the service between them."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOON)
        self.bus = MemoryBus(partitions=4, clock=self.clock)
        self.store = FlakyStore()
        self.group = MemoryGroup(self.clock, TERMS)
        self.knowledge = self.process()
        self.publisher = self.publishing("first")

    def publishing(self, name: str) -> PolicyPublisher:
        """One more process that may publish what the store holds; the first gets the lease."""
        rebuilt = asyncio.Event()
        rebuilt.set()
        lease = MemoryLease(self.group, name)
        lease.open()
        return PolicyPublisher(self.bus, self.store, self.clock, lambda: lease, TERMS, rebuilt=rebuilt)

    def process(self) -> Knowledge:
        """One more process on the same bus and store."""
        return Knowledge(
            self.bus,
            self.store,
            self.clock,
            HistoryLimits(),
            letters(self.bus, self.clock),
            rebuild_seconds=5.0,
            retry_seconds=0.01,
        )

    async def send(self, *messages: Published) -> None:
        for message in messages:
            topic = TOPIC_OF[type(message)]
            body, headers = encode(message, type=topic.type, source="test", id=plan(1).id, time=NOON)
            await self.bus.publish(topic.name, message.application, body, headers)

    @asynccontextmanager
    async def running(self) -> Any:
        """The service follows the loop; gives what it logs."""
        stop = Stop()
        with capture_logs() as lines:  # a failed cycle's trace takes longer to paint than the test to run
            following = asyncio.create_task(self.knowledge.follow(stop))
            yield lines
            stop.request("the test is over")
            await following

    async def state(self, application: str = APP) -> State:
        found = await self.store.state(application)
        assert found is not None
        return found

    async def newest(self, application: str = APP) -> Newest:
        found = await self.store.newest(application)
        assert found is not None
        return found

    async def kinds(self) -> list[str]:
        """Return the events of the feed."""
        return [event.kind for event in await self.store.events("0", count=1000)]

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(5):
            while not await condition():  # noqa: ASYNC110 - the condition is anything, not an event
                await asyncio.sleep(0.002)

    async def uncommitted(self) -> int:
        """How many records a process that took over now would be given."""
        successor = self.bus.consumer(list(READ), GROUP)
        found = await successor.receive(timeout_seconds=0)
        await successor.close()
        return len(found)

    def published(self) -> list[tuple[str, int | None]]:
        """Every policy that was published: its application and version, None for a tombstone."""
        return [
            (str(r.key), None if r.value is None else json.loads(r.value)["metadata"]["version"])
            for r in self.bus.records(POLICIES.name)
        ]


@pytest.fixture
async def world() -> World:
    """A policy is stored and published; there are no other messages yet."""
    made = World()
    await made.store.put_policy(policy(), 0)
    await made.publisher.publish()
    return made


async def test_messages_of_the_loop_are_stored(world: World) -> None:
    """A complete cycle: the state and the feed have it in order, and it is committed."""
    scale = plan(1, 4)
    await world.knowledge.rebuild()
    async with world.running():
        # Each topic is read by itself: this is the wrong order on purpose.
        await world.send(outcome(scale, "intended"), scale, analysis(1), observation(1))
        await world.until(lambda: _has(world, "outcome"))
    state, newest = await world.state(), await world.newest()
    assert (newest.observation, newest.analysis, newest.plan) == (observation(1), analysis(1), scale)
    assert newest.outcome == outcome(scale, "intended")
    assert state.times == newest.times()
    assert state.cycles[0].reading is not None and len(state.cycles[0].outcomes) == 1
    assert await world.kinds() == ["observation", "analysis", "plan", "outcome"]
    (line,) = await world.store.history(APP)
    assert (line.plan_id, line.arrival_rate, line.outcome) == (scale.id, 100.0, "intended")
    assert await world.uncommitted() == 0


async def _has(world: World, kind: str) -> bool:
    return kind in await world.kinds()


async def test_a_replay_publishes_nothing_again(world: World) -> None:
    """The bus delivers at least once, the feed once."""
    messages: list[Published] = [observation(1), analysis(1), plan(1), observation(2)]
    await world.send(*messages, *messages)
    records = [r for topic in READ for r in world.bus.records(topic)]
    await world.knowledge.take(records)
    before = await world.state()
    await world.knowledge.take(records)
    assert await world.state() == before
    assert sorted(await world.kinds()) == ["analysis", "observation", "observation", "plan"]
    assert len(await world.store.history(APP)) == 1


async def test_a_batch_is_one_line_in_the_log(world: World) -> None:
    """Records, applications and duration; a single message with its application and trace."""
    await world.send(observation(1), analysis(1), analysis(1, OTHER))
    records = [r for topic in READ for r in world.bus.records(topic)]
    with capture_logs() as lines:
        await world.knowledge.take(records)
        alone = dataclasses.replace(records[0], headers={**records[0].headers, "traceparent": TRACE})
        await world.knowledge.take([alone])
    batch, single = lines
    assert (batch["event"], batch["kinds"], batch["applications"]) == (
        "remembered",
        {"observation": 1, "analysis": 2},
        2,
    )
    assert batch["new"] == 2  # the other application has neither a policy nor a reading
    assert batch["seconds"] >= 0 and "traceparent" not in batch
    assert (single["application"], single["traceparent"], single["new"]) == (APP, TRACE, 0)


async def test_unreadable_records_go_to_the_dead_letter_topic(world: World) -> None:
    """The dead letter names the field and the place, and its neighbours are stored."""
    await world.knowledge.rebuild()
    broken = json.loads(plan(1).model_dump_json()) | {"kind": "guess"}
    async with world.running():
        await world.bus.publish(PLANS.name, APP, json.dumps(broken).encode())
        await world.bus.publish(ANALYSES.name, APP, b"{")
        await world.bus.publish(OUTCOMES.name, APP, None)  # a tombstone is nothing wrong
        await world.bus.publish(OBSERVATIONS.name, APP, None)
        await world.send(observation(1))
        await world.until(lambda: _has(world, "observation"))
    letters = [json.loads(r.value or b"") for r in world.bus.records(DEAD_LETTERS.name)]
    assert {(letter["topic"], letter["field"]) for letter in letters} == {
        (PLANS.name, "kind"),
        (ANALYSES.name, None),
        (OBSERVATIONS.name, None),
    }
    assert all(letter["service"] == "knowledge" and letter["reason"] for letter in letters)
    assert (await world.newest()).plan is None


async def test_an_outage_of_the_store_loses_nothing(world: World) -> None:
    """Nothing is committed while it is away; the same process continues by itself, and another one would receive all of
    it."""
    await world.knowledge.rebuild()
    world.store.away = True
    async with world.running():
        await world.send(observation(1), analysis(1))
        await world.until(lambda: _refused(world))
        assert world.store.refused
        await world.send(plan(1))
        world.store.away = False
        await world.until(lambda: _has(world, "plan"))
    assert await world.kinds() == ["observation", "analysis", "plan"]
    assert await world.uncommitted() == 0


async def test_a_full_store_is_logged_once_and_waited_for(world: World) -> None:
    """However often it is tried: one line when it refuses, one when it has room again, no cycle that failed. Nothing is
    lost on either side: what was rebuilt stays so, and the messages are stored without help; an unreadable record has
    one dead letter."""
    await world.knowledge.rebuild()
    world.store.full = True
    async with world.running() as lines:
        await world.bus.publish(ANALYSES.name, APP, b"{", {})
        await world.send(observation(1), analysis(1))
        await world.until(lambda: _refused(world, 5))
        assert len(world.bus.records(DEAD_LETTERS.name)) == 1
        await world.knowledge.check_rebuilt()
        assert await world.store.state(APP) is None
        assert await world.store.policy(APP) is not None
        world.store.full = False
        await world.until(lambda: _has(world, "analysis"))
        await world.send(plan(1))
        await world.until(lambda: _has(world, "plan"))
    events = [line["event"] for line in lines if line["event"] not in ("rebuilt", "dead-letter")]
    full = next(line for line in lines if line["event"] == "store-full")
    assert events[0] == "store-full" and full["reason"] == "the store is full"
    assert events[1:3] == ["remembered", "store-has-room"]
    assert set(events[3:]) == {"remembered"}
    assert await world.kinds() == ["observation", "analysis", "plan"]
    assert await world.uncommitted() == 0


async def test_a_store_that_is_full_when_it_is_rebuilt_is_waited_for(world: World) -> None:
    """It came back empty, with room for nothing: not ready until all that the topics know is in it."""
    await world.knowledge.rebuild()
    await world.send(plan(1))
    async with world.running() as lines:
        world.store.__init__(complete=False)  # type: ignore[misc]
        world.store.full = True
        await world.until(lambda: _logged(lines, "store-full"))
        with pytest.raises(RuntimeError, match="compared"):
            await world.knowledge.check_rebuilt()
        world.store.full = False
        await world.until(lambda: _logged(lines, "store-has-room"))
        await world.knowledge.check_rebuilt()
    assert await world.store.policy(APP) is not None
    assert [line["event"] for line in lines].count("store-full") == 1


async def _logged(lines: list[Any], event: str) -> bool:
    return any(line["event"] == event for line in lines)


async def test_a_process_that_ends_in_an_outage_leaves_its_work_to_the_next(world: World) -> None:
    """Records that it could not store go to the next process."""
    await world.knowledge.rebuild()
    world.store.away = True
    async with world.running():
        await world.send(observation(1), analysis(1))
        await world.until(lambda: _refused(world))
    world.store.away = False
    assert await world.uncommitted() == 2


async def _refused(world: World, times: int = 1) -> bool:
    return world.store.refused >= times


async def test_a_policy_is_published_once_it_is_stored(world: World) -> None:
    """In the order of the changes, a deletion as a tombstone, and none of them twice."""
    await world.store.put_policy(policy(version=2), 1)
    await world.store.put_policy(policy(OTHER), 0)
    await world.store.delete_policy(OTHER, None)
    assert await world.publisher.publish() == 3
    assert await world.publisher.publish() == 0
    of_app = [version for application, version in world.published() if application == APP]
    of_other = [version for application, version in world.published() if application == OTHER]
    assert (of_app, of_other) == ([1, 2], [1, None])


async def test_a_policy_is_published_as_its_user_wrote_it(world: World) -> None:
    """A store that is rebuilt from the topic gives the same document: without fields that the user left out."""
    await world.publisher.publish()
    (record,) = world.bus.records(POLICIES.name)
    assert json.loads(record.value or b"") == policy().to_document()


async def test_a_policy_waits_for_the_brokers(world: World) -> None:
    """It stays in the outbox until they have acknowledged it, and the change that follows waits behind it."""
    await world.store.put_policy(policy(version=2), 1)
    await world.store.put_policy(policy(version=3), 2)
    world.bus.break_down()
    with pytest.raises(BusError):
        await world.publisher.publish()
    assert len(await world.store.outbox()) == 2
    world.bus.mend()
    await world.publisher.publish()
    assert world.published() == [(APP, 1), (APP, 2), (APP, 3)]


async def test_a_crash_before_the_removal_publishes_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published and not yet taken out: the next process publishes it again, with the same id."""
    await world.store.put_policy(policy(version=2), 1)

    async def crash(_entries: object) -> None:
        raise StoreUnavailable("redis: away")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "published", crash)
        with pytest.raises(StoreUnavailable):
            await world.publisher.publish()
    world.clock.advance(60)
    await world.publisher.publish()
    assert world.published() == [(APP, 1), (APP, 2), (APP, 2)]
    ids = [r.headers["ce_id"] for r in world.bus.records(POLICIES.name)[1:]]
    assert ids[0] == ids[1]


async def test_a_change_is_published_at_once(world: World) -> None:
    """Not at the next poll a second later: the API signals the change."""
    stop = Stop()
    publishing = asyncio.create_task(world.publisher.run(stop))
    await asyncio.sleep(0.01)
    await world.store.put_policy(policy(version=2), 1)
    world.publisher.outbox_filled.set()
    async with asyncio.timeout(0.5):
        await world.until(lambda: _published(world, 2))
    stop.request("the test is over")
    await publishing


async def _published(world: World, version: int) -> bool:
    return (APP, version) in world.published()


async def _after_a_rebuild(world: World) -> None:
    """The store is replaced by an empty one, and the service starts again."""
    world.store = FlakyStore(complete=False)
    world.knowledge = world.process()
    await world.knowledge.rebuild()


async def test_an_earlier_holders_late_outcome_changes_nothing(world: World) -> None:
    """It comes after the new holder's, with a later time and a higher version: not the newest, not the action, not
    after a rebuild."""
    scale = plan(1, 4)
    stored = action(scale, version=3, phase="verifying")
    await world.store.put_action(stored, 0)
    owned = outcome(scale, "verifying", action=stored, epoch=2, sequence=5)
    ended = stored.model_copy(update={"phase": "failed", "version": 9})
    late = outcome(scale, "failed", seconds=99, action=ended, epoch=1, sequence=7)
    await world.knowledge.rebuild()
    async with world.running():
        await world.send(scale)
        await world.until(lambda: _has(world, "plan"))
        await world.send(owned, late)
        await world.until(lambda: _has(world, "outcome"))
        await world.send(plan(2, 5))
        await world.until(lambda: _planned(world))
    assert (await world.newest()).outcome == owned
    assert await world.store.action(APP) == stored
    await _after_a_rebuild(world)
    assert (await world.newest()).outcome == owned
    assert await world.store.action(APP) == stored


async def _planned(world: World) -> bool:
    return (await world.state()).times.plan == plan(2, 5).observed_at


async def test_an_emptied_store_is_rebuilt_from_the_topics(world: World) -> None:
    """Policies with their versions, the newest of each stage, and the action in flight. Nothing is published for it."""
    scale = plan(2, 4)
    flying = outcome(scale, "applying", action=action(scale, version=3))
    await world.send(plan(1), analysis(2), scale, flying)
    await _after_a_rebuild(world)
    assert await world.store.policy(APP) is not None
    newest = await world.newest()
    assert (newest.analysis, newest.plan, newest.outcome) == (analysis(2), scale, flying)
    assert [(line.plan_id, line.outcome) for line in await world.store.history(APP)] == [(scale.id, "applying")]
    assert await world.store.action(APP) == flying.action
    assert await world.publisher.publish() == 0
    assert world.published() == [(APP, 1)]


async def test_messages_that_a_state_contains_are_restored(world: World) -> None:
    """The store was emptied just before a state was written that was computed from its content: the newest message is
    missing."""
    world.store.__init__(complete=False)  # type: ignore[misc]
    messages = [observation(1), analysis(1), plan(1)]
    await world.send(*messages)
    current_state = State(application=APP)
    for message in messages:
        current_state = remember(current_state, message, HistoryLimits())
    await world.store.save([current_state], [], newest={APP: documents(plan(1))})
    await world.knowledge.rebuild()
    newest = await world.newest()
    assert (newest.analysis, newest.plan) == (analysis(1), plan(1))


async def test_a_refused_end_is_published_later(world: World) -> None:
    """The application ends while the store is away: its feed still has the end."""
    await world.knowledge.rebuild()
    await world.send(observation(1), plan(1))
    await world.knowledge.take([r for topic in READ for r in world.bus.records(topic)])
    await world.store.delete_policy(APP, None)
    await world.send(observation(2, status="ended"))
    end = world.bus.records(OBSERVATIONS.name)[-1:]
    world.store.away = True
    with pytest.raises(StoreUnavailable):
        await world.knowledge.take(end)
    world.store.away = False
    await world.knowledge.take(end)
    assert await world.kinds() == ["observation", "plan", "observation"]
    assert await world.store.state(APP) is None


async def test_a_deleted_application_is_not_brought_back(world: World) -> None:
    """Its last analysis and plan are kept in the topics for a week; the tombstone marks them as obsolete."""
    await world.send(analysis(1), plan(1, 4), outcome(plan(1, 4), "verified", action=action(plan(1, 4))))
    await world.store.delete_policy(APP, None)
    await world.publisher.publish()
    await _after_a_rebuild(world)
    assert await world.store.applications() == []
    assert await world.store.action(APP) is None
    assert world.published() == [(APP, 1), (APP, None)]


async def test_a_deletion_that_is_not_published_yet_outlives_a_restart(world: World) -> None:
    """Deleted, then the process ended before its outbox was empty: the topic's policy must not come back."""
    await world.store.delete_policy(APP, None)
    world.knowledge = world.process()
    await world.knowledge.rebuild()
    await world.publisher.publish()
    assert await world.store.policies() == []
    assert world.published() == [(APP, 1), (APP, None)]


async def test_a_rebuild_that_was_cut_short_is_begun_again(world: World) -> None:
    """The store failed in between: it does not count as complete afterwards."""
    scale = plan(2, 4)
    await world.send(analysis(2), scale, outcome(scale, "applying", action=action(scale)))
    world.store = FlakyStore(complete=False)
    world.store.away = True
    world.knowledge = world.process()
    with pytest.raises(StoreUnavailable):
        await world.knowledge.rebuild()
    with pytest.raises(RuntimeError, match="compared with the topics"):
        await world.knowledge.check_rebuilt()
    world.store.away = False
    await world.knowledge.rebuild()
    await world.knowledge.check_rebuilt()
    assert (await world.newest()).plan == scale
    assert await world.store.action(APP) is not None


async def test_a_store_that_comes_back_empty_is_rebuilt_while_running(world: World) -> None:
    """Redis was replaced under a running service: it notices, rebuilds, and goes on."""
    await world.knowledge.rebuild()
    async with world.running():
        await world.send(observation(1), analysis(1), plan(1))
        await world.until(lambda: _has(world, "plan"))
        # All its data is lost, the connection stays.
        world.store.__init__(complete=False)  # type: ignore[misc]
        await world.send(observation(2))
        await world.until(lambda: _has(world, "observation"))
    assert await world.store.policy(APP) is not None
    newest = await world.newest()
    assert (newest.observation, newest.plan) == (observation(2), plan(1))


async def test_a_store_that_comes_back_without_its_last_second_is_completed(world: World) -> None:
    """A crash may cost Redis the newest writes: what had been published by then is brought back."""
    await world.knowledge.rebuild()
    await world.store.put_policy(policy(version=2), 1)
    await world.publisher.publish()
    world.store.away = True
    async with world.running():
        await world.send(observation(1))
        await world.until(lambda: _refused(world))
        with pytest.raises(RuntimeError):
            await world.knowledge.check_rebuilt()
        vars(world.store)["_policies"][APP] = policy(version=1)
        world.store.away = False
        await world.until(lambda: _has(world, "observation"))
    found = await world.store.policy(APP)
    assert found is not None and found.metadata.version == 2


async def test_the_end_of_an_action_is_known_by_its_outcome(world: World) -> None:
    """The executor could not write that its action ended: the outcome does. What is older, or another action's end,
    changes nothing."""
    await world.knowledge.rebuild()
    begun = action(plan(1, 2), version=3, phase="verifying")
    ended = begun.model_copy(update={"version": 4, "phase": "verified"})
    other = action(plan(2, 3), version=9, phase="verified")
    await world.store.put_action(begun, 0)
    async with world.running():
        await world.send(observation(1), analysis(1), plan(1, 2), outcome(plan(1, 2), "verifying", action=begun))
        await world.send(outcome(plan(2, 3), "verified", action=other))
        await world.until(lambda: _has(world, "outcome"))
        assert await world.store.action(APP) == begun
        await world.send(outcome(plan(1, 2), "verified", 20, action=ended))
        await world.until(lambda: _ended(world))
    assert await world.store.action(APP) == ended


async def test_the_end_of_an_action_is_not_lost_with_the_last_second(world: World) -> None:
    """Its end was written, and Redis came back without it: once it answers again the end is there."""
    await world.knowledge.rebuild()
    begun = action(plan(1, 2), version=3, phase="verifying")
    ended = begun.model_copy(update={"version": 4, "phase": "verified"})
    await world.store.put_action(ended, 0)
    async with world.running():
        await world.send(observation(1), analysis(1), plan(1, 2), outcome(plan(1, 2), "verified", action=ended))
        await world.until(lambda: _has(world, "outcome"))
        world.store.away = True
        await world.send(observation(2))
        await world.until(lambda: _refused(world))
        vars(world.store)["_actions"][APP] = begun
        world.store.away = False
        await world.until(lambda: _ended(world))
    assert await world.store.action(APP) == ended


async def _ended(world: World) -> bool:
    found = await world.store.action(APP)
    return found is not None and found.terminal


async def test_a_newer_policy_in_the_store_stays(world: World) -> None:
    """A change that waits for publication is newer than the topic."""
    await world.store.put_policy(policy(version=2), 1)
    await world.process().rebuild()
    found = await world.store.policy(APP)
    assert found is not None and found.metadata.version == 2


async def test_an_application_that_ended_is_forgotten(world: World) -> None:
    """With its action; what was still on its way does not bring it back. Its feed has the end."""
    scale = plan(1, 4)
    await world.send(observation(1), analysis(1), scale)
    await world.store.put_action(action(scale), 0)
    await world.knowledge.take([r for topic in READ for r in world.bus.records(topic)])
    await world.store.delete_policy(APP, None)
    end = World()
    await end.send(observation(2, status="ended"))
    await world.knowledge.take(end.bus.records(OBSERVATIONS.name))
    assert await world.store.applications() == []
    assert await world.store.action(APP) is None
    late = World()
    await late.send(analysis(1.5), plan(1.5), outcome(scale, "verified"), observation(2, status="ended"))
    await world.knowledge.take([r for topic in READ for r in late.bus.records(topic)])
    assert await world.store.applications() == []
    assert await world.store.history(APP) == []
    assert (await world.kinds())[-1] == "observation"


async def test_an_old_end_does_not_end_what_began_again(world: World) -> None:
    """Deleted and written again, then the old end is replayed: the new one keeps its state and its action."""
    await world.send(observation(2, status="ended"), observation(3), plan(3, 4))
    records = [r for topic in READ for r in world.bus.records(topic)]
    await world.knowledge.take(records)
    await world.store.put_action(action(plan(3, 4)), 0)
    await world.knowledge.take(records)
    assert (await world.newest()).observation == observation(3)
    assert await world.store.action(APP) is not None
