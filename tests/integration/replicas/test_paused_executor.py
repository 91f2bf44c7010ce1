"""Two executors on a broker, stopped between recording an action and its request. Oracle: the cluster's requests."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from testbed.kafka import KafkaBroker
from testbed.process import stop_all
from testbed.service import WeirService, wait_all_ready
from testbed.simulated_flink import ManyJobs
from tests.unit.executor.builders import SPACE, plan, policy
from tests.unit.planner.build import SOURCE, WORK
from weir_contracts import ActionState, Outcome
from weir_contracts.topics import OUTCOMES, PLANS, POLICIES, Topic
from weir_engines.flink.driver import FlinkDriver
from weir_executor.core import Conflict
from weir_executor.knowledge import MemoryKnowledge
from weir_runtime.bus import Reader
from weir_runtime.clock import SystemClock
from weir_runtime.http import listen, serve
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.loop import Stop
from weir_runtime.messages import decode, encode
from weir_runtime.service import topic_specs

PARTITIONS = 4
CLOCK = SystemClock()


class HeldKnowledge(MemoryKnowledge):
    """Knowledge over HTTP. The first recorded action is stored, and answered once `goes` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed, self.goes = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = FastAPI(openapi_url=None)
        app.add_api_route("/v1/policies/{name:path}", self._read)
        app.add_api_route("/v1/applications/{name:path}/action", self._compare_and_swap, methods=["PUT"])
        stop, bound = Stop(), listen("127.0.0.1", 0)
        task = asyncio.create_task(serve(app, bound, stop))
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            self.goes.set()
            stop.request("the test is over")
            await asyncio.wait_for(task, 10.0)

    async def _read(self, name: str) -> JSONResponse:
        found = self.policies.get(name)
        return JSONResponse(found.model_dump(mode="json", by_alias=True) if found else {}, 200 if found else 404)

    async def _compare_and_swap(self, name: str, request: Request) -> JSONResponse:
        action = ActionState.model_validate_json(await request.body())
        answer = await self.record(action, int(request.headers["If-Match"]))
        if not self.claimed.is_set():
            self.claimed.set()
            await self.goes.wait()
        current = answer.current if isinstance(answer, Conflict) else None
        body = {"current": current.model_dump(mode="json") if current else None}
        return JSONResponse(body, 409 if isinstance(answer, Conflict) else 200)


class Pair:
    """Two executors and what is around them."""

    def __init__(self, kafka: KafkaBroker, flink: ManyJobs, knowledge_url: str, folder: Path) -> None:
        self.kafka = kafka
        self.flink = flink
        (self.job,) = flink.jobs.values()
        self.application = f"fleet/{self.job.name}"
        self.bus = KafkaBus(kafka.bootstrap_servers)
        self.driver = FlinkDriver(CLOCK)
        self.policy = policy(self.application, url=flink.url)
        self.outcomes: list[Outcome] = []
        self._reader: Reader | None = None
        environment = {
            "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "WEIR_PARTITIONS": str(PARTITIONS),
            "WEIR_KNOWLEDGE_URL": knowledge_url,
            "WEIR_EXECUTOR_SETTLE_SECONDS": "1",
            # An answer that was sent before the pause is still taken after it.
            "WEIR_EXECUTOR_KNOWLEDGE_TIMEOUT_SECONDS": "60",
        }
        self.services = [WeirService("executor", folder / str(number), environment) for number in (0, 1)]

    async def start(self) -> None:
        await self.bus.start()
        await self.bus.ensure_topics(topic_specs(PARTITIONS))
        await self.publish(POLICIES, self.policy)
        for service in self.services:
            service.process.folder.mkdir(parents=True, exist_ok=True)
            service.start()
        await asyncio.to_thread(wait_all_ready, self.services)

    async def publish(self, topic: Topic, message: BaseModel) -> None:
        body, headers = encode(message, type=topic.type, source="test", id=SPACE, time=CLOCK.now())
        await self.bus.publish(topic.name, self.application, body, headers)

    async def plan(self, work: int, number: int) -> None:
        """A plan for the job as it is, good for ten minutes."""
        state = await self.driver.observe(self.policy.subject)
        assert state.deployment is not None, state.reason
        now = CLOCK.now()
        made = plan(
            {SOURCE: 1, WORK: work},
            number=number,
            application=self.application,
            at=now,
            deployment=state.deployment.ref(),
            current=state.deployment.observed,
            expires_at=now + timedelta(minutes=10),
        )
        await self.publish(PLANS, made)

    async def until(self, condition: Any, what: str, seconds: float = 60.0) -> None:
        """Read the outcomes until the condition holds."""
        self._reader = self._reader or self.bus.reader(OUTCOMES.name)
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    records = await self._reader.receive(timeout_seconds=0.2)
                    own = (record for record in records if record.key == self.application)
                    self.outcomes += [decode(record, Outcome).message for record in own]
        except TimeoutError:
            raise AssertionError(f"{what}: {[(o.phase, o.code, o.sentence) for o in self.outcomes]}") from None

    def verified(self, work: int) -> bool:
        return bool(self.outcomes) and self.outcomes[-1].phase == "verified" and self.job.observed[WORK] == work

    async def busy(self) -> WeirService:
        """The replica with the action."""
        async with httpx.AsyncClient(timeout=5.0) as http:
            for service in self.services:
                if "weir_executor_actions_in_flight 1.0" in (await http.get(f"{service.url}/metrics")).text:
                    return service
        raise AssertionError("no replica has the action")


