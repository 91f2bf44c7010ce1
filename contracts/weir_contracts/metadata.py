"""Metadata of a policy: its identity and version, and the fields that Kubernetes sets."""

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import MAX_COUNT, MAX_ORDER, Name, Timestamp
from .document import Document

MAX_CALLER_CHARACTERS = 200
"""Maximum length of a token's name."""

_Label = Annotated[str, Field(max_length=317)]
Labels = Annotated[dict[_Label, Annotated[str, Field(max_length=63)]], Field(max_length=100, fail_fast=True)]
Annotations = Annotated[dict[_Label, Annotated[str, Field(max_length=1000)]], Field(max_length=50, fail_fast=True)]


class Metadata(Document):
    """Identity and version of the policy. Fields that Kubernetes sets are kept, so that a document may come from either
    side."""

    namespace: Name
    """Namespace of the application, in the form of a Kubernetes namespace. It separates the policies of teams."""
    name: Name
    """Name of the application, unique within its namespace."""
    version: Annotated[int | None, Field(default=None, ge=1, le=MAX_ORDER)] = None
    """Version of the policy, set by the knowledge service at each change. Send it back to replace only the version that
    you have read. It grows with each change; no version repeats, even after a deletion."""
    updated_at: Timestamp | None = None
    """Time of the last change, set by the knowledge service."""
    updated_by: Annotated[str | None, Field(default=None, max_length=MAX_CALLER_CHARACTERS)] = None
    """Token name of the last change's author, set by the knowledge service."""
    owner: Literal["rest", "resource"] | None = None
    """What may change and delete the policy, set by the knowledge service: its REST API (the default), or the
    ScalingPolicy resource of this name in Kubernetes. Both may read, pause and resume it."""
    mode_before_pause: Literal["advise", "act"] | None = None
    """Mode to which the policy resumes, set by the knowledge service while the application is paused. Default: a policy
    that was written as paused resumes to `advise`."""
    labels: Labels = Field(default_factory=dict)
    """Labels, at most 100. Default: none."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations, at most 50 of 1,000 characters; kubectl's own copy of the document is left out. Default: none."""
    uid: Annotated[str | None, Field(max_length=100)] = None
    """Set by Kubernetes."""
    resource_version: Annotated[str | None, Field(max_length=100)] = None
    """Set by Kubernetes, as text."""
    generation: Annotated[int | None, Field(ge=0, le=MAX_COUNT)] = None
    """Set by Kubernetes."""
    creation_timestamp: Timestamp | None = None
    """Set by Kubernetes."""
    deletion_timestamp: Timestamp | None = None
    """Set by Kubernetes."""


_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_CLUSTER_STATE = (
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
    "deletionGracePeriodSeconds",
    "generateName",
)


def without_cluster_state(document: Any) -> Any:
    """Return the document without the fields that `kubectl get -o yaml` adds and Weir does not keep."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict):
        return document
    kept = {key: value for key, value in metadata.items() if key not in _CLUSTER_STATE}
    if isinstance(annotations := kept.get("annotations"), dict):
        kept["annotations"] = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    return {**{key: value for key, value in document.items() if key != "status"}, "metadata": kept}
