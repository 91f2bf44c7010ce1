"""The planner's shell on the in-memory bus: what it reads and publishes, with duplicate and malformed records."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs
from weir_contracts import Analysis, DeadLetter, Observation, Plan, PlanReply, PlanRequest, derive_id
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANS, Topic
from weir_planner.installed import ask

from runtime.clock import FakeClock
from runtime.envelope import encode
from runtime.loop import Stop
from runtime.memory_bus import MemoryBus
from runtime.records import partition_of
from services.planner.request_cache import RequestCache
from services.planner.service import GROUP, Planner
from services.planner.workers import Workers
from tests.unit.planner.build import APP, NOON, SPACE, WORK, action, after, analysis, outcome, policy, scale

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARTITIONS = 4


class InProcess(Workers):
    """Replies at once and records its requests; `answer` may be another planner, or one that never returns."""

    def __init__(self) -> None:
        super().__init__(1)
        self.requests: list[PlanRequest] = []
        self.answer: Callable[[PlanRequest], PlanReply] = lambda request: ask(request, "rate")

    async def start(self) -> None:
        return

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        self.requests.append(request)
        return self.answer(request)


class Replica:
    """A planner process."""

    def __init__(self, desk: "Desk", workers: Workers) -> None:
        self.workers = workers
        self.stop = Stop()
        self.applications = RequestCache(30, 20)
        self.planner = Planner(desk.bus, desk.clock, workers, self.applications, partitions=PARTITIONS)
        self.task = asyncio.create_task(self.planner.run(self.stop))

    async def end(self) -> None:
        self.stop.request("the test is over")
        await self.task


class Desk:
    """Planner replicas on a shared bus with a fixed clock."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOON)
        self.bus = MemoryBus(partitions=PARTITIONS, clock=self.clock)
        self.workers = InProcess()
        self.replicas: list[Replica] = []

    def replica(self, workers: Workers | None = None) -> Replica:
        made = Replica(self, workers or self.workers)
        self.replicas.append(made)
        return made

    async def publish(self, topic: Topic, key: str, message: BaseModel, id: UUID = SPACE) -> None:
        body, headers = encode(message, type=topic.type, source="test", id=id, time=self.clock.now(), traceparent=TRACE)
        await self.bus.publish(topic.name, key, body, headers)

    async def analysed(self, seconds: float = 0.0, application: str = APP, **of: Any) -> Analysis:
        """Publish an analysis observed `seconds` after noon."""
        spec = of.pop("spec", {})
        made = analysis(at=after(seconds), the_policy=policy(application, **spec), **of)
        await self.publish(ANALYSES, application, made, made.id)
        return made

    def plans(self, application: str = APP) -> list[Plan]:
        return [Plan.model_validate_json(r.value or b"") for r in self.bus.records(PLANS.name) if r.key == application]

    def dead_letters(self) -> list[DeadLetter]:
        return [DeadLetter.model_validate_json(r.value or b"") for r in self.bus.records(DEAD_LETTERS.name)]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, at most 5 s."""
        for _ in range(2500):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError("not within 5 s")

    async def all_taken(self) -> None:
        """Wait until every published analysis is committed, so that the next one is in another batch."""
        await self.until(lambda: self.bus.committed(GROUP, ANALYSES.name) == len(self.bus.records(ANALYSES.name)))

    async def planned(self, count: int, application: str = APP) -> Plan:
        """Wait for `count` plans in total and return the newest."""
        await self.until(lambda: len(self.plans(application)) >= count)
        assert len(self.plans(application)) == count
        return self.plans(application)[-1]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    # Concurrently: each may be waiting.
    await asyncio.gather(*(replica.end() for replica in made.replicas))


async def test_an_analysis_becomes_a_plan(desk: Desk) -> None:
    """Published under the application's key, with the analysis's trace and an id derived from the analysis's."""
    desk.replica()
    found = await desk.analysed(arrivals=2400)
    plan = await desk.planned(1)
    assert (plan.id, plan.analysis_id, plan.kind) == (derive_id(found.id, "plan"), found.id, "scale")
    [record] = desk.bus.records(PLANS.name)
    assert record.headers["traceparent"].split("-")[1] == TRACE.split("-")[1]
    assert record.headers["ce_id"] == str(plan.id)


