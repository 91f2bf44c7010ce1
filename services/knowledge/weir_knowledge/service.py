"""The shell: stores the messages of the loop, rebuilds an emptied store, and counts dead letters. `publisher` publishes
policies from the outbox."""

import asyncio
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from prometheus_client import Counter

from weir_contracts import Analysis, DeadLetter, Observation, Outcome, Plan, ScalingPolicy, precedes
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANS, POLICIES, Topic
from weir_runtime.bus import UNSIGNED_HEADER, Bus, Consumer, NewestVersions, PartitionsChanged, Record, version_of
from weir_runtime.clock import Clock
from weir_runtime.loop import CardinalityLimiter, Stop, canonical_line, run_forever
from weir_runtime.messages import DeadLetters, Undecodable, decode, readable

from .core import Event, HistoryEntry, HistoryLimits, Kind, NewestTimes, State, history_entries, kind_of, remember
from .gauges import ApplicationGauges
from .store import RETRY_SECONDS, Store, StoreFull, StoreUnavailable, VersionConflict

GROUP = "weir-knowledge"
TIDY_SECONDS = 30.0
READ: Mapping[str, tuple[type[Observation | Analysis | Plan | Outcome], Kind]] = {
    OBSERVATIONS.name: (Observation, "observation"),
    ANALYSES.name: (Analysis, "analysis"),
    PLANS.name: (Plan, "plan"),
    OUTCOMES.name: (Outcome, "outcome"),
}
_log = structlog.get_logger("knowledge")
_REMEMBERED = Counter("weir_knowledge_messages_total", "Messages stored", ["kind"])
_DEAD_LETTERS = Counter(
    "weir_knowledge_dead_letters_total",
    "Dead letters of all services, as their topic has them",
    ["service", "topic", "code"],
)
_SUPPRESSED = Counter(
    "weir_knowledge_dead_letters_suppressed_total",
    "Unreadable messages without a dead letter, as the next dead letter of their process counts them",
    ["service"],
)
_service, _topic, _code = CardinalityLimiter(20), CardinalityLimiter(50), CardinalityLimiter(20)
Take = Callable[[list[Record]], Awaitable[None]]
"""Stores a batch. `StoreFull` and `StoreUnavailable` repeat it; an empty batch is taken as well."""


@dataclass(eq=False, repr=False)
class Batches:
    """Hands the records of topics to `take`, batch by batch, and commits each afterwards. An outage of the store skips
    no record.

    While the store is full, the batch is tried every `retry_seconds`, and that is logged once.
    """

    bus: Bus
    topics: Sequence[str]
    group: str
    take: Take
    on_revoked: PartitionsChanged | None = None
    retry_seconds: float = RETRY_SECONDS
    _pending: list[Record] = field(default_factory=list, init=False)
    _is_full: bool = field(default=False, init=False)

    async def follow(self, name: str, stop: Stop) -> None:
        """Take batches until stopped."""
        consumer = self.bus.consumer(self.topics, self.group, on_revoked=self.on_revoked)
        try:
            await run_forever(name, lambda: self._cycle(consumer, stop), stop)
        finally:
            await consumer.close()

    async def _cycle(self, consumer: Consumer, stop: Stop) -> None:
        if not self._pending:
            self._pending = await stop.race(consumer.receive(max_records=500, timeout_seconds=0.5)) or []
        try:
            await self.take(self._pending)
        except StoreFull as error:
            if not self._is_full:
                _log.warning("store-full", reason=str(error), retry_in_seconds=self.retry_seconds)
            self._is_full = True
            await stop.wait(self.retry_seconds)
            return
        if self._is_full:
            self._is_full = False
            _log.info("store-has-room")
        if self._pending:
            await consumer.commit()
            self._pending = []


