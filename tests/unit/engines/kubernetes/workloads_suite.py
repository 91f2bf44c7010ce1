"""Suite of every reader of workloads: a cluster in memory, and a real API server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes.api import ApiFailed
from weir_engines.kubernetes.cluster import Replicas, WorkloadReader, WorkloadsReading
from weir_engines.kubernetes.discovery import KindUnknown

DEADLINE_SECONDS = 40.0
KINDS = ("Deployment", "StatefulSet", "Crew")


class World(Protocol):
    """A cluster whose workloads get pods."""

    reader: WorkloadReader
    namespace: str

    async def create(self, kind: str, name: str, replicas: int) -> None: ...

    async def scale(self, kind: str, name: str, replicas: int) -> None: ...

    async def delete(self, kind: str, name: str) -> None: ...

    async def deny_pods(self) -> WorkloadReader:
        """Return a reader that may not list pods."""

    async def absent(self) -> WorkloadReader:
        """Return a reader of an API server that does not answer."""


def ref(kind: str, name: str = "orders") -> WorkloadRef:
    return WorkloadRef(kind=kind, name=name)


async def until(
    read: Callable[[], Awaitable[WorkloadsReading]], fits: Callable[[WorkloadsReading], bool]
) -> WorkloadsReading:
    """Return the first reading that fits; fails with the last one after a while."""
    found = None
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                found = await read()
                if fits(found):
                    return found
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {DEADLINE_SECONDS:g} s: {found}")


def _ready(replicas: Replicas | None) -> int:
    return sum(1 for each in replicas.pods if each.serves) if replicas else 0


class WorkloadsSuite:
    """Needs a fixture `world`."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_workload_has_its_replicas_and_pods(self, world: World, kind: str) -> None:
        """Wanted, current, updated and ready replicas, and a pod for each."""
        await world.create(kind, "orders", 3)
        await world.create(kind, "other", 1)
        found = await until(
            lambda: world.reader.read(world.namespace, [ref(kind)]),
            lambda reading: _ready(reading.found.get("orders")) == 3 and reading.found["orders"].ready == 3,
        )
        (own,) = found.found.values()
        status = own.workload.status
        assert (status.kind, status.name, status.namespace) == (kind, "orders", world.namespace)
        assert (status.wanted, status.current, status.rolling_out, status.paused) == (3, 3, False, False)
        assert status.uid
        assert own.workload.is_observed
        assert len(own.pods) == 3
        assert {each.pod.phase for each in own.pods} == {"Running"}
        assert found.failure == ""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_rescale_is_seen(self, world: World, kind: str) -> None:
        """Without another list: a change of `spec.replicas`, then its pods."""
        await world.create(kind, "orders", 1)

        async def read() -> WorkloadsReading:
            return await world.reader.read(world.namespace, [ref(kind)])

        before = await until(read, lambda reading: _ready(reading.found.get("orders")) == 1)
        await world.scale(kind, "orders", 3)
        after = await until(read, lambda reading: _ready(reading.found.get("orders")) == 3)
        first, last = before.found["orders"].workload, after.found["orders"].workload
        assert last.status.wanted == 3
        assert (first.status.uid, first.template) == (last.status.uid, last.template)
        await world.scale(kind, "orders", 1)
        await until(read, lambda reading: _ready(reading.found.get("orders")) == 1)

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_workload_that_is_created_again_has_another_uid(self, world: World, kind: str) -> None:
        """A deleted one is missing, without an error."""
        await world.create(kind, "orders", 1)

        async def read() -> WorkloadsReading:
            return await world.reader.read(world.namespace, [ref(kind)])

        before = await until(read, lambda reading: "orders" in reading.found)
        await world.delete(kind, "orders")
        await until(read, lambda reading: not reading.found)
        await world.create(kind, "orders", 1)
        after = await until(read, lambda reading: "orders" in reading.found)
        assert before.found["orders"].workload.status.uid != after.found["orders"].workload.status.uid

    async def test_several_workloads_are_in_the_order_of_the_request(self, world: World) -> None:
        """Their pods carry their names."""
        await world.create("StatefulSet", "store", 1)
        await world.create("Deployment", "front", 2)
        refs = [ref("Deployment", "front"), ref("StatefulSet", "store")]
        found = await until(
            lambda: world.reader.read(world.namespace, refs),
            lambda reading: [_ready(each) for each in reading.found.values()] == [2, 1],
        )
        assert list(found.found) == ["front", "store"]
        assert [{each.pod.workload for each in own.pods} for own in found.found.values()] == [{"front"}, {"store"}]

    async def test_kinds_that_cannot_be_scaled(self, world: World) -> None:
        """A missing kind, and one without a scale subresource."""
        with pytest.raises(KindUnknown, match="no kind Nothing"):
            await world.reader.read(world.namespace, [ref("Nothing")])
        with pytest.raises(KindUnknown, match="Job of batch/v1 has no scale subresource"):
            await world.reader.read(world.namespace, [ref("Job")])

    async def test_a_denied_right_is_named(self, world: World) -> None:
        """Verb, resource, namespace and status."""
        await world.create("Deployment", "orders", 1)
        reader = await world.deny_pods()
        with pytest.raises(ApiFailed, match=rf"may not list pods in namespace {world.namespace} \(403\)") as error:
            await reader.read(world.namespace, [ref("Deployment")])
        assert error.value.is_denied

    async def test_an_outage_is_an_error(self, world: World) -> None:
        """It is not an absent workload."""
        reader = await world.absent()
        with pytest.raises(ApiFailed, match="cannot be reached"):
            await reader.read(world.namespace, [ref("Deployment")])
