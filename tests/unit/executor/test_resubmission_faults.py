"""Jobs that are stopped and run again while Flink, what is in front of it, or another part fails at that moment. The simulated
cluster answers as it does, but where a test's `hook` answers in its place or loses the answer."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from testbed import simulated_savepoints
from testbed.simulated_flink import SOURCE, Job
from tests.unit.executor.test_resubmission_stories import APP, BEFORE, EVENLY, WANTED, ResubmittingHouse
from weir_contracts import Parallelism
from weir_contracts.topics import POLICIES
from weir_engines.flink.driver import FlinkDriver
from weir_engines.flink_resubmit.driver import FlinkResubmitDriver

pytestmark = pytest.mark.virtual_time

Hook = Callable[[httpx.Request], httpx.Response | None]


class Wire(httpx.AsyncBaseTransport):
    """Connection to the simulated cluster."""

    hook: Hook | None = None

    def __init__(self, house: ResubmittingHouse) -> None:
        self._inner = httpx.ASGITransport(app=house.flink.app())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = None if self.hook is None else self.hook(request)
        return await self._inner.handle_async_request(request) if answer is None else answer


class FaultyHouse(ResubmittingHouse):
    """The job, one replica, and a connection to the cluster that may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire(self)
        self.jobs = FlinkDriver(self.clock, transport=self.wire)
        self.resubmitter = FlinkResubmitDriver(self.clock, self.jobs)
        self.drivers["flink-resubmit"] = self.resubmitter

    @property
    def seconds(self) -> float:
        return self.clock.now().timestamp()

    def story(self) -> list[tuple[str, str, str]]:
        return [(each.phase, each.code, each.sentence) for each in self.published()]

    async def preparing(self) -> None:
        """Wait until Flink has accepted the stop."""
        await self.until(lambda: self.phases().count("preparing") == 2)

    async def verifying(self) -> Job:
        """Wait until the successor runs; return it."""
        await self.until(lambda: self.phases().count("verifying") == 2)
        return self.flink.all[1]


@pytest.fixture
async def house() -> AsyncIterator[FaultyHouse]:
    made = FaultyHouse()
    yield made
    await made.end()
    await made.jobs.close()


