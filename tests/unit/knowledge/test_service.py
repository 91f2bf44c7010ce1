"""The shell on a bus in memory: the store becomes what the log says, nothing is lost, and an emptied store is read again."""

import asyncio
import dataclasses
import json
from datetime import timedelta

import pytest

from tests.unit.knowledge.builders import APP, NOON, action, analysis, at, observation, outcome, plan, policy
from tests.unit.knowledge.log_world import LogWorld
from weir_contracts.topics import ACTIONS, ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANS, POLICIES
from weir_knowledge.service import GROUP, READ
from weir_knowledge.store import Incomplete
from weir_runtime.bus import VERSION_HEADER

OTHER = "shop/payments"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def world() -> LogWorld:
    """A policy is in force; there are no other messages yet."""
    made = LogWorld()
    await made.decide(policy())
    return made


async def test_messages_of_the_loop_are_stored(world: LogWorld) -> None:
    """A complete cycle: the state and the feed have it in order."""
    scale = plan(1, 4)
    # Each topic is read by itself: this is the wrong order on purpose.
    await world.send(outcome(scale, "intended"), scale, analysis(1), observation(1))
    await world.run()
    state, newest = await world.state(), await world.newest()
    assert (newest.observation, newest.analysis, newest.plan) == (observation(1), analysis(1), scale)
    assert newest.outcome == outcome(scale, "intended")
    assert state.times == newest.times()
    assert state.cycles[0].reading is not None and len(state.cycles[0].outcomes) == 1
    assert await world.kinds() == ["observation", "analysis", "plan", "outcome"]
    (line,) = await world.store.history(APP)
    assert (line.plan_id, line.arrival_rate, line.outcome) == (scale.id, 100.0, "intended")


async def test_what_comes_twice_is_stored_once(world: LogWorld) -> None:
    """The topics hold messages more than once; the feed, the state and the history do not."""
    messages = [observation(1), analysis(1), plan(1), observation(2)]
    await world.send(*messages, *messages)
    await world.run()
    before = await world.state()
    await world.send(*messages)
    await world.run()
    assert await world.state() == before
    assert sorted(await world.kinds()) == ["analysis", "observation", "observation", "plan"]
    assert len(await world.store.history(APP)) == 1


async def test_another_replica_goes_on_where_the_store_stands(world: LogWorld) -> None:
    """Nothing but the store tells it what was applied: each message is applied once, also by replicas that end and
    begin in between."""
    for cycle in range(1, 5):
        await world.send(observation(cycle), analysis(cycle), plan(cycle, cycle))
        await world.run()
    assert len(await world.kinds()) == 12
    assert [line.plan_id for line in await world.store.history(APP)] == [plan(c, c).id for c in (4, 3, 2, 1)]


async def test_a_batch_is_one_line_in_the_log(world: LogWorld) -> None:
    """Records, applications and duration; a single message with its application and trace."""
    await world.send(observation(1), analysis(1), analysis(1, OTHER))
    batch = next(line for line in await world.run() if line["event"] == "remembered")
    assert (batch["kinds"], batch["records"], batch["applications"]) == (
        {"observation": 1, "analysis": 1},
        2,
        1,
    )
    assert batch["new"] == 2 and batch["seconds"] >= 0 and "traceparent" not in batch
    alone = dataclasses.replace(
        world.bus.records(OBSERVATIONS.name)[0], headers={"traceparent": TRACE, "ce_type": OBSERVATIONS.type}
    )
    await world.bus.publish(OBSERVATIONS.name, APP, alone.value, alone.headers)
    (single,) = [line for line in await world.run() if line["event"] == "remembered"]
    assert (single["application"], single["traceparent"], single["new"]) == (APP, TRACE, 0)


