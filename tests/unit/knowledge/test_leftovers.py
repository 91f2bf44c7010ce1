"""Data of vanished applications expires."""

import pytest

from tests.unit.knowledge.builders import APP, NOON, action, at, documents, observation, plan, policy
from tests.unit.knowledge.test_publisher import House, Process
from weir_knowledge.core import HistoryLimits, State, remember
from weir_knowledge.publisher import DELETIONS_KEPT, Leftovers

FORGET_SECONDS = 3600.0


@pytest.fixture
async def house() -> House:
    made = House()
    for process in (made.first, made.second):
        await process.publisher.publish()
    return made


class Age:
    """The check for abandoned applications as time passes."""

    def __init__(self, house: House, process: Process) -> None:
        self.house = house
        self.leftovers = Leftovers(
            house.bus, house.store, house.clock, lambda: process.publisher.epoch is not None, FORGET_SECONDS
        )

    async def passes(self, seconds: float) -> None:
        self.house.clock.advance(seconds)
        await self.leftovers.tidy()


async def test_an_application_that_vanished_is_ended_and_forgotten(house: House) -> None:
    """Its policy was lost without a deletion: after an hour without a message its end is published, and nothing of it
    is kept."""
    age = Age(house, house.first)
    current_state = remember(
        remember(State(application=APP), observation(1), HistoryLimits()), plan(1, 4), HistoryLimits()
    )
    await house.store.save([current_state], [], newest={APP: documents(observation(1), plan(1, 4))})
    await house.store.put_action(action(plan(1, application="shop/acted")), 0)
    await age.passes(0)
    await age.passes(FORGET_SECONDS - 1)
    assert house.ends() == []
    await age.passes(1)
    (end,) = house.ends()
    assert (end.application, end.observed_at > at(1)) == (APP, True)
    assert await house.store.leftovers() == {}
    await age.passes(FORGET_SECONDS)
    assert len(house.ends()) == 1


async def test_what_is_heard_of_or_has_a_policy_is_kept(house: House) -> None:
    """A message restarts the hour, a policy ends it; a replica without the lease forgets nothing."""
    age, other = Age(house, house.first), Age(house, house.second)
    await house.store.save([remember(State(application=APP), observation(1), HistoryLimits())], [])
    for each in (age, other):
        await each.passes(0)
    await age.passes(FORGET_SECONDS / 2)
    await house.store.save([remember(State(application=APP), observation(2), HistoryLimits())], [])
    await age.passes(FORGET_SECONDS / 2)
    await other.passes(FORGET_SECONDS)
    assert await house.store.state(APP) is not None
    await house.store.put_policy(policy(), 0)
    await age.passes(2 * FORGET_SECONDS)
    assert await house.store.state(APP) is not None
    assert house.ends() == []


async def test_deletions_are_forgotten_after_a_month(house: House) -> None:
    """By then no record of their policies can come any more."""
    age = Age(house, house.first)
    await house.store.put_policy(policy(version=1), 0)
    await house.store.delete_policy(APP, None, int(NOON.timestamp() * 1000))
    await age.passes(DELETIONS_KEPT.total_seconds() - 1)
    assert await house.store.deletion(APP) is not None
    await age.passes(2)
    assert await house.store.deletion(APP) is None
