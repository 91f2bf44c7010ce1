"""Workloads: objects with a scale subresource, parsed from objects of any size and form."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from weir_contracts import WorkloadStatus

from .discovery import Kind
from .values import Selector, count, instant, label_selector, mapping, name, parse_selector, sequence, text

_BUILT_IN = frozenset({"apps", ""})
"""Groups whose kinds have `spec.replicas` and a selector in the object itself."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Manager that owns `spec.replicas`, from `metadata.managedFields`."""

    manager: str
    """Name of the manager: `kubectl-client-side-apply`, `weir`."""
    subresource: str = ""
    """`scale` for a write through the scale subresource."""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkloadReading:
    """Workload as the API server reports it."""

    kind: Kind
    status: WorkloadStatus
    version: str
    """resourceVersion of the object, or of its `Scale` where `wanted` was read from it."""
    generation: int | None
    observed_generation: int | None
    """Generation that the workload's controller has acted on. None: unknown, or the kind has none."""
    selector: Selector | None
    """Selector of its pods. None: unknown, empty or invalid."""
    created_at: datetime | None = None
    template: str = ""
    """Hash of `spec.template`: another one is another version of the program. Empty if the kind has none."""
    writers: tuple[Writer, ...] = ()

    @property
    def is_observed(self) -> bool:
        """Whether its controller has acted on the newest generation; true for a kind that does not report it."""
        return (
            self.generation is None or self.observed_generation is None or self.observed_generation >= self.generation
        )

    def with_scale(self, document: Any) -> "WorkloadReading | None":
        """Return the reading with replicas and selector of its `Scale`; None for an invalid one."""
        metadata, spec = mapping(mapping(document).get("metadata")), mapping(mapping(document).get("spec"))
        status = mapping(mapping(document).get("status"))
        version = name(metadata.get("resourceVersion"), 100)
        if mapping(document).get("kind") != "Scale" or not version:
            return None
        counts = {"wanted": count(spec.get("replicas")) or 0, "current": count(status.get("replicas"))}
        return replace(
            self,
            status=self.status.model_copy(update=counts),
            version=version,
            selector=parse_selector(status.get("selector")),
        )


def has_own_replicas(kind: Kind) -> bool:
    """Return whether replicas and selector are in the object; else they are read from its scale subresource."""
    return kind.group in _BUILT_IN


def workload_of(document: Any, kind: Kind) -> WorkloadReading | None:
    """Return the reading of a workload; None for an object without name or uid."""
    document = mapping(document)
    metadata, spec, status = (mapping(document.get(key)) for key in ("metadata", "spec", "status"))
    called, uid = name(metadata.get("name")), name(metadata.get("uid"), 100)
    if not called or not uid:
        return None
    selector = spec.get("selector")
    wanted, current, updated = _counts(kind, spec, status)
    return WorkloadReading(
        kind=kind,
        status=WorkloadStatus(
            kind=kind.kind,
            name=called,
            namespace=name(metadata.get("namespace"), 63),
            uid=uid,
            wanted=1 if wanted is None else wanted,
            current=current,
            updated=updated,
            ready=_ready(kind, status),
            one_by_one=kind.kind == "StatefulSet" and spec.get("podManagementPolicy") != "Parallel",
            rolling_out=_is_rolling_out(spec, status, wanted, current, updated),
            paused=spec.get("paused") is True,
            reason=_failure(status),
        ),
        version=name(metadata.get("resourceVersion"), 100),
        generation=count(metadata.get("generation")),
        observed_generation=_observed(status.get("observedGeneration")),
        selector=_selector(kind, selector) if has_own_replicas(kind) else None,
        created_at=instant(metadata.get("creationTimestamp")),
        template=_hash(spec.get("template")),
        writers=_writers(metadata.get("managedFields")),
    )


def _selector(kind: Kind, document: Any) -> Selector | None:
    """Return the selector; a ReplicationController's is a map of labels."""
    return label_selector({"matchLabels": document} if kind.group == "" else document)


def _counts(
    kind: Kind, spec: Mapping[str, Any], status: Mapping[str, Any]
) -> tuple[int | None, int | None, int | None]:
    """Return wanted, current and updated replicas. Omitted counters of the built-in kinds are 0."""
    wanted, current = count(spec.get("replicas")), count(status.get("replicas"))
    updated = count(status.get("updatedReplicas"))
    if kind.group == "apps" and status:
        current = current or 0
        if kind.kind != "ReplicaSet":
            updated = updated or 0
        if kind.kind == "StatefulSet" and status.get("currentRevision") == status.get("updateRevision"):
            updated = current
    return wanted, current, updated


def _observed(value: Any) -> int | None:
    """Return the observed generation; Argo's kinds write it as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 19 else count(value)


def _ready(kind: Kind, status: Mapping[str, Any]) -> int | None:
    """Return the ready replicas; the built-in kinds omit the field while it is 0."""
    found = count(status.get("readyReplicas"))
    return 0 if found is None and status and has_own_replicas(kind) else found


def _is_rolling_out(
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    wanted: int | None,
    current: int | None,
    updated: int | None,
) -> bool:
    """Return whether replicas of an earlier version are left. A StatefulSet's below its partition stay on purpose."""
    if current is None or updated is None or spec.get("paused") is True:
        return False
    strategy = mapping(spec.get("updateStrategy"))
    if strategy.get("type") == "OnDelete":
        return False
    kept = count(mapping(strategy.get("rollingUpdate")).get("partition")) or 0
    if "updateRevision" in status:
        return updated < min(current, wanted if wanted is not None else current) - kept
    return updated < current


def _failure(status: Mapping[str, Any]) -> str:
    """Return why replicas cannot be created, such as an exceeded quota; empty if they can."""
    for each in map(mapping, sequence(status.get("conditions"))):
        if each.get("type") == "ReplicaFailure" and each.get("status") == "True":
            reason, message = text(each.get("reason"), 100) or "ReplicaFailure", text(each.get("message"), 390)
            return f"{reason}: {message}" if message else reason
    return ""


def _hash(template: Any) -> str:
    if not isinstance(template, dict):
        return ""
    try:
        written = json.dumps(template, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return ""
    return hashlib.sha256(written.encode(errors="replace")).hexdigest()[:16]


def _writers(value: Any) -> tuple[Writer, ...]:
    found = []
    for each in map(mapping, sequence(value)[:100]):
        manager = text(each.get("manager"), 128)
        if manager and "f:replicas" in mapping(mapping(each.get("fieldsV1")).get("f:spec")):
            found.append(Writer(manager, text(each.get("subresource"), 63), instant(each.get("time"))))
    return tuple(found)
