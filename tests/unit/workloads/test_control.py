"""The control API: what may be set, what it answers, and which field it names when it refuses."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.unit.workloads.memory_output import MemoryOutput
from weir_replay.trace import LoadTrace, Step
from workloads.loadgen.control import WorkloadBoard, create_app
from workloads.loadgen.generator import Generator
from workloads.loadgen.load import Load


@pytest.fixture
def output() -> MemoryOutput:
    return MemoryOutput()


@pytest_asyncio.fixture
async def client(output: MemoryOutput) -> AsyncIterator[httpx.AsyncClient]:
    """The API of a generator with a step to 2,400 records/s."""
    generator = Generator(Load(LoadTrace(Step(), 2400)), output, now_seconds=0.0)
    app = create_app(generator, WorkloadBoard())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://loadgen") as client:
        yield client


async def test_the_state_has_the_current_load(client: httpx.AsyncClient) -> None:
    """The target is the trace's rate; the measured rate is None before there was time to measure it."""
    state = (await client.get("/state")).json()
    assert state["target_rate"] == 800
    assert state["rate"] is None
    assert state["override_rate"] is None
    assert not state["paused"]


async def test_the_load_is_set_and_answered_with_the_state(client: httpx.AsyncClient) -> None:
    """An omitted field stays; null restores the trace."""
    assert (await client.put("/load", json={"rate": 1200})).json()["target_rate"] == 1200
    assert (await client.put("/load", json={"factor": 0.5})).json()["target_rate"] == 600
    assert (await client.put("/load", json={"rate": None, "factor": 1})).json()["target_rate"] == 800
    paused = (await client.put("/load", json={"paused": True})).json()
    assert paused["paused"]
    assert paused["target_rate"] == 0


async def test_the_workload_is_empty_until_something_is_set(client: httpx.AsyncClient) -> None:
    """Then the job keeps its arguments. A change holds what it names; null takes it back."""
    assert (await client.get("/workload")).json() == {"operators": {}}
    await client.put("/workload", json={"operators": {"enrich": {"service_time_us": 500}}})
    await client.put("/workload", json={"operators": {"enrich": {"contention": 0.1}}, "sink_limit_per_second": 900})
    assert (await client.get("/workload")).json() == {
        "operators": {"enrich": {"service_time_us": 500, "contention": 0.1}},
        "sink_limit_per_second": 900,
    }
    await client.put("/workload", json={"operators": {"enrich": {"contention": None}}, "sink_limit_per_second": None})
    assert (await client.get("/workload")).json() == {"operators": {"enrich": {"service_time_us": 500}}}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/load", {"rate": -1}, "rate"),
        ("/load", {"rate": "fast"}, "rate"),
        ("/load", {"factor": None}, "factor"),
        ("/load", {"key_skew": 99}, "key_skew"),
        ("/load", {"record_bytes": 1}, "record_bytes"),
        ("/load", {"speed": 1}, "speed"),
        ("/load", [], "body"),
        ("/workload", {"operators": {"enrich": {"service_time_us": -5}}}, "operators.enrich.service_time_us"),
        ("/workload", {"operators": {"enrich": {"contention": 11}}}, "operators.enrich.contention"),
        ("/workload", {"operators": {"join": {}}}, "operators.join"),
        ("/workload", {"sink_limit_per_second": 0}, "sink_limit_per_second"),
    ],
)
async def test_a_wrong_value_is_refused_with_its_field(
    client: httpx.AsyncClient, path: str, body: Any, field: str
) -> None:
    """And nothing changes."""
    before = (await client.get("/state")).json(), (await client.get("/workload")).json()
    answer = await client.put(path, json=body)
    assert answer.status_code == 422
    assert any(error["field"].startswith(field) for error in answer.json()["errors"]), answer.text
    assert before == ((await client.get("/state")).json(), (await client.get("/workload")).json())


async def test_what_is_no_json_is_refused(client: httpx.AsyncClient) -> None:
    """With a sentence, not a stack trace."""
    answer = await client.put("/load", content=b"{rate", headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["message"]


async def test_health_reports_the_brokers_last_error(client: httpx.AsyncClient, output: MemoryOutput) -> None:
    """Failing while records are asked for and none arrive; a paused generator is well."""
    assert (await client.get("/health")).status_code == 200
    output.problem = "1/1 brokers are down"
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()["problem"]) == (503, "1/1 brokers are down")
    await client.put("/load", json={"paused": True})
    assert (await client.get("/health")).status_code == 200


async def test_the_api_describes_itself(client: httpx.AsyncClient) -> None:
    """OpenAPI with the five paths."""
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert set(paths) == {"/health", "/state", "/load", "/workload"}
