"""A service from its start to its end, its readiness, and a container's health check."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
import structlog

from weir_contracts.topics import POLICIES, TOPICS
from weir_runtime import probe, service
from weir_runtime.bus import TopicSpec
from weir_runtime.clock import FakeClock
from weir_runtime.http import application
from weir_runtime.http_client import async_client
from weir_runtime.loop import Stop
from weir_runtime.memory_bus import MemoryBus
from weir_runtime.service import WARNING_SECONDS, Health, health_router, run_service, topic_specs, wait_for_topics
from weir_runtime.settings import ServiceSettings

COLLECTS: list[str] = []
"""Whether the cycle collector was told to look seldom: in a test's process it is not."""


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logging and signals belong to the process: give them back. Graces are short here."""
    for name in [n for n in os.environ if n.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(service, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(service, "collect_seldom", lambda: COLLECTS.append("seldom"))
    COLLECTS.clear()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(**values: object) -> ServiceSettings:
    return ServiceSettings(**{"http_port": free_port(), **values})  # type: ignore[arg-type]


def events(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]


async def test_it_answers_before_its_dependencies_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka is away at start: the process lives, reports it, goes on when it is there, and ends at a signal."""
    chosen, bus, health = settings(), MemoryBus(), Health(FakeClock())
    bus.break_down("no brokers")
    app = application("Oven", "Bakes.")
    app.include_router(health_router(health))
    working, closed = asyncio.Event(), asyncio.Event()

    async def work(stop: Stop) -> None:
        if await wait_for_topics(bus, chosen, stop, health):
            working.set()
            await stop.wait()

    async def close() -> None:
        closed.set()

    running = asyncio.create_task(run_service("oven", chosen, app=app, tasks={"work": work}, on_stopped=close))
    async with async_client(f"http://127.0.0.1:{chosen.http_port}") as http:
        answer = await _ready(http, lambda report: "no brokers" in str(report))
        assert answer["ready"] is False
        bus.mend()
        await asyncio.wait_for(working.wait(), 10.0)
        assert (await _ready(http, bool))["ready"] is True
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 10.0) == 0
    assert closed.is_set()
    reported = events(capsys)
    assert (reported[0], reported[-1]) == ("starting", "stopped")
    assert "waiting" in reported
    assert COLLECTS == ["seldom"]


async def _ready(http: httpx.AsyncClient, enough: Callable[[object], bool]) -> dict[str, object]:
    """The readiness report, as soon as there is one that is enough."""
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(httpx.TransportError):
                report: dict[str, object] = (await http.get("/health/ready")).json()
                if enough(report):
                    return report
            await asyncio.sleep(0.01)


async def test_a_task_that_fails_ends_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    """With its trace in the log and code 1, so that it is restarted."""

    async def fail(_stop: Stop) -> None:
        raise RuntimeError("broken beyond repair")

    async def other(stop: Stop) -> None:
        await stop.wait()

    code = await run_service("oven", settings(), app=application("Oven", ""), tasks={"bake": fail, "other": other})
    assert code == 1
    text = capsys.readouterr().err
    assert "broken beyond repair" in text
    assert '"failed": ["bake"]' in text


async def test_a_task_may_end_by_itself() -> None:
    """Something done once at start is no reason to stop."""
    other_done = asyncio.Event()

    async def once(_stop: Stop) -> None:
        return

    async def later(stop: Stop) -> None:
        other_done.set()
        stop.request("done")

    assert await run_service("oven", settings(), app=application("Oven", ""), tasks={"a": once, "b": later}) == 0
    assert other_done.is_set()


async def test_a_task_that_does_not_stop_is_cancelled(capsys: pytest.CaptureFixture[str]) -> None:
    """After its grace; that is no failure, but it is logged."""

    async def deaf(_stop: Stop) -> None:
        await asyncio.sleep(60)

    async def ask(stop: Stop) -> None:
        stop.request("enough")

    assert await run_service("oven", settings(), app=application("Oven", ""), tasks={"deaf": deaf, "ask": ask}) == 0
    assert "task-cancelled" in events(capsys)


async def test_an_error_at_the_end_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """An error while stopping is a failure; a failing close does not delay the end."""

    async def bad_end(stop: Stop) -> None:
        await stop.wait()
        raise RuntimeError("could not save")

    async def ask(stop: Stop) -> None:
        stop.request("enough")

    async def close() -> None:
        raise ConnectionError("already closed")

    tasks = {"bad": bad_end, "ask": ask}
    assert await run_service("oven", settings(), app=application("Oven", ""), tasks=tasks, on_stopped=close) == 1
    assert {"task-failed", "close-failed", "stopped"} <= set(events(capsys))


async def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started, with code 2."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        chosen = settings(http_port=taken.getsockname()[1])
        assert await run_service("oven", chosen, app=application("Oven", ""), tasks={}) == 2
    said = capsys.readouterr().err
    assert said.startswith("oven: cannot listen on 127.0.0.1:") and said.endswith("set WEIR_HTTP_PORT to a free one\n")


