"""Clients that are bounded in time and bytes."""

import ast
import asyncio
import gzip
import re
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from weir_runtime.http_client import ENDLESS, AnswerRefused, ConnectRefused, async_client, client
from weir_runtime.reach import Allowed

ROOT = Path(__file__).parents[3]
LOOPBACK = Allowed.of("http,https", "*", "loopback", prefix="WEIR_TARGET")
LIMIT = 100_000


class Server:
    """Writes the same bytes to every request, and keeps the heads of the requests."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heads: list[str] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
            writer.write(self.answer)
            await writer.drain()
        except (OSError, EOFError):
            pass  # a client that does not read on
        finally:
            writer.close()


@asynccontextmanager
async def serving(answer: bytes) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


def answer(body: bytes = b"{}", *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


Get = Callable[..., Awaitable[httpx.Response]]


async def get_async(url: str, **arguments: Any) -> httpx.Response:
    async with async_client(answer_bytes=LIMIT, timeout_seconds=5.0) as http:
        return await http.get(url, **arguments)


async def get_in_thread(url: str, **arguments: Any) -> httpx.Response:
    def get() -> httpx.Response:
        with client(answer_bytes=LIMIT, timeout=5.0) as http:
            return http.get(url, **arguments)

    return await asyncio.to_thread(get)


both = pytest.mark.parametrize("get", [get_async, get_in_thread])


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(50_000_000))


@both
@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "identity, gzip", "deflate", "br", "x-unknown"])
async def test_compressed_answers_are_refused_unread(get: Get, encoding: str) -> None:
    """Requested uncompressed; a body of 50 MB in 50 kB is not unpacked."""
    packed = _bomb()
    assert len(packed) < LIMIT
    async with serving(answer(packed, f"Content-Encoding: {encoding}", f"Content-Length: {len(packed)}")) as server:
        tracemalloc.start()
        try:
            with pytest.raises(AnswerRefused, match="compressed"):
                await get(server.url)
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()
    assert "accept-encoding: identity\r\n" in server.heads[0]


@both
@pytest.mark.parametrize("headers", [[f"Content-Length: {LIMIT + 1}"], []], ids=["announced", "not announced"])
async def test_no_more_is_read_than_the_limit(get: Get, headers: list[str]) -> None:
    """Counted as it comes over the wire."""
    async with serving(answer(b" " * (LIMIT + 1), *headers)) as server:
        with pytest.raises(AnswerRefused, match=f"more than {LIMIT} bytes"):
            await get(server.url)
    async with serving(answer(b" " * LIMIT)) as server:
        assert len((await get(server.url)).content) == LIMIT


async def test_a_users_address_cannot_fill_the_memory_with_elements() -> None:
    """2 MB of `[],` within the limit of bytes would be 60 MB of lists: the response is not read to its end."""
    body = b"[" + b"[]," * 600_000 + b"[]]"
    async with (
        serving(answer(body)) as server,
        async_client(answer_bytes=2_000_000, timeout_seconds=5.0, allowed=LOOPBACK) as http,
    ):
        tracemalloc.start()
        try:
            with pytest.raises(AnswerRefused, match="more than 200000 elements"):
                await http.get(server.url)
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


async def test_users_addresses_together_cannot_fill_the_memory() -> None:
    """Each response stays within its limits and does not end; together they are bounded, and the rest is refused."""
    part, held = b"[" + b"1," * 190_000, asyncio.Event()

    async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + part)
        await writer.drain()
        await held.wait()
        writer.close()

    listener = await asyncio.start_server(never_ends, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with async_client(answer_bytes=2_000_000, timeout_seconds=10.0, allowed=LOOPBACK) as http:
        requests = [asyncio.create_task(http.get(url)) for _ in range(6)]
        done, waiting = await asyncio.wait(requests, timeout=10.0, return_when=asyncio.FIRST_EXCEPTION)
        held.set()
        await asyncio.wait(waiting)
    listener.close()
    refused = [task.exception() for task in requests if task.exception() is not None]
    assert done
    assert {str(error) for error in refused} == {"was not read: too many large bodies are open at once"}
    assert 1 <= len(refused) <= 4


@both
async def test_a_stream_without_an_end_has_no_limit(get: Get) -> None:
    """Where the request permits it."""
    async with serving(answer(b" " * 2 * LIMIT)) as server:
        assert len((await get(server.url, extensions=ENDLESS)).content) == 2 * LIMIT


@both
async def test_redirects_and_proxies_are_not_followed(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would be ways around the checks."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(answer(b"", "Location: /other", "Content-Length: 0", status="302 Found")) as server:
        assert (await get(server.url)).status_code == 302
    assert len(server.heads) == 1


async def test_cookies_are_not_kept() -> None:
    """A target gets its own token, and no cookie of another one."""
    async with (
        serving(answer(b"{}", "Set-Cookie: a=b", "Content-Length: 2")) as server,
        async_client(server.url, SecretStr("mine")) as http,
    ):
        for _ in range(2):
            await http.get("/")
    assert "cookie" not in server.heads[1]
    assert "authorization: bearer mine" in server.heads[1]


@pytest.mark.parametrize(
    "response", [b"SSH-2.0-hunter2\r\n\r\n", answer(b"", "hunter2 : x"), answer(b"", "X: \x00hunter2")]
)
async def test_what_is_not_http_is_not_repeated(response: bytes) -> None:
    """The error goes into messages that others read."""
    async with serving(response) as server:
        with pytest.raises(httpx.RemoteProtocolError) as failed:
            await get_async(server.url)
    assert str(failed.value) == "the answer is not valid HTTP"


async def test_a_name_that_changes_its_address_is_checked_at_each_connect() -> None:
    """The first connect is allowed; then the name stands for a metadata service."""
    stands_for = ["127.0.0.1"]

    async def resolve(host: str, _port: int) -> list[str]:
        assert host == "flink.example.org"
        return list(stands_for)

    async with (
        serving(answer(b"{}", "Connection: close")) as server,
        async_client(allowed=LOOPBACK, resolve=resolve) as http,
    ):
        url = f"http://flink.example.org:{server.port}"
        assert (await http.get(url)).status_code == 200
        for address in ("169.254.169.254", "::ffff:169.254.169.254"):
            stands_for[:] = ["127.0.0.1", address]
            with pytest.raises(ConnectRefused, match=r"\(of flink.example.org\) is a link-local address"):
                await http.get(url)
        assert len(server.heads) == 1
        assert f"host: flink.example.org:{server.port}" in server.heads[0]


async def test_the_next_address_is_tried() -> None:
    """If the first one refuses."""

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["::1", "127.0.0.1"]

    async with serving(answer()) as server, async_client(allowed=LOOPBACK, resolve=resolve) as http:
        assert (await http.get(f"http://flink:{server.port}")).status_code == 200


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("label too long")])
async def test_a_name_without_an_address_is_a_failed_connect(error: Exception) -> None:
    """As every other error of a client."""

    async def resolve(_host: str, _port: int) -> list[str]:
        raise error

    async with async_client(allowed=LOOPBACK, resolve=resolve) as http:
        with pytest.raises(httpx.ConnectError, match="flink cannot be resolved"):
            await http.get("http://flink")


async def test_a_slow_name_server_is_a_timeout() -> None:
    """The time to connect includes it."""

    async def resolve(_host: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with async_client(allowed=LOOPBACK, resolve=resolve, timeout_seconds=0.05) as http:
        with pytest.raises(httpx.ConnectTimeout, match="was not resolved within"):
            await http.get("http://flink")


MAKES = {
    "Client",
    "AsyncClient",
    "HTTPTransport",
    "AsyncHTTPTransport",
    "get",
    "put",
    "post",
    "delete",
    "request",
    "stream",
}


def test_every_client_is_made_in_one_place() -> None:
    """Services and command line have none that is unbounded, follows redirects or uses a proxy."""
    found = []
    for folder in ("runtime", "engines", "services", "cli"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if not re.search(r"^\s*(import|from) (httpx|requests|urllib)", text, re.MULTILINE):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    of = node.func.value
                    if isinstance(of, ast.Name) and of.id in ("httpx", "requests") and node.func.attr in MAKES:
                        found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
                if isinstance(node, ast.Import | ast.ImportFrom) and "urllib.request" in ast.unparse(node):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {place.split(":")[0] for place in found} == {"runtime/weir_runtime/http_client.py"}
