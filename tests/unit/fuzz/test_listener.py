"""Hostile clients on a real listener: each is answered or cut off in time, and all others are answered meanwhile."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.effort import some, thorough
from tests.unit.knowledge.builders import APP
from weir_runtime.http import listen, serve
from weir_runtime.loop import Stop

from .http_apis import knowledge, planner

ANSWER_SECONDS, RECEIVE_SECONDS = 0.6, 3.0
"""Time limits for those who would otherwise take for ever."""
MAX_SECONDS = 15.0
"""For the longest of these conversations on a machine that does other things."""
WRITES = {knowledge: f"PUT /v1/policies/{APP}", planner: "POST /v1/plan"}
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


def _head(request: str, *headers: str) -> bytes:
    return "\r\n".join([f"{request} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode()


def _sent(body: bytes, kind: str = "application/json") -> Talk:
    """A complete request with this body."""

    async def talk(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, request: str) -> None:
        out.write(_head(request, f"Content-Type: {kind}", f"Content-Length: {len(body)}") + body)

    return talk


def _raw(raw: bytes) -> Talk:
    """Just these bytes."""

    async def talk(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, _request: str) -> None:
        out.write(raw)

    return talk


async def flood(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, request: str) -> None:
    """50 MB, announced."""
    out.write(_head(request, "Content-Type: application/json", "Content-Length: 50000000"))
    for _ in range(50):
        out.write(b"[" * 1_000_000)
        await out.drain()


async def chunked_flood(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, request: str) -> None:
    """50 MB, in chunks."""
    out.write(_head(request, "Content-Type: application/json", "Transfer-Encoding: chunked"))
    for _ in range(50):
        out.write(b"F4240\r\n" + b"[" * 1_000_000 + b"\r\n")
        await out.drain()
    out.write(b"0\r\n\r\n")


async def drip(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, request: str) -> None:
    """A chunk of one byte, now and then, for ever."""
    out.write(_head(request, "Content-Type: application/json", "Transfer-Encoding: chunked"))
    while True:
        out.write(b"1\r\n[\r\n")
        await out.drain()
        await asyncio.sleep(0.05)


async def header_drip(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, request: str) -> None:
    out.write(f"{request} HTTP/1.1\r\n".encode())
    while True:
        out.write(b"X: y\r\n")
        await out.drain()
        await asyncio.sleep(0.05)


async def silence(_reader: asyncio.StreamReader, _out: asyncio.StreamWriter, _request: str) -> None:
    """Connects and waits."""


async def half_open(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, request: str) -> None:
    """Announces a body and sends none."""
    out.write(_head(request, "Content-Type: application/json", "Content-Length: 10"))


async def aborted(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, request: str) -> None:
    """Leaves in the middle of its body."""
    out.write(_head(request, "Content-Type: application/json", "Content-Length: 100") + b"{")
    await out.drain()
    out.transport.abort()


async def late_rollback(_reader: asyncio.StreamReader, out: asyncio.StreamWriter, _request: str) -> None:
    """A good request, then half of one on the same connection."""
    out.write(_head("GET /health/live") + b"GET /health/li")


DEEP = 100_000
SLOW: dict[str, tuple[Talk, set[int]]] = {
    "a dripping body": (drip, {408}),
    "a dripping head": (header_drip, set()),
    "nothing at all": (silence, set()),
    "no body": (half_open, {408}),
    "gone": (aborted, set()),
    "half a second request": (late_rollback, {200}),
}
"""Clients that do not come to an end, by what they may be told before they are cut off."""
WRONG: dict[str, tuple[Talk, set[int]]] = {
    "50 MB announced": (flood, {413}),
    "50 MB in chunks": (chunked_flood, {413}),
    "no JSON": (_sent(b"{nonsense"), {400, 422}),
    "no text": (_sent(b"\xff\xfe\x00" * 1000), {400, 422}),
    "deep JSON": (_sent(b"[" * DEEP + b"]" * DEEP), {400, 422}),
    "deep JSON objects": (_sent(b'{"a":' * DEEP), {400, 422}),
    "8 MB of JSON": (_sent(b"[" + b"0," * 3_900_000 + b"0]"), {413}),
    "2 MB of JSON with many elements": (_sent(b"[" + b"0," * 900_000 + b"0]"), {413}),
    "JSON with 100,000 elements": (_sent(b"[" + b"0," * 100_000 + b"0]"), {400, 422}),
    "a number of 2 MB": (_sent(b"9" * 1_900_000), {400, 422}),
    "8 MB of YAML": (_sent(b"- " * 3_900_000, "application/yaml"), {413, 422}),
    "deep YAML": (_sent(b"[" * 50_000, "application/yaml"), {422}),
    "much YAML": (_sent(b"[" + b"1," * 45_000 + b"1]", "application/yaml"), {422}),
    "YAML that names Python": (_sent(b"!!python/object/apply:os.abort []", "application/yaml"), {422}),
    "a picture": (_sent(b"\x89PNG\r\n", "image/png"), {415, 422}),
    "a content type of nonsense": (_sent(b"{}", "\x7f;;;=,"), {400, 415, 422}),
    "a form": (_sent(b"--x\r\n\r\n", "multipart/form-data; boundary=x"), {415, 422}),
    "bad percent-encoding": (_raw(_head("GET /v1/policies/%zz/%ff%00%c0%ae?limit=%&after=%ff")), {404, 422}),
    "a path of 60 kB": (_raw(_head("GET /v1/policies/" + "a" * 60_000 + "/b")), {400, 404}),
    "a query of 60 kB": (_raw(_head("GET /v1/planners?" + "a=1&" * 15_000)), {400, 404, 422}),
    "an odd target": (_raw(_head("GET http://[::1/../..//%2e%2e/etc/passwd")), {400, 404}),
    "huge headers": (_raw(_head("GET /v1/policies", "X: " + "y" * 1_000_000)), {400, 431}),
    "many headers": (_raw(_head("GET /health/live", *(f"X{i}: y" for i in range(20_000)))), {400, 431}),
    "headers of nonsense": (_raw(b"GET / HTTP/1.1\r\n\x00\xff: \r\n\r\n"), {400}),
    "two lengths": (_raw(b"POST /v1/plan HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx"), {400}),
    "a length below zero": (_raw(_head("POST /v1/plan", "Content-Length: -1")), {400}),
    "a length of nonsense": (_raw(_head("POST /v1/plan", "Content-Length: 9" + "9" * 30)), {400, 413}),
    "no HTTP": (_raw(bytes(range(256)) * 4), {400}),
    "another HTTP": (_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), {400, 404, 405, 505}),
    "TLS": (_raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)), {400}),
}


async def talk(port: int, how: Talk, request: str, *, to_the_end: bool) -> list[int]:
    """Return the statuses that a client gets: after its request and the response, or `to_the_end` when its connection
    is cut."""
    reader, out = await asyncio.open_connection("127.0.0.1", port)
    talking: asyncio.Future[Any] = asyncio.ensure_future(how(reader, out, request))
    received = b""
    try:
        async with asyncio.timeout(MAX_SECONDS):
            with contextlib.suppress(OSError):  # cut off
                while to_the_end or b"HTTP/1.1" not in received:
                    part = await reader.read(65_536)
                    if not part:
                        break
                    received += part
                if not to_the_end:
                    await talking
    finally:
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        out.transport.abort()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


@contextlib.asynccontextmanager
async def listening(app: FastAPI, receive_seconds: float) -> AsyncIterator[int]:
    """Yield the port of a real listener, while another client sends requests that are always answered."""
    stop, enough, bound = Stop(), Stop(), listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    serving = asyncio.create_task(serve(app, bound, stop, receive_seconds=receive_seconds))
    asking = asyncio.create_task(_ask(port, enough))
    try:
        yield port
        enough.request("all were answered")
        assert await asking > 0
    finally:
        asking.cancel()
        stop.request("the test is over")
        await asyncio.wait_for(serving, 10.0)


async def _ask(port: int, stop: Stop) -> int:
    answered = 0
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=5.0) as http:
        while not stop.requested:
            assert (await http.get("/health/live")).status_code == 200
            answered += 1
            await stop.wait(0.05)
    return answered


@pytest.fixture(params=[knowledge, planner])
def api(request: pytest.FixtureRequest) -> tuple[FastAPI, str]:
    """An application, made before the test's loop runs, and a request with a body."""
    return request.param(), WRITES[request.param]


async def test_wrong_requests_are_refused(api: tuple[FastAPI, str]) -> None:
    """Whatever stands in a request: a 4xx, soon, and never a fault of the service."""
    app, request = api
    async with listening(app, 60.0) as port:
        for name, (how, allowed) in some(WRONG.items(), 4):
            statuses = await talk(port, how, request, to_the_end=False)
            assert statuses and set(statuses) <= allowed, (name, statuses)


@pytest.mark.thorough
async def test_slow_clients_are_cut_off(api: tuple[FastAPI, str]) -> None:
    """Many at once, of each kind: answered that they are too slow where possible, and disconnected in any case."""
    app, request = api
    for layer in app.user_middleware:
        if "answer_seconds" in layer.kwargs:
            layer.kwargs["answer_seconds"] = ANSWER_SECONDS
    async with listening(app, RECEIVE_SECONDS) as port:
        kinds = list(SLOW.items()) * (20 if thorough() else 2)
        answers = await asyncio.gather(*(talk(port, how, request, to_the_end=True) for _, (how, _) in kinds))
        for (name, (_, allowed)), statuses in zip(kinds, answers, strict=True):
            assert set(statuses) == allowed, (name, statuses)
