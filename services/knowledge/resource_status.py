"""ScalingPolicy resources as they were read, and the status that they get."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir_contracts import ScalingPolicy
from weir_contracts.resource import Condition, PolicyStatus

from engines.kubernetes.values import count, instant, mapping, name, sequence

from . import messages
from .core import Summary

FIGURES = frozenset({"lagSeconds", "decision", "decidedAt"})
"""Fields of a status that change all the time."""


@dataclass(frozen=True)
class Resource:
    """A resource as it was read."""

    application: str
    uid: str
    generation: int
    document: Mapping[str, Any]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Resource":
        """Return the resource of a document of the API server."""
        metadata = mapping(document.get("metadata"))
        application = f"{name(metadata.get('namespace'))}/{name(metadata.get('name'))}"
        return cls(application, name(metadata.get("uid")), count(metadata.get("generation")) or 0, document)

    @property
    def status(self) -> Mapping[str, Any]:
        """The status that it has."""
        return mapping(self.document.get("status"))

    def is_of(self, policy: ScalingPolicy) -> bool:
        """Return whether a stored policy is what this resource says."""
        metadata = policy.metadata
        return (metadata.owner, metadata.uid, metadata.generation) == ("resource", self.uid, self.generation)


@dataclass(frozen=True)
class Refusal:
    """Why the document of a resource is not in force."""

    reason: str
    sentence: str


def status_of(
    resource: Resource, refusal: Refusal | None, policy: ScalingPolicy | None, summary: Summary | None, now: datetime
) -> dict[str, Any]:
    """Return the status of a resource as JSON, without unknown figures. `policy` is the one in force that a resource of
    this name wrote, and `summary` its application's; None: there is none."""
    judged = [_accepted(refusal, policy)]
    if policy is not None and summary is not None:
        judged.append(_observed(summary))
        if (bound := policy.spec.objective.max_lag) is not None:
            judged.append(_objective_met(summary, bound.total_seconds()))
    before = {each.get("type"): each for each in map(mapping, sequence(resource.status.get("conditions")))}
    conditions = []
    for type_, holds, reason, sentence in judged:
        status = {True: "True", False: "False", None: "Unknown"}[holds]
        was = before.get(type_, {})
        since = instant(was.get("lastTransitionTime")) if was.get("status") == status else None
        conditions.append(
            Condition(
                type=type_,
                status=status,
                reason=reason,
                message=sentence,
                observed_generation=resource.generation,
                last_transition_time=since or now.replace(microsecond=0),
            )
        )
    figures = {} if summary is None else _figures(summary)
    found = PolicyStatus(observed_generation=resource.generation, conditions=conditions, **figures)
    return found.model_dump(mode="json", by_alias=True, exclude_none=True)


_Judged = tuple[str, bool | None, str, str]
"""Type, whether it holds, reason and sentence of a condition."""


def _accepted(refusal: Refusal | None, policy: ScalingPolicy | None) -> _Judged:
    if refusal is None:
        return "Accepted", True, "InForce", messages.in_force(policy.metadata.version if policy else None)
    kept = None if policy is None else policy.metadata.generation
    return "Accepted", False, refusal.reason, messages.not_in_force(refusal.sentence, kept)


def _observed(summary: Summary) -> _Judged:
    silent = summary.silent
    return "Observed", not silent, "Silent" if silent else "Current", messages.silent(silent)


def _objective_met(summary: Summary, bound_seconds: float) -> _Judged:
    is_met = None if summary.lag_seconds is None else summary.lag_seconds <= bound_seconds
    if summary.lower_bounds.get("lag_seconds", 0.0) > bound_seconds:
        is_met = False
    reason = {True: "WithinMaxLag", False: "AboveMaxLag", None: "LagUnknown"}[is_met]
    return "ObjectiveMet", is_met, reason, messages.objective_met(is_met, bound_seconds)


def _figures(summary: Summary) -> dict[str, Any]:
    return {
        "mode": summary.mode,
        "lag_seconds": None if summary.lag_seconds is None else round(summary.lag_seconds, 1),
        "subtasks": sum(summary.observed.values()) if summary.observed else None,
        "planned_subtasks": sum(summary.planned.values()) if summary.planned else None,
        "decision_code": summary.decision_code,
        "decision": summary.decision,
        "decided_at": summary.decided_at,
    }


def differs(wanted: Mapping[str, Any], present: Mapping[str, Any], *, in_figures: bool) -> bool:
    """Return whether a status is to be written over the present one; `in_figures`: also if only figures differ."""
    compared = wanted.keys() | present.keys()
    return any(wanted.get(name) != present.get(name) for name in (compared if in_figures else compared - FIGURES))
