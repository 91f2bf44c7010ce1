"""A planner behind HTTP: a function or a class, with whatever it holds."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, Field

from weir_contracts import PlannerDescription
from weir_sdk import InvalidPlanner, InvalidReply, MetricMissing, Planner, Reply, Request, application, planner
from weir_sdk import http as sdk_http
from weir_sdk.testing import checked, request, requests, running


def stay(request: Request) -> Reply:
    """Leaves everything as it is.

    For ever.
    """
    return request.hold("stays", "nothing changes")


class Parameters(BaseModel):
    target: float = Field(default=0.8, gt=0, le=1)


@planner(
    name="sizer", version="1.2.0", description="sizes", parameters=Parameters, scope="application", reads=["history"]
)
class Sizer:
    """Holds what cannot be pickled or copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client = httpx.Client()
        self.array = memoryview(bytearray(8))
        self.calls = 0

    def plan(self, request: Request) -> Reply:
        with self.lock:
            self.calls += 1
            limit = request.limits["enrich"].max
            target = request.parameters(Parameters).target
            return request.scale({"enrich": limit}, "most", "as much as there is", target_share=target)


async def later(request: Request) -> dict[str, Any]:
    """Answers with a plain dict, on the event loop."""
    await asyncio.sleep(0)
    return {"kind": "hold", "code": "later", "sentence": "in a while"}


@pytest.fixture
def client() -> Iterator[Any]:
    """Makes clients of planners, without a socket."""
    opened: list[httpx.AsyncClient] = []

    def make(wrapped: Any, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(application(wrapped, **options), raise_app_exceptions=False)
        opened.append(httpx.AsyncClient(transport=transport, base_url="http://planner"))
        return opened[-1]

    yield make
    for each in opened:
        asyncio.run(each.aclose())


def body(name: str = "steady", **policy: Any) -> str:
    return request(name, **policy).model_dump_json(by_alias=True)


async def post(client: httpx.AsyncClient, content: str | bytes, **headers: str) -> httpx.Response:
    return await client.post("/plan", content=content, headers={"content-type": "application/json", **headers})


@pytest.mark.parametrize("wrapped", [stay, Sizer, Sizer(), later])
async def test_functions_classes_instances_and_coroutines_can_plan(client: Any, wrapped: Any) -> None:
    """Each answers with a reply for the entire topology."""
    answer = await post(client(wrapped), body())
    assert answer.status_code == 200
    Reply.model_validate(answer.json())


async def test_an_instance_is_called_and_not_copied(client: Any) -> None:
    """Clients, locks and buffers stay what they are."""
    sizer = Sizer()
    made = client(sizer)
    for _ in range(3):
        assert (await post(made, body())).json()["parallelism"]["enrich"] == 16
    assert sizer.calls == 3


async def test_a_planner_describes_itself(client: Any) -> None:
    """By its decorator, else by its name and docstring."""
    description = PlannerDescription.model_validate((await client(Sizer).get("/")).json())
    assert (description.name, description.version, description.scope, description.reads) == (
        "sizer",
        "1.2.0",
        "application",
        ["history"],
    )
    assert description.parameters["properties"]["target"]["exclusiveMinimum"] == 0
    plain = PlannerDescription.model_validate((await client(stay).get("/")).json())
    assert (plain.name, plain.description, plain.contract_versions) == (
        "stay",
        "Leaves everything as it is.",
        ["v1alpha1"],
    )
    assert plain.parameters == {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize("wrapped", [3, object(), None])
def test_what_cannot_plan_is_refused(wrapped: Any) -> None:
    """When it is wrapped, not when it is asked."""
    with pytest.raises(InvalidPlanner, match="cannot plan"):
        Planner(wrapped)


def test_a_wrong_description_is_refused() -> None:
    """Its field is named."""
    with pytest.raises(InvalidPlanner, match="name"):
        Planner(planner(name="Not A Name")(lambda request: request.hold("a", "b")))


async def test_a_planner_s_exception_is_reported_and_logged(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    """500 with the message, the traceback in the log; the next request is answered as ever."""

    def sometimes(request: Request) -> Reply:
        if request.memory:
            raise KeyError("no such model")
        return request.hold("fine", "all is well")

    made = client(sometimes)
    failed = await post(made, request().model_copy(update={"memory": {"x": 1}}).model_dump_json(by_alias=True))
    assert failed.status_code == 500
    assert failed.headers["content-type"] == "application/problem+json"
    assert failed.json()["detail"] == "KeyError: 'no such model'"
    assert "Traceback" in caplog.text
    assert (await post(made, body())).status_code == 200


async def test_a_planner_that_would_end_the_process_does_not(client: Any) -> None:
    """SystemExit in its thread is a failure like any other."""

    def leave(request: Request) -> Reply:
        raise SystemExit(3)

    assert (await post(client(leave), body())).status_code == 500


async def test_a_missing_metric_is_a_hold(client: Any) -> None:
    """With what is missing in the sentence."""

    def needs_lag(request: Request) -> Reply:
        request.needed(request.analysis.lag_seconds, "the lag")
        return request.hold("fine", "all is well")

    reply = (await post(client(needs_lag), body("metric-missing"))).json()
    assert (reply["kind"], reply["code"]) == ("hold", "metric-missing")
    assert reply["sentence"].startswith("the lag is unknown: ")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "it: must be a mapping of fields"),
        ({"kind": "scale"}, "code: is required"),
        (
            {"kind": "scale", "code": "a", "sentence": "b", "parallelism": {"enrich": 3}},
            "misses Source: orders, aggregate",
        ),
        ({"kind": "hold", "code": "a", "sentence": "b", "evidence": {"x": float("nan")}}, "evidence.x"),
        ({"kind": "hold", "code": "a", "sentence": "b", "memory": {"x": "y" * 20_000}}, "memory"),
    ],
)
async def test_what_is_no_reply_is_a_failure_with_its_reason(client: Any, answer: Any, reason: str) -> None:
    """Its author reads it here, before Weir refuses it."""
    failed = await post(client(lambda request: answer), body())
    assert failed.status_code == 500
    assert reason in failed.json()["detail"]


