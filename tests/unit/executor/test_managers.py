"""TaskManagers come before the request that needs them and go after it, in an executor with everything in memory."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.unit.engines.memory_managers import ManagedMemory
from tests.unit.executor.builders import BEFORE, WANTED
from tests.unit.executor.house import APP, House
from weir_engines.driver import Refusal

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """One replica, and one job on one TaskManager of one slot."""
    made = House(container_start_seconds=20.0)
    made.driver = made.drivers["flink"] = ManagedMemory(made.clock)
    await made.start()
    yield made
    await made.end()


def cluster(house: House) -> ManagedMemory:
    assert isinstance(house.driver, ManagedMemory)
    return house.driver


async def ended(house: House) -> None:
    await house.until(lambda: house.phases()[-1:] != [] and house.published()[-1].phase in ENDS)


ENDS = ("verified", "rolled-back", "failed", "refused", "superseded")


def at_four(house: House, managers: int = 4) -> None:
    """The job runs at 4, with so many TaskManagers."""
    job, pool = house.job(), cluster(house).pool
    job.observed, job.requested = dict(WANTED), dict(WANTED)
    pool.wanted = pool.registered = managers


async def test_managers_come_before_the_request(house: House) -> None:
    """The requirements are sent once all slots are registered, and the record says how long that took."""
    cluster(house).pool.start_seconds = 12.0
    requested_with: list[int] = []
    house.replicas[0].ports.on_effect = lambda effect: (
        requested_with.append(cluster(house).pool.registered) if effect == "before request" else None
    )
    await house.plan()
    await ended(house)
    assert house.phases() == [
        "intended",
        "preparing",
        "preparing",
        "applying",
        "verifying",
        "verifying",
        "verified",
    ]
    assert (cluster(house).pool.provided, requested_with) == ([4], [4])
    action = house.published()[-1].action
    assert action is not None and action.managers is not None
    assert (action.managers.before, action.managers.wanted) == (1, 4)
    assert 12.0 <= (action.managers.start_seconds or 0.0) < 14.0
    assert (action.restart_seconds or 99.0) < 6.0, "the managers' start is no downtime"


async def test_managers_that_are_there_are_not_brought(house: House) -> None:
    """An action whose slots are there takes the phases of an action without managers."""
    cluster(house).pool.wanted = cluster(house).pool.registered = 6
    await house.plan()
    await ended(house)
    assert "preparing" not in house.phases() and "releasing" not in house.phases()
    assert (house.phases()[-1], cluster(house).pool.provided) == ("verified", [])


async def test_managers_go_after_the_job_runs_without_them(house: House) -> None:
    """Requirements first; the managers go once the smaller parallelism has settled."""
    at_four(house)
    await house.plan(BEFORE)
    await ended(house)
    assert house.phases() == ["intended", "applying", "verifying", "verifying", "releasing", "verified"]
    assert cluster(house).pool.provided == [1]
    assert house.published()[-1].sentence.endswith("1 TaskManager now")


@pytest.mark.parametrize("come", [1, 3])
async def test_managers_that_do_not_come_are_given_back(house: House, come: int) -> None:
    """None or two of three: past the deadline nothing was requested, all go back, and the size is quarantined."""
    cluster(house).pool.come = come
    await house.plan()
    await ended(house)
    last = house.published()[-1]
    assert (last.phase, last.code) == ("failed", "managers-late")
    assert f"{come} of 4 TaskManagers registered" in last.sentence
    assert (cluster(house).pool.provided, house.driver.requests) == ([4, 1], [])
    assert [kept.parallelism for kept in last.quarantine] == [WANTED]
    assert house.job().observed == BEFORE


async def test_managers_whose_request_was_lost_are_not_requested_twice(house: House) -> None:
    """The target has the number, only its answer was lost."""
    cluster(house).pool.lost_answers = 1
    await house.plan()
    await ended(house)
    assert (house.phases()[-1], cluster(house).pool.provided) == ("verified", [4])


def _rejects(house: House) -> None:
    small = [o.model_copy(update={"max_parallelism": 1}) for o in house.job().topology.operators]
    house.job().topology = house.job().topology.model_copy(update={"operators": small})


def _pauses(house: House) -> None:
    house.knowledge.set_mode(APP, "paused", house.clock.now())


def _ends(house: House) -> None:
    house.job().state = "CANCELED"


def _sets_requirements(house: House) -> None:
    house.job().requested = {**BEFORE, "orders": 2}


@pytest.mark.parametrize(
    ("happens", "code", "left"),
    [
        (_rejects, "rejected", 1),
        (_pauses, "not-act", 1),
        (_ends, "job-gone", 1),
        (_sets_requirements, "contested", 2),
    ],
)
async def test_a_failure_gives_back_what_was_brought(
    house: House, happens: Callable[[House], None], code: str, left: int
) -> None:
    """Refused, paused, gone or contested while the managers start: they go again, except those that another client's
    requirements need."""
    await house.plan()
    await house.until(lambda: cluster(house).pool.provided == [4])
    happens(house)
    await ended(house)
    last = house.published()[-1]
    assert (last.phase, last.code) == ("failed", code)
    assert cluster(house).pool.wanted == left
    assert ("kept" in last.sentence) == (left > 1)
    assert house.driver.requests == []


async def test_a_rollback_releases_what_was_brought(house: House) -> None:
    """The new parallelism crashes: the old one runs again, and then the managers go."""
    house.job().crash_above = 2
    await house.plan()
    await ended(house)
    assert house.phases()[-3:] == ["rolling-back", "releasing", "rolled-back"]
    assert (cluster(house).pool.provided, [v for _, v in house.driver.requests]) == ([4, 1], [WANTED, BEFORE])


async def test_managers_that_cannot_go_are_kept_and_reported(house: House) -> None:
    """Three of four hold slots in use: one goes, the rest is no failure."""
    at_four(house)
    cluster(house).pool.stays = 3
    await house.plan(BEFORE)
    await ended(house)
    last = house.published()[-1]
    assert (last.phase, last.code) == ("verified", "managers-kept")
    assert last.sentence.endswith("2 TaskManagers are kept: their slots are in use")
    assert cluster(house).pool.wanted == 3


@pytest.mark.parametrize("number", [3, 7])
async def test_a_change_of_another_client_is_left(house: House, number: int) -> None:
    """A user sets the number while managers start: it stays, also between those before and those wanted, and the action fails."""
    await house.plan()
    await house.until(lambda: cluster(house).pool.provided == [4])
    cluster(house).pool.wanted = number
    await ended(house)
    last = house.published()[-1]
    assert (last.phase, last.code) == ("failed", "managers-contested")
    assert (cluster(house).pool.wanted, cluster(house).pool.provided) == (number, [4])


async def test_growth_may_follow_while_managers_are_released(house: House) -> None:
    """A newer plan ends the action, and brings the managers again."""
    at_four(house)
    cluster(house).pool.stays = 3
    await house.plan(BEFORE)
    await house.until(house.ended("releasing"))
    await house.plan()
    await house.until(house.ended("verified"))
    assert "superseded" in house.phases()
    assert house.job().observed == WANTED and cluster(house).pool.wanted == 4


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("refusal", Refusal("slots-mismatch", "a TaskManager has 4 slots, the policy says 1"), "slots-mismatch"),
        ("max", 3, "slots"),
        ("away", "connection refused", "unreachable"),
    ],
)
async def test_a_plan_is_refused_where_managers_cannot_change(
    house: House, field: str, value: object, code: str
) -> None:
    """Slots that do not match, more managers than the policy allows, a target that cannot be read."""
    setattr(cluster(house).pool, field, value)
    await house.plan()
    await ended(house)
    last = house.published()[-1]
    assert (last.phase, last.code) == ("refused", code)
    assert cluster(house).pool.provided == []


async def test_managers_that_are_away_are_kept(house: House) -> None:
    """The target of the managers cannot be read after the rescale: verified, and they are reported."""
    at_four(house)
    await house.plan(BEFORE)
    await house.until(house.ended("verifying"))
    cluster(house).pool.away = "connection refused"
    await ended(house)
    last = house.published()[-1]
    assert (last.phase, last.code) == ("verified", "managers-kept")
    assert "kept: connection refused" in last.sentence