async def test_unreadable_records_go_to_the_dead_letter_topic(world: LogWorld) -> None:
    """The dead letter names the field and the place, and its neighbours are stored."""
    broken = json.loads(plan(1).model_dump_json()) | {"kind": "guess"}
    await world.bus.publish(PLANS.name, APP, json.dumps(broken).encode())
    await world.bus.publish(ANALYSES.name, APP, b"{")
    await world.bus.publish(OUTCOMES.name, APP, None)  # a tombstone is nothing wrong
    await world.bus.publish(OBSERVATIONS.name, APP, None)
    await world.send(observation(1))
    await world.run()
    letters = [json.loads(r.value or b"") for r in world.bus.records(DEAD_LETTERS.name)]
    assert {(letter["topic"], letter["field"]) for letter in letters} == {
        (PLANS.name, "kind"),
        (ANALYSES.name, None),
        (OBSERVATIONS.name, None),
    }
    assert all(letter["service"] == "knowledge" and letter["reason"] for letter in letters)
    newest = await world.newest()
    assert (newest.plan, newest.observation) == (None, observation(1))


async def test_an_outage_of_the_store_loses_nothing(world: LogWorld) -> None:
    """The same process continues by itself, and another one from the store's position."""
    async with world.running():
        await world.until(world.is_applied)
        world.store.away = True
        await world.send(observation(1), analysis(1))
        await world.until(lambda: _refused(world))
        await world.send(plan(1))
        world.store.away = False
        await world.until(lambda: world.has("plan"))
        world.store.away = True
        await world.send(observation(2))
        await world.until(lambda: _refused(world, 2))
    world.store.away = False
    await world.run()
    assert await world.kinds() == ["observation", "analysis", "plan", "observation"]


async def _refused(world: LogWorld, times: int = 1) -> bool:
    return world.store.refused >= times


async def test_a_full_store_is_logged_once_and_waited_for(world: LogWorld) -> None:
    """However often it is tried: one line when it refuses, one when it has room again, no cycle that failed. The messages
    are stored without help, and an unreadable record has one dead letter."""
    async with world.running() as lines:
        await world.until(world.is_applied)
        world.store.full = True
        await world.bus.publish(ANALYSES.name, APP, b"{", {})
        await world.send(observation(1), analysis(1))
        await world.until(lambda: _refused(world, 5))
        assert len(world.bus.records(DEAD_LETTERS.name)) == 1
        assert await world.view.state(APP) is None
        assert await world.view.policy(APP) == policy()
        world.store.full = False
        await world.until(lambda: world.has("analysis"))
        await world.send(plan(1))
        await world.until(lambda: world.has("plan"))
    events = [line["event"] for line in lines if line["event"] not in ("partition-read", "dead-letter")]
    full = next(line for line in lines if line["event"] == "store-full")
    assert events[0] == "store-full" and full["reason"] == "the store is full"
    assert events[1:3] == ["remembered", "store-has-room"]
    assert set(events[3:]) == {"remembered"}
    assert await world.kinds() == ["observation", "analysis", "plan"]


async def test_policies_and_actions_are_as_the_log_has_them(world: LogWorld) -> None:
    """As their user wrote them; those that were decided while nobody read, and those that follow."""
    acted = action(plan(1), version=3)
    await world.act(action(plan(1)), 2)
    await world.act(acted, 3)
    await world.decide(policy(OTHER, version=4), policy(version=5, mode="act"))
    await world.run()
    found = await world.view.policy(APP)
    assert found is not None and found.to_document() == policy(version=5, mode="act").to_document()
    assert [each.application for each in await world.view.policies()] == [APP, OTHER]
    assert (await world.view.action(APP), await world.view.action(OTHER)) == (acted, None)
    async with world.running():
        await world.decide(policy(version=7))
        await world.act(action(plan(2)), 8)
        await world.until(lambda: world.view.shows(ACTIONS.name, APP, 8))
        assert await world.view.action(APP) == action(plan(2))
        await world.until(lambda: world.view.shows(POLICIES.name, APP, 7))
        assert await world.view.policy(APP) == policy(version=7)
    assert not await world.view.shows(POLICIES.name, APP, 8)


async def test_nothing_is_answered_before_a_partition_was_read(world: LogWorld) -> None:
    """Neither that there is a policy, nor that there is none; a view that was complete stays readable while another
    replica reads it again."""
    knowledge = world.replica()
    for read in (world.view.policy(APP), world.view.policies(), world.view.action(APP), knowledge.check_complete()):
        with pytest.raises(Incomplete, match="being read from the log"):
            await read
    await world.run(knowledge)
    await knowledge.check_complete()
    world.store.full = True
    async with world.running() as lines:
        await world.until(lambda: _logged(lines, "store-full"))
        assert await world.view.policy(APP) == policy()
        assert await world.view.policy(OTHER) is None
        await knowledge.check_complete()


