"""The driver of jobs whose TaskManagers it brings and releases: pods and the instances of an endpoint, in memory."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx
import pytest

from tests.unit.engines.driver_suite import OPEN, Closed, DriverSuite
from tests.unit.engines.task_managers.rig import WANTED, WORKLOAD, ManagedRig, subject
from tests.unit.executor.builders import NOON, TOPOLOGY, deployment
from weir_contracts import InvalidPolicy, Parallelism, RescaleSettings, Subject, policy_of
from weir_engines.driver import Accepted, Refusal, Rejected, TargetChanged, TaskManagers, Unanswered
from weir_engines.flink.driver import FlinkDriver, RegisteredManagers
from weir_engines.flink.metrics import ManagerSlots
from weir_engines.registry import Engines, Resources, claims
from weir_engines.scrape import Scrape
from weir_engines.task_managers.driver import free_pods
from weir_engines.task_managers.engine import ManagedCollector, TaskManagersEngine
from weir_engines.task_managers.pools import PoolReading
from weir_runtime.clock import FakeClock

KINDS = ["Deployment", "StatefulSet", "Worker", "endpoint"]


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest) -> ManagedRig:
    return ManagedRig(request.param)


class TestJob(DriverSuite):
    @pytest.fixture(params=["Deployment", "endpoint"])
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[ManagedRig]:
        rig = ManagedRig(request.param, managers=4)
        yield rig
        await rig.driver.close()


class TestReactive(DriverSuite):
    """The scheduler of the suite's clusters is called adaptive."""

    @pytest.fixture(params=["Deployment", "endpoint"])
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[ManagedRig]:
        rig = ManagedRig(request.param, reactive=True)
        yield rig
        await rig.driver.close()


async def managers(rig: ManagedRig) -> TaskManagers:
    found = (await rig.driver.observe(rig.subject)).managers
    assert found is not None
    return found


async def provide(rig: ManagedRig, count: int, expected: range, fence: object = OPEN) -> object:
    return await rig.driver.provide(rig.subject, rig.job_id, count, expected, fence)  # type: ignore[arg-type]


async def test_managers_are_brought(rig: ManagedRig) -> None:
    """The number is written, and their slots register once they have started."""
    before = await managers(rig)
    assert (before.wanted, before.registered_slots, before.is_settled, before.refusal) == (1, 2, True, None)
    assert isinstance(await provide(rig, 4, range(1, 5)), Accepted)
    starting = await managers(rig)
    assert (starting.wanted, starting.is_settled) == (4, False) and starting.progress is not None
    found = await rig.until(lambda s: s.managers is not None and s.managers.is_settled)
    assert found.managers is not None and found.managers.registered_slots == 8
    assert found.all_running, "the job goes on with what it has"


async def test_a_number_is_requested_once(rig: ManagedRig) -> None:
    """One that is there already is accepted, and nothing is written."""
    for _ in range(2):
        assert isinstance(await provide(rig, 3, range(1, 4)), Accepted)
    assert rig.writes() == [3]


async def test_managers_are_released(rig: ManagedRig) -> None:
    """Fewer are requested, and they go."""
    await provide(rig, 4, range(1, 5))
    await rig.until(lambda s: s.managers is not None and s.managers.is_settled)
    assert isinstance(await provide(rig, 1, range(1, 5)), Accepted)
    found = await rig.until(lambda s: s.managers is not None and s.managers.is_settled)
    assert found.managers is not None and found.managers.registered_slots == 2


@pytest.mark.parametrize("held", [Refusal("expired", "too late"), Unanswered("not confirmed")])
async def test_a_closed_fence_lets_no_number_through(rig: ManagedRig, held: Refusal | Unanswered) -> None:
    """Its response is the driver's."""
    assert await provide(rig, 4, range(1, 5), Closed(held)) == held
    assert isinstance(await provide(rig, 4, range(1, 5), Closed(None)), Unanswered), "lost between check and write"
    assert rig.writes() == []


