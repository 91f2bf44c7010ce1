"""Examples of the API's description: one application whose `enrich` was too small, and its rescale."""

import json
from typing import Any

JsonObject = dict[str, Any]

_OBSERVATION_ID = "fae06acc-6171-59c2-b3a6-16527ff5602e"
_ANALYSIS_ID = "cde92568-778f-5f37-99c1-80aecf269c2b"
_PLAN_ID = "1abb0ea4-cdaf-51a9-a5f8-ba90d6f41dfa"
_AT = "2026-06-14T18:30:00Z"
_BEFORE = {"Source: orders": 1, "enrich": 2, "sink: Writer": 1}
_WANTED = {"Source: orders": 1, "enrich": 5, "sink: Writer": 1}
_DEPLOYMENT = {
    "job_id": "5f6d1e2b0c9a4f3e8d7c6b5a49382716",
    "graph_hash": "ecc55b87e856633a",
    "requested": _BEFORE,
    "observed": _BEFORE,
}

WRITTEN_POLICY: JsonObject = {
    "apiVersion": "weir.dev/v1alpha1",
    "kind": "ScalingPolicy",
    "metadata": {"namespace": "shop", "name": "orders"},
    "spec": {
        "target": {"flink": {"url": "http://jobmanager:8081", "job": "orders"}},
        "signals": {"kafka": {"bootstrapServers": "kafka:9092", "groupId": "orders"}},
        "objective": {"maxLag": "30s"},
        "mode": "act",
    },
}
POLICY: JsonObject = {
    **WRITTEN_POLICY,
    "metadata": {
        "namespace": "shop",
        "name": "orders",
        "resourceVersion": 7,
        "updatedAt": "2026-06-14T18:00:00Z",
        "updatedBy": "ada",
    },
}
OBSERVATION: JsonObject = {
    "id": _OBSERVATION_ID,
    "application": "shop/orders",
    "observed_at": _AT,
    "scrape_seconds": 0.12,
    "policy": POLICY,
    "status": "running",
    "message": "RUNNING",
    "deployment": {**_DEPLOYMENT, "job_name": "orders", "state": "RUNNING"},
    "operators": [{"operator": "enrich", "parallelism": 2, "records_in": 715000, "busy_ms": 1180000.0}],
    "partitions": [
        {
            "operator": "Source: orders",
            "topic": "orders",
            "partition": 0,
            "log_end_offset": 60350,
            "current_offset": 60000,
        }
    ],
    "problems": [{"where": "GET /jobs/5f6d/metrics", "what": "timed out after 2 s"}],
}


def _estimate(value: float, basis: str) -> JsonObject:
    return {"value": value, "basis": basis, "confidence": 0.9, "samples": 15, "window_seconds": 30.0}


