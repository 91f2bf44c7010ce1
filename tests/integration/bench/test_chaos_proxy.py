"""The recording proxy of the chaos campaign in front of a simulated Flink, with this process as its client."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from bench.chaos.flink import rescale_of
from bench.chaos.proxy import FailPoint, RecordingProxy, Trap
from testbed.simulated_flink import NAMES, VERTICES, WORK, ManyJobs

PATH = "/jobs/{}/resource-requirements"


@pytest.fixture
async def flink() -> AsyncIterator[ManyJobs]:
    made = ManyJobs(["orders"], rescale_seconds=0.0)
    async with made.serving():
        yield made


@pytest.fixture
def proxy() -> Iterator[RecordingProxy]:
    with RecordingProxy(lambda: {"exec-0": os.getpid()}) as made:
        yield made


@pytest.fixture
async def client(flink: ManyJobs, proxy: RecordingProxy) -> AsyncIterator[httpx.AsyncClient]:
    """A client of Flink through the proxy."""
    url = await asyncio.to_thread(proxy.in_front_of, "flink", flink.url)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as made:
        yield made


def body(work: int) -> dict[str, Any]:
    return {
        vertex: {"parallelism": {"lowerBound": 1, "upperBound": work if name == WORK else 1}}
        for name, vertex in VERTICES.items()
    }


def path(flink: ManyJobs) -> str:
    return PATH.format(flink.jobs["orders"].id)


async def held(
    when: Any, flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> tuple[Trap, "asyncio.Task[httpx.Response]"]:
    """Return the trap that holds a request for four subtasks, and the request."""
    trap = proxy.arm(FailPoint("flink", "PUT", "/resource-requirements", when))
    put = asyncio.create_task(client.put(path(flink), json=body(4)))
    assert await asyncio.to_thread(trap.reached.wait, 5.0)
    return trap, put


async def test_what_changes_something_is_recorded_with_its_sender(
    flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> None:
    """Method, body and status of the request, and the process that the connection belongs to; a reading is not."""
    assert (await client.get("/jobs/overview")).json()["jobs"][0]["name"] == "orders"
    assert (await client.put(path(flink), json=body(4))).status_code == 200
    (exchange,) = proxy.exchanges
    assert (exchange.server, exchange.sender, exchange.method, exchange.status) == ("flink", "exec-0", "PUT", 200)
    assert rescale_of(exchange, NAMES) == (flink.jobs["orders"].id, flink.jobs["orders"].requested)


async def test_a_request_is_held_before_it_reaches_the_target(
    flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> None:
    """While it is held the target knows nothing of it; released, it arrives."""
    trap, put = await held("before", flink, proxy, client)
    assert (trap.sender, flink.jobs["orders"].requests) == ("exec-0", [])
    trap.release()
    assert (await put).status_code == 200
    assert len(flink.jobs["orders"].requests) == 1


async def test_a_request_of_a_process_that_ended_does_not_arrive(
    flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> None:
    """Its connection is closed while it is held: the target never sees it."""
    trap, put = await held("before", flink, proxy, client)
    put.cancel()
    await asyncio.wait([put])
    trap.release()
    assert (await client.put(path(flink), json=body(5))).status_code == 200
    assert [request[WORK] for request in flink.jobs["orders"].requests] == [5]
    assert [exchange.status for exchange in proxy.exchanges] == [None, 200]


async def test_a_response_is_held_after_the_target_has_answered(
    flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> None:
    """The target acts on the request whose sender does not know it yet. Only the first request is held."""
    trap, put = await held("after", flink, proxy, client)
    assert (len(flink.jobs["orders"].requests), put.done()) == (1, False)
    assert (await client.put(path(flink), json=body(5))).status_code == 200
    trap.release()
    assert (await put).status_code == 200
