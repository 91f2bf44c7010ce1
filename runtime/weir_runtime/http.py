"""HTTP: an application with safe defaults, and its server, with TLS where there is a certificate, inside the service's own
event loop."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Collection, Generator, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin

import h11
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi_offline import FastAPIOffline
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .access import Authentication, Problem, Tokens, answer, install_problems
from .files import FollowedFiles
from .http_client import Budget, TooLarge, TooMany
from .loop import Stop
from .origins import SameOrigin

MAX_BODY_BYTES = 2_000_000
ANSWER_SECONDS = 30.0
"""For a response to begin: longer work belongs into a task."""
RECEIVE_SECONDS = 35.0
"""For head and body of a request to arrive, then the connection is closed. Longer than `ANSWER_SECONDS`, so that a slow
client gets a response first."""
GRACE_SECONDS = 3


class ListenerTls:
    """The TLS context of a listener, which new connections use. `OSError` (`SSLError` included) if the files cannot be used;
    later the present certificate stays."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.files = FollowedFiles("WEIR_HTTP_CERTIFICATE_FILE", self._load, lambda _: (certificate, key))

    def _load(self) -> None:
        # First into another context: a certificate that does not fit its key must not spoil the one in use.
        for context in (ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), self.context):
            # Without a password an encrypted key would be asked for at the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")


class PortInUse(Exception):
    """The listener's address is in use; the sentence names the setting to change."""


class _Limits:
    """Responds 413 to a body above its limit of bytes or elements, announced or streamed, 503 where all open bodies of
    the listener together are too large, 408 if a body does not arrive in time, and 503 if a response does not begin in
    time. A response that has begun, such as an event stream, has no limit."""

    def __init__(self, app: ASGIApp, body_bytes: int, answer_seconds: float) -> None:
        self._app = app
        self._body_bytes = body_bytes
        self._answer_seconds = answer_seconds
        self._budget = Budget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._body_bytes:
            too_large = Problem(413, f"the body has more than {self._body_bytes} bytes")
            await answer(too_large)(scope, receive, send)
            return
        refused: Problem | None = None
        begun, awaiting = False, False

        async def limited() -> Message:
            nonlocal awaiting, refused
            awaiting = True
            message = await receive()
            awaiting = False
            try:
                body.add(message.get("body", b""))
            except TooLarge as error:
                refused = Problem(413, f"the body has {error}")
                raise
            except TooMany as error:
                refused = Problem(503, f"{error}: try again", headers={"Retry-After": "1"})
                raise
            return message

        async def bounded(message: Message) -> None:
            nonlocal begun
            if not begun and refused is not None:
                # However the application responds to a body that it could not read, this is the reason.
                raise TooLarge
            if not begun and not deadline.expired():
                deadline.reschedule(None)
            begun = True
            await send(message)

        with self._budget.body(self._body_bytes) as body:
            try:
                async with asyncio.timeout(self._answer_seconds) as deadline:
                    await self._app(scope, limited, bounded)
            except (TooLarge, TooMany):
                if refused is None:
                    raise
                await answer(refused)(scope, receive, send)
            except TimeoutError:
                if begun or not deadline.expired():
                    raise
                late = Problem(503, f"no answer within {self._answer_seconds:g} s")
                if awaiting:
                    late = Problem(408, f"the body did not arrive within {self._answer_seconds:g} s")
                await answer(late)(scope, receive, send)


def application(
    title: str,
    description: str,
    tokens: Tokens | None = None,
    *,
    body_bytes: int = MAX_BODY_BYTES,
    answer_seconds: float = ANSWER_SECONDS,
    public: Collection[str] = (),
    **arguments: Any,
) -> FastAPI:
    """Return a FastAPI application with problem documents for errors, limits of body size and response time, `tokens`
    that every path but `/health` and the `public` ones requires (`run_service` replaces them by the settings'), and
    documentation at `/docs` that needs no internet."""
    app = FastAPIOffline(
        title=title, description=description, redoc_url=None, dependencies=[Depends(_check_query)], **arguments
    )
    app.state.tokens = tokens or Tokens({})
    app.add_middleware(_Limits, body_bytes=body_bytes, answer_seconds=answer_seconds)
    app.add_middleware(Authentication, public=public)  # added last, so called first: before a byte of the body is read
    install_problems(app)
    return app


def _query_parameters(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yield each parameter of the query, and whether it may be repeated."""
    for each in dependant.query_params:
        yield each.alias, get_origin(each.field_info.annotation) is list
    for dependency in dependant.dependencies:
        yield from _query_parameters(dependency)


async def _check_query(request: Request) -> None:
    """Refuse a parameter of the query that the route does not have, or a single one given twice: ignored, it would be
    taken for an answer to what was asked."""
    known = dict(_query_parameters(request.scope["route"].dependant))
    for name in dict.fromkeys(request.query_params):
        if name not in known:
            close = get_close_matches(name.replace("-", "_").lower(), known, n=1, cutoff=0.6)
            hint = f"did you mean {close[0]}?" if close else f"this route has {', '.join(known) or 'none'}"
            raise Problem(
                422,
                f"{name[:100]}: is not a parameter: {hint}",
                errors=[(f"query.{name[:100]}", f"is unknown: {hint}")],
            )
        if len(request.query_params.getlist(name)) > 1 and not known[name]:
            raise Problem(422, f"{name}: is given twice", errors=[(f"query.{name}", "is given twice")])


class _DeadlineProtocol(H11Protocol):
    """A connection that is closed if head and body of a request do not arrive in time. Without it, a client that sends
    a byte now and then would hold a connection without limit."""

    receive_seconds = RECEIVE_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Set a deadline while a request is arriving; none between requests on an open connection."""
        between = self.conn.their_state is h11.IDLE and self.cycle is not None and not self.conn.trailing_data[0]
        if between or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.receive_seconds, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """Leaves signals to the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; `PortInUse` if another process has the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(128)  # early connections wait in the queue
    except OSError as error:
        bound.close()
        raise PortInUse(f"cannot listen on {host}:{port} ({error.strerror})") from None
    return bound


async def serve(
    app: FastAPI,
    bound: socket.socket,
    stop: Stop,
    *,
    receive_seconds: float = RECEIVE_SECONDS,
    allowed_hosts: Collection[str] = (),
    tls: ListenerTls | None = None,
) -> None:
    """Serve until stopped; open requests get `GRACE_SECONDS` to end. `allowed_hosts` are names of the listener next to
    its address and those of loopback. With `tls` it requires TLS."""
    config = uvicorn.Config(
        SameOrigin(app, {bound.getsockname()[0], *allowed_hosts}),
        http=type("Connection", (_DeadlineProtocol,), {"receive_seconds": receive_seconds}),
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=30,
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    server = _Server(config)
    serving = asyncio.create_task(_serve(server, bound), name="http")
    stopped = asyncio.create_task(stop.wait(), name="http-stop")
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopped.cancel()
    await serving


async def _serve(server: uvicorn.Server, bound: socket.socket) -> None:
    try:
        await server.serve(sockets=[bound])
    except SystemExit:
        # uvicorn would end the process from inside the event loop, without closing anything.
        raise RuntimeError("the HTTP application did not start; its log has the reason") from None
    finally:
        bound.close()
