"""Values for the executor's tests: one job of three operators, scaled from 1 to more."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from weir_contracts import (
    ActionState,
    Analysis,
    Application,
    CapacityPoint,
    Checkpoints,
    Deployment,
    DeploymentRef,
    Edge,
    Estimate,
    Operator,
    OperatorAnalysis,
    OperatorBaseline,
    Parallelism,
    Plan,
    RescaleSettings,
    Run,
    ScaleAction,
    ScalingPolicy,
    Signals,
    Subject,
    Target,
    Topology,
    Window,
    derive_id,
    parse_policy,
    unknown,
)
from weir_engines.driver import Snapshot
from weir_engines.flink.topology import health_of
from weir_executor.core.observed import Observed, PolicyReading
from weir_executor.core.parameters import Rules

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RULES = Rules()
SPACE = UUID("11111111-2222-5333-8444-555555555555")
ATTEMPT = UUID("aaaaaaaa-0000-4000-8000-000000000001")
OTHER_ATTEMPT = UUID("aaaaaaaa-0000-4000-8000-000000000002")
JOB = "a" * 32
URL = "http://127.0.0.1:8081"

TOPOLOGY = Topology(
    operators=[
        Operator(name="orders", id="v1", max_parallelism=120),
        Operator(name="enrich", id="v2", max_parallelism=120),
        Operator(name="sink", id="v3", max_parallelism=120),
    ],
    edges=[
        Edge(source="orders", target="enrich", ship_strategy="HASH"),
        Edge(source="enrich", target="sink", ship_strategy="FORWARD"),
    ],
)
BEFORE: Parallelism = {"orders": 1, "enrich": 1, "sink": 1}
WANTED: Parallelism = {"orders": 1, "enrich": 4, "sink": 2}


def after(seconds: float) -> datetime:
    """`seconds` after noon."""
    return NOON + timedelta(seconds=seconds)


def policy(
    application: str = "shop/orders",
    *,
    mode: str = "act",
    version: int | None = 3,
    updated_at: datetime | None = None,
    url: str = URL,
    bounds: dict[str, Any] | None = None,
) -> ScalingPolicy:
    """A policy as knowledge serves it."""
    namespace, name = application.split("/")
    parsed = parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {
                "application": {"flink": {"url": url, "job": name}},
                "objective": {"maxLag": "30s"},
                "bounds": bounds or {},
                "mode": mode,
            },
        }
    )
    metadata = parsed.metadata.model_copy(update={"version": version, "updated_at": updated_at})
    return parsed.model_copy(update={"metadata": metadata})


def subject(job: str = "orders", url: str = "http://127.0.0.1:8081") -> Subject:
    """A Flink job, scaled by Flink."""
    return Subject(
        "shop/orders",
        Application.model_validate({"flink": {"url": url, "job": job}}),
        Target.model_validate({"flink": {}}),
        Signals(),
    )


def reading(**changes: Any) -> PolicyReading:
    """Return a reading of that policy."""
    return PolicyReading(reachable=True, policy=policy(**changes))


def deployment(observed: Parallelism = BEFORE, **changes: Any) -> Deployment:
    """A running job with a cluster of quick settings."""
    return Deployment(
        **{
            "job_id": JOB,
            "job_name": "orders",
            "graph_hash": TOPOLOGY.graph_hash(),
            "health": health_of(changes.get("state", "RUNNING")),
            "state": "RUNNING",
            "requested": dict(observed),
            "observed": dict(observed),
            "restarts": 0,
            "checkpoints": Checkpoints(),
            "rescale": RescaleSettings(
                scheduler="adaptive", cooldown_seconds=1, stabilization_seconds=1, max_trigger_delay_seconds=0
            ),
            **changes,
        }
    )


def snapshot(observed: Parallelism = BEFORE, *, at: datetime = NOON, **changes: Any) -> Snapshot:
    """All tasks of it run, for an hour already."""
    base = {
        "all_running": True,
        "running_since": at - timedelta(hours=1),
        "steady_since": at - timedelta(hours=1),
        "checkpoint_completed_at": at - timedelta(seconds=5),
        "checkpoint_in_progress": False,
        "can_trigger_checkpoint": True,
        "engine_triggers_checkpoint": False,
        "topology": None,
        "managers": None,
    }
    fields = {k: changes.pop(k) for k in list(changes) if k in base}
    return Snapshot(at=at, reachable=True, deployment=deployment(observed, **changes), **{**base, **fields})


def away(at: datetime = NOON, reason: str = "connection refused") -> Snapshot:
    """Return a snapshot of an unreachable target."""
    return Snapshot(at=at, reachable=False, reason=reason)


def absent(at: datetime = NOON) -> Snapshot:
    """The cluster answers and has no such job."""
    return Snapshot(at=at, reachable=True, reason="the cluster has no job 'orders'")


def restarting(observed: Parallelism = BEFORE, *, at: datetime = NOON, **changes: Any) -> Snapshot:
    """In the middle of a restart."""
    return snapshot(observed, at=at, all_running=False, steady_since=at, **{"state": "RESTARTING", **changes})


def plan(
    wanted: Parallelism | None = WANTED,
    *,
    number: int = 1,
    application: str = "shop/orders",
    at: datetime = NOON,
    **changes: Any,
) -> Plan:
    """A plan for that deployment; `wanted=None` holds."""
    ref = deployment().ref()
    return Plan(
        **{
            "id": uuid5(SPACE, f"plan {application} {number}"),
            "application": application,
            "analysis_id": uuid5(SPACE, f"analysis {application} {number}"),
            "observation_id": uuid5(SPACE, f"observation {application} {number}"),
            "observed_at": at,
            "created_at": at,
            "expires_at": at + timedelta(seconds=30),
            "policy_version": 3,
            "mode": "act",
            "planner": "rate",
            "deployment": ref,
            "current": dict(ref.observed),
            "kind": "hold" if wanted is None else "scale",
            "action": None if wanted is None else ScaleAction(parallelism=wanted),
            "code": "within-objective" if wanted is None else "capacity-short",
            "sentence": "as it should be" if wanted is None else "more is needed",
            **changes,
        }
    )


def action(phase: str = "intended", **changes: Any) -> ActionState:
    """An action of that plan, as it stands in `phase`."""
    times: dict[str, Any] = {"deadline_at": after(30)}
    if phase in ("verifying", "rolling-back"):
        times = {"requested_at": NOON, "deadline_at": after(60)}
    plan_id = plan().id
    return ActionState(
        **{
            "id": derive_id(plan_id, "action"),
            "application": "shop/orders",
            "attempt_id": ATTEMPT,
            "plan_id": plan_id,
            "observation_id": plan().observation_id,
            "version": 5,
            "phase": phase,
            "deployment": DeploymentRef(
                job_id=JOB, graph_hash=TOPOLOGY.graph_hash(), requested=BEFORE, observed=BEFORE
            ),
            "before": BEFORE,
            "wanted": WANTED,
            "started_at": NOON,
            "checked_at": NOON,
            "restarts_before": 0,
            "baselines": [
                OperatorBaseline(operator="enrich", capacity_records_per_second=1000.0, input_rate=1500.0),
                OperatorBaseline(operator="sink", capacity_records_per_second=3000.0, input_rate=1500.0),
            ],
            "code": "admitted",
            "sentence": "will set enrich 1 → 4",
            **times,
            **changes,
        }
    )


def estimate(value: float | None, confidence: float = 0.9) -> Estimate:
    return Estimate(value=value, basis="measured", confidence=confidence) if value is not None else unknown("no data")


def operator_analysis(
    name: str,
    parallelism: int,
    *,
    capacity: float | None,
    demand: float | None = 1500.0,
    utilization: float | None = 0.95,
    confidence: float = 0.9,
    capacities: list[CapacityPoint] | None = None,
) -> OperatorAnalysis:
    """How an operator does."""
    return OperatorAnalysis(
        operator=name,
        parallelism=parallelism,
        input_rate=estimate(demand),
        output_rate=estimate(demand),
        true_processing_rate=estimate(capacity, confidence),
        true_processing_rate_per_subtask=unknown("not needed"),
        utilization=estimate(utilization),
        backpressure=estimate(0.0),
        skew=estimate(1.0),
        target_input_rate=estimate(demand),
        capacities=capacities or [],
    )


def analysis(
    parallelism: Parallelism = WANTED,
    operators: list[OperatorAnalysis] | None = None,
    *,
    application: str = "shop/orders",
    at: datetime = NOON,
    window_started_at: datetime | None = None,
    window_seconds: float = 60.0,
    **changes: Any,
) -> Analysis:
    """A warm window at `parallelism`."""
    return Analysis(
        **{
            "id": uuid5(SPACE, f"analysis {application} {at}"),
            "application": application,
            "observation_id": uuid5(SPACE, f"observation {application} {at}"),
            "observed_at": at,
            "policy": policy(application),
            "status": "running",
            "run": Run(running_since=at - timedelta(seconds=window_seconds)),
            "deployment": deployment(parallelism),
            "topology": TOPOLOGY,
            "window": Window(
                started_at=window_started_at or at - timedelta(seconds=window_seconds),
                seconds=window_seconds,
                samples=10,
            ),
            "operators": operators or [],
            "arrival_rate": estimate(1500.0),
            "lag_records": estimate(0.0),
            "lag_growth": estimate(0.0),
            "lag_seconds": estimate(0.0),
            "expected_latency_seconds": estimate(0.0),
            **changes,
        }
    )


def observed(found: Snapshot | None = None, **changes: Any) -> Observed:
    """Return the observed state at one step."""
    return Observed(snapshot=found or snapshot(), **{"policy": reading(), "planned_version": 3, **changes})
