"""The decider on the memory bus and on the log in SQLite, and what only in memory can be made to happen at a certain moment."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.knowledge.builders import APP, policy
from tests.unit.knowledge.decider_suite import (
    OTHER,
    THIRD,
    DeciderSuite,
    answers,
    change,
    put,
    records,
    replica,
    shown,
    target,
    until,
)
from weir_contracts.topics import CHANGES, DEAD_LETTERS, POLICIES
from weir_knowledge.change_log import ChangeLog
from weir_knowledge.decider import Decider
from weir_knowledge.decisions import with_metadata
from weir_knowledge.store import StoreUnavailable
from weir_runtime.access import Problem
from weir_runtime.bus import VERSION_HEADER, Bus, SignedBus
from weir_runtime.clock import FakeClock, SystemClock
from weir_runtime.local_bus import LocalConsumer, LocalTransactions
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.reading import DeadLetters
from weir_runtime.service import topic_specs
from weir_runtime.sqlite_bus import SqliteBus
from weir_runtime.sqlite_file import SqliteFile


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    await bus.start()
    yield bus
    await bus.close()


class TestMemoryDecider(DeciderSuite):
    """The promises."""


class TestSignedDecider(DeciderSuite):
    """The same with signatures."""

    @pytest.fixture
    async def bus(self) -> AsyncIterator[Bus]:
        bus = SignedBus(MemoryBus(), [b"a-key-of-thirty-two-characters-or-more"])
        await bus.start()
        yield bus
        await bus.close()


class TestSqliteDecider(DeciderSuite):
    """The same on the log of one process."""

    @pytest.fixture
    async def bus(self, tmp_path: Path) -> AsyncIterator[Bus]:
        file = SqliteFile.open(tmp_path / "weir.db", SystemClock())
        bus = SqliteBus(file)
        await bus.ensure_topics(topic_specs(partitions=1))
        yield bus
        await bus.close()
        file.close()


async def test_an_unsigned_request_is_not_decided() -> None:
    """It is a dead letter, and an unsigned answer answers nobody."""
    brokers = MemoryBus()
    bus = SignedBus(brokers, [b"a-key-of-thirty-two-characters-or-more"])
    forger = ChangeLog(brokers, shown)
    await forger.request([put()])
    async with replica(bus) as here:
        assert (await here.log.submit(change("pause"))).refused == "missing"
    assert len(brokers.records(DEAD_LETTERS.name)) == 1
    assert brokers.records(POLICIES.name) == []


def members(bus: MemoryBus) -> list[LocalConsumer]:
    return list(bus.groups["weir-knowledge-decider"].members)


async def test_an_owner_that_does_not_know_of_its_loss_decides_nothing(bus: MemoryBus) -> None:
    """It was paused while the group gave its partition to the other one: what both have received is decided once, and the old one
    joins again."""
    async with replica(bus) as old:
        await until(lambda: old.decider.decides)
        await old.log.submit(put())
        (member,) = members(bus)
        async with replica(bus) as new:
            bus.expire(member)
            assert old.decider.decides, "it does not know yet"
            request = put(OTHER, job="b")
            assert (await new.log.submit(request)).refused is None
            await until(lambda: len(members(bus)) == 2)
            assert (await old.log.submit(put(THIRD, job="c"))).refused is None
        assert len(await answers(bus, request.id)) == 1
    assert sorted(str(r.key) for r in bus.records(POLICIES.name)) == sorted([APP, OTHER, THIRD])


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_decider_that_dies_around_its_commit_decides_once(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """In its transaction, which is aborted, or behind it, before it knows: the request has one decision and its caller an
    answer."""
    commit, dies = LocalTransactions.commit, iter([True])

    async def interrupted(self: LocalTransactions, *given: Any) -> None:
        is_now = next(dies, False)
        if not is_now or moment == "after":
            await commit(self, *given)
        if is_now:
            raise RuntimeError("the process dies")

    monkeypatch.setattr(LocalTransactions, "commit", interrupted)
    async with replica(bus) as here:
        request = put()
        answer = await here.log.submit(request)
        following = await here.log.submit(put(OTHER, job="b"))
    assert await answers(bus, request.id) == [answer]
    assert len(bus.records(POLICIES.name)) == 2
    assert (following.version or 0) > (answer.version or 0) > 0


async def test_a_request_for_which_nobody_waits_is_refused(bus: MemoryBus) -> None:
    """Its caller got 503 long ago, and may have done the opposite since; what a view requests again does not expire."""
    clock = FakeClock()
    late = MemoryBus(clock=clock)
    asking = ChangeLog(late, shown)
    old, again = put(), put(OTHER, job="b", again=5)
    await asking.request([old, again])
    clock.advance(31.0)
    decider, stop = Decider(late, clock, DeadLetters(late, "knowledge", clock)), Stop()
    running = asyncio.create_task(decider.run(stop))
    await until(lambda: len(late.records(CHANGES.name)) == 4)
    stop.request("test")
    await running
    assert [each.refused for each in await answers(late, old.id)] == ["expired"]
    assert [each.refused for each in await answers(late, again.id)] == [None]


async def test_a_change_that_the_brokers_refuse_keeps_no_other_waiting(bus: MemoryBus) -> None:
    """Requests were accepted, but the decision is larger: its caller gets 422, and the changes around it are decided."""
    bus.refuses = lambda record: record.topic == POLICIES.name and record.key == OTHER
    async with replica(bus) as here:
        await until(lambda: here.decider.decides)
        requests = [put(), put(OTHER, job="b"), put(THIRD, job="c")]
        found = await asyncio.gather(*map(here.log.submit, requests))
    assert [each.refused for each in found] == [None, "unwritable", None]


async def test_a_request_that_the_brokers_refuse_is_the_callers_error(bus: MemoryBus) -> None:
    """422 with the brokers' reason."""
    bus.refuses = lambda record: record.topic == CHANGES.name
    async with replica(bus) as here:
        with pytest.raises(Problem, match="refuse the change of shop/orders") as refused:
            await here.log.submit(put())
    assert refused.value.status == 422