async def _logged(lines: list[dict[str, object]], event: str) -> bool:
    return any(line["event"] == event for line in lines)


async def test_an_unreadable_decision_changes_nothing(world: LogWorld) -> None:
    """Neither when it is read from the beginning nor afterwards: what was in force before it stays so."""
    await world.bus.publish(POLICIES.name, APP, b"{", {VERSION_HEADER: "9"})
    await world.run()
    assert await world.view.policy(APP) == policy()
    async with world.running():
        await world.until(world.is_applied)
        await world.bus.publish(POLICIES.name, APP, b"[]", {VERSION_HEADER: "10"})
        await world.until(world.is_applied)
    assert await world.view.policy(APP) == policy()


async def test_what_cannot_be_read_is_held(world: LogWorld) -> None:
    """The topics have nothing but unreadable records of an application's policy and action, as after a change of the
    keys, or when somebody wrote one and compaction removed what was before it: what the store has stays, and so does what
    follows from it, and it is requested again."""
    await world.act(action(plan(1)), 2)
    await world.send(observation(1))
    await world.run()
    for topic in (POLICIES, ACTIONS):
        log = world.bus.log[topic.name, world.view.partition(APP)]
        log[:] = [dataclasses.replace(record, value=b"{}") for record in log]
    same = next(name for i in range(60) if world.view.partition(name := f"shop/n{i}") == world.view.partition(APP))
    await world.decide(policy(same, version=9))
    await world.act(action(plan(1, application=same)), 9)
    await world.send(observation(2))
    await world.run()
    assert (await world.view.policy(APP), await world.view.action(APP)) == (policy(), action(plan(1)))
    assert (await world.newest()).observation == observation(2)
    assert world.ends() == []
    assert {(each.kind, each.application, each.again) for each in world.requested} == {
        ("put", APP, 1),
        ("action", APP, 2),
    }


async def test_garbage_behind_a_deletion_holds_nothing(world: LogWorld) -> None:
    """The policy and its action were deleted while nobody read, and somebody wrote to their keys then."""
    await world.act(action(plan(1)), 2)
    await world.run()
    await world.delete(5)
    for topic in (POLICIES, ACTIONS):
        await world.bus.publish(topic.name, APP, b"{")
    await world.run()
    assert (await world.view.policies(), await world.view.action(APP)) == ([], None)
    assert world.requested == []


async def test_a_version_that_no_decider_gave_counts_for_none(world: LogWorld) -> None:
    """Somebody writes one far ahead of all clocks: what is decided afterwards is not shown before it is there."""
    ahead = int((NOON + timedelta(days=3)).timestamp() * 1000)
    await world.decide(policy(OTHER, version=ahead))
    await world.run()
    async with world.running():
        await world.until(world.is_applied)
        await world.decide(policy(OTHER, version=ahead + 1))
        await world.until(world.is_applied)
    assert not await world.view.shows(POLICIES.name, OTHER, 2)
    await world.decide(policy(OTHER, version=4))
    await world.run()
    assert await world.view.shows(POLICIES.name, OTHER, 4)
    assert world.requested == []


async def test_an_application_ends_with_its_policy(world: LogWorld) -> None:
    """Its end is published, dated by the deletion and after its newest message, and stands in the feed; state, history
    and action are gone. What was still on its way changes nothing."""
    scale = plan(1, 4)
    await world.send(observation(1), analysis(1), scale)
    await world.act(action(scale), 2)
    async with world.running():
        await world.until(world.is_applied)
        world.clock.advance(3600)
        await world.delete(version=int((NOON + timedelta(minutes=1)).timestamp() * 1000))
        await world.until(lambda: _ended(world))
        await world.until(world.is_applied)
        await world.send(observation(2, status="ended"), analysis(1.5), plan(1.5), outcome(scale, "verified"))
        await world.until(world.is_applied)
    (end,) = [each for each in world.ends() if each["message"] == "its policy was deleted"]
    assert end["observed_at"] == "2026-01-01T12:01:00Z"
    assert await world.view.applications() == []
    assert (await world.view.action(APP), await world.store.history(APP)) == (None, [])
    assert await world.kinds() == ["observation", "analysis", "plan", "observation"]
    event = (await world.store.events("0"))[-1]
    assert json.loads(event.data) == end


