"""HTTP: an application with safe defaults, its server inside the service's own event loop, and clients with timeouts."""

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import problems
from .auth import Tokens
from .loop import Stop

MAX_BODY_BYTES = 8_000_000
GRACE_SECONDS = 3


class PortInUse(Exception):
    """The listener's address is taken; the sentence names the setting to change."""


class _BodyLimit:
    """Answers 413 to a body that is larger than the limit, announced or streamed, before anybody parses it."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit:
            await self._refuse(send)
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise problems.Problem(413, f"the body is larger than {self._limit} bytes")
            return message

        await self._app(scope, limited, send)

    async def _refuse(self, send: Send) -> None:
        body = b'{"title":"Too large","status":413,"detail":"the body is larger than %d bytes"}' % self._limit
        headers = [(b"content-type", problems.MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def application(title: str, description: str, tokens: Tokens | None = None, **arguments: Any) -> FastAPI:
    """A FastAPI application: problem documents for errors, a body limit, tokens where `auth.requires` looks for them."""
    app = FastAPI(title=title, description=description, **arguments)
    app.state.tokens = tokens or Tokens({})
    app.add_middleware(_BodyLimit, limit=MAX_BODY_BYTES)
    problems.install(app)
    return app


class _Server(uvicorn.Server):
    """Leaves signals to the service, which stops more than its listener."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; `PortInUse` if somebody else has the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise PortInUse(
            f"cannot listen on {host}:{port} ({error.strerror}): set WEIR_HTTP_PORT to a free one"
        ) from None
    return bound


async def serve(app: FastAPI, bound: socket.socket, stop: Stop) -> None:
    """Answer requests until stopped; open ones get `GRACE_SECONDS` to end."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_SECONDS, timeout_keep_alive=30
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[bound]), name="http")
    stopped = asyncio.create_task(stop.wait(), name="http-stop")
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopped.cancel()
    await serving


def async_client(base_url: str, token: SecretStr | None = None, timeout_seconds: float = 3.0) -> httpx.AsyncClient:
    """A client of a peer service: timeouts, no redirects, the token where there is one."""
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    return httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        timeout=httpx.Timeout(timeout_seconds),
        follow_redirects=False,
        limits=httpx.Limits(max_connections=50),
    )
