"""Monitor and executor at brokers that demand TLS and a password, with credentials from the services' file."""

import asyncio
import gc
import json
import uuid
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from testbed.kafka import SASL_USER, KafkaBroker
from testbed.kubernetes_access import Authority
from weir_contracts import KafkaSignals
from weir_engines.kafka.brokers import KafkaBrokers
from weir_engines.kafka.coordinators import KafkaGroups
from weir_engines.kafka.members import GroupUnread
from weir_engines.kafka.partitions import BrokersAway
from weir_runtime.clock import SystemClock
from weir_runtime.policy_credentials import BrokerCredentials, read_broker_credentials

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning"),
    pytest.mark.usefixtures("sockets_are_collected"),
]
"""kafka-python leaves sockets whose connection was refused to the garbage collector."""

SECONDS = 60
TIMEOUT_SECONDS = 5.0


@pytest.fixture(scope="module")
def broker(run_folder: Path) -> Iterator[KafkaBroker]:
    """A broker with a listener that demands TLS and a password."""
    with KafkaBroker(run_folder / "kafka-tls", tls=True) as started:
        yield started


def credentials(
    folder: Path, broker: KafkaBroker, *, password: str = "", authority: Path | None = None
) -> BrokerCredentials:
    """Return the entry `shop` of a file as WEIR_BROKER_CREDENTIALS_FILE names it."""
    entry = {
        "namespaces": "*",
        "servers": broker.tls_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": SASL_USER,
        "sasl.password": password or broker.sasl_password,
        "ssl.ca.location": str(authority or broker.tls_authority),
    }
    path = folder / "credentials.json"
    path.write_text(json.dumps({"shop": entry}))
    return read_broker_credentials(path)["shop"]


async def test_groups_are_read_over_tls(broker: KafkaBroker, tmp_path: Path) -> None:
    """Topics and ends by librdkafka, groups and commits by kafka-python, both with the same entry."""
    found = credentials(tmp_path, broker)
    topic = f"tls-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 2)
    brokers = KafkaBrokers(broker.tls_servers, TIMEOUT_SECONDS, SystemClock(), credentials=lambda: found)
    groups = KafkaGroups(SystemClock(), {"shop": found}, timeout_seconds=TIMEOUT_SECONDS)
    try:
        assert list((await brokers.topics())[topic]) == [0, 1]
        ends = await brokers.ends([(topic, 0), (topic, 1)], "last", "read_committed")
        assert dict(ends.found) == {(topic, 0): 0, (topic, 1): 0}
        async with asyncio.timeout(SECONDS):
            while (commits := await brokers.commits([(topic, 0)], topic)).problems:  # noqa: ASYNC110
                await asyncio.sleep(0.2)  # a new cluster makes its coordinator with the first request
        assert dict(commits.found) == {}
        assert (await brokers.group(topic, raw=True)).state == "Dead"
        signals = KafkaSignals(bootstrapServers=broker.tls_servers, credentials="shop")
        assert (await groups.read(signals, topic)).state == "Dead"
    finally:
        await brokers.close()
        await groups.close()
        gc.collect()


async def refusal(call: Awaitable[object], expected: type[Exception]) -> str:
    """Return the sentence of the call's error, without its traceback, which would keep the sockets open."""
    with pytest.raises(expected) as raised:
        await call
    return str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "reason"), [("password", "refuse the credentials: user or password is wrong"), ("authority", "TLS: ")]
)
async def test_refused_credentials_are_named_by_both_services(
    broker: KafkaBroker, tmp_path: Path, wrong: str, reason: str
) -> None:
    """The sentence shows the kind of the failure, never the password."""
    other = Authority(tmp_path / "other")
    other.create()
    found = (
        credentials(tmp_path, broker, password="not-the-password")
        if wrong == "password"
        else credentials(tmp_path, broker, authority=other.certificate)
    )
    brokers = KafkaBrokers(broker.tls_servers, TIMEOUT_SECONDS, SystemClock(), credentials=lambda: found)
    groups = KafkaGroups(SystemClock(), {"shop": found}, timeout_seconds=TIMEOUT_SECONDS)
    try:
        signals = KafkaSignals(bootstrapServers=broker.tls_servers, credentials="shop")
        said: list[str] = []
        # librdkafka may report the reason after the time of a call: then one of the next calls names it
        async with asyncio.timeout(SECONDS):
            while reason not in (sentence := await refusal(brokers.topics(), BrokersAway)):
                said.append(sentence)
            while reason not in (again := await refusal(groups.read(signals, "orders"), GroupUnread)):
                said.append(again)
        assert "not-the-password" not in " ".join([*said, sentence, again])
    finally:
        await brokers.close()
        await groups.close()
        gc.collect()
