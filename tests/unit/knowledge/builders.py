"""The messages of one application, cycle by cycle: cycle n is n × 5 s after noon."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from weir_contracts import (
    ActionState,
    Analysis,
    DeploymentRef,
    Observation,
    Outcome,
    Plan,
    ScaleAction,
    ScalingPolicy,
    derive_id,
    observation_id,
    parse_policy,
    unknown,
)
from weir_contracts.base import Estimate
from weir_knowledge.newest import KINDS, Event, Kind
from weir_runtime.bus import Bus
from weir_runtime.clock import Clock
from weir_runtime.reading import DeadLetters

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
APP = "shop/orders"
SPACE = UUID("11111111-2222-5333-8444-555555555555")
ATTEMPT = UUID("aaaaaaaa-0000-4000-8000-000000000001")
INTERVAL_SECONDS = 5.0


def at(cycle: float) -> datetime:
    """When a cycle is observed."""
    return NOON + timedelta(seconds=INTERVAL_SECONDS * cycle)


def document(application: str = APP, /, **spec: Any) -> dict[str, Any]:
    """A policy as its user writes it."""
    namespace, name = application.split("/")
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            **({} if "target" in spec else {"application": {"flink": {"url": "http://127.0.0.1:8081/", "job": name}}}),
            "objective": {"maxLag": "30s"},
            **spec,
        },
    }


def policy(application: str = APP, /, version: int = 1, **spec: Any) -> ScalingPolicy:
    """The same, as it is stored."""
    parsed = parse_policy(document(application, **spec))
    return parsed.model_copy(
        update={"metadata": parsed.metadata.model_copy(update={"version": version, "updated_at": NOON})}
    )


def observation(cycle: float, application: str = APP, **changes: Any) -> Observation:
    return Observation(
        **{
            "id": observation_id(application, at(cycle)),
            "application": application,
            "observed_at": at(cycle),
            "policy": policy(application),
            "status": "running",
            **changes,
        }
    )


def analysis(cycle: float, application: str = APP, **changes: Any) -> Analysis:
    """`arrival_rate` is 100 × cycle, so that each message is recognisable."""
    parent = observation_id(application, at(cycle))
    return Analysis(
        **{
            "id": derive_id(parent, "analysis"),
            "application": application,
            "observation_id": parent,
            "observed_at": at(cycle),
            "policy": policy(application),
            "status": "running",
            "arrival_rate": Estimate(value=100.0 * cycle, basis="measured", confidence=0.9),
            "lag_records": unknown("no offsets"),
            "lag_growth": unknown("no offsets"),
            "lag_seconds": unknown("no offsets"),
            "expected_latency_seconds": unknown("no offsets"),
            **changes,
        }
    )


def plan(cycle: float, wanted: int | None = None, application: str = APP, **changes: Any) -> Plan:
    """A hold, or a scale plan to `wanted` subtasks."""
    parent = derive_id(observation_id(application, at(cycle)), "analysis")
    return Plan(
        **{
            "id": derive_id(parent, "plan"),
            "application": application,
            "analysis_id": parent,
            "observation_id": observation_id(application, at(cycle)),
            "observed_at": at(cycle),
            "created_at": at(cycle) + timedelta(seconds=1),
            "expires_at": at(cycle) + timedelta(seconds=31),
            "mode": "act",
            "planner": "rate",
            "current": {"work": 1},
            "kind": "hold" if wanted is None else "scale",
            "action": None if wanted is None else ScaleAction(parallelism={"work": wanted}),
            "code": "within-objective" if wanted is None else "capacity-short",
            "sentence": "as it should be" if wanted is None else f"work needs {wanted}",
            **changes,
        }
    )


def action(of: Plan, version: int = 1, **changes: Any) -> ActionState:
    return ActionState(
        **{
            "id": derive_id(of.id, "action"),
            "application": of.application,
            "attempt_id": ATTEMPT,
            "plan_id": of.id,
            "observation_id": of.observation_id,
            "version": version,
            "phase": "applying",
            "deployment": DeploymentRef(
                job_id="a" * 32, graph_hash="b" * 16, requested={"work": 1}, observed={"work": 1}
            ),
            "before": {"work": 1},
            "wanted": of.approved or {"work": 1},
            "started_at": of.created_at,
            "code": "admitted",
            "sentence": "will set work",
            **changes,
        }
    )


def outcome(of: Plan, phase: str, seconds: float = 1.0, **changes: Any) -> Outcome:
    """A transition, `seconds` after its plan was made."""
    return Outcome(
        **{
            "id": uuid5(SPACE, f"{of.id} {phase}"),
            "application": of.application,
            "plan_id": of.id,
            "observation_id": of.observation_id,
            "at": of.created_at + timedelta(seconds=seconds),
            "phase": phase,
            "code": "healthy" if phase == "verified" else "admitted",
            "sentence": f"it is {phase}",
            **changes,
        }
    )


def documents(*messages: Event) -> dict[Kind, str]:
    """Messages as a store gets them: JSON by kind."""
    return {kind: m.model_dump_json() for m in messages for kind in KINDS if kind == type(m).__name__.lower()}


def letters(bus: Bus, clock: Clock) -> DeadLetters:
    """Knowledge's dead letters."""
    return DeadLetters(bus, "knowledge", clock)
