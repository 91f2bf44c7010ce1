"""Delivery to real HTTP servers: at least once, in order, and no receiver waits for another."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.unit.knowledge.builders import APP, NOON, action, analysis, document, outcome, plan, policy
from tests.unit.knowledge.direct_log import changes_of
from tests.unit.knowledge.http_receiver import ACCEPTED, Answer, HttpReceiver
from tests.unit.knowledge.log_world import PARTITIONS, LogWorld
from tests.unit.knowledge.memory_store import MemoryStore
from tests.unit.knowledge.resources_suite import House
from tests.unit.knowledge.test_resource_policies import MemoryWorld
from weir_contracts import Outcome, parse_policy
from weir_contracts.base import Estimate
from weir_knowledge.notifications import KIND
from weir_knowledge.notifier import MAX_WAITING, REFUSAL, Notifier, RefusedPolicies, retry_after_seconds
from weir_knowledge.receivers import Receivers
from weir_knowledge.resource_policies import RETRY_SECONDS
from weir_knowledge.service import TOLD_AGAIN, Knowledge
from weir_runtime.access import Caller, Problem
from weir_runtime.clock import Clock, SystemClock
from weir_runtime.loop import Stop
from weir_runtime.reach import USUAL_TARGETS

CARTS = "carts/orders"
ADA = Caller("ada", frozenset({"write"}))


class _PausesPass(SystemClock):
    """The world's time of day, and real seconds for the pauses between attempts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()


