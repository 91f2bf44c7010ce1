"""The Flink collector: the suite in memory and over REST, what a scrape costs, and clusters that misbehave."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.engines.flink.collector_suite import PROCESSED, FlinkSuite
from tests.unit.engines.flink.fake_rest import TASK_MANAGER, FakeFlink, recorded
from tests.unit.engines.memory_sources import JOB_ID, MAP, SOURCE, MemoryFlink
from tests.unit.monitor.builders import policy
from weir_contracts import Problem
from weir_engines.flink import collector as flink_adapter
from weir_engines.flink import metrics
from weir_engines.flink.collector import FlinkCollector, _shares
from weir_engines.flink.readings import FlinkReadings
from weir_runtime.clock import FakeClock

PATH = f"/jobs/{JOB_ID}"


class MemoryRig:
    """The memory cluster; `view` makes the reader of a cluster."""

    def __init__(self, view: Callable[[MemoryFlink, str], Any]) -> None:
        self.clock = FakeClock()
        self.cluster = MemoryFlink(self.clock)
        self.cluster.process(0, PROCESSED)
        unreachable = MemoryFlink(self.clock, away=True)
        self.flink, self.by_id = view(self.cluster, "orders"), view(self.cluster, JOB_ID)
        self.nobody, self.away = view(self.cluster, "nobody"), view(unreachable, "orders")
        self.topic, self.source = "orders", SOURCE

    async def until(self, condition: Callable[[FlinkReadings], bool]) -> FlinkReadings:
        readings = await self.flink.read()
        assert condition(readings), readings
        return readings

    async def process(self, records: int) -> None:
        self.cluster.process(1, records)

    async def rescale(self) -> None:
        self.clock.advance(5)
        self.cluster.rescale(MAP, 2)


class _View:
    """The memory cluster, asked for another job."""

    def __init__(self, cluster: MemoryFlink, wanted: str) -> None:
        self._cluster = cluster
        self._wanted = wanted

    async def read(self) -> FlinkReadings:
        self._cluster.wanted = self._wanted
        return await self._cluster.read()

    async def close(self) -> None: ...


class TestMemory(FlinkSuite):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig(_View)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake gathers at once."""
    monkeypatch.setattr(flink_adapter, "GATHER_SECONDS", 0.0)


def collector(fake: FakeFlink, job: str = "orders") -> FlinkCollector:
    """A collector that talks to the fake."""
    target = policy(job=job).subject.flink
    assert target is not None
    return FlinkCollector(target, 1.0, transport=fake.transport)


class TestRest(FlinkSuite):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig(lambda cluster, job: collector(FakeFlink(cluster), job))


@pytest.fixture
def fake() -> FakeFlink:
    """A running job over REST, 10 records processed."""
    cluster = MemoryFlink(FakeClock())
    cluster.process(0, 10)
    return FakeFlink(cluster)


@pytest.fixture
async def flink(fake: FakeFlink) -> AsyncIterator[FlinkCollector]:
    reader = collector(fake)
    yield reader
    await reader.close()


# --- what a scrape costs, and how fresh it is


async def test_metrics_are_gathered_before_they_are_read(fake: FakeFlink, flink: FlinkCollector) -> None:
    """Flink answers the first request for a metric from its cache; a scrape's readings are current all the same."""
    await flink.read()
    fake.cluster.process(0, 90)
    readings = await flink.read()
    assert readings.sources[SOURCE].records_in == 100
    assert readings.job is not None and readings.job.vertices[1].read_records == 100


async def test_a_scrape_takes_few_calls(fake: FakeFlink, flink: FlinkCollector) -> None:
    """Nine for a source and an operator; what does not change in a job is requested once."""
    await flink.read()
    fake.calls.clear()
    await flink.read()
    paths = sorted(call.split("?")[0] for call in fake.calls)
    source, operator = (f"{PATH}/vertices/{v}/subtasks/metrics" for v in (SOURCE, MAP))
    assert paths == sorted(
        [
            "/jobs/overview",
            "/overview",
            PATH,
            f"{PATH}/checkpoints",
            f"{PATH}/metrics",  # wakes
            f"{PATH}/metrics",
            f"{PATH}/resource-requirements",
            operator,
            source,  # lists: partitions come and go
            source,
        ]
    )


