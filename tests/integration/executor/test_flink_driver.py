"""The suite of all drivers, on a real Flink."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.integration.executor.conftest import RealJob, reset, until, vector
from tests.unit.engines.driver_suite import OPEN, DriverSuite
from weir_contracts import Subject
from weir_engines.driver import Accepted, Snapshot
from weir_engines.flink.driver import FlinkDriver
from weir_runtime.clock import SystemClock


class RealRig:
    """The sample job at parallelism 1."""

    def __init__(self, driver: FlinkDriver, job: RealJob, closed_port: int) -> None:
        self.driver = driver
        self.subject: Subject = job.subject
        self.by_id, self.nobody = job.aim(job.job_id), job.aim("nobody")
        self.away = job.aim(job.name, f"http://127.0.0.1:{closed_port}")
        self.job_id = job.job_id
        self.before, self.wanted, self.too_much = vector(1), vector(3, 2), vector(121)

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        return await until(self.driver, self.subject, condition)


class TestRealFlink(DriverSuite):
    @pytest.fixture
    async def rig(self, real_job: RealJob, closed_port: int) -> AsyncIterator[RealRig]:
        driver = FlinkDriver(SystemClock())
        await reset(driver, real_job, vector(1))
        yield RealRig(driver, real_job, closed_port)
        await driver.close()

    async def test_the_cluster_s_own_settings_are_read(self, rig: RealRig) -> None:
        """Deadlines are computed from them."""
        found = await rig.driver.observe(rig.subject)
        assert found.deployment is not None and found.deployment.checkpoints is not None
        rescale = found.deployment.rescale
        assert (rescale.scheduler, rescale.cooldown_seconds, rescale.stabilization_seconds) == ("adaptive", 1.0, 1.0)
        assert rescale.max_trigger_delay_seconds == 8.0
        assert found.deployment.checkpoints.interval_seconds == 120.0

    async def test_a_rescale_without_a_triggered_checkpoint_waits_for_a_checkpoint(
        self, rig: RealRig, real_job: RealJob
    ) -> None:
        """Without a triggered checkpoint nothing has begun after 5 s; with one the rescale takes a few seconds."""
        for _ in range(3):  # a periodic checkpoint may come just then
            request_sent = await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
            assert isinstance(request_sent, Accepted)
            found = await rig.until(lambda s, at=request_sent.at: (s.at - at).total_seconds() > 5)
            if found.runs(rig.before):
                break
            await reset(rig.driver, real_job, rig.before)
        assert found.runs(rig.before)
        assert await rig.driver.trigger_checkpoint(rig.subject, rig.job_id) is None
        checkpoint_triggered_at = found.at
        found = await rig.until(lambda s: s.runs(rig.wanted))
        assert found.steady_since is not None
        assert (found.steady_since - checkpoint_triggered_at).total_seconds() < 15
