"""The docker driver: its suite in memory, and what it does when only half of it works."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from threading import Event

import pytest
from weir_contracts import RescaleSettings

from services.executor.adapters.docker import DockerDriver
from services.executor.adapters.docker_scaling import Container, Daemon
from services.executor.core.deadlines import checkpoint_is_due, rescale_limit
from services.executor.core.gate import admit
from services.executor.core.observed import Accepted, PolicyReading, Refusal, Rejected, Unanswered
from services.executor.core.rules import Rules
from services.executor.driver import Unfenced
from tests.unit.executor.builders import JOB, TOPOLOGY, after, analysis, deployment, plan, policy, snapshot
from tests.unit.executor.daemon_suite import DaemonSuite
from tests.unit.executor.docker_rig import PROJECT, SERVICE, DockerRig, docker_policy, docker_subject, groups
from tests.unit.executor.driver_suite import Closed, DriverSuite
from tests.unit.executor.memory_docker import MemoryDaemon
from tests.unit.executor.test_gate import context


class MemoryRig:
    """Two containers of a service in memory."""

    def __init__(self) -> None:
        self.daemon: Daemon = (memory := MemoryDaemon())
        self.project, self.service, self._memory = PROJECT, SERVICE, memory
        for number in (1, 2):
            memory.add(PROJECT, SERVICE, number)
        memory.add(PROJECT, "jobmanager", 1)
        memory.add("other", SERVICE, 1)

    def takes_name(self, number: int) -> None:
        self._memory.names.add(f"{PROJECT}-{SERVICE}-{number}")

    def away(self) -> Daemon:
        self._memory.away = "connection refused"
        return self._memory


class TestDaemonInMemory(DaemonSuite):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig()


class TestDriverInMemory(DriverSuite):
    @pytest.fixture
    async def rig(self) -> AsyncIterator[DockerRig]:
        rig = DockerRig()
        yield rig
        await rig.driver.close()


@pytest.fixture
async def rig() -> AsyncIterator[DockerRig]:
    rig = DockerRig(containers=2)
    yield rig
    await rig.driver.close()


async def test_the_last_numbers_are_removed(rig: DockerRig) -> None:
    """From two to four and to one: all created before one starts, all stopped before one is removed, a checkpoint
    first."""
    assert isinstance(await rig.ask(TOPOLOGY.uniform(4)), Accepted)
    assert rig.states() == [(1, "running"), (2, "running"), (3, "running"), (4, "running")]
    assert [call for call, _ in rig.did("copy", "start")] == ["copy", "copy", "start", "start"]
    assert rig.job.checkpoints_triggered == 0
    await rig.driver.trigger_checkpoint(rig.subject, JOB)
    await rig.until(lambda s: s.runs(TOPOLOGY.uniform(4)))
    assert isinstance(await rig.ask(TOPOLOGY.uniform(1)), Accepted)
    assert rig.states() == [(1, "running")]
    assert [call for call, _ in rig.did("stop", "remove")] == ["stop"] * 3 + ["remove"] * 3
    assert rig.job.checkpoints_triggered == 2
    assert (await rig.until(lambda s: s.runs(TOPOLOGY.uniform(1)))).deployment is not None


@pytest.mark.parametrize(
    ("call", "wanted", "left"),
    [
        ("copy", 4, [(1, "running"), (2, "running")]),
        ("start", 4, [(1, "running"), (2, "running")]),
        ("stop", 1, [(1, "running"), (2, "running")]),
    ],
)
async def test_a_refusal_of_docker_keeps_the_number_of_containers(
    rig: DockerRig, call: str, wanted: int, left: list[tuple[int, str]]
) -> None:
    """The reason is Docker's, and nothing of it is left behind."""
    rig.docker.refuses[call] = "no space left on device"
    answer = await rig.ask(TOPOLOGY.uniform(wanted))
    assert answer == Rejected("no space left on device")
    rig.docker.refuses.clear()
    assert rig.states() == left
    found = await rig.driver.observe(rig.subject)
    assert found.deployment is not None and found.deployment.requested == TOPOLOGY.uniform(2)


@pytest.mark.parametrize("changes", range(4))
async def test_a_lost_partition_ends_the_request(rig: DockerRig, changes: int) -> None:
    """Each change passes the fence: after the loss nothing is changed, not even undone."""
    answer = await rig.ask(TOPOLOGY.uniform(4), fence=Closed(None, changes))
    assert answer == Unanswered("not confirmed")
    assert [call for call, _ in rig.did("copy", "start", "stop", "remove")] == ["copy", "copy", "start"][:changes]


