"""An action interrupted at every point, and gone on with by another process from what was told.

The world is a memory cluster and a memory knowledge; a "process" runs steps against it and is killed before or after any of
its effects: telling, claiming, requesting, nudging. Whatever is cut, the end must be the same as without.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from weir_contracts import Outcome, Parallelism

from runtime.clock import FakeClock
from services.executor.adapters.memory import MemoryDriver, MemoryKnowledge
from services.executor.core import (
    Claim,
    Conflict,
    Memory,
    Nudge,
    Observed,
    Record,
    Request,
    Rules,
    Step,
    Unanswered,
    account,
    claim,
    next_step,
    recall,
    resume,
)
from tests.unit.executor.builders import ATTEMPT, BEFORE, NOON, OTHER_ATTEMPT, TOPOLOGY, WANTED, action, policy

RULES = Rules(settle_seconds=2)
TARGET = policy().spec.target


class Killed(Exception):
    """The process ended here."""


class World:
    """What outlives a process."""

    def __init__(self, *, crash_above: int | None = None, then: "Callable[[World], None] | None" = None) -> None:
        self.then = then
        self.clock = FakeClock(NOON)
        self.driver = MemoryDriver(self.clock)
        self.job = self.driver.add(TARGET, TOPOLOGY, BEFORE)
        self.job.crash_above = crash_above
        self.knowledge = MemoryKnowledge()
        self.knowledge.policies["shop/orders"] = policy()
        self.topic: list[Outcome] = []

    async def request(self, job_id: str, parallelism: Parallelism) -> object:
        """Ask the engine; what happens to this world after it was asked happens at once, whether or not somebody hears the answer."""
        answer = await self.driver.request(TARGET, job_id, parallelism)
        if self.then is not None:
            self.then(self)
        return answer

    def memory(self) -> Memory:
        """What a new process reads: the compacted topic keeps the newest outcome only."""
        return recall(Memory(), Outcome.model_validate_json(self.topic[-1].model_dump_json()))


class Process:
    """Runs an action; dies when `effects_left` are used up."""

    def __init__(self, world: World, attempt_id: UUID, effects_left: int | None = None) -> None:
        self.world = world
        self.attempt_id = attempt_id
        self.effects_left = effects_left
        self.memory = Memory()

    def effect(self) -> None:
        if self.effects_left is None:
            return
        if self.effects_left == 0:
            raise Killed
        self.effects_left -= 1

    def tell(self, step: Step) -> None:
        if step.event is None:
            self.memory = replace(self.memory, action=step.action)
            return
        self.effect()
        told = account(self.memory, step, None, self.world.clock.now(), RULES)
        self.world.topic.append(told.outcome)
        self.effect()
        self.memory = told.memory

    async def perform(self, instruction: object) -> object:
        assert self.memory.action is not None
        mine = self.memory.action
        self.effect()
        if isinstance(instruction, Request):
            answer: object = await self.world.request(mine.deployment.job_id, instruction.parallelism)
        elif isinstance(instruction, Nudge):
            await self.world.driver.nudge(TARGET, mine.deployment.job_id)
            answer = None  # nothing depends on it
        else:
            assert isinstance(instruction, Record)
            answer = await self.world.knowledge.record(mine, mine.version - 1)
            if isinstance(answer, Conflict):
                answer = claim(mine, answer.current, None)
            if isinstance(answer, Claim):
                answer = await self.world.knowledge.record(mine, answer.version)
        self.effect()
        return answer

    async def run(self) -> None:
        """To the end of the action, or of the process."""
        for _ in range(2000):
            mine = self.memory.action
            assert mine is not None
            if mine.terminal:
                return
            seen = await self.world.driver.observe(TARGET)
            known = Observed(seen, policy=await self.world.knowledge.policy(mine.application))
            for _ in range(5):
                assert self.memory.action is not None
                step = next_step(self.memory.action, known, self.world.clock.now(), RULES)
                self.tell(step)
                answer = await self.perform(step.instruction) if step.instruction else None
                if answer is None or isinstance(answer, Unanswered):
                    break
                known = replace(known, answer=answer)  # type: ignore[arg-type]
            self.world.clock.advance(0.5)
        raise AssertionError("the action did not end")


async def live(world: World, *lives: int | None) -> None:
    """One process after the other, each dead after so many effects; the last one lives."""
    for number, effects in enumerate([*lives, None]):
        process = Process(world, ATTEMPT if number == 0 else OTHER_ATTEMPT, effects)
        try:
            if not world.topic:
                process.tell(Step(action(version=1), "admitted"))
            else:
                process.memory = world.memory()
                assert process.memory.action is not None
                process.tell(resume(process.memory.action, process.attempt_id, world.clock.now()))
            await process.run()
        except Killed:
            world.clock.advance(3)
            continue
        return


def effects_of(*, crash_above: int | None) -> int:
    """How many effects an undisturbed action has."""
    world, budget = World(crash_above=crash_above), 10_000
    process = Process(world, ATTEMPT, budget)
    process.tell(Step(action(version=1), "admitted"))
    asyncio.run(process.run())
    assert process.effects_left is not None
    return budget - process.effects_left


def cuts() -> Iterator[tuple[int | None, int]]:
    for crash_above in (None, 2):
        for cut in range(effects_of(crash_above=crash_above)):
            yield crash_above, cut


@pytest.mark.parametrize(("crash_above", "cut"), list(cuts()))
async def test_an_interrupted_action_ends_as_an_undisturbed_one(crash_above: int | None, cut: int) -> None:
    """Killed at any point: verified if the job can run so, rolled back if it crash-loops."""
    world = World(crash_above=crash_above)
    await live(world, cut)
    assert world.topic, "nothing was told, so nothing may have been done"
    last = world.topic[-1]
    if crash_above is None:
        assert last.phase == "verified"
        assert world.job.requested == WANTED
    else:
        assert last.phase == "rolled-back"
        assert world.job.requested == BEFORE
        assert [q.strikes for q in last.quarantine] == [1]
    assert [r for r in world.driver.requests if r[1] not in (WANTED, BEFORE)] == []


def _refused(world: World) -> None:
    """The job allows less than is wanted."""
    small = [o.model_copy(update={"max_parallelism": 1}) for o in TOPOLOGY.operators]
    world.job.topology = TOPOLOGY.model_copy(update={"operators": small})


def _contested(world: World) -> None:
    """Somebody else asked for another vector."""
    world.job.requested = dict.fromkeys(BEFORE, 7)


def _gone(world: World) -> None:
    """The job is not there any more."""
    world.driver.jobs.clear()


def _away(world: World) -> None:
    """The cluster does not answer any more."""
    world.driver.away = {str(TARGET.job.url).rstrip("/"): "connection refused"}


ENDS: dict[str, tuple[Callable[[World], None] | None, Callable[[World], None] | None, str]] = {
    "refused by the engine": (_refused, None, "rejected"),
    "contested": (None, _contested, "contested"),
    "gone": (None, _gone, "job-gone"),
    "unreachable": (None, _away, "unreachable"),
}
"""What is so beforehand, what happens once the engine was asked, and why the action fails."""


async def _ended(how: str, cut: int | None) -> tuple[World, Process | None]:
    before, then, _ = ENDS[how]
    world = World(then=then)
    if before is not None:
        before(world)
    if cut is not None:
        await live(world, cut)
        return world, None
    process = Process(world, ATTEMPT, 10_000)
    process.tell(Step(action(version=1), "admitted"))
    await process.run()
    return world, process


@pytest.mark.parametrize("how", ENDS)
async def test_whatever_the_end_an_interrupted_action_has_it_too(how: str) -> None:
    """Killed before and after each effect on the way: the same end, the same requirements, and no other request than the undisturbed."""
    whole, process = await _ended(how, None)
    assert process is not None and process.effects_left is not None
    assert (whole.topic[-1].phase, whole.topic[-1].code) == ("failed", ENDS[how][2]), whole.topic[-1].sentence
    for cut in range(10_000 - process.effects_left):
        world, _ = await _ended(how, cut)
        assert world.topic, cut
        assert (world.topic[-1].phase, world.topic[-1].code) == (whole.topic[-1].phase, whole.topic[-1].code), cut
        assert world.job.requested == whole.job.requested, cut
        assert {str(vector) for _, vector in world.driver.requests} <= {str(v) for _, v in whole.driver.requests} | {
            str(WANTED)
        }


@pytest.mark.parametrize("crash_above", [None, 2])
async def test_interrupted_again_and_again(crash_above: int | None) -> None:
    """Every process lives for six effects only, enough to move on by one: the action still comes to its end."""
    world = World(crash_above=crash_above)
    await live(world, *[6] * 12)
    assert world.topic[-1].phase == ("verified" if crash_above is None else "rolled-back")


@pytest.mark.parametrize("cut", range(8))
async def test_no_request_before_the_intent_was_told_and_claimed(cut: int) -> None:
    """Whenever the engine was asked, topic and knowledge knew of it."""
    world = World()
    process = Process(world, ATTEMPT, cut)
    try:
        process.tell(Step(action(version=1), "admitted"))
        await process.run()
    except Killed:
        pass
    if world.driver.requests:
        assert [o.phase for o in world.topic][:2] == ["intended", "applying"]
        assert "shop/orders" in world.knowledge.actions


async def test_a_pause_while_nobody_was_there_ends_the_intent() -> None:
    """The process died right after telling; the user paused; the next one does nothing."""
    world = World()
    try:
        process = Process(world, ATTEMPT, 2)
        process.tell(Step(action(version=1), "admitted"))
        await process.run()
    except Killed:
        world.clock.advance(5)
    world.knowledge.set_mode("shop/orders", "paused", world.clock.now())
    await live(world)
    assert (world.topic[-1].phase, world.topic[-1].code) == ("refused", "not-act")
    assert world.driver.requests == []