async def test_a_new_run_is_listed_again(fake: FakeFlink, flink: FlinkCollector) -> None:
    """Its metrics may be others."""
    await flink.read()
    fake.cluster.clock.advance(1)  # type: ignore[attr-defined]
    fake.cluster.restart()
    fake.calls.clear()
    await flink.read()
    assert f"{PATH}/vertices/{MAP}/subtasks/metrics" in fake.calls


async def test_many_partitions_are_requested_in_parts(fake: FakeFlink, flink: FlinkCollector) -> None:
    """An address must stay below what proxies accept."""
    fake.cluster.partitions = 300
    fake.cluster.processed = [1] * 300
    readings = await flink.read()
    assert len(readings.sources[SOURCE].positions) == 300
    assert max(len(call) for call in fake.calls) < 8000


# --- traps


async def test_a_gauge_that_no_subtask_has_does_not_hide_the_other(fake: FakeFlink, flink: FlinkCollector) -> None:
    """One unknown name makes Flink answer `[]` with 200: only listed names are requested."""
    fake.hidden.add("busyTimeMsPerSecond")
    readings = await flink.read()
    assert readings.shares[MAP].busy_mean is None
    assert readings.shares[MAP].backpressure_mean == 0.0
    assert readings.sources[SOURCE].records_in == 10


@pytest.mark.parametrize(("ms_per_second", "share"), [(999.0, 0.999), (1050.0, 1.0), (1900.0, None), (math.nan, None)])
def test_a_second_has_no_more_than_a_thousand_milliseconds(ms_per_second: float, share: float | None) -> None:
    """Of a gauge that is clearly above, nothing is believed, and a problem has its value; sources of the old interface
    report NaN (FLINK-31326, github.com/apache/flink-kubernetes-operator/pull/546)."""
    entry = {"id": "busyTimeMsPerSecond", "avg": 400.0 if ms_per_second > 0 else ms_per_second, "max": ms_per_second}
    problems: list[Problem] = []
    found = _shares(metrics.aggregates([entry]), MAP, problems)
    assert found.busy_max == share
    assert found.backpressure_mean is None
    told = [f"{each.where}: {each.what}" for each in problems]
    wanted = f"vertex {MAP} busyTimeMsPerSecond: is 1,900 ms/s, more than there are in a second"
    assert told == ([wanted] if ms_per_second == 1900 else [])
    assert (found.busy_mean is None) == (share is None)


async def test_a_metric_that_disappears_between_list_and_request_is_unknown(
    fake: FakeFlink, flink: FlinkCollector
) -> None:
    """Names of a deleted gauge are cached: unknown once, listed again next time."""
    await flink.read()
    fake.hidden.add("busyTimeMsPerSecond")
    assert MAP not in (await flink.read()).shares
    assert (await flink.read()).shares[MAP].backpressure_mean == 0.0


async def test_metrics_of_a_job_that_does_not_run_are_not_requested(fake: FakeFlink, flink: FlinkCollector) -> None:
    """They would be the last run's, or an empty list."""
    fake.cluster.deploying = True
    readings = await flink.read()
    assert readings.sources == {} and readings.shares == {}
    assert not any("vertices" in call for call in fake.calls)


async def test_a_job_between_two_calls_is_no_absent_job(fake: FakeFlink, flink: FlinkCollector) -> None:
    """Listed, but its details are not there (yet): its state is unknown now."""
    fake.broken[PATH] = (404, b'{"errors":["NotFoundException: Job not found\\n\\tat x"]}')
    readings = await flink.read()
    assert (readings.reachable, readings.job) == (False, None)
    assert readings.message == f"GET {PATH}: status 404 Not Found"