async def test_after_an_outage_only_the_newest_analysis_is_planned(desk: Desk) -> None:
    """Ten are waiting: one current decision, not ten old ones."""
    for i in range(10):
        await desk.analysed(-50 + 5 * i)
    last = await desk.analysed(0)
    desk.replica()
    plan = await desk.planned(1)
    assert plan.analysis_id == last.id


async def test_the_newest_readable_analysis_is_planned(desk: Desk) -> None:
    """The newest is malformed and goes to the dead-letter topic, the one before is planned, older ones are not parsed."""
    for seconds in (-20, -10):
        await desk.bus.publish(
            ANALYSES.name, APP, f'{{"application":"{APP}",'.encode(), {"ce_time": after(seconds).isoformat()}
        )
    readable = await desk.analysed(0)
    await desk.bus.publish(ANALYSES.name, APP, b"nonsense", {"ce_time": after(1).isoformat()})
    desk.replica()
    plan = await desk.planned(1)
    assert plan.analysis_id == readable.id
    assert [letter.offset for letter in desk.dead_letters()] == [3]


async def test_a_replay_is_not_decided_twice(desk: Desk) -> None:
    """Kafka delivers at least once; an analysis that is not newer than the last plan's is skipped."""
    desk.replica()
    first = await desk.analysed(0)
    await desk.planned(1)
    await desk.publish(ANALYSES, APP, first, first.id)
    await desk.all_taken()
    await desk.analysed(-5)
    await desk.all_taken()
    await desk.analysed(1)
    plan = await desk.planned(2)
    assert plan.observed_at == after(1)
    assert len(desk.workers.requests) == 2


async def test_another_replica_continues_from_the_last_plan(desk: Desk) -> None:
    """Stabilisation: after 30 of 60 s the replica ends. The next one reads the plans and scales 30 s later."""
    slow: dict[str, Any] = {"behavior": {"scaleDown": {"stabilization": "1m"}, "cooldown": "0s"}}
    first = desk.replica()
    for count, seconds in enumerate((0, 30), 1):
        desk.clock.advance(seconds - (desk.clock.now() - NOON).total_seconds())
        await desk.analysed(seconds, spec=slow, arrivals=900, work=4)
        assert (await desk.planned(count)).code == "stabilisation"
    await first.end()
    desk.replica()
    desk.clock.advance(31)
    await desk.analysed(61, spec=slow, arrivals=900, work=4)
    plan = await desk.planned(3)
    assert plan.approved is not None
    assert plan.approved[WORK] < 4
    assert [cycle.code for cycle in desk.workers.requests[-1].history] == ["stabilisation", "stabilisation"]


async def test_a_takeover_decides_nothing_again(desk: Desk) -> None:
    """The first replica published its plan and died before it committed: the analysis is delivered again."""
    found = await desk.analysed(0)
    old = Desk()
    old.replica()
    await old.publish(ANALYSES, APP, found, found.id)
    plan = await old.planned(1)
    await old.replicas[0].end()
    await desk.publish(PLANS, APP, plan, plan.id)
    desk.replica()
    await desk.all_taken()
    await desk.analysed(1)
    await desk.until(lambda: len(desk.plans()) >= 2)
    assert [p.observed_at for p in desk.plans()] == [after(0), after(1)]
    assert desk.plans()[0].id == plan.id
    assert len(desk.workers.requests) == 1


