"""The cluster in memory passes the suite of the real one."""

import pytest

from tests.unit.engines.kubernetes.memory_cluster import MemoryCluster
from tests.unit.engines.kubernetes.objects import CREW, NAMESPACE, pod, workload
from tests.unit.engines.kubernetes.workloads_suite import WorkloadsSuite, World
from weir_engines.kubernetes.cluster import WorkloadReader


class _Memory:
    def __init__(self) -> None:
        self.reader = MemoryCluster([CREW])
        self.namespace = NAMESPACE
        self._pods: dict[str, list[str]] = {}

    async def create(self, kind: str, name: str, replicas: int) -> None:
        await self.scale(kind, name, replicas)

    async def scale(self, kind: str, name: str, replicas: int) -> None:
        for old in self._pods.pop(name, []):
            self.reader.delete("Pod", NAMESPACE, old)
        self.reader.put(workload(name, replicas, kind=kind))
        self._pods[name] = [f"{name}-{i}" for i in range(replicas)]
        for each in self._pods[name]:
            self.reader.put(pod(each, name))

    async def delete(self, kind: str, name: str) -> None:
        for old in self._pods.pop(name):
            self.reader.delete("Pod", NAMESPACE, old)
        self.reader.delete(kind, NAMESPACE, name)

    async def deny_pods(self) -> WorkloadReader:
        self.reader.deny("pods")
        return self.reader

    async def absent(self) -> WorkloadReader:
        self.reader.break_down()
        return self.reader


@pytest.fixture
def world() -> World:
    return _Memory()


class TestMemory(WorkloadsSuite):
    """In memory."""
