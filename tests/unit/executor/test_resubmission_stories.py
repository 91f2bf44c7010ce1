"""Actions of a Flink job that is stopped with a savepoint and run again: the driver that is deployed, on a simulated Flink."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from testbed.simulated_flink import SOURCE, WORK
from testbed.simulated_savepoints import ENTRY_CLASS, JAR_NAME, ResubmittedJobs
from tests.effort import some
from tests.unit.executor.builders import plan
from tests.unit.executor.house import APP, House
from weir_contracts import Outcome, Parallelism, Subject, policy_of
from weir_contracts.topics import PLANS, POLICIES
from weir_engines.driver import Unfenced
from weir_engines.flink.driver import FlinkDriver
from weir_engines.flink_resubmit.driver import FlinkResubmitDriver

pytestmark = pytest.mark.virtual_time

BEFORE: Parallelism = {SOURCE: 1, WORK: 1}
WANTED: Parallelism = {SOURCE: 1, WORK: 4}
EVENLY: Parallelism = {SOURCE: 4, WORK: 4}
ENDS = ("verified", "rolled-back", "failed", "refused")


class ResubmittingHouse(House):
    """A job of the default scheduler, and one replica."""

    def __init__(self) -> None:
        super().__init__(container_start_seconds=10.0, deadline_floor_seconds=10.0)
        self.flink = ResubmittedJobs(["orders"], lambda: self.clock.now().timestamp())
        transport = httpx.ASGITransport(app=self.flink.app())
        self.jobs = FlinkDriver(self.clock, transport=transport)
        self.resubmitter = FlinkResubmitDriver(self.clock, self.jobs)
        self.drivers |= {"flink-resubmit": self.resubmitter}

    async def begin(self, **resubmit: Any) -> None:
        await self.start()
        self.clock.advance(120)
        target = {
            "jar": JAR_NAME,
            "entryClass": ENTRY_CLASS,
            "args": ["--x", "1"],
            "savepointDirectory": "file:///state/",
        }
        spec = {
            "application": {"flink": {"url": "http://127.0.0.1:8081", "job": "orders"}},
            "target": {"flink": {"resubmit": {**target, **resubmit}}},
            "objective": {"maxLag": "30s"},
            "mode": "act",
        }
        self.knowledge.policies[APP] = policy_of(APP, 3, **spec)
        await self.publish(POLICIES, APP, self.knowledge.policies[APP])

    @property
    def subject(self) -> Subject:
        return self.knowledge.policies[APP].subject

    async def wants(self, wanted: Parallelism = WANTED) -> None:
        """Publish a plan for the job as it is."""
        found = await self.resubmitter.observe(self.subject)
        assert found.deployment is not None, found.reason
        self._plans += 1
        made = plan(
            wanted,
            number=self._plans,
            at=self.clock.now(),
            deployment=found.deployment.ref(),
            current=found.deployment.observed,
            expires_at=self.clock.now() + timedelta(seconds=30),
        )
        await self.publish(PLANS, APP, made, id=made.id)

    async def ends(self) -> Outcome:
        await self.until(lambda: self.phases()[-1:] != [] and self.phases()[-1] in ENDS)
        return self.published()[-1]

    @property
    def observed(self) -> list[Parallelism]:
        """Parallelism of each job that has not ended."""
        return [job.observed for job in self.flink.alive]


@pytest.fixture
async def house() -> AsyncIterator[ResubmittingHouse]:
    made = ResubmittingHouse()
    yield made
    await made.end()
    await made.jobs.close()


async def test_the_job_is_stopped_and_its_successor_runs(house: ResubmittingHouse) -> None:
    """One stop, one run with the arguments of the policy, from the savepoint; the time away counts from the stop."""
    await house.begin()
    await house.wants()
    last = await house.ends()
    assert (last.phase, house.observed) == ("verified", [WANTED])
    assert house.phases() == ["intended", *["preparing"] * 2, "applying", *["verifying"] * 2, "verified"]
    (run,) = house.flink.behaviour.runs
    record = last.action and last.action.resubmission
    assert record is not None and record.savepoint is not None
    assert (run["entryClass"], run["programArgsList"], run["parallelism"]) == (ENTRY_CLASS, ["--x", "1"], 1)
    assert (run["savepointPath"], run["allowNonRestoredState"]) == (record.savepoint, False)
    assert record.savepoint.startswith("file:///state/weir-") and len(house.flink.behaviour.stops) == 1
    assert house.flink.alive[0].id == record.successor
    assert last.restart_seconds is not None and last.restart_seconds >= 4.0, "2 s of savepoint and 2 s of start"


async def test_the_successor_is_the_same_deployment(house: ResubmittingHouse) -> None:
    """A second action follows, so that what was learned of the job stays and the analyzer does not take the successor for another job."""
    await house.begin()
    before = await house.resubmitter.observe(house.subject)
    await house.wants()
    await house.ends()
    after = await house.resubmitter.observe(house.subject)
    assert before.deployment is not None and after.deployment is not None
    assert before.deployment.job_id == after.deployment.job_id
    await house.wants(BEFORE)
    await house.until(lambda: house.phases().count("verified") == 2)
    assert (house.observed, len(house.flink.behaviour.runs)) == ([BEFORE], 2)


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (
            "CheckpointException: Checkpoint expired before completing.",
            "did not complete within Flink's checkpoint timeout",
        ),
        ("java.io.IOException: Failed to create savepoint directory at file:/state", "its directory cannot be written"),
        ("java.nio.file.AccessDeniedException: /state", "access to its directory is denied"),
        ("java.lang.IllegalStateException: secret of another system", "see the JobManager's log"),
    ],
)
async def test_a_savepoint_that_fails_leaves_the_job_alone(house: ResubmittingHouse, cause: str, sentence: str) -> None:
    """The reason is Flink's where it is known, and no other text is passed on; the size is quarantined."""
    house.flink.behaviour.savepoint_failure = cause
    await house.begin()
    await house.wants()
    last = await house.ends()
    assert (last.phase, last.code) == ("failed", "savepoint-failed")
    assert sentence in last.sentence and "secret" not in last.sentence
    assert (house.observed, house.flink.behaviour.runs) == ([BEFORE], [])
    assert [kept.parallelism for kept in last.quarantine] == [WANTED]


