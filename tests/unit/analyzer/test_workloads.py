"""Symptoms of Kubernetes workloads: each with a sentence, its numbers, and no more than one of a kind for a workload."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weir_analyzer.core.symptoms import workload_symptoms
from weir_contracts import Deployment, Pod, Symptom, WorkloadStatus

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _workload(**fields: Any) -> WorkloadStatus:
    counts = {"wanted": 3, "current": 3, "updated": 3, "ready": 3}
    return WorkloadStatus(kind="Deployment", name="orders", namespace="shop", uid="u", **(counts | fields))


def _symptoms(workload: WorkloadStatus, *pods: Pod, observed: dict[str, int] | None = None) -> list[Symptom]:
    deployment = Deployment(
        engine="service",
        job_id="u",
        job_name="orders",
        graph_hash="g",
        state="Running",
        observed=observed or {"orders": 3},
        pods=list(pods),
        workloads=[workload],
    )
    return list(workload_symptoms(deployment, NOON))


def _running(name: str, **fields: Any) -> Pod:
    return Pod(name=name, phase="Running", ready=True, **fields)


def test_a_healthy_workload_has_none() -> None:
    assert _symptoms(_workload(), *(_running(f"p{i}") for i in range(3))) == []
    assert list(workload_symptoms(None, NOON)) == []


def test_pending_pods_with_their_reason() -> None:
    pending = Pod(name="p2", phase="Pending", ready=False, reason="Unschedulable: 0/3 nodes are available")
    (found,) = _symptoms(_workload(), _running("p0"), _running("p1"), pending)
    assert (found.code, found.operator) == ("pods-pending", "orders")
    assert found.evidence == (
        "Deployment orders: 1 of 3 replicas is not running: Unschedulable: 0/3 nodes are available."
    )
    assert found.numbers == {"pending": 1, "not_created": 0, "wanted": 3}


def test_replicas_that_a_quota_denies_are_pending() -> None:
    (found,) = _symptoms(_workload(wanted=5, reason="FailedCreate: exceeded quota: pods"), *map(_running, "abc"))
    assert found.evidence == "Deployment orders: 2 of 5 replicas are not running: FailedCreate: exceeded quota: pods."
    assert found.numbers == {"pending": 0, "not_created": 2, "wanted": 5}


def test_an_unknown_number_of_replicas_is_no_symptom() -> None:
    assert _symptoms(_workload(current=None)) == []


@pytest.mark.parametrize("reason", ["CrashLoopBackOff: back-off 5m0s", "Error: exit code 1", "RunContainerError"])
def test_crashing_pods_with_their_restarts(reason: str) -> None:
    crashing = [Pod(name=f"p{i}", phase="Running", ready=False, restarts=4, reason=reason) for i in range(2)]
    (found,) = _symptoms(_workload(), *crashing)
    assert found.code == "pods-crashing"
    assert found.evidence == f"Deployment orders: 2 pods crash again and again, 8 restarts so far: {reason}."
    assert found.numbers == {"pods": 2, "restarts": 8}


def test_a_crashing_pod_in_phase_pending_is_not_pending_as_well() -> None:
    crashing = Pod(name="p", phase="Pending", reason="CrashLoopBackOff")
    assert [found.code for found in _symptoms(_workload(), crashing)] == ["pods-crashing"]


def test_pods_ended_for_their_memory() -> None:
    killed = _running("p", out_of_memory=True, memory_limit_bytes=512 * 2**20)
    (found,) = _symptoms(_workload(), killed)
    assert found.code == "out-of-memory"
    expected = "Deployment orders: 1 pod was ended and restarted for exceeding the memory limit of 512 MiB."
    assert (found.evidence, found.numbers) == (expected, {"pods": 1, "memory_limit_bytes": 512 * 2**20})
    (without,) = _symptoms(_workload(), _running("p", out_of_memory=True))
    assert without.evidence.endswith("for exceeding its memory limit.")


@pytest.mark.parametrize(("minutes", "codes"), [(None, ["out-of-memory"]), (9, ["out-of-memory"]), (10, [])])
def test_a_container_that_runs_again_for_a_time_has_recovered(minutes: int | None, codes: list[str]) -> None:
    """Its pod keeps the reason of its last end until it is replaced."""
    again = None if minutes is None else NOON - timedelta(minutes=minutes)
    pod = _running("p", out_of_memory=True, restarts=1, restarted_at=again)
    assert [found.code for found in _symptoms(_workload(), pod)] == codes


def test_a_rollout_with_its_progress() -> None:
    (found,) = _symptoms(_workload(rolling_out=True, updated=1))
    assert found.evidence == "Deployment orders: a rollout runs; 1 of 3 replicas have the new version."
    assert (found.code, found.numbers) == ("rollout", {"updated": 1, "wanted": 3})
    (paused,) = _symptoms(_workload(paused=True))
    assert (paused.code, "spec.paused" in paused.evidence) == ("rollout", True)


def test_a_flink_jobs_task_managers_are_no_operator() -> None:
    (found,) = _symptoms(_workload(rolling_out=True), observed={"map": 3})
    assert found.operator is None


def test_pods_of_other_workloads_do_not_count() -> None:
    other = _workload().model_copy(update={"name": "bill", "uid": "v"})
    deployment = Deployment(
        job_id="u",
        job_name="both",
        graph_hash="g",
        state="Running",
        observed={"orders": 1, "bill": 1},
        workloads=[_workload(), other],
        pods=[Pod(name="p", workload="bill", phase="Pending"), Pod(name="q", workload="bill", phase="Failed")],
    )
    assert [(found.code, found.operator) for found in workload_symptoms(deployment, NOON)] == [("pods-pending", "bill")]


def test_sentences_stay_short() -> None:
    pending = Pod(name="p2", phase="Pending", reason="Unschedulable: " + "0/3 nodes are available, " * 15)
    (found,) = _symptoms(_workload(), pending)
    assert len(found.evidence) <= 160
