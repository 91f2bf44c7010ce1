"""ScalingPolicy resources as they were read, and the status that they get."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir_contracts import ScalingPolicy
from weir_contracts.resource import (
    MAX_OPERATORS,
    Condition,
    LastAction,
    LastDecision,
    OperatorSizes,
    PolicyStatus,
    Sizes,
)
from weir_engines.kubernetes.values import count, instant, mapping, name, sequence

from .decisions import is_paused_by_annotation, pause_of
from .resource_conditions import InForce, Refusal, accepted, conditions_of, degraded, ready


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

    @property
    def pause(self) -> str | None:
        """Why its annotation pauses the application; None if it does not."""
        annotations = mapping(mapping(self.document.get("metadata")).get("annotations"))
        return pause_of({key: str(text) for key, text in annotations.items()})

    def is_of(self, policy: ScalingPolicy) -> bool:
        """Return whether a stored policy is what this resource says."""
        metadata = policy.metadata
        return (metadata.owner, metadata.uid, metadata.generation) == ("resource", self.uid, self.generation)

    def pauses_as(self, policy: ScalingPolicy) -> bool:
        """Return whether a stored policy is paused if the annotation says so, and not by the annotation otherwise."""
        return policy.spec.mode == "paused" if self.pause is not None else not is_paused_by_annotation(policy)


def status_of(resource: Resource, refusal: Refusal | None, found: InForce | None, now: datetime) -> dict[str, Any]:
    """Return the status of a resource as JSON, without unknown figures. `found` is about the policy in force that a
    resource of this name wrote; None: there is none."""
    policy = None if found is None else found.policy
    of_document, of_policy = accepted(refusal, policy), conditions_of(found)
    whole = degraded([of_document, *of_policy], found)
    kept_generation = None if policy is None else policy.metadata.generation
    before = {each.get("type"): each for each in map(mapping, sequence(resource.status.get("conditions")))}
    conditions = []
    for each in (of_document, *of_policy, whole, ready(whole)):
        status = {True: "True", False: "False", None: "Unknown"}[each.holds]
        was = before.get(each.type, {})
        since = instant(was.get("lastTransitionTime")) if was.get("status") == status else None
        generation = kept_generation if each in of_policy else None
        conditions.append(
            Condition(
                type=each.type,
                status=status,
                reason=each.reason,
                message=each.sentence,
                observed_generation=generation or resource.generation,
                last_transition_time=since or now.replace(microsecond=0),
            )
        )
    figures = {} if found is None else _figures(found)
    written = PolicyStatus(observed_generation=resource.generation, conditions=conditions, **figures)
    return written.model_dump(mode="json", by_alias=True, exclude_none=True)


def _figures(found: InForce) -> dict[str, Any]:
    plan, summary = found.newest.plan, found.summary
    vectors = {"wanted": summary.planned, "requested": summary.requested, "running": summary.observed}
    known = {name: vector for name, vector in vectors.items() if vector}
    operators = list(dict.fromkeys(operator for vector in known.values() for operator in vector))[:MAX_OPERATORS]
    return {
        "mode": summary.mode,
        "lag_seconds": None if summary.lag_seconds is None else round(summary.lag_seconds, 1),
        "parallelism": Sizes(**{name: sum(vector.values()) for name, vector in known.items()}) if known else None,
        "operators": [
            OperatorSizes(name=operator, **{name: vector.get(operator) for name, vector in known.items()})
            for operator in operators
        ],
        "decision": None
        if plan is None
        else LastDecision(kind=plan.kind, code=plan.code, sentence=plan.sentence, at=plan.created_at),
        "action": None
        if summary.action is None or summary.action_phase is None
        else LastAction(phase=summary.action_phase, sentence=summary.action),
    }


def differs(wanted: Mapping[str, Any], present: Mapping[str, Any], *, in_figures: bool) -> bool:
    """Return whether a status is to be written over the present one; `in_figures`: also if only figures and sentences
    differ."""
    if in_figures:
        return dict(wanted) != dict(present)
    return _without_figures(wanted) != _without_figures(present)


def _without_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status without what changes with each message: lag, times and sentences."""
    return {
        **{name: value for name, value in status.items() if name != "lagSeconds"},
        "conditions": [{**mapping(each), "message": ""} for each in sequence(status.get("conditions"))],
        "decision": {name: mapping(status.get("decision")).get(name) for name in ("kind", "code")},
        "action": mapping(status.get("action")).get("phase"),
    }


def merge_patch(wanted: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that makes the present object the wanted one: fields that it does not have are removed."""
    return {
        **dict.fromkeys(present.keys() - wanted.keys()),
        **{
            name: merge_patch(value, mapping(present.get(name))) if isinstance(value, Mapping) else value
            for name, value in wanted.items()
        },
    }
