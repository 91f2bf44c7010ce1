"""One publisher of policies: a late, paused or replaced one restores no changed or deleted policy."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.unit.knowledge.builders import APP, NOON, at, letters, observation, policy
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.runtime.memory_lease import MemoryGroup, MemoryLease
from weir_analyzer.core import advance
from weir_contracts import Observation, ScalingPolicy
from weir_contracts.base import MAX_ORDER
from weir_contracts.topics import OBSERVATIONS, POLICIES
from weir_knowledge.core import HistoryLimits, State, remember
from weir_knowledge.policy_changes import PlannerCatalogue, PolicyChanges
from weir_knowledge.publisher import _OUTBOX as OUTBOX
from weir_knowledge.publisher import REFUSED_PAUSE_SECONDS, PolicyPublisher
from weir_knowledge.service import Knowledge
from weir_knowledge.store import StoreUnavailable, VersionConflict
from weir_runtime.access import Caller, Problem
from weir_runtime.bus import MAX_VERSION, Bus, Record, SignedBus, version_of
from weir_runtime.clock import FakeClock
from weir_runtime.lease import Terms
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import GlobalTable, decode, encode

TERMS = Terms("publisher", lease_seconds=10.0, standby_seconds=float("inf"))
WRITER = Caller("somebody", frozenset({"write"}))


class SlowBus:
    """A process's way to the brokers. `pause` lets its next record of a policy wait where it is: checked, and not sent."""

    def __init__(self, bus: Bus) -> None:
        self.inner: Bus = bus
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self.sends = asyncio.Event()

    def pause(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    async def publish(self, topic: str, *record: Any) -> None:
        if topic == POLICIES.name:
            self.sends.set()
            await self._goes_on.wait()
        await self.inner.publish(topic, *record)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Process:
    """A replica of knowledge, of which only what publishes is alive."""

    def __init__(self, house: "House", name: str) -> None:
        self.bus = SlowBus(house.bus)
        self.lease = MemoryLease(house.group, name)
        self.lease.open()
        self.rebuilt = asyncio.Event()
        self.rebuilt.set()
        self.publisher = PolicyPublisher(
            self.bus, house.store, house.clock, lambda: self.lease, TERMS, rebuilt=self.rebuilt
        )


class House:
    def __init__(self) -> None:
        self.clock = FakeClock(NOON)
        self.bus = MemoryBus(partitions=4, clock=self.clock)
        self.store = MemoryStore()
        self.group = MemoryGroup(self.clock, TERMS)
        self.first, self.second = Process(self, "first"), Process(self, "second")
        self.read_from: Bus = self.bus
        """The bus of consumers."""

    def sign(self) -> None:
        """Give the loop a key."""
        self.read_from = SignedBus(self.bus, [b"k" * 32])
        for process in (self.first, self.second):
            process.bus.inner = self.read_from

    async def paused_while_it_sends(self) -> "asyncio.Task[int]":
        """The first process stops with a policy in its hands; after its lease the second holds it."""
        self.first.bus.pause()
        sending = asyncio.create_task(self.first.publisher.publish())
        await asyncio.wait_for(self.first.bus.sends.wait(), 5)
        self.first.lease.alive = False
        self.clock.advance(TERMS.lease_seconds + 1)
        return sending

    async def woken(self, sending: "asyncio.Task[int]") -> None:
        """It goes on where it was."""
        self.first.lease.alive = True
        self.first.bus.go_on()
        await sending

    def topic(self) -> list[tuple[int, bool]]:
        """Version of each record of the application's policy, and whether it has a value."""
        return [(v.number, r.value is not None) for r in self._records() if (v := version_of(r.headers)) is not None]

    def _records(self) -> list[Record]:
        return [record for record in self.bus.records(POLICIES.name) if record.key == APP]

    async def compact(self) -> None:
        """Leave the last record of the policy alone, as Kafka may do at any time."""
        last = self._records()[-1]
        self.bus = MemoryBus(partitions=4, clock=self.clock)
        await self.bus.publish(POLICIES.name, APP, last.value, last.headers)

    async def seen_by_the_executor(self) -> dict[str, ScalingPolicy]:
        table = GlobalTable[ScalingPolicy](self.read_from, POLICIES.name, lambda r: decode(r, ScalingPolicy).message)
        while not table.ready:
            await table.step(0)
        return table.latest

    async def rebuilt(self) -> dict[str, str]:
        """Mode of each policy in a store that was emptied and brought back."""
        store = MemoryStore()
        await Knowledge(
            self.read_from,
            store,
            self.clock,
            HistoryLimits(),
            letters(self.bus, self.clock),
            rebuild_seconds=5.0,
        ).rebuild()
        return {found.application: found.spec.mode for found in await store.policies()}

    def ends(self) -> list[Observation]:
        found = [decode(r, Observation).message for r in self.bus.records(OBSERVATIONS.name)]
        return [each for each in found if each.status == "ended"]


@pytest.fixture
async def house() -> House:
    return House()


async def test_one_of_two_publishes(house: House) -> None:
    """The holder of the lease; the other replica after it, in a later epoch."""
    await house.store.put_policy(policy(version=1), 0)
    assert await house.second.publisher.publish() == 0
    assert await house.first.publisher.publish() == 1
    house.first.lease.close()
    await house.store.put_policy(policy(version=2), 1)
    assert await house.first.publisher.publish() == 0
    assert await house.second.publisher.publish() == 1
    epochs = [version_of(r.headers) for r in house.bus.records(POLICIES.name)]
    assert epochs == [(1, 1), (2, 2)]


async def test_a_publisher_paused_in_mid_send_does_not_undo_a_pause(house: House) -> None:
    """[act v1, paused v2, act v1]: consumers stay at v2, an emptied store is restored with v2, and v2 is soon the
    topic's last record."""
    await house.store.put_policy(policy(version=1, mode="act"), 0)
    sending = await house.paused_while_it_sends()
    await house.store.put_policy(policy(version=2, mode="paused"), 1)
    await house.second.publisher.publish()
    await house.woken(sending)
    assert house.topic() == [(1, True), (2, True), (1, True)]
    assert (await house.seen_by_the_executor())[APP].spec.mode == "paused"
    assert await house.rebuilt() == {APP: "paused"}
    with capture_logs() as lines:
        assert await house.second.publisher.publish() == 1
    assert [line["event"] for line in lines] == ["published-too-late"]
    assert house.topic()[-1] == (2, True)
    assert await house.second.publisher.publish() == 0
    assert await house.first.publisher.publish() == 0


async def test_a_publisher_paused_in_mid_send_does_not_undo_a_deletion(house: House) -> None:
    """[v1, tombstone, v1]: the same, and where compaction has left the late record alone."""
    await house.store.put_policy(policy(version=1, mode="act"), 0)
    sending = await house.paused_while_it_sends()
    await house.store.delete_policy(APP, 1, 2)
    await house.second.publisher.publish()
    await house.woken(sending)
    assert house.topic() == [(1, True), (2, False), (1, True)]
    assert await house.seen_by_the_executor() == {}
    assert await house.rebuilt() == {}
    house.second.lease.close()
    await house.compact()
    third = Process(house, "third")
    house.first.lease.close()
    assert await third.publisher.publish() == 1
    assert house.topic() == [(1, True), (2, False)]
    assert await house.seen_by_the_executor() == {}
    assert await house.rebuilt() == {}


async def test_an_entry_is_left_to_the_next_holder(house: House) -> None:
    """The lease goes between two records: what follows is not sent, and the other sends it."""
    await house.store.put_policy(policy(version=1), 0)
    await house.store.put_policy(policy(version=2), 1)
    sending = await house.paused_while_it_sends()
    assert house.second.lease.state().own is not None
    await house.woken(sending)
    assert house.topic() == [(1, True)]
    await house.second.publisher.publish()
    assert [number for number, _ in house.topic()] == [1, 2]


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_change_that_the_brokers_refuse_is_kept_and_keeps_no_other_waiting(house: House, deleted: bool) -> None:
    """The topic's limit is lower than a pause or a tombstone is large. It is named and counted as not in force, those behind
    it are published, however many are refused, and it is when the limit is raised; it is not sent in a busy loop."""
    await house.store.put_policy(policy(), None)
    await house.first.publisher.publish()
    sent: list[str] = []
    house.bus.refuses = lambda record: bool(sent.append(record.key)) or record.key != "shop/other"
    if deleted:
        await house.store.delete_policy(APP, 1)
    else:
        await house.store.put_policy(policy(version=2, mode="paused"), 1)
    refused = [APP, *(f"shop/large-{i}" for i in range(120))]
    for name in (*refused[1:], "shop/other"):
        await house.store.put_policy(policy(name), None)
    with capture_logs() as lines:
        for _ in range(3):
            await house.first.publisher.publish()
    assert [line["application"] for line in lines if line["event"] == "policy-refused"] == refused
    assert sent == [*refused, "shop/other"]
    assert await house.store.outbox_size() == len(refused)
    house.bus.refuses = lambda _record: False
    house.clock.advance(REFUSED_PAUSE_SECONDS)
    await house.first.publisher.publish()
    assert await house.store.outbox_size() == 0
    assert house.topic()[-1] == (2, not deleted)


async def test_a_newer_policy_replaces_a_refused_one(house: House) -> None:
    """Its user makes it smaller: the refused version is never sent behind it, where compaction would keep it."""
    house.bus.refuses = lambda _record: True
    await house.store.put_policy(policy(version=1), 0)
    await house.first.publisher.publish()
    house.bus.refuses = lambda _record: False
    await house.store.put_policy(policy(version=2, mode="paused"), 1)
    await house.first.publisher.publish()
    house.clock.advance(REFUSED_PAUSE_SECONDS)
    await house.first.publisher.publish()
    assert (house.topic(), await house.store.outbox_size()) == ([(2, True)], 0)


@pytest.mark.parametrize("seed", range(10))
async def test_two_writers_race(house: House, seed: int) -> None:
    """They write, pause, resume and delete one policy through two replicas, which both publish when they may; the lease
    changes hands meanwhile. Versions only grow, readers have what is stored, and so has one that finds each key's last
    record alone."""
    random = Random(seed)

    async def write(process: Process) -> None:
        changes = PolicyChanges(house.store, house.clock, PlannerCatalogue(None), lambda: None)
        for _ in range(30):
            change = random.choice(("write", "write", "pause", "resume", "delete"))
            with suppress(Problem, VersionConflict):
                if change == "write":
                    await changes.put(policy(version=0), WRITER, None)
                elif change == "delete":
                    await changes.delete(APP, WRITER, None)
                else:
                    await (changes.pause if change == "pause" else changes.resume)(APP, WRITER)
            house.clock.advance(random.choice((0.0, 0.0, 0.001, 2.0)))
            await process.publisher.publish()
            if random.random() < 0.1:
                process.lease.close()
                process.lease.open()

    await asyncio.gather(write(house.first), write(house.second))
    for process in (house.first, house.second):
        await process.publisher.publish()
    numbers = [number for number, _ in house.topic()]
    assert numbers == sorted(numbers) and len(set(numbers)) > 5
    stored = await house.store.policy(APP)
    assert await house.seen_by_the_executor() == ({} if stored is None else {APP: stored})
    await house.compact()
    assert await house.seen_by_the_executor() == ({} if stored is None else {APP: stored})


async def test_a_deletion_that_redis_lost_is_brought_back(house: House) -> None:
    """A failover cost the store its last second: the tombstone's version says what it had been."""
    await house.store.put_policy(policy(version=1, mode="act"), 0)
    await house.store.delete_policy(APP, None)
    await house.first.publisher.publish()
    lost = MemoryStore()
    await lost.put_policy(policy(version=1, mode="act"), 0)
    await lost.published(await lost.outbox())
    await Knowledge(
        house.bus,
        lost,
        house.clock,
        HistoryLimits(),
        letters(house.bus, house.clock),
        rebuild_seconds=5.0,
    ).rebuild()
    assert await lost.policies() == []


async def test_a_deletion_served_while_the_store_is_rebuilt_stays(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading of the topic and the restoring of what was read, published already."""
    await house.store.put_policy(policy(version=1, mode="act"), 0)
    await house.first.publisher.publish()
    knowledge = Knowledge(
        house.bus,
        house.store,
        house.clock,
        HistoryLimits(),
        letters(house.bus, house.clock),
        rebuild_seconds=5.0,
    )
    read = knowledge._latest

    async def deleted_meanwhile(topic: Any) -> dict[str, Record]:
        found = await read(topic)
        if topic == POLICIES and await house.store.delete_policy(APP, None):
            await house.first.publisher.publish()
        return found

    monkeypatch.setattr(knowledge, "_latest", deleted_meanwhile)
    await knowledge.rebuild()
    assert await house.store.policies() == []


async def forge(house: House, number: int, *, mode: str | None = "act", epoch: int = 0) -> None:
    """Write a record of the policy past knowledge: a forged one, or one by a replica whose clock was ahead."""
    headers = {"weir_version": str(number), "weir_epoch": str(epoch)}
    value = None
    if mode is not None:
        body = policy(version=min(number, MAX_ORDER), mode=mode)
        value, own = encode(body, type=POLICIES.type, source="x", id=uuid4(), time=NOON, traceparent="")
        headers = own | headers
    await house.bus.publish(POLICIES.name, APP, value, headers)


FUTURE = [2, 4_102_444_800_000, MAX_VERSION, MAX_VERSION + 1, 10**40, -1]


@pytest.mark.parametrize("mode", ["act", None])
@pytest.mark.parametrize("number", FUTURE)
async def test_a_record_of_somebody_else_is_undone(house: House, number: int, mode: str | None) -> None:
    """While a publisher follows the topic and after one took over, whatever version it has: consumers get the stored
    policy again, and the next change of its owner."""
    await house.store.put_policy(policy(version=1, mode="paused"), 0)
    await house.first.publisher.publish()
    await forge(house, number, mode=mode)
    await house.first.publisher.publish()
    assert (await house.seen_by_the_executor())[APP].spec.mode == "paused"
    house.first.lease.close()
    await forge(house, number + 10, mode=mode)
    await house.second.publisher.publish()
    assert (await house.seen_by_the_executor())[APP].spec.mode == "paused"
    changes = PolicyChanges(house.store, house.clock, PlannerCatalogue(None), lambda: None)
    await changes.put(policy(version=0, mode="advise"), WRITER, None)
    await house.second.publisher.publish()
    assert (await house.seen_by_the_executor())[APP].spec.mode == "advise"
    await changes.delete(APP, WRITER, None)
    await house.second.publisher.publish()
    assert await house.seen_by_the_executor() == {}


@pytest.mark.parametrize("mode", ["act", None])
@pytest.mark.parametrize("number", FUTURE)
async def test_a_record_without_a_signature_counts_for_nothing(house: House, number: int, mode: str | None) -> None:
    """The loop has a key. Consumers keep the policy, also before a publisher repairs the topic, take its owner's next
    change, and refuse an earlier one that is sent again; an emptied store is restored with the signed record."""
    house.sign()
    await house.store.put_policy(policy(version=1, mode="act"), 0)
    await house.first.publisher.publish()
    (earlier,) = house.bus.records(POLICIES.name)
    await house.store.put_policy(policy(version=2, mode="paused"), 1)
    await house.first.publisher.publish()
    await forge(house, number, mode=mode)
    await house.bus.publish(POLICIES.name, APP, earlier.value, earlier.headers)
    assert (await house.seen_by_the_executor())[APP].spec.mode == "paused"
    assert await house.rebuilt() == {APP: "paused"}
    await house.first.publisher.publish()
    assert house.topic()[-1] == (2, True)
    await house.store.put_policy(policy(version=3, mode="advise"), 2)
    await house.first.publisher.publish()
    assert (await house.seen_by_the_executor())[APP].spec.mode == "advise"


async def test_a_foreign_version_that_is_not_the_last_record_is_outbid_too(house: House) -> None:
    """A late record of the former publisher follows it: consumers obey the foreign one, not the topic's last."""
    await house.store.put_policy(policy(version=1, mode="paused"), 0)
    await house.first.publisher.publish()
    (earlier,) = house.bus.records(POLICIES.name)
    house.first.lease.close()
    await forge(house, 9)
    await house.bus.publish(POLICIES.name, APP, earlier.value, earlier.headers)
    await house.second.publisher.publish()
    assert (await house.seen_by_the_executor())[APP].spec.mode == "paused"


async def test_a_record_with_the_publishers_own_epoch_is_no_disguise(house: House) -> None:
    """Its epoch stands in each record of the topic; the same version with a later epoch is not the store's either."""
    await house.store.put_policy(policy(version=1, mode="paused"), 0)
    await house.first.publisher.publish()
    for number, epoch in ((7, 1), (8, 99)):
        await forge(house, number, epoch=epoch)
        await house.first.publisher.publish()
        assert (await house.seen_by_the_executor())[APP].spec.mode == "paused"


async def test_an_application_that_only_the_topic_knows_gets_its_owners_policy(house: House) -> None:
    """Its record has a version of a time to come, and the store has no such policy. What the owner writes then is in force."""
    await house.first.publisher.publish()
    await forge(house, 4_102_444_800_000)
    await house.first.publisher.publish()
    changes = PolicyChanges(house.store, house.clock, PlannerCatalogue(None), lambda: None)
    await changes.put(policy(version=0, mode="advise"), WRITER, None)
    await house.first.publisher.publish()
    assert (await house.seen_by_the_executor())[APP].spec.mode == "advise"
    assert [number for number, _ in house.topic()] == [4_102_444_800_000, 4_102_444_800_001]


async def test_what_a_killed_publisher_had_sent_keeps_its_version(house: House) -> None:
    """It sent two versions and was killed before it removed them from the outbox: its successor sends the newest."""
    await house.store.put_policy(policy(version=1), 0)
    await house.store.put_policy(policy(version=2), 1)
    removed, steps = house.store.published, iter((None, RuntimeError("killed")))

    async def killed(_: object) -> None:
        if error := next(steps):
            raise error

    house.store.published = killed  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="killed"):
        await house.first.publisher.publish()
    assert [number for number, _ in house.topic()] == [1, 2]
    house.store.published = removed  # type: ignore[method-assign]
    house.first.lease.close()
    await house.second.publisher.publish()
    assert house.topic()[-1] == (2, True)
    stored = await house.store.policy(APP)
    assert stored is not None and stored.metadata.version == 2
    assert await house.store.outbox() == []


async def test_what_the_topic_lost_is_published_again(house: House) -> None:
    """It was deleted with its policies, or an earlier publisher's entry has no record: its successor compares."""
    await house.store.put_policy(policy(version=1), 0)
    await house.store.published(await house.store.outbox())
    assert await house.first.publisher.publish() == 1
    assert house.topic() == [(1, True)]


async def test_nothing_is_published_before_the_store_is_rebuilt(house: House) -> None:
    """It may hold what is older than the topic. After an outage it is compared again; meanwhile the lease is another
    replica's, which may reach the store."""
    await house.store.put_policy(policy(version=1), 0)
    house.first.rebuilt.clear()
    assert await house.first.publisher.publish() == 0
    house.first.rebuilt.set()
    stop = Stop()
    running = asyncio.create_task(house.first.publisher.run(stop))
    async with asyncio.timeout(5):
        while not house.topic():  # noqa: ASYNC110 - no signal exists
            await asyncio.sleep(0.005)

        async def away(*_: object) -> None:
            raise StoreUnavailable("redis: away")

        house.store.outbox = away  # type: ignore[method-assign, assignment]
        while house.first.rebuilt.is_set():  # noqa: ASYNC110 - no signal exists
            await asyncio.sleep(0.005)
        while house.first.publisher.epoch is not None:  # noqa: ASYNC110 - no signal exists
            await asyncio.sleep(0.005)
        del house.store.outbox  # type: ignore[method-assign]
        await house.second.publisher.publish()
        assert house.second.publisher.epoch is not None
    stop.request("the test is over")
    await running


async def test_what_waits_is_counted_while_the_brokers_are_away(house: House) -> None:
    """By the holder and by the other replica: an alert looks at it."""
    await house.first.publisher.publish()
    await house.store.put_policy(policy(version=1), 0)
    house.bus.break_down()
    for process in (house.first, house.second):
        OUTBOX.set(0)
        stop = Stop()
        with capture_logs():
            running = asyncio.create_task(process.publisher.run(stop))
            async with asyncio.timeout(5):
                while REGISTRY.get_sample_value("weir_knowledge_outbox") != 1:  # noqa: ASYNC110 - no signal exists
                    await asyncio.sleep(0.005)
            stop.request("the test is over")
            await running


async def test_a_deletion_ends_its_application_without_a_monitor(house: House) -> None:
    """Behind its newest message, independent of clocks, so that no reader takes it for an old one; only once."""
    state = remember(State(application=APP), observation(100), HistoryLimits())
    await house.store.save([state], [])
    await house.store.put_policy(policy(version=1), 0)
    await house.store.delete_policy(APP, None)
    await house.first.publisher.publish()
    await house.store.publish_again(APP)
    await house.first.publisher.publish()
    (end,) = house.ends()
    assert (end.application, end.policy, end.status) == (APP, policy(version=1), "ended")
    assert end.observed_at > at(100)
    knowledge = Knowledge(
        house.bus,
        house.store,
        house.clock,
        HistoryLimits(),
        letters(house.bus, house.clock),
        rebuild_seconds=5.0,
    )
    await knowledge.take(house.bus.records(OBSERVATIONS.name))
    assert await house.store.applications() == []
    memory, _ = advance(None, observation(100))
    assert memory is not None
    assert advance(memory, end)[0] is None  # the analyzer's state goes, too
