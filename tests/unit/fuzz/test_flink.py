"""Hostile clusters: whatever a JobManager answers, each scrape ends in time with a reading that names the problem."""

import asyncio
import itertools
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples, some
from tests.unit.executor.builders import subject
from tests.unit.monitor.builders import policy
from weir_contracts import Observation, Subject
from weir_engines.driver import Accepted, Refusal, Rejected, Snapshot, Unanswered, Unfenced
from weir_engines.flink import collector as flink_adapter
from weir_engines.flink.collector import FlinkCollector
from weir_engines.flink.driver import FlinkDriver
from weir_engines.flink.readings import FlinkReadings, scrape_of
from weir_monitor.core import Readings, observe
from weir_runtime.clock import FakeClock, SystemClock
from weir_runtime.reach import Allowed

from .documents import JSON
from .hostile_flink import JOB, MANNERS, PATHS, bomb, compressed_twice, drip, honest, listening, silence, spoil, well

TIMEOUT_SECONDS = 0.1
MAX_SECONDS = 20.0
"""A look is several calls, one after the other, of at most twice the timeout each, on a machine that does other things.
"""
PARALLELISM = {v["name"]: 2 for v in honest(f"/jobs/{JOB}", "")["vertices"]}
NONSENSE: list[Any] = [
    None,
    float("nan"),
    float("inf"),
    1e308,
    10**30,
    2**63 - 1,
    -(2**63),
    -1,
    0,
    "",
    "x",
    "PT-5S",
    "9" * 400,
    "9" * 400 + " s",
    "y" * 100_000,
    "\ud800",
    True,
    [],
    {},
    [[]],
    {"a": None},
    list(range(2000)),
    {str(i): {} for i in range(2000)},
]


@pytest.fixture(autouse=True, scope="module")
def _no_gathering() -> Iterator[None]:
    """There are no TaskManagers to wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flink_adapter, "GATHER_SECONDS", 0.0)
        yield


quick = examples(30)


def target(url: str = "http://flink") -> Subject:
    return subject(JOB, url)


def monitors(url: str, timeout_seconds: float) -> FlinkCollector:
    return FlinkCollector(target(url).flink, timeout_seconds)


def observation(readings: FlinkReadings) -> Observation:
    """Return the monitor's observation; it can be written and read again."""
    made = observe(Readings(policy(job=JOB), scrape_of(readings)), SystemClock().now())
    return Observation.model_validate_json(made.model_dump_json())


async def read_both(answer: Any) -> tuple[FlinkReadings, Snapshot, Accepted | Rejected | Unanswered | Refusal]:
    """One look of the monitor and of the executor at a cluster whose answers are made by `answer(path, query)`."""

    def handle(request: httpx.Request) -> httpx.Response:
        content = json.dumps(answer(request.url.path, request.url.query.decode())).encode()
        return httpx.Response(200, content=content)

    transport = httpx.MockTransport(handle)
    clock = FakeClock()
    flink = target().flink
    assert flink is not None
    collector = FlinkCollector(flink, 10.0, transport=transport)
    driver = FlinkDriver(clock, transport=transport)
    try:
        readings, snapshot = await asyncio.gather(collector.read(), driver.observe(target()))
        return (
            readings,
            snapshot,
            await driver.request(target(), JOB, PARALLELISM, dict.fromkeys(PARALLELISM, 1), Unfenced()),
        )
    finally:
        await collector.close()
        await driver.close()


async def test_the_recorded_answers_are_read() -> None:
    """Otherwise nothing below would mean anything."""
    readings, snapshot, answer = await read_both(honest)
    assert readings.job is not None and not readings.problems and observation(readings).topology is not None
    assert snapshot.reachable and snapshot.deployment is not None
    assert isinstance(answer, Accepted)


@pytest.mark.parametrize("path", some([*PATHS, "vertices"], 3))
async def test_each_answer_as_every_kind_of_nonsense(path: str) -> None:
    """Another type than documented, in place of the answer."""
    for nonsense in some(NONSENSE, 5):

        def answer(requested: str, query: str, nonsense: Any = nonsense) -> Any:
            return nonsense if requested == path or f"/{path}/" in requested else honest(requested, query)

        readings, snapshot, _ = await read_both(answer)
        observation(readings)
        assert snapshot.deployment is not None or snapshot.reason


@given(seed=st.integers(0, 2**32), nonsense=st.sampled_from(NONSENSE) | JSON)
@quick
def test_any_value_may_be_nonsense(seed: int, nonsense: Any) -> None:
    """NaN, huge and negative numbers, wrong types, in about an eighth of all values of all answers."""
    chance = random.Random(seed)
    readings, snapshot, _ = asyncio.run(read_both(lambda path, query: spoil(honest(path, query), nonsense, chance)))
    reading = observation(readings)
    assert reading.topology is not None or reading.message or reading.problems
    assert snapshot.deployment is not None or snapshot.reason


@pytest.mark.parametrize("field", ["name", "state", "slotSharingGroupId", "parallelism", "ship_strategy"])
async def test_half_a_character(field: str) -> None:
    """A lone surrogate is JSON, but no publishable text: a reading that reports it, not a scrape that fails."""

    def halved(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, field: "\ud800"} if field in document else document

    def answer(path: str, query: str) -> Any:
        return json.loads(json.dumps(honest(path, query)), object_hook=halved)

    readings, snapshot, _ = await read_both(answer)
    reading = observation(readings)
    assert reading.topology is None and "not JSON" in reading.message
    assert snapshot.deployment is None and snapshot.reason