class World(LogWorld):
    """A log, a store, and what tells receivers of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "receivers.json"

    async def until(self, condition: Callable[[], Awaitable[bool]], timeout_seconds: float = 60.0) -> None:
        """Wait for longer than for a log in memory: requests go over real sockets, also on a busy machine."""
        await super().until(condition, timeout_seconds)

    def receivers(self, **entries: Any) -> Receivers:
        """Write the file; an address alone is an entry, and `all` stands for `*`."""
        named = {"*" if name == "all" else name: each for name, each in entries.items()}
        self.path.write_text(json.dumps({n: {"url": e} if isinstance(e, str) else e for n, e in named.items()}))
        return Receivers(self.path, USUAL_TARGETS)

    def told(self, receivers: Receivers) -> Knowledge:
        replica = self.replica()
        replica.late_after = receivers.late_after
        return replica

    def notifier(self, receivers: Receivers, **options: Any) -> Notifier:
        options = {"look_seconds": 0.05, "min_pause_seconds": 0.02, "random": Random(7), **options}
        return Notifier(self.view, receivers, _PausesPass(self.clock), lambda: range(PARTITIONS), **options)

    @asynccontextmanager
    async def delivering(self, notifier: Notifier) -> AsyncIterator[list[Any]]:
        stop = Stop()
        with capture_logs() as lines:
            running = asyncio.create_task(notifier.run(stop))
            try:
                yield lines
            finally:
                stop.request("the test is over")
                await running

    async def finished(self, name: str = APP, *names: str) -> list[Outcome]:
        """Write a complete action into the log; return its outcomes."""
        scale = plan(1, 4, name)
        steps = [
            outcome(scale, phase, seconds, action=action(scale, phase=phase))
            for seconds, phase in enumerate(names or ("intended", "applying", "verifying", "verified"))
        ]
        await self.send(plan(1, 4, name), *steps)
        return steps

    async def waiting(self) -> int:
        return len(await self.store.keys(KIND))

    async def waits(self, count: int) -> bool:
        return await self.waiting() == count

    async def none_waits(self) -> bool:
        return await self.waits(0)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """Policies of two namespaces are in force, and the store has read them: what comes now is news."""
    made = World(tmp_path)
    await made.decide(policy(), policy(CARTS))
    await made.run()
    return made


def until_received(receiver: HttpReceiver, count: int) -> Callable[[], Any]:
    async def is_received() -> bool:
        return len(receiver.received) >= count

    return is_received


async def test_an_action_reaches_the_receiver_of_its_namespace(world: World, tmp_path: Path) -> None:
    """As CloudEvents, with the header of its file; once it was accepted nothing waits any more."""
    (tmp_path / "token").write_text("Bearer t0ken")
    with HttpReceiver() as shop, HttpReceiver() as others:
        entry = {"url": shop.url, "authorization_file": str(tmp_path / "token"), "source": "/weir/test"}
        receivers = world.receivers(shop=entry, all=others.url)
        await world.finished()
        await world.finished(CARTS, "rolling-back", "rolled-back")
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)):
            await world.until(world.none_waits)
    assert shop.kinds() == ["action-accepted", "action-verified"]
    assert others.kinds() == ["action-rolling-back", "action-rolled-back"]
    first = shop.received[0]
    assert (first.path, first.headers["authorization"]) == ("/hook/s3cret", "Bearer t0ken")
    assert first.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert (first.body["source"], first.body["subject"], first.body["specversion"]) == ("/weir/test", APP, "1.0")
    assert "authorization" not in others.received[0].headers


async def test_a_missed_objective_reaches_its_receiver_once(world: World) -> None:
    """Also through a restart in the middle, which goes on with the stored state."""
    with HttpReceiver() as shop:
        receivers = world.receivers(shop={"url": shop.url, "late_after": "1m"})
        for begin in (1, 10, 20):
            late = [
                analysis(cycle, lag_seconds=Estimate(value=45.0, basis="offsets")) for cycle in range(begin, begin + 9)
            ]
            await world.send(*late)
            await world.run(world.told(receivers))
            world.clock.advance(45)
        await world.send(analysis(30, lag_seconds=Estimate(value=2.0, basis="offsets")))
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)):
            await world.until(world.none_waits)
    assert shop.kinds() == ["objective-missed", "objective-met"]


async def test_what_was_there_before_a_new_store_is_no_news(world: World) -> None:
    """A Redis that lost its data reads days of outcomes again: only what lies less than ten minutes back is sent again,
    with the id that it had."""
    with HttpReceiver() as shop:
        receivers = world.receivers(shop=shop.url)
        await world.finished()
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)):
            await world.until(world.none_waits)
        world.store.empty()
        world.clock.advance(60)
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)):
            await world.until(until_received(shop, 4))
        world.store.empty()
        world.clock.advance(TOLD_AGAIN.total_seconds() + 60)
        await world.run(world.told(receivers))
    assert shop.ids()[:2] == shop.ids()[2:] and len(set(shop.ids())) == 2
    assert await world.none_waits()


async def test_what_is_read_again_twice_is_no_news_either(world: World) -> None:
    """An outcome of a deleted application lets the policies of its partition be read once more, while the log of an emptied
    store is being read: what follows it there is as old as before."""
    gone = next(
        name
        for name in (f"shop/gone-{number}" for number in range(100))
        if world.view.partition(name) == world.view.partition(APP)
    )
    receivers = world.receivers(shop="https://example.org/hook")
    await world.decide(policy(gone))
    await world.finished(gone)
    await world.delete(2, gone)
    await world.finished()
    world.store.empty()
    world.clock.advance(TOLD_AGAIN.total_seconds() + 60)
    lines = await world.run(world.told(receivers))
    assert len([line for line in lines if line["event"] == "partition-read"]) > PARTITIONS
    assert await world.none_waits()


async def test_what_is_older_than_a_day_is_no_news(world: World) -> None:
    """Knowledge was away for two days: it would tell of what everybody knows."""
    await world.finished()
    world.clock.advance(timedelta(days=2).total_seconds())
    await world.run(world.told(world.receivers(shop="https://example.org/hook")))
    assert await world.none_waits() and (await world.newest()).outcome is not None


async def test_without_a_receiver_nothing_is_kept(world: World) -> None:
    """Neither an entry of the namespace nor one of all."""
    await world.finished()
    await world.run(world.told(world.receivers(carts="https://example.org/hook")))
    assert await world.none_waits()


async def test_one_that_fails_gets_it_again_in_order(world: World) -> None:
    """Two failures, then success: nothing is lost, nothing overtakes, and the log has one line for the failures."""

    def fails_twice(number: int) -> Answer:
        return (503, {}) if number < 2 else ACCEPTED

    with HttpReceiver(fails_twice) as shop:
        receivers = world.receivers(shop=shop.url)
        await world.finished()
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)) as lines:
            await world.until(world.none_waits)
    assert shop.kinds() == ["action-accepted"] * 3 + ["action-verified"]
    assert len(set(shop.ids())) == 2
    failed = [line for line in lines if line["event"] == "not-delivered"]
    assert [line["reason"] for line in failed] == ["it answers 503"]
    assert failed[0]["place"] == shop.url.removesuffix("/hook/s3cret") and "s3cret" not in str(lines)
    (accepts,) = [line for line in lines if line["event"] == "receiver-accepts"]
    assert accepts["failures"] == 2


async def test_a_dead_and_a_slow_receiver_delay_no_other(world: World) -> None:
    """One does not answer, one refuses connections, and all of a third one's notifications arrive meanwhile."""
    with HttpReceiver() as slow, HttpReceiver() as quick:
        slow.gate.clear()
        with HttpReceiver() as dead:
            pass
        await world.decide(policy("dead/orders"))
        receivers = world.receivers(shop=slow.url, dead=dead.url, carts=quick.url)
        for name in (APP, "dead/orders", CARTS):
            await world.finished(name)
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)):
            await world.until(until_received(slow, 1))
            await world.until(lambda: world.waits(4))  # those of the other two
            assert len(quick.received) == 2
            slow.gate.set()
            await world.until(until_received(slow, 2))
    assert len(set(quick.ids())) == 2


