"""Decides changes of policies and actions in the order of the log (docs/adr/0014). Pure: the log is all that it knows.

`decide` alone assigns and compares versions, and decides which policy has a target and who owns a policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from weir_contracts import ActionState, Answer, Change, ScalingPolicy, printable
from weir_contracts.change import MAX_REASON, Owner
from weir_contracts.document import MAX_ANNOTATIONS
from weir_contracts.resource import PAUSED, RELEASE
from weir_engines.registry import Claim, claims, rival

BECAUSE = "weir.dev/mode-because"
"""Annotation with the reason that the last pause or resume gave."""
EXPIRED_SECONDS = 30.0
"""Age from which a change is refused: its caller was told long ago that it is not known, and may have done the opposite."""


@dataclass(frozen=True)
class Log:
    """Policies and actions after the decisions so far."""

    policies: Mapping[str, ScalingPolicy] = field(default_factory=dict)
    actions: Mapping[str, ActionState] = field(default_factory=dict)
    newest_version: int = 0
    """Of all decisions, also of those that the topics have lost."""
    claimed: Mapping[str, frozenset[Claim]] = field(default_factory=dict)
    """What each policy claims."""

    @classmethod
    def of(
        cls, policies: Mapping[str, ScalingPolicy], actions: Mapping[str, ActionState], newest_version: int = 0
    ) -> "Log":
        """Return the log with these policies and actions."""
        return cls(policies, actions, newest_version, {name: claims(each.subject) for name, each in policies.items()})

    def rival(self, policy: ScalingPolicy) -> str | None:
        """Return the first other application, by name, whose policy claims some of the same."""
        others = {name: claimed for name, claimed in self.claimed.items() if name != policy.application}
        return rival(claims(policy.subject), others)

    def with_policy(self, application: str, policy: ScalingPolicy | None, version: int) -> "Log":
        """Return the log after a policy got a version, or its deletion, which takes its action along."""
        policies = {name: each for name, each in self.policies.items() if name != application}
        claimed = {name: each for name, each in self.claimed.items() if name != application}
        actions = self.actions
        if policy is None:
            actions = {name: each for name, each in actions.items() if name != application}
        else:
            policies[application], claimed[application] = policy, claims(policy.subject)
        return replace(self, policies=policies, actions=actions, claimed=claimed, newest_version=version)

    def displaced(self) -> list[str]:
        """Return applications whose target a newer policy has: the log lost the deletion of the older one."""
        newest_first = sorted(self.policies.values(), key=lambda each: -(each.metadata.version or 0))
        taken: set[Claim] = set()
        found = []
        for each in newest_first:
            if taken & self.claimed[each.application]:
                found.append(each.application)
            else:
                taken |= self.claimed[each.application]
        return found

    def following(self, appended_ms: int) -> int:
        """Return the version of a decision on what the log got at this time."""
        return max(appended_ms, self.newest_version + 1)


def is_expired(change: Change, appended_at: datetime, now: datetime) -> bool:
    """Return whether the caller no longer waits for the decision."""
    return change.again is None and (now - appended_at).total_seconds() > EXPIRED_SECONDS


def decide(log: Log, change: Change, appended_ms: int) -> tuple[Log, Answer]:
    """Decide the next change, which the log got at `appended_ms`."""
    version = log.following(appended_ms)
    if change.kind == "action":
        return _action(log, change, version)
    current = log.policies.get(change.application)
    if change.kind in ("pause", "resume"):
        return _mode(log, change, current, version)
    number = (current.metadata.version or 0) if current else 0
    if change.again is not None:
        if number >= change.again:
            return log, Answer(change_id=change.id, refused="conflict", policy=current)
    elif current is not None and not _may_write(change, current):
        return log, Answer(change_id=change.id, refused="owned", policy=current)
    if change.expected is not None and change.expected != number:
        return log, Answer(change_id=change.id, refused="conflict", policy=current)
    if change.policy is None:
        if current is None:
            return log, Answer(change_id=change.id, refused="missing")
        return log.with_policy(change.application, None, version), Answer(change_id=change.id, version=version)
    if current is not None and change.owner == "rest" and as_written(change.policy) == as_written(current):
        return log, Answer(change_id=change.id, policy=current)
    if (other := log.rival(change.policy)) is not None:
        return log, Answer(change_id=change.id, refused="taken", policy=current, rival=other)
    return _stored(log, change, change.policy, version)


def _action(log: Log, change: Change, version: int) -> tuple[Log, Answer]:
    """Replace the action whose version was read. One of a deleted policy would be that of a later policy."""
    if change.application not in log.policies:
        return log, Answer(change_id=change.id, refused="missing")
    current = log.actions.get(change.application)
    if change.action is None or change.expected != (current.version if current else 0):
        return log, Answer(change_id=change.id, refused="conflict", action=current)
    actions = {**log.actions, change.application: change.action}
    changed = replace(log, actions=actions, newest_version=version)
    return changed, Answer(change_id=change.id, version=version, action=change.action)


def _mode(log: Log, change: Change, current: ScalingPolicy | None, version: int) -> tuple[Log, Answer]:
    """Pause or resume the policy in force, also one of another owner. A resource ends the pauses of its annotation only;
    a caller who pauses what the annotation has paused keeps it paused when that goes, and one who pauses it again replaces
    the reason."""
    if current is None:
        return log, Answer(change_id=change.id, refused="missing")
    if change.owner == "resource" and current.metadata.owner != "resource":
        return log, Answer(change_id=change.id, refused="owned", policy=current)
    is_paused, by_annotation = current.spec.mode == "paused", is_paused_by_annotation(current)
    if change.kind == "pause":
        own = dict(current.metadata.annotations)
        is_same = change.reason is None or _with_room(own, BECAUSE, change.reason) == own
        is_done = is_paused and (change.owner == "resource" or (is_same and not by_annotation))
    else:
        is_done = not is_paused or (change.owner == "resource" and not by_annotation)
    if is_done:
        return log, Answer(change_id=change.id, policy=current)
    annotations = {name: text for name, text in current.metadata.annotations.items() if name not in (BECAUSE, PAUSED)}
    if change.kind == "pause":
        mode, before = "paused", current.metadata.mode_before_pause if is_paused else current.spec.mode
        if change.owner == "resource":
            annotations = _with_room(annotations, PAUSED, "true")
    else:
        resumed = current.metadata.mode_before_pause if current.spec.target.driver is not None else None
        mode, before = resumed or "advise", None
    if change.reason is not None:
        annotations = _with_room(annotations, BECAUSE, change.reason)
    changed = with_metadata(current, mode_before_pause=before, annotations=annotations)
    changed = changed.model_copy(update={"spec": changed.spec.model_copy(update={"mode": mode})})
    return _stored(log, change, changed, version)


def _with_room(annotations: Mapping[str, str], name: str, text: str) -> dict[str, str]:
    """Return the annotations with one more, or without it if the policy has as many as it may."""
    if len(annotations) >= MAX_ANNOTATIONS and name not in annotations:
        return dict(annotations)
    return {**annotations, name: text}


def is_paused_by_annotation(policy: ScalingPolicy) -> bool:
    """Return whether the policy is paused because of its annotation, and by nothing else."""
    return policy.spec.mode == "paused" and pause_of(policy.metadata.annotations) is not None


def pause_of(annotations: Mapping[str, str]) -> str | None:
    """Return why annotations pause an application; None if they do not."""
    said = annotations.get(PAUSED, "false")
    if said == "false":
        return None
    return f"annotation {PAUSED}" if said in ("true", "") else printable(said, MAX_REASON)[:MAX_REASON]


def as_annotated(policy: ScalingPolicy) -> ScalingPolicy:
    """Return a policy as its annotation says: paused, to resume in the mode that it has. One whose own mode is paused
    loses the annotation: removing that resumes nothing."""
    annotations, reason = policy.metadata.annotations, pause_of(policy.metadata.annotations)
    if reason is None:
        return policy
    if policy.spec.mode == "paused":
        return with_metadata(policy, annotations={name: text for name, text in annotations.items() if name != PAUSED})
    annotated = with_metadata(
        policy, mode_before_pause=policy.spec.mode, annotations=_with_room(annotations, BECAUSE, reason)
    )
    return annotated.model_copy(update={"spec": annotated.spec.model_copy(update={"mode": "paused"})})


def _stored(log: Log, change: Change, policy: ScalingPolicy, version: int) -> tuple[Log, Answer]:
    stored = with_metadata(policy, version=version, updated_at=change.at, updated_by=change.caller)
    was_created = change.application not in log.policies
    answer = Answer(change_id=change.id, version=version, policy=stored, was_created=was_created)
    return log.with_policy(change.application, stored, version), answer


def _may_write(change: Change, current: ScalingPolicy) -> bool:
    """Return whether the present owner writes, or left the policy to the other one."""
    owner: Owner = "resource" if current.metadata.owner == "resource" else "rest"
    if owner == change.owner or (owner == "resource" and change.owners_policy_is_free):
        return True
    return change.owner == "resource" and change.kind == "put" and current.metadata.annotations.get(RELEASE) == "true"


def with_metadata(policy: ScalingPolicy, **changes: object) -> ScalingPolicy:
    """Return the policy with these fields of its metadata; None or nothing removes one from the document."""
    metadata = policy.metadata.model_copy(update=changes)
    metadata.model_fields_set.difference_update(name for name, value in changes.items() if value is None or value == {})
    return policy.model_copy(update={"metadata": metadata})


def as_written(policy: ScalingPolicy) -> dict[str, object]:
    """Return the document without the fields that the decision sets."""
    document = policy.to_document()
    for name in ("version", "updatedAt", "updatedBy"):
        document["metadata"].pop(name, None)
    return document
