"""A real job of Flink's default scheduler, stopped with a savepoint and run again from it by a real executor."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from tests.integration.executor.conftest import RealJob, prepared, vector
from tests.integration.executor.test_rescale import Running
from weir_contracts import policy_of
from weir_engines.flink.driver import FlinkDriver
from weir_engines.flink_resubmit.driver import FlinkResubmitDriver
from weir_runtime.clock import SystemClock

DEFAULT_SCHEDULER = {"jobmanager.scheduler": "Default"}


@pytest.fixture
def stoppable(tmp_path: Path, kafka: KafkaBroker, sample_job: Path) -> Iterator[RealJob]:
    """The sample job with one subtask an operator, on a cluster that rescales nothing in place, and a policy that says how it is
    run again."""
    name = f"resubmit-{uuid.uuid4().hex[:8]}"
    arguments = prepared(kafka, name, 5_000)
    with FlinkCluster(tmp_path / "flink", task_managers=1, slots=4, options=DEFAULT_SCHEDULER) as cluster:
        job_id = cluster.submit(sample_job, arguments, parallelism=1)
        cluster.wait_running(job_id)
        job = RealJob(cluster, job_id, name)
        resubmit = {
            "jar": sample_job.name,
            "args": arguments,
            "savepointDirectory": f"file://{tmp_path.resolve()}/savepoints",
            "uniform": True,
        }
        job.spec_policy = policy_of(
            "shop/orders",
            3,
            application={"flink": {"url": cluster.rest_url, "job": name}},
            target={"flink": {"resubmit": resubmit}},
            objective={"maxLag": "30s"},
            mode="act",
        )
        job.subject = job.spec_policy.subject
        yield job


async def test_the_successor_continues_from_the_savepoint(stoppable: RealJob) -> None:
    """Flink itself says so: the first job is FINISHED, the second runs at 2 and restored the savepoint. And back again."""
    clock = SystemClock()
    jobs = FlinkDriver(clock)
    running = Running(stoppable, FlinkResubmitDriver(clock, jobs), "flink-resubmit")
    await running.introduce()
    try:
        up = await running.until_ended(await running.plan(vector(2, 2)), 180.0)
        assert (up.phase, up.observed) == ("verified", vector(2, 2)), up.sentence
        record = up.action and up.action.resubmission
        assert record is not None and record.stopped_job == stoppable.job_id
        cluster = stoppable.cluster
        assert cluster.job_state(stoppable.job_id) == "FINISHED"
        assert cluster.observed(record.successor) == vector(2, 2)
        before, after = (set(cluster.job(each).names()) for each in (record.stopped_job, record.successor))
        assert before == after, "the vertices keep their ids"
        restored = cluster.get(f"/jobs/{record.successor}/checkpoints")["latest"]["restored"]
        assert restored["is_savepoint"] and restored["external_path"] == record.savepoint
        assert up.restart_seconds is not None and up.restart_seconds > 0.1
        down = await running.until_ended(await running.plan(vector(1)), 180.0)
        assert (down.phase, down.observed) == ("verified", vector(1)), down.sentence
        states = [each["state"] for each in cluster.get("/jobs/overview")["jobs"]]
        assert sorted(states) == ["FINISHED", "FINISHED", "RUNNING"]
    finally:
        await running.end()
        await jobs.close()
