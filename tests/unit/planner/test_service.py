"""The planner's shell on the bus in memory: what it reads, what it says, and what it does when things come twice or broken."""

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
    """Answers at once and remembers what was asked; `answer` may be another planner, or one that never comes back."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[PlanRequest] = []
        self.answer: Callable[[PlanRequest], PlanReply] = lambda request: ask(request, "rate")

    async def start(self) -> None:
        return

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        self.asked.append(request)
        return self.answer(request)


class Replica:
    """One planner process."""

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
    """Planners around a bus, on a clock that stands still."""

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
        """Publish an analysis of `seconds` after noon."""
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
        """Wait until every analysis so far has been dealt with, so that what comes next is another batch."""
        await self.until(lambda: self.bus.committed(GROUP, ANALYSES.name) == len(self.bus.records(ANALYSES.name)))

    async def planned(self, count: int, application: str = APP) -> Plan:
        """Wait for so many plans in all; the newest."""
        await self.until(lambda: len(self.plans(application)) >= count)
        assert len(self.plans(application)) == count
        return self.plans(application)[-1]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    # All at once: each may be in the middle of a wait.
    await asyncio.gather(*(replica.end() for replica in made.replicas))


async def test_an_analysis_becomes_a_plan(desk: Desk) -> None:
    """Told under the application's key, with the trace of the reading and an id made of the analysis's."""
    desk.replica()
    found = await desk.analysed(arrivals=2400)
    plan = await desk.planned(1)
    assert (plan.id, plan.analysis_id, plan.kind) == (derive_id(found.id, "plan"), found.id, "scale")
    [record] = desk.bus.records(PLANS.name)
    assert record.headers["traceparent"].split("-")[1] == TRACE.split("-")[1]
    assert record.headers["ce_id"] == str(plan.id)


async def test_after_an_outage_only_the_newest_analysis_is_planned(desk: Desk) -> None:
    """Ten have piled up: one current decision, not ten old ones."""
    for i in range(10):
        await desk.analysed(-50 + 5 * i)
    last = await desk.analysed(0)
    desk.replica()
    plan = await desk.planned(1)
    assert plan.analysis_id == last.id


async def test_an_older_analysis_counts_where_the_newest_cannot_be_read(desk: Desk) -> None:
    """Piled up: the newest is nonsense and put aside, the one before it is planned, and those that are older still are not even read."""
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
    """Kafka delivers at least once; an analysis that is not newer than the last plan's is passed over."""
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
    assert len(desk.workers.asked) == 2


async def test_another_replica_goes_on_where_the_last_one_stopped(desk: Desk) -> None:
    """Stabilisation: less is wanted for 30 s of 60, then the replica ends. The next knows it from the plans, and 30 s later scales."""
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
    assert [turn.code for turn in desk.workers.asked[-1].history] == ["stabilisation", "stabilisation"]


async def test_a_takeover_decides_nothing_again(desk: Desk) -> None:
    """The first one published its plan and died before it committed: the analysis comes again, and its plan is there already."""
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
    assert len(desk.workers.asked) == 1


async def test_two_replicas_share_the_applications(desk: Desk) -> None:
    """Each plans for its partitions, nobody for all, and nothing twice."""
    other = InProcess()
    desk.replica()
    desk.replica(other)
    names = [f"shop/job-{i}" for i in range(12)]
    for name in names:
        await desk.analysed(0, name)
    await desk.until(lambda: len(desk.bus.records(PLANS.name)) >= len(names))
    assert sorted(r.key or "" for r in desk.bus.records(PLANS.name)) == sorted(names)
    mine, others = ({request.application for request in workers.asked} for workers in (desk.workers, other))
    assert mine
    assert others
    assert not mine & others


async def test_what_another_replica_has_now_is_forgotten(desk: Desk) -> None:
    """A second one joins: it knows its share from the plans and decides nothing again, and the first forgets it."""
    first = desk.replica()
    names = [f"shop/job-{i}" for i in range(12)]
    for name in names:
        await desk.analysed(0, name)
    await desk.until(lambda: len(desk.bus.records(PLANS.name)) >= len(names))
    second = desk.replica()

    def known(replica: Replica) -> set[str]:
        return {name for name in names if replica.applications.plan(name)}

    await desk.until(lambda: known(second) and not known(first) & known(second))
    assert known(first) | known(second) == set(names)
    assert len(desk.bus.records(PLANS.name)) == len(names)


async def test_what_cannot_be_read_is_put_aside_and_the_loop_goes_on(desk: Desk) -> None:
    """Nonsense, and an analysis under a key whose partition is another: dead letters with their place; the next one is planned."""
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
async def test_a_planner_that_gives_no_answer_holds(desk: Desk, code: str) -> None:
    """The plan says so; and it is no wish, so windows begin anew."""
    desk.workers.answer = lambda _: PlanReply(kind="hold", code=code, sentence="planner rate gave no answer")
    desk.replica()
    await desk.analysed(arrivals=9000)
    plan = await desk.planned(1)
    assert (plan.kind, plan.code, plan.approved) == ("hold", code, None)
    assert plan.state.recommendations == []