async def test_a_savepoint_may_take_its_time(house: ResubmittingHouse) -> None:
    """No deadline ends an action whose stop is under way, as the job would then stop without a successor."""
    house.flink.behaviour.savepoint_seconds = 200.0
    await house.begin()
    await house.wants()
    await house.until(lambda: house.published()[-1:] != [] and house.published()[-1].code == "savepoint-slow")
    last = await house.ends()
    assert (last.phase, house.observed) == ("verified", [WANTED])


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        ("java.io.FileNotFoundException: Cannot find meta data file '_metadata' in directory", "cannot be read"),
        ("IllegalStateException: Cannot map checkpoint/savepoint state for operator x", "state of an operator"),
        ("NoResourceAvailableException: Could not acquire the minimum required resources.", "too few slots"),
    ],
)
async def test_a_successor_that_fails_is_replaced_by_the_former_size(
    house: ResubmittingHouse, cause: str, sentence: str
) -> None:
    """From the same savepoint, which the outcome names."""
    house.flink.behaviour.start_failure = cause
    await house.begin()
    await house.wants()
    last = await house.ends()
    assert (last.phase, house.observed) == ("rolled-back", [BEFORE])
    assert any(sentence in each.sentence for each in house.published())
    assert "; savepoint file:///state/weir-" in last.sentence
    first, second = house.flink.behaviour.runs
    assert first["savepointPath"] == second["savepointPath"] and first["jobId"] != second["jobId"]
    assert house.phases().count("rolling-back") == 2


async def test_a_successor_that_never_runs_is_cancelled_first(house: ResubmittingHouse) -> None:
    """It hangs in INITIALIZING past its deadline: never do two jobs have the name."""
    house.flink.behaviour.never_runs = True
    await house.begin()
    await house.wants()
    last = await house.ends()
    assert (last.phase, house.observed) == ("rolled-back", [BEFORE])
    assert [job.state for job in house.flink.all] == ["FINISHED", "CANCELED", "RUNNING"]


