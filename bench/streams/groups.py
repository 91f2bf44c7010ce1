"""Reading 200 groups of 100 partitions each: the collectors alone, then the monitor's own process."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer

from bench.results_file import distribution, log
from testbed.kafka import KafkaBroker
from testbed.service import WeirService, wait_all_ready
from weir_contracts import Observation, ScalingPolicy, policy_of
from weir_contracts.topics import OBSERVATIONS, POLICIES
from weir_monitor.adapters.application import ApplicationCollector, Collectors
from weir_runtime.clock import SystemClock
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.service import topic_specs

from .made_groups import MadeGroup, make_groups

GROUPS, PARTITIONS, TOPICS = 200, 100, 20
ROUNDS = 12
INTERVAL_SECONDS = 10
MONITOR_SECONDS = 75.0
CALL_TIMEOUT_SECONDS = 2.0
"""The monitor's default."""
LOOP_PARTITIONS = 2


def _policy(group: MadeGroup, servers: str) -> ScalingPolicy:
    return policy_of(
        f"bench/{group.id}",
        application={"kafkaStreams": {"applicationId": group.id}},
        target={"endpoint": {"url": "http://127.0.0.1:1/scale"}},
        signals={"kafka": {"bootstrapServers": servers}},
        objective={"maxLag": "30s"},
        interval=f"{INTERVAL_SECONDS}s",
        mode="advise",
    )


def _append(servers: str, topics: Sequence[str]) -> None:
    """Write a record to each partition, so that each has lag."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for topic in topics:
        for number in range(PARTITIONS):
            producer.produce(topic, b"x", partition=number)
    if producer.flush(30):
        raise RuntimeError("the broker did not take the records")


async def _rounds(policies: Sequence[ScalingPolicy]) -> dict[str, Any]:
    """Read all groups at once, again and again, in this process."""
    factory = Collectors(SystemClock(), CALL_TIMEOUT_SECONDS)
    collectors: list[ApplicationCollector] = [factory.new(policy) for policy in policies]
    seconds, problems = [], 0
    try:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            readings = await asyncio.gather(
                *(each.read(policy) for each, policy in zip(collectors, policies, strict=True))
            )
            seconds.append(time.perf_counter() - began)
            problems += sum(bool(r.problems or r.scrape.problems) for r in readings)
            complete = sum(
                sum(p.committed_offset is not None and p.log_end_offset is not None for p in r.scrape.partitions)
                for r in readings
            )
            log(f"{len(readings)} groups in {seconds[-1]:.2f} s, {complete} partitions complete")
            await asyncio.sleep(1.0)
    finally:
        await asyncio.gather(*(each.close() for each in collectors))
    return {
        "first_seconds": round(seconds[0], 3),
        "seconds": distribution(seconds[1:]),
        "partitions_complete": complete,
        "readings_with_problems": problems,
        "threads_of_this_process": psutil.Process().num_threads(),
    }


async def _publish(servers: str, policies: Sequence[ScalingPolicy]) -> None:
    bus = KafkaBus(servers)
    await bus.start()
    try:
        for policy in policies:
            await bus.publish(POLICIES.name, policy.application, policy.model_dump_json().encode())
    finally:
        await bus.close()


async def _make_topics(servers: str) -> None:
    bus = KafkaBus(servers)
    await bus.start()
    try:
        await bus.ensure_topics(topic_specs(LOOP_PARTITIONS))
    finally:
        await bus.close()


def _observed(servers: str, seconds: float) -> list[Observation]:
    """Return all observations of so many seconds."""
    settings = {"bootstrap.servers": servers, "group.id": "bench-observations", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([OBSERVATIONS.name])
    found: list[bytes] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None and (value := message.value()) is not None:
            found.append(bytes(value))
    consumer.close()
    return [Observation.model_validate_json(each) for each in found]


def _monitor(servers: str, policies: Sequence[ScalingPolicy], folder: Path) -> dict[str, Any]:
    """Let the monitor's process scrape all of them at its interval."""
    environment = {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": servers,
        "WEIR_PARTITIONS": str(LOOP_PARTITIONS),
        "WEIR_LOG_LEVEL": "WARNING",
    }
    asyncio.run(_make_topics(servers))
    monitor = WeirService("monitor", folder, environment)
    monitor.start()
    try:
        wait_all_ready([monitor])
        process = psutil.Process(monitor.pid)
        asyncio.run(_publish(servers, policies))
        observations = _observed(servers, 15.0)
        cpu, began = sum(process.cpu_times()[:2]), time.monotonic()
        observations = _observed(servers, MONITOR_SECONDS)
        took = time.monotonic() - began
        usage = {
            "rss_megabytes": round(process.memory_info().rss / 1e6, 1),
            "threads": process.num_threads(),
            "cpu_cores": round((sum(process.cpu_times()[:2]) - cpu) / took, 3),
        }
    finally:
        monitor.stop()
    per_group: dict[str, int] = {}
    for each in observations:
        per_group[each.application] = per_group.get(each.application, 0) + 1
    later = sorted(observations, key=lambda o: o.observed_at)[len(policies) :]
    return {
        **usage,
        "interval_seconds": INTERVAL_SECONDS,
        "observations": len(observations),
        "applications_observed": len(per_group),
        "status": {s: sum(o.status == s for o in observations) for s in {o.status for o in observations}},
        "scrape_seconds": distribution([o.scrape_seconds for o in later if o.scrape_seconds is not None]),
        "problems": sorted({p.what for o in later for p in o.problems})[:5],
    }


def measure() -> dict[str, Any]:
    """Return the figures of this part."""
    with tempfile.TemporaryDirectory(prefix="weir-groups-") as name:
        folder = Path(name)
        with KafkaBroker(folder / "kafka") as kafka:
            servers = kafka.bootstrap_servers
            topics = [f"topic-{number:02}" for number in range(TOPICS)]
            for topic in topics:
                kafka.create_topic(topic, PARTITIONS)
            groups = [MadeGroup(f"group-{n:03}", topics[n % TOPICS], PARTITIONS) for n in range(GROUPS)]
            began = time.monotonic()
            make_groups(servers, groups)
            _append(servers, topics)
            log(f"{GROUPS} groups of {PARTITIONS} partitions made in {time.monotonic() - began:.1f} s")
            policies = [_policy(group, servers) for group in groups]
            read = asyncio.run(_rounds(policies))
            monitored = _monitor(servers, policies, folder)
    about = {"groups": GROUPS, "partitions_each": PARTITIONS, "topics": TOPICS}
    return {**about, "collectors": read, "monitor": monitored}
