"""Values for the planner's tests: an analysis in which `orders` (a source of 12 partitions) feeds `work`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid5

from weir_contracts import (
    ActionState,
    Analysis,
    CapacityPoint,
    Checkpoints,
    Deployment,
    Edge,
    EdgeAnalysis,
    Estimate,
    Operator,
    OperatorAnalysis,
    Outcome,
    Parallelism,
    PlanReply,
    PlanRequest,
    PlanState,
    Recommendation,
    RestartTimes,
    ScalingPolicy,
    Slots,
    SourceAnalysis,
    Topology,
    derive_id,
    observation_id,
    unknown,
    within,
)
from weir_engines.flink.topology import health_of
from weir_sdk.request import Request

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
REQUIRED_PARAMETERS: dict[str, dict[str, Any]] = {
    "schedule": {"entries": [{"cron": "* * * * *", "parallelism": 2}]},
    "static": {"parallelism": 2},
    "threshold": {"measure": "utilization", "up_above": 0.8, "down_below": 0.4},
}
"""Parameters of the planners that have no defaults."""
SPACE = UUID("11111111-2222-5333-8444-555555555555")
APP = "shop/orders"
SOURCE, WORK = "orders", "work"


def after(seconds: float) -> datetime:
    """Return the time `seconds` after noon."""
    return NOON + timedelta(seconds=seconds)


def known(value: float | None, confidence: float = 0.9) -> Estimate:
    """Return a measured estimate; None and values beyond the bounds give an unknown one."""
    value = within(value)
    return (
        unknown("no reading yet") if value is None else Estimate(value=value, basis="measured", confidence=confidence)
    )


def topology(
    names: Sequence[str] = (SOURCE, WORK), *, partitions: int | None = 12, groups: int | None = 120, keyed: bool = False
) -> Topology:
    """Return a chain of operators in one slot-sharing group; the first operator is the source."""
    return Topology(
        operators=[
            Operator(
                name=name,
                id=f"v{i}",
                max_parallelism=groups,
                slot_sharing_group="all",
                source_partitions=partitions if i == 0 else None,
            )
            for i, name in enumerate(names)
        ],
        edges=[Edge(source=a, target=b, ship_strategy="HASH" if keyed else "REBALANCE") for a, b in pairwise(names)],
    )


def policy(application: str = APP, /, *, version: int | None = 3, **spec: Any) -> ScalingPolicy:
    """Return a policy: mode act, 30 s of lag, 1 to 12; no stabilisation and no cooldown unless a test adds them.

    Validated as a stored policy is: limits that cannot be kept are accepted.
    """
    namespace, name = application.split("/")
    return ScalingPolicy.model_validate(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": namespace, "name": name, "version": version},
            "spec": {
                **(
                    {}
                    if "target" in spec
                    else {"application": {"flink": {"url": "http://127.0.0.1:8081", "job": name}}}
                ),
                "objective": {"maxLag": "30s"},
                "bounds": {"min": 1, "max": 12},
                "behavior": {
                    "scaleUp": {"stabilization": "0s"},
                    "scaleDown": {"stabilization": "0s"},
                    "cooldown": "0s",
                },
                "interval": "5s",
                "mode": "act",
                **spec,
            },
        }
    )


def deployment(observed: Mapping[str, int], graph: Topology | None = None, **changes: Any) -> Deployment:
    """Return a running job in a cluster with free slots."""
    return Deployment(
        **{
            "job_id": "a" * 32,
            "job_name": "orders",
            "graph_hash": (graph or topology()).graph_hash(),
            "health": health_of(changes.get("state", "RUNNING")),
            "state": "RUNNING",
            "requested": dict(observed),
            "observed": dict(observed),
            "slots": Slots(total=32, available=20),
            "checkpoints": Checkpoints(interval_seconds=10, last_duration_seconds=0.5),
            **changes,
        }
    )


def operator(
    name: str, parallelism: int, capacity: float | None, arriving: float | None, **changes: Any
) -> OperatorAnalysis:
    """Return an operator that keeps up with its input; `capacity` is the operator's total in records/s."""
    busy = None if capacity is None or arriving is None else min(1.0, arriving / capacity)
    return OperatorAnalysis(
        **{
            "operator": name,
            "parallelism": parallelism,
            "input_rate": known(arriving),
            "output_rate": known(arriving),
            "true_processing_rate": known(capacity),
            "true_processing_rate_per_subtask": known(None if capacity is None else capacity / parallelism),
            "utilization": known(busy),
            "backpressure": known(0.0),
            "skew": known(1.0),
            "target_input_rate": known(arriving),
            **changes,
        }
    )


def point(parallelism: int, rate: float, *, confidence: float = 0.9, saturated: bool = True) -> CapacityPoint:
    """Return a measured capacity."""
    return CapacityPoint(
        parallelism=parallelism,
        records_per_second=rate,
        confidence=confidence,
        saturated=saturated,
        samples=10,
        measured_at=NOON,
    )


