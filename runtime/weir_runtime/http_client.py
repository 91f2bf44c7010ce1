"""HTTP clients for all of Weir: bounded in time, bytes and memory, uncompressed, without redirects, cookies or the
environment's proxies; and events of a stream.

A client with an allow-list resolves the name at each connect, checks every address, and connects to a checked address
only; certificate and Host header stay those of the name.

A JSON document of `[],` takes 30 times its bytes when it is parsed. So each body of callers and of users' addresses is
charged for its elements as well, counted in its bytes as they arrive: the brackets and commas, of which those inside a
text count too. All open bodies of a process share one budget, since a limit for each alone says nothing about many at
once.
"""

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from ssl import SSLContext
from typing import Any, NamedTuple, Self

import httpcore
import httpx
from pydantic import SecretStr

from .reach import AddressRefused, Allowed, Resolve, checked_addresses, resolve

MAX_ELEMENTS = 200_000
"""Elements of one body: a job of 1,000 operators has 60,000."""
ELEMENT_BYTES = 100
"""Memory of a parsed element: an empty object in a list takes 72 bytes."""
MAX_OPEN_BYTES = 64_000_000
"""Charge of all open bodies of a process, whose container has 256 MiB and more."""
ANSWER_BYTES = 50_000_000
ENDLESS = {"answer_bytes": None}
"""`extensions` of a request with an unbounded response."""
_SAFE_TO_REPEAT = ("Server disconnected", "peer closed connection")
"""Protocol errors that do not quote the peer; h11 puts the unreadable line into the others."""
_ESCAPED = re.compile(rb"\\.", re.DOTALL)


class TooLarge(Exception):
    """A body above its own limit."""


class TooMany(Exception):
    """A body for which the other open bodies leave no room."""


