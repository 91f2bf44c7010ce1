"""The suite of all drivers, on the memory cluster and on Flink's REST shapes."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.unit.engines.driver_suite import OPEN, DriverSuite
from tests.unit.engines.flink.fake_cluster import FakeFlink
from tests.unit.engines.memory_jobs import MemoryDriver
from tests.unit.executor.builders import BEFORE, JOB, NOON, TOPOLOGY, WANTED, subject
from weir_engines.driver import Accepted, Driver, Snapshot, TargetChanged
from weir_engines.flink.driver import FlinkDriver
from weir_runtime.clock import FakeClock


class FakeRig:
    """A job of the memory cluster, in virtual time."""

    def __init__(self, driver: Driver, cluster: MemoryDriver, clock: FakeClock) -> None:
        self.driver = driver
        self.clock = clock
        self.subject, self.by_id, self.nobody = subject(), subject(JOB), subject("nobody")
        self.away = subject(url="http://127.0.0.1:1")
        cluster.away["http://127.0.0.1:1"] = "connection refused"
        self.job_id, self.before, self.wanted, self.too_much = JOB, BEFORE, WANTED, {**WANTED, "enrich": 121}

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(100):
            there = await self.driver.observe(self.subject)
            if condition(there):
                return there
            self.clock.advance(0.5)
        raise AssertionError(f"not within 50 s: {there}")


def cluster() -> tuple[MemoryDriver, FakeClock]:
    clock = FakeClock(NOON)
    driver = MemoryDriver(clock)
    driver.add(subject(), TOPOLOGY, BEFORE, JOB)
    clock.advance(60)
    return driver, clock


class TestMemory(DriverSuite):
    @pytest.fixture
    def rig(self) -> FakeRig:
        history, clock = cluster()
        return FakeRig(history, history, clock)

    async def test_a_request_for_another_version_sends_nothing(self, rig: FakeRig) -> None:
        """The target changed after it was observed; without a version there is no condition."""
        driver = rig.driver
        assert isinstance(driver, MemoryDriver)
        job = driver.jobs["http://127.0.0.1:8081", "orders"]
        job.version = "8"
        assert (await driver.observe(rig.subject)).version == "8"
        for version, answer, requests in (("7", TargetChanged, 0), ("8", Accepted, 1), (None, Accepted, 1)):
            found = await driver.request(rig.subject, JOB, WANTED, BEFORE, OPEN, version=version)
            assert isinstance(found, answer) and len(driver.requests) == requests


class TestFlinkShapes(DriverSuite):
    @pytest.fixture(params=[0, 3_600_000, -3_600_000], ids=["same clock", "an hour ahead", "an hour behind"])
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[FakeRig]:
        """Times are right however wrong the cluster's clock is."""
        history, clock = cluster()
        flink = FlinkDriver(clock, transport=FakeFlink(history, subject(), clock_ahead_ms=request.param).transport)
        yield FakeRig(flink, history, clock)
        await flink.close()