async def test_a_receiver_that_does_not_answer_in_time_is_tried_again(world: World) -> None:
    """The attempt has a deadline of its own, and the repetition has the same id."""
    with HttpReceiver() as shop:
        shop.gate.clear()
        receivers = world.receivers(shop=shop.url)
        await world.finished()
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers, attempt_seconds=0.3)) as lines:
            await world.until(until_received(shop, 2))
            shop.gate.set()
            await world.until(world.none_waits)
    assert shop.ids()[0] == shop.ids()[1]
    assert [line["reason"] for line in lines if line["event"] == "not-delivered"] == ["no answer within 0.3 s"]


async def test_a_wish_to_wait_is_respected(world: World) -> None:
    """`Retry-After: 1` is longer than the pause after a first failure."""

    def once_too_many(number: int) -> Answer:
        return (429, {"Retry-After": "1"}) if number == 0 else ACCEPTED

    with HttpReceiver(once_too_many) as shop:
        receivers = world.receivers(shop=shop.url)
        await world.finished()
        await world.run(world.told(receivers))
        clock = SystemClock()
        async with world.delivering(world.notifier(receivers)):
            await world.until(until_received(shop, 1))
            refused_at = clock.monotonic()
            await world.until(until_received(shop, 2))
            assert clock.monotonic() - refused_at >= 0.9


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        ("Thu, 01 Jan 2026 12:01:30 GMT", 90.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("9" * 200, 999_999_999.0),
    ],
)
def test_a_wish_is_a_number_or_a_date(header: str, seconds: float | None) -> None:
    """As RFC 9110 has it; another text is no wish."""
    assert retry_after_seconds(header, NOON) == seconds


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_what_a_receiver_refuses_for_good_is_given_up(world: World, status: int) -> None:
    """Sent once, logged with its id; the next one follows at once."""
    with HttpReceiver(lambda number: (status, {}) if number == 0 else ACCEPTED) as shop:
        receivers = world.receivers(shop=shop.url)
        await world.finished()
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)) as lines:
            await world.until(world.none_waits)
    assert shop.kinds() == ["action-accepted", "action-verified"]
    (refused,) = [line for line in lines if line["event"] == "refused-by-receiver"]
    assert (refused["id"], refused["reason"]) == (shop.ids()[0], f"it answers {status}")


async def test_a_redirection_is_not_followed(world: World) -> None:
    """It could lead anywhere, with the header of the receiver."""
    with (
        HttpReceiver() as other,
        HttpReceiver(lambda number: (307, {"Location": other.url}) if number == 0 else ACCEPTED) as shop,
    ):
        receivers = world.receivers(shop=shop.url)
        await world.finished()
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)) as lines:
            await world.until(world.none_waits)
    assert other.received == []
    assert "a redirection, which is not followed" in str(lines)


