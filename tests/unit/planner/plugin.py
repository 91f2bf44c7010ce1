"""External planner on the loopback address; a test controls each byte of its responses."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from tests.unit.planner.build import NOON
from weir_contracts import PlannerRegistration, PlanReply
from weir_runtime.reach import Allowed

LOOPBACK = Allowed.of("http,https", "*", "127.0.0.0/8,::1/128", prefix="WEIR_PLANNER_PLUGIN")
DESCRIPTION: dict[str, Any] = {
    "name": "mine",
    "version": "1",
    "contract_versions": ["v1alpha1"],
    "scope": "operator",
    "description": "one for each",
    "parameters": {
        "type": "object",
        "properties": {"target": {"type": "number", "minimum": 0, "maximum": 1}},
        "additionalProperties": False,
    },
}


class Received:
    """A request as received."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Respond = Callable[[Received], bytes | Awaitable[bytes]]


def answer(body: bytes | str, status: int = 200, content_type: str = "application/json", *more: str) -> bytes:
    """Return a complete HTTP response; `more` are further header lines."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} said", f"Content-Type: {content_type}", f"Content-Length: {len(data)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + data


def json_answer(document: Any, status: int = 200, *more: str) -> bytes:
    return answer(json.dumps(document), status, "application/json", *more)


def good(received: Received) -> bytes:
    """Reply as a correct planner: one subtask more for each operator up to the bound, 422 for a malformed request."""
    if received.method == "GET":
        return json_answer(DESCRIPTION)
    try:
        question = received.json
        running = question["deployment"]["observed"]
        limit = question["policy"]["spec"]["bounds"]["max"]
    except (ValueError, KeyError, TypeError):
        return json_answer({"detail": "this is no plan request"}, 422)
    vector = {name: min(p + 1, limit) for name, p in running.items()}
    reply = PlanReply(kind="scale", parallelism=vector, code="more", sentence="one more each", memory={"turn": 1})
    return answer(reply.model_dump_json())


class Plugin:
    """Server on 127.0.0.1 within a `with` block; `respond` may write to the connection itself and return no bytes."""

    port = 0

    def __init__(self, json_answer: Respond = good, tls: ssl.SSLContext | None = None) -> None:
        self.respond = json_answer
        self._tls = tls
        self.received: list[Received] = []
        self.connections = 0
        self.writer: asyncio.StreamWriter
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def registered(self, name: str = "mine", **changes: Any) -> PlannerRegistration:
        return PlannerRegistration(
            **{
                "name": name,
                "url": self.url,
                "version": 1,
                "description": DESCRIPTION,
                "registered_at": NOON,
                "registered_by": "ada",
                **changes,
            }
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = head[0].split(" ", 2)
                received = Received(method, path, headers, body)
                self.received.append(received)
                self.writer = writer
                response = self.respond(received)
                writer.write(response if isinstance(response, bytes) else await response)
                await writer.drain()
        writer.close()
        self._tasks.discard(task)
