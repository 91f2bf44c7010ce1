"""Workloads of a real API server and the executor's driver, with the rights of its role."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from testbed.kubernetes import KubernetesCluster
from testbed.kubernetes_access import Access as UserAccess
from testbed.process import free_port
from tests.kubernetes.workers import GROUP, worker
from tests.kubernetes.workloads import deployment
from tests.unit.engines.kubernetes.pod_groups import GROUP as CONSUMERS
from tests.unit.engines.kubernetes.pod_groups import PodGroup, PodProcess, no_pods
from tests.unit.engines.kubernetes.rig import chain_subject, group_subject, service_subject
from tests.unit.engines.memory_jobs import MemoryDriver
from weir_contracts import Parallelism, Subject
from weir_engines.driver import Driver, Fence, Snapshot, TargetChanged, Unfenced
from weir_engines.kubernetes.api import Access, ApiFailed, Call, KubernetesApi
from weir_engines.kubernetes.driver import Answer, KubernetesDriver
from weir_engines.kubernetes.scaling import ApiWorkloads
from weir_runtime.clock import SystemClock

DEADLINE_SECONDS = 60.0
KINDS = ["deployments", "statefulsets"]
RULES: list[dict[str, Any]] = [
    {"apiGroups": ["apps"], "resources": KINDS, "verbs": ["get"]},
    {"apiGroups": ["apps"], "resources": [f"{kind}/scale" for kind in KINDS], "verbs": ["update"]},
    {"apiGroups": [GROUP], "resources": ["workers"], "verbs": ["get"]},
    {"apiGroups": [GROUP], "resources": ["workers/scale"], "verbs": ["get", "update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list"]},
    {"apiGroups": ["keda.sh"], "resources": ["scaledobjects"], "verbs": ["list"]},
]
"""Rights of the executor in a namespace of workloads."""
_numbers = count(1)


def api(access: UserAccess, *, url: str = "", timeout_seconds: float = 5.0) -> KubernetesApi:
    """Return the client of a user."""
    return KubernetesApi(Access(url or access.url, access.ca_file, access.token_file), timeout_seconds=timeout_seconds)


def unanswered(access: UserAccess) -> KubernetesApi:
    """Return the client of an API server that does not answer."""
    return api(access, url=f"https://127.0.0.1:{free_port()}")


async def until_observed(
    driver: Driver, subject: Subject, condition: Callable[[Snapshot], bool], seconds: float
) -> Snapshot:
    """Return the first snapshot that fulfils a condition."""
    found = None
    try:
        async with asyncio.timeout(seconds):
            while not condition(found := await driver.observe(subject)):  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {found}") from None
    return found


class WithAway:
    """Mixed into a driver: `_other`, whose API server does not answer, serves the namespace `away`."""

    _other: Any

    async def close(self) -> None:
        await super().close()  # type: ignore[misc]
        await self._other.close()
        await asyncio.sleep(0.1)  # TLS connections end in later cycles of the event loop

    async def observe(self, subject: Subject) -> Snapshot:
        found: Snapshot
        if subject.namespace == "away":
            found = await self._other.observe(subject)
        else:
            found = await super().observe(subject)  # type: ignore[misc]
        return found

    async def request(self, subject: Subject, *given: Any, **named: Any) -> Any:
        if subject.namespace == "away":
            return await self._other.request(subject, *given, **named)
        answer = await super().request(subject, *given, **named)  # type: ignore[misc]
        if isinstance(answer, TargetChanged) and named.get("version") is None:
            # A controller wrote the status between reading and writing: the executor decides again.
            return await super().request(subject, *given, **named)  # type: ignore[misc]
        return answer


class Elsewhere(WithAway, KubernetesDriver):
    """The driver, with an API server that does not answer for the namespace `away`."""

    def __init__(
        self, access: UserAccess, namespace: str, *, groups: PodGroup | None = None, timeout_seconds: float = 5.0
    ) -> None:
        clock = SystemClock()
        workloads = ApiWorkloads(api(access, timeout_seconds=timeout_seconds))
        groups = groups or PodGroup(clock, no_pods)
        super().__init__(clock, MemoryDriver(clock), workloads, [namespace], groups=groups)  # type: ignore[arg-type]
        away = ApiWorkloads(unanswered(access))
        self._other = KubernetesDriver(clock, MemoryDriver(clock), away, ["away"], groups=groups)  # type: ignore[arg-type]

    async def restart(self, subject: Subject, *given: Any, **named: Any) -> Answer:
        if subject.namespace == "away":
            return await self._other.restart(subject, *given, **named)  # type: ignore[no-any-return]
        return await super().restart(subject, *given, **named)


class ApiRig:
    """Workloads of two pods each."""

    job_id: str

    def __init__(
        self, cluster: KubernetesCluster, access: UserAccess, namespace: str, kind: str, workloads: int = 1
    ) -> None:
        self.cluster, self.kind, self.namespace = cluster, kind, namespace
        self.names = [f"orders-{next(_numbers)}" for _ in range(workloads)]
        self.access = access
        self.driver = self.new_driver()
        self.subject = self._subject(self.names, namespace)
        version = f"{GROUP}/v1" if kind == "Worker" else "apps/v1"
        single = workloads == 1
        self.by_id = service_subject(kind, self.names[0], namespace=namespace, apiVersion=version)
        self.by_id = self.by_id if single else self.subject
        self.nobody, self.away = (
            self._subject(["nobody", *self.names[1:]], namespace),
            self._subject(self.names, "away"),
        )
        self.before, self.wanted = dict.fromkeys(self.names, 2), dict.fromkeys(self.names, 4)
        self.too_much = dict.fromkeys(self.names, 40_000)

    def new_driver(self) -> Elsewhere:
        """Return a driver that has seen nothing."""
        return Elsewhere(self.access, self.namespace)

    def _subject(self, names: Sequence[str], namespace: str) -> Subject:
        made = (
            service_subject(self.kind, names[0], namespace=namespace)
            if len(names) == 1
            else chain_subject(self.kind, names, namespace=namespace)
        )
        return replace(made, id=f"shop/{names[0]}")

    def create(self, replicas: int = 2, **behaviour: str) -> None:
        """Create the workloads."""
        made = [
            worker(name, replicas) if self.kind == "Worker" else deployment(name, replicas, kind=self.kind, **behaviour)
            for name in self.names
        ]
        self.cluster.apply(*made, namespace=self.namespace)

    async def begin(self, **behaviour: str) -> "ApiRig":
        """Create the workloads and wait until their pods are ready."""
        await asyncio.to_thread(lambda: self.create(**behaviour))
        found = await self.until(lambda s: s.runs(self.before) and s.refusal is None)
        assert found.deployment is not None
        self.job_id = found.deployment.job_id
        return self

    async def until(self, condition: Callable[[Snapshot], bool], *, seconds: float = DEADLINE_SECONDS) -> Snapshot:
        return await until_observed(self.driver, self.subject, condition, seconds)

    async def ask(self, wanted: Parallelism, fence: Fence | None = None) -> Answer:
        """Send one request for the replicas that are there.

        Without a fence it is decided again, as by the executor, while the object changes: controllers write its status.
        """
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                answer = await self._ask(wanted, fence or Unfenced())
                if fence is not None or not isinstance(answer, TargetChanged):
                    return answer

    async def _ask(self, wanted: Parallelism, fence: Fence) -> Answer:
        found = await self.driver.observe(self.subject)
        assert found.deployment is not None and found.deployment.requested is not None, found.reason
        expected, job_id = found.deployment.requested, found.deployment.job_id
        return await self.driver.request(self.subject, job_id, wanted, expected, fence, version=found.version)

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments)

    def written(self) -> int:
        """Return the number of accepted writes."""
        return [code for _, code in self.writes()].count(200)

    def writes(self) -> list[tuple[str, int]]:
        """Return name and status of each write through a scale subresource by the executor, oldest first."""
        user = f"system:serviceaccount:{self.namespace}:weir-executor"
        return [
            (event.name, event.code)
            for event in self.cluster.audit(user)
            if event.resource.endswith("/scale") and event.verb == "update" and event.name in self.names
        ]


class GroupApiRig(ApiRig):
    """A workload of two pods, whose processes are a consumer group at a coordinator in memory: no container runs here."""

    job_id = CONSUMERS

    def __init__(self, cluster: KubernetesCluster, access: UserAccess, namespace: str, kind: str) -> None:
        self.group = PodGroup(SystemClock(), self._processes)
        super().__init__(cluster, access, namespace, kind)
        (name,) = self.names
        self.subject = self.by_id = replace(group_subject(kind, name, namespace=namespace), id=f"shop/{name}")
        self.nobody = replace(self.subject, target=group_subject(kind, "nobody", namespace=namespace).target)
        self.away = replace(self.subject, target=group_subject(kind, name, namespace="away").target)
        self.before, self.wanted, self.too_much = {CONSUMERS: 2}, {CONSUMERS: 4}, {CONSUMERS: 40_000}

    def new_driver(self) -> Elsewhere:
        return Elsewhere(self.access, self.namespace, groups=self.group)

    async def restart(self, name: str) -> None:
        """Delete a pod; its controller makes another one. kubectl does not wait: it misses the end of a pod whose name is
        taken again at once."""
        await asyncio.to_thread(self.kubectl, "delete", "pod", name, "--wait=false")

    def restarts(self) -> int:
        """Return the number of accepted evictions."""
        user = f"system:serviceaccount:{self.namespace}:weir-executor"
        return sum(
            event.resource == "pods/eviction" and event.code == 201 and event.name.startswith(f"{self.names[0]}-")
            for event in self.cluster.audit(user)
        )

    def present(self) -> set[str]:
        return set(self.group.members)

    def lose_an_answer(self) -> None:
        """Lose the answer to the next eviction, which the API server has carried out."""
        api = self.driver._workloads_api
        evict_pod = api.evict_pod

        async def losing(namespace: str, pod: str, uid: str) -> None:
            api.evict_pod = evict_pod  # type: ignore[method-assign]
            await evict_pod(namespace, pod, uid)
            raise ApiFailed(Call("create", "pods/eviction", namespace, pod), "no answer within 5 s")

        api.evict_pod = losing  # type: ignore[method-assign]

    async def _processes(self) -> list[PodProcess]:
        """Return the processes of the ready pods."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=app%3D{self.names[0]}"
        found = await asyncio.to_thread(self.cluster.request, "GET", path)
        return [
            PodProcess(pod["metadata"]["uid"], pod["metadata"]["name"], pod["status"].get("podIP", ""))
            for pod in found["items"]
            if {"type": "Ready", "status": "True"}.items() <= _condition(pod, "Ready").items()
        ]


def _condition(pod: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((each for each in pod["status"].get("conditions", []) if each["type"] == kind), {})