async def test_the_number_of_another_client_is_left(rig: ManagedRig) -> None:
    """It is neither of the two that the action changes between."""
    answer = await provide(rig, 4, range(2, 5))
    assert isinstance(answer, Refusal) and (answer.code, rig.writes()) == ("contested", [])


async def test_no_more_than_the_policy_allows(rig: ManagedRig) -> None:
    """Whatever an action says."""
    answer = await provide(rig, 9, range(1, 10))
    assert isinstance(answer, Rejected) and "8" in answer.reason
    assert rig.writes() == []


@pytest.mark.parametrize("names_match", [True, False])
async def test_of_a_deployment_those_with_free_slots_go_first(names_match: bool) -> None:
    """Found by their pods' addresses; where these are unknown, the youngest go, after a checkpoint."""
    rig = ManagedRig("Deployment", managers=4)
    free = rig.kubernetes.names(WORKLOAD)[1]
    rig.cluster.idle = frozenset({free})
    if not names_match:
        rig.cluster.running = lambda: [(name, f"elsewhere-{name}") for name in rig.kubernetes.names(WORKLOAD)]
    assert (await managers(rig)).releasable == (1 if names_match else None)
    assert isinstance(await provide(rig, 3, range(1, 5)), Accepted)
    assert rig.job.checkpoints_triggered == (0 if names_match else 1)
    await managers(rig)
    assert (free in rig.kubernetes.names(WORKLOAD)) is not names_match


async def test_a_checkpoint_comes_before_slots_in_use_go() -> None:
    """Of a StatefulSet the last ones go, whatever runs there."""
    rig = ManagedRig("StatefulSet", managers=4)
    rig.job.observed = rig.job.requested = dict(WANTED)
    assert (await managers(rig)).releasable is None
    assert isinstance(await provide(rig, 3, range(1, 5)), Accepted)
    assert rig.job.checkpoints_triggered == 1


async def test_slots_that_do_not_match_are_named(rig: ManagedRig) -> None:
    """Nothing is counted by a wrong number."""
    rig.cluster.slots_each = 4
    found = await managers(rig)
    assert found.refusal is not None and found.refusal.code == "slots-mismatch"
    assert "4 slots" in found.refusal.sentence and "says 2" in found.refusal.sentence


async def test_a_cluster_that_starts_task_managers_itself_is_refused() -> None:
    """Two would set their number."""
    rig = ManagedRig()
    rig.cluster._rescale = rig.cluster._rescale.model_copy(update={"max_slots": 16})
    found = await managers(rig)
    assert found.refusal is not None and "starts TaskManagers itself" in found.refusal.sentence


def _deleted(rig: ManagedRig) -> None:
    rig.kubernetes.delete("Deployment", WORKLOAD)


def _unreachable(rig: ManagedRig) -> None:
    rig.kubernetes.away = "connection refused"


def _denied(rig: ManagedRig) -> None:
    rig.kubernetes.denied = {"get workloads"}


def _scaled(rig: ManagedRig) -> None:
    rig.kubernetes.autoscalers[WORKLOAD] = "HorizontalPodAutoscaler tm"


def _rolls_out(rig: ManagedRig) -> None:
    rig.kubernetes.report("Deployment", WORKLOAD, updatedReplicas=0)


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (_deleted, "no-managers"),
        (_unreachable, None),
        (_denied, "forbidden"),
        (_scaled, "other-autoscaler"),
        (_rolls_out, "rollout"),
    ],
)
async def test_a_workload_that_takes_no_number_is_named(
    happens: Callable[[ManagedRig], None], code: str | None
) -> None:
    """The job is observed all the same; an outage is no refusal."""
    rig = ManagedRig("Deployment")
    rig.cluster.running = lambda: [("tm", "10.0.0.1")]
    happens(rig)
    found = await rig.driver.observe(rig.subject)
    assert found.runs(rig.before) and found.managers is not None
    assert (found.managers.refusal.code if found.managers.refusal else None) == code
    assert found.managers.refusal is not None or found.managers.reason
    answer = await provide(rig, 4, range(1, 5))
    assert isinstance(answer, Refusal if code else Unanswered) and rig.writes() == []


