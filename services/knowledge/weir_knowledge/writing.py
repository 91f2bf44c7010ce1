"""One batch while it is made: the next records of some partitions, and what they change in the store. Pure."""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from weir_contracts import Analysis, Notification, Observation, Outcome, Plan, ScalingPolicy
from weir_contracts.topics import POLICIES
from weir_runtime.bus import Record

from .core import HistoryEntry, HistoryLimits, State, history_entries, remember
from .newest import Event, Kind, kind_of
from .notifications import KEPT, KIND, Waiting, of_analysis, of_outcome
from .partition import Deletion, Partition, decision_of, policy_version
from .store import Batch, Fields, Key, Position
from .view import TEXT, Stored, action_fields, policy_fields, state_change


@dataclass
class Changes:
    """Changes of documents, in the order in which they are made: the last one of a document counts."""

    deleted: set[Key] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    removed: dict[Key, Collection[str]] = field(default_factory=dict)
    changed: dict[Key, Fields] = field(default_factory=dict)

    def delete(self, key: Key) -> None:
        self.changed.pop(key, None)
        self.removed.pop(key, None)
        self.deleted.add(key)

    def forget(self, application: str) -> None:
        """Delete what only messages have led to."""
        self.delete(("state", application))
        self.forgotten.add(application)


@dataclass(eq=False)
class _Next:
    """A partition after this batch."""

    offsets: dict[str, int]
    versions: dict[str, int]
    policies: dict[str, int]


LateAfter = Callable[[str], timedelta | None]
"""Returns for how long an objective of a namespace is missed before its receiver is told. None: it has no receiver."""


def no_receiver(_namespace: str) -> timedelta | None:
    return None


