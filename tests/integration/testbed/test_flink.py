"""A session cluster really starts, runs a job, rescales it, loses and gains TaskManagers, and leaves nothing behind."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from testbed.flink import FlinkCluster, FlinkError
from testbed.kafka import KafkaBroker
from testbed.process import TestbedError, wait_until


@pytest.fixture
def job(flink_cluster: FlinkCluster, kafka: KafkaBroker, sample_job: Path) -> Iterator[str]:
    """The sample job on its own topics."""
    name = f"testbed-{uuid.uuid4().hex[:8]}"
    for topic in (f"{name}-in", f"{name}-out"):
        kafka.create_topic(topic, 4)
    job_id = flink_cluster.submit(sample_job, _arguments(kafka, name), parallelism=1)
    try:
        flink_cluster.wait_running(job_id)
        yield job_id
    finally:
        flink_cluster.cancel(job_id)
        flink_cluster.wait_ended(job_id)


def _arguments(kafka: KafkaBroker, name: str) -> list[str]:
    return [
        *("--bootstrap-servers", kafka.bootstrap_servers),
        *("--input-topic", f"{name}-in"),
        *("--output-topic", f"{name}-out"),
        *("--group-id", name),
        *("--job-name", name),
        *("--checkpoint-interval-ms", "2000"),
    ]


def test_the_shared_cluster_can_rescale(flink_cluster: FlinkCluster) -> None:
    """The adaptive scheduler is on, and all slots are registered."""
    assert flink_cluster.get("/config")["features"]["web-rescale"] is True
    assert flink_cluster.slots_total() == 8


def test_a_job_runs_and_is_rescaled_in_seconds(flink_cluster: FlinkCluster, job: str) -> None:
    """With the testbed's timings a rescale begins soon after the next checkpoint, not after Flink's defaults."""
    assert set(flink_cluster.observed(job).values()) == {1}
    requirements = f"{flink_cluster.rest_url}/jobs/{job}/resource-requirements"
    wanted = httpx.get(requirements, timeout=10).json()
    for vertex in wanted.values():
        vertex["parallelism"] = {"lowerBound": 1, "upperBound": 2}
    assert httpx.put(requirements, json=wanted, timeout=10).status_code == 200

    wait_until(
        lambda: set(flink_cluster.observed(job).values()) == {2},
        timeout_seconds=30,
        what="parallelism 2 everywhere",
    )
    flink_cluster.wait_running(job)


def test_a_cancelled_job_can_go_on_from_its_checkpoint(
    flink_cluster: FlinkCluster, kafka: KafkaBroker, sample_job: Path, job: str
) -> None:
    """Checkpoints are retained, so that a test can resubmit a job with its state."""
    wait_until(lambda: flink_cluster.latest_checkpoint(job), timeout_seconds=20, what="a checkpoint")
    name = str(flink_cluster.get(f"/jobs/{job}")["name"])
    flink_cluster.cancel(job)
    assert flink_cluster.wait_ended(job) == "CANCELED"
    checkpoint = flink_cluster.latest_checkpoint(job)  # only the last one is retained
    assert checkpoint is not None

    again = flink_cluster.submit(sample_job, _arguments(kafka, name), parallelism=1, savepoint=checkpoint)
    try:
        flink_cluster.wait_running(again)
        restored = flink_cluster.get(f"/jobs/{again}/checkpoints")["latest"]["restored"]
        assert restored["external_path"] == checkpoint
    finally:
        flink_cluster.cancel(again)
        flink_cluster.wait_ended(again)


def test_a_job_that_cannot_start_reports_the_reason(
    flink_cluster: FlinkCluster, sample_job: Path, tmp_path: Path
) -> None:
    """The cluster's own reason reaches the reader, without a page of stack."""
    with pytest.raises(FlinkError) as refused:
        flink_cluster.submit(sample_job, entry_class="dev.weir.sample.NoSuchJob")
    assert "NoSuchJob" in str(refused.value) and "\tat " not in str(refused.value)
    broken = tmp_path / "broken.jar"
    broken.write_bytes(b"not a jar")
    with pytest.raises(FlinkError):
        flink_cluster.submit(broken)


def test_an_unknown_job_is_no_reason_to_fail_a_cancel(flink_cluster: FlinkCluster) -> None:
    """Cleaning up is repeatable."""
    flink_cluster.cancel("0" * 32)
    with pytest.raises(FlinkError) as unknown:
        flink_cluster.job_state("0" * 32)
    assert unknown.value.status == 404


def test_task_managers_come_and_go_and_nothing_is_left(tmp_path: Path) -> None:
    """Slots follow the TaskManagers; after stop no process of the cluster lives."""
    cluster = FlinkCluster(
        tmp_path, task_managers=1, slots=2, options={"heartbeat.interval": "500", "heartbeat.timeout": "3000"}
    )
    with cluster:
        cluster.add_task_manager()
        cluster.wait_slots(4)
        cluster.kill_task_manager()
        wait_until(lambda: cluster.slots_total() == 2, timeout_seconds=20, what="the lost slots noticed")
        pids = [process.pid for process in cluster.processes]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not cluster.answers()


def test_a_wrong_option_fails_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    """The end of the process is noticed, not waited out; the error names the log."""
    cluster = FlinkCluster(tmp_path, options={"blob.server.port": "nonsense"})
    with pytest.raises(TestbedError, match=r"jobmanager ended with code [12]: .+ \(log: .*\.log\)"):
        cluster.start()
    assert not any(process.running for process in cluster.processes)