class Budget:
    """The charge of all open bodies, at most `limit_bytes`."""

    def __init__(self, limit_bytes: int = MAX_OPEN_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._open_bytes = 0

    @property
    def open_bytes(self) -> int:
        return self._open_bytes

    def body(self, max_bytes: int | None, max_elements: int = MAX_ELEMENTS, *, is_json: bool = False) -> "Body":
        """Return the account of a new body; `max_bytes` None: a stream that is not kept, and is not charged. With `is_json`
        no comma or bracket in a text counts as an element."""
        return Body(self, max_bytes, max_elements, is_json=is_json)

    def charge(self, charge_bytes: int) -> None:
        if self._open_bytes + charge_bytes > self._limit_bytes:
            raise TooMany("too many large bodies are open at once")
        self._open_bytes += charge_bytes

    def release(self, charge_bytes: int) -> None:
        self._open_bytes -= charge_bytes


def elements_in(content: bytes) -> int:
    """Return the brackets and commas. (`messages.excess_of` counts the same, and imports the contracts: a second for a command
    that only speaks HTTP.)"""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


class Body:
    """The account of one body. Leave it as a context, or call `close`: its charge is released."""

    def __init__(self, budget: Budget, max_bytes: int | None, max_elements: int, *, is_json: bool) -> None:
        self._budget = budget
        self._max_bytes = max_bytes
        self._max_elements = max_elements
        self._charged = 0
        self._elements = 0
        self._is_json = is_json
        self._open_text = b""
        """Beginning of a text that the next part continues: its quote, and a backslash before its next character."""
        self.received_bytes = 0

    def add(self, part: bytes) -> None:
        """Count a part that arrived. `TooLarge` or `TooMany`, after which nothing more may be read."""
        if self._max_bytes is None:
            return
        self.received_bytes += len(part)
        counted = self._outside_texts(part) if self._is_json else part
        elements = elements_in(counted)
        self._elements += elements
        if self.received_bytes > self._max_bytes:
            raise TooLarge(f"more than {self._max_bytes} bytes")
        if self._elements > self._max_elements:
            raise TooLarge(f"more than {self._max_elements} elements")
        charge_bytes = len(part) + ELEMENT_BYTES * elements
        self._budget.charge(charge_bytes)
        self._charged += charge_bytes

    def _outside_texts(self, part: bytes) -> bytes:
        plain = _ESCAPED.sub(b"", self._open_text + part)
        pieces = plain.split(b'"')
        self._open_text = (b'"' if len(pieces) % 2 == 0 else b"") + (b"\\" if plain.endswith(b"\\") else b"")
        return b"".join(pieces[::2])

    def close(self) -> None:
        self._budget.release(self._charged)
        self._charged = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Certificates(NamedTuple):
    """PEM files of a TLS connection. None: the usual authorities only; no certificate of the client."""

    ca_file: Path | None = None
    """Further authorities that the server's certificate may be signed by."""
    certificate_file: Path | None = None
    key_file: Path | None = None


class AnswerRefused(httpx.TransportError):
    """A response that is not read: compressed, or larger than the limit."""


class ConnectRefused(httpx.ConnectError):
    """A host or address that the settings do not allow; the sentence names the setting."""


def async_client(
    base_url: str = "",
    token: SecretStr | None = None,
    timeout_seconds: float = 3.0,
    *,
    connect_seconds: float | None = None,
    answer_bytes: int = ANSWER_BYTES,
    connections: int = 50,
    idle_connections: int = 20,
    allowed: Allowed | None = None,
    authorization: SecretStr | None = None,
    certificates: Certificates | None = None,
    resolve: Resolve = resolve,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """Return a client of a service or, with `allowed`, of an address from a user. `timeout_seconds` bounds each wait,
    not the request. `authorization` is the value of the header where it is no bearer `token`.

    Every failure is an `httpx.HTTPError` or, for an invalid address, `httpx.InvalidURL`. `transport` replaces the
    network in tests.
    """
    pool = httpcore.AsyncConnectionPool(
        ssl_context=tls_context(certificates),
        max_connections=connections,
        max_keepalive_connections=idle_connections,
        keepalive_expiry=5.0,
        network_backend=httpcore.AnyIOBackend() if allowed is None else _CheckedBackend(allowed, resolve),
    )

    async def check_head(response: httpx.Response) -> None:
        _check_head(response, answer_bytes, of_user=allowed is not None)

    if authorization is None and token is not None:
        authorization = bearer(token)
    return httpx.AsyncClient(
        transport=transport or _Network(pool),
        event_hooks={"response": [check_head]},
        **_common(base_url, authorization, httpx.Timeout(timeout_seconds, connect=connect_seconds or timeout_seconds)),
    )


def client(
    base_url: str = "",
    token: SecretStr | None = None,
    timeout: float | httpx.Timeout = 10.0,
    *,
    answer_bytes: int = ANSWER_BYTES,
    transport: httpx.BaseTransport | None = None,
) -> httpx.Client:
    """Return a client without an event loop, for addresses that the caller chose; `timeout` in s bounds each wait."""
    return httpx.Client(
        transport=transport or httpx.HTTPTransport(verify=tls_context(None), trust_env=False),
        event_hooks={"response": [lambda response: _check_head(response, answer_bytes, of_user=False)]},
        **_common(base_url, None if token is None else bearer(token), timeout),
    )


def bearer(token: SecretStr) -> SecretStr:
    """Return the value of the Authorization header for a token."""
    return SecretStr(f"Bearer {token.get_secret_value()}")


def _common(base_url: str, authorization: SecretStr | None, timeout: float | httpx.Timeout) -> dict[str, Any]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "weir"}
    if authorization is not None:
        headers["Authorization"] = authorization.get_secret_value()
    return {
        "base_url": base_url,
        "headers": headers,
        "timeout": timeout,
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),
        "follow_redirects": False,
        "trust_env": False,
    }


def tls_context(certificates: Certificates | None) -> SSLContext:
    """Return a context that trusts httpx's authorities (or `SSL_CERT_FILE`), the system's and the file's, and shows the
    client's certificate. Cached until a file changes: reading them is slow. `OSError` or `SSLError` if one cannot be used."""
    states = [path.stat() for path in certificates or () if path is not None]
    return _tls_context(certificates, tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in states))