async def test_a_resubmitted_job_is_read_again(fake: FakeFlink, flink: FlinkCollector) -> None:
    """Another id, another configuration: nothing of the old one is kept."""
    await flink.read()
    fake.cluster.absent = True
    assert (await flink.read()).job is None
    fake.cluster.absent = False
    fake.calls.clear()
    await flink.read()
    assert f"{PATH}/jobmanager/config" in fake.calls


async def test_a_failed_reading_is_requested_again(fake: FakeFlink, flink: FlinkCollector) -> None:
    """One failed call at the start must not leave the interval unknown for good."""
    fake.broken[f"{PATH}/checkpoints/config"] = (500, b"")
    readings = await flink.read()
    assert readings.checkpoint_interval_seconds is None and not readings.checkpointing_off
    fake.broken.clear()
    assert (await flink.read()).checkpoint_interval_seconds == 10.0


async def test_checkpointing_that_is_off_is_known_to_be(fake: FakeFlink, flink: FlinkCollector) -> None:
    """Flink writes it as an endless interval."""
    fake.broken[f"{PATH}/checkpoints/config"] = (200, b'{"interval": 9223372036854775807}')
    readings = await flink.read()
    assert readings.checkpoint_interval_seconds is None and readings.checkpointing_off


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        (f"{PATH}/resource-requirements", "requirements"),
        (f"{PATH}/checkpoints", "checkpoints"),
        ("/overview", "slots_total"),
        (f"{PATH}/metrics", "restarts"),
        (f"{PATH}/jobmanager/config", "configuration"),
    ],
)
@pytest.mark.parametrize("answer", [(500, b'{"errors":["Internal server error."]}'), (200, b"{"), (200, b"[[]]")])
async def test_one_bad_answer_costs_one_reading(
    fake: FakeFlink, flink: FlinkCollector, path: str, missing: str, answer: tuple[int, bytes]
) -> None:
    """The rest of the scrape counts. The default scheduler, for example, has no requirements."""
    fake.broken[path] = answer
    readings = await flink.read()
    value = getattr(readings, missing)
    assert value is None or value == {}
    assert readings.job is not None and readings.sources[SOURCE].records_in == 10


async def test_a_problem_names_the_call(fake: FakeFlink, flink: FlinkCollector) -> None:
    """So that users can repeat it; without the body, as the policy's author chose the server it comes from."""
    fake.broken[f"{PATH}/checkpoints"] = (500, b'{"errors":["hunter2", "x"]}')
    (problem,) = (await flink.read()).problems
    assert (problem.where, problem.what) == (f"GET {PATH}/checkpoints", "status 500 Internal Server Error")


async def test_a_source_that_could_not_be_listed_is_unknown(fake: FakeFlink, flink: FlinkCollector) -> None:
    """Its positions are not 0, and it has not lost its partitions."""
    fake.broken[f"{PATH}/vertices/{SOURCE}/subtasks/metrics"] = (503, b"")
    readings = await flink.read()
    assert SOURCE not in readings.sources and SOURCE not in readings.shares
    assert MAP in readings.shares


# --- clusters that misbehave


def endless(request: httpx.Request) -> httpx.Response:
    """A body without an end."""
    del request

    def body() -> Iterator[bytes]:
        while True:
            yield b" " * 1_000_000

    return httpx.Response(200, content=_Async(body()))


class _Async(httpx.AsyncByteStream):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def slow(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("slow", request=request)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (endless, "more than 2000000 bytes"),
        (slow, "no answer in time"),
        ((302, b""), "status 302"),
        ((200, b"<html>"), "not JSON"),
        ((200, b"[" * 100_000), "not JSON"),
        ((200, b""), "not JSON"),
        ((200, b"null"), "expected an object"),
        ((200, b'{"jobs": {}}'), "expected a list"),
        ((200, b'{"jobs": [{"jid": "' + b"9" * 6000 + b'", "n": ' + b"9" * 6000 + b"}]}"), "not JSON"),
    ],
)
async def test_a_cluster_that_answers_nonsense_is_unreachable(
    fake: FakeFlink, flink: FlinkCollector, answer: Any, message: str
) -> None:
    """No part of it is believed, and the message quotes it."""
    fake.broken["/jobs/overview"] = answer
    readings = await flink.read()
    assert (readings.reachable, readings.job) == (False, None)
    assert message in readings.message and "/jobs/overview" in readings.message


