"""The recording proxy of the chaos campaign in front of a simulated Flink, a broker and a Redis, with this process as its
client; and the campaign's endpoints."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from bench.chaos.campaign import behind
from bench.chaos.endpoint import Endpoints
from bench.chaos.flink import rescale_of
from bench.chaos.proxy import WHEN, FailPoint, RecordingProxy, Trap
from bench.chaos.simulated import JOBS
from testbed.kafka import KafkaBroker
from testbed.service import RedisServer
from testbed.simulated_flink import NAMES, VERTICES, WORK, ManyJobs
from weir_contracts import Outcome, policy_of
from weir_contracts.topics import OUTCOMES
from weir_engines.endpoint.driver import EndpointDriver
from weir_engines.kafka.coordinators import KafkaGroups
from weir_runtime.bus import TopicSpec
from weir_runtime.clock import SystemClock
from weir_runtime.kafka_bus import KafkaBus

RECORDED = Path(__file__).parents[2] / "golden" / "messages" / "in_flight.jsonl"
PATH = "/jobs/{}/resource-requirements"


@pytest.fixture
async def flink() -> AsyncIterator[ManyJobs]:
    made = ManyJobs(["orders"], rescale_seconds=0.0)
    async with made.serving():
        yield made


@pytest.fixture
def proxy() -> Iterator[RecordingProxy]:
    with RecordingProxy(lambda: {"exec-0": os.getpid()}) as made:
        yield made


@pytest.fixture
async def client(flink: ManyJobs, proxy: RecordingProxy) -> AsyncIterator[httpx.AsyncClient]:
    """A client of Flink through the proxy."""
    url = await asyncio.to_thread(proxy.in_front_of, "flink", flink.url)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as made:
        yield made


def body(work: int) -> dict[str, Any]:
    return {
        vertex: {"parallelism": {"lowerBound": 1, "upperBound": work if name == WORK else 1}}
        for name, vertex in VERTICES.items()
    }


def path(flink: ManyJobs) -> str:
    return PATH.format(flink.jobs["orders"].id)


async def held(
    when: Any, flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> tuple[Trap, "asyncio.Task[httpx.Response]"]:
    """Return the trap that holds a request for four subtasks, and the request."""
    trap = proxy.arm(FailPoint("flink", "PUT", "/resource-requirements", when))
    put = asyncio.create_task(client.put(path(flink), json=body(4)))
    assert await asyncio.to_thread(trap.reached.wait, 5.0)
    return trap, put


async def test_what_changes_something_is_recorded_with_its_sender(
    flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> None:
    """Method, body and status of the request, and the process that the connection belongs to; a reading is not."""
    assert (await client.get("/jobs/overview")).json()["jobs"][0]["name"] == "orders"
    assert (await client.put(path(flink), json=body(4))).status_code == 200
    (exchange,) = proxy.exchanges
    assert (exchange.server, exchange.sender, exchange.method, exchange.status) == ("flink", "exec-0", "PUT", 200)
    assert rescale_of(exchange, NAMES) == (flink.jobs["orders"].id, flink.jobs["orders"].requested)


async def test_a_request_is_held_before_it_reaches_the_target(
    flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> None:
    """While it is held the target knows nothing of it; released, it arrives."""
    trap, put = await held("before", flink, proxy, client)
    assert (trap.sender, flink.jobs["orders"].requests) == ("exec-0", [])
    trap.release()
    assert (await put).status_code == 200
    assert len(flink.jobs["orders"].requests) == 1


async def test_a_request_of_a_process_that_ended_does_not_arrive(
    flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> None:
    """Its connection is closed while it is held: the target never sees it."""
    trap, put = await held("before", flink, proxy, client)
    put.cancel()
    await asyncio.wait([put])
    trap.release()
    assert (await client.put(path(flink), json=body(5))).status_code == 200
    assert [request[WORK] for request in flink.jobs["orders"].requests] == [5]
    assert [exchange.status for exchange in proxy.exchanges] == [None, 200]


async def test_a_response_is_held_after_the_target_has_answered(
    flink: ManyJobs, proxy: RecordingProxy, client: httpx.AsyncClient
) -> None:
    """The target acts on the request whose sender does not know it yet. Only the first request is held."""
    trap, put = await held("after", flink, proxy, client)
    assert (len(flink.jobs["orders"].requests), put.done()) == (1, False)
    assert (await client.put(path(flink), json=body(5))).status_code == 200
    trap.release()
    assert (await put).status_code == 200


@pytest.fixture
def parts(proxy: RecordingProxy, tmp_path: Path) -> tuple[KafkaBroker, RedisServer, str]:
    """A broker and a Redis behind the proxy, not yet started, and Redis' address at the proxy."""
    return behind(proxy, tmp_path)