async def test_an_application_that_does_not_start_ends_the_service() -> None:
    """A service without its API is not left half alive."""
    app = application("Oven", "", lifespan=_broken)

    async def work(stop: Stop) -> None:
        await stop.wait()

    assert await run_service("oven", settings(), app=app, tasks={"work": work}) == 1


def _broken(_app: object) -> "_Broken":
    return _Broken()


class _Broken:
    async def __aenter__(self) -> None:
        raise RuntimeError("no template")

    async def __aexit__(self, *_: object) -> None:
        return


async def test_the_settings_tokens_guard_the_api() -> None:
    """A composition root cannot forget them."""
    chosen = settings(tokens='{"adas-long-token-1": {"name": "ada", "role": "write"}}')
    app = application("Oven", "")

    async def ask(stop: Stop) -> None:
        stop.request("enough")

    await run_service("oven", chosen, app=app, tasks={"ask": ask})
    assert app.state.tokens.required


async def test_topics_of_another_size_are_waited_for_and_reported() -> None:
    """The topics exist with another number of partitions: readiness names the topic and both counts."""
    bus, health, stop = MemoryBus(), Health(FakeClock()), Stop()
    await bus.ensure_topics([TopicSpec(POLICIES.name, 8)])
    waiting = asyncio.create_task(wait_for_topics(bus, settings(), stop, health))
    reported = f"topic {POLICIES.name} has 8 partitions and must have 4"
    async with asyncio.timeout(5):
        while True:
            if reported in str(await health.check()):
                break
            await asyncio.sleep(0)
    stop.request("enough")
    assert await asyncio.wait_for(waiting, 2.0) is False


class FewReplicas(MemoryBus):
    """Brokers whose topics have fewer replicas than the settings ask for, until they are added."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[TopicSpec] = []
        self.sentences = ["weir.policies.v1alpha1 and 8 more topics have 1 replica, not 3"]

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> list[str]:
        self.asked = list(specs)
        return await super().ensure_topics(specs) + self.sentences


async def test_fewer_replicas_are_said_and_stop_nothing() -> None:
    """The service is ready and says it until replicas are added, without a restart; a check that fails meanwhile changes nothing."""
    clock, stop, bus = FakeClock(), Stop(), FewReplicas()
    health = Health(clock)
    asked_for = settings(replication_factor=3, min_insync_replicas=2)
    assert await wait_for_topics(bus, asked_for, stop, health)
    assert {(spec.replicas, spec.configs["min.insync.replicas"]) for spec in bus.asked} == {(3, "2")}
    ready, report = await health.check()
    assert ready
    assert report["topics"] == {"ok": True, "reason": bus.sentences[0], "since": clock.now().isoformat()}
    bus.sentences = []
    clock.advance(WARNING_SECONDS)
    bus.break_down()
    assert (await health.check())[1]["topics"]["reason"] != "ok"
    bus.mend()
    clock.advance(WARNING_SECONDS)
    ready, report = await health.check()
    assert (ready, report["topics"]["reason"]) == (True, "ok")


def test_without_settings_the_brokers_decide() -> None:
    """Neither replicas nor `min.insync.replicas` are requested."""
    specs = topic_specs(4)
    assert {spec.replicas for spec in specs} == {None}
    assert not any("min.insync.replicas" in spec.configs for spec in specs)


def test_every_topic_of_the_loop_is_requested() -> None:
    """With the broker's settings of its contract, and room for the largest message."""
    specs = {spec.name: spec for spec in topic_specs(4)}
    assert set(specs) == {topic.name for topic in TOPICS} | {"weir.leases"}
    for topic in TOPICS:
        assert dict(topic.configs).items() <= dict(specs[topic.name].configs).items()
        assert int(specs[topic.name].configs["max.message.bytes"]) > 8_000_000


class Dependency:
    problem: str | None = None

    async def ping(self) -> None:
        if self.problem is not None:
            raise ConnectionError(self.problem)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def health(clock: FakeClock) -> Health:
    return Health(clock)


def client(health: Health) -> httpx.AsyncClient:
    app = application("Oven", "Bakes.")
    app.include_router(health_router(health, revision="abc"))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://oven")


async def test_a_process_lives_whatever_is_missing(health: Health) -> None:
    """Liveness depends on nothing: a restart would not bring Kafka back."""
    kafka = Dependency()
    kafka.problem = "refused"
    health.register("kafka", kafka.ping)
    async with client(health) as http:
        answer = await http.get("/health/live")
    assert (answer.status_code, answer.json()) == (200, {"status": "live", "revision": "abc"})


