"""Kubernetes API over the `kubernetes` package's asyncio client, which is imported when the first client is made.

Each call is bounded in time, bytes and elements, follows no redirect and ignores the environment's proxies. All open
answers and events share one budget: whoever may create objects chooses what a list contains.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Self
from urllib.parse import quote, urlencode, urlsplit

from pydantic_core import from_json

from weir_runtime.http_client import Body, Budget, TooLarge, TooMany

from .values import count, mapping, text

MAX_ANSWER_BYTES = 4_000_000
LARGE_BYTES, LARGE_ELEMENTS = 6_000_000, 300_000
"""Of what cannot be read in parts: one object, of which etcd stores 1.5 MB, an event of a watch, and lists without pages."""
_OPEN = Budget(44_000_000)
"""Charge of all open answers and events: one large one, and room for small ones."""
BUSY_PAUSE_SECONDS = 0.1
"""Before an answer for which the other open ones leave no room is requested again."""
SILENCE_SECONDS = 150.0
"""Time without a byte after which a watch counts as broken: the API server sends a bookmark each minute."""
CLOSE_SECONDS = 0.1
"""Time that aiohttp needs to end TLS connections after a close."""
OPENED = "OPENED"
"""Type of the first event of a watch: the API server has accepted it."""
JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_UNIX_HOST = "http://localhost"
"""Name of the host in a request to a socket, which kubectl's proxy takes."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Access:
    """Address of the API server, and the files that authenticate both sides."""

    url: str
    """`https://…`, or `unix:PATH` of a socket of this machine."""
    ca_file: Path | None = None
    token_file: Path | None = None
    """File with the bearer token; it is read again when it changes."""

    @classmethod
    def of(cls, url: str, ca_file: Path | None, token_file: Path | None) -> Self:
        """Return the access that settings name; without `url` that of the service account of this pod.

        `ValueError` outside of a pod, for an unreadable file, and if the token would be sent unencrypted.
        """
        if not url:
            host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
            if not host or not port:
                raise ValueError("WEIR_KUBERNETES_URL is empty, and this process does not run in a pod of a cluster")
            host = f"[{host}]" if ":" in host else host
            url, ca_file, token_file = f"https://{host}:{port}", _SERVICE_ACCOUNT / "ca.crt", _SERVICE_ACCOUNT / "token"
        parts = urlsplit(url)
        if parts.scheme not in ("https", "unix") and token_file is not None and parts.hostname not in _LOOPBACK:
            raise ValueError("WEIR_KUBERNETES_URL must begin with https: the token would be sent unencrypted")
        for setting, path in (("WEIR_KUBERNETES_CA_FILE", ca_file), ("WEIR_KUBERNETES_TOKEN_FILE", token_file)):
            if path is not None and not os.access(path, os.R_OK):
                raise ValueError(f"{setting}: cannot read {path}")
        return cls(url.rstrip("/"), ca_file, token_file)

    @property
    def socket(self) -> str:
        """Path of the socket; empty: there is none."""
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else ""

    @property
    def remedy(self) -> str:
        """Advice for a user whose address is not that of an API server."""
        return "check kubectl's context" if self.socket else "check WEIR_KUBERNETES_URL"


@dataclass(frozen=True, slots=True)
class Call:
    """Request as RBAC names it."""

    verb: str
    resource: str
    """Resource, with a subresource after a slash: `deployments/scale`."""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        of = f" of {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{of}" + (f" in namespace {self.namespace}" if self.namespace else "")


class ApiFailed(Exception):
    """Error of a call: refused with `status` and the API's `reason`, or without a response."""

    def __init__(self, call: Call, what: str, status: int | None = None, reason: str = "") -> None:
        self.call = call
        self.what = what
        self.status = status
        self.reason = reason
        super().__init__(what)

    @property
    def where(self) -> str:
        """Call that failed."""
        return str(self.call)

    @property
    def is_denied(self) -> bool:
        """Whether the identity lacks the right, so that a retry is useless until a role changes."""
        return self.status == 403 and self.reason != "Expired"

    def again(self) -> "ApiFailed":
        """Return an equal error, to be raised to another caller."""
        return ApiFailed(self.call, self.what, self.status, self.reason)


class AnswerTooLarge(ApiFailed):
    """A response above a limit; a page of fewer objects may fit."""

    def __init__(self, call: Call, of: str, limit: str) -> None:
        super().__init__(call, f"cannot {call}: {of} has {limit}")
        self.limit = limit


class AnswersBusy(ApiFailed):
    """A response for which the other open ones leave no room; it may fit once they are read."""


