"""A real job whose TaskManagers, processes behind a scale endpoint, a real executor starts and ends."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.flink import FlinkCluster, TaskManagerInstance
from testbed.kafka import KafkaBroker
from testbed.supervisor.api import endpoints
from testbed.supervisor.fleet import Fleet
from tests.integration.executor.conftest import RealJob, prepared, vector
from tests.integration.executor.test_rescale import RULES, Running
from weir_contracts import Outcome, policy_of
from weir_engines.registry import Engines, Resources
from weir_engines.task_managers.engine import TaskManagersEngine
from weir_runtime.clock import SystemClock

SLOTS, MAX_MANAGERS = 2, 3
PATIENT = RULES.model_copy(update={"deadline_floor_seconds": 60.0})
"""The first subtasks of a new JVM take long on a busy machine."""
OPTIONS = {
    # Slots that the job no longer uses are free after this time, 50 s by default.
    "slot.idle.timeout": "1000",
    "jobmanager.adaptive-scheduler.rescale-trigger.max-delay": "8 s",
}


@pytest.fixture
async def managed(
    tmp_path: Path, kafka: KafkaBroker, sample_job: Path
) -> AsyncIterator[tuple[RealJob, Fleet, Running]]:
    """The sample job on one TaskManager of two slots, and an executor that may run three."""
    name = f"managed-{uuid.uuid4().hex[:8]}"
    arguments = await asyncio.to_thread(prepared, kafka, name, 5_000)
    cluster = FlinkCluster(tmp_path / "flink", task_managers=0, slots=SLOTS, options=OPTIONS)
    fleet = Fleet(lambda _ordinal: TaskManagerInstance(cluster), 1)
    try:
        await asyncio.to_thread(cluster.start)
        async with endpoints({name: fleet}, MAX_MANAGERS) as urls:
            await asyncio.to_thread(cluster.wait_slots, SLOTS, 120.0)
            job_id = await asyncio.to_thread(cluster.submit, sample_job, arguments, parallelism=1)
            await asyncio.to_thread(cluster.wait_running, job_id)
            job = RealJob(cluster, job_id, name)
            pool = {"endpoint": {"url": f"{urls[name]}/scale/{name}"}, "slots": SLOTS, "max": MAX_MANAGERS}
            job.spec_policy = policy_of(
                "shop/orders",
                3,
                application={"flink": {"url": cluster.rest_url, "job": name}},
                target={"flink": {"taskManagers": pool}},
                objective={"maxLag": "30s"},
                mode="act",
            )
            job.subject = job.spec_policy.subject
            engines = Engines(Resources(SystemClock()))
            running = Running(job, engines.of(TaskManagersEngine).driver, "task-managers", PATIENT)
            await running.introduce()
            yield job, fleet, running
            await running.end()
            await engines.close()
    finally:
        await asyncio.to_thread(cluster.stop)


def _restarts(job: RealJob) -> int:
    (found,) = job.cluster.get(f"/jobs/{job.job_id}/metrics?get=numRestarts")
    return int(found["value"])


class TestAlone:
    """JVMs that start within a time limit."""

    async def test_task_managers_come_before_the_job_grows_and_go_after_it_has_shrunk(
        self,
        managed: tuple[RealJob, Fleet, Running],
    ) -> None:
        """Flink itself says so: the job runs at 5 on three TaskManagers, and at 2 on one, and no record is lost on the way."""
        job, fleet, running = managed

        async def rescaled(enrich: int, managers: int) -> Outcome:
            outcome = await running.until_ended(await running.plan(vector(enrich)), 180.0)
            assert (outcome.phase, outcome.observed) == ("verified", vector(enrich)), outcome.sentence
            assert job.cluster.observed(job.job_id) == vector(enrich)
            assert fleet.state().scale.replicas == managers
            await asyncio.to_thread(job.cluster.wait_running, job.job_id)
            return outcome

        await rescaled(5, 3)
        assert job.cluster.slots_total() == 3 * SLOTS
        assert "preparing" in running.phases() and "releasing" not in running.phases()
        restarts = _restarts(job)
        assert restarts == 1, "the job processes while TaskManagers start"
        await rescaled(2, 1)
        assert "releasing" in running.phases()
        async with asyncio.timeout(60):
            while len(job.cluster.get("/taskmanagers")["taskmanagers"]) != 1:  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.2)
        assert _restarts(job) <= restarts + 2, "one for the rescale, one where slots in use went"
