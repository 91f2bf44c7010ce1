"""A partition on the replica that owns it: the policies and actions that are in force by the log, and those that only the
view has. Pure.

Policies and actions are read from the beginning whenever a replica gets a partition. A position alone would not do: a
store that was away for longer than a tombstone is kept would show the deleted policy for ever, and a log that was cut and
has grown again has other records there.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid5

from weir_contracts import ActionState, Change, Outcome, Plan, ScalingPolicy, derive_id
from weir_contracts.base import WEIR_NAMESPACE
from weir_contracts.topics import ACTIONS, POLICIES
from weir_runtime.bus import Record, version_of
from weir_runtime.messages import is_tombstone
from weir_runtime.reading import readable

from .newest import Event
from .store import Fields, Key, Position
from .view import action_fields, policy_fields

DECIDED = (POLICIES.name, ACTIONS.name)
"""Topics of decisions."""
DELETIONS_KNOWN_MS = 12 * 3_600_000
"""Half the time for which the topic keeps a deletion (`delete.retention.ms`)."""
MAX_AHEAD_MS = 86_400_000
"""Of a version before the clock, as the decider allows it."""
KINDS_OF = {POLICIES.name: "policy", ACTIONS.name: "action"}
"""Kinds of the documents that they become."""
CALLER = "knowledge"
"""Author of the changes that only the view has."""


@dataclass(frozen=True)
class Decision:
    """A record of one of these topics."""

    application: str
    version: int
    policy: ScalingPolicy | None = None
    """None: deleted, or the record is one of actions."""
    action: ActionState | None = None


@dataclass(frozen=True)
class Deletion:
    """The end of a policy."""

    version: int | None
    """None: the topic has it no more."""
    policy: ScalingPolicy | None
    """What was deleted. None: it is not known from the topic."""


def decision_of(record: Record, now_ms: int) -> Decision | None:
    """Return what a record of a topic of decisions says; None for an unreadable one, which leaves its key as it was. A
    version far ahead of the clock was not given by a decider, and counts for none."""
    if record.key is None:
        return None
    version = version_of(record.headers) or 0
    version = version if version <= now_ms + MAX_AHEAD_MS else 0
    if is_tombstone(record):
        return Decision(record.key, version)
    if record.topic == POLICIES.name:
        policy = readable(record, ScalingPolicy)
        return None if policy is None else Decision(record.key, version, policy=policy)
    action = readable(record, ActionState)
    return None if action is None else Decision(record.key, version, action=action)


@dataclass
class Decisions:
    """Policies and actions as the log has them up to `offsets`."""

    now_ms: int
    """When the reading began."""
    offsets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DECIDED, 0))
    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DECIDED, 0))
    policies: dict[str, ScalingPolicy] = field(default_factory=dict)
    deletions: dict[str, Deletion] = field(default_factory=dict)
    """The newest ones that the topic still has, also of policies that were written again."""
    actions: dict[str, tuple[ActionState, int]] = field(default_factory=dict)
    """With their versions in the log."""
    unreadable: set[Key] = field(default_factory=set)
    """What the topics have records of, and none that can be read: the view keeps what it has."""
    deleted: set[Key] = field(default_factory=set)
    """What the newest record that can be read deletes."""

    def add(self, record: Record) -> None:
        """Add the next record of one of the topics."""
        self.offsets[record.topic] = record.offset + 1
        decision, kind = decision_of(record, self.now_ms), KINDS_OF[record.topic]
        if decision is None:
            known = self.policies if kind == "policy" else self.actions
            if record.key is not None and record.key not in known and (kind, record.key) not in self.deleted:
                self.unreadable.add((kind, record.key))
            return
        key = (kind, decision.application)
        self.unreadable.discard(key)
        if decision.policy is None and decision.action is None:
            self.deleted.add(key)
        else:
            self.deleted.discard(key)
        self.versions[record.topic] = max(decision.version, self.versions[record.topic])
        if record.topic == POLICIES.name:
            before = self.policies.pop(decision.application, None)
            if decision.policy is not None:
                self.policies[decision.application] = decision.policy
            else:
                self.deletions[decision.application] = Deletion(decision.version, before)
        else:
            self.actions.pop(decision.application, None)
            if decision.action is not None:
                self.actions[decision.application] = decision.action, decision.version

    def documents(self) -> dict[Key, Fields]:
        """Return the documents that the view is to have."""
        found: dict[Key, Fields] = {("policy", name): policy_fields(policy) for name, policy in self.policies.items()}
        return found | {("action", name): action_fields(*each) for name, each in self.actions.items()}

    def position(self, before: Position | None, now_ms: int) -> Position:
        """Return the position of a view that shows these, and what it showed of the other topics."""
        return Position({**(before.offsets if before else {}), **self.offsets}, dict(self.versions), now_ms)

    def ended(self, applications: Collection[str], before: Position | None) -> dict[str, Deletion]:
        """Return the deletions since `before`, and those of the view's applications without a policy or a deletion in the log."""
        shown = 0 if before is None else before.versions.get(POLICIES.name, 0)
        new = {name: deletion for name, deletion in self.deletions.items() if (deletion.version or 0) > shown}
        gone = [name for name in applications if name not in self.policies and ("policy", name) not in self.unreadable]
        return {name: self.deletions.get(name, Deletion(None, None)) for name in gone} | new

    def ends_before(self, position: Position, topic: str) -> bool:
        """Return whether the view has a newer version than the log: the log lost its end."""
        return position.versions.get(topic, 0) > self.versions[topic]

    def lost(self, topic: str, viewed: Mapping[str, int], position: Position, now_ms: int) -> list[str]:
        """Return which of the view's documents of a topic, with their versions, the log has lost.

        The versions of a key only grow in the log. A record that can be read is removed by one that cannot. A policy that
        is not there at all was lost, unless the view was away for so long that its deletion may be gone as well.
        """
        current = {name: policy.metadata.version or 0 for name, policy in self.policies.items()}
        if topic == ACTIONS.name:
            current = {name: version for name, (_, version) in self.actions.items()}
        would_know = topic == POLICIES.name and now_ms - position.written_ms < DELETIONS_KNOWN_MS
        unreadable = {name for kind, name in self.unreadable if kind == KINDS_OF[topic]}
        known = current.keys() | (self.deletions.keys() if topic == POLICIES.name else set())
        lost = []
        for name, version in viewed.items():
            if name in current:
                is_lost = version > current[name]
            else:
                is_lost = version > self.versions[topic] or name in unreadable or (would_know and name not in known)
            if is_lost and version <= now_ms + MAX_AHEAD_MS:
                lost.append(name)
        return lost