class KubernetesApi:
    """One API server. A call ends within `timeout_seconds`, its wait for one of `connections` included; watches do not
    count."""

    def __init__(self, access: Access, *, timeout_seconds: float = 5.0, connections: int = 8) -> None:
        self._access = access
        self._timeout_seconds = timeout_seconds
        self._calls = asyncio.Semaphore(connections)
        self._token: tuple[tuple[int, int], str] | None = None
        self._client: Any = None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
            await asyncio.sleep(CLOSE_SECONDS)

    async def get(
        self,
        call: Call,
        path: str,
        query: Mapping[str, str | int] | None = None,
        *,
        is_large: bool = False,
        accept: str = JSON,
    ) -> Any:
        """Return the decoded response; `ApiFailed` without one. `is_large`: it cannot be requested in parts."""
        return await self.send("GET", call, path, query=query, is_large=is_large, accept=accept)

    async def send(
        self,
        method: str,
        call: Call,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str | int] | None = None,
        content_type: str = JSON,
        is_large: bool = False,
        accept: str = JSON,
    ) -> Any:
        """Return the decoded response of any method; `ApiFailed` without one. `body` is encoded as JSON. A GET waits for room
        among the open responses."""
        await self._prepare()
        busy: AnswersBusy | None = None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while True:
                    try:
                        async with self._calls:
                            headers = {"Accept": accept, "Content-Type": content_type}
                            response = await self._request(method, call, _url(path, query), headers, body)
                            return await self._read(response, call, is_large)
                    except AnswersBusy as error:
                        if method != "GET":
                            raise
                        busy = error
                    await asyncio.sleep(BUSY_PAUSE_SECONDS)
        except TimeoutError:
            raise busy or ApiFailed(call, f"cannot {call}: no answer within {self._timeout_seconds:g} s") from None
        except OSError as error:
            raise self._unreachable(call, error) from None

    async def _read(self, response: Any, call: Call, is_large: bool) -> Any:
        try:
            with _body(is_large) as answer:
                content = await _content(response, call, answer)
                if response.status >= 300:
                    self._refuse(call, response.status, content)
                return self._decoded(content, call, response.headers.get("Content-Type", ""))
        finally:
            response.release()

    async def watch(
        self, call: Call, path: str, version: str, seconds: int
    ) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield `OPENED`, then type and object of each event after `version` until the API server ends the watch, after
        `seconds`.

        `ApiFailed` for a refusal, an `ERROR` event and a broken connection.
        """
        query: dict[str, str | int] = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": seconds,
        }
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._request("GET", call, _url(path, query), {"Accept": JSON}, endless=True)
            try:
                if response.status >= 300:
                    with _body() as answer:
                        self._refuse(call, response.status, await _content(response, call, answer))
                yield OPENED, {}
                # Closed at once: an error that is kept would keep the charge of the event as well.
                async with contextlib.aclosing(_lines(response, call)) as lines:
                    async for line in lines:
                        event = mapping(self._decoded(line, call, JSON))
                        kind, found = event.get("type"), mapping(event.get("object"))
                        if kind == "ERROR":
                            self._refuse(call, count(found.get("code")) or 500, json.dumps(found).encode())
                        if isinstance(kind, str):
                            yield kind, found
            finally:
                response.close()
        except TimeoutError:
            raise ApiFailed(call, f"cannot {call}: no answer in time") from None
        except OSError as error:
            raise self._unreachable(call, error) from None

    async def _prepare(self) -> None:
        """Make the client, outside of any call's time: its import takes seconds on a busy machine, on another thread."""
        if self._client is None:
            await asyncio.to_thread(import_module, "kubernetes.aio.client")
            self._client = self._client or _new_client(self._access)

    async def _request(
        self,
        method: str,
        call: Call,
        url: str,
        headers: Mapping[str, str],
        body: Any = None,
        *,
        endless: bool = False,
    ) -> Any:
        import aiohttp

        own = {"Accept-Encoding": "identity", "User-Agent": "weir", "Content-Type": JSON, **self._authorization(call)}
        url = f"{_UNIX_HOST if self._access.socket else self._access.url}{url}"
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout_seconds, sock_read=SILENCE_SECONDS if endless else None
        )
        try:
            answer = await self._client.call_api(method, url, {**own, **headers}, body, _request_timeout=timeout)
        except aiohttp.ClientError as error:
            raise self._unreachable(call, error) from None
        return answer.response

    def _authorization(self, call: Call) -> dict[str, str]:
        path = self._access.token_file
        if path is None:
            return {}
        try:
            found = path.stat()
            version = (found.st_mtime_ns, found.st_ino)
            if self._token is None or self._token[0] != version:
                self._token = (version, _one_line(path.read_text(encoding="ascii")))
        except (OSError, ValueError) as error:
            raise ApiFailed(
                call, f"cannot {call}: the token in {path} cannot be read ({type(error).__name__})"
            ) from None
        return {"Authorization": f"Bearer {self._token[1]}"}

    def _decoded(self, content: bytes, call: Call, content_type: str) -> Any:
        try:
            return from_json(content)
        except ValueError:
            kind = content_type.split(";", maxsplit=1)[0].strip() or "an unknown type"
            what = f"cannot {call}: answered {text(kind, 100)} instead of JSON: {self._access.remedy}"
            raise ApiFailed(call, what) from None

    def _unreachable(self, call: Call, error: Exception) -> ApiFailed:
        detail = text(str(getattr(error, "os_error", error)), 200) or type(error).__name__
        return ApiFailed(call, f"cannot {call}: the API server {self._access.url} cannot be reached ({detail})")

    def _refuse(self, call: Call, status: int, content: bytes) -> NoReturn:
        """Raise `ApiFailed` with the API's own reason, if the response has one."""
        found: Mapping[str, Any] = {}
        with contextlib.suppress(ValueError):
            found = mapping(from_json(content))
        reason, message = text(found.get("reason"), 100), text(found.get("message"), 300)
        detail = f": {message}" if message else ""
        if status == 403:
            what = f"may not {call} (403){detail}"
        elif status == 401:
            source = self._access.token_file or "no token file"
            what = f"cannot {call} (401): the API server does not accept the token ({source})"
        elif status in (301, 302, 303, 307, 308):
            what = f"cannot {call}: answered with a redirect ({status}), which is not followed"
        elif found.get("kind") != "Status":
            what = f"cannot {call} ({status}): the response is not of a Kubernetes API: {self._access.remedy}"
        else:
            what = f"cannot {call} ({status}){detail}"
        raise ApiFailed(call, what, status, reason)


