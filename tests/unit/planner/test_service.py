"""The planner's shell on the in-memory bus: what it reads and publishes, with duplicate and malformed records."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from tests.unit.planner.build import APP, NOON, SOURCE, SPACE, WORK, action, after, analysis, outcome, policy, scale
from tests.unit.planner.shelf import RequestsHere
from weir_contracts import Analysis, DeadLetter, Observation, Plan, PlanReply, PlanRequest, derive_id
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANNERS, PLANS, Topic
from weir_planner import service
from weir_planner.request_cache import RequestCache
from weir_planner.service import GROUP, Planner
from weir_runtime import messages
from weir_runtime.bus import partition_of
from weir_runtime.clock import FakeClock
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.messages import encode
from weir_sdk.installed import ask

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARTITIONS = 4


class InProcess(RequestsHere):
    """Replies at once and records its requests; `answer` may be another planner, or one that never returns."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[PlanRequest] = []
        self.answer: Callable[[PlanRequest], PlanReply] = lambda request: ask(request, "rate")

    async def start(self) -> None:
        return

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        self.requests.append(request)
        return self.answer(request)


class Replica:
    """A planner process."""

    def __init__(self, cluster: "Cluster", workers: InProcess) -> None:
        self.workers = workers
        self.stop = Stop()
        self.applications = RequestCache(30, 20)
        self.planner = Planner(cluster.bus, cluster.clock, workers, self.applications, partitions=PARTITIONS)
        self.task = asyncio.create_task(self.planner.run(self.stop))

    async def end(self) -> None:
        self.stop.request("the test is over")
        await self.task


class Cluster:
    """Planner replicas on a shared bus with a fixed clock."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOON)
        self.bus = MemoryBus(partitions=PARTITIONS, clock=self.clock)
        self.workers = InProcess()
        self.replicas: list[Replica] = []

    def replica(self, workers: InProcess | None = None) -> Replica:
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

    async def all_committed(self) -> None:
        """Wait until every published analysis is committed, so that the next one is in another batch."""
        await self.until(lambda: self.bus.committed(GROUP, ANALYSES.name) == len(self.bus.records(ANALYSES.name)))

    async def planned(self, count: int, application: str = APP) -> Plan:
        """Wait for `count` plans in total and return the newest."""
        await self.until(lambda: len(self.plans(application)) >= count)
        assert len(self.plans(application)) == count
        return self.plans(application)[-1]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    # Concurrently: each may be waiting.
    await asyncio.gather(*(replica.end() for replica in made.replicas))


async def test_an_analysis_becomes_a_plan(cluster: Cluster) -> None:
    """Published under the application's key, with the analysis's trace and an id derived from the analysis's."""
    cluster.replica()
    found = await cluster.analysed(arrivals=2400)
    plan = await cluster.planned(1)
    assert (plan.id, plan.analysis_id, plan.kind) == (derive_id(found.id, "plan"), found.id, "scale")
    [record] = cluster.bus.records(PLANS.name)
    assert record.headers["traceparent"].split("-")[1] == TRACE.split("-")[1]
    assert record.headers["ce_id"] == str(plan.id)


async def test_after_an_outage_only_the_newest_analysis_is_planned(cluster: Cluster) -> None:
    """Ten are waiting: one current decision, not ten old ones."""
    for i in range(10):
        await cluster.analysed(-50 + 5 * i)
    last = await cluster.analysed(0)
    cluster.replica()
    plan = await cluster.planned(1)
    assert plan.analysis_id == last.id


async def test_the_newest_readable_analysis_is_planned(cluster: Cluster) -> None:
    """The newest is malformed and becomes a dead letter, the one before is planned, older ones are not parsed."""
    for seconds in (-20, -10):
        await cluster.bus.publish(
            ANALYSES.name, APP, f'{{"application":"{APP}",'.encode(), {"ce_time": after(seconds).isoformat()}
        )
    readable = await cluster.analysed(0)
    await cluster.bus.publish(ANALYSES.name, APP, b"nonsense", {"ce_time": after(1).isoformat()})
    cluster.replica()
    plan = await cluster.planned(1)
    assert plan.analysis_id == readable.id
    assert [letter.offset for letter in cluster.dead_letters()] == [3]


