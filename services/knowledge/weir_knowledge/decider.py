"""Decides the changes in the log, on the replica that owns their partition (docs/adr/0014).

Decisions, answers and the owner's position are one transaction. An owner that was paused wakes with an old producer and
in an old generation of its group: the brokers refuse what it commits. After any error it begins again: it fences itself
in, reads what was decided, and goes on at the group's position.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import structlog
from prometheus_client import Counter, Gauge
from pydantic import BaseModel

from weir_contracts import ActionState, Answer, Change, ChangeRecord, ScalingPolicy, derive_id
from weir_contracts.topics import ACTIONS, CHANGES, POLICIES, Topic
from weir_runtime.bus import (
    VERSION_HEADER,
    Bus,
    BusError,
    Committed,
    Consumer,
    Outgoing,
    Record,
    Refused,
    Transactions,
    version_of,
)
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, run_forever
from weir_runtime.messages import encode, new_traceparent
from weir_runtime.reading import DeadLetters, read_to_end, readable

from .decisions import Log, decide, is_expired

NAME = "weir-knowledge-decider"
"""Of the group, and of the writer of its transactions."""
PLACE = (CHANGES.name, 0)
READ_SECONDS = 50.0
"""For fencing and reading what was decided: less than a group waits for a member that does not poll."""
WAIT_SECONDS = 0.5
MAX_AHEAD = timedelta(days=1)
"""Of a version before this replica's clock."""
MAX_CHANGES = 100
"""Of one transaction."""
_LOG = structlog.get_logger("decider")
_DECIDES = Gauge("weir_knowledge_decides", "1 while this replica decides changes of policies and actions")
_DECISIONS = Counter(
    "weir_knowledge_decisions_total", "Changes of policies and actions that were decided", ["kind", "result"]
)
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class _Decided:
    """Content of one transaction."""

    log: Log
    records: list[Outgoing]
    answers: list[tuple[Change, Answer]]
    unreadable: int = 0
    """Records that are no changes. Their dead letters are sent: the position goes on behind them."""