async def test_a_jar_that_went_after_the_stop_ends_with_the_savepoint(house: ResubmittingHouse) -> None:
    """Neither size can run: the sentence says that the job is stopped, why, and where its state is."""
    await house.begin()
    await house.wants()
    await house.until(lambda: house.flink.behaviour.stops != [])
    house.flink.behaviour.jars.clear()
    last = await house.ends()
    assert (last.phase, last.code, house.observed) == ("failed", "rollback-rejected", [])
    assert "the jar is not on the cluster any more; savepoint " in last.sentence


async def test_an_entry_class_that_is_missing_is_named(house: ResubmittingHouse) -> None:
    """Flink finds out when the jar runs, so after the stop."""
    await house.begin(entryClass="shop.Other")
    await house.wants()
    last = await house.ends()
    assert last.code == "rollback-rejected"
    assert "the jar has no such entry class; savepoint " in last.sentence


def _no_jar(house: ResubmittingHouse) -> None:
    house.flink.behaviour.jars = {"1_other.jar": ("other.jar", 0.0)}


def _newer_jar(house: ResubmittingHouse) -> None:
    house.flink.behaviour.jars["9_orders.jar"] = (JAR_NAME, house.clock.now().timestamp())


def _flink_2(house: ResubmittingHouse) -> None:
    house.flink.behaviour.version = "2.2.1"


def _reactive(house: ResubmittingHouse) -> None:
    house.flink.behaviour.configuration["scheduler-mode"] = "reactive"


REFUSED: dict[str, tuple[Callable[[ResubmittingHouse], None], Parallelism, str, str]] = {
    "a jar of another name": (_no_jar, WANTED, "no-jar", "it has other.jar"),
    "a newer jar of the name": (_newer_jar, WANTED, "jar-changed", "uploaded after the job started"),
    "more than the key groups": (lambda house: None, {SOURCE: 1, WORK: 200}, "key-groups", "128 key groups"),
    "several sizes on Flink 2": (_flink_2, WANTED, "unsupported", "resubmit.uniform"),
    "a job in reactive mode": (_reactive, WANTED, "unsupported", "taskManagers with reactive: true"),
}


@pytest.mark.parametrize("how", REFUSED)
async def test_what_cannot_run_is_refused_before_anything_stops(house: ResubmittingHouse, how: str) -> None:
    """The job runs on, and Flink was not asked for anything."""
    happens, wanted, code, words = REFUSED[how]
    await house.begin()
    policy = house.knowledge.policies[APP]
    bounds = policy.spec.bounds.model_copy(update={"max": 500})
    house.knowledge.policies[APP] = policy.model_copy(
        update={"spec": policy.spec.model_copy(update={"bounds": bounds})}
    )
    happens(house)
    await house.wants(wanted)
    last = await house.ends()
    assert (last.phase, last.code) == ("refused", code), last.sentence
    assert words in last.sentence and house.flink.behaviour.stop_requests == 0
    assert house.observed == [BEFORE]


async def test_flink_2_gives_all_operators_one_parallelism(house: ResubmittingHouse) -> None:
    """The run has the parallelism itself, and no overrides that this version would ignore."""
    _flink_2(house)
    await house.begin(uniform=True)
    await house.wants(EVENLY)
    last = await house.ends()
    assert (last.phase, house.observed) == ("verified", [EVENLY])
    (run,) = house.flink.behaviour.runs
    assert run["parallelism"] == 4 and "flinkConfiguration" not in run


async def test_a_job_of_the_name_that_a_user_ran_meanwhile_is_left_alone(house: ResubmittingHouse) -> None:
    """It came while the savepoint was under way: no successor runs next to it, and the outcome names the savepoint if there is
    one."""
    house.flink.behaviour.savepoint_seconds = 5.0
    await house.begin()
    await house.wants()
    await house.until(lambda: house.flink.behaviour.stops != [])
    house.clock.advance(1)
    theirs = house.flink.submit("orders", 2)
    last = await house.ends()
    assert (last.phase, last.code) == ("failed", "job-gone")
    assert theirs.id in last.sentence and house.flink.behaviour.runs == []


async def test_a_job_that_a_user_stopped_is_not_run_again(house: ResubmittingHouse) -> None:
    """It was stopped by another savepoint between the plan and the request: that is what the user wants."""
    await house.begin()
    await house.wants()
    await house.until(lambda: house.phases() == ["intended"])
    for job in house.flink.all:
        job.state = "FINISHED"
    last = await house.ends()
    assert last.phase in ("failed", "refused") and last.code == "other-deployment"
    assert (house.flink.behaviour.runs, house.observed) == ([], [])


