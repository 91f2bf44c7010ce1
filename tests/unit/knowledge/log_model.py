"""A model of docs/adr/0014: log, transactions, two deciders, two owners of the view's partitions, callers, and what may
happen to them. `decide` is the real one, as is what applies the log; it is interrupted wherever it waits for something."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast
from unittest.mock import AsyncMock, Mock
from uuid import UUID, uuid4

from structlog.testing import capture_logs

from tests.unit.knowledge.builders import NOON, letters, policy
from tests.unit.knowledge.log_world import Stepwise
from tests.unit.knowledge.memory_store import MemoryStore
from weir_contracts import Answer, Change, ScalingPolicy
from weir_contracts.topics import POLICIES
from weir_engines.registry import claims
from weir_knowledge.core import HistoryLimits
from weir_knowledge.decisions import Log, decide
from weir_knowledge.partition import DECIDED, Partition
from weir_knowledge.service import READ, Knowledge
from weir_knowledge.store import Batch, Store, StoreUnavailable
from weir_knowledge.view import View
from weir_runtime import bus
from weir_runtime.bus import Place
from weir_runtime.clock import FakeClock
from weir_runtime.loop import Stop

NAMES = ("shop/a", "shop/b", "shop/c", "shop/d")
TARGETS = {job: {"flink": {"url": "http://jm:8081", "job": job}} for job in ("t", "u", "v")}
PARTITIONS = (0, 1)
STEPS = 150
Fault = Literal["emptied view", "cut changes", "cut policies"]
Rule = Literal["fencing", "reading from the beginning", "comparing positions"]


def partition(application: str) -> int:
    """The partition of an application's policies."""
    return bus.partition_of(application, len(PARTITIONS))


@dataclass(frozen=True)
class Record:
    """A record of `weir.policies`. Its `policy` is None for a tombstone."""

    application: str
    version: int
    policy: ScalingPolicy | None
    change: UUID


@dataclass(frozen=True)
class Request:
    """A record of `weir.changes`."""

    change: Change
    appended_ms: int


@dataclass
class Brokers:
    """The topics, and what is committed with the decisions."""

    requests: list[Request] = field(default_factory=list)
    policies: dict[int, list[Record]] = field(default_factory=lambda: {each: [] for each in PARTITIONS})
    answers: dict[UUID, Answer] = field(default_factory=dict)
    position: int = 0
    newest_version: int = 0
    producer_epoch: int = 0

    def fold(self) -> dict[str, ScalingPolicy]:
        """Return the policies in force."""
        return {name: each for records in self.policies.values() for name, each in self.folded(records).items()}

    @staticmethod
    def folded(records: Sequence[Record]) -> dict[str, ScalingPolicy]:
        """Return the policies in force after these records."""
        found: dict[str, ScalingPolicy] = {}
        for record in records:
            found.pop(record.application, None)
            if record.policy is not None:
                found[record.application] = record.policy
        return found


@dataclass
class Transaction:
    """Decisions that are not committed yet."""

    log: Log
    records: list[Record]
    answers: dict[UUID, Answer]
    position: int


