"""Docker in memory, and a cluster whose job takes the slots of its containers. They pass the suites that the real ones
pass."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from weir_contracts import Parallelism, RescaleSettings, Subject, Topology

from runtime.clock import Clock
from services.executor.adapters.docker_scaling import Container, DockerAway, DockerRefused, NameTaken
from services.executor.core.observed import Snapshot
from tests.unit.executor.memory_cluster import MemoryDriver, MemoryJob

_MAX_PARALLELISM = 32768


class MemoryDaemon:
    """Containers by id. `away` makes it unreachable, `refuses[call]` lets a call fail for good, `names` are taken by
    others."""

    def __init__(self) -> None:
        self.services: dict[str, tuple[str, str]] = {}
        self.all: dict[str, Container] = {}
        self.away = ""
        self.refuses: dict[str, str] = {}
        self.names: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self._ids = count(1)

    def add(self, project: str, service: str, number: int, state: str = "running") -> Container:
        """A container as compose makes it."""
        container = Container(f"{next(self._ids):064x}", f"{project}-{service}-{number}", number, state)
        self.all[container.id], self.services[container.id] = container, (project, service)
        return container

    def containers(self, project: str, service: str) -> list[Container]:
        self._answer("list", service)
        return [container for id, container in self.all.items() if self.services[id] == (project, service)]

    def copy(self, original: Container, number: int) -> Container:
        project, service = self.services.get(original.id, ("", ""))
        name = f"{project}-{service}-{number}"
        self._answer("copy", name)
        if original.id not in self.all:
            raise DockerRefused(f"there is no container {original.name}")
        if name in self.names or any(container.name == name for container in self.all.values()):
            raise NameTaken(f"the name {name} is taken")
        return self.add(project, service, number, "created")

    def start(self, container: Container) -> None:
        self._answer("start", container.name)
        if container.id not in self.all:
            raise DockerRefused(f"there is no container {container.name}")
        self._become(container, "running")

    def stop(self, container: Container) -> None:
        self._answer("stop", container.name)
        if container.id in self.all and self.all[container.id].state != "created":
            self._become(container, "exited")

    def remove(self, container: Container) -> None:
        self._answer("remove", container.name)
        self.all.pop(container.id, None)

    def close(self) -> None:
        return None

    def running(self, project: str, service: str) -> int:
        """Containers of a service that run."""
        return sum(1 for id, c in self.all.items() if self.services[id] == (project, service) and c.state == "running")

    def _become(self, container: Container, state: str) -> None:
        self.all[container.id] = replace(self.all[container.id], state=state)

    def _answer(self, call: str, what: str) -> None:
        self.calls.append((call, what))
        if self.away:
            raise DockerAway(self.away)
        if call in self.refuses:
            raise DockerRefused(self.refuses[call])


class ReactiveCluster(MemoryDriver):
    """Clusters in which a docker target's job takes every slot of the service's running containers (one slot-sharing
    group)."""

    def __init__(
        self, clock: Clock, running: Callable[[str, str], int], rescale: RescaleSettings | None = None
    ) -> None:
        """`running` returns how many containers of a project's service run."""
        super().__init__(clock, rescale)
        self._running = running

    def add(self, subject: Subject, topology: Topology, parallelism: Parallelism, job_id: str = "a" * 32) -> MemoryJob:
        job = super().add(subject, topology, parallelism, job_id)
        job.requested = topology.uniform(_MAX_PARALLELISM)
        return job

    async def observe(self, subject: Subject) -> Snapshot:
        slots = await self.slots(subject)
        job = self._find(str(subject.flink.url).rstrip("/"), subject.flink.job)
        if job is not None and slots:
            job.slots = slots
        return await super().observe(subject)

    async def slots(self, subject: Subject) -> int | None:
        """Slots that are registered."""
        docker = subject.target.docker
        return None if docker is None else docker.slots * self._running(docker.project, docker.service)
