"""Each place at which applying the log can be interrupted, one after the other: killed, paused while another replica goes
on, with an emptied store, with an error of what was asked, and with an error though it was done (docs/adr/0014)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

import pytest
from structlog.testing import capture_logs

from tests.unit.knowledge.builders import APP, NOON, action, analysis, letters, observation, outcome, plan, policy
from tests.unit.knowledge.log_world import LogWorld, Stepwise
from weir_contracts import Change, ScalingPolicy
from weir_contracts.topics import POLICIES
from weir_knowledge.core import HistoryLimits
from weir_knowledge.service import GROUP, Knowledge
from weir_knowledge.store import Store, StoreUnavailable
from weir_knowledge.view import View
from weir_runtime import loop
from weir_runtime.bus import Bus, Consumer, version_of
from weir_runtime.loop import Stop

GONE, NEW = "shop/gone", "shop/new"
Fault = Literal["killed", "paused", "emptied", "failed", "done and failed"]
FAULTS: tuple[Fault, ...] = ("killed", "paused", "emptied", "failed", "done and failed")
DELETED = int(NOON.timestamp() * 1000) + 60_000


class Killed(BaseException):
    """The process ends here."""


class Places:
    """The places between two steps of a replica, in their order; something happens at one of them."""

    def __init__(self, world: "Interrupted", fault: Fault | None = None, at: int | None = None) -> None:
        self.world, self.fault, self.at = world, fault, at
        self.passed = 0
        self.is_paused = False
        self.goes_on = asyncio.Event()

    async def step(self, work: Callable[[], Awaitable[Any]], *, is_write: bool = True) -> Any:
        """Do what other processes notice, between two places."""
        await self._pass("before")
        done = await work()
        await self._pass("after" if is_write else "after reading")
        return done

    async def _pass(self, when: str) -> None:
        self.passed += 1
        if self.passed != self.at:
            return
        if self.fault == "killed":
            raise Killed
        if self.fault == "paused":
            self.is_paused = True
            await self.goes_on.wait()
        if self.fault == "emptied":
            self.world.store.empty()
            self.world.was_emptied = True
        if self.fault == "failed" and when == "before":
            raise StoreUnavailable("redis: away")
        if self.fault == "done and failed" and when == "after":
            raise StoreUnavailable("redis: no answer")


class StepwiseBus(Stepwise):
    def consumer(self, *args: Any, **kwargs: Any) -> Consumer:
        member = self._inner.consumer(*args, **kwargs)  # type: ignore[attr-defined]
        return cast(Consumer, Stepwise(member, self._steps, (), ("begin",)))


class Interrupted(LogWorld):
    """One partition and one story, which a replica lives through with a fault at one place, and another one afterwards."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.was_emptied = False
        self.newest_shown = 0
        self.wrong: list[str] = []
        self.store.on_applied = self.check

    def check(self) -> None:
        """After each batch the store shows what the log says at its position, and what it showed does not go back."""
        position = self.store.positions[0]
        in_force: dict[str, int] = {}
        for record in self.bus.log[POLICIES.name, 0][: position.offsets[POLICIES.name]]:
            in_force.pop(str(record.key), None)
            if record.value is not None:
                in_force[str(record.key)] = version_of(record.headers) or 0
        shown = {
            key: ScalingPolicy.model_validate_json(fields["text"])
            for (kind, key), fields in self.store.documents.items()
            if kind == "policy"
        }
        # An error here would be the replica's, which tries again.
        self.wrong += [
            name
            for name, is_right in {
                "policies": {name: each.metadata.version for name, each in shown.items()} == in_force,
                "versions": position.versions[POLICIES.name] >= self.newest_shown,
                "states": {key for kind, key in self.store.documents if kind == "state"} <= in_force.keys(),
            }.items()
            if not is_right
        ]
        self.newest_shown = position.versions[POLICIES.name]

    def stepwise(self, places: Places) -> Knowledge:
        store = cast(Store, Stepwise(self.store, places, ("applied", "get", "all", "keys"), ("apply",)))
        bus = cast(Bus, StepwiseBus(self.bus, places, (), ("publish",)))

        async def request(changes: Sequence[Change]) -> None:
            await places.step(lambda: self.request(changes))

        return Knowledge(bus, View(store, 1), self.clock, HistoryLimits(), letters(self.bus, self.clock), request)

    async def begin(self) -> None:
        """What the store shows before."""
        await self.decide(policy(), policy(GONE, version=2))
        await self.act(action(plan(1, 2)), 3)
        await self.send(*(each(1, name) for name in (APP, GONE) for each in (observation, analysis)), plan(1, 2))
        await self.run()

    async def read_from_the_beginning(self) -> None:
        """What is decided and sent while nobody reads: a change, and a deletion."""
        await self.decide(policy(version=5, mode="act"))
        await self.delete(DELETED, GONE)
        await self.send(observation(2), plan(2, 3), analysis(1.5, GONE))

    async def follow(self) -> None:
        """What follows while it is read: another policy and its deletion, an action and its end."""
        await self.decide(policy(NEW, version=DELETED + 1))
        await self.send(observation(3, NEW, policy=policy(NEW, version=DELETED + 1)), observation(3))
        await self.until_quiet()
        ended = action(plan(1, 2), version=2, phase="verified")
        await self.send(outcome(plan(1, 2), "verified", action=ended))
        await self.delete(DELETED + 2, NEW)
        await self.decide(policy(version=DELETED + 3))

    async def until_quiet(self) -> None:
        await self.until(self.is_over)

    async def is_over(self) -> bool:
        """Whether everything is applied, or the replica will go no further."""
        task, places = self.task, self.places
        return task.done() or places.is_paused or await self.is_applied()

    async def live(self, fault: Fault | None = None, at: int | None = None) -> int:
        """Tell the story; return how many places there are."""
        await self.begin()
        await self.read_from_the_beginning()
        self.places = Places(self, fault, at)
        stop = Stop()
        self.task = asyncio.create_task(self.stepwise(self.places).follow(stop))
        await self.until_quiet()
        await self.follow()
        await self.until_quiet()
        if self.places.is_paused:
            await self._wake_after_another_went_on()
        stop.request("the story is over")
        self.places.goes_on.set()
        with suppress(Killed):
            await self.task
        await self.run()
        return self.places.passed

    async def _wake_after_another_went_on(self) -> None:
        """Its session ends, and it does not notice before the other one has applied all."""
        self.bus.expire(self.bus.groups[GROUP].members[0])
        other, stop = self.replica(), Stop()
        task = asyncio.create_task(other.follow(stop))
        await self.until(self.is_applied)
        await self.send(observation(4))
        await self.until(self.is_applied)
        self.places.is_paused = False
        self.places.goes_on.set()
        await self.send(observation(5))
        await self.until_quiet()
        stop.request("the story is over")
        await task

    async def outcome(self) -> dict[str, Any]:
        """Return what everybody sees in the end."""
        events = await self.store.events("0", count=1000)
        names = await self.view.applications()
        return {
            "policies": [each.to_document() for each in await self.view.policies()],
            "actions": await self.store.all("action"),
            "cycles": {name: [c.correlation_id for c in (await self.state(name)).cycles] for name in names},
            "histories": {name: await self.store.history(name) for name in names},
            "requests": {each.id for each in self.requested},
            "ends": {each["application"] for each in self.ends()},
            # What was deleted before anybody read it has no other events than its end.
            "events": Counter((each.kind, each.application, each.data) for each in events if each.application != NEW),
        }