async def test_while_the_brokers_are_away_a_change_is_refused_at_once(bus: MemoryBus) -> None:
    """With a sentence that says what is known; afterwards the same request is decided."""
    async with replica(bus) as here:
        await here.log.submit(put())
        bus.break_down()
        with pytest.raises(Problem, match="the brokers are away; it is not known") as refused:
            await here.log.submit(change("pause"))
        assert refused.value.status == 503
        bus.mend()
        assert (await here.log.submit(change("pause"))).refused is None


@pytest.mark.parametrize("problem", [None, StoreUnavailable("redis: away")], ids=["behind", "away"])
async def test_a_view_that_stands_still_is_said(bus: MemoryBus, problem: Exception | None) -> None:
    """The change is decided, and the sentence says its version: the store is behind, or went away meanwhile."""

    async def behind(_topic: str, _application: str, _version: int) -> bool:
        if problem is not None:
            raise problem
        return False

    async with replica(bus) as here:
        await until(lambda: here.decider.decides)
        slow, stop = ChangeLog(bus, behind, 0.3), Stop()
        running = asyncio.create_task(slow.run(stop))
        with pytest.raises(Problem, match=r"the store does not show .* it is in force as version \d+"):
            await slow.submit(put())
        stop.request("test")
        await running


async def test_a_position_beyond_the_end_goes_on_at_the_end(bus: MemoryBus) -> None:
    """The topic lost its tail: what it still has was decided, and a newer request is decided as usual."""
    async with replica(bus) as here:
        for _ in range(3):
            await here.log.submit(change("pause"))
        await here.log.submit(put())
    del bus.log[CHANGES.name, 0][2:]
    async with replica(bus) as here:
        await until(lambda: here.decider.decides)
        again = await here.log.submit(put())
        assert (again.refused, again.version) == (None, None)
    assert len(await records(bus, POLICIES.name)) == 1


async def test_versions_go_on_above_what_the_topics_lost(bus: MemoryBus) -> None:
    """The newest version is committed with the position: a plan for a lost policy fits none that comes later."""
    clock = FakeClock()
    ahead = MemoryBus(clock=clock)
    clock.advance(timedelta(days=1).total_seconds())

    async def decided(name: str) -> int:
        decider, stop = Decider(ahead, clock, DeadLetters(ahead, "knowledge", clock)), Stop()
        running = asyncio.create_task(decider.run(stop))
        request = put(name, job=name.replace("/", "-"))
        await ChangeLog(ahead, shown).request([request])
        await until(lambda: any(r.key == name for r in ahead.records(POLICIES.name)))
        stop.request("test")
        await running
        (answer,) = await answers(ahead, request.id)
        return answer.version or 0

    first = await decided(APP)
    for partition in range(ahead.count(POLICIES.name)):
        ahead.log[POLICIES.name, partition].clear()
    assert await decided(OTHER) == first + 1


