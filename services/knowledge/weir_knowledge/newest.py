"""The newest messages of an application, and what is kept of them at a glance. Pure."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, get_args

from pydantic import Field

from weir_contracts import (
    Analysis,
    Deployment,
    Message,
    Observation,
    Outcome,
    OutcomeOrder,
    Parallelism,
    Plan,
    Score,
    precedes,
)
from weir_contracts.base import Timestamp

from .notifications import Lateness
from .spend import (
    Advice,
    Spend,
)

Event = Observation | Analysis | Plan | Outcome
Kind = Literal["observation", "analysis", "plan", "outcome"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_PROBLEMS = 10


class NewestTimes(Message):
    """When the newest message of each kind was observed; of outcomes the order of the newest. None: none arrived yet."""

    observation: Timestamp | None = None
    analysis: Timestamp | None = None
    plan: Timestamp | None = None
    outcome: OutcomeOrder | None = None

    def newer_than(self, outcome: Outcome) -> bool:
        """Return whether an outcome is older than the newest one, whatever order the two arrived in."""
        return self.outcome is not None and precedes(outcome.order, self.outcome)

    @property
    def newest(self) -> datetime | None:
        """When the newest message of all kinds was observed."""
        outcome = self.outcome and self.outcome[1]
        return max((at for at in (self.observation, self.analysis, self.plan, outcome) if at), default=None)


class Newest(Message):
    """The newest message of each kind of one application, for clients; the next message does not need them."""

    application: str
    observation: Observation | None = None
    analysis: Analysis | None = None
    plan: Plan | None = None
    outcome: Outcome | None = None

    @classmethod
    def read(cls, application: str, documents: Mapping[str, str]) -> "Newest":
        """Read JSON by kind. `ValueError` for an invalid message."""
        parts = [("application", json.dumps(application)), *documents.items()]
        body = ",".join(f'"{name}":{text}' for name, text in parts)
        return cls.model_validate_json(f"{{{body}}}")

    def times(self) -> NewestTimes:
        """Return the times that a state keeps of these messages."""
        messages = (message for kind in KINDS if (message := getattr(self, kind)) is not None)
        return NewestTimes().model_copy(update={kind_of(message): position(message) for message in messages})


class Glance(Message):
    """The parts of the newest messages that a summary shows: a hundredth of what they hold. None: no message had it."""

    status: str | None = None
    requested: Parallelism | None = None
    observed: dict[str, int] | None = None
    problems: list[str] = Field(default_factory=list)
    target: tuple[str, str] | None = None
    """Code and sentence of what was wrong with the target when it was last observed."""
    lag_seconds: float | None = None
    lag_records: float | None = None
    arrival_rate: float | None = None
    lower_bounds: dict[str, float] = Field(default_factory=dict)
    bottleneck: str | None = None
    planned: Parallelism | None = None
    plan_kind: str | None = None
    decision: str | None = None
    decision_code: str | None = None
    decided_at: Timestamp | None = None
    scores: list[Score] = Field(default_factory=list)
    outcome: tuple[str, str] | None = None
    """Code and sentence."""

    def after(self, event: Event) -> "Glance":
        """Return what is seen once `event` is the newest of its kind."""
        if isinstance(event, Observation):
            deployment = event.deployment
            return self.model_copy(
                update={
                    "status": event.status,
                    "requested": deployment.requested if deployment else None,
                    "observed": running(deployment) if deployment else None,
                    "problems": problems_of(event),
                    "target": _target_problem(event),
                }
            )
        if isinstance(event, Analysis):
            return self.model_copy(
                update={
                    "lag_seconds": event.lag_seconds.value,
                    "lag_records": event.lag_records.value,
                    "arrival_rate": event.arrival_rate.value,
                    "lower_bounds": _lower_bounds(event),
                    "bottleneck": event.bottleneck,
                }
            )
        if isinstance(event, Plan):
            return self.model_copy(
                update={
                    "planned": event.approved or event.current or None,
                    "plan_kind": event.kind,
                    "decision": event.sentence,
                    "decision_code": event.code,
                    "decided_at": event.created_at,
                    "scores": [course.score for course in event.state.courses],
                }
            )
        return self.model_copy(update={"outcome": (event.code, event.sentence)})


class Digest(Message):
    """The parts of an application's state that its summary shows."""

    application: str
    times: NewestTimes = Field(default_factory=NewestTimes)
    glance: Glance = Field(default_factory=Glance)
    spend: Spend | None = None
    """Slot-seconds since the policy acts. None: it does not act."""
    advice: Advice | None = None
    """What following the plans would have cost. None: the policy does not advise."""
    lateness: Lateness | None = None
    """Time in which the objective is missed. None: it is met, unknown since the beginning, or has no bound."""


def kind_of(event: Event) -> Kind:
    kinds: Mapping[type[Event], Kind] = {Observation: "observation", Analysis: "analysis", Plan: "plan"}
    return kinds.get(type(event), "outcome")


def position(event: Event) -> datetime | OutcomeOrder:
    return event.order if isinstance(event, Outcome) else event.observed_at


def problems_of(observation: Observation) -> list[str]:
    return [f"{p.where}: {p.what}" for p in observation.problems][:MAX_PROBLEMS]


def _lower_bounds(analysis: Analysis) -> dict[str, float]:
    found = {name: getattr(analysis, name).lower_bound for name in ("lag_seconds", "lag_records", "arrival_rate")}
    return {name: bound for name, bound in found.items() if bound is not None}


def _target_problem(observation: Observation) -> tuple[str, str] | None:
    """Return code and sentence of what is wrong with the target."""
    deployment = observation.deployment
    missing = [each.what for each in observation.problems if each.where.startswith("target.")]
    if observation.status in ("not_found", "unreachable"):
        return observation.status.replace("_", "-"), observation.message or "the target was not observed"
    if deployment is not None and deployment.health == "ended":
        return "ended", observation.message or f"the target is {deployment.state}"
    if missing and not (deployment is not None and deployment.workloads):
        return "not-found", missing[0]
    return None


def running(deployment: Deployment) -> dict[str, int]:
    """Return the subtasks that run. A deployment's `observed` is 1 or more, also of workloads without a ready replica."""
    ready = {each.name: each.ready for each in deployment.workloads}
    none = bool(ready) and not any(count != 0 for count in ready.values())
    return {name: 0 if none or ready.get(name) == 0 else p for name, p in deployment.observed.items()}