async def struck(
    proxy: RecordingProxy, point: FailPoint, sent: Coroutine[Any, Any, Any]
) -> tuple[Trap, "asyncio.Task[Any]"]:
    """Return the trap that holds `sent` at the fail point, and the task that sends it."""
    trap = proxy.arm(point)
    sending = asyncio.create_task(sent)
    assert await asyncio.to_thread(trap.reached.wait, 15.0), point
    assert not sending.done()
    return trap, sending


def recorded(phase: str) -> bytes:
    """Return a recorded outcome of a phase."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    return next(
        json.dumps(each["value"], separators=(",", ":")).encode()
        for each in lines
        if each["topic"] == OUTCOMES.name and each["value"]["phase"] == phase
    )


async def test_an_outcome_is_held_before_and_after_the_brokers_have_it(
    proxy: RecordingProxy, parts: tuple[KafkaBroker, RedisServer, str]
) -> None:
    """The fail point names a phase, and the producer compresses the record; an outcome of another phase passes. A commit of
    offsets is held in the same way."""
    kafka, _, _ = parts
    with kafka:
        await _outcomes_and_offsets_are_held(proxy, KafkaBus(kafka.bootstrap_servers))


async def _outcomes_and_offsets_are_held(proxy: RecordingProxy, bus: KafkaBus) -> None:
    await bus.start()
    await bus.ensure_topics([TopicSpec(OUTCOMES.name, 1)])
    reader, member = bus.reader(OUTCOMES.name), bus.consumer([OUTCOMES.name], "chaos-test")

    async def written() -> list[str]:
        records = [r for _ in range(3) for r in await reader.receive(timeout_seconds=0.5)]
        return [Outcome.model_validate_json(record.value or b"").phase for record in records]

    def publish(phase: str) -> Coroutine[Any, Any, None]:
        return bus.publish(OUTCOMES.name, "shop/orders", recorded(phase))

    for when in WHEN:
        proxy.arm(FailPoint("kafka", "PRODUCE", "/applying", when))
        await publish("intended")
        assert await written() == ["intended"]
        trap, sending = await struck(proxy, FailPoint("kafka", "PRODUCE", "/applying", when), publish("applying"))
        assert (trap.sender, await written()) == ("exec-0", [] if when == "before" else ["applying"])
        trap.release()
        await sending
        assert await written() == (["applying"] if when == "before" else [])
        async with asyncio.timeout(30):
            while not await member.receive(timeout_seconds=0.5):
                pass
        trap, sending = await struck(proxy, FailPoint("kafka", "COMMIT", "", when), member.commit())
        trap.release()
        await sending
    await bus.close()


async def test_a_script_of_redis_is_held_before_and_after_it_has_run(
    proxy: RecordingProxy, parts: tuple[KafkaBroker, RedisServer, str]
) -> None:
    """A script on another key passes. If the client ends while its script is held, the script never arrives."""
    _, redis, url = parts
    with redis:
        await _a_script_is_held(proxy, Redis.from_url(url), Redis.from_url(redis.url))


async def _a_script_is_held(proxy: RecordingProxy, client: Redis, straight: Redis) -> None:
    async with client, straight:

        def count(key: str) -> Coroutine[Any, Any, Any]:
            return client.eval("return redis.call('INCR', KEYS[1])", 1, key)  # type: ignore[return-value]

        for when, counted, key in (("before", None, "weir:position"), ("after", b"1", "weir:position-b")):
            trap, sending = await struck(proxy, FailPoint("redis", "EVAL", f"/{key}", when), count(key))  # type: ignore[arg-type]
            assert (trap.sender, await straight.get(key)) == ("knowledge", counted)
            assert await count("weir:policies")
            trap.release()
            assert await sending == 1
        trap, sending = await struck(proxy, FailPoint("redis", "EVAL", "/weir:gone", "before"), count("weir:gone"))
        await client.connection_pool.disconnect()
        await asyncio.gather(sending, return_exceptions=True)
        trap.release()
        assert (await count("weir:policies"), await straight.get("weir:gone")) == (3, None)


async def test_an_endpoint_scales_members_of_a_real_group(kafka: KafkaBroker) -> None:
    """The executor's driver finds the member of each instance, and a request leads to the requested number of instances."""
    target, name = Endpoints(), JOBS[0]
    async with target.serving(kafka):
        groups = KafkaGroups(SystemClock(), timeout_seconds=20.0)
        driver = EndpointDriver(SystemClock(), groups)
        spec = target.spec(name, target.urls[name])
        subject = policy_of(f"fleet/{name}", **spec, objective={"maxLag": "30s"}).subject
        for wanted in (1, 3, 2):
            endpoint = driver._endpoint(subject)
            there = await endpoint.read()
            await endpoint.scale(wanted, there.version, httpx.Timeout(5.0))
            async with asyncio.timeout(60):
                while not (found := await driver.observe(subject)).runs({name: wanted}):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            assert found.deployment is not None and found.deployment.ref() == target.deployment(name)
        await driver.close()
