"""Each service in the memory of its container, against what its own limits let in.

The oracle is the kernel's: the largest resident memory of the process and of those that it started (VmHWM), beside the
limit in its manifest.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from testbed.kafka import KafkaBroker
from testbed.process import wait_until
from testbed.service import RedisServer, WeirService
from tests.memory import largest_bytes, limit_bytes
from tests.unit.executor.builders import plan
from tests.unit.knowledge.builders import analysis
from tests.unit.knowledge.builders import plan as cycle_plan
from weir_contracts import Analysis, Outcome, Plan, ScaleAction, ScalingPolicy, policy_of
from weir_contracts.topics import ANALYSES, OUTCOMES, PLANS, POLICIES, Topic
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import encode
from weir_runtime.service import topic_specs

TOKEN = "a-token-of-sixteen-characters"  # noqa: S105 - of this test
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}
CALLERS = 60
REFUSED_SECONDS, OTHERS_SECONDS = 25.0, 4.0
"""Until the first caller is refused, and then for the others: those for which there is room wait for the end of their body."""
LIVE_SECONDS = 1.0
"""Until a listener answers beside 60 callers: 0.2 to 0.3 s on a busy machine."""
SCRAPERS, LISTING_SECONDS = 64, 4.0
"""Until a listing is answered beside 64 scrapes: 0.2 s where the metrics are few, 2.7 s where each names 1,000 operators by
390 characters, both while 16 processes wanted two cores."""
TARGETS = 20
NOT_READ = re.compile("elements|too many large bodies are open")
ACTS: dict[str, Any] = {"objective": {"maxLag": "30s"}, "mode": "act", "interval": "1s"}
REQUESTS = {
    "knowledge": ["PUT /v1/policies/shop/a"],
    "planner": ["POST /v1/judge", "POST /v1/plan", "POST /v1/planners", "POST /v1/planners/validate"],
    "executor": ["POST /metrics"],
}
"""Requests of each service with a body, which the callers send in turn. The executor reads none."""


@pytest.fixture(scope="module")
def services(kafka: KafkaBroker, redis_server: RedisServer, run_folder: Path) -> Iterator[dict[str, WeirService]]:
    """Knowledge, planner and executor of one loop, each started once."""
    roles = ["write", "planner-admin"]
    shared = {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "WEIR_TOKENS": json.dumps({TOKEN: {"name": "ada", "role": roles}}),
        "WEIR_KNOWLEDGE_TOKEN": TOKEN,
        "WEIR_KNOWLEDGE_REDIS_URL": redis_server.new_database(),
        "WEIR_KNOWLEDGE_PLANNER_URL": "",
        "WEIR_EXECUTOR_GROUP": "executor-of-memory-limits",
        "WEIR_PLANNER_PLUGIN_SCHEMES": "http",
        "WEIR_PLANNER_PLUGIN_NETWORKS": "loopback",
    }
    with ExitStack() as stack:
        found: dict[str, WeirService] = {}
        for name in REQUESTS:
            if "knowledge" in found:
                shared["WEIR_KNOWLEDGE_URL"] = found["knowledge"].url
            found[name] = stack.enter_context(WeirService(name, run_folder / f"memory-{name}", shared))
        for each in found.values():
            each.wait_ready()
        yield found


async def unfinished(port: int, request: str, token: str | None, body: bytes) -> bytes:
    """Send a body that does not end, and return the head of the response; nothing if the connection breaks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body) + 1}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "") + "\r\n"
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        return await reader.read(200)
    except OSError:
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
@pytest.mark.parametrize("name", REQUESTS)
async def test_callers_do_not_fill_the_memory(
    services: dict[str, WeirService], name: str, token: str | None, body: bytes, statuses: set[int]
) -> None:
    """60 callers that each stay within the limits and do not end: those for which there is no room are refused, the
    listener answers others meanwhile, and the process stays in its limit. Where no route takes a body, none is read."""
    service, requests = services[name], REQUESTS[name]
    sending = [
        asyncio.create_task(unfinished(service.port, requests[number % len(requests)], token, body))
        for number in range(CALLERS)
    ]
    await asyncio.sleep(0)
    live, answered_seconds = await asyncio.to_thread(timed_get, f"{service.url}/health/live")
    await asyncio.wait(sending, timeout=REFUSED_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    refused, others = await asyncio.wait(sending, timeout=OTHERS_SECONDS)
    for caller in others:
        caller.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    answers = [each.result() for each in refused if each.result()]
    service.process.check()
    assert live.status_code == 200
    found = {int(answer.split()[1]) for answer in answers}
    assert found and found <= ({405} if name == "executor" and token else statuses)
    assert largest_bytes(service) < limit_bytes(name)
    assert answered_seconds < LIVE_SECONDS


def timed_get(url: str) -> tuple[httpx.Response, float]:
    """Return a response and the seconds until it came, apart from the callers' event loop."""
    began = time.monotonic()
    response = httpx.get(url, headers=ALLOWED, timeout=30.0, trust_env=False)
    return response, time.monotonic() - began


async def publish(bus: KafkaBus, topic: Topic, message: Analysis | Plan, id: UUID, at: datetime) -> None:
    body, headers = encode(message, type=topic.type, source="test", id=id, time=at)
    await bus.publish(topic.name, message.application, body, headers)


@asynccontextmanager
async def hostile_target(answer: bytes = b"") -> AsyncIterator[str]:
    """Yield the address of a server that answers every request with `answer`; empty: with an endless list of empty lists."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + (answer or b"["))
            for _ in range(0 if answer else 2000):
                writer.write(b"[]," * 5000)
                await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def loop_of(kafka: KafkaBroker) -> AsyncIterator[KafkaBus]:
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    await bus.ensure_topics(topic_specs(4))
    yield bus
    await bus.close()


def flink(name: str, url: str, **spec: Any) -> ScalingPolicy:
    """Return a policy of a Flink job at this address."""
    application = {"flink": {"url": url, "job": name.rpartition("/")[2]}}
    return policy_of(name, application=application, **{**ACTS, **spec})


def endpoint(name: str, url: str) -> ScalingPolicy:
    """Return a policy of a consumer group whose instances are behind this address."""
    return policy_of(
        name,
        application={"consumerGroup": {"groupId": name.rpartition("/")[2]}},
        signals={"kafka": {"bootstrapServers": "127.0.0.1:1"}},
        target={"endpoint": {"url": f"{url}/{name}"}},
        **ACTS,
    )


async def test_targets_do_not_fill_the_memory_of_the_monitor(kafka: KafkaBroker, tmp_path: Path) -> None:
    """The author of a policy chooses the address: twenty of them serve 30 MB of `[],` to each request. Each application
    is unreachable with that reason, and the process stays in its limit."""
    names = [f"hostile/a{i}" for i in range(TARGETS)]
    settings = {"WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    async with loop_of(kafka) as bus, hostile_target() as url:
        with WeirService("monitor", tmp_path, settings) as monitor:
            for name in names:
                await bus.publish(POLICIES.name, name, flink(name, url).model_dump_json().encode())
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


async def refused_plans(bus: KafkaBus, plans: Sequence[Plan]) -> dict[str, Outcome]:
    """Publish plans, as a planner does, and return the executor's refusals by application."""
    outcomes = bus.reader(OUTCOMES.name)
    for each in plans:
        await publish(bus, PLANS, each, each.id, each.created_at)
    found: dict[str, Outcome] = {}
    try:
        async with asyncio.timeout(60):
            while len(found) < len(plans):
                for record in await outcomes.receive(timeout_seconds=0.5):
                    outcome = Outcome.model_validate_json(record.value or b"")
                    if outcome.plan_id in {each.id for each in plans}:
                        found[outcome.application] = outcome
    finally:
        await outcomes.close()
    return found


@pytest.mark.parametrize("answer", [b"", b'{"x": [' + b'{"a":0},' * 99_000 + b"0]}"], ids=["endless", "large"])
async def test_targets_do_not_fill_the_memory_of_the_executor(
    services: dict[str, WeirService], kafka: KafkaBroker, answer: bytes
) -> None:
    """Twenty policies that act, of Flink jobs and of endpoints: each plan is refused, since its target's answer is too
    large to be read, or is no answer of a target. The process stays within its memory limit."""
    executor, now = services["executor"], datetime.now(UTC)
    names = [f"hostile/{'c' if answer else 'b'}{i}" for i in range(TARGETS)]
    async with loop_of(kafka) as bus, hostile_target(answer) as url, httpx.AsyncClient(headers=ALLOWED) as knowledge:
        versions = {}
        for i, name in enumerate(names):
            address = f"{services['knowledge'].url}/v1/policies/{name}"
            put = await knowledge.put(address, json=(flink, endpoint)[i % 2](name, url).to_document(), timeout=20.0)
            assert put.status_code == 201, put.text
            versions[name] = put.json()["metadata"]["version"]
        plans = [plan(application=name, number=1, at=now, policy_version=version) for name, version in versions.items()]
        refused = await refused_plans(bus, plans)
        executor.process.check()
        assert {each.phase for each in refused.values()} == {"refused"}
        assert answer or [each.sentence for each in refused.values() if not NOT_READ.search(each.sentence)] == []
        assert largest_bytes(executor) < limit_bytes("executor")
        for name in names:
            await knowledge.delete(f"{services['knowledge'].url}/v1/policies/{name}", timeout=20.0)


async def test_plugins_do_not_fill_the_memory_of_the_planner(services: dict[str, WeirService]) -> None:
    """Twenty registrations at once of a planner that answers without an end: each is refused with that reason, and the
    process stays in its limit."""
    planner = services["planner"]
    async with hostile_target() as url, httpx.AsyncClient(headers=ALLOWED, timeout=60.0) as http:
        answers = await asyncio.gather(
            *(http.post(f"{planner.url}/v1/planners", json={"name": f"p{i}", "url": url}) for i in range(TARGETS))
        )
    planner.process.check()
    assert {answer.status_code for answer in answers} == {422}
    assert [answer.text for answer in answers if not NOT_READ.search(answer.text)] == []
    assert largest_bytes(planner) < limit_bytes("planner")


async def test_an_application_of_long_names_does_not_fill_the_memory_of_knowledge(
    services: dict[str, WeirService], kafka: KafkaBroker
) -> None:
    """1,000 operators with names of 390 characters in `advise`: 60 plans that change one of them, about 1 MB each. They
    are explained, another application is answered, and neither its listing nor 64 scrapes of metrics wait for them."""
    knowledge, now = services["knowledge"], datetime.now(UTC)
    vector = {f"{i:04}" + "x" * 386: 4 for i in range(1000)}
    first = next(iter(vector))
    large, other = "large/a", "large/b"
    async with loop_of(kafka) as bus, httpx.AsyncClient(headers=ALLOWED, timeout=30.0) as http:

        async def decided(name: str, cycle: int, **of: Any) -> Plan:
            times = {"observed_at": now + timedelta(seconds=cycle - 120)}
            found = analysis(cycle, name, policy=policies[name], **times)
            await publish(bus, ANALYSES, found, found.id, found.observed_at)
            times |= {"created_at": times["observed_at"], "expires_at": now + timedelta(hours=1)}
            made = cycle_plan(cycle, 1, name, mode="advise", **times, **of)
            await publish(bus, PLANS, made, made.id, made.created_at)
            return made

        policies = {name: flink(name, "http://127.0.0.1:9", mode="advise") for name in (large, other)}
        for name, each in policies.items():
            answer = await http.put(f"{knowledge.url}/v1/policies/{name}", json=each.to_document())
            assert answer.status_code == 201, answer.text
        for cycle in range(60):
            action = ScaleAction(parallelism={**vector, first: 5 + cycle})
            last = await decided(large, cycle, current=vector, action=action)
        small = await decided(other, 60)
        for name, made in ((other, small), (large, last)):
            address = f"{knowledge.url}/v1/applications/{name}/explain"
            async with asyncio.timeout(60):
                while str(made.id) not in (await http.get(address, params={"limit": 1})).text:
                    knowledge.process.check()
                    await asyncio.sleep(0.2)
            assert (await http.get(address)).status_code == 200
        events = await http.get(f"{knowledge.url}/v1/applications/{other}/events", params={"follow": "false"})
        scrapes = [asyncio.create_task(http.get(f"{knowledge.url}/metrics")) for _ in range(SCRAPERS)]
        await asyncio.sleep(0)
        listing, listed_seconds = await asyncio.to_thread(timed_get, f"{knowledge.url}/v1/applications")
        statuses = {answer.status_code for answer in await asyncio.gather(*scrapes)}
        for name in policies:
            await http.delete(f"{knowledge.url}/v1/policies/{name}")
    knowledge.process.check()
    assert (events.status_code, listing.status_code, statuses) == (200, 200, {200})
    assert largest_bytes(knowledge) < limit_bytes("knowledge")
    assert listed_seconds < LISTING_SECONDS
