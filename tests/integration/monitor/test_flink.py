"""The Flink collector keeps on a real cluster what it promises."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from testbed.process import free_port
from tests.integration.monitor.conftest import RealJob, Stage
from tests.unit.engines.flink.collector_suite import FlinkSuite
from tests.unit.monitor.builders import policy
from weir_engines.flink.collector import FlinkCollector
from weir_engines.flink.readings import FlinkReadings

TIMEOUT_SECONDS = 5.0


def collector(url: str, job: str) -> FlinkCollector:
    """A collector of a job by name or id."""
    target = policy(url=url, job=job).subject.flink
    assert target is not None
    return FlinkCollector(target, TIMEOUT_SECONDS)


class RealRig:
    """The sample job, untouched."""

    def __init__(self, job: RealJob) -> None:
        self._job = job
        url = job.cluster.rest_url
        self.flink, self.by_id = collector(url, job.name), collector(url, job.id)
        self.nobody = collector(url, "nobody")
        self.away = collector(f"http://127.0.0.1:{free_port()}", job.name)
        self.topic = job.topic.replace(".", "_")
        (self.source,) = (v["id"] for v in job.cluster.get(f"/jobs/{job.id}")["vertices"] if v["name"][:6] == "Source")

    async def until(self, condition: Callable[[FlinkReadings], bool]) -> FlinkReadings:
        readings: FlinkReadings | None = None
        try:
            async with asyncio.timeout(40):
                while True:
                    readings = await self.flink.read()
                    if condition(readings):
                        return readings
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"not within 40 s: {readings}") from None

    async def process(self, records: int) -> None:
        self._job.untouched = False
        await asyncio.to_thread(self._job.process, records)

    async def rescale(self) -> None:
        await asyncio.to_thread(self._job.rescale, 2)

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in (self.flink, self.by_id, self.nobody, self.away)))


class TestRealFlink(FlinkSuite):
    @pytest.fixture
    async def rig(self, stage: Stage) -> AsyncIterator[RealRig]:
        rig = RealRig(await asyncio.to_thread(stage.untouched))
        yield rig
        await rig.close()