@dataclass(eq=False, repr=False)
class Knowledge:
    """Connects the bus with the store."""

    bus: Bus
    store: Store
    clock: Clock
    limits: HistoryLimits
    dead_letters: DeadLetters
    rebuild_seconds: float = 120.0
    gauges: ApplicationGauges = field(default_factory=ApplicationGauges)
    retry_seconds: float = RETRY_SECONDS
    rebuilt: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set while the store has all data of the topics."""

    async def check_rebuilt(self) -> None:
        """Readiness: raises until the store was compared with the topics."""
        if not self.rebuilt.is_set():
            raise RuntimeError("the store is being compared with the topics")

    async def rebuild(self) -> None:
        """Restore the data of the topics that the store lacks: an empty store deletes nothing. May be called again."""
        restored = [await self._restore_policy(record) for record in (await self._latest(POLICIES)).values()]
        if not await self.store.is_complete():
            await self._restore_states()
            # Last, so that an interrupted rebuild starts again.
            await self.store.mark_complete()
        else:
            await self._complete_actions()
        _log.info("rebuilt", policies=sum(restored))
        self.rebuilt.set()

    async def _restore_policy(self, record: Record) -> bool:
        """Restore a policy from the topic, unless the store has a newer one; return whether the record has a policy."""
        version = version_of(record.headers)
        if record.value is None:
            if version is not None and record.key is not None:
                await self.store.restore_deletion(record.key, version.number)
            return False
        policy = readable(record, ScalingPolicy)
        if policy is None or policy.metadata.version is None:
            return False
        await self.store.restore_policy(policy)
        return True

    async def _restore_states(self) -> None:
        """Restore the newest message of each stage, and actions, of applications with a policy."""
        current = {policy.application for policy in await self.store.policies()}
        states: dict[str, State] = {}
        newest: dict[str, dict[Kind, str]] = defaultdict(dict)
        entries: list[tuple[str, HistoryEntry]] = []
        for topic in (ANALYSES, PLANS, OUTCOMES):
            model, kind = READ[topic.name]
            for record in (await self._latest(topic)).values():
                message = readable(record, model)
                if message is None or message.application not in current:
                    continue
                application = message.application
                if application not in states:
                    states[application] = await self.store.state(application) or State(application=application)
                before, after = states[application], remember(states[application], message, self.limits)
                states[application] = after
                entries += [] if after is before else history_entries(message, after)
                if after is not before or await self._lacks(application, kind, after.times):
                    newest[application][kind] = message.model_dump_json()
                if isinstance(message, Outcome):
                    await self._restore_action(message)
        await self.store.save(list(states.values()), [], entries, newest)

    async def _lacks(self, application: str, kind: Kind, times: NewestTimes) -> bool:
        """Return whether a state's newest message is missing: the store may have been emptied just before the state was
        written."""
        found = await self.store.newest(application, [kind])
        return found is None or getattr(found.times(), kind) != getattr(times, kind)

    async def _restore_action(self, outcome: Outcome) -> None:
        action = outcome.newest_action
        if action is not None and await self.store.action(action.application) is None:
            with suppress(VersionConflict):  # the executor was faster
                await self.store.put_action(action, 0)

    async def _complete_actions(self) -> None:
        """Store ends of actions that were published but not stored, or were lost with the store's last second."""
        for record in (await self._latest(OUTCOMES)).values():
            outcome = readable(record, Outcome)
            if outcome is not None:
                await self._end_action(outcome)

    async def _end_action(self, outcome: Outcome) -> None:
        """Store the end of an action from its outcome: the executor writes it as well, but continues if it cannot."""
        action = outcome.newest_action
        if action is None or not action.terminal:
            return
        stored = await self.store.action(action.application)
        if stored is not None and stored.id == action.id and stored.version < action.version:
            with suppress(VersionConflict):  # the executor was faster
                await self.store.put_action(action, stored.version)

    async def _latest(self, topic: Topic) -> dict[str, Record]:
        """Return the newest record of each key, by version if it has one."""
        reader = self.bus.reader(topic.name)
        latest: dict[str, Record] = {}
        versions = NewestVersions()
        try:
            async with asyncio.timeout(self.rebuild_seconds):
                while not await reader.caught_up():
                    for record in await reader.receive(timeout_seconds=0.2):
                        if record.key is None or UNSIGNED_HEADER in record.headers or versions.outdated(record):
                            continue
                        if not _is_late(record, latest.get(record.key)):
                            latest[record.key] = record
        finally:
            await reader.close()
        return latest

    async def follow(self, stop: Stop) -> None:
        """Store the messages of the loop until stopped."""
        await stop.race(self.rebuilt.wait())
        batches = Batches(self.bus, list(READ), GROUP, self._take_rebuilt, self.gauges.lost, self.retry_seconds)
        await batches.follow("knowledge", stop)

    async def _take_rebuilt(self, records: list[Record]) -> None:
        try:
            # Redis may have lost all data, or its last second: compare it with the topics before the next write.
            if not self.rebuilt.is_set() or not await self.store.is_complete():
                self.rebuilt.clear()
                await self.rebuild()
            if records:
                await self.take(records)
        except StoreFull:
            raise  # it has lost nothing
        except StoreUnavailable:
            self.rebuilt.clear()
            raise

    async def take(self, records: list[Record]) -> None:
        """Store a batch; `StoreUnavailable` repeats it."""
        refused: StoreFull | None = None
        with canonical_line(_log, "remembered", self.clock) as line:
            by_application: dict[str, list[Event]] = defaultdict(list)
            kinds: Tally[str] = Tally()
            for record in records:
                model, kind = READ[record.topic]
                decoded = await self.dead_letters.decoded(record, model)
                message = None if decoded is None else decoded.message
                kinds[kind if message is not None else "skipped"] += 1
                if message is not None:
                    by_application[message.application].append(message)
            line.update(records=len(records), kinds=dict(kinds), applications=len(by_application))
            line.update(_subject(records, by_application))
            try:
                line["new"] = await self._store_all(by_application)
            except StoreFull as error:
                # `Batches` logs it once, not at each attempt.
                refused = error
                line.clear()
        if refused is not None:
            raise refused

    async def _store_all(self, by_application: Mapping[str, list[Event]]) -> int:
        """Store the messages; return how many changed something."""
        current = await self.store.states(by_application)
        after = [await self._after(name, current[name], messages) for name, messages in by_application.items()]
        changed = [each for each in after if each.state is not current[each.application]]
        events = [(kind, each.application, text) for each in after for kind, text in each.events]
        await self._save([each for each in changed if not each.ended], events)
        # The feed first: a refused batch is repeated, and must publish the end then.
        for each in after:
            if each.ended:
                await self.store.forget(each.application)
        await self._save([each for each in changed if each.ended], [])
        for each in after:
            for message in by_application[each.application]:
                if isinstance(message, Outcome) and not (each.state and each.state.times.newer_than(message)):
                    await self._end_action(message)
        for kind, _, _ in events:
            _REMEMBERED.labels(kind).inc()
        return len(events)

    async def _save(self, changed: Sequence["_After"], events: Sequence[tuple[Kind, str, str]]) -> None:
        states = [each.state for each in changed if each.state is not None]
        entries = [entry for each in changed for entry in each.entries]
        if states or events:
            await self.store.save(states, events, entries, {each.application: each.newest for each in changed})

    async def _after(self, application: str, state: State | None, messages: list[Event]) -> "_After":
        """Apply `messages` to the state. Without a policy and a state only an observation counts: late messages do not
        restore an ended application."""
        after = _After(application, state)
        for message in sorted(messages, key=_instant):
            is_live = isinstance(message, Observation) and message.status != "ended"
            if after.state is None and not is_live and await self.store.policy(application) is None:
                continue
            changed = remember(after.state or State(application=application), message, self.limits)
            if changed is after.state:
                continue
            after.take(changed, message)
            self.gauges.saw(message)
        return after

    async def tidy_gauges(self, stop: Stop) -> None:
        """Drop series of applications whose policy was deleted while they were not monitored, until stopped."""

        async def cycle() -> None:
            policies = await self.store.policies()
            self.gauges.keep_only({policy.application for policy in policies}, self.clock.now())

        await run_forever("gauges", cycle, stop, pause_seconds=TIDY_SECONDS)


