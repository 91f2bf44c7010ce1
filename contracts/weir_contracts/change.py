"""Change: a request to write a policy or an action, and the answer of the process that decides it.

Both are records of one topic with one partition, whose order is the order of the decisions
(docs/adr/0014-the-log-decides-policies-and-actions.md).
"""

from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from .base import MAX_ORDER, ApplicationId, Message, Timestamp
from .outcome import ActionState
from .policy import ScalingPolicy

MAX_CALLER = 200
"""Characters of a caller's name."""
MAX_REASON = 200
"""Characters of the reason of a pause."""
Version = Annotated[int, Field(ge=0, le=MAX_ORDER)]
ChangeKind = Literal["put", "delete", "pause", "resume", "action"]
Refused = Literal["conflict", "missing", "owned", "taken", "expired", "unwritable"]
"""conflict: the change names another version. missing: there is no policy. owned: the policy has another owner. taken:
another policy has the target. expired: nobody waits for the decision any more. unwritable: the brokers refuse it."""
Owner = Literal["rest", "resource"]


class Change(Message):
    """Request to change a policy or an action. What the log does not know was checked by the process that wrote it."""

    id: UUID
    kind: ChangeKind
    """put: replace or create the policy. delete, pause and resume: the policy in force. action: replace the action."""
    application: ApplicationId
    caller: Annotated[str, Field(max_length=MAX_CALLER)]
    """Name of the caller who requests it."""
    at: Timestamp
    """Time of the request, by the clock of the process that wrote it."""
    reason: Annotated[str, Field(max_length=MAX_REASON)] | None = None
    """Why the caller pauses or resumes, for people. None: the caller gave no reason."""
    expected: Version | None = None
    """Version to replace. 0: there must be none. None: any."""
    seen: Version | None = None
    """Version of the policy in the view when the change was requested. None: there was none, or it is not known."""
    owner: Owner = "rest"
    """Owner that writes, pauses or resumes the policy: the REST API, or a resource of Kubernetes."""
    owners_policy_is_free: bool = False
    """Whether every owner may write a resource's policy, since that resource is no more, or its namespace is not listed."""
    again: Version | None = None
    """Version that a view has of this change, which the log has lost. None: it is a new change."""
    policy: ScalingPolicy | None = None
    """Policy of a put. None: the change is another one."""
    action: ActionState | None = None
    """New state of the action. None: the change is another one."""


class Answer(Message):
    """Decision about a change."""

    change_id: UUID
    """Id of the change."""
    refused: Refused | None = None
    """Reason of the refusal. None: the change is in force."""
    version: Version | None = None
    """Version of the decision in the log. None: nothing changed."""
    policy: ScalingPolicy | None = None
    """Policy that is in force now. None: there is none, or the change was an action."""
    action: ActionState | None = None
    """Action that is in force now. None: there is none, or the change was one of a policy."""
    rival: ApplicationId | None = None
    """Application that has the target. None: this is not the reason of the refusal."""
    was_created: bool = False
    """Whether there was no policy before."""


class ChangeRecord(Message):
    """Record of the topic of changes: a request or an answer."""

    request: Change | None = None
    """Request. None: the record is an answer."""
    answer: Answer | None = None
    """Answer. None: the record is a request."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.request is None) == (self.answer is None):
            raise ValueError("must have a request or an answer")
        return self
