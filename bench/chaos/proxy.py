"""A recording proxy in front of servers. It records each HTTP request that changes something, with time, sender and body.
At a fail point it holds a request or its response until the fault has struck; fail points exist for Kafka and Redis, too."""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import httpx
import psutil
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from weir_runtime.http import listen, serve
from weir_runtime.loop import Stop

When = Literal["before", "after"]
WHEN: tuple[When, ...] = ("before", "after")
HOLD_SECONDS = 30.0
"""The longest that a fail point holds a request: less than an executor's whole patience."""
OPEN_SECONDS = 60.0
"""Maximum time until a proxy listens: its client reads the system's certificates, which takes long on a busy machine."""
PHASE_BYTES = 600
"""Beginning of a record that contains an outcome's phase. No larger: to read past the end of the stream is an error."""
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host", "upgrade"}


@dataclass(frozen=True)
class FailPoint:
    """One await of an action that leaves a process: before the request is forwarded, or after the response came and
    before it is delivered. `path` is a regular expression for the end of the request's path; for Kafka and Redis
    `Wire.describe` returns method and path."""

    server: str
    method: str
    path: str
    when: When

    def matches(self, server: str, method: str, path: str) -> bool:
        return (server, method) == (self.server, self.method) and re.search(f"{self.path}$", path) is not None

    def __str__(self) -> str:
        return f"{self.when} {self.method} {self.server}{self.path}"


class Trap:
    """A fail point that is armed once: `reached` is set when a request is held, which waits until `release`."""

    def __init__(self, point: FailPoint) -> None:
        self.point = point
        self.reached = threading.Event()
        self.sender: str | None = None
        self._taken = False
        self._released = threading.Event()

    def release(self) -> None:
        """Let the held request go on, and hold no other."""
        self._released.set()

    async def hold(self, when: When, sender: str | None) -> None:
        """Hold the first request that comes here."""
        if self._taken or self._released.is_set() or when != self.point.when or sender is None:
            return
        self._taken, self.sender = True, sender
        self.reached.set()
        deadline = time.monotonic() + HOLD_SECONDS
        while not self._released.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)


@dataclass(frozen=True)
class Wire:
    """Parts of a TCP protocol that fail points need."""

    read: Callable[[asyncio.StreamReader], Awaitable[bytes]]
    """Returns the next message of either side as it was sent; raises `EOFError` at the end."""
    describe: Callable[[bytes], tuple[str, str]]
    """Returns method and path of a request."""
    answers: Callable[[bytes, bytes], bool]
    """Returns whether the second message is the response to the first."""


async def _kafka_frame(source: asyncio.StreamReader) -> bytes:
    size = await source.readexactly(4)
    return size + await source.readexactly(int.from_bytes(size))


def _kafka_request(frame: bytes) -> tuple[str, str]:
    """Return PRODUCE with topic and phase of the first record, COMMIT for a commit of offsets, which confirms an executor's
    membership, or an empty method for another request."""
    kind = {0: "PRODUCE", 8: "COMMIT"}.get(int.from_bytes(frame[4:6]), "")
    if kind != "PRODUCE":
        return kind, ""
    topic = re.search(rb"weir\.[a-z0-9.-]+", frame)
    phase = re.search(rb'"phase":"([a-z-]+)"', _first_record(frame))
    return kind, "".join(f"/{each.decode()}" for each in (topic and topic[0], phase and phase[1]) if each)


def _first_record(frame: bytes) -> bytes:
    """Return the beginning of a Produce request's records, decompressed if they are LZ4; empty if that fails."""
    import pyarrow as pa

    begin = frame.find(b"\x04\x22\x4d\x18")  # magic number of an LZ4 frame
    if begin < 0:
        return frame
    with suppress(OSError, ValueError):
        return bytes(pa.CompressedInputStream(pa.BufferReader(frame[begin:]), "lz4").read(PHASE_BYTES))
    return b""


async def _redis_bytes(source: asyncio.StreamReader) -> bytes:
    read = await source.read(65_536)
    if not read:
        raise EOFError
    return read


def _redis_request(sent: bytes) -> tuple[str, str]:
    """Return the first command and the first of Weir's keys."""
    command, key = re.match(rb"\*\d+\r\n\$\d+\r\n(\w+)", sent), re.search(rb"weir:[a-z-]+", sent)
    return (command[1].decode() if command else ""), (f"/{key[0].decode()}" if key else "")


KAFKA = Wire(_kafka_frame, _kafka_request, lambda request, response: request[8:12] == response[4:8])
REDIS = Wire(_redis_bytes, _redis_request, lambda _request, _response: True)


@dataclass
class Exchange:
    """A request that changes something, as it arrived."""

    at: float
    server: str
    sender: str | None
    method: str
    path: str
    body: Any
    status: int | None = None
    """Of the response; None: it was not forwarded, or no response came."""


@dataclass
class Senders:
    """Finds the process that holds the client's end of a connection. Only from outside: nothing is asked of it."""

    pids: Callable[[], Mapping[str, int]]
    _cached: dict[int, str] = field(default_factory=dict)

    def of(self, port: int) -> str | None:
        """Return the name of the process with a connection from this port; its last known one if it has just ended."""
        for name, pid in self.pids().items():
            with suppress(psutil.Error):
                if any(c.laddr and c.laddr.port == port for c in psutil.Process(pid).net_connections("tcp")):
                    self._cached[port] = name
                    return name
        return self._cached.get(port)