_ARRIVALS = _estimate(1190.0, "end offsets")
_LAG_RECORDS = _estimate(4200.0, "end offsets less current offsets")
_LAG_SECONDS = _estimate(5.0, "append time of the record at the source's position")
_SYMPTOM = {"code": "downstream-bound", "operator": "enrich", "evidence": "enrich is busy 98 % of the time"}
ANALYSIS: JsonObject = {
    "id": _ANALYSIS_ID,
    "application": "shop/orders",
    "observation_id": _OBSERVATION_ID,
    "observed_at": _AT,
    "policy": POLICY,
    "status": "running",
    "message": "RUNNING",
    "window": {"started_at": "2026-06-14T18:29:30Z", "seconds": 30.0, "samples": 15},
    "arrival_rate": _ARRIVALS,
    "lag_records": _LAG_RECORDS,
    "lag_growth": _estimate(580.0, "least squares over the window"),
    "lag_seconds": _LAG_SECONDS,
    "expected_latency_seconds": _estimate(6.9, "lag records over processing rate"),
    "bottleneck": "enrich",
    "symptoms": [_SYMPTOM],
}
PLAN: JsonObject = {
    "id": _PLAN_ID,
    "application": "shop/orders",
    "analysis_id": _ANALYSIS_ID,
    "observation_id": _OBSERVATION_ID,
    "observed_at": _AT,
    "created_at": "2026-06-14T18:30:00.900000Z",
    "expires_at": "2026-06-14T18:30:15.900000Z",
    "policy_version": 7,
    "mode": "act",
    "planner": "rate",
    "deployment": _DEPLOYMENT,
    "current": _BEFORE,
    "proposed": {**_BEFORE, "enrich": 6},
    "kind": "scale",
    "action": {"kind": "scale", "parallelism": _WANTED},
    "code": "objective-at-risk",
    "sentence": "enrich 2 → 5: 1,190 records/s arrive, 2 subtasks process 610",
    "evidence": {"arrival_rate": 1190.0, "capacity_at_2": 610.0, "lag_seconds": 5.0},
    "amendments": [
        {
            "guard": "step-limits",
            "code": "max-step",
            "because": "at most 3 subtasks up in one action",
            "before": {**_BEFORE, "enrich": 6},
            "after": _WANTED,
        }
    ],
    "planning_seconds": 0.01,
}
OUTCOME: JsonObject = {
    "id": "88e026d3-e2e1-5234-a489-5912567dafb4",
    "application": "shop/orders",
    "plan_id": _PLAN_ID,
    "observation_id": _OBSERVATION_ID,
    "at": "2026-06-14T18:30:15.300000Z",
    "phase": "verified",
    "code": "verified",
    "sentence": "enrich runs with 5 since 4.1 s after the request and held for 10 s",
    "before": _BEFORE,
    "wanted": _WANTED,
    "observed": _WANTED,
    "restart_seconds": 4.1,
}
ACTION: JsonObject = {
    "id": "fd02be40-465b-5952-b639-7a8272f128e3",
    "application": "shop/orders",
    "attempt_id": "0e1d2c3b-4a59-4687-9786-a5b4c3d2e1f0",
    "plan_id": _PLAN_ID,
    "observation_id": _OBSERVATION_ID,
    "version": 1,
    "phase": "intended",
    "deployment": _DEPLOYMENT,
    "before": _BEFORE,
    "wanted": _WANTED,
    "started_at": "2026-06-14T18:30:01Z",
    "code": "intended",
    "sentence": "enrich 2 -> 5 will be requested",
}
SUMMARY: JsonObject = {
    "application": "shop/orders",
    "mode": "act",
    "status": "running",
    "objective_seconds": 30.0,
    "lag_seconds": 5.0,
    "lag_records": 4200.0,
    "arrival_rate": 1190.0,
    "bottleneck": "enrich",
    "planned": _WANTED,
    "requested": _BEFORE,
    "observed": _BEFORE,
    "decision": PLAN["sentence"],
    "decision_code": PLAN["code"],
    "decided_at": PLAN["created_at"],
    "action": ACTION["sentence"],
    "action_phase": "intended",
    "ages_seconds": {"monitor": 1.2, "analyzer": 1.2, "planner": 1.2},
    "silent": [],
    "problems": [],
}
TURN_IN_SHORT: JsonObject = {
    "at": PLAN["created_at"],
    "plan_id": _PLAN_ID,
    "kind": "scale",
    "code": PLAN["code"],
    "current": _BEFORE,
    "approved": _WANTED,
    "lag_seconds": 5.0,
    "arrival_rate": 1190.0,
    "outcome": "verified",
}
TURN: JsonObject = {
    "correlation_id": _OBSERVATION_ID,
    "reading": {"observed_at": _AT, "status": "running", "message": "RUNNING", "observed": _BEFORE, "problems": []},
    "analysis": {
        "arrival_rate": _ARRIVALS,
        "lag_records": _LAG_RECORDS,
        "lag_seconds": _LAG_SECONDS,
        "bottleneck": "enrich",
        "symptoms": [_SYMPTOM],
    },
    "plan": PLAN,
    "outcomes": [OUTCOME],
}
WHAT_IF: JsonObject = {
    "application": "shop/orders",
    "analysis_id": _ANALYSIS_ID,
    "observed_at": _AT,
    "sentence": "At 2,380 records/s (x2) with enrich 2 → 6 it keeps up, with enrich at 85% of its capacity; lag "
    "peaks at 9.5 s in a restart of 4 s, within the objective of 30 s. It breaks beyond x2.35 "
    "(2,790 records/s), where enrich is full.",
    "possible": True,
    "keeps_up": True,
    "parallelism_now": {"Source: orders": 1, "enrich": 2, "sink: Writer": 1},
    "parallelism": {"Source: orders": 1, "enrich": 6, "sink: Writer": 1},
    "slots_now": 2,
    "slots": 6,
    "arrival_rate_now": 1190.0,
    "arrival_rate": 2380.0,
    "load_factor": 2.0,
    "throughput": 2380.0,
    "throughput_at_most": 2380.0,
    "bottleneck": "enrich",
    "breaks_at_load": 2.345,
    "breaks_at_rate": 2790.0,
    "objective_seconds": 30.0,
    "prediction": {
        "horizon_seconds": 600.0,
        "max_lag_seconds": 9.5,
        "final_lag_seconds": 0.0,
        "violation_seconds": 0.0,
        "objective_left_at_seconds": None,
        "objective_met_at_seconds": 0.0,
        "downtime_seconds": 4.0,
        "max_utilisation": 0.853,
        "bottleneck": "enrich",
        "points": [
            {"at_seconds": 0.0, "lag_seconds": 5.5, "backlog_records": 5390.0, "throughput": 0.0},
            {"at_seconds": 120.0, "lag_seconds": 0.0, "backlog_records": 0.0, "throughput": 2380.0},
        ],
    },
    "operators": [
        {
            "operator": "enrich",
            "parallelism_now": 2,
            "parallelism": 6,
            "arrival_rate": 2380.0,
            "input_rate": 2380.0,
            "capacity": 2790.0,
            "utilisation": 0.853,
            "least_parallelism": 6,
            "seen_at": [2],
            "confidence": 0.9,
        }
    ],
    "infeasible": [],
    "unknown": [],
    "notes": ["enrich was measured at 2 only: its capacity at 6 is assumed to be in proportion"],
}
_PROVISIONING: JsonObject = {
    "under_provisioning": 0.1,
    "over_provisioning": 12.5,
    "under_provisioned_time": 0.4,
    "over_provisioned_time": 38.0,
    "instability": 1.2,
    "unanswered": 0,
    "turns": 17280,
}
SCORES: JsonObject = {
    "application": "shop/orders",
    "since": "2026-06-13T18:30:00Z",
    "until": "2026-06-14T18:30:00Z",
    "sentence": "careful would have been cheaper than rate at equal violation: 2.77 instead of 3.10 slots on "
    "average (−11%), late 0.09% instead of 0.10% of the time",
    "planners": [
        {
            "label": "rate",
            "planner": "rate",
            "role": "chosen",
            "current": True,
            "seconds": 86400.0,
            "slot_hours": 74.4,
            "mean_slots": 3.1,
            "needed_slot_hours": 60.0,
            "violation_seconds": 86.0,
            "violation_share": 0.001,
            "rescales": 14,
            **_PROVISIONING,
        },
        {
            "label": "careful",
            "planner": "rate",
            "role": "shadow",
            "current": True,
            "seconds": 86400.0,
            "slot_hours": 66.5,
            "mean_slots": 2.77,
            "needed_slot_hours": 60.0,
            "violation_seconds": 80.0,
            "violation_share": 0.00093,
            "rescales": 9,
            **_PROVISIONING,
        },
        {
            "label": "observed",
            "planner": "rate",
            "role": "observed",
            "current": True,
            "seconds": 86400.0,
            "slot_hours": 75.1,
            "mean_slots": 3.13,
            "needed_slot_hours": 60.0,
            "violation_seconds": 90.0,
            "violation_share": 0.00104,
            "rescales": 14,
            **_PROVISIONING,
        },
    ],
    "confidence": 0.94,
    "compared_seconds": 86000.0,
    "cheaper": "careful",
}
FEED = f": weir\n\nid: 1781461815300-0\nevent: outcome\ndata: {json.dumps(OUTCOME)}\n\n"
