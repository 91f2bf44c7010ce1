"""The monitor on a real bus: a cluster that hangs affects only its application, and replicas replace one another."""

import asyncio
import itertools
import signal
import statistics
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from testbed.flink import FlinkCluster
from testbed.kafka import KafkaBroker
from tests.integration.monitor.conftest import Stage
from tests.unit.monitor.builders import policy
from weir_contracts import Observation, ScalingPolicy
from weir_contracts.topics import OBSERVATIONS, POLICIES
from weir_engines.registry import Engines, Resources
from weir_monitor.applications import Collectors
from weir_monitor.service import Monitor
from weir_monitor.settings import MonitorSettings
from weir_runtime.bus import partition_of
from weir_runtime.clock import SystemClock
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.loop import Stop
from weir_runtime.messages import decode
from weir_runtime.service import topic_specs

SETTINGS = MonitorSettings()
INTERVAL_SECONDS = 2.0


class House:
    """The loop's topics on the shared broker, and as many replicas as wanted. Other tests' policies may be there, too."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._servers = broker.bootstrap_servers
        self.bus = KafkaBus(self._servers)
        self.observations: list[Observation] = []
        self._applied: set[str] = set()
        self._mark = uuid.uuid4().hex[:8]

    def name(self, name: str) -> str:
        """Return the name of an application of this test."""
        return f"{name}-{self._mark}/app"

    async def apply(self, wanted: ScalingPolicy) -> None:
        self._applied.add(wanted.application)
        await self.bus.publish(POLICIES.name, wanted.application, wanted.model_dump_json().encode())

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[Monitor]:
        clock, stop = SystemClock(), Stop()
        bus = KafkaBus(self._servers)
        await bus.start()
        collectors = Collectors(Engines(Resources(clock, SETTINGS.call_timeout_seconds)))
        monitor = Monitor(bus, clock, collectors.new, scrape_timeout_seconds=SETTINGS.scrape_timeout_seconds)
        running = asyncio.create_task(monitor.run(stop))
        try:
            yield monitor
        finally:
            stop.request("test")
            async with asyncio.timeout(10):
                await running
                await bus.close()

    def of(self, application: str) -> list[Observation]:
        return [observation for observation in self.observations if observation.application == application]

    def last(self, application: str) -> str | None:
        """Status in its newest observation."""
        return next((o.status for o in reversed(self.observations) if o.application == application), None)

    async def listen(self) -> None:
        reader = self.bus.reader(OBSERVATIONS.name, from_beginning=False)
        while True:
            for record in await reader.receive(timeout_seconds=0.3):
                self.observations.append(decode(record, Observation).message)

    async def close(self) -> None:
        """Leave no policy behind: the next test's monitors would watch it."""
        for application in self._applied:
            await self.bus.publish(POLICIES.name, application, None)
        await self.bus.close()


@pytest.fixture
async def house(kafka: KafkaBroker) -> AsyncIterator[House]:
    made = House(kafka)
    await made.bus.start()
    await made.bus.ensure_topics(topic_specs(SETTINGS.partitions))
    listening = asyncio.create_task(made.listen())
    yield made
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await made.close()


@pytest.fixture
def lone_job_manager(run_folder: Path) -> Iterator[FlinkCluster]:
    """A cluster without TaskManagers, which may be frozen."""
    with FlinkCluster(run_folder / "flink-monitor", task_managers=0) as cluster:
        yield cluster
        cluster.job_manager.signal_group(signal.SIGCONT)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for a condition; the deadline fails the test."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.05)


def gaps_seconds(observations: list[Observation]) -> list[float]:
    times = [observation.observed_at for observation in observations]
    return [(after - before).total_seconds() for before, after in itertools.pairwise(times)]


async def test_a_frozen_cluster_delays_no_other(house: House, stage: Stage, lone_job_manager: FlinkCluster) -> None:
    """A stopped JobManager still accepts connections and never answers. Its application is unreachable until it wakes
    up; the real job next to it is observed at its interval meanwhile."""
    job = await asyncio.to_thread(stage.any)
    real, frozen = house.name("real"), house.name("frozen")
    await house.apply(job.policy(real, interval="2s"))
    await house.apply(policy(frozen, url=lone_job_manager.rest_url, job="nobody"))
    async with house.replica():
        await until(lambda: house.last(real) == "running" and house.last(frozen) == "not_found")
        lone_job_manager.job_manager.signal_group(signal.SIGSTOP)
        await until(lambda: house.last(frozen) == "unreachable")
        began = len(house.observations)
        await until(lambda: sum(o.application == frozen for o in house.observations[began:]) >= 3)
        meanwhile = [o for o in house.observations[began:] if o.application == real]
        lone_job_manager.job_manager.signal_group(signal.SIGCONT)
        await until(lambda: house.last(frozen) == "not_found")

    away = [o for o in house.of(frozen) if o.status == "unreachable"]
    assert all("no answer in time" in o.message for o in away)
    assert [o.status for o in meanwhile].count("running") > 0.8 * len(meanwhile)
    assert len(meanwhile) >= 3
    assert statistics.median(gaps_seconds(meanwhile)) < 1.5 * INTERVAL_SECONDS


async def test_replicas_share_and_stand_in(house: House, stage: Stage) -> None:
    """Each application is watched by one of two; when one leaves, the other knows its applications and goes on."""
    job = await asyncio.to_thread(stage.any)
    names = one_in_each_partition(house)
    for name in names:
        await house.apply(job.policy(name, job="nobody", interval="1s"))
    async with house.replica() as stays:
        async with house.replica() as leaves:

            def shares() -> list[set[str]]:
                return [set(monitor.applications) & set(names) for monitor in (stays, leaves)]

            await until(lambda: all(shares()) and set.union(*shares()) == set(names))
            assert not set.intersection(*shares())
            began = len(house.observations)
            await until(lambda: all(sum(o.application == n for o in house.observations[began:]) >= 4 for n in names))
            for name in names:
                times = [o.observed_at for o in house.observations[began:] if o.application == name]
                seconds = (times[-1] - times[0]).total_seconds()
                assert len(times) <= seconds + 2, "each is scraped by one"
            taken_over = shares()[1]
        began = len(house.observations)
        await until(lambda: set(names) <= set(stays.applications))
        await until(lambda: taken_over <= {o.application for o in house.observations[began:]})
    # One that leaves says so; where that is lost, its session runs out.
    assert all(max(gaps_seconds(house.of(name))) < 15 for name in taken_over)


def one_in_each_partition(house: House) -> list[str]:
    found: dict[int, str] = {}
    number = 0
    while len(found) < SETTINGS.partitions:
        number += 1
        name = house.name(f"a{number}")
        found.setdefault(partition_of(name, SETTINGS.partitions), name)
    return list(found.values())