@pytest.mark.parametrize(
    ("content", "status"),
    [("{}", 422), ("[]", 422), ("{", 422), (b"\xff", 400), ("[" * 100_000, 400), ('{"id": NaN}', 422)],
)
async def test_what_is_no_request_is_refused(client: Any, content: Any, status: int) -> None:
    """Never a 500: the client is at fault."""
    refused = await post(client(stay), content)
    assert refused.status_code in (status, 422)
    assert refused.json()["detail"]


async def test_wrong_parameters_are_refused(client: Any) -> None:
    """422 with the parameter."""
    wrong = body(planner={"name": "sizer", "parameters": {"target": 7}})
    refused = await post(client(Sizer), wrong)
    assert refused.status_code == 422
    assert "target: " in refused.json()["detail"]


async def test_a_body_that_is_too_large_is_refused(client: Any) -> None:
    """Announced or not."""
    small = client(stay, body_bytes=1000)
    assert (await post(small, b"x" * 1001)).status_code == 413

    async def streamed() -> Any:
        for _ in range(20):
            yield b"x" * 100

    assert (await small.post("/plan", content=streamed())).status_code == 413


async def test_a_slow_planner_is_answered_for_in_time(client: Any) -> None:
    """After the policy's timeout the client no longer waits; a request queued behind it is not planned."""
    release, begun = threading.Event(), []

    def slow(request: Request) -> Reply:
        begun.append(1)
        release.wait(10)
        return request.hold("late", "too late")

    made, hurried = client(slow), body(planner={"name": "slow", "timeout": "100ms"})
    answers = await asyncio.gather(post(made, hurried), post(made, hurried))
    release.set()
    assert [a.status_code for a in answers] == [503, 503]
    assert "within the policy's 0.1 s" in answers[0].json()["detail"]
    assert len(begun) == 1


async def test_a_timeout_of_the_planners_own_is_its_failure(client: Any) -> None:
    """Not mistaken for the policy's."""

    def asks_somebody(request: Request) -> Reply:
        raise TimeoutError("the model is away")

    assert (await post(client(asks_somebody), body())).status_code == 500