async def _ended(world: LogWorld) -> bool:
    return bool(world.ends())


async def test_an_end_is_later_than_all_that_is_known(world: LogWorld) -> None:
    """The clocks of monitor and brokers differ: readers would ignore an end that is older than the newest message."""
    await world.send(observation(100))
    await world.run()
    await world.delete(version=int(NOON.timestamp() * 1000))
    await world.run()
    (end,) = world.ends()
    assert end["observed_at"] == (at(100) + timedelta(milliseconds=1)).isoformat().replace("+00:00", "Z")


async def test_a_policy_that_comes_back_begins_anew(world: LogWorld) -> None:
    """Deleted and written again in one batch: one end, no history of before, and late messages of the first one do not
    count for the second."""
    await world.send(observation(1), plan(1, 4))
    async with world.running():
        await world.until(world.is_applied)
    await world.delete(version=5)
    await world.decide(policy(version=6))
    await world.send(observation(2), observation(3, policy=policy(version=6)))
    await world.run()
    assert len(world.ends()) == 1
    assert await world.view.policy(APP) == policy(version=6)
    assert (await world.newest()).observation == observation(3, policy=policy(version=6))


async def test_a_deletion_that_nobody_read_ends_its_application(world: LogWorld) -> None:
    """Knowledge was away for longer than a tombstone is kept: it is in neither log nor store, and must not stay in
    force. The policy of an application whose policy nobody stored is known from its newest message."""
    await world.decide(policy(OTHER, version=2))
    await world.send(observation(1), observation(1, OTHER), analysis(1, OTHER))
    await world.run()
    del world.store.documents["policy", OTHER]
    for application in (APP, OTHER):
        world.lose(POLICIES, 1, application)
    world.clock.advance(2 * 86_400)
    others = [name for name in (f"shop/n{i}" for i in range(20)) if name not in (APP, OTHER)]
    await world.decide(*(policy(name, version=9 + i) for i, name in enumerate(others)))
    await world.run()
    assert {each.application for each in await world.view.policies()} == {*others}
    assert {*await world.view.applications()} == {*others}
    assert sorted(each["application"] for each in world.ends()) == [APP, OTHER]


async def test_a_refused_end_stops_nothing(world: LogWorld) -> None:
    """The brokers never accept it: the application is forgotten all the same, with a line in the log."""
    await world.send(observation(1))
    await world.run()
    await world.delete(version=5)
    world.bus.refuses = lambda record: record.topic == OBSERVATIONS.name
    lines = await world.run()
    assert await world.view.applications() == []
    assert [line["application"] for line in lines if line["event"] == "end-refused"] == [APP]


async def test_a_message_may_be_faster_than_its_policy(world: LogWorld) -> None:
    """The policy stands in the log, but not yet in what was read: the message waits until it was read to its end. One
    without a policy there is dropped, once."""
    knowledge = world.replica()
    async with world.running(knowledge) as lines:
        await world.until(world.is_applied)
        world.clock.advance(1)
        hidden = world.bus.log.pop((POLICIES.name, world.view.partition(OTHER)), [])
        await world.decide(policy(OTHER, version=7))
        fast = world.bus.log.pop((POLICIES.name, world.view.partition(OTHER)))
        world.bus.log[POLICIES.name, world.view.partition(OTHER)] = hidden
        await world.send(observation(1, "shop/nobody", policy=policy("shop/nobody", version=99)), observation(1))
        await world.until(lambda: world.has("observation"))
        await world.until(world.is_applied)
        await asyncio.sleep(0)
        log = world.bus.log[POLICIES.name, world.view.partition(OTHER)]
        log.extend(dataclasses.replace(record, offset=len(log) + n) for n, record in enumerate(fast))
        await world.send(observation(1, OTHER, policy=policy(OTHER, version=7)))
        await world.until(lambda: _stored(world, OTHER))
        await world.until(world.is_applied)
    assert (await world.newest(OTHER)).observation == observation(1, OTHER, policy=policy(OTHER, version=7))
    assert await world.view.applications() == [APP, OTHER]
    late = [line["kinds"].get("late", 0) for line in lines if line["event"] == "remembered"]
    assert sum(late) == 1