@dataclass(eq=False, repr=False)
class Decider:
    """One member of the group that decides; the brokers give the partition to one of them."""

    bus: Bus
    clock: Clock
    dead_letters: DeadLetters
    _log: Log | None = field(default=None, init=False)
    """All that was decided. None: this replica does not decide now."""
    _losses: int = field(default=0, init=False)
    """How often this replica has stopped to decide: what it began before that is not its state."""
    _pending: list[Record] = field(default_factory=list, init=False)
    """Records that the last transaction did not decide."""
    _alone_until: int = field(default=0, init=False)
    """Changes before this offset are decided one by one: the brokers refused a transaction with them."""
    _is_backlog: bool = field(default=True, init=False)
    """What was received stood in the log before this replica decided. Only that can have waited for too long: its age is
    by two clocks."""
    _read_for: int = field(default=-1, init=False)
    """Offset of the last request for which the decisions were read once more: a view has what the log lost."""
    _unwritable: str = field(default="", init=False)
    """Place of the change that the brokers refuse."""

    @property
    def decides(self) -> bool:
        """Return whether this replica decides now, as far as it knows."""
        return self._log is not None

    async def run(self, stop: Stop) -> None:
        """Decide while the partition is this replica's, until stopped."""
        # `from_beginning` False: a position that the log has lost goes on at its end.
        consumer = self.bus.consumer(
            [CHANGES.name], NAME, on_revoked=lambda _: self._begin_again(), positioned=True, from_beginning=False
        )
        transactions = self.bus.transactions(NAME, consumer)
        try:
            await run_forever("decider", lambda: self._cycle(consumer, transactions, stop), stop)
        finally:
            self._begin_again()
            await transactions.close()
            await consumer.close()

    def _begin_again(self) -> None:
        self._log, self._pending = None, []
        self._losses += 1
        _DECIDES.set(0)

    async def _cycle(self, consumer: Consumer, transactions: Transactions, stop: Stop) -> None:
        try:
            if not self._pending:
                # Also a sign of life for the group, without which an old owner would not learn of its loss.
                seconds = 0.0 if consumer.assignment and self._log is None else WAIT_SECONDS
                self._is_backlog = PLACE not in consumer.ended
                self._pending = await stop.race(consumer.receive(MAX_CHANGES, seconds)) or []
            if stop.requested or not consumer.assignment:
                return
            if self._log is None:
                await stop.race(self._take_over(consumer, transactions))
            elif self._pending:
                await self._decide(transactions)
        except BaseException:
            self._begin_again()
            raise

    async def _take_over(self, consumer: Consumer, transactions: Transactions) -> None:
        """Become the only writer, and read what was decided until now."""
        losses = self._losses
        try:
            async with asyncio.timeout(READ_SECONDS):
                await transactions.fence()
                policies, newest = await self._latest(POLICIES, ScalingPolicy)
                actions, newest_action = await self._latest(ACTIONS, ActionState)
                committed = await consumer.committed(PLACE)
                # What was received before is received again, from there.
                self._pending = []
                await consumer.begin({PLACE: committed.offset})
        except TimeoutError:
            topics = f"{POLICIES.name} and {ACTIONS.name}"
            raise BusError(f"{topics} were not read to their end within {READ_SECONDS:g} s") from None
        noted = int(committed.note) if committed.note.isdigit() else 0
        log = Log.of(policies, actions, max(newest, newest_action, noted))
        records = []
        for application in log.displaced():
            _LOG.warning("target-taken", application=application)
            version = log.following(int(self.clock.now().timestamp() * 1000))
            log = log.with_policy(application, None, version)
            records += _deletion(application, version)
        if records:
            await transactions.commit(records, PLACE, Committed(committed.offset, str(log.newest_version)))
        if losses != self._losses:
            return
        self._log = log
        _DECIDES.set(1)
        _LOG.info("decides", policies=len(log.policies), actions=len(log.actions), position=committed.offset)

    async def _latest(self, topic: Topic, model: type[M]) -> tuple[dict[str, M], int]:
        """Return the newest value of each key of a topic, and the newest version."""
        newest_possible = (self.clock.now() + MAX_AHEAD).timestamp() * 1000
        latest: dict[str, M] = {}
        newest = 0

        def take(record: Record) -> None:
            nonlocal newest
            version = version_of(record.headers) or 0
            if version <= newest_possible:  # others were not given by a decider
                newest = max(newest, version)
            if record.value is None and record.key is not None:
                latest.pop(record.key, None)
            elif (value := readable(record, model)) is not None and record.key is not None:
                latest[record.key] = value

        await read_to_end(self.bus, topic.name, take)
        return latest, newest

    async def _decide(self, transactions: Transactions) -> None:
        """Decide what waits, in one transaction."""
        count = 1 if self._pending[0].offset < self._alone_until else MAX_CHANGES
        batch, self._pending = self._pending[:count], self._pending[count:]
        losses = self._losses
        decided = await self._decided(batch)
        if decided is None:
            # The view has what the log lost: this replica's memory may have it as well, and must not speak for the log.
            self._read_for = batch[-1].offset
            self._begin_again()
            return
        if decided.answers or decided.unreadable:
            position = Committed(batch[-1].offset + 1, str(decided.log.newest_version))
            try:
                await transactions.commit(decided.records, PLACE, position)
            except Refused as error:
                self._alone_until = batch[-1].offset + 1
                if len(batch) == 1:
                    self._unwritable = batch[0].place
                _LOG.error("decision-refused", changes=len(decided.answers), reason=str(error))
                self._begin_again()
                return
        if losses == self._losses:
            self._log = decided.log
        for change, answer in decided.answers:
            result = answer.refused or ("unchanged" if answer.version is None else "accepted")
            _DECISIONS.labels(change.kind, result).inc()
            _LOG.info(
                "decided",
                application=change.application,
                kind=change.kind,
                result=result,
                version=answer.version,
                author=change.caller,
            )

    async def _decided(self, batch: Sequence[Record]) -> _Decided | None:
        """Decide the requests among these records; None if what was decided is to be read once more before."""
        decided = _Decided(self._log or Log(), [], [])
        log, now, unreadable = decided.log, self.clock.now(), 0
        for record in batch:
            decoded = await self.dead_letters.decoded(record, ChangeRecord)
            unreadable += decoded is None
            change = None if decoded is None else decoded.message.request
            if change is None:
                continue
            if record.offset > self._read_for and _is_in_doubt(change, decided.log):
                return None
            at = record.timestamp or now
            if record.place == self._unwritable:
                answer = Answer(change_id=change.id, refused="unwritable")
            elif self._is_backlog and is_expired(change, at, now):
                answer = Answer(change_id=change.id, refused="expired")
            else:
                log, answer = decide(log, change, int(at.timestamp() * 1000))
            decided.records.extend(_records(change, answer))
            id = derive_id(change.id, "answer")
            decided.records.append(record_of(CHANGES, change.application, ChangeRecord(answer=answer), id, now))
            decided.answers.append((change, answer))
        return _Decided(log, decided.records, decided.answers, unreadable)


def _is_in_doubt(change: Change, log: Log) -> bool:
    """Return whether a view has what this replica does not remember, or what the log lost: another program wrote it, or a
    broker lost its disk. A view that is behind is no doubt."""
    current = log.policies.get(change.application)
    number = (current.metadata.version or 0) if current else 0
    return change.again is not None or (change.seen or 0) > number


def request_record(change: Change) -> Outgoing:
    """Return the record of a request."""
    return record_of(CHANGES, change.application, ChangeRecord(request=change), change.id, change.at)


def _records(change: Change, answer: Answer) -> list[Outgoing]:
    """Return what a decision writes besides its answer."""
    if answer.version is None or answer.refused is not None:
        return []
    topic, value = (POLICIES, answer.policy) if answer.action is None else (ACTIONS, answer.action)
    if value is None:
        return _deletion(change.application, answer.version)
    id = derive_id(change.id, topic.name)
    record = record_of(topic, change.application, value, id, change.at)
    return [replace(record, headers={**record.headers, VERSION_HEADER: str(answer.version)})]


def record_of(
    topic: Topic, application: str, value: BaseModel, id: UUID, at: datetime, *, exclude_unset: bool = True
) -> Outgoing:
    """Return the record of a message from knowledge, which begins a trace. `exclude_unset`: policies as their users wrote
    them. `TooLarge` for one that no reader would accept."""
    body, headers = encode(
        value,
        type=topic.type,
        source="knowledge",
        id=id,
        time=at,
        traceparent=new_traceparent(id),
        exclude_unset=exclude_unset,
    )
    return Outgoing(topic.name, application, body, headers)


def _deletion(application: str, version: int) -> list[Outgoing]:
    """Return the tombstones of a policy and of its action."""
    headers = {VERSION_HEADER: str(version)}
    return [Outgoing(topic.name, application, None, headers) for topic in (POLICIES, ACTIONS)]