async def test_another_write_in_between_changes_nothing() -> None:
    """The version that was read is no longer there: decide again."""
    rig = ManagedRig("endpoint")
    rig.supervisor.overwrites = 1
    assert isinstance(await provide(rig, 4, range(1, 5)), TargetChanged)


async def test_the_slots_of_each_task_manager_are_read() -> None:
    """By Flink's shapes: an id and a path with the address; a number that is missing makes all unknown."""
    listed = [
        {"id": "10.0.0.3:6122-a1", "path": "pekko.tcp://flink@10.0.0.3:6122/user/rpc/taskmanager_0", "slotsNumber": 2, "freeSlots": 1},
        {"id": "tm-1-2", "path": "pekko.tcp://flink@tm-1.tm.shop.svc:6122/user/rpc/taskmanager_0", "slotsNumber": 2, "freeSlots": 2},
        {"id": "x", "path": "pekko.tcp://flink@[fd00::1]:6122/user/rpc/taskmanager_0", "slotsNumber": 2, "freeSlots": 0},
    ]  # fmt: skip
    jobs = [{"jid": f"{i}" * 32, "name": "orders", "state": state} for i, state in enumerate(["RUNNING", "FINISHED"])]
    answers = {"/taskmanagers": {"taskmanagers": listed}, "/jobs/overview": {"jobs": jobs}}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=json.dumps(answers[request.url.path])))
    driver = FlinkDriver(FakeClock(NOON), transport=transport)
    found = await driver.registered(subject("Deployment"))
    assert isinstance(found, RegisteredManagers) and not found.is_shared
    assert [(each.host, each.slots, each.free) for each in found.each] == [
        ("10.0.0.3", 2, 1),
        ("tm-1.tm.shop.svc", 2, 2),
        ("fd00::1", 2, 0),
    ]
    listed[0]["freeSlots"] = -1
    assert "slotsNumber, freeSlots" in str(await driver.registered(subject("Deployment")))
    await driver.close()


def test_two_policies_cannot_set_the_managers_of_one_cluster() -> None:
    """Not by one workload, nor by two of one session cluster."""
    own, other = subject("Deployment"), subject("StatefulSet", job="payments")
    assert claims(own) & claims(other) == {("task-managers", "localhost:8081/")}
    assert ("workload", "shop", "Deployment", WORKLOAD) in claims(own)
    assert ("endpoint", "http://supervisor/scale/orders") in claims(subject("endpoint"))


FLINK = {"flink": {"url": "http://jobmanager:8081", "job": "orders"}}
WORKLOADS = {"kubernetes": {"kind": "Deployment", "name": WORKLOAD}}


@pytest.mark.parametrize(
    ("given", "bounds", "said"),
    [
        ({"max": 4}, {}, "name exactly one of kubernetes and endpoint"),
        ({**WORKLOADS, "endpoint": {"url": "http://x"}, "max": 4}, {}, "name exactly one of kubernetes and endpoint"),
        ({**WORKLOADS}, {}, "taskManagers.max"),
        ({**WORKLOADS, "max": 0}, {}, "taskManagers.max"),
        ({**WORKLOADS, "max": 2, "slots": 0}, {}, "taskManagers.slots"),
        ({**WORKLOADS, "max": 2, "slots": 2}, {"min": 5}, "cannot run bounds.min, 5 for each operator"),
        ({"kubernetes": {"name": "tm"}, "max": 2}, {}, "taskManagers.kubernetes.kind"),
        ({"kubernetes": {"kind": "Deployment", "name": "tm", "slots": 2}, "max": 2}, {}, "slots"),
    ],
)
def test_a_policy_that_cannot_hold_is_refused(given: dict[str, object], bounds: Parallelism, said: str) -> None:
    """With the field and the reason."""
    target = {"flink": {"taskManagers": given}}
    with pytest.raises(InvalidPolicy, match=said):
        policy_of("shop/orders", application=FLINK, target=target, objective={"maxLag": "30s"}, bounds=bounds)


