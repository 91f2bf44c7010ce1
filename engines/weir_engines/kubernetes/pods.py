"""Pods: what a watch keeps of each, parsed from objects of any size and form."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from weir_contracts import Pod

from .values import count, instant, labels, mapping, name, quantity, sequence, text, whole

_PHASES = frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of a container that is about to start."""
_MAX_CONTAINERS = 200


class Controller(NamedTuple):
    """Object that created a pod and replaces it, from its `metadata.ownerReferences`."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PodReading:
    """Pod with what finds its workload."""

    pod: Pod
    uid: str
    labels: Mapping[str, str]
    controller: Controller | None = None
    """None: a pod that nothing controls."""
    ends: bool = False
    """Whether it is being deleted."""
    is_final: bool = False
    """Whether it has ended and is not started again: Succeeded or Failed."""
    addresses: tuple[str, ...] = ()
    """IP addresses of its own, empty for a pod in its node's network."""

    @property
    def counts(self) -> bool:
        """Whether it is one of its workload's replicas."""
        return not self.ends and not self.is_final

    @property
    def serves(self) -> bool:
        """Whether it is a replica that is ready."""
        return self.counts and self.pod.ready is True


def pod_of(document: Any) -> PodReading | None:
    """Return the reading of a pod; None for an object without name."""
    metadata, status = mapping(mapping(document).get("metadata")), mapping(mapping(document).get("status"))
    spec, called = mapping(mapping(document).get("spec")), name(metadata.get("name"))
    if not called:
        return None
    phase = text(status.get("phase"), 50)
    phase = phase if phase in _PHASES else ""
    containers = _statuses(status.get("containerStatuses"))
    initial = _statuses(status.get("initContainerStatuses"))
    conditions = {text(each.get("type"), 100): each for each in map(mapping, sequence(status.get("conditions")))}
    ready = mapping(conditions.get("Ready")).get("status")
    resources = _Resources.of(spec)
    return PodReading(
        pod=Pod(
            name=called,
            ready={"True": True, "False": False}.get(ready) if isinstance(ready, str) else None,
            started_at=instant(status.get("startTime")),
            phase=phase,
            reason=_reason(status, mapping(conditions.get("PodScheduled")), [*initial, *containers]),
            restarts=_restarts([*initial, *containers]),
            restarted_at=_restarted_at([*initial, *containers]),
            out_of_memory=any(_killed_for_memory(each) for each in [*initial, *containers]),
            cpu_request_cores=resources.total("requests", "cpu"),
            cpu_limit_cores=resources.total("limits", "cpu"),
            memory_request_bytes=whole(resources.total("requests", "memory")),
            memory_limit_bytes=whole(resources.total("limits", "memory")),
        ),
        uid=name(metadata.get("uid"), 100),
        labels=labels(metadata.get("labels")),
        controller=_controller(metadata.get("ownerReferences")),
        ends=metadata.get("deletionTimestamp") is not None,
        is_final=phase in ("Succeeded", "Failed"),
        addresses=() if spec.get("hostNetwork") is True else _addresses(status),
    )


def _controller(owners: Any) -> Controller | None:
    for each in map(mapping, sequence(owners)[:100]):
        if each.get("controller") is True:
            return Controller(text(each.get("kind"), 63), name(each.get("name")), name(each.get("uid"), 100))
    return None


def _addresses(status: Mapping[str, Any]) -> tuple[str, ...]:
    found = [status.get("podIP"), *(mapping(each).get("ip") for each in sequence(status.get("podIPs"))[:10])]
    return tuple(dict.fromkeys(filter(None, (text(each, 50) for each in found))))


def _statuses(value: Any) -> list[Mapping[str, Any]]:
    return [mapping(each) for each in sequence(value)[:_MAX_CONTAINERS]]


def _reason(status: Mapping[str, Any], scheduled: Mapping[str, Any], containers: Iterable[Mapping[str, Any]]) -> str:
    """Return why a pod does not run; empty if it runs, or is about to."""
    if own := text(status.get("reason"), 100):
        return _joined(own, status.get("message"))  # evicted, lost with its node
    if scheduled.get("status") == "False":
        return _joined(text(scheduled.get("reason"), 100) or "Unschedulable", scheduled.get("message"))
    for container in containers:
        state = mapping(container.get("state"))
        waiting, ended = mapping(state.get("waiting")), mapping(state.get("terminated"))
        reason = text(waiting.get("reason"), 100)
        if reason and reason not in _STARTING:
            return _joined(reason, waiting.get("message"))
        reason = text(ended.get("reason"), 100)
        if reason and reason != "Completed":
            return _joined(reason, ended.get("message"))
    return ""


def _joined(reason: str, message: Any) -> str:
    detail = text(message, 390)
    return f"{reason}: {detail}" if detail else reason


def _restarts(containers: list[Mapping[str, Any]]) -> int | None:
    counts = [count(each.get("restartCount")) for each in containers]
    present = [each for each in counts if each is not None and each < 2**31]
    return sum(present) if present else None


def _restarted_at(containers: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return when the last restarted container began to run; None while a restarted one does not run."""
    found: list[datetime] = []
    for each in containers:
        state = mapping(each.get("state"))
        has_completed = mapping(state.get("terminated")).get("reason") == "Completed"
        if has_completed or not count(each.get("restartCount")):
            continue
        started = instant(mapping(state.get("running")).get("startedAt"))
        if started is None:
            return None
        found.append(started)
    return max(found, default=None)


def _killed_for_memory(container: Mapping[str, Any]) -> bool:
    states = (mapping(container.get(key)) for key in ("state", "lastState"))
    return any(mapping(state.get("terminated")).get("reason") == "OOMKilled" for state in states)


@dataclass(frozen=True, slots=True)
class _Resources:
    """Resources of a pod and of its containers that run as long as it does."""

    own: Mapping[str, Any]
    containers: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "_Resources":
        initial = [mapping(each) for each in sequence(spec.get("initContainers"))[:_MAX_CONTAINERS]]
        sidecars = [each for each in initial if each.get("restartPolicy") == "Always"]
        containers = [mapping(each) for each in sequence(spec.get("containers"))[:_MAX_CONTAINERS]]
        return cls(
            mapping(spec.get("resources")), tuple(mapping(each.get("resources")) for each in [*containers, *sidecars])
        )

    def total(self, what: str, resource: str) -> float | None:
        """Return cores or bytes over all containers; None unless the pod or each of its containers names them."""
        own = quantity(mapping(self.own.get(what)).get(resource))
        if own is not None:
            return own
        found = [quantity(mapping(each.get(what)).get(resource)) for each in self.containers]
        present = [each for each in found if each is not None]
        return sum(present) if present and len(present) == len(found) else None