@pytest.mark.parametrize(("manner", "where"), some(itertools.product(MANNERS, ["", f"/jobs/{JOB}", "metrics"]), 8))
async def test_each_look_ends_in_time(manner: str, where: str) -> None:
    """Truncated, torn, dripped, flooded, compressed, redirected, reset or not HTTP at all: a reading, with what was
    wrong."""
    async with listening(MANNERS[manner], lambda path: path.endswith(where)) as url:
        driver = FlinkDriver(SystemClock(), timeout_seconds=TIMEOUT_SECONDS)
        collector = monitors(url, TIMEOUT_SECONDS)
        try:
            async with asyncio.timeout(MAX_SECONDS):
                readings, snapshot = await asyncio.gather(collector.read(), driver.observe(target(url)))
                answered = await driver.request(
                    target(url), JOB, PARALLELISM, dict.fromkeys(PARALLELISM, 1), Unfenced()
                )
                problem = await driver.trigger_checkpoint(target(url), JOB)
        finally:
            await asyncio.gather(collector.close(), driver.close())
    reading = observation(readings)
    assert reading.message or reading.problems
    if where != "metrics":
        assert snapshot.reason and snapshot.deployment is None
        assert isinstance(answered, Unanswered | Rejected)
    if not where and manner != "cut_off":  # the rest of an accepted checkpoint's answer is not read
        assert problem


async def test_a_compressed_answer_is_not_unpacked() -> None:
    """Less than a kilobyte that would take 100 MB, and a time in which nothing else runs."""
    assert len(compressed_twice()) < 1_000
    async with listening(bomb) as url:
        driver, collector = FlinkDriver(SystemClock()), monitors(url, 5.0)
        tracemalloc.start()
        try:
            readings, snapshot = await asyncio.gather(collector.read(), driver.observe(target(url)))
            max_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await asyncio.gather(collector.close(), driver.close())
    assert "answered compressed" in readings.message
    assert "answered compressed" in snapshot.reason
    assert max_bytes < 5_000_000


async def test_the_text_of_a_refusal_is_not_repeated() -> None:
    """A policy names the address, and its author reads the reason: that must not reveal content of other servers."""

    async def secretive(out: asyncio.StreamWriter, content: bytes) -> None:
        del content
        out.write(b'HTTP/1.1 403 hunter2\r\nContent-Length: 22\r\n\r\n{"errors":["hunter2"]}')

    async def banner(out: asyncio.StreamWriter, content: bytes) -> None:
        del content
        out.write(b"SSH-2.0-hunter2\r\n\r\n")

    async def document(out: asyncio.StreamWriter, content: bytes) -> None:
        del content
        await well(out, b'{"jobs": [{"jid": "hunter2", "name": "hunter2", "state": "hunter2"}], "hunter2": "hunter2"}')

    for manner, reason in ((secretive, "403 Forbidden"), (banner, "not valid HTTP"), (document, "")):
        async with listening(manner) as url:
            driver, collector = FlinkDriver(SystemClock()), monitors(url, 5.0)
            readings, snapshot = await asyncio.gather(collector.read(), driver.observe(target(url)))
            problem = await driver.trigger_checkpoint(target(url), JOB)
            await asyncio.gather(collector.close(), driver.close())
        reading = f"{readings.message} {readings.problems} {snapshot.reason} {problem}"
        assert "hunter2" not in reading
        assert reason in readings.message and reason in snapshot.reason


async def test_an_address_that_is_not_allowed_is_not_connected_to() -> None:
    """Named as an address or by a name; the oracle is the server, which gets no connection."""
    came: list[str] = []

    def counted(path: str) -> bool:
        came.append(path)
        return False

    outside = Allowed.of("http,https", "*", "public", prefix="WEIR_TARGET")
    async with listening(well, counted) as url:
        for address in (url, url.replace("127.0.0.1", "localhost")):
            flink = target(address).flink
            assert flink is not None
            driver = FlinkDriver(SystemClock(), allowed=outside)
            collector = FlinkCollector(flink, 5.0, outside)
            readings, snapshot = await asyncio.gather(collector.read(), driver.observe(target(address)))
            await asyncio.gather(collector.close(), driver.close())
            for reading in (readings.message, snapshot.reason):
                assert "is a loopback address, which WEIR_TARGET_NETWORKS does not allow" in reading
    assert not came


async def test_other_clusters_are_read_meanwhile() -> None:
    """Applications whose clusters send nothing, or one byte now and then, delay no other application."""
    async with listening(silence) as mute, listening(drip) as slow, listening(well) as good:
        driver = FlinkDriver(SystemClock(), timeout_seconds=60.0)
        collectors = [monitors(url, 60.0) for url in (mute, slow, good)]
        hanging = [
            asyncio.create_task(look)
            for url, collector in zip((mute, slow), collectors, strict=False)
            for look in (collector.read(), *(driver.observe(target(url)) for _ in range(5)))
        ]
        try:
            async with asyncio.timeout(30.0):
                readings, snapshot = await asyncio.gather(collectors[2].read(), driver.observe(target(good)))
            assert readings.job is not None and not readings.problems
            assert snapshot.deployment is not None
            assert not any(task.done() for task in hanging)
        finally:
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
            await asyncio.gather(driver.close(), *(collector.close() for collector in collectors))