async def test_an_entry_that_was_repaired_is_tried_at_once(world: World, tmp_path: Path) -> None:
    """The receiver asks for an hour; a new token needs no hour."""
    token = tmp_path / "token"
    token.write_text("Bearer old")
    with HttpReceiver(lambda number: (401, {"Retry-After": "3600"}) if number == 0 else ACCEPTED) as shop:
        receivers = world.receivers(shop={"url": shop.url, "authorization_file": str(token)})
        assert receivers.files is not None
        await world.finished()
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)):
            await world.until(until_received(shop, 1))
            token.write_text("Bearer another")
            assert receivers.files.renew()
            await world.until(world.none_waits)
    assert [each.headers["authorization"] for each in shop.received] == ["Bearer old", *["Bearer another"] * 2]


async def test_kinds_that_a_receiver_does_not_want_are_not_sent(world: World) -> None:
    """A channel for trouble hears of rollbacks and failures."""
    with HttpReceiver() as shop:
        entry = {"url": shop.url, "format": "slack", "kinds": ["action-rolled-back", "action-failed"]}
        receivers = world.receivers(shop=entry)
        await world.finished(APP, "verifying", "rolling-back", "rolled-back")
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)):
            await world.until(world.none_waits)
    assert shop.bodies == [{"text": "*shop/orders* rolled back: it is rolled-back"}]
    assert shop.received[0].headers["content-type"] == "application/json; charset=utf-8"


async def test_what_waits_for_a_day_is_given_up(world: World) -> None:
    """With a line in the log; and so is what no receiver is for any more."""
    with HttpReceiver() as shop:
        receivers = world.receivers(shop=shop.url, all=shop.url)
        await world.finished()
        await world.finished(CARTS)
        await world.run(world.told(receivers))
        left = world.receivers(shop=shop.url)
        world.clock.advance(timedelta(hours=24).total_seconds() + 1)
        async with world.delivering(world.notifier(left)) as lines:
            await world.until(world.none_waits)
    assert shop.received == []
    given_up = {(line["namespace"], line["reason"]): line for line in lines if line["event"] == "given-up"}
    assert {key: line["notifications"] for key, line in given_up.items()} == {
        ("shop", "not accepted within 1d"): 2,
        ("carts", "no receiver"): 2,
    }


async def test_a_namespace_keeps_the_newest_of_too_many(world: World) -> None:
    """A dead receiver costs a bounded part of the store."""
    with HttpReceiver() as dead:
        pass
    receivers = world.receivers(all=dead.url)
    tell = RefusedPolicies(world.view, receivers, world.clock, lambda: None)
    for number in range(MAX_WAITING + 3):
        world.clock.advance(1)
        await tell(APP, "ada", "invalid", f"problem {number}")
    await tell(CARTS, "ada", "invalid", "a problem")
    assert await world.waiting() == MAX_WAITING + 4

    async def is_bounded() -> bool:
        return await world.waiting() <= MAX_WAITING + 1

    async with world.delivering(world.notifier(receivers)) as lines:
        await world.until(is_bounded)
    assert [line["notifications"] for line in lines if line["event"] == "given-up"] == [3]
    kept = [json.loads(fields["text"])["sentence"] for fields in (await world.store.all(KIND)).values()]
    assert "problem 2" not in kept and "problem 3" in kept and "a problem" in kept


async def test_a_store_that_is_away_loses_nothing(world: World) -> None:
    """What was accepted while the store could not be written is not sent a second time by this process."""
    with HttpReceiver() as shop:
        receivers = world.receivers(shop=shop.url)
        await world.finished()
        await world.run(world.told(receivers))
        async with world.delivering(world.notifier(receivers)):
            shop.gate.clear()
            await world.until(until_received(shop, 1))
            world.store.away = True
            shop.gate.set()
            await world.until(until_received(shop, 2))
            assert await world.waiting() == 2
            world.store.away = False
            await world.until(world.none_waits)
    assert shop.kinds() == ["action-accepted", "action-verified"]


async def test_only_the_owner_of_a_partition_delivers(world: World) -> None:
    """Of two replicas each application is delivered by one: nobody gets it twice."""
    with HttpReceiver() as shop, HttpReceiver() as carts:
        receivers = world.receivers(shop=shop.url, carts=carts.url)
        mine = {world.view.partition(APP)}
        assert world.view.partition(CARTS) not in mine
        await world.finished()
        await world.finished(CARTS)
        await world.run(world.told(receivers))
        notifier = world.notifier(receivers)
        notifier.partitions = lambda: mine
        async with world.delivering(notifier):
            await world.until(until_received(shop, 2))
            assert carts.received == []
            mine.add(world.view.partition(CARTS))
            await world.until(world.none_waits)
    assert len(carts.received) == 2