def test_a_task_manager_belongs_to_a_pod_by_address_or_name() -> None:
    """One of a headless service has the pod's name as its host."""
    pods = PoolReading(wanted=3, pods=(("tm-0", ("10.0.0.1",)), ("tm-1", ("10.0.0.2",)), ("tm-2", ())))
    used = RegisteredManagers(
        (ManagerSlots("a", "10.0.0.1", 2, 0), ManagerSlots("b", "tm-2.tm.shop.svc", 2, 1), ManagerSlots("c", "10.0.0.2", 2, 2)),
        is_shared=False,
    )  # fmt: skip
    assert free_pods(pods, used) == ["tm-1"]


async def test_the_engine_joins_flink_with_what_runs_the_managers() -> None:
    """Its driver has both pools, and its collector's deployment the slots up to which TaskManagers may come."""
    engines = Engines(Resources(FakeClock(NOON)))
    own = engines.of(TaskManagersEngine)
    assert engines.drivers["task-managers"] is own.driver
    found = await own.driver.observe(subject("Deployment", url="http://127.0.0.1:9"))
    assert not found.reachable and found.managers is not None
    assert found.managers.refusal is not None and found.managers.refusal.code == "namespace-forbidden"
    await engines.close()


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (TOPOLOGY.uniform(18), "more than the policy's 8"),
        (TOPOLOGY.uniform(3), "the next is 4"),
        ({**TOPOLOGY.uniform(4), "sink": 2}, "all operators have the same parallelism"),
    ],
)
async def test_what_no_number_of_managers_gives_in_reactive_mode_is_rejected(wanted: Parallelism, word: str) -> None:
    rig = ManagedRig("Deployment", reactive=True)
    answer = await rig.driver.request(rig.subject, rig.job_id, wanted, rig.before, OPEN)
    assert isinstance(answer, Rejected) and word in answer.reason
    assert rig.writes() == []


async def test_a_reactive_job_waits_from_when_its_slots_are_there() -> None:
    """The wait begins with the last slot; before, the reason is that TaskManagers start."""
    rig = ManagedRig("Deployment", reactive=True)
    await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN)
    starting = await rig.driver.observe(rig.subject)
    assert (starting.resourced_at, starting.all_running, starting.managers) == (None, False, None)
    assert starting.progress is not None
    found = await rig.until(lambda s: s.resourced_at is not None)
    assert found.deployment is not None and found.deployment.requested == rig.wanted != found.deployment.observed


async def test_another_number_of_slots_is_refused_in_reactive_mode() -> None:
    """As outside of it."""
    rig = ManagedRig("Deployment", reactive=True, scheduler="reactive")
    assert (await rig.driver.observe(rig.subject)).refusal is None
    rig.cluster.slots_each = 4
    refusal = (await rig.driver.observe(rig.subject)).refusal
    assert refusal is not None and refusal.code == "slots-mismatch"


async def test_a_task_manager_without_slots_has_just_registered() -> None:
    """Flink lists it with 0 slots until it has reported them: no other number, and no slots yet."""
    rig = ManagedRig()
    there = await rig.cluster.registered(rig.subject)
    assert isinstance(there, RegisteredManagers)
    more = replace(there, each=(*there.each, ManagerSlots("taskmanager-2", "10.0.0.9", 0, 0)))

    async def registered(_subject: Subject) -> RegisteredManagers:
        return more

    rig.cluster.registered = registered  # type: ignore[method-assign]
    found = (await rig.driver.observe(rig.subject)).managers
    assert found is not None and (found.refusal, found.registered_slots) == (None, 2)


@pytest.mark.parametrize(("own_limit", "slots"), [(None, 16), (12, 12)])
async def test_growth_is_limited_by_what_may_be_brought(own_limit: int | None, slots: int) -> None:
    """8 TaskManagers of 2 slots; a cluster that starts them itself keeps its own limit."""

    class Job:
        async def scrape(self) -> Scrape:
            return Scrape("running", "", deployment=deployment(rescale=RescaleSettings(max_slots=own_limit)))

        async def close(self) -> None:
            return None

    target = subject("Deployment").target.managers
    assert target is not None
    found = await ManagedCollector(Job(), target).scrape()
    assert found.deployment is not None and found.deployment.rescale.max_slots == slots
