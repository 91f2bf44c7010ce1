"""A password of policies' brokers changes under running services: the brokers refuse the one of before, and Kubernetes
replaces the mounted file."""

import asyncio
import gc
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from testbed.kafka import SASL_USER, KafkaBroker
from testbed.service import WeirService
from tests.mount import Mount
from weir_contracts import KafkaSignals, Observation, policy_of
from weir_contracts.topics import OBSERVATIONS, POLICIES
from weir_engines.kafka.coordinators import KafkaGroups
from weir_engines.kafka.members import GroupUnread
from weir_runtime.bus import Reader
from weir_runtime.clock import SystemClock
from weir_runtime.kafka_bus import KafkaBus
from weir_runtime.messages import decode
from weir_runtime.policy_credentials import BrokerSettings
from weir_runtime.service import topic_specs

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning", "ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("sockets_are_collected"),
]
"""kafka-python leaves sockets whose connection was refused to the garbage collector."""

SECONDS = 120
REFUSED = "the brokers refuse the credentials"


def entries(broker: KafkaBroker) -> dict[str, str]:
    """Return the mounted file with the broker's present password."""
    entry = {
        "namespaces": "*",
        "servers": broker.sasl_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": SASL_USER,
        "sasl.password": broker.sasl_password,
    }
    return {"brokers.json": json.dumps({"shop": entry})}


def change_password(broker: KafkaBroker) -> None:
    """Start the broker again with another password; its data stay."""
    broker.kill()
    broker.sasl_password = uuid.uuid4().hex
    broker.start()


@asynccontextmanager
async def observed(bus: KafkaBus, monitor: WeirService, application: str) -> AsyncIterator[Reader]:
    reader = bus.reader(OBSERVATIONS.name)
    try:
        await asyncio.to_thread(monitor.wait_ready)
        yield reader
    finally:
        await bus.publish(POLICIES.name, application, None)
        await reader.close()


async def next_that_is(reader: Reader, application: str, status: str, text: str) -> Observation:
    """Return the first observation from now on with this status, and `text` in its message."""
    async with asyncio.timeout(SECONDS):
        while True:
            for record in await reader.receive(timeout_seconds=0.5):
                if record.key == application:
                    found = decode(record, Observation).message
                    if found.status == status and text in found.message:
                        return found


async def test_a_changed_password_needs_no_restart(kafka: KafkaBroker, run_folder: Path, tmp_path: Path) -> None:
    """The monitor, a process, and the executor's client read the group; are refused while their file has the password of
    before; and read it again once the file is replaced."""
    application = f"shop/{uuid.uuid4().hex[:8]}"
    group = application.rpartition("/")[2]
    bus = KafkaBus(kafka.bootstrap_servers)
    await bus.start()
    await bus.ensure_topics(topic_specs(4))
    with KafkaBroker(run_folder / "kafka-password") as broker:
        mount = Mount(tmp_path / "mount", entries(broker))
        signals = {"bootstrapServers": broker.sasl_servers, "credentials": "shop"}
        spec = {
            "application": {"consumerGroup": {"groupId": group}},
            "target": {"endpoint": {"url": "http://127.0.0.1:1"}},
            "signals": {"kafka": signals},
            "interval": "1s",
        }
        policy = policy_of(application, objective={"maxLag": "30s"}, **spec)
        await bus.publish(POLICIES.name, application, policy.model_dump_json(exclude_unset=True).encode())
        settings = BrokerSettings(broker_credentials_file=mount / "brokers.json")
        executor, kafka_signals = (
            KafkaGroups(SystemClock(), settings.broker_credentials),
            KafkaSignals.model_validate(signals),
        )
        environment = {
            "WEIR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "WEIR_BROKER_CREDENTIALS_FILE": str(mount / "brokers.json"),
        }
        with WeirService("monitor", tmp_path / "monitor", environment) as monitor:
            async with observed(bus, monitor, application) as reader:
                pid = monitor.pid
                # A group without members, which the brokers say when the login is right.
                await next_that_is(reader, application, "not_found", group)
                assert (await executor.read(kafka_signals, group)).state == "Dead"

                await asyncio.to_thread(change_password, broker)
                await next_that_is(reader, application, "unreachable", REFUSED)
                with pytest.raises(GroupUnread, match=REFUSED):
                    await read_anew(executor, kafka_signals, group)

                mount.replace(entries(broker))
                await next_that_is(reader, application, "not_found", group)
                assert [files.renew() for files in settings.followed_files] == [True]
                assert (await executor.read(kafka_signals, group)).state == "Dead"
                assert monitor.pid == pid
        await executor.close()
        gc.collect()
    await bus.close()


async def read_anew(executor: KafkaGroups, signals: KafkaSignals, group: str) -> None:
    """Read until the topics, which are kept for some seconds, are listed again."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                await executor.read(signals, group)
            except GroupUnread as error:
                if REFUSED in str(error):
                    raise
            await asyncio.sleep(0.2)