async def told(fault: Fault | None = None, at: int | None = None) -> tuple[Interrupted, int]:
    world = Interrupted()
    with capture_logs():
        passed = await world.live(fault, at)
    return world, passed


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr(loop, "MIN_BACKOFF_SECONDS", 0.001)


async def test_without_an_interruption_the_story_ends_as_the_log_says() -> None:
    """One policy is left; the ends of both others are published once, and one end of an action is requested."""
    world, places = await told()
    found = await world.outcome()
    assert [each["metadata"]["version"] for each in found["policies"]] == [DELETED + 3]
    assert sorted(each["application"] for each in world.ends()) == [GONE, NEW]
    assert len(world.requested) == 1
    assert len(found["histories"][APP]) == 2
    assert max(found["events"].values()) == 1
    assert places > 40


async def _assert_it_ends_alike(fault: Fault, at: int, expected: dict[str, Any]) -> None:
    world, _ = await told(fault, at)
    assert world.wrong == [], f"{fault} at {at}"
    found = await world.outcome()
    if fault == "paused":  # it has two more observations
        later = {("observation", APP, each.model_dump_json()): 1 for each in (observation(4), observation(5))}
        found["events"] -= Counter(later)
    if world.was_emptied:  # the feed and the histories come back as far as the topics have them
        expected = {**expected, "events": None}
        found["events"] = None
    wrong = {name for name, each in found.items() if each != expected[name]}
    assert not wrong, f"{fault} at {at}"


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_interruption_changes_nothing(fault: Fault) -> None:
    """At every seventh place."""
    world, places = await told()
    expected = await world.outcome()
    for at in range(1 + FAULTS.index(fault), places, 7):
        await _assert_it_ends_alike(fault, at, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
async def test_no_interruption_changes_anything(fault: Fault) -> None:
    """At each place."""
    world, places = await told()
    expected = await world.outcome()
    for at in range(1, places + 1):
        await _assert_it_ends_alike(fault, at, expected)
