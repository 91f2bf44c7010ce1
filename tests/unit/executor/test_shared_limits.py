"""Two executors: limits count the actions of both, and a restart goes on after the topic has forgotten."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.unit.engines.memory_jobs import MemoryDriver
from tests.unit.executor.builders import NOON, RULES, WANTED, action, after
from tests.unit.executor.house import House
from weir_contracts import ActionState, Outcome, precedes
from weir_contracts.outcome import FORGOTTEN_AFTER
from weir_contracts.topics import OUTCOMES, POLICIES, TOPICS
from weir_executor.applications import Application, Applications, NewestOutcomes
from weir_executor.core.history import ActionHistory, record_transition
from weir_executor.core.observed import Step
from weir_executor.core.parameters import Rules
from weir_executor.core.table import Event
from weir_runtime.memory_bus import MemoryBus

pytestmark = pytest.mark.virtual_time

NAMES = [f"shop/app-{i}" for i in range(8)]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Two replicas, and eight applications on one cluster."""
    made = House()
    await made.start(2)
    for name in NAMES:
        await made.add(name)
    await made.quiet(1)
    yield made
    await made.end()


def restarts_at_once(driver: MemoryDriver) -> list[int]:
    """Count, at each request from now on, the jobs that have not reached what is requested of them."""
    counts: list[int] = []
    request = driver.request

    async def counted(*given: Any, **named: Any) -> Any:
        answer = await request(*given, **named)
        counts.append(sum(job.requested != job.observed for job in driver.jobs.values()))
        return answer

    driver.request = counted  # type: ignore[method-assign]
    return counts


def published_of(made: ActionState) -> Outcome:
    """Return the outcome that an executor published of an action."""
    return record_transition(ActionHistory(), Step(made, Event("admitted", "…")), None, NOON, RULES).outcome


async def test_two_replicas_never_restart_three_jobs_of_one_cluster(house: House) -> None:
    """Eight applications grow at the same time, repeatedly: two at once, until all have grown."""
    counts = restarts_at_once(house.driver)
    for _ in range(20):
        waiting = [name for name in NAMES if "verified" not in house.phases(name)]
        if not waiting:
            break
        base = {name: len(house.published(name)) for name in waiting}
        for name in waiting:
            await house.plan(application=name)
        await house.until(lambda base=base: all(len(house.published(name)) > count for name, count in base.items()))
        await house.until(
            lambda: all(house.phases(name)[-1] in ("verified", "refused") for name in NAMES if house.phases(name))
        )
    assert all("verified" in house.phases(name) for name in NAMES)
    attempts = {o.action.attempt_id for name in NAMES for o in house.published(name) if o.action is not None}
    assert len(attempts) == 2, "both replicas have acted"
    assert max(counts) == 2
    refused = {o.code for name in NAMES for o in house.published(name) if o.phase == "refused"}
    assert refused <= {"too-many-actions", "in-flight"}


def test_of_two_concurrent_intents_every_replica_admits_the_same() -> None:
    """By start, then by id, in every replica; actions that have begun come first."""
    url, rules = "http://jobmanager:8081/", Rules(max_actions_per_cluster=1)
    one, other = (
        action(application=f"shop/{name}", cluster=url, started_at=after(at)) for name, at in (("one", 1), ("other", 2))
    )
    published = NewestOutcomes()
    for mine, theirs in ((one, other), (other, one)):
        published.note(theirs.application, published_of(theirs))
        applications = Applications(published, rules)
        applications.own[mine.application] = Application(mine.application, 0, ActionHistory(mine))
        assert applications.fleet().too_many_actions(mine.application, url, rules) is not None
        crowded = applications.fleet(mine).too_many_actions(mine.application, url, rules)
        assert (crowded is None) == (mine is one)
    published.note(other.application, published_of(other.model_copy(update={"phase": "applying", "version": 6})))
    assert Applications(published, rules).fleet(one).too_many_actions(one.application, url, rules) is not None
    assert (
        Applications(published, rules).fleet(one).too_many_actions(one.application, "http://elsewhere/", rules) is None
    )


async def test_the_first_plan_after_the_retention_of_the_topic_is_applied(house: House) -> None:
    """A week passed without an action, then the executors restarted: knowledge has the action's version."""
    name = NAMES[0]
    await house.plan(application=name)
    await house.until(house.ended("verified", name))
    await house.until(lambda: house.knowledge.actions[name].phase == "verified")
    last = house.published(name)[-1]
    for replica in house.replicas:
        await replica.end()
    house.knowledge.outcomes[name] = last
    house.bus = MemoryBus(partitions=4, clock=house.clock)
    for topic in TOPICS:
        house.bus.records(topic.name)
    await house.publish(POLICIES, name, house.knowledge.policies[name])
    house.replicas = []
    house.replica()
    await house.plan({**WANTED, "enrich": 6}, application=name)
    await house.until(lambda: bool(house.phases(name)) and house.phases(name)[-1] in ("verified", "refused"))
    assert house.published(name)[-1].phase == "verified", house.published(name)[-1].sentence
    assert last.action is not None
    first = house.published(name)[0]
    assert first.action is not None and first.action.version == last.action.version + 1
    assert first.epoch > last.epoch


def test_numbers_restart_only_after_the_retention_of_the_topic() -> None:
    """From then on the time decides which outcome is newer."""
    assert OUTCOMES.configs["retention.ms"] == str(int(FORGOTTEN_AFTER.total_seconds() * 1000))
    before = published_of(action()).model_copy(update={"epoch": 4, "sequence": 20})
    soon = before.model_copy(update={"epoch": 0, "sequence": 0, "at": before.at + FORGOTTEN_AFTER})
    later = soon.model_copy(update={"at": soon.at + timedelta(seconds=1)})
    assert precedes(soon.order, before.order) and not precedes(before.order, soon.order)
    assert precedes(before.order, later.order) and not precedes(later.order, before.order)
