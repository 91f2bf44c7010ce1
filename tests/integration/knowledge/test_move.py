"""A move from one process to services on a real Kafka and a real Redis, and back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from testbed.kafka import KafkaBroker
from testbed.service import RedisServer
from testbed.simulated_flink import ManyJobs
from tests.loop.test_move import moves_between
from tests.loop.test_one_process import one_process
from tests.unit.analyzer.memory_analyzer import MemoryAnalyzer
from weir_analyzer.settings import AnalyzerSettings
from weir_cli.single import OneProcess, SingleSettings, compose
from weir_knowledge.adapters.redis import RedisStore
from weir_runtime.clock import SystemClock
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.loop import Stop
from weir_runtime.service import topic_specs

PARTITIONS = 4


@asynccontextmanager
async def services(kafka: KafkaBroker, redis_server: RedisServer) -> AsyncIterator[OneProcess]:
    """Run the services on real parts, as tasks of this process; its analyzer gives the records of Kafka to the function that
    Spark's workers give them to."""
    clock, stop = SystemClock(), Stop()
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    await bus.ensure_topics(topic_specs(PARTITIONS))
    store = RedisStore(SecretStr(redis_server.new_database()))
    one = compose(SingleSettings(partitions=PARTITIONS), bus, store, clock)
    analyzer = MemoryAnalyzer(bus, AnalyzerSettings().analysis())
    running = {**one.tasks, "analyzer": analyzer.run}
    tasks = [asyncio.create_task(task(stop), name=name) for name, task in running.items()]
    try:
        yield one
    finally:
        stop.request("the test is over")
        await asyncio.wait(tasks, timeout=60.0)
        await one.close()


async def test_services_continue_with_what_one_process_learned_and_back(
    kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the import reaches analyzer and knowledge by the partition of its application; the export of the
    services, with a policy that advises now, gives a fresh process the same capacity and the past of both."""
    jobs = ManyJobs(["orders"], 0.5)
    async with jobs.serving():
        starts = [
            partial(one_process, tmp_path / "first"),
            partial(services, kafka, redis_server),
            partial(one_process, tmp_path / "third"),
        ]
        await moves_between(starts, jobs, tmp_path / "weir.jsonl", monkeypatch)
