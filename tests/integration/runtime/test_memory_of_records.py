"""All five services in the memory of their containers, against records as large as their limits let in: a user
who may write to a topic chooses what it has, and a record that ends a process would end it again after each restart."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from testbed.kafka import KafkaBroker
from testbed.process import free_port
from testbed.service import RedisServer, WeirService, loop_settings, wait_all_ready
from tests.memory import largest_bytes, limit_bytes, used_bytes
from weir_contracts import DeadLetter
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANNERS, PLANS, POLICIES
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import MAX_MESSAGE_BYTES, MAX_MESSAGE_ELEMENTS
from weir_runtime.service import topic_specs

PARTITIONS = 2
READY_SECONDS, LETTERS_SECONDS, SAMPLE_SECONDS = 300.0, 240.0, 0.1
TOPICS = (POLICIES, OBSERVATIONS, ANALYSES, PLANS, OUTCOMES, PLANNERS)
READERS = {
    ("monitor", POLICIES.name),
    ("analyzer", OBSERVATIONS.name),
    ("planner", ANALYSES.name),
    ("planner", PLANNERS.name),
    ("executor", PLANS.name),
    ("executor", OUTCOMES.name),
}
"""Services that send the dead letters of a topic."""
LARGE = (
    b'{"x": [' + b"[0]," * (MAX_MESSAGE_ELEMENTS // 2 - 10) + b"0]}",
    b'{"x": [' + b'{"a":0},' * (MAX_MESSAGE_ELEMENTS // 2 - 10) + b"0]}",
    b'{"x": "' + b"x" * (MAX_MESSAGE_BYTES - 100) + b'"}',
    b'{"x": [' + b"[]," * (MAX_MESSAGE_BYTES // 3 - 10) + b"0]}",
)
"""What is read and takes the most memory, the longest text, and a record that is not to be read."""
TIMES = 5


@pytest.fixture(scope="module")
def brokers(run_folder: Path) -> Iterator[KafkaBroker]:
    """Brokers of this module: others' services would have to read these records, too."""
    with KafkaBroker(run_folder / "kafka-records") as started:
        yield started


@contextmanager
def sampled_bytes(service: WeirService) -> Iterator[list[int]]:
    """Collect the memory of a service of many processes, most of which are forks of one: all that it has in use at once."""
    samples, ended = list[int](), threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.append(used_bytes(service))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


async def test_records_do_not_fill_the_memory_of_any_service(
    brokers: KafkaBroker, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Twenty records in each topic before the services start, written as compressed as a client can: each service buries
    what it reads, goes on, and stays in its limit."""
    bus = KafkaBus(brokers.bootstrap_servers)
    await bus.start()
    await bus.ensure_topics(topic_specs(PARTITIONS))
    settings = {"bootstrap.servers": brokers.bootstrap_servers, "message.max.bytes": 2 * MAX_MESSAGE_BYTES}
    hostile, failed = Producer({**settings, "compression.type": "zstd"}), list[object]()
    for topic in TOPICS:
        for number, value in enumerate(LARGE * TIMES):
            key = f"hostile/a{number % PARTITIONS}"
            hostile.produce(
                topic.name, value, key, on_delivery=lambda error, _: failed.append(error) if error else None
            )
            hostile.poll(0)
    assert await asyncio.to_thread(hostile.flush, 60) == 0 and not failed
    port = free_port()
    redis_url, url = redis_server.new_database(), f"http://127.0.0.1:{port}"
    environment = loop_settings(brokers.bootstrap_servers, PARTITIONS, url, redis_url, tmp_path)
    with ExitStack() as stack:
        services = [
            WeirService(name, tmp_path, environment, port=port if name == "knowledge" else None)
            for name in ("knowledge", "monitor", "analyzer", "planner", "executor")
        ]
        for each in services:
            stack.enter_context(each)
        analyzer = next(each for each in services if each.name == "analyzer")
        of_analyzer = stack.enter_context(sampled_bytes(analyzer))
        await asyncio.to_thread(wait_all_ready, services, READY_SECONDS)
        letters, reader = [], bus.reader(DEAD_LETTERS.name)
        try:
            async with asyncio.timeout(LETTERS_SECONDS):
                while not {(each.service, each.topic) for each in letters} >= READERS:
                    for record in await reader.receive(timeout_seconds=0.5):
                        letters.append(DeadLetter.model_validate_json(record.value or b""))
                    for each in services:
                        each.process.check()
        except TimeoutError:
            pytest.fail(f"dead letters: {sorted({(each.service, each.topic) for each in letters})}")
        used = {each.name: largest_bytes(each) for each in services if each.name != "analyzer"}
        used["analyzer"] = max(of_analyzer)
        assert {each.code for each in letters} == {"too-large", "invalid"}
        assert all(used[name] < limit_bytes(name) for name in used), json.dumps(used)
    await bus.close()
