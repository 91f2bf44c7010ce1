"""The shell: applies the log to the store, partition by partition."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog
from prometheus_client import Counter

from weir_contracts import (
    ActionState,
    Analysis,
    Change,
    Observation,
    Outcome,
    Plan,
    ScalingPolicy,
    ended_observation,
)
from weir_contracts.topics import ANALYSES, OBSERVATIONS, OUTCOMES, PLANS, POLICIES
from weir_runtime.bus import Bus, Consumer, Record, Refused
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, canonical_line, run_forever
from weir_runtime.reading import DeadLetters

from .core import HistoryLimits
from .decider import record_of
from .gauges import ApplicationGauges
from .newest import Event, Kind, kind_of
from .partition import DECIDED, KINDS_OF, Decisions, Deletion, Partition, action_change, policy_again
from .store import RETRY_SECONDS, Batch, Incomplete, Key, NotContinued, Position, StoreFull
from .view import TEXT, VERSION, View, state_cache
from .writing import Changes, LateAfter, Writing, no_receiver

GROUP = "weir-knowledge"
READ: Mapping[str, tuple[type[Observation | Analysis | Plan | Outcome], Kind]] = {
    OBSERVATIONS.name: (Observation, "observation"),
    ANALYSES.name: (Analysis, "analysis"),
    PLANS.name: (Plan, "plan"),
    OUTCOMES.name: (Outcome, "outcome"),
}
"""Topics of the loop's messages."""
DOUBT_SECONDS = 10.0
"""Between two readings of a partition's policies because of messages without a policy: some come as long as a monitor
watches a policy that the log has lost."""
TOLD_AGAIN = timedelta(minutes=10)
"""Of what an emptied store had: messages of this long before it is read again are told of once more, and older ones are history."""
_log = structlog.get_logger("knowledge")
_REMEMBERED = Counter("weir_knowledge_messages_total", "Messages stored", ["kind"])