class RecordingProxy:
    """Proxies by name of their server, in one thread. `exchanges` is in the order of arrival."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self.exchanges: list[Exchange] = []
        self._senders = Senders(pids)
        self._trap: Trap | None = None
        self._stop = Stop()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recording-proxy", daemon=True)
        self._serving: list[asyncio.Task[None]] = []
        self._listening: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def in_front_of(self, server: str, url: str, *, verify: Any = True) -> str:
        """Return the address of a proxy of the server at `url`."""
        return asyncio.run_coroutine_threadsafe(self._open(server, url, verify), self._loop).result(OPEN_SECONDS)

    def in_front_of_port(self, server: str, port: int, wire: Wire, *, sender: str | None = None) -> int:
        """Return the port of a new proxy in front of the server at `port` of this machine. `sender`: the server's only
        client; None: executors, found by their connections."""
        opening = self._open_port(server, port, wire, sender)
        return asyncio.run_coroutine_threadsafe(opening, self._loop).result(OPEN_SECONDS)

    def arm(self, point: FailPoint) -> Trap:
        """Hold the next request that comes to a fail point; the one before is released."""
        if self._trap is not None:
            self._trap.release()
        self._trap = Trap(point)
        return self._trap

    async def _open(self, server: str, url: str, verify: Any) -> str:
        # Each request opens a new connection: none is left over from before a restart of the server.
        limits = httpx.Limits(max_keepalive_connections=0)
        client = httpx.AsyncClient(base_url=url, timeout=HOLD_SECONDS, trust_env=False, verify=verify, limits=limits)

        async def answer(path: str, request: Request) -> Response:
            return await self._pass_on(server, client, request)

        app, bound = FastAPI(openapi_url=None), listen("127.0.0.1", 0)
        app.add_api_route("/{path:path}", answer, methods=["GET", "PUT", "POST", "PATCH", "DELETE"])
        self._serving.append(asyncio.create_task(serve(app, bound, self._stop)))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"

    async def _pass_on(self, server: str, client: httpx.AsyncClient, request: Request) -> Response:
        method, path, at = request.method, request.url.path, time.time()
        trap = self._trap
        held = trap is not None and trap.point.matches(server, method, path)
        port = request.client.port if request.client else 0
        sender = self._senders.of(port) if held or method != "GET" else None
        body, exchange = await request.body(), None
        if method != "GET":
            exchange = Exchange(at, server, sender, method, path, _document(body))
            self.exchanges.append(exchange)
        if held and trap is not None:
            await trap.hold("before", sender)
            if await request.is_disconnected():
                return Response(status_code=499)  # its sender has ended before anything was sent
        headers = [(k, v) for k, v in request.headers.items() if k not in _HOP_BY_HOP]
        forwarded = client.build_request(method, path, params=str(request.query_params), content=body, headers=headers)
        try:
            response = await client.send(forwarded, stream=True)
            if exchange is not None:
                exchange.status = response.status_code
            kept = {k: v for k, v in response.headers.items() if k not in _HOP_BY_HOP}
            if request.query_params.get("watch"):
                return StreamingResponse(_stream(response), response.status_code, kept)
            content = await response.aread()
            await response.aclose()
        except httpx.HTTPError as error:
            return JSONResponse({"errors": [f"{server} does not answer: {error}"]}, 502)
        if held and trap is not None:
            await trap.hold("after", sender)
        return Response(content, response.status_code, kept)

    async def _open_port(self, server: str, port: int, wire: Wire, sender: str | None) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            passing = asyncio.ensure_future(self._pass_messages(server, port, wire, sender, (reader, writer)))
            self._connections.add(passing)
            passing.add_done_callback(self._connections.discard)

        self._listening.append(await asyncio.start_server(connected, "127.0.0.1", 0))
        return int(self._listening[-1].sockets[0].getsockname()[1])

    async def _pass_messages(
        self,
        server: str,
        port: int,
        wire: Wire,
        only_sender: str | None,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Pass on all messages of a connection, until one side ends it."""
        from_client, to_client = client
        client_port = to_client.get_extra_info("peername")[1]
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await _closed(to_client)
            return
        unanswered: tuple[Trap, str, bytes] | None = None

        async def requests() -> None:
            nonlocal unanswered
            while True:
                message, trap = await wire.read(from_client), self._trap
                if (
                    trap is not None
                    and trap.point.server == server
                    and trap.point.matches(server, *wire.describe(message))
                ):
                    sender = only_sender or self._senders.of(client_port)
                    await trap.hold("before", sender)
                    if from_client.at_eof() or from_client.exception():
                        return  # its sender has ended before anything was sent
                    unanswered = None if sender is None else (trap, sender, message)
                to_server.write(message)
                await to_server.drain()

        async def responses() -> None:
            while True:
                message = await wire.read(from_server)
                if unanswered is not None and wire.answers(unanswered[2], message):
                    await unanswered[0].hold("after", unanswered[1])
                to_client.write(message)
                await to_client.drain()

        ways = [asyncio.ensure_future(requests()), asyncio.ensure_future(responses())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await asyncio.gather(_closed(to_server), _closed(to_client))

    async def _end(self) -> None:
        self._stop.request("the campaign is over")
        for listening in self._listening:
            listening.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._serving:
            await asyncio.wait(self._serving, timeout=10)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Abort a connection: its other side may no longer read."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


async def _stream(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        with suppress(httpx.HTTPError):
            async for part in response.aiter_raw():
                yield part
    finally:
        await response.aclose()


def _document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
