"""Health: every dependency reports whether it is available, the reason if not, and since when."""

import asyncio

import httpx
import pytest

from weir_runtime.clock import FakeClock
from weir_runtime.health import Health, router
from weir_runtime.http import application


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
    app.include_router(router(health, revision="abc"))
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
        app.include_router(router(health))
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