@dataclass(eq=False, repr=False)
class Knowledge:
    """Applies the partitions of this replica to the store.

    Policies and actions of a partition are read from the beginning, and replace the store's at once; then everything is
    followed from the store's position. A batch that does not continue that position, since another replica was faster
    or the store was emptied, is dropped, and the partition is read from the beginning again.
    """

    bus: Bus
    view: View
    clock: Clock
    limits: HistoryLimits
    dead_letters: DeadLetters
    request: Callable[[Sequence[Change]], Awaitable[None]]
    """Writes requests into the log: for what only the view has, and for ends of actions that only outcomes report."""
    gauges: ApplicationGauges = field(default_factory=ApplicationGauges)
    late_after: LateAfter = no_receiver
    """Of the receivers of notifications."""
    on_notifications: Callable[[], None] = lambda: None
    """Called when the store has new ones to deliver."""
    retry_seconds: float = RETRY_SECONDS
    cache_characters: int = 16_000_000
    _waiting: set[int] = field(default_factory=set, init=False)
    """Partitions that this replica owns and has not begun to read."""
    _owned: dict[int, Partition] = field(default_factory=dict, init=False)
    """Those that it reads."""
    _pending: list[Record] = field(default_factory=list, init=False)
    _doubted: dict[int, float | None] = field(default_factory=dict, init=False)
    """Monotonic second at which the policies of a partition had been read once more for early messages; None: they are
    being read."""
    _history_until: dict[int, datetime] = field(default_factory=dict, init=False)
    """Of partitions whose store was new or empty: time up to which messages are history, of which no receiver is told."""
    _is_full: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._states = state_cache(self.cache_characters)
        """Valid while the position of their partition is the store's."""

    @property
    def partitions(self) -> Collection[int]:
        """Partitions that this replica owns."""
        return self._owned.keys()

    async def check_complete(self) -> None:
        """Readiness: raises until the store has the policies and actions of all partitions."""
        if None in (await self.view.store.applied(range(self.view.partitions))).values():
            raise Incomplete

    async def follow(self, stop: Stop) -> None:
        """Apply the log until stopped."""
        consumer = self.bus.consumer(
            [*DECIDED, *READ], GROUP, positioned=True, on_assigned=self._waiting.update, on_revoked=self._lose
        )
        try:
            await run_forever("knowledge", lambda: self._cycle(consumer, stop), stop)
        finally:
            await consumer.close()

    def _lose(self, partitions: Collection[int]) -> None:
        """Forget partitions that another replica owns."""
        self._drop(partitions)
        for partition in partitions:
            self._history_until.pop(partition, None)
        self.gauges.lost(partitions)

    def _restart(self, partitions: Collection[int]) -> None:
        """Read partitions from the beginning again."""
        self._drop(partitions)
        self._waiting.update(partitions)

    def _drop(self, partitions: Collection[int]) -> None:
        self._waiting.difference_update(partitions)
        for partition in partitions:
            self._owned.pop(partition, None)
        self._pending = [record for record in self._pending if record.partition not in partitions]
        for application in [name for name in self._states if self.view.partition(name) in partitions]:
            del self._states[application]

    async def _cycle(self, consumer: Consumer, stop: Stop) -> None:
        await self._begin(consumer)
        if not self._pending:
            self._pending = await stop.race(consumer.receive(max_records=500, timeout_seconds=0.5)) or []
        if not self._pending:
            await self._compare()  # an emptied store is noticed without a message, too
        try:
            await self._advance(consumer)
        except (NotContinued, Incomplete) as error:
            _log.info("not-continued", reason=str(error))
            await self._compare()
        except StoreFull as error:
            if not self._is_full:
                _log.warning("store-full", reason=str(error), retry_in_seconds=self.retry_seconds)
            self._is_full = True
            await stop.wait(self.retry_seconds)
            return
        if self._is_full:
            self._is_full = False
            _log.info("store-has-room")

    async def _begin(self, consumer: Consumer) -> None:
        """Begin to read policies and actions of new partitions. The position comes first: whatever another replica applies
        from now on makes it another one."""
        if not self._waiting:
            return
        positions = await self.view.store.applied(sorted(self._waiting))
        now = self.clock.now()
        begun = {
            p: Partition(position, Decisions(_milliseconds(now)))
            for p, position in positions.items()
            if p in self._waiting
        }
        self._history_until |= {p: now - TOLD_AGAIN for p, each in begun.items() if each.position is None}
        self._waiting.difference_update(begun)
        self._owned.update(begun)
        try:
            await consumer.begin({(topic, p): 0 for p in begun for topic in DECIDED})
        except BaseException:
            self._restart([p for p, each in begun.items() if self._owned.get(p) is each])
            raise

    async def _compare(self) -> None:
        """Read those partitions again whose position in the store is another one."""
        positions = await self.view.store.applied(list(self._owned))
        changed = sorted(p for p, each in self._owned.items() if p in positions and positions[p] != each.position)
        if changed:
            _log.info("read-again", partitions=changed)
            self._restart(changed)

    async def _advance(self, consumer: Consumer) -> None:
        """Apply what was received; nothing of it stays pending."""
        for record in self._pending:
            reading = self._owned.get(record.partition)
            if reading is not None and reading.beginning is not None and record.topic in DECIDED:
                reading.beginning.add(record)  # others are read again, from the view's position
        ended = consumer.ended
        read = {p: each for p, each in self._owned.items() if {(topic, p) for topic in DECIDED} <= ended}
        await self._replace_all({p: each for p, each in read.items() if each.beginning is not None})
        new = {p: each for p, each in self._owned.items() if each.beginning is None and not each.is_followed}
        if new:
            await consumer.begin({(topic, p): each.offset(topic) for p, each in new.items() for topic in READ})
            for each in new.values():
                each.is_followed = True
        await self._take()
        self._pending = []

    async def _replace_all(self, partitions: Mapping[int, Partition]) -> None:
        """Replace the store's policies and actions of these partitions by those that were read."""
        if not partitions:
            return
        kept: dict[int, dict[str, list[str]]] = {p: {"policy": [], "action": [], "state": []} for p in partitions}
        for kind in ("policy", "action", "state"):
            for name in await self.view.store.keys(kind):
                if (partition := self.view.partition(name)) in kept:
                    kept[partition][kind].append(name)
        for partition, owned in partitions.items():
            if owned.beginning is not None and self._owned.get(partition) is owned:
                await self._replace(partition, owned, owned.beginning, kept[partition])

    async def _replace(
        self, partition: int, owned: Partition, decisions: Decisions, kept: Mapping[str, Sequence[str]]
    ) -> None:
        """Replace a partition's policies and actions, and end what has no policy; `kept` has the names in the store."""
        store, before = self.view.store, owned.position
        again = [] if before is None else await self._lost_by_log(decisions, before, kept)
        if again:
            await self._check_position(partition, before)
            _log.warning("lost-by-the-log", partition=partition, applications=[each.application for each in again])
            await self.request(again)
        restored = {each.application for each in again if each.kind == "put"}
        changes, events = Changes(), list[tuple[Kind, str, str]]()
        documents = decisions.documents()
        for kind in ("policy", "action"):
            for key in ((kind, name) for name in kept[kind]):
                if key not in documents and key not in decisions.unreadable:
                    changes.delete(key)
        held = [name for name in kept["policy"] if ("policy", name) in decisions.unreadable]
        held_policies = await store.get([("policy", name) for name in held])
        ended = decisions.ended(sorted({*kept["policy"], *kept["state"]} - restored), before)
        for application, deletion in ended.items():
            events += await self._end(application, deletion, before)
            changes.forget(application)
        position = decisions.position(before, _milliseconds(self.clock.now()))
        await store.apply(
            Batch(
                {partition: before},
                {partition: position},
                changes.deleted,
                changes.forgotten,
                changed=documents,
                events=events,
            )
        )
        self._pending = [r for r in self._pending if r.partition != partition]
        owned.position, owned.beginning = position, None
        policies = [ScalingPolicy.model_validate_json(fields[TEXT]) for fields in held_policies.values()]
        policies += decisions.policies.values()
        owned.policies = {policy.application: policy.metadata.version or 0 for policy in policies}
        if partition in self._doubted:
            self._doubted[partition] = self.clock.monotonic()
        for application in changes.forgotten:
            self._states.pop(application, None)
        _log.info("partition-read", partition=partition, policies=len(owned.policies), ended=sorted(changes.forgotten))

    async def _lost_by_log(
        self, decisions: Decisions, position: Position, kept: Mapping[str, Sequence[str]]
    ) -> list[Change]:
        """Return the requests for what only the view has: policies, deletions and actions."""
        now, lost = self.clock.now(), list[Key]()
        for topic, kind in KINDS_OF.items():
            found = await self.view.store.get([(kind, name) for name in kept[kind]], [VERSION])
            versions = {name: int(fields[VERSION]) for (_, name), fields in found.items()}
            lost += [(kind, name) for name in decisions.lost(topic, versions, position, _milliseconds(now))]
        requests = list[Change]()
        for (kind, name), fields in (await self.view.store.get(lost)).items():
            version = int(fields[VERSION])
            if kind == "policy":
                policy = ScalingPolicy.model_validate_json(fields[TEXT])
                requests.append(policy_again(policy, version, decisions, now))
            else:
                action, (current, _) = (
                    ActionState.model_validate_json(fields[TEXT]),
                    decisions.actions.get(name, (None, 0)),
                )
                requests.append(action_change(action, current, now, version))
        if decisions.ends_before(position, POLICIES.name):
            deleted_in = position.versions[POLICIES.name]
            undeleted = [policy for name, policy in decisions.policies.items() if name not in kept["policy"]]
            requests += [policy_again(each, deleted_in, decisions, now, is_deletion=True) for each in undeleted]
        return requests

    async def _check_position(self, partition: int, position: Position | None) -> None:
        """`NotContinued` if what was read after this position may be what another replica wrote since."""
        if (await self.view.store.applied([partition]))[partition] != position:
            raise NotContinued(partition)

    async def _end(self, application: str, deletion: Deletion, before: Position | None) -> list[tuple[Kind, str, str]]:
        """Publish the end of an application, which is forgotten with the next write, so that other services forget it as
        well; return its event. An owner that was paused must not date it after what came since `before`."""
        self.gauges.forget(application)
        found = await self.view.store.get([("policy", application)])
        newest = await self.view.newest(application, ["observation", "analysis"])
        state = await self.view.state(application)
        await self._check_position(self.view.partition(application), before)
        policy, version = deletion.policy, deletion.version
        if policy is None and ("policy", application) in found:
            policy = ScalingPolicy.model_validate_json(found["policy", application][TEXT])
        elif policy is None and newest is not None and (message := newest.observation or newest.analysis) is not None:
            policy = message.policy
        if policy is None:
            return []
        # Dated by the deletion and later than the newest message: readers ignore an older one.
        at = self.clock.now()
        if version is not None:
            at = min(at, datetime.fromtimestamp(version / 1000, UTC))
        if state is not None and state.times.newest is not None:
            at = max(at, state.times.newest + timedelta(milliseconds=1))
        observation = ended_observation(policy, at)
        record = record_of(OBSERVATIONS, application, observation, observation.id, at, exclude_unset=False)
        try:
            await self.bus.publish_many([record])
        except Refused as error:
            _log.error("end-refused", application=application, reason=str(error))
        return [("observation", application, observation.model_dump_json())]

    async def _take(self) -> None:
        """Apply the pending records of followed partitions in one batch."""
        followed = {p: each for p, each in self._owned.items() if each.beginning is None}
        records = [record for record in self._pending if record.partition in followed]
        if cut := {
            r.partition for r in records if r.topic in DECIDED and r.offset < followed[r.partition].offset(r.topic)
        }:
            _log.warning("cut-log", partitions=sorted(cut))
            self._restart(cut)
            records = [record for record in records if record.partition not in cut]
        if not records:
            return
        refused: StoreFull | None = None
        with canonical_line(_log, "remembered", self.clock) as line:
            writing = Writing(followed, self.clock.now(), self.late_after, self._history_until)
            await self._read(writing, records)
            if early := {partition for partition in writing.early if not self._was_doubted(partition)}:
                # The policies are read to their end: then the messages are late, or their policy is there.
                self._restart(early)
                self._doubted |= dict.fromkeys(early)
            else:
                line.update(_subject(records, writing.messages), records=len(records), kinds=dict(writing.kinds))
                line.update(applications=len(writing.messages))
                try:
                    await self._write(writing)
                    line["new"] = len(writing.remembered)
                except StoreFull as error:
                    # `_cycle` logs it once, not at each attempt.
                    refused = error
                    line.clear()
        if refused is not None:
            raise refused
        if early:
            await self._take()  # what is left

    def _was_doubted(self, partition: int) -> bool:
        """Return whether the policies of a partition were read again so lately that what they do not have is late."""
        read_at = self._doubted.get(partition)
        return read_at is not None and self.clock.monotonic() - read_at < DOUBT_SECONDS

    async def _read(self, writing: Writing, records: Sequence[Record]) -> None:
        """Decisions come first: a message that was received with its policy has one."""
        for record in records:
            if record.topic in DECIDED:
                writing.decide(record)
        for record in records:
            if record.topic in READ:
                decoded = await self.dead_letters.decoded(record, READ[record.topic][0])
                writing.hear(record, None if decoded is None else decoded.message)

    async def _write(self, writing: Writing) -> None:
        for application, deletion in writing.ended.items():
            before = writing.partitions[self.view.partition(application)].position
            writing.events += await self._end(application, deletion, before)
        names = [name for name in writing.messages if name not in self._states and name not in writing.ended]
        states = await self.view.states(names)
        cached = {name: self._states.get(name) for name in writing.messages if name not in writing.ended}
        writing.remember({name: cached.get(name) or states.get(name) for name in writing.messages}, self.limits)
        if ends := await self._ends_of_actions(writing.remembered):
            await self.request(ends)
        await self.view.store.apply(writing.batch())
        if writing.notifications:
            self.on_notifications()
        for application in writing.ended:
            self._states.pop(application, None)
        for application, stored in writing.applied().items():
            self._states.pop(application, None)
            with suppress(ValueError):  # a state larger than the cache is read again each time
                if self.view.partition(application) in self._owned:
                    self._states[application] = stored
        for message in writing.remembered:
            self.gauges.saw(message)
            _REMEMBERED.labels(kind_of(message)).inc()

    async def _ends_of_actions(self, messages: Sequence[Event]) -> list[Change]:
        """Return the requests to end actions by their outcomes: the executor writes the end as well, but continues if it
        cannot."""
        ends = list[Change]()
        for message in messages:
            action = message.newest_action if isinstance(message, Outcome) else None
            if action is not None and action.terminal:
                stored = await self.view.action(action.application)
                if stored is not None and stored.id == action.id and stored.version < action.version:
                    ends.append(action_change(action, stored, self.clock.now()))
        return ends


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _subject(records: Sequence[Record], applications: Collection[str]) -> dict[str, str]:
    """Return application and trace of a batch with only one."""
    found = {"application": next(iter(applications))} if len(applications) == 1 else {}
    traceparent = records[0].headers.get("traceparent") if len(records) == 1 else None
    return found | ({"traceparent": traceparent} if traceparent else {})