class Decider:
    """A member of the group that decides."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.stop()

    def stop(self) -> None:
        """End, or be killed."""
        self.is_owner = False
        self._begin()

    def _begin(self) -> None:
        self.epoch: int | None = None
        self.log: Log | None = None
        self.open: Transaction | None = None

    def lose_state(self) -> None:
        """The brokers reset the connection."""
        self.log = self.open = None

    def step(self, rnd: random.Random) -> None:
        """Do the next thing that another process may interrupt."""
        brokers = self.world.brokers
        if not self.is_owner:
            return
        if self.epoch is None:
            brokers.producer_epoch += 1
            self.epoch = brokers.producer_epoch
        elif self.log is None:
            self._read()
        elif self.open is None:
            self._decide(rnd, self.log)
        elif self.epoch != brokers.producer_epoch and self.world.holds("fencing"):
            self.stop()
        elif rnd.random() < 0.1 or self.open.position > len(brokers.requests):
            self.lose_state()
        else:
            self._commit(self.open)

    def _read(self) -> None:
        brokers, policies = self.world.brokers, self.world.brokers.fold()
        newest = max([0, *(each.version for records in brokers.policies.values() for each in records)])
        self.log = Log.of(policies, {}, max(newest, brokers.newest_version))
        brokers.position = min(brokers.position, len(brokers.requests))
        self.position = brokers.position
        self.displaced = self.log.displaced()

    def _decide(self, rnd: random.Random, log: Log) -> None:
        brokers, records, answers = self.world.brokers, list[Record](), dict[UUID, Answer]()
        for application in self.displaced:
            version = log.following(self.world.now_ms())
            log = log.with_policy(application, None, version)
            records.append(Record(application, version, None, uuid4()))
        batch = brokers.requests[self.position : self.position + rnd.randint(1, 3)]
        for request in batch:
            change = request.change
            log, answer = decide(log, change, request.appended_ms)
            answers[change.id] = answer
            if answer.refused is None and answer.version is not None:
                records.append(Record(change.application, answer.version, answer.policy, change.id))
        if batch or records:
            self.open = Transaction(log, records, answers, self.position + len(batch))

    def _commit(self, transaction: Transaction) -> None:
        brokers = self.world.brokers
        for record in transaction.records:
            brokers.policies[partition(record.application)].append(record)
            self.world.check_record(record)
        brokers.answers.update(transaction.answers)
        brokers.position = self.position = transaction.position
        brokers.newest_version = transaction.log.newest_version
        self.log, self.open, self.displaced = transaction.log, None, []


class Turns:
    """Lets an owner go on up to the next place where it waits for others."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._go, self._waits = asyncio.Event(), asyncio.Event()

    async def step(self, work: Callable[[], Awaitable[Any]], *, is_write: bool = True) -> Any:
        """Wait for the turn, and do it; now and then it fails, or its answer is lost."""
        self._waits.set()
        await self._go.wait()
        self._go.clear()
        fails = self._world.rnd.random() < 0.05 and bool(self._world.faults)
        if is_write or not fails:
            done = await work()
        if fails:
            raise StoreUnavailable("redis: no answer")
        return done

    async def take(self, task: asyncio.Task[None]) -> None:
        """Give one turn; return when the owner waits again, or has ended."""
        self._waits.clear()
        self._go.set()
        waits = asyncio.ensure_future(self._waits.wait())
        await asyncio.wait([waits, task], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()


class Member:
    """The reader of an owner: policies only, as their partitions have them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.positions: dict[Place, int] = {}
        self.ended: frozenset[Place] = frozenset()

    async def begin(self, positions: Mapping[Place, int]) -> None:
        self.positions.update(positions)
        self.ended -= positions.keys()

    async def receive(self, max_records: int, timeout_seconds: float) -> list[bus.Record]:
        found: list[bus.Record] = []
        for place, position in list(self.positions.items()):
            records = self._world.brokers.policies[place[1]] if place[0] == POLICIES.name else []
            # A log that was cut is read from its beginning, or from where it was cut.
            begin = position if position <= len(records) else self._world.rnd.choice([0, len(records)])
            new = records[begin : begin + self._world.rnd.randint(1, 3)]
            found += [_on_the_wire(record, place, begin + n) for n, record in enumerate(new)]
            self.positions[place] = begin + len(new)
            if self.positions[place] == len(records):
                self.ended |= {place}
        return found

    async def close(self) -> None:
        return


def _on_the_wire(record: Record, place: Place, offset: int) -> bus.Record:
    value = None if record.policy is None else record.policy.model_dump_json(exclude_unset=True).encode()
    headers = {"ce_type": POLICIES.type, bus.VERSION_HEADER: str(record.version)}
    return bus.Record(*place, offset, record.application, value, headers)


class Unfenced(MemoryStore):
    """A store that does not compare positions."""

    async def apply(self, batch: Batch) -> None:
        await super().apply(replace(batch, continues={}))


class Resuming(Knowledge):
    """Goes on at the store's position, without a look at what the log says before it."""

    async def _begin(self, consumer: bus.Consumer) -> None:
        for partition in [p for p in self._waiting if self.view.store.positions.get(p) is not None]:  # type: ignore[attr-defined]
            self._waiting.discard(partition)
            position = (await self.view.store.applied([partition]))[partition]
            owned = self._owned[partition] = Partition(position, None, is_followed=True)
            for name, fields in (await self.view.store.all("policy")).items():
                if self.view.partition(name) == partition:
                    stored = ScalingPolicy.model_validate_json(fields["text"])
                    owned.policies[name] = stored.metadata.version or 0
            await consumer.begin({(topic, partition): owned.offset(topic) for topic in (*DECIDED, *READ)})
        await super()._begin(consumer)


class Owner:
    """A replica that applies the records of its partitions."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.task: asyncio.Task[None] | None = None
        self.owned: set[int] = set()

    async def begin(self) -> None:
        """Start as a new process."""
        world, self.turns, self.owned = self.world, Turns(self.world), set()
        member = Stepwise(Member(world), self.turns, ("receive",), ("begin",))
        store = Stepwise(world.store, self.turns, ("applied", "get", "all", "keys"), ("apply",))
        ends = Mock(spec=bus.Bus, publish=AsyncMock())
        made = Knowledge if world.holds("reading from the beginning") else Resuming
        knowledge = made(
            ends,
            View(cast(Store, store), len(PARTITIONS)),
            world.clock,
            HistoryLimits(),
            letters(ends, world.clock),
            world.request,
        )
        ends.consumer = lambda *_, on_assigned, **__: self._join(cast(bus.Consumer, member), on_assigned)
        self.task = asyncio.create_task(knowledge.follow(Stop()))
        await asyncio.sleep(0)

    def _join(self, member: bus.Consumer, on_assigned: bus.PartitionsChanged) -> bus.Consumer:
        self._gained = on_assigned
        return member

    def gain(self, partition: int) -> None:
        """The group gives it a partition; the owner of before need not know."""
        self.owned.add(partition)
        self._gained(frozenset({partition}))

    async def kill(self) -> None:
        """End at once, wherever it is, and begin anew."""
        await self.end()
        await self.begin()

    async def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task

    async def step(self, turns: int) -> None:
        for _ in range(turns):
            assert self.task is not None and not self.task.done()
            await self.turns.take(self.task)


class World:
    """One schedule. `without` names the rule that is left out."""

    def __init__(self, seed: int, faults: Collection[Fault] = (), without: Rule | None = None) -> None:
        self.rnd, self.faults, self.without = random.Random(seed), faults, without
        self.brokers, self.clock = Brokers(), FakeClock(NOON)
        self.store = MemoryStore() if self.holds("comparing positions") else Unfenced()
        self.store.on_applied = self._check_view
        self.deciders, self.owners = (Decider(self), Decider(self)), (Owner(self), Owner(self))
        self.milliseconds = 0
        self.waiting: dict[UUID, Change] = {}
        self.acknowledged: dict[str, int] = {}
        self.refused: set[UUID] = set()
        self.accepted: set[UUID] = set()
        self.versions: dict[int, Record] = {}
        self.lost_requests = self.lost_policies = self.is_view_wrong = False

    def holds(self, rule: Rule) -> bool:
        return self.without != rule

    def now_ms(self) -> int:
        """The brokers' time, which goes on whatever they lose."""
        self.milliseconds += 1
        return self.milliseconds

    async def run(self) -> None:
        """Let things happen, then let everything be read; `AssertionError` for a broken invariant."""
        with capture_logs():
            for each in self.owners:
                await each.begin()
            try:
                for _ in range(STEPS):
                    await self._step()
                await self._settle()
                assert not self.is_view_wrong, "the view was not what the log says at its position"
            finally:
                for each in self.owners:
                    await each.end()

    async def request(self, changes: Sequence[Change]) -> None:
        """What only the view has comes into the log."""
        self.brokers.requests += [Request(each, self.now_ms()) for each in changes]

    def shown(self) -> dict[str, ScalingPolicy]:
        """Return the policies that the store shows."""
        documents = self.store.documents.items()
        return {
            name: ScalingPolicy.model_validate_json(each["text"])
            for (kind, name), each in documents
            if kind == "policy"
        }

    def _check_view(self) -> None:
        """After each batch the store shows what the log says up to its position."""
        if self.lost_policies:
            return
        found: dict[str, ScalingPolicy] = {}
        for number, position in self.store.positions.items():
            found |= Brokers.folded(self.brokers.policies[number][: position.offsets[POLICIES.name]])
        if self.shown() != found:  # an error here would be the owner's, which tries again
            self.is_view_wrong = True

    def check_record(self, record: Record) -> None:
        """Check what holds for each decision."""
        assert self.versions.setdefault(record.version, record) == record, "a version has two documents"
        assert record.change not in self.refused, "what was refused is accepted"
        assert record.change not in self.accepted or self.lost_policies, "a change is accepted twice"
        self.accepted.add(record.change)
        if not self.lost_policies:
            self._check_targets()

    def _check_targets(self) -> None:
        claimed = [claim for each in self.brokers.fold().values() for claim in claims(each.subject)]
        assert len(claimed) == len(set(claimed)), "a target has two policies"

    def _change(self, kind: str, application: str, **given: object) -> Change:
        identity = UUID(int=self.rnd.getrandbits(128))
        fields = {"id": identity, "kind": kind, "application": application, "caller": "ann", "at": NOON, **given}
        unset = {"expected": None, "owner": "rest", "owners_policy_is_free": False, "again": None, "policy": None}
        return Change.model_construct(**{**unset, "action": None, **fields})

    async def _step(self) -> None:
        choice, rnd = self.rnd.random(), self.rnd
        if choice < 0.2:
            self._request()
        elif choice < 0.5:
            rnd.choice(self.deciders).step(rnd)
        elif choice < 0.75:
            await rnd.choice(self.owners).step(rnd.randint(1, 8))
        elif choice < 0.85:
            self._answer()
        elif choice < 0.92:
            self._rebalance()
        elif choice < 0.95:
            rnd.choice(self.deciders).stop()
        elif choice < 0.98:
            await rnd.choice(self.owners).kill()
        else:
            self._fail(rnd.random())

    def _request(self) -> None:
        application = self.rnd.choice(NAMES)
        viewed = self.shown().get(application)
        expected = self.rnd.choice([None, 0, 3, viewed.metadata.version if viewed else 0])
        if self.rnd.random() < 0.25:
            change = self._change("delete", application, expected=expected)
        else:
            target = TARGETS[self.rnd.choice(sorted(TARGETS))]
            change = self._change("put", application, expected=expected, policy=policy(application, application=target))
        self.brokers.requests.append(Request(change, self.now_ms()))
        self.waiting[change.id] = change

    def _answer(self) -> None:
        for identity, change in list(self.waiting.items()):
            answer = self.brokers.answers.get(identity)
            if answer is None:
                continue
            if answer.version is not None:
                position = self.store.positions.get(partition(change.application))
                if position is None or position.versions[POLICIES.name] < answer.version:
                    continue
                if not (self.lost_policies or self.lost_requests):
                    shown = self.shown().get(change.application)
                    assert shown is None or (shown.metadata.version or 0) >= answer.version, "acknowledged, not shown"
                self.acknowledged[change.application] = answer.version
            elif answer.refused is not None:
                self.refused.add(identity)
            del self.waiting[identity]

    def _rebalance(self) -> None:
        """The groups give partitions to a member; the one before need not know."""
        decider = self.rnd.choice(self.deciders)
        if not decider.is_owner:
            decider.stop()
            decider.is_owner = True
        for number in PARTITIONS:
            owner = self.rnd.choice(self.owners)
            if number not in owner.owned:
                owner.gain(number)

    def _fail(self, choice: float) -> None:
        if choice < 0.3 and "emptied view" in self.faults:
            self.store.empty()
        elif choice < 0.6 and "cut changes" in self.faults and self.brokers.requests:
            del self.brokers.requests[-self.rnd.randint(1, 3) :]
            self.lost_requests = True
            self._reset_connections()
        elif choice < 0.9 and "cut policies" in self.faults:
            del self.brokers.policies[self.rnd.choice(PARTITIONS)][-self.rnd.randint(1, 2) :]
            self.lost_policies = True
            self._reset_connections()

    def _reset_connections(self) -> None:
        for decider in self.deciders:
            decider.lose_state()

    async def _settle(self) -> None:
        """One replica, no faults: all is decided, applied and answered."""

        class Calm(random.Random):
            def random(self) -> float:
                return 0.5

        self.faults, calm = (), Calm(1)
        for each in self.deciders:
            each.stop()
        for owner in self.owners:
            await owner.kill()
        self.deciders[0].is_owner = True
        for number in PARTITIONS:
            self.owners[0].gain(number)
        for _ in range(100):
            self.deciders[0].step(calm)
            await self.owners[0].step(3)
        self._answer()
        assert self.shown() == self.brokers.fold(), "the view differs from the log"
        self._check_targets()
        if not (self.lost_policies or self.lost_requests):
            assert not self.waiting, "a request has no answer"
        if not self.lost_policies:
            newest: dict[str, int] = {}
            for records in self.brokers.policies.values():
                for record in records:
                    assert record.version > newest.get(record.application, 0), "versions go back"
                    newest[record.application] = record.version
            assert all(newest.get(name, 0) >= version for name, version in self.acknowledged.items()), (
                "a change is lost"
            )
