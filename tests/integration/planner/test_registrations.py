"""Registered planners on a real Kafka: registered at one replica, known to the other, and still known after both were
restarted; one that is chosen decides, its fallback where it does not, and shadows of it are listed and scored."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from testbed.kafka import KafkaBroker
from testbed.service import WeirService
from tests.integration.planner.test_service import until
from tests.unit.planner.build import SOURCE, WORK, analysis, policy, request
from tests.unit.planner.plugin import Plugin, json_answer
from weir_contracts import NO_REPLY, Contender, Plan, ScalingPolicy
from weir_contracts.topics import ANALYSES, PLANS
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import encode

NAME, CHOSEN = "registered-once", "registered-and-chosen"
MORE = {SOURCE: 2, WORK: 3}
"""What the plugin wants of the application as the analyses here have it: one more of each."""
JSON = {"Content-Type": "application/json"}


def replica(kafka: KafkaBroker, folder: Path) -> WeirService:
    folder.mkdir(exist_ok=True)
    environment = {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "WEIR_PLANNER_PLUGIN_SCHEMES": "http",
        "WEIR_PLANNER_PLUGIN_NETWORKS": "127.0.0.0/8",
    }
    return WeirService("planner", folder, environment)


async def knows(service: WeirService) -> bool:
    async with httpx.AsyncClient(timeout=5.0) as client:
        return (await client.get(f"{service.url}/v1/planners/{NAME}")).status_code == 200


async def decided(service: WeirService) -> object:
    """Return the decision of the registered planner."""
    question = request(analysis(the_policy=policy(planner={"name": NAME, "timeout": "10s"}))).model_dump_json()
    async with httpx.AsyncClient(timeout=20.0) as client:
        answer = await client.post(f"{service.url}/v1/plan", content=question, headers=JSON)
    assert answer.status_code == 200, answer.text
    return answer.json()["proposed"]


@pytest.fixture
async def bus(kafka: KafkaBroker) -> AsyncIterator[KafkaBus]:
    made = KafkaBus(kafka.bootstrap_servers)
    await made.start()
    yield made
    await made.close()


class Listener:
    """The application's analyses, one a cycle, and the resulting plans."""

    def __init__(self, bus: KafkaBus, the_policy: ScalingPolicy) -> None:
        self._bus, self._policy = bus, the_policy
        self._application = the_policy.application
        self._plans = bus.reader(PLANS.name)
        self.plan: Plan | None = None

    @property
    def listed(self) -> dict[str, Contender]:
        """The planners that the last plan lists."""
        return {each.label: each for each in self.plan.contenders} if self.plan else {}

    async def cycle(self) -> None:
        """Publish an analysis, and wait a second for its plan."""
        now = datetime.now(UTC)
        found = analysis(at=now, the_policy=self._policy, arrivals=2400)
        body, headers = encode(found, type=ANALYSES.type, source="test", id=found.id, time=now)
        await self._bus.publish(ANALYSES.name, self._application, body, headers)
        for record in await self._plans.receive(timeout_seconds=1.0):
            if record.key == self._application:
                self.plan = Plan.model_validate_json(record.value or b"")

    async def until(self, condition: Callable[[Plan], bool], what: str) -> None:
        async def holds() -> bool:
            await self.cycle()
            return self.plan is not None and condition(self.plan)

        await until(holds, seconds=120, what=what)


async def test_one_that_is_chosen_decides_and_its_fallback_where_it_does_not(
    kafka: KafkaBroker, bus: KafkaBus, tmp_path: Path
) -> None:
    """The plan is the plugin's, next to a shadow of it and a built-in one; when it responds with 503, the plan is the
    fallback's and reports it, its shadow has no response, and the built-in shadow has its own."""
    the_policy = policy(
        f"story-{uuid4().hex[:8]}/orders",
        planner={"name": CHOSEN, "timeout": "10s", "fallback": {"name": "static", "parameters": {"parallelism": 2}}},
        shadows=[{"name": CHOSEN, "label": "again"}, {"name": "hpa"}],
        interval="60s",
    )
    async with Plugin() as plugin:
        with replica(kafka, tmp_path / "planner") as service:
            await asyncio.to_thread(service.wait_ready, 180.0)
            async with httpx.AsyncClient(timeout=60.0) as client:
                body = {"name": CHOSEN, "url": plugin.url}
                answer = await client.post(f"{service.url}/v1/planners?timeout_seconds=10", json=body)
            assert answer.status_code == 201, answer.text
            loop = Listener(bus, the_policy)
            await loop.until(lambda plan: plan.code == "more", "the plugin's plan")
            assert loop.plan is not None
            assert (loop.plan.planner, loop.plan.proposed) == (CHOSEN, MORE)
            await loop.until(lambda _: loop.listed["hpa"].code not in NO_REPLY, "the built-in shadow's plan")
            assert list(loop.listed) == [CHOSEN, "again", "hpa"]
            assert loop.listed["again"].proposed == MORE
            assert {label for label, each in loop.listed.items() if each.score is not None} == set(loop.listed)

            plugin.respond = lambda _: json_answer({"detail": "ill"}, 503)
            await loop.until(lambda plan: plan.evidence.get("answered_by") == "static", "the fallback's plan")
            assert loop.plan.proposed == {SOURCE: 2, WORK: 2}
            assert loop.plan.evidence["planner_failure"] == "planner-failed"
            assert f"; by the fallback static, as planner {CHOSEN} answered 503: ill" in loop.plan.sentence
            assert loop.listed["again"].code == "planner-failed"
            assert any(each.score.unanswered for each in loop.plan.state.courses if each.score.label == "again")
            assert loop.listed["hpa"].code not in NO_REPLY


async def test_every_replica_knows_it_and_a_restart_forgets_nothing(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Register on A, B plans with it; both end, a new one has it as soon as it is ready; removed, no replica has it."""
    async with Plugin() as plugin:
        body = {"name": NAME, "url": plugin.url}
        with replica(kafka, tmp_path / "a") as first, replica(kafka, tmp_path / "b") as second:
            for service in (first, second):
                await asyncio.to_thread(service.wait_ready, 180.0)
            async with httpx.AsyncClient(timeout=40.0) as client:
                answer = await client.post(f"{first.url}/v1/planners", json=body)
            assert answer.status_code == 201, answer.text
            assert await knows(first)
            await until(lambda: knows(second), seconds=30, what="the other replica knows it")
            assert await decided(second) == MORE
        with replica(kafka, tmp_path / "c") as third:
            await asyncio.to_thread(third.wait_ready, 180.0)
            assert await knows(third)
            assert await decided(third) == MORE
            async with httpx.AsyncClient(timeout=20.0) as client:
                assert (await client.delete(f"{third.url}/v1/planners/{NAME}")).status_code == 204
            assert not await knows(third)