def _one_line(written: str) -> str:
    """Return a token without the space around it; `ValueError` for one that no header can carry."""
    token = written.strip()
    if not token.isprintable():
        raise ValueError("the token has more than one line")
    return token


def _url(path: str, query: Mapping[str, str | int] | None) -> str:
    return quote(path) + (f"?{urlencode(query)}" if query else "")


def _new_client(access: Access) -> Any:
    """Return the package's client. Importing it takes 1 s and 50 MB, so that only users of Kubernetes pay for it."""
    import aiohttp
    from kubernetes.aio import client

    async def refuse_redirect(_session: Any, _context: Any, found: Any) -> None:
        raise aiohttp.ClientError(f"answered with a redirect ({found.response.status}), which is not followed")

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse_redirect)
    configuration = client.Configuration(host=access.url, ssl_ca_cert=str(access.ca_file) if access.ca_file else None)
    configuration.verify_ssl = True
    configuration.proxy = None
    configuration.connection_pool_maxsize = 0  # watches hold connections; the semaphore bounds the other calls
    configuration.trace_configs = [trace]
    configuration.client_session_kwargs = {
        "trust_env": False,
        "read_bufsize": 2**17,
        "cookie_jar": aiohttp.DummyCookieJar(),
        "auto_decompress": False,
    }
    made: Any = client.ApiClient(configuration)
    if access.socket:
        made.rest_client._create_connector = lambda: aiohttp.UnixConnector(access.socket, limit=0)
    return made


def _body(is_large: bool = False) -> Body:
    if is_large:
        return _OPEN.body(LARGE_BYTES, LARGE_ELEMENTS, is_json=True)
    return _OPEN.body(MAX_ANSWER_BYTES, is_json=True)


async def _content(response: Any, call: Call, body: Body) -> bytes:
    chunks = []
    async for chunk in _chunks(response, call):
        _count(body, chunk, call, "the answer")
        chunks.append(chunk)
    return b"".join(chunks)


def _count(body: Body, part: bytes, call: Call, what: str) -> None:
    try:
        body.add(part)
    except TooLarge as error:
        raise AnswerTooLarge(call, what, str(error)) from None
    except TooMany as error:
        raise AnswersBusy(call, f"cannot {call}: {what} is not read: {error}") from None


async def _chunks(response: Any, call: Call) -> AsyncGenerator[bytes, None]:
    import aiohttp

    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except aiohttp.SocketTimeoutError:
        return  # a silent watch: it is opened again
    except aiohttp.ClientError as error:
        raise ApiFailed(call, f"cannot {call}: the connection broke ({type(error).__name__})") from None


async def _lines(response: Any, call: Call) -> AsyncGenerator[bytes, None]:
    parts: list[bytes] = []
    event = _body(is_large=True)
    try:
        async for chunk in _chunks(response, call):
            first, *rest = chunk.split(b"\n")
            _count(event, first, call, "an event")
            parts.append(first)
            for line in rest:
                whole = b"".join(parts)
                if whole.strip():
                    yield whole
                event.close()
                event, parts = _body(is_large=True), [line]
                _count(event, line, call, "an event")
    finally:
        event.close()
