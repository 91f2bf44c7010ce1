"""The loop's own brokers demand TLS, a password and rights: topics, bus, lease, and Spark's stream with one file of
credentials."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.kafka import SASL_USER, KafkaBroker
from testbed.service import RedisServer, WeirService, wait_all_ready
from tests.integration.analyzer.conftest import PARTITIONS, SLOW_MACHINE_SECONDS, Bench
from tests.integration.analyzer.test_stream import observations
from weir_contracts.topics import OBSERVATIONS
from weir_runtime.bus import BusError, Outgoing
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.kafka_client import read_security

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "own-cluster.md"
SECONDS = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Its user has the rights of docs/how-to/own-cluster.md and no others."""
    with KafkaBroker(tmp_path_factory.mktemp("secured") / "kafka", tls=True, authorizer=True) as started:
        started.allow(documented(), prefixed=True)
        yield started


def documented() -> list[tuple[str, str, str]]:
    """Return kind, prefix and operation of the rights in the document's table."""
    rows = re.findall(r"^\| (topics|groups) `(\S+)` \| (.+) \|$", DOCUMENT.read_text(), re.M)
    return [
        (kind.removesuffix("s"), prefix, name)
        for kind, prefix, operations in rows
        for name in re.findall(r"`(\w+)`", operations)
    ]


def written(folder: Path, broker: KafkaBroker, password: str | None = None) -> Path:
    """Return the file that WEIR_KAFKA_CREDENTIALS_FILE names."""
    path = folder / "credentials.json"
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": SASL_USER,
        "sasl.password": password or broker.sasl_password,
        "ssl.ca.location": str(broker.tls_authority),
    }
    path.write_text(json.dumps(settings))
    return path


def test_the_stream_works_with_secured_brokers(broker: KafkaBroker, tmp_path: Path) -> None:
    """The job makes the topics over TLS; the analyzer's lease, its questions and its stream read and write over TLS."""
    secured = {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": broker.tls_servers,
        "WEIR_KAFKA_CREDENTIALS_FILE": str(written(tmp_path, broker)),
    }
    environment = {**secured, "WEIR_PARTITIONS": str(PARTITIONS)}
    command = [sys.executable, "-m", "weir_runtime.topics"]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert made.returncode == 0, made.stderr
    assert f"{OBSERVATIONS.name}: made with {PARTITIONS} partitions" in made.stdout
    bench = Bench(broker, tmp_path)
    with bench.service(checkpoint="state", shuffle_partitions=2, **secured) as service:
        service.wait_ready(SLOW_MACHINE_SECONDS)
        sent = observations("shop/secured", 20)
        bench.send(sent)
        assert [each.observation_id for each in bench.wait_for("shop/secured", len(sent))] == [each.id for each in sent]
        assert broker.sasl_password not in service.process.log.read_text()
    bench.consumer.close()


def test_every_service_is_ready_with_secured_brokers(broker: KafkaBroker, tmp_path: Path) -> None:
    """With the documented rights, after `python -m weir_runtime.topics`; the log of none has the password."""
    secured = {
        "WEIR_KAFKA_BOOTSTRAP_SERVERS": broker.tls_servers,
        "WEIR_KAFKA_CREDENTIALS_FILE": str(written(tmp_path, broker)),
        "WEIR_PARTITIONS": str(PARTITIONS),
    }
    topics = [sys.executable, "-m", "weir_runtime.topics"]
    subprocess.run(topics, env=secured, capture_output=True, timeout=SECONDS, check=True)
    with RedisServer(tmp_path / "redis") as redis:
        environment = {**secured, "WEIR_KNOWLEDGE_REDIS_URL": redis.url}
        knowledge = WeirService("knowledge", tmp_path, environment)
        others = [
            WeirService(name, tmp_path, {**environment, "WEIR_KNOWLEDGE_URL": knowledge.url})
            for name in ("monitor", "planner", "executor")
        ]
        services = [knowledge, *others]
        try:
            for each in services:
                each.start()
            wait_all_ready(services)
            assert not any(broker.sasl_password in each.process.log.read_text() for each in services)
        finally:
            for each in services:
                each.stop()


async def test_a_bus_publishes_and_receives_over_tls(broker: KafkaBroker, tmp_path: Path) -> None:
    bus = KafkaBus(broker.tls_servers, read_security(written(tmp_path, broker)))
    broker.create_topic("weir.over-tls", 1)
    await bus.start()
    try:
        await bus.ping()
        await bus.publish_many([Outgoing("weir.over-tls", "shop/orders", b"{}")])
        reader = bus.reader("weir.over-tls")
        async with asyncio.timeout(SECONDS):
            while not (found := await reader.receive()):
                continue
        assert [(record.key, record.value) for record in found] == [("shop/orders", b"{}")]
    finally:
        await bus.close()


async def test_refused_credentials_are_named_by_readiness(broker: KafkaBroker, tmp_path: Path) -> None:
    """The sentence has the setting and the reason, never the password."""
    bus = KafkaBus(broker.tls_servers, read_security(written(tmp_path, broker, "not-the-password")))
    await bus.start()
    try:
        with pytest.raises(BusError) as refused:
            await bus.ping()
        assert "(WEIR_KAFKA_CREDENTIALS_FILE): the brokers refuse the credentials" in str(refused.value)
        assert "not-the-password" not in str(refused.value)
    finally:
        await bus.close()
