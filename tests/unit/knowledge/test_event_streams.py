"""Event streams on a real listener: how many there may be, and what gives one back."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.unit.knowledge.builders import APP, NOON
from tests.unit.knowledge.direct_log import changes_of
from tests.unit.knowledge.memory_store import MemoryStore
from weir_knowledge import events_api
from weir_knowledge.__main__ import api
from weir_knowledge.applications_api import applications_router
from weir_knowledge.events_api import EventStreams, events_router
from weir_runtime.clock import FakeClock
from weir_runtime.http import listen, serve
from weir_runtime.loop import Stop

MAX_OPEN = 3
PATHS = ("/v1/events", f"/v1/applications/{APP}/events")


class Listener:
    """Knowledge's feed, as it is served."""

    def __init__(self) -> None:
        self.store, self.streams = MemoryStore(events_bytes=100_000_000), EventStreams(MAX_OPEN)
        app = api()
        changes = changes_of(self.store, FakeClock(NOON))
        app.include_router(applications_router(changes, None, self.streams))
        app.include_router(events_router(self.store, self.streams))
        self._stop, bound = Stop(), listen("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        self._serving = asyncio.create_task(serve(app, bound, self._stop))

    async def open(self, path: str) -> tuple[int, socket.socket]:
        """The status that a new connection's stream is answered with, and the connection, of which no more is read."""
        loop, connection = asyncio.get_running_loop(), socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", self.port))
        await loop.sock_sendall(connection, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await loop.sock_recv(connection, 4096)
        return int(head.split()[1]), connection

    async def until_open(self, count: int) -> None:
        async with asyncio.timeout(15):
            while self.streams.open != count:  # noqa: ASYNC110 - no signal exists
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        self._stop.request("the test is over")
        await asyncio.wait_for(self._serving, 10.0)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = Listener()
    yield made
    await made.close()


async def test_no_more_streams_than_are_allowed(listener: Listener) -> None:
    """For both feeds together; the next client gets 503 and Retry-After. Other requests are served, and a closed stream
    makes room."""
    streams = [await listener.open(PATHS[i % 2]) for i in range(MAX_OPEN)]
    assert [status for status, _ in streams] == [200] * MAX_OPEN
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as http:
        for path in PATHS:
            refused = await http.get(path)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert "3 event streams are open" in refused.json()["detail"]
            assert len(refused.json()["detail"]) <= 160
        assert (await http.get("/v1/applications")).status_code == 200
        assert (await http.get("/v1/events", headers={"Last-Event-ID": "x"})).status_code == 400
    for _, connection in streams[:2]:
        connection.close()
    await listener.until_open(1)
    again = [await listener.open(PATHS[0]) for _ in range(MAX_OPEN)]
    assert [status for status, _ in again] == [200, 200, 503]
    for _, connection in [*streams, *again]:
        connection.close()
    await listener.until_open(0)


async def test_clients_that_leave_at_once_leave_nothing_behind(listener: Listener) -> None:
    """Also clients that left before their stream began."""
    for _ in range(30):
        _, out = await asyncio.open_connection("127.0.0.1", listener.port)
        out.write(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await out.drain()
        out.transport.abort()
    await listener.until_open(0)
    status, connection = await listener.open(PATHS[0])
    connection.close()
    assert status == 200


async def test_a_client_that_takes_nothing_gives_its_stream_back(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays, as that of a stopped process does, with more sent than its buffers hold; another reads on."""
    monkeypatch.setattr(events_api, "MAX_STALL_SECONDS", 0.3)
    status, stalled = await listener.open(PATHS[0])
    assert status == 200
    data = json.dumps("x" * 1_000_000)
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as http,
        http.stream("GET", PATHS[0]) as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == ": weir"
        await listener.until_open(2)
        await listener.store.write(events=[("plan", APP, data)] * 20)
        async with asyncio.timeout(15):
            received = 0
            while received < 20:
                received += (await anext(lines)).startswith("data: ")
        await listener.until_open(1)
    stalled.close()
