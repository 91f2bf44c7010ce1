"""Bad records on every topic, under the five services as processes: each becomes a dead letter, none does harm."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from testbed.kafka import KafkaBroker
from testbed.process import free_port, stop_all
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from testbed.simulated_flink import ManyJobs
from tests.unit.fuzz.documents import example
from tests.unit.knowledge.builders import plan
from tests.unit.planner.build import policy
from weir_contracts import DeadLetter, Outcome, Plan
from weir_contracts.topics import (
    ACTIONS,
    ANALYSES,
    CHANGES,
    DEAD_LETTERS,
    OBSERVATIONS,
    OUTCOMES,
    PLANNERS,
    PLANS,
    POLICIES,
    TOPICS,
)
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import NEWER_VERSION, decode, encode
from weir_runtime.reading import MAX_OF_KEY
from weir_runtime.service import topic_specs

APPLICATION = "fuzz/orders"
PARTITIONS = 2
SERVICES = ("knowledge", "monitor", "planner", "executor", "analyzer")
READERS: dict[str, set[str]] = {
    CHANGES.name: {"knowledge"},
    POLICIES.name: {"monitor", "knowledge"},
    ACTIONS.name: {"knowledge"},
    OBSERVATIONS.name: {"analyzer", "planner", "knowledge"},
    ANALYSES.name: {"planner", "knowledge"},
    PLANS.name: {"executor", "knowledge"},
    OUTCOMES.name: {"planner", "executor", "knowledge"},
    PLANNERS.name: {"planner"},
}
"""Services that have a group for the records of a topic, and so send the dead letters. (The planner reads plans only when
it takes partitions over.)"""
WITHOUT_VALUE: dict[str, set[str]] = {topic: READERS[topic] for topic in (OBSERVATIONS.name, CHANGES.name)}
"""Who puts a record without a value aside: in a compacted topic it is a tombstone, and says that there is nothing any
more."""
THROWN_AT_DEAD_LETTERS = "fuzz/no-letter"
chance = random.Random(20260614)
VALUES: dict[str, bytes] = {
    "nothing": b"",
    "random bytes": chance.randbytes(500),
    "other random bytes": chance.randbytes(5000),
    "no text": b"\xff\xfe\x00\x80",
    "half a document": json.dumps(example("plan-request")).encode()[:3000],
    "a list": b"[]",
    "an object": b"{}",
    "a number": b"9" * 5000,
    "NaN": b"NaN",
    "deep lists": b"[" * 50_000,
    "half a character": b'{"application": "\\ud800"}',
    "another contract": json.dumps(example("dead-letter")).encode(),
    "900 kB of bytes": chance.randbytes(900_000),
    "900 kB of JSON": b'{"id": "' + b"x" * 900_000 + b'"}',
    "900 kB of entries": b"[" + b"{}," * 300_000 + b"{}]",
}
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [],
    [("ce_type", b"\xff\xfe"), ("ce_type", b"twice"), ("", b"")],
    [("traceparent", b"\xff\x00"), ("traceparent", b"00-x")],
    [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"), ("content-type", None), ("x" * 5000, b"y")],
]
EXAMPLES = {
    CHANGES.name: "change",
    POLICIES.name: "policy",
    ACTIONS.name: "action-state",
    OBSERVATIONS.name: "observation",
    ANALYSES.name: "analysis",
    PLANS.name: "plan",
    OUTCOMES.name: "outcome",
    PLANNERS.name: "planner-registration",
}
NEWER_VERSIONS = ("v1alpha2", "v1beta1", "v1", "v2alpha1")
"""Of records whose body this version could read: it must not, as a part of it might fit."""
KEYS: list[Callable[[int], bytes | None]] = [
    lambda number: f"fuzz/bad-{number}".encode(),
    lambda number: b"\xff\x00 %d" % number,
    lambda _number: None,
]


class Loop:
    """The five services and the one application they care for."""

    def __init__(self, kafka: KafkaBroker, redis_server: RedisServer, folder: Path) -> None:
        self.flink = ManyJobs(["orders"], 1.0)
        self.kafka = kafka
        self.bus = KafkaBus(kafka.bootstrap_servers)
        port = free_port()
        redis_url = redis_server.new_database()
        url = f"http://127.0.0.1:{port}"
        environment = loop_settings(kafka.bootstrap_servers, PARTITIONS, url, redis_url, folder)
        self.services = [
            WeirService(name, folder, environment, port=port if name == "knowledge" else None) for name in SERVICES
        ]
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10.0)
        self.letters: list[DeadLetter] = []
        self.outcomes: list[Outcome] = []

    async def start(self) -> None:
        await self.bus.start()
        await self.bus.ensure_topics(topic_specs(PARTITIONS))
        for service in self.services:
            service.start()
        await asyncio.to_thread(wait_all_ready, self.services, 240.0)
        document = policy(
            APPLICATION, version=None, application={"flink": {"url": self.flink.url, "job": "orders"}}, interval="2s"
        ).to_document()
        (await self.http.put(f"/v1/policies/{APPLICATION}", json=document)).raise_for_status()

    async def listen(self) -> None:
        letters, outcomes = self.bus.reader(DEAD_LETTERS.name), self.bus.reader(OUTCOMES.name)
        while True:
            self.letters += [
                decode(r, DeadLetter).message
                for r in await letters.receive(timeout_seconds=0.1)
                if r.key != THROWN_AT_DEAD_LETTERS
            ]
            for record in await outcomes.receive(timeout_seconds=0.1):
                if record.key == APPLICATION and record.value is not None:
                    self.outcomes.append(decode(record, Outcome).message)

    async def turned(self, since: float) -> bool:
        """Whether something observed after an instant was planned for."""
        answer = await self.http.get(f"/v1/applications/{APPLICATION}/plan")
        if answer.status_code != 200:
            return False
        return Plan.model_validate_json(answer.content).observed_at.timestamp() > since

    def put_aside(self) -> Counter[tuple[str, str, int, int]]:
        return Counter((letter.service, letter.topic, letter.partition, letter.offset) for letter in self.letters)

    async def suppressed(self) -> Counter[str]:
        """Return how many records each service left without a dead letter. (The analyzer's workers have no counter.)"""
        found: Counter[str] = Counter()
        for service in self.services:
            text = (await self.http.get(f"{service.url}/metrics")).text
            samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
            total = sum(s.value for s in samples if s.name == "weir_dead_letters_suppressed_total")
            found += Counter({service.name: int(total)})
        return found


@pytest.fixture
def own_kafka(run_folder: Path) -> Iterator[KafkaBroker]:
    """A dedicated broker: no other test should read these records."""
    with KafkaBroker(run_folder / "kafka-fuzz") as broker:
        yield broker


@pytest.fixture
async def loop(own_kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Loop]:
    made = Loop(own_kafka, redis_server, tmp_path)
    async with made.flink.serving():
        listening: asyncio.Task[None] | None = None
        try:
            await made.start()
            listening = asyncio.create_task(made.listen())
            yield made
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
            await made.http.aclose()
            await made.bus.close()
            await asyncio.to_thread(stop_all, [service.process for service in made.services])


def throw(kafka: KafkaBroker) -> Counter[tuple[str, str, int, int]]:
    """Publish every kind of bad value, and none at all, on every topic; return the expected dead letters by service."""
    expected: Counter[tuple[str, str, int, int]] = Counter()
    failures: list[Any] = []
    deleted = ("fuzz/bad-gone", APPLICATION)

    def delivered(readers: set[str]) -> Callable[[Any, Any], None]:
        def note(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)
            for service in readers:
                expected[service, message.topic(), message.partition(), message.offset()] += 1

        return note

    settings = {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"}
    producer = Producer({**settings, "message.max.bytes": 2_000_000})
    number = 0
    for topic, readers in READERS.items():  # first, while each service may still send letters
        for version in NEWER_VERSIONS:
            value, key = json.dumps(example(EXAMPLES[topic])).encode(), f"fuzz/{version}".encode()
            headers = [("ce_type", f"dev.{topic}".replace("v1alpha1", version).encode())]
            producer.produce(topic, value=value, key=key, headers=headers, on_delivery=delivered(readers))
    assert producer.flush(30) == 0
    for topic, readers in READERS.items():
        for value in VALUES.values():
            for key in KEYS if topic == OBSERVATIONS.name else KEYS[:-1]:  # a compacted topic takes none without a key
                number += 1
                headers = HEADERS[number % len(HEADERS)]
                producer.produce(topic, value=value, key=key(number), headers=headers, on_delivery=delivered(readers))
        # of the application itself, too, but for the one tombstone that is to be believed: its policy's deletion
        for name in deleted[:1] if topic == POLICIES.name else deleted:
            producer.produce(topic, value=None, key=name, on_delivery=delivered(WITHOUT_VALUE.get(topic, set())))
    for value in (*VALUES.values(), None):  # no service reads dead letters
        producer.produce(DEAD_LETTERS.name, value=value, key=THROWN_AT_DEAD_LETTERS, on_delivery=delivered(set()))
    assert producer.flush(30) == 0
    assert not failures, failures[:3]
    return expected


async def eventually(condition: Callable[[], Any], seconds: float) -> bool:
    """Return whether the condition held in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = condition()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return True
        await asyncio.sleep(0.2)
    return False


async def test_bad_records_become_dead_letters_and_the_loop_goes_on(loop: Loop) -> None:
    """Some 360 of them, 32 of newer versions: each service that should have read one sends its dead letter or, beyond its
    limit a minute, counts it, and none twice; all five stay up and ready; what comes behind is observed, analysed, planned
    and answered as before."""
    assert set(READERS) == {topic.name for topic in TOPICS} - {DEAD_LETTERS.name}
    before = {service.name: service.pid for service in loop.services}
    assert await eventually(lambda: loop.turned(0.0), 90), "a first cycle of the loop"
    expected = await asyncio.to_thread(throw, loop.kafka)
    thrown_at = time.time()
    wanted = Counter(service for service, *_ in expected.elements() if service != "analyzer")

    async def refused() -> Counter[str]:
        sent = Counter(service for service, *_ in loop.put_aside().elements() if service != "analyzer")
        return sent + await loop.suppressed()

    def of_analyzer() -> int:
        return sum(letter.service == "analyzer" for letter in loop.letters)

    async def all_refused() -> bool:
        return await refused() >= wanted and of_analyzer() > MAX_OF_KEY

    await eventually(all_refused, 90)
    assert await refused() == wanted
    newer = {(letter.service, letter.topic) for letter in loop.letters if letter.code == NEWER_VERSION}
    assert {service for service, _ in newer} == set(SERVICES)
    assert of_analyzer() > MAX_OF_KEY
    assert loop.put_aside() <= expected, list(loop.put_aside() - expected)[:20]

    assert await eventually(lambda: loop.turned(thrown_at), 60), "a cycle of the loop behind them"
    good = plan(1, 4, APPLICATION)  # of long ago, so that it is refused: which is an answer
    body, headers = encode(good, type=PLANS.type, source="test", id=good.id, time=good.created_at)
    await loop.bus.publish(PLANS.name, APPLICATION, body, headers)
    assert await eventually(lambda: good.id in {outcome.plan_id for outcome in loop.outcomes}, 40), "an outcome"
    for service in loop.services:
        assert service.process.running and service.pid == before[service.name], service.name
        assert await eventually(lambda service=service: service.ready(), 40), service.name
    assert await refused() == wanted
    assert loop.put_aside() <= expected