@pytest.fixture
def knowledge() -> HeldKnowledge:
    return HeldKnowledge()


@pytest.fixture
async def pair(own_kafka: KafkaBroker, knowledge: HeldKnowledge, tmp_path: Path) -> AsyncIterator[Pair]:
    # The broker's data outlives it: each test has its own job.
    flink = ManyJobs([f"orders-{uuid4().hex[:6]}"], rescale_seconds=1.0)
    async with flink.serving(), knowledge.serving() as url:
        made = Pair(own_kafka, flink, url, tmp_path)
        knowledge.policies[made.application] = made.policy
        try:
            await made.start()
            await made.plan(2, number=1)
            await asyncio.wait_for(knowledge.claimed.wait(), 30.0)
            yield made
        finally:
            for process in (own_kafka.process, *(service.process for service in made.services)):
                if process.running:
                    process.signal_group(signal.SIGCONT)
            await made.driver.close()
            await made.bus.close()
            await asyncio.to_thread(stop_all, [service.process for service in made.services])


async def test_a_replica_that_wakes_up_does_nothing(pair: Pair, knowledge: HeldKnowledge) -> None:
    """Stopped between recording its action and its request; meanwhile the other replica ends the action and one more.
    Awake, it has the response and does not go on: the cluster got one request for each, and no outcome is published."""
    first = await pair.busy()
    first.process.signal_group(signal.SIGSTOP)
    knowledge.goes.set()
    await pair.until(lambda: pair.verified(2), "the other replica goes on")
    await pair.plan(3, number=2)
    await pair.until(lambda: pair.verified(3), "the other replica's next action")
    published, log = len(pair.outcomes), first.process.log
    recovered = log.read_text().count('"recovered"')
    first.process.signal_group(signal.SIGCONT)
    await pair.until(lambda: log.read_text().count('"recovered"') > recovered, "it joins the group again")
    assert [request[WORK] for request in pair.job.requests] == [2, 3]
    assert [(outcome.phase, outcome.code) for outcome in pair.outcomes[published:]] == []


async def test_a_pause_while_the_brokers_do_not_answer_is_heeded(pair: Pair, knowledge: HeldKnowledge) -> None:
    """The broker stops before `applying` is published, and the user pauses: after its acknowledgement nothing follows."""
    pair.kafka.process.signal_group(signal.SIGSTOP)
    knowledge.goes.set()
    knowledge.set_mode(pair.application, "paused", CLOCK.now())
    pair.kafka.process.signal_group(signal.SIGCONT)
    await pair.until(lambda: bool(pair.outcomes) and pair.outcomes[-1].phase == "failed", "the action ends")
    assert [outcome.phase for outcome in pair.outcomes] == ["intended", "applying", "failed"]
    assert pair.outcomes[-1].code == "not-act"
    assert pair.job.requests == []
