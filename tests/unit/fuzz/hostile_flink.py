"""A JobManager that means harm: the recorded answers of a real cluster, spoilt in their values or in how they come."""

import asyncio
import json
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from tests.unit.engines.flink.fake_rest import recorded, task_managers_answer

JOB = str(recorded("job")["jid"])
FILES = {
    "/jobs/overview": "jobs_overview",
    "/overview": "overview",
    f"/jobs/{JOB}": "job",
    f"/jobs/{JOB}/metrics": "job_metrics",
    f"/jobs/{JOB}/resource-requirements": "resource_requirements",
    f"/jobs/{JOB}/checkpoints": "checkpoints",
    f"/jobs/{JOB}/checkpoints/config": "checkpoints_config",
    f"/jobs/{JOB}/jobmanager/config": "jobmanager_config",
}
CONFIG = {"refresh-interval": 1000, "flink-version": "2.2.1", "features": {"web-rescale": True}}
PATHS = [*FILES, "/config", "/taskmanagers"]


@cache
def honest(path: str, query: str) -> Any:
    """Return the recorded answer of a real cluster."""
    if path == "/config":
        return CONFIG
    if path.startswith("/taskmanagers"):
        return task_managers_answer(path, query.removeprefix("get="))
    if "/vertices/" in path:
        return recorded("source_metrics" if "get=" in query else "source_metric_names")
    return recorded(FILES[path]) if path in FILES else {"errors": [f"no {path}"]}


def spoil(value: Any, nonsense: Any, chance: random.Random) -> Any:
    """The same document with about one value in eight replaced."""
    if chance.random() < 0.12:
        return nonsense
    if isinstance(value, dict):
        return {key: spoil(inner, nonsense, chance) for key, inner in value.items()}
    if isinstance(value, list):
        return [spoil(inner, nonsense, chance) for inner in value]
    return value


@cache
def body(path: str, query: str = "") -> bytes:
    return json.dumps(honest(path, query)).encode()


Manner = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]
"""How an answer is written, given the body that would be right."""


async def well(out: asyncio.StreamWriter, content: bytes) -> None:
    out.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)


async def cut_off(out: asyncio.StreamWriter, content: bytes) -> None:
    """A complete answer in HTTP, half of one in JSON."""
    await well(out, content[: len(content) // 2])


async def torn(out: asyncio.StreamWriter, content: bytes) -> None:
    """Announces more than it sends, then closes."""
    out.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + content[:20])
    await out.drain()
    out.close()


async def drip(out: asyncio.StreamWriter, content: bytes) -> None:
    """One byte at a time, each in time for a timeout that is only for the next one."""
    out.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content))
    for byte in content:
        out.write(bytes([byte]))
        await out.drain()
        await asyncio.sleep(0.02)


async def header_drip(out: asyncio.StreamWriter, content: bytes) -> None:
    del content
    out.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        out.write(b"X: y\r\n")
        await out.drain()
        await asyncio.sleep(0.02)


async def silence(out: asyncio.StreamWriter, content: bytes) -> None:
    del out, content
    await asyncio.Event().wait()


async def reset(out: asyncio.StreamWriter, content: bytes) -> None:
    del content
    out.transport.abort()


async def babble(out: asyncio.StreamWriter, content: bytes) -> None:
    """Not HTTP."""
    del content
    out.write(bytes(random.Random(7).randbytes(400)))
    await out.drain()
    out.close()


async def flood(out: asyncio.StreamWriter, content: bytes) -> None:
    """50 MB in chunks."""
    del content
    out.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(50):
        out.write(b"F4240\r\n" + b"[" * 1_000_000 + b"\r\n")
        await out.drain()
    out.write(b"0\r\n\r\n")


BOMB_BYTES = 100_000_000


@cache
def compressed_twice() -> bytes:
    """Less than 1 kB that becomes 100 MB."""
    inner, outer = (zlib.compressobj(9, wbits=31) for _ in range(2))
    million = bytes(1_000_000)
    once = b"".join([*(inner.compress(million) for _ in range(BOMB_BYTES // len(million))), inner.flush()])
    return outer.compress(once) + outer.flush()


async def bomb(out: asyncio.StreamWriter, content: bytes) -> None:
    del content
    packed = compressed_twice()
    out.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)


async def round_and_round(out: asyncio.StreamWriter, content: bytes) -> None:
    """Redirects to itself."""
    del content
    out.write(b"HTTP/1.1 302 Found\r\nLocation: /jobs/overview\r\nContent-Length: 0\r\n\r\n")


async def nowhere(out: asyncio.StreamWriter, content: bytes) -> None:
    del content
    out.write(b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n")


async def refusal(out: asyncio.StreamWriter, content: bytes) -> None:
    """An error with a message of a megabyte."""
    del content
    errors = json.dumps({"errors": ["a.b.Exception: " * 70_000]}).encode()
    out.write(b"HTTP/1.1 500 Oh\r\nContent-Length: %d\r\n\r\n" % len(errors) + errors)


MANNERS: dict[str, Manner] = {
    manner.__name__: manner
    for manner in (
        cut_off,
        torn,
        drip,
        header_drip,
        silence,
        reset,
        babble,
        flood,
        bomb,
        round_and_round,
        nowhere,
        refusal,
    )
}


@asynccontextmanager
async def listening(manner: Manner, spoilt: Callable[[str], bool] = lambda path: True) -> AsyncIterator[str]:
    """A server that answers with `manner` where `spoilt` says so and well elsewhere; its address."""
    open_ones: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_ones.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                for line in head.splitlines():
                    if line.lower().startswith("content-length:"):
                        await reader.readexactly(int(line.split(":")[1]))
                path, _, query = head.split(" ")[1].partition("?")
                await (manner if spoilt(path) else well)(out, body(path, query))
                await out.drain()
        except (OSError, EOFError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client closed the connection, or the test is over
        finally:
            out.transport.abort()
            open_ones.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(open_ones):
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