class Writing:
    """First all decisions, then all messages, then the states that these lead to. A message counts if its application has
    a policy: one without is late, or early if its policy may not have been read yet."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        now: datetime,
        late_after: LateAfter = no_receiver,
        history_until: Mapping[int, datetime] = MappingProxyType({}),
    ) -> None:
        """`history_until`: of each partition whose store was new, the time up to which messages are no news."""
        self.partitions, self._now, self._late_after = partitions, now, late_after
        self._history_until = history_until
        self._now_ms = int(now.timestamp() * 1000)
        self._next: dict[int, _Next] = {}
        self._stored: dict[str, Stored] = {}
        self.changes = Changes()
        self.ended: dict[str, Deletion] = {}
        """By application."""
        self._put: dict[str, ScalingPolicy] = {}
        self.messages: dict[str, list[Event]] = defaultdict(list)
        """Those that count, by application."""
        self.early: set[int] = set()
        """Partitions with a message whose policy may not have been read yet."""
        self.events: list[tuple[Kind, str, str]] = []
        self.entries: list[tuple[str, HistoryEntry]] = []
        self.remembered: list[Event] = []
        """Messages that changed something."""
        self.kinds: Tally[str] = Tally()
        self.notifications = 0
        """Number of notifications to deliver."""
        self._news_since: dict[str, datetime] = {}
        """By application with messages: time after which they are news."""

    def _following(self, record: Record) -> _Next:
        before = self.partitions[record.partition]
        position = before.position or Position()
        if record.partition not in self._next:
            self._next[record.partition] = _Next({**position.offsets}, {**position.versions}, {**before.policies})
        following = self._next[record.partition]
        following.offsets[record.topic] = record.offset + 1
        return following

    def decide(self, record: Record) -> None:
        """Add a record of policies or actions."""
        following, decision = self._following(record), decision_of(record, self._now_ms)
        if decision is None:
            return
        application, version = decision.application, decision.version
        following.versions[record.topic] = max(version, following.versions.get(record.topic, 0))
        changed = self.changes.changed
        if record.topic != POLICIES.name and decision.action is not None:
            changed["action", application] = action_fields(decision.action, version)
        elif record.topic != POLICIES.name:
            self.changes.delete(("action", application))
        elif decision.policy is not None:
            changed["policy", application] = policy_fields(decision.policy)
            following.policies[application] = version
            self._put[application] = decision.policy
        else:
            self._delete(application, version, following)

    def _delete(self, application: str, version: int, following: _Next) -> None:
        self.changes.delete(("policy", application))
        if following.policies.pop(application, None) is not None:
            self.ended[application] = Deletion(version, self._put.get(application))
            self.changes.forget(application)

    def hear(self, record: Record, message: Event | None) -> None:
        """Add a record of the loop; None: it could not be read."""
        following = self._following(record)
        is_end = isinstance(message, Observation) and message.status == "ended"
        if message is None or is_end:  # an end is that of its policy
            self.kinds["skipped"] += 1
        elif message.application in following.policies and not self._is_of_deleted(message):
            self.kinds[kind_of(message)] += 1
            self.messages[message.application].append(message)
            oldest = self._now - KEPT
            self._news_since[message.application] = max(oldest, self._history_until.get(record.partition, oldest))
        else:
            version = policy_version(message)
            if version is None or version > following.versions.get(POLICIES.name, 0):
                self.early.add(record.partition)
            self.kinds["late"] += 1

    def _is_of_deleted(self, message: Event) -> bool:
        """Return whether a message is of a policy that this batch deletes, though there is another one now."""
        deletion = self.ended.get(message.application)
        return deletion is not None and (policy_version(message) or 0) < (deletion.version or 0)

    def remember(self, states: Mapping[str, Stored | None], limits: HistoryLimits) -> None:
        """Compute the states of all applications with messages from those that are stored."""
        for application, messages in self.messages.items():
            stored = states[application]
            before = None if stored is None else stored.state
            after, newest = before, dict[Kind, str]()
            for message in sorted(messages, key=_instant):
                changed = remember(after or State(application=application), message, limits)
                if isinstance(message, Observation) and message.imported is not None:
                    # No reading: neither the newest observation nor an event.
                    after = changed
                    self.entries += history_entries(message, changed)
                elif changed is not after:
                    self._notify(after, changed, message)
                    after, text = changed, message.model_dump_json()
                    newest[kind_of(message)] = text
                    self.remembered.append(message)
                    self.events.append((kind_of(message), application, text))
                    self.entries += history_entries(message, changed)
            if after is not None and after is not before:
                change, key = state_change(before, after, newest), ("state", application)
                self.changes.changed[key] = change.fields
                self.changes.removed[key] = change.removed
                self._stored[application] = (stored or Stored(after, {})).changed(after, change)

    def _notify(self, before: State | None, after: State, message: Event) -> None:
        """Add the notification that a message leads to, with the change of the state that decides it."""
        application = message.application
        late_after = self._late_after(application.partition("/")[0])
        if late_after is None or _at(message) <= self._news_since[application]:
            return
        notification: Notification | None = None
        if isinstance(message, Analysis):
            notification = of_analysis(None if before is None else before.lateness, after.lateness, message, late_after)
        elif isinstance(message, Outcome):
            cycles = before.cycles if before is not None else []
            earlier = [each for cycle in cycles for each in cycle.outcomes if each.plan_id == message.plan_id]
            notification = of_outcome(message, earlier)
        if notification is not None:
            place = Waiting.of(notification, self._now, self.notifications)
            self.changes.changed[KIND, place.key] = {TEXT: notification.model_dump_json()}
            self.notifications += 1

    def batch(self) -> Batch:
        changes = self.changes
        return Batch(
            continues={p: self.partitions[p].position for p in self._next},
            positions={p: self._position(each) for p, each in self._next.items()},
            deleted=changes.deleted,
            forgotten=changes.forgotten,
            removed=changes.removed,
            changed=changes.changed,
            events=self.events,
            entries=self.entries,
        )

    def applied(self) -> Mapping[str, Stored]:
        """The store has the batch: move the partitions on; return the states that were written."""
        for partition, following in self._next.items():
            owned = self.partitions[partition]
            owned.position, owned.policies = self._position(following), following.policies
        return self._stored

    def _position(self, following: _Next) -> Position:
        return Position(following.offsets, following.versions, self._now_ms)


def _at(message: Event) -> datetime:
    return message.at if isinstance(message, Outcome) else message.observed_at


def _instant(message: Event) -> tuple[float, int]:
    at = _at(message)
    order = (Observation, Analysis, Plan, Outcome).index(type(message))
    return at.timestamp(), order
