"""Asks planners over HTTP: only where the settings allow, within a deadline, and reads no more than it must.

httpcore and not httpx: no proxies from the environment, no redirects, no cookies, no decompression, and a network backend of our
own that connects to the very address it has checked, while certificate and Host header stay those of the name.
"""

import asyncio
import json
import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpcore
import httpx
from pydantic_core import from_json
from weir_contracts import MAX_JSON_DEPTH, MAX_REPLY_BYTES, MAX_REQUEST_BYTES

from services.planner.core.addresses import AddressRefused, Allowed
from services.planner.failures import TIMEOUT, PlannerFailed

RESOLVERS = 8
"""Names resolved at once: a slow name server must not use up the threads of everything else."""
MOST_CONNECTIONS = 256
LARGE_BYTES = 50_000
"""Answers above are read beside the event loop."""

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Post(Protocol):
    """`PlannerClient.post_json`, for who speaks another protocol over it."""

    async def __call__(self, url: str, body: Any, timeout_seconds: float, credential: str | None) -> Any: ...


@dataclass(frozen=True)
class Answer:
    """What came back: its status, its media type in small letters, its body."""

    status: int
    media_type: str
    body: bytes


class Credentials:
    """Bearer tokens by name, one file each, read anew at each use so that they can be exchanged. They are never shown."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def token(self, name: str) -> str:
        """`PlannerFailed` that names the setting where there is none of that name."""
        where = "WEIR_PLANNER_CREDENTIALS_FOLDER"
        if self._folder is None:
            raise PlannerFailed(f"credential {name} is not known: {where} names no folder", counts=False)
        try:
            token = (self._folder / name).read_text().strip()
        except (OSError, ValueError):
            raise PlannerFailed(f"credential {name} is not a readable file in {where}", counts=False) from None
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise PlannerFailed(f"credential {name} in {where} is not one line of a token", counts=False)
        return token


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves at each connect, checks every address, and connects to those and to nothing else."""

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
        addresses = await self._resolve(host, port)
        for address in addresses:
            self._allowed.check_address(address, host)
        part = None if timeout is None else timeout / max(1, len(addresses))
        failure: Exception = httpcore.ConnectError("it has no address")
        for address in addresses:
            try:
                return await self._plain.connect_tcp(address, port, part, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, *_arguments: Any, **_more: Any) -> httpcore.AsyncNetworkStream:
        raise AddressRefused("planners are not asked over sockets of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._plain.sleep(seconds)


class PlannerClient:
    """Exchanges with planners; every failure is a `PlannerFailed` whose sentence can be shown."""

    def __init__(
        self,
        allowed: Allowed,
        credentials: Credentials | None = None,
        *,
        reply_bytes: int = MAX_REPLY_BYTES,
        request_bytes: int = MAX_REQUEST_BYTES,
        ca_file: Path | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self.allowed = allowed
        self._credentials = credentials or Credentials(None)
        self._reply_bytes = reply_bytes
        self.request_bytes = request_bytes
        self._resolvers = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="resolve")
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=_tls(ca_file),
            max_connections=MOST_CONNECTIONS,
            # Many servers close an idle connection after 5 s, which is how far apart questions are: some would be lost in between.
            max_keepalive_connections=0,
            network_backend=_CheckedBackend(allowed, resolve or self._addresses),
        )

    async def close(self) -> None:
        await self._pool.aclose()
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    def check(self, url: str, credential: str | None = None) -> None:
        """`PlannerFailed` unless it may be asked at all, as far as that can be known without connecting."""
        try:
            self.allowed.check_url(url)
        except AddressRefused as error:
            raise PlannerFailed(str(error), counts=False) from None
        if credential is not None:
            self._credentials.token(credential)

    async def post_json(self, url: str, body: Any, timeout_seconds: float, credential: str | None) -> Any:
        """What a 200 says as JSON; `body` is bytes of JSON already, or anything that can be written as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body, allow_nan=False).encode()
        return await self._json("POST", url, content, timeout_seconds, credential)

    async def get_json(self, url: str, timeout_seconds: float, credential: str | None) -> Any:
        return await self._json("GET", url, None, timeout_seconds, credential)

    async def _json(self, method: str, url: str, content: bytes | None, seconds: float, credential: str | None) -> Any:
        answer = await self.exchange(method, url, content, seconds, credential)
        return await read_json(usable(answer))

    async def exchange(
        self, method: str, url: str, content: bytes | None, timeout_seconds: float, credential: str | None = None
    ) -> Answer:
        """One request and its whole answer, whatever its status."""
        self.check(url)
        if content is not None and len(content) > self.request_bytes:
            raise PlannerFailed(
                f"the request is {len(content)} bytes, more than {self.request_bytes}, and was not sent", counts=False
            )
        token = self._credentials.token(credential) if credential is not None else None
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await self._exchange(method, url, content, timeout_seconds, token)
        except TimeoutError:
            raise PlannerFailed(f"gave no answer within {timeout_seconds:g} s", code=TIMEOUT) from None
        except AddressRefused as error:
            raise PlannerFailed(str(error), counts=False) from None
        except httpcore.TimeoutException:
            raise PlannerFailed(f"gave no answer within {timeout_seconds:g} s", code=TIMEOUT) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ssl.SSLError) as error:
            raise PlannerFailed(f"could not be asked: {_words(error)}") from None
        except (UnicodeError, ValueError, httpcore.UnsupportedProtocol) as error:
            raise PlannerFailed(f"could not be asked: {_words(error)}", counts=False) from None
        if token is not None and token.encode() in answer.body:
            raise PlannerFailed("repeats its credential in its answer, which is not read further")
        return answer

    async def _exchange(
        self, method: str, url: str, content: bytes | None, seconds: float, token: str | None
    ) -> Answer:
        headers: dict[bytes | str, bytes | str] = {
            "Host": httpx.URL(url).netloc.decode("ascii"),
            "Accept": "application/json",
        }
        headers |= {"Accept-Encoding": "identity", "User-Agent": "weir-planner"}
        if content is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        times = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
        async with self._pool.stream(
            method, url, headers=headers, content=content, extensions={"timeout": times}
        ) as response:
            told = {name.lower(): value for name, value in response.headers}
            if told.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
                raise PlannerFailed("answered compressed, though it was asked not to")
            length = told.get(b"content-length", b"")
            if length.isdigit() and int(length[:18]) > self._reply_bytes:
                raise self._too_large()
            body = bytearray()
            async for chunk in response.aiter_stream():
                body += chunk
                if len(body) > self._reply_bytes:
                    raise self._too_large()
            media_type = told.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
            return Answer(response.status, media_type, bytes(body))

    def _too_large(self) -> PlannerFailed:
        return PlannerFailed(f"answered with more than {self._reply_bytes} bytes, which are not read further")

    async def _addresses(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._resolvers, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(each[4][0]) for each in found))


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def usable(answer: Answer) -> bytes:
    """The body of a 200 that says it is JSON; `PlannerFailed` with the reason otherwise."""
    status = answer.status
    if 300 <= status < 400:
        raise PlannerFailed(f"answered {status}, a redirect, which is not followed")
    if status != 200:
        sick = status >= 500 or status in (408, 429)
        raise PlannerFailed(f"answered {status}{_said(answer)}", counts=sick)
    if not is_json(answer.media_type):
        raise PlannerFailed(f"answered with content type {answer.media_type[:60] or 'unknown'}, not application/json")
    return answer.body


def is_json(media_type: str) -> bool:
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _said(answer: Answer) -> str:
    """What an error says of itself, in the two places where planners say it."""
    if not is_json(answer.media_type):
        return ""
    try:
        document = from_json(answer.body)
    except ValueError:
        return ""
    words = (document.get("detail") or document.get("message")) if isinstance(document, dict) else None
    return f": {' '.join(words.split())[:300]}" if isinstance(words, str) else ""


async def read_json(body: bytes) -> Any:
    """A body as JSON of bounded depth with finite numbers; `PlannerFailed` that says what is wrong otherwise."""
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(_read, body)
    return _read(body)


def _read(body: bytes) -> Any:
    try:
        document = from_json(body)
    except ValueError as error:
        raise PlannerFailed(f"answered something that is not JSON: {_words(error)}") from None
    level: list[Any] = [document]
    for _depth in range(MAX_JSON_DEPTH + 1):
        below: list[Any] = []
        for each in level:
            if isinstance(each, float) and not math.isfinite(each):
                raise PlannerFailed("answered with NaN or infinity, which are no numbers anybody can act on")
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
        if not below:
            return document
        level = below
    raise PlannerFailed(f"answered with more than {MAX_JSON_DEPTH} levels of lists and objects in one another")


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