async def test_a_refused_document_is_told_of_once(tmp_path: Path) -> None:
    """A pipeline repeats a document with a problem; another problem, or the same one after a policy came into force, is news.
    A dry run, and a conflict with another writer, are not."""
    with HttpReceiver() as shop:
        world, store, clock = World(tmp_path), MemoryStore(), SystemClock()
        receivers = world.receivers(shop=shop.url)
        changes = changes_of(store, clock)
        changes.on_refused = RefusedPolicies(changes.view, receivers, clock, lambda: None)
        await changes.put(parse_policy(document("shop/other")), ADA, None)
        rival = parse_policy(document(application={"flink": {"url": "http://127.0.0.1:8081/", "job": "other"}}))
        for is_dry in (True, False, False):
            with pytest.raises(Problem, match="has the target of shop/other"):
                await changes.put(rival, ADA, None, dry_run=is_dry)
        assert len(await store.keys(KIND)) == 1
        await changes.put(parse_policy(document()), ADA, None)
        with pytest.raises(Problem, match="another writer changed"):
            await changes.put(parse_policy(document(mode="act")), ADA, 1)
        with pytest.raises(Problem, match="has the target of shop/other"):
            await changes.put(rival, ADA, None)
        assert len(await store.keys(KIND)) == 2
        await changes.report_refused("not an application", ADA, Problem(422, "no"))
        await changes.report_refused("carts/orders", ADA, Problem(422, "no"))
        notifier = Notifier(changes.view, receivers, clock, lambda: range(PARTITIONS), look_seconds=0.05)
        async with world.delivering(notifier):
            await world.until(until_received(shop, 2))
    first, second = (body["data"] for body in shop.bodies)
    assert (first["kind"], first["caller"], first["code"]) == ("policy-refused", "ada", "target-taken")
    assert first["sentence"] == second["sentence"] and first["id"] != second["id"]


async def test_a_refused_resource_is_told_of_once(tmp_path: Path) -> None:
    """Its author is not there when it is read, and it is tried again every half minute, also by the next process."""
    world, resources = World(tmp_path), MemoryWorld()
    house = House(resources)
    receivers = world.receivers(all="https://example.org/hook")
    house.changes.on_refused = RefusedPolicies(house.changes.view, receivers, house.clock, lambda: None)
    await resources.apply(house.document(objective={"maxLag": "30s", "utilization": 0.7}))
    for process in (house.policies, house.policies, house.new_process()):
        house.clock.advance(RETRY_SECONDS)
        await process.check()
    (kept,) = (await house.store.all(KIND)).values()
    told = json.loads(kept["text"])
    assert (told["kind"], told["application"], told["caller"]) == ("policy-refused", house.app, "kubernetes")
    assert "give exactly one of" in told["sentence"]


async def test_refusals_of_long_ago_are_forgotten(world: World) -> None:
    """Names without a policy would else stay for ever."""
    receivers = world.receivers(all="https://example.org/hook")
    await RefusedPolicies(world.view, receivers, world.clock, lambda: None)(APP, "ada", "invalid", "a problem")
    world.clock.advance(timedelta(days=8).total_seconds())
    await RefusedPolicies(world.view, receivers, world.clock, lambda: None)(CARTS, "ada", "invalid", "a problem")

    async def is_swept() -> bool:
        return await world.store.keys(REFUSAL) == [CARTS]

    notifier = world.notifier(receivers)
    notifier.partitions = lambda: {world.view.partition(APP)}  # nothing is sent
    async with world.delivering(notifier):
        await world.until(is_swept)


async def test_a_store_that_is_away_does_not_hide_the_refusal(world: World) -> None:
    """Its author hears of it all the same; the receiver does not, which is logged."""
    world.store.away = True
    tell = RefusedPolicies(world.view, world.receivers(all="https://example.org/hook"), world.clock, lambda: None)
    with capture_logs() as lines:
        await tell(APP, "ada", "invalid", "a problem")
    assert [(line["event"], line["application"]) for line in lines] == [("refusal-not-told", APP)]