async def test_a_redirect_is_not_followed(fake: FakeFlink, flink: FlinkCollector) -> None:
    """A policy names an address; a cluster must not send the monitor to another."""
    fake.broken["/jobs/overview"] = lambda _: httpx.Response(302, headers={"location": "http://127.0.0.1:1/x"})
    assert not (await flink.read()).reachable
    assert all("/x" not in call for call in fake.calls)


async def test_six_calls_at_a_time_are_the_limit(fake: FakeFlink) -> None:
    """A wide job must not flood its own JobManager."""
    fake.cluster.partitions, fake.cluster.processed = 900, [1] * 900
    under_way, peak = 0, 0

    async def counted(request: httpx.Request) -> httpx.Response:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep(0)
        answer = await fake.transport.handle_async_request(request)
        under_way -= 1
        return answer

    target = policy().subject.flink
    assert target is not None
    reader = FlinkCollector(target, 1.0, transport=httpx.MockTransport(counted))
    assert len((await reader.read()).sources[SOURCE].positions) == 900
    assert peak == 6
    await reader.close()


async def test_a_trickle_does_not_hold_the_scrape(fake: FakeFlink) -> None:
    """A byte now and then keeps each single wait short: the complete call is bounded too."""

    class Trickle(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(0.005)

    fake.broken["/jobs/overview"] = lambda _: httpx.Response(200, content=Trickle())
    target = policy().subject.flink
    assert target is not None
    reader = FlinkCollector(target, 0.05, transport=fake.transport)
    assert (await reader.read()).message == "GET /jobs/overview: no answer in time"
    await reader.close()


ANSWERS = {
    "/jobs/overview": "jobs_overview",
    PATH: "job",
    f"{PATH}/checkpoints": "checkpoints",
    f"{PATH}/resource-requirements": "resource_requirements",
    f"{PATH}/metrics": "job_metrics",
    "/overview": "overview",
}


@given(path=st.sampled_from(sorted(ANSWERS)), cut=st.integers(0, 6000), junk=st.binary(max_size=8))
@settings(examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_scrape_never_raises(path: str, cut: int, junk: bytes) -> None:
    """Any answer cut anywhere and continued with anything: readings come all the same."""
    fake = FakeFlink(MemoryFlink(FakeClock()))
    fake.broken[path] = (200, json.dumps(recorded(ANSWERS[path])).encode()[:cut] + junk)
    reader = collector(fake)
    assert isinstance(await reader.read(), FlinkReadings)
    await reader.close()


async def test_task_managers_have_cpu_and_memory_and_are_read_seldom(fake: FakeFlink, flink: FlinkCollector) -> None:
    """Their load is an average; a target whose pods are read elsewhere needs no request."""
    for _ in range(3):
        deployment = (await flink.scrape()).deployment
    assert deployment is not None
    (worker,) = deployment.pods
    assert (worker.name, worker.cpu_cores, worker.cpu_request_cores, worker.memory_bytes) == (
        TASK_MANAGER,
        1.0,
        2.0,
        242,
    )
    assert [call for call in fake.calls if call == "/taskmanagers"] == ["/taskmanagers"]
    application = policy().subject.flink
    other = FlinkCollector(application, 2.0, transport=fake.transport, reads_task_managers=False)
    scraped = (await other.scrape()).deployment
    await other.close()
    assert scraped is not None
    assert scraped.pods == []
    assert sum(1 for call in fake.calls if call.startswith("/taskmanagers")) == 2
