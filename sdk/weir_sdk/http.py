"""Parts of a server: limits, problem documents, a token, threads for planners, graceful shutdown."""

import argparse
import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import os
import queue
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir_contracts import InvalidDocument

MAX_BODY_BYTES = 8_000_000
"""Size of a request of a large application with its raw observations."""
MAX_WAITING = 100
"""Requests that wait for a thread; more are refused, because their callers' deadlines would pass."""
GRACE_SECONDS = 10
"""Time for open requests to end after a stop signal."""
MEDIA_TYPE = "application/problem+json"

log = logging.getLogger("weir_sdk")
Result = TypeVar("Result")


class Busy(Exception):
    """Too many requests wait already."""


class Threads:
    """Runs synchronous planners, at most `count` calls at a time, outside the event loop. Its threads never keep a
    process from ending: a call that hangs is left behind."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"threads: must be at least 1, is {count}")
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open = 0
        for i in range(count):
            threading.Thread(target=self._work, name=f"planner-{i}", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._calls.get()()

    async def run(self, function: Callable[[], Result]) -> Result:
        """The function's result, or what it raises. Raises `Busy`. Given up by its caller before it began, it is not
        called."""
        if self._open >= MAX_WAITING:
            raise Busy
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def call() -> None:
            result: Result | None = None
            error: BaseException | None = None
            try:
                if not future.cancelled():
                    result = function()
            except BaseException as raised:  # noqa: BLE001 - it belongs to the caller, whatever it is
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        def settle(result: Any, error: BaseException | None) -> None:
            self._open -= 1
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                # SystemExit or KeyboardInterrupt in a planner's thread must not end the server.
                future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        self._open += 1
        self._calls.put(call)
        return await future


class Limits:
    """Middleware that answers 413 to a body larger than the limit, announced or streamed."""

    def __init__(self, app: ASGIApp, body_bytes: int) -> None:
        self._app = app
        self._max_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        size = int(length) if length.isdigit() else 0
        body = b""
        while size <= self._max_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            size = max(size, len(body))
            if not message.get("more_body", False):
                break
        if size > self._max_bytes:
            too_large = problem(413, f"the body is larger than {self._max_bytes} bytes")
            too_large.headers["connection"] = "close"
            await too_large(scope, receive, send)
            return
        given = False

        async def replayed() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replayed, send)


class SameOrigin:
    """Refuses what a browser sends for another site's page, as Weir's own listeners do: 421 to a foreign `Host` (DNS
    rebinding; only on loopback, elsewhere the names are the user's), 403 to a foreign `Origin` or another site's
    request, 415 to a body that is not JSON."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        hosts = [host.lower() for host in headers.getlist("host")]
        names = [re.sub(r":\d*$", "", host).strip("[]").rstrip(".") for host in hosts]
        if is_loopback(self._host) and not all(name == self._host or is_loopback(name) for name in names):
            return problem(421, "this listener is on loopback and the request's Host is another: call it as 127.0.0.1")
        own = {f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")}
        if any(origin.lower() not in own for origin in headers.getlist("origin")):
            return problem(403, "the request's Origin is another site: only this listener's own pages may call it")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return problem(
                403, "the request comes from another site's page: only this listener's own pages may call it"
            )
        kinds = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
        if not all(kind.endswith(("/json", "+json")) for kind in kinds):
            return problem(415, "the body's content type is not JSON: send application/json")
        return None


class _AnyText(JSONResponse):
    """Encode as JSON, replacing lone surrogates instead of failing."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def problem(status: int, detail: str, errors: list[tuple[str, str]] | None = None) -> JSONResponse:
    """An RFC 9457 problem document."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail[:4000],
        **({"errors": [{"field": f, "message": m} for f, m in errors[:50]]} if errors else {}),
    }
    return _AnyText(body, status_code=status, media_type=MEDIA_TYPE)


def install(app: FastAPI, body_bytes: int = MAX_BODY_BYTES) -> None:
    """Limits and problem documents for `app`."""
    app.add_middleware(Limits, body_bytes=body_bytes)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        found = InvalidDocument.of(error.errors(), "body", skip=1)
        return problem(422, str(found), found.problems)

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail))

    @app.exception_handler(Busy)
    async def _busy(_request: Request, _error: Busy) -> JSONResponse:
        return problem(503, f"{MAX_WAITING} requests wait already: the planner is too slow, or needs more threads")

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> JSONResponse:
        log.exception("%s: %s", request.url.path, type(error).__name__, exc_info=error)
        return problem(500, f"{type(error).__name__}: {error}")


def bearer(token: str | None) -> Callable[[Request], None]:
    """Return a dependency that requires the token; None: no token is needed."""

    def check(request: Request) -> None:
        if token is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "a bearer token is needed, and this is not the one")

    return check


class Server(uvicorn.Server):
    """Ends with 0 on SIGTERM and SIGINT, after its open requests."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says where it listens once it does."""
        await super().startup(sockets)
        for listener in self.servers:
            for each in listener.sockets:
                log.info("listening on %s port %d", *each.getsockname()[:2])

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves signals to the main thread's owner where this is not it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def server(app: FastAPI, host: str, port: int) -> Server:
    """A server of `app`, not yet running."""
    return Server(
        uvicorn.Config(
            SameOrigin(app, host),
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            server_header=False,
            ws="none",
        )
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run(app: FastAPI, host: str, port: int, token: str | None, *, open_to_all: bool = False) -> None:
    """Serve until stopped. Raises `ValueError` for a listener that other machines reach without a token."""
    if not is_loopback(host) and not token and not open_to_all:
        raise ValueError(
            f"other machines reach {host}: set a token (PLANNER_TOKEN), or allow calls without one (--no-token)"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    server(app, host, port).run()
    log.info("stopped")


def command(
    name: str, default_port: int, application: Callable[..., FastAPI], arguments: list[str] | None = None
) -> None:
    """Serve `application(threads=…, token=…)` by a command line. The token comes from the environment, where no process
    list shows it."""
    parser = argparse.ArgumentParser(prog=name, description=f"Serves the planner {name}.")
    parser.add_argument("--host", default=os.environ.get("PLANNER_HOST", "127.0.0.1"), help="where to listen")
    parser.add_argument("--port", type=int, default=int(os.environ.get("PLANNER_PORT", str(default_port))))
    parser.add_argument("--threads", type=int, default=1, help="concurrent calls of a synchronous plan")
    parser.add_argument("--no-token", action="store_true", help="accept calls without a token")
    chosen, token = parser.parse_args(arguments), os.environ.get("PLANNER_TOKEN") or None
    try:
        app = application(threads=chosen.threads, token=token)
        run(app, chosen.host, chosen.port, token, open_to_all=chosen.no_token)
    except ValueError as error:
        sys.exit(f"{name}: {error}")
