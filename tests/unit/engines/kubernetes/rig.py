"""Workloads and the job or service that they run, for the suite and the stories of the kubernetes driver."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.unit.engines.kubernetes.memory_kubernetes import NAMESPACE, MemoryKubernetes, TaskManagers
from tests.unit.engines.kubernetes.pod_groups import GROUP, PodGroup, PodProcess
from tests.unit.executor.builders import JOB, NOON, TOPOLOGY
from weir_contracts import Application, Parallelism, ScalingPolicy, Signals, Subject, Target, parse_policy
from weir_engines.driver import Fence, Snapshot, Unfenced
from weir_engines.kubernetes.driver import Answer, KubernetesDriver
from weir_runtime.clock import FakeClock

URL = "http://127.0.0.1:8081"


def service_subject(kind: str, name: str = "orders", *, namespace: str | None = None, **target: Any) -> Subject:
    """A service of one workload."""
    place = {"kind": kind, "name": name, **({"namespace": namespace} if namespace else {}), **target}
    return _subject({"service": {}}, place)


def chain_subject(kind: str, names: Sequence[str], *, namespace: str | None = None) -> Subject:
    """A service of several workloads, each of which reads the one before."""
    listed = [{"kind": kind, "name": name, "inputs": [*names[max(0, i - 1) : i]]} for i, name in enumerate(names)]
    return _subject({"service": {}}, {"workloads": listed, **({"namespace": namespace} if namespace else {})})


def flink_subject(kind: str = "StatefulSet", name: str = "orders", *, job: str = "orders", **more: Any) -> Subject:
    """A Flink job in reactive mode, whose TaskManagers are the pods of a workload."""
    url = more.pop("url", URL)
    return _subject({"flink": {"url": url, "job": job}}, {"kind": kind, "name": name, **more})


def group_subject(
    kind: str, name: str = "orders", *, namespace: str | None = None, group: str = GROUP, slots: int = 1
) -> Subject:
    """A Kafka Streams application whose instances are the pods of a workload."""
    place = {"kind": kind, "name": name, "slots": slots, **({"namespace": namespace} if namespace else {})}
    kafka = {"kafka": {"bootstrapServers": "127.0.0.1:9092"}}
    return _subject({"kafkaStreams": {"applicationId": group}}, place, kafka)


def _subject(application: dict[str, Any], target: dict[str, Any], signals: dict[str, Any] | None = None) -> Subject:
    return Subject(
        "shop/orders",
        Application.model_validate(application),
        Target.model_validate({"kubernetes": target}),
        Signals.model_validate(signals or {}),
    )


def kubernetes_policy(target: dict[str, Any], **spec: Any) -> ScalingPolicy:
    """A policy with that target."""
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": NAMESPACE, "name": "orders", "version": 3},
            "spec": {"target": {"kubernetes": target}, "objective": {"maxLag": "30s"}, "mode": "act", **spec},
        }
    )


def reactive_policy(**spec: Any) -> ScalingPolicy:
    """A policy of a Flink job whose TaskManagers are pods."""
    application = {"flink": {"url": URL, "job": "orders"}}
    return kubernetes_policy({"kind": "Deployment", "name": "taskmanager"}, application=application, **spec)


class MemoryRig:
    """A service whose workloads each have two pods, in virtual time."""

    def __init__(self, kind: str = "Deployment", names: Sequence[str] = ("orders",)) -> None:
        self.kind, self.names = kind, list(names)
        self.clock = FakeClock(NOON)
        self.kubernetes = MemoryKubernetes(self.clock)
        self.pods = {name: self.kubernetes.add(kind, name, 2) for name in names}
        self.cluster = TaskManagers(self.clock)
        self.cluster.kubernetes = self.kubernetes
        self.group = PodGroup(self.clock, self._processes)
        self.driver = self.new_driver()
        version = {"Worker": "shop.example/v1"}.get(kind, "apps/v1")
        if len(names) > 1:
            self.subject = self.by_id = chain_subject(kind, names)
            self.nobody, self.away = (
                chain_subject(kind, ["nobody", *names]),
                chain_subject(kind, names, namespace="away"),
            )
        else:
            self.subject, self.by_id = service_subject(kind), service_subject(kind, apiVersion=version)
            self.nobody, self.away = service_subject(kind, "nobody"), service_subject(kind, namespace="away")
        self.before, self.wanted = dict.fromkeys(names, 2), dict.fromkeys(names, 4)
        self.too_much = dict.fromkeys(names, 40_000)
        self.clock.advance(60)

    @property
    def job_id(self) -> str:
        document = self.kubernetes.objects.document(self.kind, NAMESPACE, self.names[0])
        return str(document["metadata"]["uid"]) if len(self.names) == 1 else self._several

    _several = ""

    def new_driver(self) -> KubernetesDriver:
        """Return a driver that has seen nothing."""
        return KubernetesDriver(
            self.clock,
            self.cluster,
            self.kubernetes,
            [NAMESPACE, "away"],
            groups=self.group,
            checkpoint_seconds=0.05,
        )

    async def _processes(self) -> list[PodProcess]:
        return self.kubernetes.processes()

    async def begin(self) -> "MemoryRig":
        """Read the identity of several workloads."""
        found = await self.driver.observe(self.subject)
        self._several = found.deployment.job_id if found.deployment else ""
        return self

    def written(self) -> int:
        """Return the number of writes."""
        return len(self.kubernetes.writes)

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(100):
            found = await self.driver.observe(self.subject)
            if condition(found):
                return found
            self.clock.advance(0.5)
        raise AssertionError(f"not within 50 s: {found}")

    async def ask(self, wanted: Parallelism, fence: Fence | None = None, version: str | None = None) -> Answer:
        """One request, made for the replicas that are there."""
        found = await self.driver.observe(self.subject)
        assert found.deployment is not None and found.deployment.requested is not None
        expected, job_id = found.deployment.requested, found.deployment.job_id
        return await self.driver.request(
            self.subject, job_id, wanted, expected, fence or Unfenced(), version=version or found.version
        )


class FlinkRig(MemoryRig):
    """A Flink job in reactive mode on two TaskManagers."""

    def __init__(self, kind: str = "StatefulSet", slots: int = 1) -> None:
        super().__init__(kind)
        self.subject, self.by_id = flink_subject(kind, slots=slots), flink_subject(kind, job=JOB, slots=slots)
        self.nobody = flink_subject(kind, job="nobody", slots=slots)
        self.away = flink_subject(kind, url="http://127.0.0.1:1", slots=slots)
        self.cluster.away["http://127.0.0.1:1"] = "connection refused"
        self.before, self.wanted = TOPOLOGY.uniform(2 * slots), TOPOLOGY.uniform(4 * slots)
        self.too_much = dict.fromkeys(TOPOLOGY.names, 121)
        self.job = self.cluster.add(self.subject, TOPOLOGY, self.before, JOB)
        self.clock.advance(60)

    @property
    def job_id(self) -> str:
        return JOB


class GroupRig(MemoryRig):
    """A Kafka Streams application of two pods."""

    def __init__(self, kind: str = "StatefulSet", slots: int = 1, **group: Any) -> None:
        super().__init__(kind)
        self.group.threads = slots
        for name, value in group.items():
            setattr(self.group, name, value)
        self.subject = self.by_id = group_subject(kind, slots=slots)
        self.nobody, self.away = (
            group_subject(kind, "nobody", slots=slots),
            group_subject(kind, namespace="away", slots=slots),
        )
        self.before, self.wanted = {GROUP: 2 * slots}, {GROUP: 4 * slots}
        self.too_much = {GROUP: 40_000}

    @property
    def job_id(self) -> str:
        return GROUP

    async def restart(self, name: str) -> None:
        self.kubernetes.restart(self.kind, "orders", name)

    def restarts(self) -> int:
        return len(self.kubernetes.evicted)

    def present(self) -> set[str]:
        return set(self.group.members)

    def lose_an_answer(self) -> None:
        self.kubernetes.lost_answers = 1
