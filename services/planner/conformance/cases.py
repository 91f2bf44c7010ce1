"""Requests as the loop makes them, usual and unusual. Pure: the same ones each time."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from weir_contracts import (
    Analysis,
    Checkpoints,
    Deployment,
    Edge,
    EdgeAnalysis,
    Estimate,
    Operator,
    OperatorAnalysis,
    Parallelism,
    PlanRequest,
    RestartTimes,
    ScalingPolicy,
    Slots,
    SourceAnalysis,
    Topology,
    derive_id,
    observation_id,
    parse_policy,
    unknown,
)

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
APPLICATION = "conformance/orders"
PER_SUBTASK = 500.0
"""Records/s."""
ODD_NAMES = ("Quelle: Bestellungen ✓", 'a "quoted" | name = {odd} #2', "<b>ascii & ' \\ / %20</b>", "終")


def cases(planner: str, parameters: Mapping[str, Any]) -> dict[str, PlanRequest]:
    """Return the requests by name, for a policy with this planner and these parameters."""
    policy = _policy(planner, parameters)
    diamond = [("orders", "left"), ("orders", "right"), ("left", "join"), ("right", "join"), ("join", "sink")]
    return {
        "one-operator": _request(policy, ["orders"], [], arrivals=800.0),
        "overloaded-chain": _request(policy, ["orders", "enrich", "sink"], None, arrivals=2400.0, backlog=50_000.0),
        "idle-chain": _request(policy, ["orders", "enrich", "sink"], None, arrivals=0.0),
        "diamond-with-join": _request(policy, ["orders", "left", "right", "join", "sink"], diamond, arrivals=1200.0),
        "odd-names": _request(policy, ODD_NAMES, None, arrivals=900.0),
        "forty-operators": _request(policy, [f"step {i}" for i in range(40)], None, arrivals=900.0),
        "nothing-known": _request(policy, ["orders", "enrich", "sink"], None, arrivals=None),
    }


def _policy(planner: str, parameters: Mapping[str, Any]) -> ScalingPolicy:
    namespace, name = APPLICATION.split("/")
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": namespace, "name": name, "version": 1},
            "spec": {
                "target": {"flink": {"url": "http://jobmanager.invalid:8081", "job": name}},
                "objective": {"maxLag": "30s"},
                "bounds": {"min": 1, "max": 12},
                "planner": {"name": planner, "parameters": dict(parameters)},
                "interval": "5s",
                "mode": "act",
            },
        }
    )


def _estimate(value: float | None) -> Estimate:
    return unknown("no reading yet") if value is None else Estimate(value=value, basis="measured", confidence=0.9)


def _topology(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> Topology:
    return Topology(
        operators=[
            Operator(
                name=name,
                id=f"{i:032x}",
                max_parallelism=128,
                slot_sharing_group="default",
                source_partitions=12 if i == 0 else None,
            )
            for i, name in enumerate(names)
        ],
        edges=[Edge(source=a, target=b, ship_strategy="HASH") for a, b in edges],
    )


def _request(
    policy: ScalingPolicy,
    names: Sequence[str],
    edges: Sequence[tuple[str, str]] | None,
    *,
    arrivals: float | None,
    backlog: float = 0.0,
) -> PlanRequest:
    edges = list(pairwise(names)) if edges is None else edges
    topology = _topology(names, edges)
    observed: Parallelism = dict.fromkeys(names, 2)
    deployment = Deployment(
        job_id="c0ffee" + "0" * 26,
        job_name="orders",
        graph_hash=topology.graph_hash(),
        health="running",
        state="RUNNING",
        requested=observed,
        observed=observed,
        slots=Slots(total=64, available=40),
        checkpoints=Checkpoints(interval_seconds=10, last_duration_seconds=0.5),
    )
    analysis = _analysis(policy, topology, deployment, arrivals, None if arrivals is None else backlog)
    return PlanRequest(
        id=derive_id(analysis.id, "request"),
        application=policy.application,
        now=AT,
        policy=policy,
        analysis=analysis,
        topology=topology,
        deployment=deployment,
    )


def _analysis(
    policy: ScalingPolicy, topology: Topology, deployment: Deployment, arrivals: float | None, backlog: float | None
) -> Analysis:
    observation = observation_id(policy.application, AT)
    lag = None if backlog is None else backlog / (2 * PER_SUBTASK)
    summary = {
        "arrival_rate": _estimate(arrivals),
        "lag_records": _estimate(backlog),
        "lag_growth": _estimate(None if arrivals is None else max(0.0, arrivals - 2 * PER_SUBTASK)),
        "lag_seconds": _estimate(lag),
        "expected_latency_seconds": _estimate(lag),
    }
    trend = _estimate(None if arrivals is None else 0.0)
    return Analysis(
        id=derive_id(observation, "analysis"),
        application=policy.application,
        observation_id=observation,
        observed_at=AT,
        policy=policy,
        status="running",
        deployment=deployment,
        topology=topology,
        operators=[_operator(name, arrivals) for name in topology.names],
        edges=[EdgeAnalysis(source=e.source, target=e.target, selectivity=_estimate(1.0)) for e in topology.edges],
        sources=[SourceAnalysis(operator=topology.operators[0].name, arrival_rate_trend=trend, **summary)],
        restart_times=RestartTimes(seconds=4.0, last_seconds=4.0, samples=1),
        **summary,
    )


def _operator(name: str, arrivals: float | None) -> OperatorAnalysis:
    taken = None if arrivals is None else min(arrivals, 2 * PER_SUBTASK)
    return OperatorAnalysis(
        operator=name,
        parallelism=2,
        input_rate=_estimate(taken),
        output_rate=_estimate(taken),
        true_processing_rate=_estimate(None if taken is None else 2 * PER_SUBTASK),
        true_processing_rate_per_subtask=_estimate(None if taken is None else PER_SUBTASK),
        utilization=_estimate(None if taken is None else taken / (2 * PER_SUBTASK)),
        backpressure=_estimate(None if taken is None else 0.0),
        skew=_estimate(None if taken is None else 1.0),
        target_input_rate=_estimate(arrivals),
    )
