"""Actions with TaskManagers while another client, another job or a failure comes in between: what is given back, kept and said."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.unit.engines.memory_managers import ManagedMemory
from tests.unit.engines.task_managers.rig import BEFORE as RIG_BEFORE
from tests.unit.engines.task_managers.rig import WANTED as RIG_WANTED
from tests.unit.engines.task_managers.rig import WORKLOAD
from tests.unit.executor.builders import BEFORE
from tests.unit.executor.house import House
from tests.unit.executor.test_managers import ENDS, at_four, cluster, ended
from tests.unit.executor.test_managers_stories import ManagedHouse

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House(container_start_seconds=20.0)
    made.driver = made.drivers["flink"] = ManagedMemory(made.clock)
    await made.start()
    yield made
    await made.end()


async def test_a_client_that_sets_the_number_back_each_time_ends_the_action(house: House) -> None:
    """Such as a GitOps tool: each number is requested once, says the README."""
    pool = cluster(house).pool
    pool.start_seconds = 6.0
    await house.plan()
    for _ in range(300):
        await house.quiet(2.0)
        if house.phases()[-1] in ENDS:
            break
        if pool.wanted == 4:
            pool.wanted = pool.registered = 1
    assert house.phases()[-1] in ENDS, f"{len(pool.provided)} requests in 10 min, still {house.phases()[-1]}"
    assert pool.provided.count(4) == 1


@pytest.mark.parametrize("how", ["cancelled", "contested", "stuck", "unreachable"])
async def test_an_end_without_release_names_what_is_kept(house: House, how: str) -> None:
    """Brought for a growth that ends otherwise than verified or rolled back."""
    if how == "stuck":
        house.job().crash_above = 2
    await house.plan()
    await house.until(house.ended("verifying"))
    if how == "cancelled":
        house.job().state = "CANCELED"
    elif how == "contested":
        house.job().requested = {**BEFORE, "orders": 2}
    elif how == "stuck":
        await house.until(house.ended("rolling-back"))
        house.job().rescale_seconds = 10_000.0
    elif how == "unreachable":
        house.driver.away["http://127.0.0.1:8081"] = "connection refused"
        for _ in range(80):
            house.clock.advance(10)
            await house.quiet(1)
    await house.until(lambda: house.phases()[-1] in ENDS, seconds=1200)
    last = house.published()[-1]
    assert last.phase == "failed"
    assert cluster(house).pool.wanted == 1 or "TaskManager" in last.sentence, (last.code, last.sentence)


async def test_a_growth_after_a_superseded_release_names_or_releases_the_rest(house: House) -> None:
    at_four(house)
    cluster(house).pool.stays = 4
    await house.plan(BEFORE)
    await house.until(house.ended("releasing"))
    cluster(house).pool.stays = 0
    await house.plan({**BEFORE, "enrich": 2})
    await house.until(house.ended("verified"))
    told = [o.sentence for o in house.published() if o.phase in ("superseded", "verified")]
    assert cluster(house).pool.wanted <= 2 or any("TaskManager" in each for each in told), told


async def test_slots_of_more_managers_than_needed_are_waited_for(house: House) -> None:
    """Six are requested, two have registered (two pods pending); the growth needs four."""
    pool = cluster(house).pool
    pool.wanted, pool.registered = 6, 2
    pool.since, pool.start_seconds = house.clock.now(), 15.0
    seen: list[int] = []

    def look(effect: str) -> None:
        if effect == "before request":
            seen.append(pool.registered)

    house.replicas[0].ports.on_effect = look
    await house.plan()
    await ended(house)
    assert seen and seen[0] >= 4, f"requested with {seen} of 4 slots registered"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_a_shrink_in_a_session_cluster_releases_its_managers(kind: str) -> None:
    """Flink holds the job's unused slots for slot.idle.timeout, 50 s; they are no other job's."""
    house = ManagedHouse(kind, managers=5)
    house.rig.cluster.is_shared = True
    await house.begin()
    job = house.rig.job
    job.observed = job.requested = dict(RIG_WANTED)
    names = house.rig.kubernetes.names(WORKLOAD)
    house.rig.cluster.idle = frozenset()  # 8 slots of this job, 2 of another one
    await house.wants(RIG_BEFORE)
    await house.until(house.ended("releasing"))
    began = house.clock.now()
    for _ in range(60):
        await house.quiet(0.5)
        if house.clock.now() - began > timedelta(seconds=15):
            house.rig.cluster.idle = frozenset(names[2:])
        if house.phases()[-1] in ENDS:
            break
    last = house.published()[-1]
    assert (house.rig.writes(), last.code) == ([2], "verified"), (house.clock.now() - began, last.sentence)
    await house.end()


async def test_managers_that_another_job_uses_stay_when_the_own_job_is_gone() -> None:
    """A session cluster; the other job takes the slots that were brought."""
    house = ManagedHouse("StatefulSet")
    house.rig.cluster.is_shared = True
    house.rig.pods.ready_seconds = 10.0
    await house.begin()
    await house.wants(RIG_WANTED)
    await house.until(lambda: house.rig.writes() == [4])
    await house.quiet(2)
    house.rig.cluster.idle = frozenset()
    house.rig.job.state = "CANCELED"
    house.clock.advance(12)
    await house.until(house.ended("failed"))
    assert house.rig.writes() == [4], "those in use by another job were ended, without a checkpoint of it"
    await house.end()


async def test_a_rollback_that_brings_managers_has_the_time_for_their_start() -> None:
    """After a release the job does not run; its managers come again within what they may take."""
    house = ManagedHouse("StatefulSet", managers=4)
    await house.begin()
    job = house.rig.job
    job.observed = job.requested = dict(RIG_WANTED)
    await house.wants(RIG_BEFORE)
    await house.until(lambda: house.rig.writes() == [1])
    house.rig.pods.ready_seconds = 50.0  # three one after another may take 60 s
    job.state, job.begun_at = "RESTARTING", None
    await house.until(house.ended("rolling-back"))
    await house.until(lambda: house.rig.writes() == [1, 4])
    await house.until(lambda: len(house.rig._running()) == 4 or house.phases()[-1] in ENDS)
    job.begun_at = house.clock.now()
    await house.until(lambda: house.phases()[-1] in ENDS)
    last = house.published()[-1]
    assert last.phase == "rolled-back", (last.code, last.sentence)
    await house.end()


async def test_a_rollback_brings_as_many_back_as_the_policy_allows(house: House) -> None:
    at_four(house)
    cluster(house).pool.max = 3
    await house.plan(BEFORE)
    await house.until(lambda: cluster(house).pool.provided == [1])
    house.job().state, house.job().begun_at = "RESTARTING", None
    await house.until(house.ended("rolling-back"))
    await house.until(lambda: house.phases()[-1] in ENDS)
    assert cluster(house).pool.provided == [1, 3]


async def test_a_wait_for_managers_that_were_there_is_no_measured_start(house: House) -> None:
    pool = cluster(house).pool
    pool.wanted, pool.registered = 4, 2
    pool.since, pool.start_seconds = house.clock.now(), 4.0
    await house.plan()
    await ended(house)
    action = house.published()[-1].action
    assert action.managers.before == action.managers.wanted == 4
    assert action.managers.start_seconds is None, f"{action.managers.start_seconds} s become the usual start"
