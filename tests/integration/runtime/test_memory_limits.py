"""Each service in the memory of its container, against what its own limits let in.

The oracle is the kernel's: the largest resident memory of the process (VmHWM), beside the limit in its manifest.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from weir_contracts import parse_policy
from weir_contracts.topics import POLICIES

from runtime.kafka_bus import KafkaBus
from runtime.service import topic_specs
from testbed.kafka import KafkaBroker
from testbed.process import wait_until
from testbed.redis import RedisServer
from testbed.service import WeirService
from tests.unit.knowledge.builders import document

ROOT = Path(__file__).parents[3]
DATABASE = 11
TOKEN = "a-token-of-sixteen-characters"  # noqa: S105 - of this test
CALLERS = 60
UNITS = {"Mi": 2**20, "Gi": 2**30}


def limit_bytes(service: str) -> int:
    """Return the memory limit of a service's container."""
    for each in yaml.safe_load_all((ROOT / "deploy" / "k8s" / "base" / f"{service}.yaml").read_text()):
        if each["kind"] == "Deployment":
            limit = each["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
            return int(limit[:-2]) * UNITS[limit[-2:]]
    raise AssertionError(f"{service} has no Deployment")


def largest_bytes(service: WeirService) -> int:
    """Return the largest memory that the process ever had in use."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


@pytest.fixture
def knowledge(kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> Iterator[WeirService]:
    settings = {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "WEIR_KNOWLEDGE_REDIS_URL": f"redis://127.0.0.1:{redis_server.port}/{DATABASE}",
        "WEIR_TOKENS": json.dumps({TOKEN: {"name": "ada", "role": "write"}}),
    }
    with WeirService("knowledge", tmp_path, settings) as service:
        service.wait_ready()
        yield service


async def unfinished(port: int, token: str | None, body: bytes) -> bytes:
    """Send a body that does not end, and return the head of the response, or nothing within some seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "PUT /v1/policies/shop/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body) + 1}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "") + "\r\n"
    try:
        async with asyncio.timeout(8):
            writer.write(head.encode() + body)
            await writer.drain()
            return await reader.read(200)
    except (TimeoutError, OSError):
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("token", "body", "statuses"),
    [
        (None, b"[" * 1_900_000, {401}),
        (TOKEN, b"[" + b"[]," * 60_000, {503}),
        (TOKEN, b'["' + b"x" * 1_900_000, {503}),
        (TOKEN, b"[" + b"[]," * 600_000, {413, 503}),
    ],
    ids=["no token", "elements", "text", "too many elements"],
)
async def test_callers_do_not_fill_the_memory_of_knowledge(
    knowledge: WeirService, token: str | None, body: bytes, statuses: set[int]
) -> None:
    """60 callers that each stay within the limits and do not end: those for which there is no room are refused, the
    listener answers others meanwhile, and the process stays in its limit."""
    sending = [asyncio.create_task(unfinished(knowledge.port, token, body)) for _ in range(CALLERS)]
    await asyncio.sleep(0)
    began = time.monotonic()
    async with httpx.AsyncClient() as http:
        live = await http.get(f"{knowledge.url}/health/live", timeout=10.0)
    answered_seconds = time.monotonic() - began
    answers = [answer for answer in await asyncio.gather(*sending) if answer]
    knowledge.process.check()
    assert live.status_code == 200
    found = {int(answer.split()[1]) for answer in answers}
    assert found and found <= statuses
    assert largest_bytes(knowledge) < limit_bytes("knowledge"), f"live answered after {answered_seconds:.1f} s"


@asynccontextmanager
async def hostile_flink() -> AsyncIterator[int]:
    """A server that answers every request with an endless list of empty lists."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
            for _ in range(2000):
                writer.write(b"[]," * 5000)
                await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_targets_do_not_fill_the_memory_of_the_monitor(kafka: KafkaBroker, tmp_path: Path) -> None:
    """The author of a policy chooses the address: twenty of them serve 30 MB of `[],` to each request. Each application
    is unreachable with that reason, and the process stays in its limit."""
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    await bus.ensure_topics(topic_specs(4))
    names = [f"hostile/a{i}" for i in range(20)]
    with WeirService("monitor", tmp_path, {"WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}) as monitor:
        async with hostile_flink() as port:
            for name in names:
                target: dict[str, Any] = {"flink": {"url": f"http://127.0.0.1:{port}/", "job": "orders"}}
                policy = parse_policy(document(name, target=target, interval="1s"))
                await bus.publish(POLICIES.name, name, policy.model_dump_json().encode())
            await asyncio.to_thread(monitor.wait_ready)

            def observed() -> bool:
                monitor.process.check()
                text = monitor.process.log.read_text()
                lines = [line for line in text.splitlines() if "elements" in line]
                return all(any(name in line for line in lines) for name in names)

            await asyncio.to_thread(wait_until, observed, timeout_seconds=60, what="each application refused")
        assert largest_bytes(monitor) < limit_bytes("monitor")
        for name in names:
            await bus.publish(POLICIES.name, name, None)
    await bus.close()