@lru_cache(maxsize=200)
def _tls_context(certificates: Certificates | None, _states: tuple[tuple[int, int, int], ...]) -> SSLContext:
    context = httpx.create_ssl_context()
    context.load_default_certs()
    if certificates is not None and certificates.ca_file is not None:
        context.load_verify_locations(certificates.ca_file)
    if certificates is not None and certificates.certificate_file is not None:
        # Without a password an encrypted key would be asked for at the terminal.
        context.load_cert_chain(certificates.certificate_file, certificates.key_file, password="")
    return context


_OF_USERS = Budget()
"""Of all open responses of addresses that users name."""
_OWN = Budget(sys.maxsize)
"""Responses of Weir's own services are as large as they are."""


class _Body(httpx.AsyncByteStream, httpx.SyncByteStream):
    """Passes at most `limit` bytes; None: no limit. That of an address from a user also has a limit of elements, and
    its part of the process's budget."""

    def __init__(self, stream: Any, limit: int | None, *, of_user: bool) -> None:
        self._stream = stream
        self._body = _OF_USERS.body(limit) if of_user else _OWN.body(limit, sys.maxsize)

    def _counted(self, chunk: bytes) -> bytes:
        try:
            self._body.add(chunk)
        except TooLarge as error:
            raise _too_large(str(error)) from None
        except TooMany as error:
            raise AnswerRefused(f"was not read: {error}") from None
        return chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated():
            async for chunk in self._stream:
                yield self._counted(chunk)

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield self._counted(chunk)

    async def aclose(self) -> None:
        self._body.close()
        with _translated():
            await self._stream.aclose()

    def close(self) -> None:
        self._body.close()
        self._stream.close()


def _check_head(response: httpx.Response, limit: int, *, of_user: bool) -> None:
    """Bound the body; `AnswerRefused` if the head announces a compressed or too large one."""
    allowed: int | None = response.request.extensions.get("answer_bytes", limit)
    response.stream = _Body(response.stream, allowed, of_user=of_user)
    encodings = response.headers.get_list("content-encoding", split_commas=True)
    if any(each.strip().lower() not in ("", "identity") for each in encodings):
        raise AnswerRefused("answered compressed, which the request excluded")
    length = response.headers.get("content-length", "")
    if allowed is not None and length.isdigit() and int(length[:18]) > allowed:
        raise _too_large(f"more than {allowed} bytes")


def _too_large(excess: str) -> AnswerRefused:
    return AnswerRefused(f"answered with {excess}, which are not read further")


class _Network(httpx.AsyncBaseTransport):
    """httpx over an own pool: httpx's transport accepts no network backend."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        outgoing = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _translated():
            answer = await self._pool.handle_async_request(outgoing)
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream, None, of_user=False),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate httpcore's errors to httpx's, without text of the peer."""
    try:
        yield
    except AddressRefused as error:
        raise ConnectRefused(str(error)) from None
    except httpcore.RemoteProtocolError as error:
        safe = str(error).startswith(_SAFE_TO_REPEAT)
        raise httpx.RemoteProtocolError(str(error) if safe else "the answer is not valid HTTP") from None
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
        kind: type[httpx.TransportError] = getattr(httpx, type(error).__name__, httpx.TransportError)
        raise kind(str(error)) from None
    except httpcore.UnsupportedProtocol as error:
        raise httpx.UnsupportedProtocol(str(error)) from None


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves at each connect, checks every address, and connects to checked addresses only."""

    def __init__(self, allowed: Allowed, resolve: Resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await checked_addresses(host, port, self._allowed, self._resolve)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"{host} was not resolved within {timeout:g} s") from None
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from None
        part = None if timeout is None else timeout / max(1, len(addresses))
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._plain.connect_tcp(address, port, part, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, *_arguments: Any, **_more: Any) -> httpcore.AsyncNetworkStream:
        raise AddressRefused("no client connects to sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._plain.sleep(seconds)


@dataclass(frozen=True)
class Event:
    """One server-sent event: `kind` is plan, outcome, …; `data` its message."""

    id: str
    kind: str
    data: Any


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Yield the server-sent events of a stream's lines (WHATWG HTML, 9.2.6), without those whose data is not JSON."""
    event_id, kind, data = "", "message", list[str]()
    for line in lines:
        if not line:
            if data:
                with contextlib.suppress(ValueError):
                    yield Event(event_id, kind, json.loads("\n".join(data)))
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            event_id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