def lost(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def refused(request: httpx.Request) -> httpx.Response:
    return httpx.Response(400, json={"errors": ["Could not execute application."]}, request=request)


def is_run(request: httpx.Request) -> bool:
    return request.method == "POST" and request.url.path.endswith("/run")


def with_checkpoints(house: FaultyHouse, completed: int, **latest: Any) -> Hook:
    """Return a hook by which successors have completed so many checkpoints."""

    def hook(request: httpx.Request) -> httpx.Response | None:
        parts = request.url.path.strip("/").split("/")
        if parts[-1] != "checkpoints" or parts[1] not in [job.id for job in house.flink.all[1:]]:
            return None
        counts = {"completed": completed, "in_progress": 0}
        return httpx.Response(200, json={"counts": counts, "latest": latest}, request=request)

    return hook


async def test_of_two_jobs_of_the_name_none_is_stopped(house: FaultyHouse) -> None:
    """The successor would run next to the older one."""
    await house.begin()
    house.clock.advance(5)
    house.flink.submit("orders", 1)
    await house.wants()
    await house.ends()
    assert (house.flink.behaviour.stop_requests, len(house.flink.alive)) == (0, 2), house.story()


async def test_a_forgotten_stop_is_known_by_its_folder(house: FaultyHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flink qualifies the path: `file:///state` comes back as `file:/state`, `hdfs:///state` with its name node."""

    def qualified(stop: Any) -> str:
        return f"{stop.directory}/savepoint-{stop.job.id[:6]}-0123".replace("file:///", "file:/")

    monkeypatch.setattr(simulated_savepoints._Stop, "location", property(qualified))
    house.flink.behaviour.forgets_stops = True
    await house.begin()
    await house.wants()
    last = await house.ends()
    assert (last.phase, house.observed) == ("verified", [WANTED]), house.story()


async def test_one_overview_without_the_job_does_not_end_its_stop(house: FaultyHouse) -> None:
    """Flink leaves a job out of /jobs/overview whose JobMaster does not answer in time."""
    house.flink.behaviour.savepoint_seconds = 10.0
    await house.begin()
    await house.wants()
    await house.preparing()
    left = iter(range(3))

    def hook(request: httpx.Request) -> httpx.Response | None:
        if request.url.path != "/jobs/overview" or next(left, None) is None:
            return None
        return httpx.Response(200, json={"jobs": []}, request=request)

    house.wire.hook = hook
    last = await house.ends()
    assert (last.phase, house.observed) == ("verified", [WANTED]), house.story()


async def test_an_end_without_a_job_names_the_folder(house: FaultyHouse) -> None:
    """A JobManager that starts again has forgotten jobs that ended, and stops."""
    house.flink.behaviour.savepoint_seconds = 3.0
    await house.begin()
    await house.wants()
    await house.preparing()
    house.flink.all.clear()
    house.flink._stops.clear()
    last = await house.ends()
    assert "savepoint is in weir-" in last.sentence, house.story()


async def test_a_run_that_is_not_answered_starts_one_job(house: FaultyHouse) -> None:
    """A proxy gives up after 30 s, and the main method submits the job after 40 s."""
    await house.begin()
    due: dict[float, dict[str, Any]] = {}

    def hook(request: httpx.Request) -> httpx.Response | None:
        for at in [at for at in due if house.seconds >= at]:
            house.flink._run(simulated_savepoints.JAR, due.pop(at))
        if not is_run(request) or len(house.flink.behaviour.runs) or due:
            return None
        due[house.seconds + 40] = json.loads(request.content)
        house.clock.advance(30)
        return httpx.Response(504, text="gateway time-out", request=request)

    house.wire.hook = hook
    await house.wants()
    await house.ends()
    await house.quiet(60)
    assert len(house.flink.alive) == 1, house.story()
    assert "run-slow" in [code for _, code, _ in house.story()], "a user sees why it takes so long"


async def test_an_outage_while_rolling_back(house: FaultyHouse) -> None:
    """The cluster is away for 4 min with the job stopped, which is started again once it is back."""
    await house.begin()
    runs: list[httpx.Request] = []
    is_away = True

    def hook(request: httpx.Request) -> httpx.Response | None:
        if is_run(request):
            runs.append(request)
            if len(runs) == 1:
                return refused(request)
        return lost(request) if len(runs) > 1 and is_away else None

    house.wire.hook = hook
    await house.wants()
    await house.until(lambda: len(runs) > 1)
    await house.quiet(240)
    is_away = False
    await house.ends()
    assert house.observed == [BEFORE], house.story()


async def test_a_replica_that_follows_while_rolling_back(house: FaultyHouse) -> None:
    """The executor starts again 4 min after the intent to roll back: the former parallelism is run."""
    house.replica()
    await house.begin()
    await house.until(lambda: all(replica.executor._consumer is not None for replica in house.replicas))
    first, runs = house.owner(), 0

    def kill(effect: str) -> None:
        nonlocal runs
        runs += effect == "before run"
        if runs == 2:
            first.ports.stop_at = len(first.ports.effects)

    first.ports.on_effect = kill
    house.wire.hook = lambda request: refused(request) if is_run(request) and runs == 1 else None
    await house.wants()
    await house.until(lambda: bool(first.ports.stopped))
    assert house.phases()[-1] == "rolling-back"
    first.ports.on_effect = lambda _: None
    await house.quiet(240)
    house.bus.expire(first.member)
    await house.ends()
    assert house.observed == [BEFORE], house.story()


async def test_a_successor_that_failed_after_checkpoints_stays_also_if_an_answer_is_lost(house: FaultyHouse) -> None:
    """A return to the savepoint would repeat what its checkpoints hold."""
    await house.begin()
    await house.wants()
    house.wire.hook = progressed = with_checkpoints(house, 3)
    successor = await house.verifying()
    left = iter(range(1))

    def hook(request: httpx.Request) -> httpx.Response | None:
        if request.url.path == f"/jobs/{successor.id}" and next(left, None) is not None:
            return httpx.Response(503, text="busy", request=request)
        return progressed(request)

    house.wire.hook = hook
    successor.state = "FAILED"
    last = await house.ends()
    assert (last.code, len(house.flink.behaviour.runs)) == ("not-rolled-back", 1), house.story()


async def test_a_successor_that_a_new_jobmanager_recovers_is_not_replaced(house: FaultyHouse) -> None:
    """It has no graph for a while, and its counts of checkpoints begin again; what it restored is a checkpoint."""
    await house.begin()
    await house.wants()
    house.wire.hook = with_checkpoints(house, 3)
    successor = await house.verifying()
    house.wire.hook = lost
    await house.quiet(180)
    successor.state, successor.started_at = "INITIALIZING", house.seconds
    house.flink.behaviour.start_seconds = 15.0
    house.wire.hook = with_checkpoints(house, 0, restored={"is_savepoint": False, "external_path": "s3://c/chk-3"})
    await house.ends()
    assert (successor.state, len(house.flink.behaviour.runs)) == ("RUNNING", 1), house.story()


async def test_a_successor_that_makes_progress_after_all_stays(house: FaultyHouse) -> None:
    """The cluster is away just when it is to be cancelled, and it runs meanwhile."""
    house.flink.behaviour.never_runs = True
    await house.begin()
    is_away = False

    def hook(request: httpx.Request) -> httpx.Response | None:
        nonlocal is_away
        is_away = is_away or request.method == "PATCH"
        return lost(request) if is_away else None

    house.wire.hook = hook
    await house.wants()
    await house.until(lambda: is_away)
    house.flink.behaviour.never_runs = False
    await house.quiet(20)
    house.wire.hook = with_checkpoints(house, 3)
    await house.ends()
    assert (house.flink.all[1].state, len(house.flink.behaviour.runs)) == ("RUNNING", 1), house.story()


async def test_a_short_fault_of_the_main_method_leaves_no_job_stopped(house: FaultyHouse) -> None:
    """Flink says of brokers that main cannot reach, and of its own timeouts, that it could not execute the application."""
    await house.begin()
    began_at: list[float] = []

    def hook(request: httpx.Request) -> httpx.Response | None:
        if not is_run(request):
            return None
        began_at.append(house.seconds)
        return refused(request) if house.seconds < began_at[0] + 3 else None

    house.wire.hook = hook
    await house.wants()
    await house.ends()
    assert house.observed == [BEFORE], house.story()
    assert len(began_at) < 20, "not in every moment"


async def test_a_replica_without_a_policy_names_the_folder(house: FaultyHouse) -> None:
    """The policy is deleted, and the executor starts again, in the moment of the stop: nothing says any more where the job runs."""
    house.replica()
    await house.begin()
    await house.until(lambda: all(replica.executor._consumer is not None for replica in house.replicas))
    first = house.owner()

    def kill(effect: str) -> None:
        if effect == "after stop":
            first.ports.stop_at = len(first.ports.effects)

    first.ports.on_effect = kill
    await house.wants()
    await house.until(lambda: bool(first.ports.stopped))
    first.ports.on_effect = lambda _: None
    del house.knowledge.policies[APP]
    await house.bus.publish(POLICIES.name, APP, None, {})
    await house.quiet(9)
    house.bus.expire(first.member)
    last = await house.ends()
    assert last.code == "job-gone" and "savepoint is in weir-" in last.sentence, house.story()


async def test_a_jar_that_sets_a_parallelism_itself_is_no_other_client(
    house: FaultyHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flink 2.x takes one parallelism for a run, and the code's own for the source: the sentence says so."""
    house.flink.behaviour.version = "2.2.1"
    await house.begin(uniform=True)
    made = house.flink._job

    def with_own_source(name: str, job_id: str | None, parallelism: Parallelism) -> Job:
        return made(name, job_id, {**parallelism, SOURCE: 1})

    monkeypatch.setattr(house.flink, "_job", with_own_source)
    await house.wants(EVENLY)
    await house.ends()
    assert any("the jar's code sets" in sentence for _, _, sentence in house.story()), house.story()
    assert not any("another client" in sentence for _, _, sentence in house.story())


async def test_a_stop_that_was_not_answered_is_waited_for(house: FaultyHouse) -> None:
    """The JobManager carries it out 6 s later, and the user pauses meanwhile: the job is run again all the same."""
    await house.begin()
    due: dict[float, dict[str, Any]] = {}

    def hook(request: httpx.Request) -> httpx.Response | None:
        for at in [at for at in due if house.seconds >= at]:
            house.flink._stop(house.flink.all[0], due.pop(at))
        if request.method != "POST" or not request.url.path.endswith("/stop"):
            return None
        due[house.seconds + 6] = json.loads(request.content)
        house.knowledge.set_mode(APP, "paused", house.clock.now())
        raise httpx.ReadTimeout("lost", request=request)

    house.wire.hook = hook
    await house.wants()
    await house.ends()
    assert house.observed == [WANTED], house.story()


async def test_no_second_stop_leaves_after_the_first_was_accepted(house: FaultyHouse) -> None:
    """It is lost with its JobManager, and the plan may have expired: the job runs on, and a later plan may stop it."""
    house.flink.behaviour.savepoint_seconds = 100.0
    await house.begin()
    await house.wants()
    await house.preparing()
    await house.quiet(20)
    house.flink._stops.clear()
    last = await house.ends()
    assert house.flink.behaviour.stop_requests == 1, house.story()
    assert (last.phase, house.observed) == ("failed", [BEFORE]), house.story()
