"""The analyzer without Spark: one state and one analysis for each observation, whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from tests.unit.analyzer.story import Job
from weir_analyzer.adapters import direct
from weir_analyzer.adapters.direct import STATES, DirectAnalyzer
from weir_analyzer.adapters.processing import process
from weir_analyzer.core import AnalysisSettings
from weir_contracts import Analysis, Observation, ended_observation
from weir_contracts.topics import ANALYSES, OBSERVATIONS
from weir_runtime.bus import Outgoing, Record
from weir_runtime.clock import FakeClock
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus

SETTINGS = AnalysisSettings()


def observations(count: int) -> list[Observation]:
    """Return what a monitor sees of a job every two seconds."""
    job, seen = Job(), []
    for _ in range(count):
        job.run_for(2)
        seen.append(job.observe())
    return seen


def expected(seen: list[Observation]) -> list[Analysis]:
    """Return the analyses of one uninterrupted run of the core."""
    records = [
        Record(OBSERVATIONS.name, 0, i, each.application, each.model_dump_json().encode())
        for i, each in enumerate(seen)
    ]
    _, out = process(seen[0].application, None, records, SETTINGS)
    return [Analysis.model_validate_json(each.value or b"") for each in out if each.topic == ANALYSES.name]


class World:
    """A bus with one partition, whose clock is always that of the newest observation."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bus = MemoryBus(1, self.clock)

    async def observe(self, *seen: Observation) -> None:
        for each in seen:
            self.clock.advance(max(timedelta(0), each.observed_at - self.clock.now()).total_seconds())
            await self.bus.publish(OBSERVATIONS.name, each.application, each.model_dump_json().encode())

    @asynccontextmanager
    async def analyzing(self) -> AsyncIterator[DirectAnalyzer]:
        """Run an analyzer; it ends as a process does that is stopped."""
        analyzer, stop = DirectAnalyzer(self.bus, self.clock, SETTINGS, 1), Stop()
        task = asyncio.create_task(analyzer.run(stop))
        try:
            yield analyzer
        finally:
            stop.request("the test is over")
            await task

    def analyses(self) -> list[Analysis]:
        records = self.bus.records(ANALYSES.name)
        return [Analysis.model_validate_json(each.value or b"") for each in records if each.value]

    async def analyzed(self, count: int) -> list[Analysis]:
        reader = self.bus.reader(ANALYSES.name)
        async with asyncio.timeout(30):
            while len(self.analyses()) < count:
                await reader.receive()
        await reader.close()
        return self.analyses()


async def test_each_observation_leads_to_the_analysis_of_the_core() -> None:
    """The same analyses as one call of the core with all of them."""
    world, seen = World(), observations(6)
    async with world.analyzing():
        await world.observe(*seen)
        found = await world.analyzed(6)
    assert found == expected(seen)


async def test_a_process_that_comes_back_goes_on_with_its_state() -> None:
    """Windows are not begun again: the analyses after a restart are those of an analyzer that was never stopped."""
    world, seen = World(), observations(8)
    async with world.analyzing():
        await world.observe(*seen[:5])
        await world.analyzed(5)
    async with world.analyzing():
        await world.observe(*seen[5:])
        found = await world.analyzed(8)
    assert found == expected(seen)


async def test_what_could_not_be_committed_is_analyzed_once() -> None:
    """The brokers refuse one transaction after the states in memory have moved on: the next attempt begins with those
    of the log."""
    world, seen = World(), observations(4)
    refusals = [True]

    def refuses(record: Outgoing) -> bool:
        return record.topic == ANALYSES.name and bool(refusals) and refusals.pop()

    with capture_logs() as logged:
        async with world.analyzing():
            await world.observe(*seen[:2])
            await world.analyzed(2)
            world.bus.refuses = refuses
            await world.observe(*seen[2:])
            found = await world.analyzed(4)
    assert [each["event"] for each in logged].count("cycle-failed") == 1
    assert found == expected(seen)


async def test_without_states_the_latest_analyses_are_the_beginning() -> None:
    """As after an upgrade with states of another form: what was learned stays, and no observation is analyzed again."""
    world, seen = World(), observations(30)
    async with world.analyzing():
        await world.observe(*seen[:29])
        await world.analyzed(29)
    before = world.analyses()[-1]
    assert before.learned["capacities"]
    world.bus.log.pop((STATES, 0))
    async with world.analyzing():
        await world.observe(seen[29])
        after = (await world.analyzed(30))[-1]
    assert after.observed_at == seen[29].observed_at
    assert after.learned["capacities"].keys() == before.learned["capacities"].keys()


async def test_the_state_of_an_ended_application_is_removed() -> None:
    """Its last analysis says that it ended; a tombstone takes its state from the log."""
    world, seen = World(), observations(2)
    async with world.analyzing():
        end = ended_observation(seen[-1].policy, seen[-1].observed_at + timedelta(seconds=1))
        await world.observe(*seen)
        await world.analyzed(2)
        await world.observe(end)
        found = await world.analyzed(3)
    assert found[-1].status == "ended"
    assert world.bus.records(STATES)[-1].value is None


async def test_two_applications_do_not_share_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of one in the middle of a batch leaves the other's analyses as they are."""
    world, seen = World(), observations(3)
    foreign = Observation.model_validate({**seen[1].model_dump(), "application": "shop/clicks"})
    real = direct.process

    def failing(key: str, *arguments: object, **options: object) -> object:
        return (None, []) if key == "shop/clicks" else real(key, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(direct, "process", failing)
    async with world.analyzing():
        await world.observe(seen[0], foreign, *seen[1:])
        found = await world.analyzed(3)
    assert found == expected(seen)