@dataclass(eq=False)
class Partition:
    """A partition of this replica."""

    position: Position | None
    """Of the view."""
    beginning: Decisions | None
    """What was read since the beginning; None once the view has it, and the partition is followed."""
    policies: dict[str, int] = field(default_factory=dict)
    """Versions of the policies in force, by application, at `position`."""
    is_followed: bool = False
    """The messages of the loop are read."""

    def offset(self, topic: str) -> int:
        """Return the next offset of a topic that the view does not show."""
        return 0 if self.position is None else self.position.offsets.get(topic, 0)


def policy_version(message: Event) -> int | None:
    """Return the version of the policy that a message was made for. None: it names none, or the version is unknown."""
    if isinstance(message, Outcome):
        return None
    return message.policy_version if isinstance(message, Plan) else message.policy.metadata.version


def policy_again(
    policy: ScalingPolicy, version: int, decisions: Decisions, now: datetime, *, is_deletion: bool = False
) -> Change:
    """Return the request for a policy or its deletion, which the view has in a version. It replaces what the log has."""
    application, current = policy.application, decisions.policies.get(policy.application)
    return Change(
        id=uuid5(WEIR_NAMESPACE, f"{application} again {version}"),
        kind="delete" if is_deletion else "put",
        application=application,
        caller=policy.metadata.updated_by or CALLER,
        at=now,
        expected=0 if current is None else current.metadata.version,
        owner="resource" if policy.metadata.owner == "resource" else "rest",
        again=version,
        policy=None if is_deletion else policy,
    )


def action_change(action: ActionState, current: ActionState | None, now: datetime, again: int | None = None) -> Change:
    """Return the request to replace an action by one that the view has, in the version `again`, or that an outcome
    reports."""
    return Change(
        id=derive_id(action.id, f"version {action.version}"),
        kind="action",
        application=action.application,
        caller=CALLER,
        at=now,
        expected=0 if current is None else current.version,
        again=again,
        action=action,
    )
