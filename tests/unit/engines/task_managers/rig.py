"""A Flink cluster in memory whose TaskManagers are pods, or the instances of an endpoint, in virtual time."""

from collections.abc import Callable
from typing import Any

from tests.unit.engines.endpoint.memory_endpoint import MemoryGroups, Supervisor
from tests.unit.engines.kubernetes.memory_kubernetes import NAMESPACE, MemoryKubernetes
from tests.unit.engines.memory_jobs import MemoryDriver
from tests.unit.executor.builders import JOB, NOON, TOPOLOGY
from weir_contracts import Application, Parallelism, RescaleSettings, Signals, Subject, Target
from weir_engines.driver import Snapshot
from weir_engines.endpoint.driver import EndpointDriver
from weir_engines.flink.driver import RegisteredManagers
from weir_engines.flink.metrics import ManagerSlots
from weir_engines.task_managers.driver import TaskManagersDriver
from weir_engines.task_managers.pools import EndpointPool, KubernetesPool
from weir_runtime.clock import FakeClock

WORKLOAD = "taskmanagers"
URL, AWAY = "http://127.0.0.1:8081", "http://127.0.0.1:1"
BEFORE: Parallelism = {"orders": 2, "enrich": 2, "sink": 1}
WANTED: Parallelism = {"orders": 2, "enrich": 8, "sink": 4}


class FlinkCluster(MemoryDriver):
    """A cluster whose TaskManagers are those that run: the job's slots are the first ones, in their order."""

    running: Callable[[], list[tuple[str, str]]]
    """Returns name and host of each TaskManager that has started."""
    slots_each = 2
    is_shared = False
    idle: frozenset[str] | None = None
    """TaskManagers without slots in use; None: those behind the job's slots."""

    async def observe(self, subject: Subject) -> Snapshot:
        for job in self.jobs.values():
            job.slots = max(1, self.slots_each * len(self.running()))
        return await super().observe(subject)

    async def registered(self, subject: Subject) -> RegisteredManagers | str:
        url = str(subject.flink.url).rstrip("/")
        if url in self.away:
            return self.away[url]
        used = max((max(job.observed.values()) for job in self.jobs.values()), default=0)
        found = []
        for name, host in self.running():
            taken = min(self.slots_each, used)
            if self.idle is not None:
                taken = 0 if name in self.idle else self.slots_each
            used -= taken
            found.append(ManagerSlots(f"{host}:6122-a1", host, self.slots_each, self.slots_each - taken))
        return RegisteredManagers(tuple(found), self.is_shared)


def subject(kind: str, *, url: str = URL, job: str = "orders", **managers: Any) -> Subject:
    """A Flink job with TaskManagers of 2 slots, at most 8."""
    runs = (
        {"endpoint": {"url": "http://supervisor/scale/orders"}}
        if kind == "endpoint"
        else {"kubernetes": {"kind": kind, "name": WORKLOAD}}
    )
    return Subject(
        "shop/orders",
        Application.model_validate({"flink": {"url": url, "job": job}}),
        Target.model_validate({"flink": {"taskManagers": {**runs, "slots": 2, "max": 8, **managers}}}),
        Signals(),
    )


class ManagedRig:
    """A job at parallelism 2 on one TaskManager of two slots. In `reactive` mode it takes all slots of its TaskManagers."""

    too_much = dict.fromkeys(TOPOLOGY.names, 121)
    job_id = JOB

    def __init__(
        self, kind: str = "Deployment", managers: int = 1, *, reactive: bool = False, scheduler: str = "adaptive"
    ) -> None:
        self.kind = kind
        self.clock = FakeClock(NOON)
        self.kubernetes = MemoryKubernetes(self.clock)
        self.supervisor = Supervisor(self.clock, replicas=managers)
        if kind != "endpoint":
            self.pods = self.kubernetes.add(kind, WORKLOAD, managers)
        settings = RescaleSettings(
            scheduler=scheduler, cooldown_seconds=1, stabilization_seconds=1, max_trigger_delay_seconds=0
        )
        self.cluster = FlinkCluster(self.clock, settings)
        self.cluster.running = self._running
        self.cluster.away[AWAY] = "connection refused"
        mode = {"reactive": True} if reactive else {}
        self.subject, self.by_id = subject(kind, **mode), subject(kind, job=JOB, **mode)
        self.nobody, self.away = subject(kind, job="nobody", **mode), subject(kind, url=AWAY, **mode)
        self.before, self.wanted = BEFORE, WANTED
        if reactive:
            self.before, self.wanted = TOPOLOGY.uniform(2 * managers), TOPOLOGY.uniform(2 * managers + 6)
        self.job = self.cluster.add(self.subject, TOPOLOGY, self.before, JOB)
        if reactive:
            self.job.requested = TOPOLOGY.uniform(120)
        self.driver = self.new_driver()
        self.clock.advance(60)

    def new_driver(self) -> TaskManagersDriver:
        """Return a driver that has seen nothing."""
        endpoints = EndpointDriver(self.clock, MemoryGroups(self.supervisor), transport=self.supervisor.transport)
        pools = {
            "kubernetes": KubernetesPool(self.clock, self.kubernetes, [NAMESPACE]),
            "endpoint": EndpointPool(self.clock, endpoints.endpoint),
        }
        return TaskManagersDriver(self.clock, self.cluster, pools, checkpoint_seconds=0.05)

    def _running(self) -> list[tuple[str, str]]:
        if self.kind == "endpoint":
            self.supervisor._control()
            return [(name, f"host-{name}") for name in self.supervisor._running()]
        self.kubernetes._control(self.kind, WORKLOAD)
        return [(pod.pod, pod.address) for pod in self.kubernetes.processes()]

    def lose_one(self, start_seconds: float) -> None:
        """End a TaskManager; what runs it starts another one in its place, which takes so long."""
        if self.kind == "endpoint":
            self.supervisor.ready_seconds = start_seconds
            self.supervisor.kill(self.supervisor._running()[-1])
        else:
            self.pods.ready_seconds = start_seconds
            self.kubernetes.restart(self.kind, WORKLOAD, self.kubernetes.names(WORKLOAD)[-1])

    def writes(self) -> list[int]:
        """Each number of TaskManagers that was requested."""
        if self.kind == "endpoint":
            return [replicas for replicas, _ in self.supervisor.puts]
        return [replicas for _, replicas in self.kubernetes.writes]

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(100):
            found = await self.driver.observe(self.subject)
            if condition(found):
                return found
            self.clock.advance(0.5)
        raise AssertionError(f"not within 50 s: {found}")
