"""ScalingPolicy resources as they were read, and the status that they get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from weir_contracts import Outcome, ScalingPolicy, format_duration
from weir_contracts.resource import Condition, PolicyStatus
from weir_engines.kubernetes.values import count, instant, mapping, name, sequence

from .core import Summary

FIGURES = frozenset({"lagSeconds", "decision", "decidedAt"})
"""Fields of a status that change all the time."""
READY = "the policy is in force, its application is observed, and nothing keeps Weir from scaling it"


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
        judged += [_observed(summary), _scalable(summary)]
    judged.append(_ready(judged))
    if policy is not None and summary is not None and (bound := policy.spec.objective.max_lag) is not None:
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
        version = policy.metadata.version if policy else None
        as_version = "" if version is None else f" as version {version}"
        return "Accepted", True, "InForce", f"the policy is in force{as_version}"
    kept_generation = None if policy is None else policy.metadata.generation
    kept = "" if kept_generation is None else f". Generation {kept_generation} of this resource stays in force"
    return "Accepted", False, refusal.reason, f"{refusal.sentence}{kept}"


def _observed(summary: Summary) -> _Judged:
    if summary.silent:
        return "Observed", False, "Silent", f"no message lately from: {', '.join(summary.silent)}"
    return "Observed", True, "Current", "all services send messages"


def _scalable(summary: Summary) -> _Judged:
    if summary.obstacle_code is not None:
        return "Scalable", False, _camel_case(summary.obstacle_code), summary.obstacle or ""
    if summary.status is None:
        return "Scalable", None, "NotObserved", "the target was not observed yet"
    requests_nothing = "" if summary.mode == "act" else f"; mode {summary.mode} requests nothing"
    sentence = f"nothing is known that keeps Weir from scaling the target{requests_nothing}"
    return "Scalable", True, "NoObstacle", sentence


def _ready(judged: Sequence[_Judged]) -> _Judged:
    """Return the condition of the whole: reason and sentence of the first condition that does not hold."""
    odd = sorted((each for each in judged if not each[1]), key=lambda each: each[1] is None)
    if odd:
        return "Ready", *odd[0][1:]
    return "Ready", True if len(judged) > 1 else None, "Ready", READY


def _camel_case(code: str) -> str:
    return "".join(part.capitalize() for part in code.split("-"))


def _objective_met(summary: Summary, bound_seconds: float) -> _Judged:
    is_met = None if summary.lag_seconds is None else summary.lag_seconds <= bound_seconds
    if summary.lower_bounds.get("lag_seconds", 0.0) > bound_seconds:
        is_met = False
    bound = f"maxLag of {format_duration(timedelta(seconds=bound_seconds))}"
    if is_met is None:
        return "ObjectiveMet", None, "LagUnknown", f"lag is unknown; the policy has a {bound}"
    if is_met:
        return "ObjectiveMet", True, "WithinMaxLag", f"lag is within the {bound}"
    return "ObjectiveMet", False, "AboveMaxLag", f"lag exceeds the {bound}"


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


@dataclass(frozen=True)
class ResourceEvent:
    """Event of a resource, as `kubectl describe` shows it. The same key is the same event."""

    key: str
    reason: str
    message: str
    is_warning: bool

    def repeats(self, last: "ResourceEvent") -> bool:
        """Return whether it is a warning of the same code as the last event."""
        code = self.message.partition(":")[0]
        return self.is_warning and (self.reason, code) == (last.reason, last.message.partition(":")[0])

    @classmethod
    def of_refusal(cls, resource: Resource, refusal: Refusal) -> "ResourceEvent":
        """Return the event of a document that is not in force."""
        return cls(f"{resource.generation}-{refusal.reason.lower()}", "NotAccepted", refusal.sentence, is_warning=True)

    @classmethod
    def of_outcome(cls, outcome: Outcome) -> "ResourceEvent":
        """Return the event of a refused plan, or of a transition of an action."""
        is_warning = outcome.phase in ("refused", "failed", "rolling-back", "rolled-back")
        return cls(outcome.id.hex, _camel_case(outcome.phase), f"{outcome.code}: {outcome.sentence}", is_warning)