async def test_two_replicas_share_the_applications(desk: Desk) -> None:
    """Each plans for its own partitions, and each application once."""
    other = InProcess()
    desk.replica()
    desk.replica(other)
    names = [f"shop/job-{i}" for i in range(12)]
    for name in names:
        await desk.analysed(0, name)
    await desk.until(lambda: len(desk.bus.records(PLANS.name)) >= len(names))
    assert sorted(r.key or "" for r in desk.bus.records(PLANS.name)) == sorted(names)
    mine, others = ({request.application for request in workers.requests} for workers in (desk.workers, other))
    assert mine
    assert others
    assert not mine & others


async def test_applications_of_another_replica_are_dropped(desk: Desk) -> None:
    """A second replica joins: it reads the plans of its assignment and decides none again; the first drops them."""
    first = desk.replica()
    names = [f"shop/job-{i}" for i in range(12)]
    for name in names:
        await desk.analysed(0, name)
    await desk.until(lambda: len(desk.bus.records(PLANS.name)) >= len(names))
    second = desk.replica()

    def cached(replica: Replica) -> set[str]:
        return {name for name in names if replica.applications.plan(name)}

    await desk.until(lambda: cached(second) and not cached(first) & cached(second))
    assert cached(first) | cached(second) == set(names)
    assert len(desk.bus.records(PLANS.name)) == len(names)


async def test_unreadable_records_go_to_the_dead_letter_topic(desk: Desk) -> None:
    """A malformed record and an analysis under a wrong key become dead letters with their place; the next is planned."""
    desk.replica()
    await desk.bus.publish(ANALYSES.name, APP, b"nonsense", {})
    misplaced = next(
        f"shop/job-{i}" for i in range(99) if partition_of(f"shop/job-{i}", PARTITIONS) != partition_of(APP, PARTITIONS)
    )
    await desk.publish(ANALYSES, APP, analysis(the_policy=policy(misplaced)))
    await desk.analysed(1)
    await desk.planned(1)
    await desk.until(lambda: len(desk.dead_letters()) == 2)
    letters = {letter.offset: letter for letter in desk.dead_letters()}
    assert {(letter.service, letter.topic) for letter in letters.values()} == {("planner", ANALYSES.name)}
    assert (letters[0].field, letters[1].field) == (None, "key")


@pytest.mark.parametrize("code", ["planner-timeout", "planner-failed"])
async def test_a_planner_without_a_reply_gives_a_hold(desk: Desk, code: str) -> None:
    """The plan has the reason and adds no recommendation, so windows start again."""
    desk.workers.answer = lambda _: PlanReply(kind="hold", code=code, sentence="planner rate gave no answer")
    desk.replica()
    await desk.analysed(arrivals=9000)
    plan = await desk.planned(1)
    assert (plan.kind, plan.code, plan.approved) == ("hold", code, None)
    assert plan.state.recommendations == []


async def test_an_old_analysis_is_a_hold_without_calling_the_planner(desk: Desk) -> None:
    """It is a minute old, so no decision is based on it."""
    desk.replica()
    await desk.analysed(-60, arrivals=9000)
    assert (await desk.planned(1)).code == "stale"
    assert desk.workers.requests == []


@pytest.mark.parametrize(
    ("spec", "sent"),
    [
        ({}, False),
        ({"planner": {"name": "keda-kafka"}}, True),
        ({"planner": {"name": "not-built-in"}}, True),
        ({"planner": {"name": "rate", "fallback": {"name": "keda-kafka"}}}, True),
        ({"shadows": [{"name": "hpa"}]}, False),
        ({"shadows": [{"name": "hpa"}, {"name": "keda-kafka"}]}, True),
    ],
    ids=str,
)
async def test_the_request_carries_observations_and_outcomes(desk: Desk, spec: dict[str, Any], sent: bool) -> None:
    """Outcomes are complete; raw observations are included if a planner reads them. Both are in the next request."""
    done = outcome(action(before={WORK: 1}, wanted={WORK: 2}, finished_at=after(-90)), restart_seconds=7.0)
    await desk.publish(OUTCOMES, APP, done, done.id)
    desk.replica()
    await desk.analysed(-1)
    await desk.planned(1)  # the assignment is complete, so observations are read from here on
    chosen = policy()
    reading = Observation(
        id=SPACE, application=APP, observed_at=after(0), policy=chosen, status="running", signals={"queue": 3.0}
    )
    await desk.publish(OBSERVATIONS, APP, reading)
    await desk.analysed(1, spec=spec)
    await desk.planned(2)
    plan_request = desk.workers.requests[-1]
    assert plan_request.observations == ([reading] if sent else [])
    assert plan_request.signals == {"queue": 3.0}
    assert [o.restart_seconds for o in plan_request.outcomes] == [7.0]
    assert plan_request.memory == {}