@pytest.mark.parametrize("code", ["plan-too-large", "plan-refused"])
async def test_a_plan_that_is_never_accepted_is_a_dead_letter(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """It is larger than a reader accepts, or the brokers allow less: repeating it would stop its partition. The next
    application of the same partition is planned."""
    same = partition_of(APP, PARTITIONS)
    other = next(name for i in range(99) if partition_of(name := f"shop/job-{i}", PARTITIONS) == same)
    cluster.replica()
    await cluster.analysed(0, arrivals=2400)
    await cluster.planned(1)
    small = len(cluster.bus.records(PLANS.name)[0].value or b"") // 2

    def limited(message: BaseModel, **of: Any) -> Any:
        with pytest.MonkeyPatch.context() as lowered:
            if isinstance(message, Plan) and message.application == APP:
                lowered.setattr(messages, "MAX_MESSAGE_BYTES", small)
            return encode(message, **of)

    if code == "plan-too-large":
        monkeypatch.setattr(service, "encode", limited)
    else:
        cluster.bus.refuses = lambda record: record.topic == PLANS.name and record.key == APP
    await cluster.analysed(1, arrivals=2400)
    await cluster.analysed(1, other)
    await cluster.planned(1, other)
    await cluster.until(cluster.dead_letters)
    (letter,) = cluster.dead_letters()
    assert (letter.code, letter.key, letter.service) == (code, APP, "planner")
    assert letter.reason.startswith("the plan is not published: ")
    assert len(cluster.plans()) == 1


async def test_a_replay_is_not_decided_twice(cluster: Cluster) -> None:
    """Kafka delivers at least once; an analysis that is not newer than the last plan's is skipped."""
    cluster.replica()
    first = await cluster.analysed(0)
    await cluster.planned(1)
    await cluster.publish(ANALYSES, APP, first, first.id)
    await cluster.all_committed()
    await cluster.analysed(-5)
    await cluster.all_committed()
    await cluster.analysed(1)
    plan = await cluster.planned(2)
    assert plan.observed_at == after(1)
    assert len(cluster.workers.requests) == 2


async def test_another_replica_continues_from_the_last_plan(cluster: Cluster) -> None:
    """Stabilisation: after 30 of 60 s the replica ends. The next one reads the plans and scales 30 s later."""
    slow: dict[str, Any] = {"behavior": {"scaleDown": {"stabilization": "1m"}, "cooldown": "0s"}}
    first = cluster.replica()
    for count, seconds in enumerate((0, 30), 1):
        cluster.clock.advance(seconds - (cluster.clock.now() - NOON).total_seconds())
        await cluster.analysed(seconds, spec=slow, arrivals=900, work=4)
        assert (await cluster.planned(count)).code == "stabilisation"
    await first.end()
    cluster.replica()
    cluster.clock.advance(31)
    await cluster.analysed(61, spec=slow, arrivals=900, work=4)
    plan = await cluster.planned(3)
    assert plan.approved is not None
    assert plan.approved[WORK] < 4
    assert [cycle.code for cycle in cluster.workers.requests[-1].history] == ["stabilisation", "stabilisation"]


async def test_a_takeover_decides_nothing_again(cluster: Cluster) -> None:
    """The first replica published its plan and died before it committed: the analysis is delivered again."""
    found = await cluster.analysed(0)
    first_cluster = Cluster()
    first_cluster.replica()
    await first_cluster.publish(ANALYSES, APP, found, found.id)
    plan = await first_cluster.planned(1)
    await first_cluster.replicas[0].end()
    await cluster.publish(PLANS, APP, plan, plan.id)
    cluster.replica()
    await cluster.all_committed()
    await cluster.analysed(1)
    await cluster.until(lambda: len(cluster.plans()) >= 2)
    assert [p.observed_at for p in cluster.plans()] == [after(0), after(1)]
    assert cluster.plans()[0].id == plan.id
    assert len(cluster.workers.requests) == 1


async def test_two_replicas_share_the_applications(cluster: Cluster) -> None:
    """Each plans for its own partitions, and each application once."""
    other = InProcess()
    cluster.replica()
    cluster.replica(other)
    names = [f"shop/job-{i}" for i in range(12)]
    for name in names:
        await cluster.analysed(0, name)
    await cluster.until(lambda: len(cluster.bus.records(PLANS.name)) >= len(names))
    assert sorted(r.key or "" for r in cluster.bus.records(PLANS.name)) == sorted(names)
    mine, others = ({request.application for request in workers.requests} for workers in (cluster.workers, other))
    assert mine
    assert others
    assert not mine & others


async def test_applications_of_another_replica_are_dropped(cluster: Cluster) -> None:
    """A second replica joins: it reads the plans of its assignment and decides none again; the first drops them."""
    first = cluster.replica()
    names = [f"shop/job-{i}" for i in range(12)]
    for name in names:
        await cluster.analysed(0, name)
    await cluster.until(lambda: len(cluster.bus.records(PLANS.name)) >= len(names))
    second = cluster.replica()

    def cached(replica: Replica) -> set[str]:
        return {name for name in names if replica.applications.plan(name)}

    await cluster.until(lambda: cached(second) and not cached(first) & cached(second))
    assert cached(first) | cached(second) == set(names)
    assert len(cluster.bus.records(PLANS.name)) == len(names)


async def test_unreadable_records_go_to_the_dead_letter_topic(cluster: Cluster) -> None:
    """A malformed record and an analysis under a wrong key become dead letters; the next analysis is planned."""
    cluster.replica()
    await cluster.bus.publish(ANALYSES.name, APP, b"nonsense", {})
    misplaced = next(
        f"shop/job-{i}" for i in range(99) if partition_of(f"shop/job-{i}", PARTITIONS) != partition_of(APP, PARTITIONS)
    )
    await cluster.publish(ANALYSES, APP, analysis(the_policy=policy(misplaced)))
    await cluster.analysed(1)
    await cluster.planned(1)
    await cluster.until(lambda: len(cluster.dead_letters()) == 2)
    letters = {letter.offset: letter for letter in cluster.dead_letters()}
    assert {(letter.service, letter.topic) for letter in letters.values()} == {("planner", ANALYSES.name)}
    assert (letters[0].field, letters[1].field) == (None, "key")


async def test_one_replica_reports_what_all_of_them_read(cluster: Cluster) -> None:
    """Outcomes and registrations are read by every replica from their beginning, plans at each takeover. A bad record of the first
    two has one letter; that of the plans is the executor's."""
    for topic in (OUTCOMES, PLANNERS, PLANS):
        await cluster.bus.publish(topic.name, "shop/other", b"nonsense", {})
    first, second = cluster.replica(), cluster.replica()
    await cluster.until(lambda: len(cluster.dead_letters()) == 2)
    await first.end()
    cluster.replica()
    await cluster.bus.publish(OUTCOMES.name, "shop/other", b"more nonsense", {})
    await cluster.until(lambda: len(cluster.dead_letters()) == 3)
    await second.end()
    await cluster.analysed(1)
    await cluster.planned(1)
    topics = sorted(letter.topic for letter in cluster.dead_letters())
    assert topics == sorted([OUTCOMES.name, OUTCOMES.name, PLANNERS.name])


@pytest.mark.parametrize("code", ["planner-timeout", "planner-failed"])
async def test_a_planner_without_a_reply_gives_a_hold(cluster: Cluster, code: str) -> None:
    """The plan has the reason and adds no recommendation, so windows start again."""
    cluster.workers.answer = lambda _: PlanReply(kind="hold", code=code, sentence="planner rate gave no answer")
    cluster.replica()
    await cluster.analysed(arrivals=9000)
    plan = await cluster.planned(1)
    assert (plan.kind, plan.code, plan.approved) == ("hold", code, None)
    assert plan.state.recommendations == []


async def test_an_old_analysis_is_a_hold_without_calling_the_planner(cluster: Cluster) -> None:
    """It is a minute old, so no decision is based on it."""
    cluster.replica()
    await cluster.analysed(-60, arrivals=9000)
    assert (await cluster.planned(1)).code == "stale"
    assert cluster.workers.requests == []


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
async def test_the_request_carries_observations_and_outcomes(
    cluster: Cluster, spec: dict[str, Any], sent: bool
) -> None:
    """Outcomes are complete; raw observations are included if a planner reads them. Both are in the next request."""
    done = outcome(action(before={WORK: 1}, wanted={WORK: 2}, finished_at=after(-90)), restart_seconds=7.0)
    await cluster.publish(OUTCOMES, APP, done, done.id)
    cluster.replica()
    await cluster.analysed(-1)
    await cluster.planned(1)  # the assignment is complete, so observations are read from here on
    chosen = policy()
    reading = Observation(
        id=SPACE, application=APP, observed_at=after(0), policy=chosen, status="running", signals={"queue": 3.0}
    )
    await cluster.publish(OBSERVATIONS, APP, reading)
    await cluster.analysed(1, spec=spec)
    await cluster.planned(2)
    plan_request = cluster.workers.requests[-1]
    assert plan_request.observations == ([reading] if sent else [])
    assert plan_request.signals == {"queue": 3.0}
    assert [o.restart_seconds for o in plan_request.outcomes] == [7.0]
    by_rate = spec.get("planner", {"name": "rate"})["name"] == "rate"
    at, shares = after(-1).timestamp(), {SOURCE: 1.0, WORK: 1.0}
    remembered = {"arrivals": 800.0, "looked_at": at, "shares": shares, "shares_since": at}
    assert plan_request.memory == (remembered if by_rate else {}), "the memory is its planner's own"


async def test_a_plan_that_could_not_be_published_is_made_again(cluster: Cluster) -> None:
    """The brokers fail within a cycle: no plan is lost or published twice."""

    def reply_then_break(request: PlanRequest) -> PlanReply:
        cluster.workers.answer = lambda _: scale({"orders": 1, WORK: 3})
        cluster.bus.break_down()
        return scale({"orders": 1, WORK: 3})

    cluster.workers.answer = reply_then_break
    with capture_logs() as logs:
        cluster.replica()
        await cluster.analysed()
        await cluster.until(lambda: any(entry["event"] == "cycle-failed" for entry in logs))
        assert cluster.plans() == []
        cluster.bus.mend()
        assert (await cluster.planned(1)).approved == {"orders": 1, WORK: 3}


async def test_an_application_that_has_ended_is_forgotten(cluster: Cluster) -> None:
    """It gets no plan; a later application of the same name has no history."""
    cluster.replica()
    await cluster.analysed(0)
    await cluster.planned(1)
    await cluster.analysed(1, status="ended")
    await cluster.analysed(1, "shop/other")
    await cluster.planned(1, "shop/other")
    await cluster.analysed(2)
    await cluster.planned(2)
    assert cluster.workers.requests[-1].history == []


async def test_an_end_in_the_middle_of_a_batch_counts(cluster: Cluster) -> None:
    """Deleted and created again while the planner was down: the newest is planned without the first one's history."""
    replica = cluster.replica()
    await cluster.analysed(0)
    await cluster.planned(1)
    await replica.end()
    for seconds, status in ((1.0, "ended"), (2.0, "running"), (3.0, "running")):
        await cluster.analysed(seconds, status=status)
    cluster.replica()
    await cluster.planned(2)
    assert cluster.workers.requests[-1].history == []
    replica.applications.planned(cluster.plans()[-1])
    replica.applications.ended(analysis(at=after(1), status="ended"))
    assert replica.applications.plan(APP) is not None  # an earlier end does not count


async def test_a_slow_planner_holds_up_its_own_application_only(cluster: Cluster) -> None:
    """One does not reply while others are planned, cycle after cycle; once it replies, its newest analysis is next."""
    answered = asyncio.Event()

    class Elsewhere(InProcess):
        async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
            if request.application == APP:
                await answered.wait()
            return await super().ask(request, planner, timeout_seconds)

    workers = Elsewhere()
    replica = cluster.replica(workers)
    await cluster.analysed(0)
    for cycle in range(3):
        await cluster.analysed(cycle + 0.5)
        await cluster.analysed(cycle, "shop/other")
        await cluster.planned(cycle + 1, "shop/other")
    assert cluster.plans() == []
    answered.set()
    plan = await cluster.planned(2)
    assert cluster.plans()[0].observed_at <= after(0.5)
    assert plan.observed_at == after(2.5)
    await replica.end()
    cluster.replicas.clear()


async def test_an_unfinished_request_is_planned_by_the_next_replica(cluster: Cluster) -> None:
    """The first replica stops while its planner works: nothing was committed, so the analysis is delivered again."""

    class Thinking(InProcess):
        async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
            self.requests.append(request)
            await asyncio.Event().wait()
            raise AssertionError

    thinking = Thinking()
    first = cluster.replica(thinking)
    await cluster.analysed(0)
    await cluster.until(lambda: thinking.requests)
    await first.end()
    assert cluster.plans() == []
    cluster.replicas.clear()
    cluster.replica()
    assert (await cluster.planned(1)).observed_at == after(0)