@pytest.mark.parametrize("changes", range(6))
async def test_a_lost_partition_leaves_containers_running(rig: DockerRig, changes: int) -> None:
    """In a scale-down no container is stopped or removed after the loss."""
    rig.docker.add(PROJECT, SERVICE, 3)
    rig.docker.add(PROJECT, SERVICE, 4)
    answer = await rig.ask(TOPOLOGY.uniform(1), fence=Closed(None, changes))
    assert answer == Unanswered("not confirmed")
    assert len(rig.did("start", "stop", "remove")) == changes


async def test_an_outage_of_docker_is_unanswered(rig: DockerRig) -> None:
    """The request may be repeated; the target is unreachable."""
    rig.docker.away = "connection refused"
    assert await rig.ask(TOPOLOGY.uniform(3)) == Unanswered("connection refused")
    found = await rig.driver.observe(rig.subject)
    assert (found.reachable, found.reason) == (False, "connection refused")


async def test_an_occupied_name_is_skipped(rig: DockerRig) -> None:
    """A foreign container has the next name: the one after it is used; without a free name the request is refused."""
    rig.docker.names = {f"{PROJECT}-{SERVICE}-3"}
    assert isinstance(await rig.ask(TOPOLOGY.uniform(3)), Accepted)
    assert rig.states() == [(1, "running"), (2, "running"), (4, "running")]
    rig.docker.names = {f"{PROJECT}-{SERVICE}-{n}" for n in range(50)}
    answer = await rig.ask(TOPOLOGY.uniform(4))
    assert isinstance(answer, Rejected) and "taken" in answer.reason


async def test_containers_that_never_started_do_not_count(rig: DockerRig) -> None:
    """An executor was killed between creating and starting: nothing was requested yet, and a repeated request starts
    them."""
    rig.docker.add(PROJECT, SERVICE, 3, "created")
    found = await rig.driver.observe(rig.subject)
    assert found.deployment is not None and found.deployment.requested == TOPOLOGY.uniform(2)
    assert isinstance(await rig.ask(TOPOLOGY.uniform(3)), Accepted)
    assert rig.states() == [(1, "running"), (2, "running"), (3, "running")]


async def test_stopped_containers_are_started_again(rig: DockerRig) -> None:
    """A TaskManager that ended is still requested: a request for the same number starts it, and the gate admits that."""
    two = rig.docker.add(PROJECT, SERVICE, 3, "exited")
    found = await rig.driver.observe(rig.subject)
    assert found.restartable and found.deployment is not None and found.deployment.requested == TOPOLOGY.uniform(3)
    made_for = found.deployment.ref().model_copy(update={"requested": None})
    wanted = plan(TOPOLOGY.uniform(3), deployment=made_for)
    decision = admit(wanted, context(snapshot=found, policy=PolicyReading(True, docker_policy())))
    assert decision is not None and not isinstance(decision, Refusal), decision
    assert isinstance(await rig.ask(TOPOLOGY.uniform(3)), Accepted)
    assert rig.docker.all[two.id].state == "running"


async def test_a_service_without_containers_is_not_scaled(rig: DockerRig) -> None:
    """There is no container to copy: compose starts the first one."""
    subject = docker_subject(service="nobody")
    answer = await rig.ask(TOPOLOGY.uniform(3), subject)
    assert isinstance(answer, Rejected) and "'nobody'" in answer.reason
    found = await rig.driver.observe(subject)
    assert (found.reachable, found.deployment) == (True, None) and "start it with docker compose" in found.reason


async def test_only_listed_projects_are_changed(rig: DockerRig) -> None:
    """The sentence names the setting, and Docker gets no request."""
    subject = docker_subject(project="payroll")
    answer = await rig.ask(TOPOLOGY.uniform(3), subject)
    assert isinstance(answer, Rejected) and "WEIR_EXECUTOR_DOCKER_PROJECTS" in answer.reason
    refusal = (await rig.driver.observe(subject)).refusal
    assert refusal is not None and "'payroll'" in refusal.sentence
    assert rig.docker.calls == []


async def test_without_the_setting_it_is_off(rig: DockerRig) -> None:
    """Plans for docker targets are refused with the setting's name."""
    off = DockerDriver(rig.clock, rig.cluster, None)
    found = await off.observe(rig.subject)
    decision = admit(plan(TOPOLOGY.uniform(3)), context(snapshot=found))
    assert isinstance(decision, Refusal)
    assert (decision.code, "WEIR_EXECUTOR_DOCKER_PROJECTS" in decision.sentence) == ("unsupported", True)
    assert isinstance(await off.request(rig.subject, JOB, TOPOLOGY.uniform(3), rig.before, Unfenced()), Rejected)
    await off.close()