@pytest.mark.parametrize("effect", ["after stop", "after run"])
async def test_a_replica_that_follows_much_later_finds_the_savepoint(house: ResubmittingHouse, effect: str) -> None:
    """The first one is killed after its request; by the time of the second Flink has forgotten the stop, and the user has paused:
    the job runs again."""
    house.replica()
    await house.begin()
    first: Any = None

    def kill(found: str) -> None:
        if found == effect and first is not None:
            first.ports.stop_at = len(first.ports.effects)

    await house.until(lambda: all(r.executor._consumer is not None for r in house.replicas))
    first = house.owner()
    first.ports.on_effect = kill
    await house.wants()
    await house.until(lambda: bool(first.ports.stopped))
    first.ports.on_effect = lambda found: None
    house.flink.behaviour.forgets_stops = True
    await house.quiet(9)
    house.knowledge.set_mode(APP, "paused", house.clock.now())
    house.bus.expire(first.member)
    last = await house.ends()
    assert (last.phase, house.observed) == ("verified", [WANTED]), last.sentence
    assert len(house.flink.behaviour.stops) == len(house.flink.behaviour.runs) == 1


async def test_asked_twice_is_done_once(house: ResubmittingHouse) -> None:
    """The same stop and the same run again, directly at the driver: Flink has one savepoint, and one successor."""
    await house.begin()
    await house.wants()
    await house.until(lambda: house.phases().count("preparing") == 2)
    action = house.published()[-1].action
    assert action is not None
    record = action.resubmission
    assert record is not None
    for replica in house.replicas:
        await replica.kill()
    fence = Unfenced()
    for _ in range(2):
        await house.resubmitter.stop(house.subject, record, action.id, fence)
    await house.quiet(3)
    record = record.model_copy(update={"savepoint": "file:///state/savepoint-1"})
    for _ in range(2):
        await house.resubmitter.run(house.subject, record, WANTED, fence)
    assert len(house.flink.behaviour.stops) == len(house.flink.behaviour.runs) == 1
    assert await house.resubmitter.stop(house.subject, record, uuid4(), fence, begins=False) is not None
    assert len(house.flink.alive) == 1 and house.flink.alive[0].id == record.successor


class Lossy(httpx.AsyncBaseTransport):
    """A connection that loses the answer to one request since the action began, after Flink has carried it out."""

    def __init__(self, inner: httpx.AsyncBaseTransport, lost: int) -> None:
        self.inner = inner
        self.lost = lost
        self.count = 0
        self.has_begun = False

    def passed(self, effect: str) -> None:
        """Notice the action's first outcome, with which it begins."""
        self.has_begun = self.has_begun or effect == "after publish"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.count += self.has_begun
        is_lost = self.has_begun and self.count == self.lost
        answer = await self.inner.handle_async_request(request)
        if is_lost:
            raise httpx.ReadTimeout("lost", request=request)
        return answer


EVERY = 20


@pytest.mark.parametrize("nth", some(range(EVERY), EVERY))
@pytest.mark.parametrize("fails", [False, True])
async def test_each_answer_of_flink_may_be_lost(fails: bool, nth: int) -> None:
    """Whichever it is of a stop, a run and, where the successor fails, the way back: the end is the same, and each is done
    once."""
    lost, count = nth + 1, EVERY
    while lost <= count:
        house = ResubmittingHouse()
        lossy = Lossy(httpx.ASGITransport(app=house.flink.app()), lost)
        house.jobs = FlinkDriver(house.clock, transport=lossy)
        house.resubmitter = FlinkResubmitDriver(house.clock, house.jobs)
        house.drivers["flink-resubmit"] = house.resubmitter
        house.flink.behaviour.never_runs = fails
        await house.begin()
        house.replicas[0].ports.on_effect = lossy.passed
        await house.wants()
        last = await house.ends()
        assert (last.phase, house.observed) == (("rolled-back", [BEFORE]) if fails else ("verified", [WANTED]))
        assert (len(house.flink.behaviour.stops), len(house.flink.behaviour.runs)) == (1, 1 + fails)
        count = lossy.count
        await house.end()
        await house.jobs.close()
        lost += EVERY
    assert count > EVERY