def analysis(
    *,
    arrivals: float | None = 800.0,
    work: int = 2,
    per_subtask: float | None = 500.0,
    backlog: float | None = 0.0,
    lag_seconds: float | None = 0.0,
    selectivity: float | None = 1.0,
    restart_seconds: float | None = 4.0,
    seen: Sequence[CapacityPoint] = (),
    at: datetime = NOON,
    the_policy: ScalingPolicy | None = None,
    **changes: Any,
) -> Analysis:
    """Return an analysis: `orders` keeps up with one subtask; each subtask of `work` does `per_subtask` records/s."""
    the_policy = the_policy or policy()
    application = the_policy.application
    observed = observation_id(application, at)
    graph = changes.pop("graph", topology())
    reaching = None if arrivals is None or selectivity is None else arrivals * selectivity
    capacity = None if per_subtask is None else per_subtask * work
    return Analysis(
        **{
            "id": derive_id(observed, "analysis"),
            "application": application,
            "observation_id": observed,
            "observed_at": at,
            "policy": the_policy,
            "status": "running",
            "deployment": deployment({SOURCE: 1, WORK: work}, graph),
            "topology": graph,
            "operators": [
                operator(SOURCE, 1, 100_000.0, arrivals),
                operator(WORK, work, capacity, reaching, capacities=list(seen)),
            ],
            "edges": [EdgeAnalysis(source=SOURCE, target=WORK, selectivity=known(selectivity))],
            "sources": [
                SourceAnalysis(
                    operator=SOURCE,
                    arrival_rate=known(arrivals),
                    arrival_rate_trend=known(0.0),
                    lag_records=known(backlog),
                    lag_growth=known(0.0),
                    lag_seconds=known(lag_seconds),
                    expected_latency_seconds=known(0.0),
                )
            ],
            "arrival_rate": known(arrivals),
            "lag_records": known(backlog),
            "lag_growth": known(0.0),
            "lag_seconds": known(lag_seconds),
            "expected_latency_seconds": known(0.0),
            "restart_times": RestartTimes(
                seconds=restart_seconds, last_seconds=restart_seconds, samples=0 if restart_seconds is None else 1
            ),
            **changes,
        }
    )


def request(found: Analysis | None = None, *, now: datetime = NOON, **changes: Any) -> PlanRequest:
    """Return a plan request; `changes` apply to the request, `of` to the default analysis."""
    found = found or analysis(**changes.pop("of", {}))
    return PlanRequest(
        **{
            "id": derive_id(found.id, "request"),
            "application": found.application,
            "now": now,
            "policy": found.policy,
            "analysis": found,
            "topology": found.topology,
            "deployment": found.deployment,
            **changes,
        }
    )


def scale(vector: Mapping[str, int], code: str = "overloaded") -> PlanReply:
    """Return a planner's scale reply."""
    return PlanReply(kind="scale", parallelism=dict(vector), code=code, sentence="the planner wants it")


def recommendation(seconds: float, vector: Mapping[str, int]) -> Recommendation:
    """Return a recommendation made `seconds` after noon (before, if negative)."""
    return Recommendation(at=after(seconds), parallelism=dict(vector))


def action(phase: str = "verified", *, before: Parallelism, wanted: Parallelism, **changes: Any) -> ActionState:
    """Return an action that started a minute before noon."""
    return ActionState(
        **{
            "id": uuid5(SPACE, "action"),
            "application": APP,
            "attempt_id": uuid5(SPACE, "attempt"),
            "plan_id": uuid5(SPACE, "plan"),
            "observation_id": uuid5(SPACE, "observation"),
            "version": 1,
            "phase": phase,
            "deployment": deployment(before).ref(),
            "before": before,
            "wanted": wanted,
            "started_at": after(-60),
            "code": phase,
            "sentence": f"it is {phase}",
            **changes,
        }
    )


def outcome(the_action: ActionState | None, *, at: datetime = NOON, **changes: Any) -> Outcome:
    """Return the executor's outcome of an action."""
    phase = the_action.phase if the_action else "refused"
    return Outcome(
        **{
            "id": uuid5(SPACE, f"outcome {at.isoformat()} {phase}"),
            "application": APP,
            "plan_id": uuid5(SPACE, "plan"),
            "observation_id": uuid5(SPACE, "observation"),
            "at": at,
            "phase": phase,
            "code": phase,
            "sentence": f"it is {phase}",
            "action": the_action,
            **changes,
        }
    )


def request_at(current: Mapping[str, int], **changes: Any) -> Request:
    """Return a request at noon as the guards read it; `spec` holds arguments of `policy()`, other changes are of its
    state."""
    the_policy = policy(**changes.pop("spec", {}))
    graph = changes.pop("graph", topology(tuple(current)))
    slots = changes.pop("slots", Slots(total=32, available=20))
    found = changes.pop("found", None) or analysis(work=current.get(WORK, 1), the_policy=the_policy, graph=graph)
    last_action = changes.pop("last_action", None)
    return Request.model_construct(
        id=derive_id(found.id, "request"),
        application=found.application,
        now=changes.pop("now", NOON),
        policy=the_policy,
        analysis=found,
        topology=graph,
        deployment=deployment(current, graph, slots=slots, **changes.pop("deployed", {})),
        outcomes=[] if last_action is None else [outcome(last_action)],
        quarantine=changes.pop("quarantine", []),
        state=PlanState(**changes),
    )
