"""Random schedules of everything real on a log in memory: two replicas that decide, apply and answer, callers that write
through the API's own checks, and kills, lost memberships, interrupted transactions, an emptied store and an outage."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tests.unit.knowledge.builders import document, letters
from tests.unit.knowledge.memory_store import MemoryStore
from weir_contracts import Answer, ChangeRecord, ScalingPolicy, parse_policy
from weir_contracts.topics import CHANGES, POLICIES
from weir_engines.registry import claims
from weir_knowledge import decider
from weir_knowledge.change_log import ChangeLog
from weir_knowledge.core import HistoryLimits
from weir_knowledge.decider import NAME, Decider
from weir_knowledge.policy_changes import PlannerCatalogue, PolicyChanges
from weir_knowledge.service import GROUP, Knowledge
from weir_knowledge.store import StoreUnavailable
from weir_knowledge.view import View
from weir_runtime import loop
from weir_runtime.access import Caller, Problem
from weir_runtime.bus import BusError, Record, version_of
from weir_runtime.clock import SystemClock
from weir_runtime.local_bus import LocalTransactions
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.reading import readable

PARTITIONS, STEPS = 2, 40
NAMES = ("shop/a", "shop/b", "shop/c")
JOBS = ("t", "u")
CALLER = Caller("ann", frozenset({"write"}))
SETTLED_SECONDS = 20.0


@dataclass(eq=False)
class Replica:
    """One process of knowledge."""

    world: "World"
    stop: Stop = field(default_factory=Stop)

    def __post_init__(self) -> None:
        bus, clock, view = self.world.bus, self.world.clock, self.world.view
        self.log = ChangeLog(bus, view.shows, wait_seconds=0.5)
        self.changes = PolicyChanges(view, clock, PlannerCatalogue(None), self.log)
        knowledge = Knowledge(
            bus, view, clock, HistoryLimits(), letters(bus, clock), self.log.request, retry_seconds=0.01
        )
        parts = (Decider(bus, clock, letters(bus, clock)).run, self.log.run, knowledge.follow)
        self.tasks = [asyncio.create_task(part(self.stop)) for part in parts]

    async def end(self, *, killed: bool = False) -> None:
        """End in order, or in the middle of whatever it does."""
        self.stop.request("the test")
        for task in self.tasks if killed else ():
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class World:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.rnd, self.clock, self.bus, self.store = (
            random.Random(seed),
            SystemClock(),
            MemoryBus(PARTITIONS),
            MemoryStore(),
        )
        self.view = View(self.store, PARTITIONS)
        self.replicas: list[Replica] = []
        self.calls: set[asyncio.Task[None]] = set()
        self.accepted: list[tuple[str, int]] = []
        """Application and version of what callers were told."""
        self.dies_at: str | None = None

    async def run(self) -> None:
        """Let things happen, then everything settle; `AssertionError` for a broken invariant."""
        self.replicas = [Replica(self), Replica(self)]
        for _ in range(STEPS):
            await self._step(self.rnd.random())
            await asyncio.sleep(self.rnd.choice([0, 0, 0.001, 0.005]))
        self.bus.mend()
        self.dies_at = None
        await asyncio.gather(*self.calls)
        await self._settle()
        for each in self.replicas:
            await each.end()
        self._check_log()

    async def _step(self, choice: float) -> None:
        if choice < 0.55:
            self.calls.add(asyncio.create_task(self._call(self.rnd.choice(self.replicas))))
        elif choice < 0.65:
            place = self.rnd.randrange(len(self.replicas))
            await self.replicas[place].end(killed=self.rnd.random() < 0.7)
            self.replicas[place] = Replica(self)
        elif choice < 0.75:
            group = self.bus.groups.get(self.rnd.choice([NAME, GROUP]))
            if group is not None and group.members:
                self.bus.expire(self.rnd.choice(group.members))
        elif choice < 0.85:
            self.dies_at = self.rnd.choice(["before", "after"])
        elif choice < 0.92:
            self.store.empty()
        elif self.bus.broken is None:
            self.bus.break_down()
        else:
            self.bus.mend()

    async def _call(self, replica: Replica) -> None:
        """Write as a user does, who may be refused or hear nothing."""
        name, kind = self.rnd.choice(NAMES), self.rnd.choice(["put", "put", "put", "delete", "pause"])
        with suppress(Problem, StoreUnavailable, BusError):
            if kind == "put":
                job = {"flink": {"url": "http://jm:8081", "job": self.rnd.choice(JOBS)}}
                wanted = parse_policy(document(name, application=job, interval=f"{self.rnd.randint(5, 60)}s"))
                stored, result = await replica.changes.put(wanted, CALLER, None)
                if result != "unchanged":
                    self.accepted.append((name, stored.metadata.version or 0))
            elif kind == "pause":
                await replica.changes.pause(name, CALLER)
            else:
                await replica.changes.delete(name, CALLER, None)

    def policies(self) -> list[Record]:
        """Return the decisions about policies in their order, which is that of their versions."""
        return sorted(self.bus.records(POLICIES.name), key=lambda record: version_of(record.headers) or 0)

    def fold(self) -> dict[str, ScalingPolicy | None]:
        latest = {str(record.key): readable(record, ScalingPolicy) for record in self.policies()}
        return {name: policy for name, policy in latest.items() if policy is not None}

    async def _settle(self) -> None:
        async def is_settled() -> bool:
            with suppress(StoreUnavailable):
                return {each.application: each for each in await self.view.policies()} == self.fold()
            return False

        async with asyncio.timeout(SETTLED_SECONDS):
            while not await is_settled():  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.005)

    def _check_log(self) -> None:
        answers: dict[UUID, list[Answer]] = defaultdict(list)
        for record in self.bus.records(CHANGES.name):
            read = readable(record, ChangeRecord)
            if read is not None and read.answer is not None:
                answers[read.answer.change_id].append(read.answer)
        assert all(len(found) == 1 for found in answers.values()), "a change is decided twice"
        decided = self.policies()
        versions = [version_of(record.headers) for record in decided]
        assert len(set(versions)) == len(versions) and None not in versions, "a version has two documents"
        for partition in range(PARTITIONS):
            written = [version_of(record.headers) or 0 for record in self.bus.log[POLICIES.name, partition]]
            assert written == sorted(written), "versions go back"
        in_log = {(str(record.key), version_of(record.headers)) for record in decided}
        assert set(self.accepted) <= in_log, "an acknowledged change is not in the log"
        in_force: dict[str, ScalingPolicy] = {}
        for record in self.policies():
            in_force.pop(str(record.key), None)
            if (policy := readable(record, ScalingPolicy)) is not None:
                in_force[str(record.key)] = policy
            claimed = [claim for each in in_force.values() for claim in claims(each.subject)]
            assert len(claimed) == len(set(claimed)), "a target has two policies"


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[MemoryBus, World]]:
    """Worlds whose next transaction fails where their schedule says so; waits are short."""
    worlds: dict[MemoryBus, World] = {}
    commit = LocalTransactions.commit

    async def fails(self: LocalTransactions, *given: Any) -> None:
        world = worlds[self._bus]
        moment, world.dies_at = world.dies_at, None
        if moment == "before":
            raise BusError("the connection is lost")
        await commit(self, *given)
        if moment == "after":
            raise BusError("no answer to the commit")

    monkeypatch.setattr(LocalTransactions, "commit", fails)
    monkeypatch.setattr(decider, "WAIT_SECONDS", 0.02)
    monkeypatch.setattr(loop, "MIN_BACKOFF_SECONDS", 0.005)
    monkeypatch.setattr(loop, "MAX_BACKOFF_SECONDS", 0.02)
    with capture_logs():
        yield worlds


async def run_all(worlds: dict[MemoryBus, World], seeds: range) -> None:
    """Run schedules at the same time: each mostly waits."""
    made = [World(seed) for seed in seeds]
    worlds.update({world.bus: world for world in made})
    await asyncio.gather(*(world.run() for world in made))
    assert any(world.accepted for world in made)


async def test_no_schedule_breaks_what_the_log_promises(worlds: dict[MemoryBus, World]) -> None:
    """Eight schedules of 40 steps."""
    await run_all(worlds, range(8))


@pytest.mark.thorough
async def test_no_schedule_of_five_hundred_breaks_it(worlds: dict[MemoryBus, World]) -> None:
    """The same, with other schedules."""
    for first in range(100, 600, 20):
        await run_all(worlds, range(first, first + 20))