async def test_an_old_analysis_is_a_hold_and_asks_nobody(desk: Desk) -> None:
    """A minute old: nothing is decided on it."""
    desk.replica()
    await desk.analysed(-60, arrivals=9000)
    assert (await desk.planned(1)).code == "stale"
    assert desk.workers.asked == []


@pytest.mark.parametrize(
    ("spec", "seen"),
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
async def test_the_planner_is_told_of_readings_and_outcomes(desk: Desk, spec: dict[str, Any], seen: bool) -> None:
    """Outcomes come whole, raw observations beside the analyses where somebody may look at them; both are in the next request."""
    done = outcome(action(before={WORK: 1}, wanted={WORK: 2}, finished_at=after(-90)), restart_seconds=7.0)
    await desk.publish(OUTCOMES, APP, done, done.id)
    desk.replica()
    await desk.analysed(-1)
    await desk.planned(1)  # it has its share by now, so that readings are heard from here on
    chosen = policy()
    reading = Observation(
        id=SPACE, application=APP, observed_at=after(0), policy=chosen, status="running", signals={"queue": 3.0}
    )
    await desk.publish(OBSERVATIONS, APP, reading)
    await desk.analysed(1, spec=spec)
    await desk.planned(2)
    asked = desk.workers.asked[-1]
    assert asked.observations == ([reading] if seen else [])
    assert asked.signals == {"queue": 3.0}
    assert [o.restart_seconds for o in asked.outcomes] == [7.0]
    assert asked.memory == {}


async def test_a_plan_that_could_not_be_published_is_made_again(desk: Desk) -> None:
    """The brokers are away in mid-turn: nothing is skipped, and nothing is told twice."""

    def last_words(request: PlanRequest) -> PlanReply:
        desk.workers.answer = lambda _: scale({"orders": 1, WORK: 3})
        desk.bus.break_down()
        return scale({"orders": 1, WORK: 3})

    desk.workers.answer = last_words
    with capture_logs() as logs:
        desk.replica()
        await desk.analysed()
        await desk.until(lambda: any(entry["event"] == "cycle-failed" for entry in logs))
        assert desk.plans() == []
        desk.bus.mend()
        assert (await desk.planned(1)).approved == {"orders": 1, WORK: 3}


async def test_an_application_that_has_ended_is_forgotten(desk: Desk) -> None:
    """No plan for it; and when its name comes again, it comes without a past."""
    desk.replica()
    await desk.analysed(0)
    await desk.planned(1)
    await desk.analysed(1, status="ended")
    await desk.analysed(1, "shop/other")
    await desk.planned(1, "shop/other")
    await desk.analysed(2)
    await desk.planned(2)
    assert desk.workers.asked[-1].history == []


async def test_an_end_in_the_middle_of_a_batch_counts(desk: Desk) -> None:
    """Deleted and created again while the planner was away: the newest is planned, and without the past of the first."""
    replica = desk.replica()
    await desk.analysed(0)
    await desk.planned(1)
    await replica.end()
    for seconds, status in ((1.0, "ended"), (2.0, "running"), (3.0, "running")):
        await desk.analysed(seconds, status=status)
    desk.replica()
    await desk.planned(2)
    assert desk.workers.asked[-1].history == []
    replica.applications.planned(desk.plans()[-1])
    replica.applications.ended(analysis(at=after(1), status="ended"))
    assert replica.applications.plan(APP) is not None  # what ended before it is no end of it


async def test_a_slow_planner_holds_up_its_own_application_only(desk: Desk) -> None:
    """One never answers: the others are planned for, turn after turn; then it does, and its newest analysis is planned next."""
    answered = asyncio.Event()

    class Elsewhere(InProcess):
        async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
            if request.application == APP:
                await answered.wait()
            return await super().ask(request, planner, timeout_seconds)

    workers = Elsewhere()
    replica = desk.replica(workers)
    await desk.analysed(0)
    for turn in range(3):
        await desk.analysed(turn + 0.5)
        await desk.analysed(turn, "shop/other")
        await desk.planned(turn + 1, "shop/other")
    assert desk.plans() == []
    answered.set()
    plan = await desk.planned(2)
    assert desk.plans()[0].observed_at <= after(0.5)
    assert plan.observed_at == after(2.5)
    await replica.end()
    desk.replicas.clear()


async def test_what_is_under_way_at_the_end_is_planned_by_the_next(desk: Desk) -> None:
    """The first one is stopped while its planner thinks: nothing was committed, so the analysis comes again."""

    class Thinking(InProcess):
        async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
            self.asked.append(request)
            await asyncio.Event().wait()
            raise AssertionError

    thinking = Thinking()
    first = desk.replica(thinking)
    await desk.analysed(0)
    await desk.until(lambda: thinking.asked)
    await first.end()
    assert desk.plans() == []
    desk.replicas.clear()
    desk.replica()
    assert (await desk.planned(1)).observed_at == after(0)
