"""Two of each service around one broker, one Redis and a cluster of many jobs; every message is recorded."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import httpx
import pytest
from pydantic import BaseModel

from testbed.kafka import KafkaBroker
from testbed.process import free_port, stop_all
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from testbed.simulated_flink import ManyJobs
from tests.unit.planner.build import WORK, analysis, policy
from weir_contracts import Observation, Outcome, Plan
from weir_contracts.topics import ANALYSES, OBSERVATIONS, OUTCOMES, PLANS
from weir_runtime.bus import partition_of
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import decode, encode
from weir_runtime.service import topic_specs

M = TypeVar("M", bound=BaseModel)
PARTITIONS = 4
_NAMES = [f"fleet/job-{number:02}" for number in range(100)]
_EACH = 3
APPLICATIONS = sorted(
    name
    for partition in range(PARTITIONS)
    for name in islice((n for n in _NAMES if partition_of(n, PARTITIONS) == partition), _EACH)
)
"""Three in each partition, so that every replica has some to do."""
INTERVAL_SECONDS = 2
RESCALE_SECONDS = 3.0
"""So that an executor has actions under way when it is killed."""
SERVICES = ("knowledge", "monitor", "planner", "executor")


class Fleet:
    """The services by name and number, their messages, and the load."""

    def __init__(self, kafka: KafkaBroker, redis_server: RedisServer, folder: Path) -> None:
        self.flink = ManyJobs([name.partition("/")[2] for name in APPLICATIONS], RESCALE_SECONDS)
        self.arrivals = 400.0
        """Records/s of every application; a subtask of its second operator does 500."""
        self.received: dict[type[BaseModel], list[tuple[float, Any]]] = {Observation: [], Plan: [], Outcome: []}
        """Each message with the monotonic time it was read at, in the order of its topic."""
        self.bus = KafkaBus(kafka.bootstrap_servers)
        self._analysed: set[UUID] = set()
        ports = {("knowledge", 0): free_port()}
        # In front of two knowledge services there is a balancer; here the first is called and the second is killed.
        url = f"http://127.0.0.1:{ports['knowledge', 0]}"
        environment = {
            **loop_settings(kafka.bootstrap_servers, PARTITIONS, url, redis_server.new_database(), folder),
            "WEIR_EXECUTOR_MAX_ACTIONS": "100",
            "WEIR_EXECUTOR_MAX_ACTIONS_PER_CLUSTER": "100",
            "WEIR_EXECUTOR_SETTLE_SECONDS": "3",
        }
        self.services = {
            (name, number): WeirService(name, folder / f"{name}-{number}", environment, port=ports.get((name, number)))
            for name in SERVICES
            for number in (0, 1)
        }

    async def start(self) -> None:
        """Up to the point where all are ready and every application has its policy."""
        await self.bus.start()
        await self.bus.ensure_topics(topic_specs(PARTITIONS))
        for service in self.services.values():
            service.process.folder.mkdir(parents=True, exist_ok=True)
            service.start()
        await asyncio.to_thread(wait_all_ready, list(self.services.values()))
        async with httpx.AsyncClient(base_url=self.services["knowledge", 0].url, timeout=10.0) as http:
            for name in APPLICATIONS:
                job = {"flink": {"url": self.flink.url, "job": name.partition("/")[2]}}
                wanted = policy(name, version=None, application=job, interval=f"{INTERVAL_SECONDS}s")
                answer = await http.put(f"/v1/policies/{name}", json=wanted.to_document())
                assert answer.status_code == 201, answer.text

    async def listen(self) -> None:
        """Record messages, and answer each observation with its analysis, until cancelled."""
        readers = {
            model: self.bus.reader(topic.name)
            for model, topic in ((Observation, OBSERVATIONS), (Plan, PLANS), (Outcome, OUTCOMES))
        }
        while True:
            for model, reader in readers.items():
                for record in await reader.receive(timeout_seconds=0.05):
                    message = decode(record, model).message
                    self.received[model].append((time.monotonic(), message))
                    if isinstance(message, Observation):
                        await self._analyse(message)

    async def _analyse(self, observation: Observation) -> None:
        """Publish an analysis with linear capacity and the configured arrivals."""
        if observation.id in self._analysed or observation.deployment is None or observation.topology is None:
            return
        self._analysed.add(observation.id)
        found = analysis(
            at=observation.observed_at,
            the_policy=observation.policy,
            arrivals=self.arrivals,
            work=observation.deployment.observed[WORK],
            graph=observation.topology,
            deployment=observation.deployment,
        )
        body, headers = encode(found, type=ANALYSES.type, source="test", id=found.id, time=found.observed_at)
        await self.bus.publish(ANALYSES.name, found.application, body, headers)

    def messages(self, model: type[M]) -> list[M]:
        return [message for _, message in self.received[model]]

    async def until(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        """Wait for a condition; the failure names it."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110 - no event signals it
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not within {seconds:g} s: {what}") from None

    async def metric(self, name: str, number: int, metric: str) -> float:
        """The sum of a metric of one replica."""
        async with httpx.AsyncClient(timeout=5.0) as http:
            text = (await http.get(f"{self.services[name, number].url}/metrics")).text
        return sum(float(value) for value in re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    async def remembered(self, since: float) -> bool:
        """Whether the knowledge service has an observation of each application made after an instant (epoch)."""
        async with httpx.AsyncClient(base_url=self.services["knowledge", 0].url, timeout=5.0) as http:
            for name in APPLICATIONS:
                answer = await http.get(f"/v1/applications/{name}/observation")
                if answer.status_code != 200:
                    return False
                if Observation.model_validate_json(answer.content).observed_at.timestamp() <= since:
                    return False
        return True


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A dedicated broker, on an empty folder: these services answer everything on the loop's topics."""
    with KafkaBroker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture
async def fleet(own_kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(own_kafka, redis_server, tmp_path)
    async with made.flink.serving():
        listening: asyncio.Task[None] | None = None
        try:
            await made.start()
            listening = asyncio.create_task(made.listen())
            yield made
        finally:
            if listening is not None:
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening
            await made.bus.close()
            await asyncio.to_thread(stop_all, [service.process for service in made.services.values()])