def _is_late(record: Record, newest: Record | None) -> bool:
    """Return whether a record is an outcome of an application's earlier owner, published after a newer one."""
    if record.topic != OUTCOMES.name or newest is None or record.value is None or newest.value is None:
        return False
    try:
        return precedes(decode(record, Outcome).message.order, decode(newest, Outcome).message.order)
    except Undecodable:
        return False


@dataclass
class _After:
    """One application after a batch of messages."""

    application: str
    state: State | None
    events: list[tuple[Kind, str]] = field(default_factory=list)
    """For the feed: each message as JSON."""
    newest: dict[Kind, str] = field(default_factory=dict)
    entries: list[tuple[str, HistoryEntry]] = field(default_factory=list)
    ended: bool = False
    """The application ended in this batch: its earlier data is to be deleted."""

    def take(self, changed: State, message: Event) -> None:
        """Add a message that has changed the state."""
        kind, text = kind_of(message), message.model_dump_json()
        self.events.append((kind, text))
        if isinstance(message, Observation) and message.status == "ended":
            self.state, self.newest, self.entries, self.ended = None, {}, [], True
            return
        self.state = changed
        self.newest[kind] = text
        self.entries += history_entries(message, changed)


def _subject(records: list[Record], applications: Collection[str]) -> dict[str, str]:
    """Return application and trace of a batch with only one."""
    found = {"application": next(iter(applications))} if len(applications) == 1 else {}
    traceparent = records[0].headers.get("traceparent") if len(records) == 1 else None
    return found | ({"traceparent": traceparent} if traceparent else {})


def _instant(message: Event) -> tuple[float, int]:
    at = message.at if isinstance(message, Outcome) else message.observed_at
    order = (Observation, Analysis, Plan, Outcome).index(type(message))
    return at.timestamp(), order


async def count_dead_letters(bus: Bus, stop: Stop) -> None:
    """Count the dead letters of every service until stopped. The analyzer's are written in Spark workers, without a
    counter."""

    async def take(records: list[Record]) -> None:
        for record in records:
            count_dead_letter(record)

    await Batches(bus, [DEAD_LETTERS.name], "weir-knowledge-dead-letters", take).follow("dead-letters", stop)


def count_dead_letter(record: Record) -> None:
    """Count one. An undecodable record counts as `unknown`: its dead letter would be undecodable again."""
    if record.value is None:
        return
    try:
        letter = decode(record, DeadLetter).message
    except Undecodable:
        _DEAD_LETTERS.labels("unknown", record.topic, "unknown").inc()
        return
    _DEAD_LETTERS.labels(_service(letter.service), _topic(letter.topic), _code(letter.code)).inc()
    _SUPPRESSED.labels(_service(letter.service)).inc(letter.suppressed)
