"""A compose service of TaskManagers and the job that takes their slots, for the driver's stories."""

from collections.abc import Callable
from typing import Any

from weir_contracts import Operator, Parallelism, ScalingPolicy, Subject, Topology, parse_policy

from runtime.clock import FakeClock
from services.executor.adapters.docker import DockerDriver
from services.executor.core.observed import Accepted, Refusal, Rejected, Snapshot, Unanswered
from services.executor.driver import Fence, Unfenced
from tests.unit.executor.builders import JOB, NOON, TOPOLOGY, subject
from tests.unit.executor.memory_docker import MemoryDaemon, ReactiveCluster

PROJECT, SERVICE = "shop", "taskmanager"


def docker_subject(**changes: Any) -> Subject:
    """The job `orders` on `shop`'s TaskManagers."""
    place = {"project": PROJECT, "service": SERVICE, **changes}
    where = {name: place.pop(name) for name in ("url", "job") if name in place}
    return subject(**where, docker=place)


def groups(number: int) -> Topology:
    """Operators that are each in another slot sharing group."""
    operators = [
        Operator(name=f"o{i}", id=f"v{i}", max_parallelism=120, slot_sharing_group=f"g{i}") for i in range(number)
    ]
    return Topology(operators=operators)


class DockerRig:
    """`containers` of them run, each with `slots`, and so does the job."""

    def __init__(self, containers: int = 1, slots: int = 1, topology: Topology = TOPOLOGY) -> None:
        self.clock = FakeClock(NOON)
        self.docker = MemoryDaemon()
        for number in range(1, containers + 1):
            self.docker.add(PROJECT, SERVICE, number)
        self.docker.add(PROJECT, "jobmanager", 1)
        self.cluster = ReactiveCluster(self.clock, self.docker.running)
        self.driver = DockerDriver(self.clock, self.cluster, self.docker, [PROJECT], checkpoint_seconds=0.05)
        self.subject, self.by_id = docker_subject(slots=slots), docker_subject(job=JOB, slots=slots)
        self.nobody = docker_subject(job="nobody", slots=slots)
        self.away = docker_subject(url="http://127.0.0.1:1", slots=slots)
        self.cluster.away["http://127.0.0.1:1"] = "connection refused"
        self.before = topology.uniform(containers * slots)
        self.wanted, self.too_much = topology.uniform(4), dict.fromkeys(topology.names, 121)
        self.slots = slots
        self.job_id, self.job = JOB, self.cluster.add(self.subject, topology, self.before, JOB)
        self.clock.advance(60)

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(100):
            found = await self.driver.observe(self.subject)
            if condition(found):
                return found
            self.clock.advance(0.5)
        raise AssertionError(f"not within 50 s: {found}")

    async def ask(
        self, wanted: Parallelism, of: Subject | None = None, fence: Fence | None = None
    ) -> Accepted | Rejected | Unanswered | Refusal:
        """One request, made for as many containers as are there."""
        there = sum(each.state != "created" for each in self.docker.all.values()) - 1  # the JobManager's
        expected = TOPOLOGY.uniform(max(1, there) * self.slots)
        return await self.driver.request(of or self.subject, JOB, wanted, expected, fence or Unfenced())

    def states(self) -> list[tuple[int, str]]:
        """Number and state of each TaskManager."""
        return [(each.number, each.state) for each in self.docker.containers(PROJECT, SERVICE)]

    def did(self, *calls: str) -> list[tuple[str, str]]:
        """Calls of these kinds that Docker received."""
        return [(call, what) for call, what in self.docker.calls if call in calls]


def docker_policy(**spec: Any) -> ScalingPolicy:
    """A policy with that target."""
    place = {"url": "http://127.0.0.1:8081", "job": "orders", "project": PROJECT, "service": SERVICE}
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "shop", "name": "orders", "version": 3},
            "spec": {"target": {"docker": place}, "objective": {"maxLag": "30s"}, "mode": "act", **spec},
        }
    )