async def test_what_a_view_requests_again_is_decided_by_the_log_alone(bus: MemoryBus) -> None:
    """The brokers lost a policy that the decider remembers: it reads the log once more, and writes what the view has."""
    async with replica(bus) as here:
        written = await here.log.submit(put())
        for partition in range(bus.count(POLICIES.name)):
            bus.log[POLICIES.name, partition].clear()
        again = put(again=written.version)
        answer = await here.log.submit(again)
        assert (answer.refused, answer.was_created) == (None, True)
        assert (await here.log.submit(put(again=written.version))).refused == "conflict"
    assert [r.key for r in bus.records(POLICIES.name)] == [APP]


@pytest.mark.parametrize("ahead_seconds", [-3600.0, 3600.0])
async def test_a_clock_that_is_wrong_refuses_nothing_that_just_came(ahead_seconds: float) -> None:
    """The deciding replica's clock is an hour away from the brokers': a request that it received as it was written has not
    waited."""
    brokers, own = FakeClock(), FakeClock()
    own.advance(7200.0)
    brokers.advance(7200.0 - ahead_seconds)
    bus = MemoryBus(clock=brokers)
    decider, stop = Decider(bus, own, DeadLetters(bus, "knowledge", own)), Stop()
    running = asyncio.create_task(decider.run(stop))
    await until(lambda: decider.decides)
    await asyncio.sleep(0.01)  # it has read to the end
    request = put()
    await ChangeLog(bus, shown).request([request])
    await until(lambda: bus.records(POLICIES.name))
    stop.request("test")
    await running
    assert [each.refused for each in await answers(bus, request.id)] == [None]


async def test_a_version_that_no_decider_gave_is_no_beginning(bus: MemoryBus) -> None:
    """Another program wrote a record of the year 2090: decisions have versions of today."""
    forged = policy(OTHER, application=target("forged"))
    body = forged.model_dump_json(exclude_unset=True).encode()
    await bus.publish(POLICIES.name, OTHER, body, {VERSION_HEADER: "3800000000000"})
    async with replica(bus) as here:
        answer = await here.log.submit(put())
        assert answer.version is not None
        assert abs(answer.version / 1000 - SystemClock().now().timestamp()) < 3600
        assert (await here.log.submit(change("delete", OTHER))).refused is None


async def test_a_decider_that_cannot_read_ends_at_once(bus: MemoryBus) -> None:
    """The brokers go away while it takes over, and then it is stopped: it does not wait for them."""
    async with replica(bus) as here:
        await until(lambda: here.decider.decides)
        fence = LocalTransactions.fence

        async def then_away(self: LocalTransactions) -> None:
            await fence(self)
            bus.break_down()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalTransactions, "fence", then_away)
            bus.expire(members(bus)[0])
            await until(lambda: bus.broken)
        stopped_at = SystemClock().monotonic()
    assert SystemClock().monotonic() - stopped_at < 3.0


async def test_what_another_program_wrote_is_known_when_its_owner_changes_it(bus: MemoryBus) -> None:
    """The view shows a record that the decider did not write: its owner's next change replaces that, and is no `conflict` or
    `unchanged` by what the decider remembers."""
    async with replica(bus) as here:
        own = await here.log.submit(put())
        version = (own.version or 0) + 1000
        wide = put(job="wide").policy
        assert wide is not None
        forged = with_metadata(wide, version=version)
        headers = {VERSION_HEADER: str(version)}
        await bus.publish(POLICIES.name, APP, forged.model_dump_json(exclude_unset=True).encode(), headers)
        answer = await here.log.submit(put(expected=version, seen=version))
        assert answer.refused is None and (answer.version or 0) > version


async def test_a_view_that_is_behind_costs_no_take_over(bus: MemoryBus) -> None:
    """A caller read the policy a decision ago: the decider remembers what it decided, and reads nothing."""
    async with replica(bus) as here:
        first = await here.log.submit(put())
        await here.log.submit(change("pause"))
        fenced = dict(bus.epochs)
        answer = await here.log.submit(change("resume", seen=first.version))
        assert answer.refused is None
        assert (await here.log.submit(change("delete", seen=None))).refused is None
        assert bus.epochs == fenced