async def _stored(world: LogWorld, application: str) -> bool:
    return await world.view.state(application) is not None


async def test_an_emptied_store_is_read_from_the_beginning(world: LogWorld) -> None:
    """Policies, actions, states, histories and the feed, as far as the topics have them; nothing is published for it."""
    scale = plan(2, 4)
    flying = outcome(scale, "applying", action=action(scale, version=3))
    await world.send(observation(1), analysis(1), plan(1), observation(2), analysis(2), scale, flying)
    await world.act(action(scale, version=3), 4)
    await world.run()
    before = (await world.state(), await world.newest(), await world.store.history(APP), dict(world.store.positions))
    published = sum(len(records) for records in world.bus.log.values())
    world.store.empty()
    await world.run()
    assert before == (await world.state(), await world.newest(), await world.store.history(APP), world.store.positions)
    assert await world.view.action(APP) == action(scale, version=3)
    assert sum(len(records) for records in world.bus.log.values()) == published


async def test_a_store_that_is_emptied_under_a_running_replica_is_noticed(world: LogWorld) -> None:
    """With a message and without one, which a partition with idle applications waits for in vain."""
    await world.send(observation(1), plan(1))
    async with world.running():
        await world.until(world.is_applied)
        world.store.empty()
        await world.send(observation(2))
        await world.until(world.is_applied)
        assert (await world.newest()).observation == observation(2)
        assert (await world.newest()).plan == plan(1)
        world.store.empty()
        await world.until(world.is_applied)
        assert await world.view.policy(APP) == policy()


async def test_what_only_the_view_has_is_requested_again(world: LogWorld) -> None:
    """A broker lost the end of its disk: a changed policy, a new one, a deletion and an action. The log's own word holds
    until they are decided again; what was learned of the applications stays."""
    neighbours = [f"shop/n{i}" for i in range(60)]
    same = [name for name in neighbours if world.view.partition(name) == world.view.partition(APP)]
    deleted, new = same[:2]
    await world.decide(policy(deleted, version=2))
    await world.send(observation(1), observation(1, deleted))
    await world.run()
    scale = plan(1, 4)
    await world.decide(policy(version=3, mode="act"))
    await world.delete(4, deleted)
    await world.decide(policy(new, version=5))
    await world.act(action(scale, version=6), 6)
    await world.send(observation(1, new, policy=policy(new, version=5)))
    await world.run()
    assert len(world.ends()) == 1
    world.lose(POLICIES, 3)
    world.lose(ACTIONS, 2)
    await world.run()
    found = {(each.kind, each.application): each for each in world.requested}
    assert found.keys() == {("put", APP), ("put", new), ("delete", deleted), ("action", APP)}
    assert {key: (each.expected, each.again) for key, each in found.items()} == {
        ("put", APP): (1, 3),
        ("put", new): (0, 5),
        ("delete", deleted): (2, 5),
        ("action", APP): (0, 6),
    }
    assert found["put", APP].policy == policy(version=3, mode="act")
    assert found["action", APP].action == action(scale, version=6)
    assert await world.view.policy(APP) == policy()
    assert (await world.newest(new)).observation is not None
    assert len(world.ends()) == 1
    await world.run()
    assert len(world.requested) == 4


async def test_what_was_lost_before_newer_decisions_is_requested_again(world: LogWorld) -> None:
    """The log lost a policy and a change of another one, and has grown beyond the view since: the versions of each show
    it, as long as a deletion would still be there."""
    neighbours = [f"shop/n{i}" for i in range(60)]
    lost, grown = [name for name in neighbours if world.view.partition(name) == world.view.partition(APP)][:2]
    await world.decide(policy(version=2, mode="act"), policy(lost, version=3))
    await world.send(observation(1, lost, policy=policy(lost, version=3)))
    await world.run()
    world.lose(POLICIES, 2)
    await world.decide(policy(grown, version=9))
    await world.run()
    found = {each.application: (each.kind, each.expected, each.again) for each in world.requested}
    assert found == {APP: ("put", 1, 2), lost: ("put", 0, 3)}
    assert world.ends() == []
    assert (await world.newest(lost)).observation is not None