async def test_a_plan_that_could_not_be_published_is_made_again(desk: Desk) -> None:
    """The brokers fail within a cycle: no plan is lost or published twice."""

    def reply_then_break(request: PlanRequest) -> PlanReply:
        desk.workers.answer = lambda _: scale({"orders": 1, WORK: 3})
        desk.bus.break_down()
        return scale({"orders": 1, WORK: 3})

    desk.workers.answer = reply_then_break
    with capture_logs() as logs:
        desk.replica()
        await desk.analysed()
        await desk.until(lambda: any(entry["event"] == "cycle-failed" for entry in logs))
        assert desk.plans() == []
        desk.bus.mend()
        assert (await desk.planned(1)).approved == {"orders": 1, WORK: 3}


async def test_an_application_that_has_ended_is_forgotten(desk: Desk) -> None:
    """It gets no plan; a later application of the same name has no history."""
    desk.replica()
    await desk.analysed(0)
    await desk.planned(1)
    await desk.analysed(1, status="ended")
    await desk.analysed(1, "shop/other")
    await desk.planned(1, "shop/other")
    await desk.analysed(2)
    await desk.planned(2)
    assert desk.workers.requests[-1].history == []


async def test_an_end_in_the_middle_of_a_batch_counts(desk: Desk) -> None:
    """Deleted and created again while the planner was down: the newest is planned without the first one's history."""
    replica = desk.replica()
    await desk.analysed(0)
    await desk.planned(1)
    await replica.end()
    for seconds, status in ((1.0, "ended"), (2.0, "running"), (3.0, "running")):
        await desk.analysed(seconds, status=status)
    desk.replica()
    await desk.planned(2)
    assert desk.workers.requests[-1].history == []
    replica.applications.planned(desk.plans()[-1])
    replica.applications.ended(analysis(at=after(1), status="ended"))
    assert replica.applications.plan(APP) is not None  # an earlier end does not count


async def test_a_slow_planner_holds_up_its_own_application_only(desk: Desk) -> None:
    """One does not reply while others are planned, cycle after cycle; once it replies, its newest analysis is next."""
    answered = asyncio.Event()

    class Elsewhere(InProcess):
        async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
            if request.application == APP:
                await answered.wait()
            return await super().ask(request, planner, timeout_seconds)

    workers = Elsewhere()
    replica = desk.replica(workers)
    await desk.analysed(0)
    for cycle in range(3):
        await desk.analysed(cycle + 0.5)
        await desk.analysed(cycle, "shop/other")
        await desk.planned(cycle + 1, "shop/other")
    assert desk.plans() == []
    answered.set()
    plan = await desk.planned(2)
    assert desk.plans()[0].observed_at <= after(0.5)
    assert plan.observed_at == after(2.5)
    await replica.end()
    desk.replicas.clear()


async def test_an_unfinished_request_is_planned_by_the_next_replica(desk: Desk) -> None:
    """The first replica stops while its planner works: nothing was committed, so the analysis is delivered again."""

    class Thinking(InProcess):
        async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
            self.requests.append(request)
            await asyncio.Event().wait()
            raise AssertionError

    thinking = Thinking()
    first = desk.replica(thinking)
    await desk.analysed(0)
    await desk.until(lambda: thinking.requests)
    await first.end()
    assert desk.plans() == []
    desk.replicas.clear()
    desk.replica()
    assert (await desk.planned(1)).observed_at == after(0)