async def test_a_build_without_a_name_is_not_given_one(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    """`WEIR_REVISION` names it; without it the field is left out."""
    for given, expected in (("", {"status": "live"}), ("4f2c9d1", {"status": "live", "revision": "4f2c9d1"})):
        monkeypatch.setenv("WEIR_REVISION", given)
        app = application("Oven", "Bakes.")
        app.include_router(health_router(health))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://oven") as http:
            assert (await http.get("/health/live")).json() == expected


async def test_readiness_names_what_is_missing(health: Health, clock: FakeClock) -> None:
    """Each dependency with its state, its reason and since when it has been so."""
    kafka, redis = Dependency(), Dependency()
    health.register("kafka", kafka.ping)
    health.register("redis", redis.ping)
    began = clock.now().isoformat()
    async with client(health) as http:
        answer = await http.get("/health/ready")
        assert answer.status_code == 200
        assert answer.json() == {
            "ready": True,
            "dependencies": {name: {"ok": True, "reason": "ok", "since": began} for name in ("kafka", "redis")},
        }
        clock.advance(10)
        lost = clock.now().isoformat()
        redis.problem = "connection refused"
        await http.get("/health/ready")
        clock.advance(10)
        redis.problem = "no route to host"
        answer = await http.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    assert answer.json()["dependencies"]["kafka"] == {"ok": True, "reason": "ok", "since": began}
    assert answer.json()["dependencies"]["redis"] == {"ok": False, "reason": "no route to host", "since": lost}


async def test_a_ping_may_remark_something(health: Health) -> None:
    """The dependency is good and its reason is the remark."""

    async def ping() -> str:
        return "planner mine cannot be used"

    health.register("planners", ping)
    async with client(health) as http:
        answer = await http.get("/health/ready")
    assert answer.status_code == 200
    assert answer.json()["dependencies"]["planners"]["reason"] == "planner mine cannot be used"


async def test_one_that_hangs_delays_no_other(health: Health) -> None:
    """All are checked at once, each with its own deadline."""

    async def hang() -> None:
        await asyncio.sleep(60)

    health.register("slow", hang, timeout_seconds=0.02)
    health.register("silent", hang, timeout_seconds=0.02)
    health.register("quick", Dependency().ping)
    ok, report = await asyncio.wait_for(health.check(), 2.0)
    assert not ok
    assert report["slow"]["reason"] == "no answer within 0.02 s"
    assert report["quick"]["ok"] is True


async def test_an_error_without_words_has_a_name(health: Health) -> None:
    """A reason is never empty."""

    async def fail() -> None:
        raise KeyError

    health.register("odd", fail)
    _, report = await health.check()
    assert report["odd"]["reason"] == "KeyError"


async def test_metrics_are_prometheus_text(health: Health) -> None:
    """For a scraper."""
    async with client(health) as http:
        answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "weir_cycles_failed_total" in answer.text


async def test_many_scrapers_at_once_share_one_text(health: Health) -> None:
    """Otherwise 64 of them would take the processor from every other request for seconds."""
    pinged, begun, answered = 0, asyncio.Event(), asyncio.Event()

    async def ping() -> None:
        nonlocal pinged
        pinged += 1
        begun.set()
        await answered.wait()

    health.register("slow", ping)
    async with client(health) as http:
        requests = [asyncio.create_task(http.get("/metrics")) for _ in range(20)]
        await begun.wait()
        answered.set()
        texts = {answer.text for answer in await asyncio.gather(*requests)}
    assert pinged == 1
    assert len(texts) == 1


NOT_READY = {
    "ready": False,
    "dependencies": {"kafka": {"ok": True, "reason": "ok"}, "redis": {"ok": False, "reason": "refused"}},
}


class _Service(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        body = json.dumps(NOT_READY).encode()
        self.send_response(self.status if self.path == "/health/ready" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not into the tests' output."""


@pytest.fixture
def port() -> Iterator[int]:
    """A service that answers with the class's status."""
    with HTTPServer(("127.0.0.1", 0), _Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "reported"), [(200, "ready\n"), (503, "redis: refused\n"), (404, "redis: refused\n")]
)
def test_it_reports_readiness(
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    reported: str,
) -> None:
    """The service is found by its own settings; listening everywhere includes loopback."""
    monkeypatch.setattr(_Service, "status", status)
    monkeypatch.setenv("WEIR_HTTP_HOST", "0.0.0.0")
    monkeypatch.setenv("WEIR_HTTP_PORT", str(port))
    assert probe.main() == (0 if status == 200 else 1)
    assert capsys.readouterr().out == reported


def test_no_listener() -> None:
    """A service that does not listen is a complaint like any other."""
    assert probe.ask("127.0.0.1", 9).startswith("no answer on port 9")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"dependencies": {"kafka": 1}}', b"<html>"])
def test_an_answer_that_is_none_of_ours(body: bytes) -> None:
    """Another program listens on the port: only its status is reported."""
    assert probe.complaint(502, body) == "answers 502"


def test_what_is_there_may_have_a_warning(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`weir doctor --kubernetes` asks for it: a dependency that answers and should be mended."""
    few = {"ok": True, "reason": "weir.plans has 1 replica, not 3"}
    monkeypatch.setitem(NOT_READY["dependencies"], "topics", few)  # type: ignore[arg-type]
    assert probe.ask("127.0.0.1", port, read=probe.warnings) == "topics: weir.plans has 1 replica, not 3"
    assert probe.warnings(404, b"{}") == ""