@pytest.mark.parametrize(
    ("wanted", "slots", "expected_text"),
    [
        ({"orders": 1, "enrich": 4, "sink": 2}, 1, "all operators have the same parallelism"),
        (TOPOLOGY.uniform(5), 2, "the next is 6"),
        (dict.fromkeys(TOPOLOGY.names, 121), 1, "121"),
    ],
)
async def test_a_parallelism_that_containers_cannot_give_is_refused(
    wanted: dict[str, int], slots: int, expected_text: str
) -> None:
    """One parallelism for all operators, a multiple of what a container brings."""
    rig = DockerRig(containers=2, slots=slots)
    answer = await rig.ask(wanted)
    assert isinstance(answer, Rejected) and expected_text in answer.reason
    await rig.driver.close()


async def test_a_job_with_lower_requirements_is_rejected(rig: DockerRig) -> None:
    """Outside reactive mode its own requirements are the limit."""
    rig.job.requested = TOPOLOGY.uniform(2)
    answer = await rig.ask(TOPOLOGY.uniform(3))
    assert isinstance(answer, Rejected) and "reactive mode" in answer.reason


@pytest.mark.parametrize(
    ("number", "slots", "parallelism", "containers", "reached"),
    [(1, 1, 3, 3, 3), (1, 4, 5, 2, 8), (2, 1, 3, 6, 3), (2, 4, 3, 2, 4), (3, 2, 1, 3, 2), (2, 3, 1, 2, 3)],
)
def test_slot_sharing_groups_share_evenly(
    number: int, slots: int, parallelism: int, containers: int, reached: int
) -> None:
    """So many containers that each group gets the same number of slots."""
    unit, topology = docker_subject(slots=slots).unit, groups(number)
    assert unit is not None
    assert unit.instances_for(topology, parallelism) == containers
    assert unit.parallelism_of(topology, containers) == reached


async def test_a_checkpoint_is_due_when_the_slots_have_registered(rig: DockerRig) -> None:
    """A container takes seconds to register; an earlier checkpoint does not count."""
    await rig.ask(TOPOLOGY.uniform(3))
    rig.job.waits_for_checkpoint, rig.job.checkpoint_at = True, None
    found = await rig.driver.observe(rig.subject)
    assert found.resourced_at == rig.clock.now()
    registered = snapshot(checkpoint_completed_at=after(5))
    assert not checkpoint_is_due(registered, after(0), after(9))
    assert checkpoint_is_due(replace(registered, resourced_at=after(8)), after(0), after(9))


def test_containers_get_time_to_start() -> None:
    """In addition to the time limit of a rescale with existing slots."""
    rules = Rules(deadline_floor_seconds=60.0, container_start_seconds=45.0)
    here = rescale_limit(deployment(), analysis(policy=policy()), rules)
    there = rescale_limit(deployment(), analysis(policy=docker_policy()), rules)
    assert (there - here).total_seconds() == 45.0


def test_task_managers_that_the_cluster_starts_get_time_to_start() -> None:
    """As containers that Weir starts."""
    rules = Rules(deadline_floor_seconds=60.0, container_start_seconds=45.0)
    starting = deployment(rescale=RescaleSettings(scheduler="adaptive", max_slots=2**31 - 1))
    standalone = deployment(rescale=RescaleSettings(scheduler="adaptive"))
    limits = [rescale_limit(each, analysis(policy=policy()), rules) for each in (starting, standalone)]
    assert (limits[0] - limits[1]).total_seconds() == 45.0


async def test_shutdown_does_not_wait_for_docker(rig: DockerRig) -> None:
    """A container may take longer to stop than this process: the call continues in its thread, and its result is
    dropped."""
    stopping, enough = Event(), Event()

    def stop(_: Container) -> None:
        stopping.set()
        enough.wait(10)

    rig.docker.stop = stop  # type: ignore[method-assign]
    request = asyncio.create_task(rig.ask(TOPOLOGY.uniform(1)))
    while not stopping.is_set():  # noqa: ASYNC110 - a thread sets it
        await asyncio.sleep(0.005)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "docker"] == [True]
    enough.set()


async def test_a_container_that_no_slot_sharing_group_uses_is_not_another_clients() -> None:
    """Five slots give two groups a parallelism of 2, as four do: the request counts from there."""
    topology = groups(2)
    rig = DockerRig(containers=5, topology=topology)
    answer = await rig.driver.request(rig.subject, JOB, topology.uniform(3), topology.uniform(2), Unfenced())
    assert isinstance(answer, Accepted), answer
    assert len(rig.states()) == 6