async def test_a_log_that_is_cut_while_it_is_followed_is_read_again(world: LogWorld) -> None:
    """The brokers lost the end of a partition, and give its place to another decision."""
    async with world.running() as lines:
        await world.decide(policy(version=2), policy(version=3, mode="act"))
        await world.until(lambda: world.view.shows(POLICIES.name, APP, 3))
        world.lose(POLICIES, 2)
        consumer = world.bus.groups[GROUP].members[0]
        consumer.positions[POLICIES.name, world.view.partition(APP)] = 1  # as Kafka's reader is set back
        await world.decide(policy(version=9))
        await world.until(lambda: world.view.shows(POLICIES.name, APP, 9))
        await world.until(world.is_applied)
    assert await world.view.policy(APP) == policy(version=9)
    assert await _logged(lines, "cut-log")


async def test_messages_that_were_cut_need_no_care(world: LogWorld) -> None:
    """The topic of observations is shorter than the view's position: what follows is stored, and nothing twice."""
    await world.send(observation(1), observation(2), observation(3))
    await world.run()
    world.lose(OBSERVATIONS, 2)
    await world.send(observation(4))
    async with world.running():
        await world.until(lambda: _observed(world, 4))
    assert len(await world.kinds()) == 4


async def _observed(world: LogWorld, cycle: float) -> bool:
    return (await world.newest()).observation == observation(cycle)


async def test_the_end_of_an_action_is_known_by_its_outcome(world: LogWorld) -> None:
    """The executor could not write that its action ended: that is requested by the outcome. What is older, or another
    action's end, requests nothing; nor does one that an earlier holder of the partition publishes late."""
    begun = action(plan(1, 2), version=3, phase="verifying")
    ended = begun.model_copy(update={"version": 4, "phase": "verified"})
    other = action(plan(2, 3), version=9, phase="verified")
    await world.act(begun, 2)
    await world.send(observation(1), analysis(1), plan(1, 2))
    await world.run()
    await world.send(outcome(plan(1, 2), "verifying", action=begun), outcome(plan(2, 3), "verified", 2, action=other))
    await world.run()
    assert world.requested == []
    await world.send(outcome(plan(1, 2), "verified", 20, action=ended, epoch=2))
    await world.send(outcome(plan(1, 2), "failed", 30, action=ended.model_copy(update={"version": 5}), epoch=1))
    await world.run()
    (request,) = world.requested
    assert (request.kind, request.action, request.expected, request.again) == ("action", ended, 3, None)


async def test_an_earlier_holders_late_outcome_changes_nothing(world: LogWorld) -> None:
    """It comes after the new holder's, with a later time: neither now nor when it is read again."""
    scale = plan(1, 4)
    owned, late = outcome(scale, "verifying", epoch=2, sequence=5), outcome(scale, "failed", 99, epoch=1, sequence=7)
    await world.send(scale, owned, late)
    await world.run()
    assert (await world.newest()).outcome == owned
    world.store.empty()
    await world.run()
    assert (await world.newest()).outcome == owned


async def test_replicas_share_the_partitions(world: LogWorld) -> None:
    """Each application is applied by one of them, and by the other one once the first has gone."""
    names = [f"shop/a{i}" for i in range(8)]
    await world.decide(*(policy(name, version=i + 2) for i, name in enumerate(names)))
    first, second = world.replica(), world.replica()
    async with world.running(second):
        async with world.running(first):
            await world.until(world.is_applied)
            await world.send(*(observation(1, name) for name in names))
            await world.until(world.is_applied)
            assert {*first._owned} | {*second._owned} == {0, 1, 2, 3}
            assert not {*first._owned} & {*second._owned}
        await world.send(*(observation(2, name) for name in names))
        await world.until(world.is_applied)
    assert len(await world.kinds()) == 2 * len(names)
    assert [each.application for each in await world.view.policies()] == sorted([APP, *names])


async def test_all_topics_of_the_loop_are_read() -> None:
    """Each with the kind of its messages."""
    assert [kind for _, kind in READ.values()] == ["observation", "analysis", "plan", "outcome"]
