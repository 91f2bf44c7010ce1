"""An executor whose application is scaled by containers: actions from plan to end, in memory."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from weir_contracts.topics import PLANS, POLICIES

from services.executor.adapters.docker import DockerDriver
from tests.unit.executor.builders import JOB, TOPOLOGY, plan
from tests.unit.executor.docker_rig import PROJECT, SERVICE, docker_policy
from tests.unit.executor.house import APP, House
from tests.unit.executor.memory_docker import MemoryDaemon, ReactiveCluster


class DockerHouse(House):
    """Two containers run, and the job on them; the monitor does not know what was requested."""

    def __init__(self) -> None:
        super().__init__()
        self.docker = MemoryDaemon()
        for number in (1, 2):
            self.docker.add(PROJECT, SERVICE, number)
        self.cluster = ReactiveCluster(self.clock, self.docker.running)
        driver = DockerDriver(self.clock, self.cluster, self.docker, [PROJECT], checkpoint_seconds=0.05)
        self.drivers["docker"] = self.scaler = driver

    async def begin(self) -> None:
        await self.start()
        self.knowledge.policies[APP] = made = docker_policy()
        await self.publish(POLICIES, APP, made)
        self.running = self.cluster.add(made.subject, TOPOLOGY, TOPOLOGY.uniform(2), JOB)
        self.clock.advance(60)

    async def wants(self, level: int) -> None:
        """A plan for the job as a monitor sees it."""
        found = await self.cluster.observe(docker_policy().subject)
        assert found.deployment is not None
        made_for = found.deployment.ref().model_copy(update={"requested": None})
        self._plans += 1
        made = plan(
            TOPOLOGY.uniform(level),
            number=self._plans,
            at=self.clock.now(),
            deployment=made_for,
            current=made_for.observed,
            expires_at=self.clock.now() + timedelta(seconds=30),
        )
        await self.publish(PLANS, APP, made, id=made.id)

    def states(self) -> list[tuple[int, str]]:
        return [(each.number, each.state) for each in self.docker.containers(PROJECT, SERVICE)]


@pytest.fixture
async def house() -> AsyncIterator[DockerHouse]:
    made = DockerHouse()
    await made.begin()
    yield made
    await made.end()
    await made.scaler.close()


async def test_scale_up_and_down(house: DockerHouse) -> None:
    """Two to four and to three: requested, running, settled; the job uses all slots of the containers."""
    await house.wants(4)
    await house.until(house.ended("verified"))
    assert house.phases() == ["intended", "applying", "verifying", "verifying", "verified"]
    last = house.published()[-1]
    assert (last.before, last.observed) == (TOPOLOGY.uniform(2), TOPOLOGY.uniform(4))
    await house.wants(3)
    await house.until(lambda: house.phases().count("verified") == 2)
    assert house.states() == [(1, "running"), (2, "running"), (3, "running")]


async def test_a_service_scaled_by_hand_is_contested(house: DockerHouse) -> None:
    """`docker compose up --scale` by hand: held, and the sentence gives the present number."""
    await house.wants(3)
    await house.until(house.ended("verified"))
    house.docker.add(PROJECT, SERVICE, 4)
    house.docker.add(PROJECT, SERVICE, 5)
    await house.until(lambda: house.docker.running(PROJECT, SERVICE) == 5)
    await house.quiet(10)
    await house.cluster.trigger_checkpoint(docker_policy().subject, JOB)
    await house.quiet(10)
    await house.wants(4)
    await house.until(house.ended("refused"))
    published = house.published()[-1]
    assert (published.code, "3 → 5" in published.sentence) == ("contested", True)
    assert house.docker.running(PROJECT, SERVICE) == 5


async def test_containers_that_fail_to_start_are_rolled_back(house: DockerHouse) -> None:
    """They start and end again: the job stays below the requested parallelism, and is rolled back after the deadline."""
    start = house.docker.start

    def start_and_end(container: object) -> None:
        start(container)  # type: ignore[arg-type]
        house.docker.stop(container)  # type: ignore[arg-type]

    house.docker.start = start_and_end  # type: ignore[method-assign]
    await house.wants(4)
    await house.until(house.ended("rolled-back"))
    assert house.states() == [(1, "running"), (2, "running")]
    assert "below-requested" in [published.code for published in house.published()]


async def test_a_refusal_of_docker_ends_the_action(house: DockerHouse) -> None:
    """With its reason; the number of containers is unchanged, so the next plan is not contested."""
    house.docker.refuses["start"] = "port is already allocated"
    await house.wants(3)
    await house.until(house.ended("failed"))
    assert "port is already allocated" in house.published()[-1].sentence
    house.docker.refuses.clear()
    await house.wants(3)
    await house.until(house.ended("verified"))
    assert len(house.states()) == 3
