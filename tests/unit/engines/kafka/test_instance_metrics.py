"""Metrics endpoints over real HTTP on the loopback interface: what answers is read, anything else is a problem."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from tests.unit.engines.kafka.test_collector import subject
from tests.unit.engines.kafka.test_metrics import PAGE
from tests.unit.engines.memory_sources import MemoryBrokers
from weir_contracts import EndpointTarget
from weir_contracts.application import InstanceMetrics as Endpoint
from weir_engines.kafka.collector import GroupCollector, InstanceMetricsCollector
from weir_engines.kafka.group import DescribedGroup, DescribedMember
from weir_replay import streams as written
from weir_runtime.clock import FakeClock

OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"


def answer(body: str) -> bytes:
    data = body.encode()
    return OK % (len(data), data)


@dataclass
class Server:
    """HTTP server with one response for each path."""

    responses: dict[str, bytes] = field(default_factory=dict)
    port: int = 0

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self.responses.get(head.split()[1].decode(), b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"))
            await writer.drain()
            if head.split()[1] == b"/drip":
                await reader.read()  # holds the connection open until the client gives up
        finally:
            writer.close()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def collector(self, path: str = "/metrics", target: str | None = None) -> InstanceMetricsCollector:
        named = None if target is None else EndpointTarget.model_validate({"url": self.url(target)})
        endpoint = Endpoint(port=self.port, path=path)
        return InstanceMetricsCollector(endpoint, named, 0.5)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server({"/metrics": answer(PAGE)})
    running = await made.start()
    yield made
    running.close()


async def test_each_host_of_the_group_is_read_once(server: Server) -> None:
    collector = server.collector()
    found = await collector.read(["127.0.0.1", "127.0.0.1", ""], lambda: 7.0)
    await collector.close()
    assert [(list(each.threads), each.read_at) for each in found.found] == [(["orders-1-StreamThread-1"], 7.0)]
    assert found.problems == ()


@pytest.mark.parametrize(
    ("path", "response", "words"),
    [
        ("/500", b"HTTP/1.1 500 Oops\r\nContent-Length: 6\r\n\r\nsecret", "status 500 instead of 200"),
        (
            "/away",
            b"HTTP/1.1 302 Found\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n",
            "status 302 instead of 200",
        ),
        ("/empty", answer(""), "no stream-thread-metrics"),
        ("/huge", b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n", "bytes"),
        ("/drip", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nkafka_", "no answer within 0.5 s"),
        ("/noise", b"\x00\x01\x02\r\n\r\n", ""),
    ],
)
async def test_an_endpoint_without_metrics_is_a_problem(server: Server, path: str, response: bytes, words: str) -> None:
    server.responses[path] = response
    collector = server.collector(path)
    found = await collector.read(["127.0.0.1"])
    await collector.close()
    (problem,) = found.problems
    assert words in problem.what and problem.what
    assert "secret" not in problem.what
    assert server.url(path) in problem.where


async def test_addresses_that_are_not_allowed_are_not_called(server: Server) -> None:
    """A member's host decides where the monitor connects to."""
    collector = server.collector()
    found = await collector.read(["169.254.169.254"])
    await collector.close()
    (problem,) = found.problems
    assert "WEIR_TARGET_NETWORKS does not allow" in problem.what


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"replicas": 1, "ready": 1, "instances": [{"id": "orders-1", "metricsUrl": "/metrics"}], "version": "1"}, ""),
        ({"replicas": -1, "ready": 1, "instances": [], "version": "1"}, "not valid at replicas"),
        (["secret"], "not valid at its root"),
    ],
)
async def test_an_endpoint_target_names_the_addresses(server: Server, state: object, words: str) -> None:
    """Its answer is data of another party: an invalid one is a problem that names the field."""
    text = json.dumps(state).replace('"/metrics"', json.dumps(server.url("/metrics")))
    server.responses["/scale"] = answer(text)
    collector = server.collector(target="/scale")
    found = await collector.read([])
    await collector.close()
    assert len(found.found) == (not words)
    assert [words in each.what and "secret" not in each.what for each in found.problems] == [True] * bool(words)


async def test_a_group_with_an_endpoint_has_busy_time(server: Server) -> None:
    """Two scrapes 10 s apart, of which the thread waited 4: it is busy 60 %, and its records are its own counter's."""
    clock, topic, process = FakeClock(), "orders", UUID(int=1)
    brokers = MemoryBrokers(clock, {topic: 1})
    member = DescribedMember(
        "m",
        "orders-1-StreamThread-1-consumer",
        "/127.0.0.1",
        assignment=written.assignment([(topic, 0)], written.user_data([(0, 0)])),
        subscription=written.subscription([topic], process),
    )
    brokers.groups["app"] = DescribedGroup("app", "Stable", "classic", "consumer", "stream", (member,))
    named = subject({"kafkaStreams": {"applicationId": "app", "metrics": {"port": server.port}}})
    collector = GroupCollector(named, brokers, clock, server.collector())
    await collector.scrape()
    await collector.scrape()
    clock.advance(10)
    server.responses["/metrics"] = answer(PAGE.replace("2.5E9", "6.5E9").replace("4200.0", "4900.0"))
    scrape = await collector.scrape()
    (reading,) = scrape.operators
    assert (reading.busy_ms, reading.idle_ms, reading.records_in) == (6000, 4000, 700)
    assert scrape.deployment is not None
    (instance,) = scrape.deployment.instances
    assert (instance.id, instance.state, instance.blocked_share) == (str(process), "RUNNING", 0.4)
    server.responses["/metrics"] = answer(PAGE.replace('task_id="0_1"} 0.0', 'task_id="0_1"} 9.0'))
    (restoring,) = (await collector.scrape()).operators
    assert (restoring.complete, restoring.busy_ms) == (False, None)
    server.responses.clear()
    failed = await collector.scrape()
    await collector.close()
    assert failed.operators[0].busy_ms is None
    assert any("status 404" in each.what for each in failed.problems)