@pytest.mark.parametrize(("threads", "limit"), [(1, 1), (3, 3)])
async def test_calls_are_sequential_by_default(client: Any, threads: int, limit: int) -> None:
    """As many at a time as there are threads."""
    inside, observed, lock = 0, [], threading.Lock()
    together = threading.Barrier(limit)

    def counts(request: Request) -> Reply:
        nonlocal inside
        with lock:
            inside += 1
            observed.append(inside)
        together.wait(5)
        with lock:
            inside -= 1
        return request.hold("counted", "so many")

    made = client(counts, threads=threads)
    answers = await asyncio.gather(*(post(made, body()) for _ in range(2 * limit)))
    assert [a.status_code for a in answers] == [200] * 2 * limit
    assert max(observed) <= limit


@pytest.mark.thorough
async def test_a_queue_that_nobody_would_wait_for_is_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit requests are turned away at once."""
    monkeypatch.setattr(sdk_http, "MAX_WAITING", 1)
    release = threading.Event()

    def waits(request: Request) -> Reply:
        release.wait(10)
        return request.hold("done", "done")

    made, content = client(waits), body()
    first = asyncio.create_task(post(made, content))
    try:
        async with asyncio.timeout(5):
            while (refused := await post(made, content)).status_code != 503 or "wait already" not in refused.text:
                pass
    finally:
        release.set()
    assert (await first).status_code in (200, 503)


async def test_health_and_metrics(client: Any) -> None:
    """Ready is what the planner says of itself, if it says anything."""

    class Loading(Sizer):
        loaded = False

        def ready(self) -> bool:
            return self.loaded

    loading = Loading()
    made = client(loading)
    assert (await made.get("/health/live")).status_code == 200
    assert (await made.get("/health/ready")).status_code == 503
    loading.loaded = True
    assert (await made.get("/health/ready")).status_code == 200
    await post(made, body())
    assert 'weir_planner_sdk_answers_total{answer="scale"} 1.0' in (await made.get("/metrics")).text


async def test_a_token_is_demanded_where_there_is_one(client: Any) -> None:
    """Requests for plans need it; health checks and metrics do not."""
    made = client(stay, token="secret")
    assert (await post(made, body())).status_code == 401
    assert (await made.get("/")).status_code == 401
    assert (await post(made, body(), authorization="Bearer secret")).status_code == 200
    assert (await made.get("/health/live")).status_code == 200


def test_every_recorded_request_is_answered() -> None:
    """As an author's first test would ask."""
    for plan_request in requests():
        assert checked(stay, plan_request).kind == "hold"


def test_a_planner_that_changes_its_mind_is_noticed() -> None:
    """The same request gets the same reply."""
    replies = iter(["one", "two"])
    with pytest.raises(AssertionError, match="two replies"):
        checked(lambda plan_request: plan_request.hold(next(replies), "x"), request())
    with pytest.raises(InvalidReply, match="misses"):
        checked(lambda plan_request: {"kind": "scale", "code": "a", "sentence": "b", "parallelism": {}}, request())

    def raises(plan_request: Request) -> Reply:
        raise MetricMissing("everything")

    assert checked(raises, request()).code == "metric-missing"


def test_a_real_listener_answers() -> None:
    """Over a socket of the loopback."""
    with running(Sizer) as url:
        assert httpx.get(f"{url}/").json()["name"] == "sizer"
        assert (
            httpx.post(f"{url}/plan", content=body(), headers={"content-type": "application/json"}).status_code == 200
        )


SCRIPT = """
from weir_sdk import main
def plan(request):
    return request.hold("stays", "nothing changes")
main(plan)
"""


@pytest.mark.thorough
def test_sigterm_ends_it_gracefully(tmp_path: Path) -> None:
    """Exit code 0, and its listener is closed."""
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, "--port", "0"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert "listening" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.thorough
def test_a_listener_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    """It says so and does not start."""
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, script, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "PLANNER_TOKEN" in ended.stderr
    assert json.dumps(ended.stdout) == '""'
