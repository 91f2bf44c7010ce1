"""A planner of somebody else's on this machine, byte for byte as a test wants it."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from weir_contracts import PlannerRegistration, PlanReply

from runtime.addresses import Allowed
from tests.unit.planner.build import NOON

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


class Asked:
    """One request as it came."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Says = Callable[[Asked], bytes | Awaitable[bytes]]


def answer(body: bytes | str, status: int = 200, content_type: str = "application/json", *more: str) -> bytes:
    """A whole HTTP answer; `more` are further header lines."""
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} said", f"Content-Type: {content_type}", f"Content-Length: {len(data)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + data


def says(document: Any, status: int = 200, *more: str) -> bytes:
    return answer(json.dumps(document), status, "application/json", *more)


def good(asked: Asked) -> bytes:
    """A planner as it should be: one more for each operator, up to eight; it refuses what is no request."""
    if asked.method == "GET":
        return says(DESCRIPTION)
    try:
        question = asked.json
        running = question["deployment"]["observed"]
        at_most = question["policy"]["spec"]["bounds"]["max"]
    except (ValueError, KeyError, TypeError):
        return says({"detail": "this is no plan request"}, 422)
    vector = {name: min(p + 1, at_most) for name, p in running.items()}
    reply = PlanReply(kind="scale", parallelism=vector, code="more", sentence="one more each", memory={"turn": 1})
    return answer(reply.model_dump_json())


class Plugin:
    """Listens on 127.0.0.1 while the `with` lasts. `says` may write to the connection itself and return nothing."""

    port = 0

    def __init__(self, says: Says = good, tls: ssl.SSLContext | None = None) -> None:
        self.says = says
        self._tls = tls
        self.asked: list[Asked] = []
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
                asked = Asked(method, path, headers, body)
                self.asked.append(asked)
                self.writer = writer
                told = self.says(asked)
                writer.write(told if isinstance(told, bytes) else await told)
                await writer.drain()
        writer.close()
        self._tasks.discard(task)
