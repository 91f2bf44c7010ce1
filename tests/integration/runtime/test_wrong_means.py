"""A dependency is reachable and wrong: the log and /health/ready give the reason, and the service continues once it is
corrected."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from testbed.kafka import KafkaBroker
from testbed.process import wait_until
from testbed.service import RedisServer, WeirService
from weir_contracts.topics import OBSERVATIONS
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.service import topic_specs

Start = Callable[..., WeirService]


@pytest.fixture
def start(kafka: KafkaBroker, redis_server: RedisServer, tmp_path: Path) -> Iterator[Start]:
    """Starts knowledge on the shared parts, or on others where its settings say so."""
    started: list[WeirService] = []

    def knowledge(**settings: str) -> WeirService:
        given = {
            "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "WEIR_KNOWLEDGE_REDIS_URL": redis_server.new_database(),
            **settings,
        }
        started.append(WeirService("knowledge", tmp_path, given).start())
        return started[-1]

    yield knowledge
    for service in started:
        service.stop()


async def topics_of(kafka: KafkaBroker) -> KafkaBus:
    """The loop's topics as the other tests have them."""
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    await bus.ensure_topics(topic_specs(4))
    return bus


def complaint(service: WeirService, check: str) -> str:
    """Return the reason of a check once it fails; the status is 503 then."""

    def reason_of_check() -> str | None:
        service.process.check()
        try:
            answer = httpx.get(f"{service.url}/health/ready", timeout=5)
        except httpx.HTTPError:
            return None
        found: Mapping[str, Any] = answer.json()["dependencies"].get(check, {"ok": True})
        wrong = found["ok"] is False and "not checked yet" not in found["reason"]
        assert not wrong or answer.status_code == 503
        return str(found["reason"]) if wrong else None

    return wait_until(reason_of_check, timeout_seconds=40, what=f"complaint of {check}")


def logged(service: WeirService, event: str, **fields: str) -> list[dict[str, Any]]:
    """The log's lines of an event."""
    lines = [json.loads(line) for line in service.process.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event and fields.items() <= line.items()]


async def test_a_topic_with_too_few_partitions(start: Start, kafka: KafkaBroker) -> None:
    """Which topic, how many, how many it must have, and the setting that says so."""
    await (await topics_of(kafka)).close()
    service = await asyncio.to_thread(start, WEIR_PARTITIONS="6")
    reason = await asyncio.to_thread(complaint, service, "topics")
    assert "has 4 partitions and must have 6" in reason
    assert "WEIR_PARTITIONS" in reason
    assert logged(service, "waiting", reason=reason)


async def test_topics_with_fewer_replicas_than_asked(start: Start, kafka: KafkaBroker) -> None:
    """The service is ready, says it with the remedy, and logs it once."""
    await (await topics_of(kafka)).close()
    service = await asyncio.to_thread(start, WEIR_REPLICATION_FACTOR="3", WEIR_MIN_INSYNC_REPLICAS="2")
    await asyncio.to_thread(service.wait_ready, 60.0)
    answer = await asyncio.to_thread(httpx.get, f"{service.url}/health/ready", timeout=5)
    found = answer.json()["dependencies"]["topics"]
    assert found["ok"]
    assert "1 replica, not 3 (WEIR_REPLICATION_FACTOR): kafka-reassign-partitions.sh adds replicas" in found["reason"]
    assert len(logged(service, "fewer-replicas")) == 1


async def test_more_replicas_than_brokers(start: Start, run_folder: Path) -> None:
    """Without topics the service waits, with the reason, and does not end; it is the setting that is too high here."""
    with KafkaBroker(run_folder / "kafka-alone") as alone:
        asked = {"WEIR_KAFKA_BOOTSTRAP_SERVERS": alone.bootstrap_servers, "WEIR_REPLICATION_FACTOR": "3"}
        service = await asyncio.to_thread(start, **asked)
        reason = await asyncio.to_thread(complaint, service, "topics")
        assert "cannot be created with 3 replicas (WEIR_REPLICATION_FACTOR): start more brokers or lower it" in reason
        assert logged(service, "waiting", reason=reason)
        service.stop()


async def test_a_redis_that_wants_a_password(start: Start, tmp_path: Path) -> None:
    """The server's own words and the setting; when the password is taken away, it goes on without a restart."""
    with RedisServer(tmp_path / "redis") as server:
        with redis.Redis(port=server.port) as admin:
            admin.config_set("requirepass", "geheim")
        service = await asyncio.to_thread(start, WEIR_KNOWLEDGE_REDIS_URL=f"redis://127.0.0.1:{server.port}/0")
        reason = await asyncio.to_thread(complaint, service, "redis")
        assert "Authentication required" in reason
        assert "WEIR_KNOWLEDGE_REDIS_URL" in reason
        await asyncio.to_thread(
            wait_until, lambda: logged(service, "waiting", dependency="store"), timeout_seconds=40, what="log"
        )
        assert "geheim" not in service.process.log.read_text()
        with redis.Redis(port=server.port, password="geheim") as admin:
            admin.config_set("requirepass", "")
        await asyncio.to_thread(service.wait_ready, 60.0)
        # Its server goes first otherwise, and the service would say so for as long as it takes to stop.
        service.stop()


async def test_a_message_of_a_newer_version(start: Start, kafka: KafkaBroker) -> None:
    """Sent to the dead-letter topic unread, with its origin and what to upgrade. The service goes on, and stays ready."""
    bus = await topics_of(kafka)
    service = await asyncio.to_thread(start)
    await asyncio.to_thread(service.wait_ready, 60.0)
    await bus.publish(OBSERVATIONS.name, "shop/future", b"{}", {"ce_type": "dev.weir.observations.v1"})
    await asyncio.to_thread(
        wait_until,
        lambda: logged(service, "dead-letter", key="shop/future"),
        timeout_seconds=30,
        what="the line about the dead letter",
    )
    ready = await asyncio.to_thread(httpx.get, f"{service.url}/health/ready", timeout=5.0)
    assert ready.status_code == 200
    await bus.close()
