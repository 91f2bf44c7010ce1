"""`weir run --kafka` at a real broker: which groups it finds, and what it says about a group whose records wait; with TLS and a
login, and without the right ones."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from testbed.kafka import SASL_USER, KafkaBroker
from testbed.kubernetes_access import Authority
from tests.integration.monitor.test_groups import RealRig
from tests.loop.test_one_process import START_SECONDS, command, one_process, until
from weir_cli.client import Unreachable
from weir_cli.discovery import Discovery
from weir_cli.discovery_kafka import Brokers, ConsumerGroups
from weir_cli.single import OneProcess, SingleSettings
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop
from weir_runtime.policy_credentials import BrokerCredentials, read_broker_credentials

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning"),
    pytest.mark.usefixtures("sockets_are_collected"),
]
"""kafka-python leaves sockets whose connection was refused to the garbage collector."""


@pytest.fixture
async def rigs(kafka: KafkaBroker) -> AsyncIterator[list[RealRig]]:
    """A group of each protocol, without members."""
    made = [RealRig(kafka, protocol) for protocol in ("classic", "consumer")]
    yield made
    for each in made:
        await each.close()


async def test_the_groups_that_are_found_are_those_that_the_brokers_list_as_stable(
    kafka: KafkaBroker, rigs: list[RealRig]
) -> None:
    """Groups of both protocols while they have members, and not when these have left."""
    source = ConsumerGroups(Brokers(kafka.bootstrap_servers), SystemClock())
    own = {each.group for each in rigs}
    try:
        for each in rigs:
            await each.join(1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        listed = await asyncio.to_thread(admin.list_consumer_groups().result, 20)
        assert own <= {each.group_id for each in listed.valid if each.state is ConsumerGroupState.STABLE}
        assert own <= {each.name for each in (await source.find()).candidates}
        await rigs[0].leave()
        found = {each.name for each in (await source.find()).candidates}
        assert own & found == {rigs[1].group}
    finally:
        await source.close()


async def test_advice_on_a_group_whose_records_wait(kafka: KafkaBroker, rigs: list[RealRig], tmp_path: Path) -> None:
    """Its members and waiting records are those of this test, and the plan only advises: nothing scales the group."""
    rig = rigs[0]
    await rig.join(2)
    await rig.append(0, 30)
    await rig.commit(0, 10)
    async with one_process(tmp_path) as one:
        source = ConsumerGroups(Brokers(kafka.bootstrap_servers, rig.group), one.api.clock)
        plan, analysis = await advice(one, source, rig.group)
    assert plan["current"] == {rig.group: 2}
    assert analysis["lag_records"]["value"] == 20


async def test_a_group_without_members_is_watched_from_the_start(
    kafka: KafkaBroker, rigs: list[RealRig], tmp_path: Path
) -> None:
    """Its consumers crashed before: how much waits is known by what they committed, and nothing is changed."""
    rig = rigs[0]
    await rig.append(0, 30)
    await rig.commit(0, 10)
    async with one_process(tmp_path) as one:
        source = ConsumerGroups(Brokers(kafka.bootstrap_servers, rig.group), one.api.clock)
        assert "is Empty with 0 members: it is watched, start its consumers" in (await source.find()).sentence
        plan, analysis = await advice(one, source, rig.group)
    assert plan["kind"] == "hold"
    assert analysis["lag_records"]["value"] == 20
    assert any("has no members: nothing processes its records" in each["evidence"] for each in analysis["symptoms"])


async def advice(one: OneProcess, source: ConsumerGroups, group: str) -> tuple[Any, Any]:
    """Return the first plan of a group that is found, and the first analysis that knows its lag."""
    discovery, stop = Discovery(source, one.api), Stop()
    looking = asyncio.create_task(discovery.run(stop))
    application = f"/v1/applications/default/{group}"
    plan = await until(one, f"{application}/plan", lambda plan: plan["mode"] == "advise")
    analysis = await until(one, f"{application}/analysis", lambda found: found["lag_records"]["value"] is not None)
    stop.request("the test is over")
    await looking
    await source.close()
    return plan, analysis


async def test_an_address_that_is_no_kafka() -> None:
    """A web server takes the connection and answers what no client of Kafka understands."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    servers = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    source = ConsumerGroups(Brokers(servers), SystemClock())
    with pytest.raises(
        Unreachable, match=f"--kafka: {servers}: what answers is no broker of Kafka: correct the address"
    ):
        await source.find()
    await source.close()
    server.close()


@pytest.fixture(scope="module")
def secured(run_folder: Path) -> Iterator[KafkaBroker]:
    """A broker with a listener that demands TLS and a password."""
    with KafkaBroker(run_folder / "kafka-found-tls", tls=True) as started:
        yield started


def written(folder: Path, servers: str, **settings: str) -> Path:
    """Return a file as WEIR_BROKER_CREDENTIALS_FILE names it, with one entry for these brokers."""
    path = folder / "brokers.json"
    path.write_text(json.dumps({"prod": {"namespaces": "*", "servers": servers, **settings}}))
    return path


def login(broker: KafkaBroker) -> dict[str, str]:
    """Return the settings of an entry that the secured listener takes."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": SASL_USER,
        "sasl.password": broker.sasl_password,
        "ssl.ca.location": str(broker.tls_authority),
    }


async def test_advice_on_a_group_of_secured_brokers(
    secured: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry that is for the brokers is used to find the group, and by the monitor, whose policy names it."""
    monkeypatch.setenv("WEIR_BROKER_CREDENTIALS_FILE", str(written(tmp_path, secured.tls_servers, **login(secured))))
    rig = RealRig(secured, "classic")
    await rig.join(1)
    await rig.append(0, 30)
    await rig.commit(0, 10)
    async with one_process(tmp_path) as one:
        known = SingleSettings().broker_credentials
        source = ConsumerGroups(Brokers.of(secured.tls_servers, rig.group, known), one.api.clock, known)
        _, analysis = await advice(one, source, rig.group)
        policy = (await one.api.client.get(f"/v1/policies/default/{rig.group}")).json()
    await rig.close()
    assert analysis["lag_records"]["value"] == 20
    assert policy["spec"]["signals"]["kafka"] == {"bootstrapServers": secured.tls_servers, "credentials": "prod"}


def without_login(broker: KafkaBroker) -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.ca.location": str(broker.tls_authority)}


def without_tls(broker: KafkaBroker) -> dict[str, str]:
    return {
        name: "SASL_PLAINTEXT" if name.startswith("sec") else value
        for name, value in login(broker).items()
        if name[:3] != "ssl"
    }


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            lambda b: {**login(b), "sasl.password": "not-it"},
            "the brokers refuse the credentials: user or password is wrong",
        ),
        (lambda b: {**login(b), "sasl.mechanism": "SCRAM-SHA-512"}, "no such sasl.mechanism: write one of PLAIN"),
        (without_login, "close a connection without a login: they want one"),
        (without_tls, "close a connection in plain text: they want TLS"),
    ],
)
async def test_a_wrong_entry_is_one_sentence_that_names_it(
    secured: KafkaBroker, tmp_path: Path, settings: Callable[[KafkaBroker], dict[str, str]], says: str
) -> None:
    """The sentence has the address, the entry and what to change, and never the password."""
    known = read_broker_credentials(written(tmp_path, secured.tls_servers, **settings(secured)))
    said = await refusal(secured.tls_servers, known)
    assert said.startswith(f"--kafka: {secured.tls_servers}: ")
    assert says in said
    assert said.endswith("(entry 'prod' of WEIR_BROKER_CREDENTIALS_FILE)")
    assert "not-it" not in said
    assert secured.sasl_password not in said


async def refusal(servers: str, known: Mapping[str, BrokerCredentials]) -> str:
    """Return the sentence about brokers that refuse a connection. On a busy machine a handshake may outlast a call, which
    says that no brokers answer: call again."""
    source = ConsumerGroups(Brokers.of(servers, None, known), SystemClock(), known)
    for _ in range(5):
        with pytest.raises(Unreachable) as refused:
            await source.find()
        if "no brokers answer" not in str(refused.value):
            break
    await source.close()
    said = str(refused.value)
    del refused
    gc.collect()
    return said


async def test_a_certificate_of_another_authority(secured: KafkaBroker, tmp_path: Path) -> None:
    """The file of the entry is named by its setting."""
    other = Authority(tmp_path / "other")
    other.create()
    entry = {**login(secured), "ssl.ca.location": str(other.certificate)}
    said = await refusal(secured.tls_servers, read_broker_credentials(written(tmp_path, secured.tls_servers, **entry)))
    assert "TLS: " in said
    assert "ssl.ca.location" in said


async def test_plain_text_at_a_secured_listener_and_tls_at_a_plain_one(secured: KafkaBroker, tmp_path: Path) -> None:
    """Both close the connection without a word."""
    said = await refusal(secured.tls_servers, {})
    assert "the brokers close a connection in plain text without a login: they want TLS, a login, or both" in said
    assert said.endswith(f"(no entry of WEIR_BROKER_CREDENTIALS_FILE is for {secured.tls_servers})")
    plain = secured.bootstrap_servers
    said = await refusal(plain, read_broker_credentials(written(tmp_path, plain, **login(secured))))
    assert "TLS: this port of the brokers has none: name their TLS port" in said


async def test_the_command_ends_with_the_sentence(
    secured: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and the code of what cannot be reached."""
    entry = {**login(secured), "sasl.password": "not-it"}
    monkeypatch.setenv("WEIR_BROKER_CREDENTIALS_FILE", str(written(tmp_path, secured.tls_servers, **entry)))
    process = await command("--kafka", secured.tls_servers)
    _, err = await asyncio.wait_for(process.communicate(), START_SECONDS)
    assert process.returncode == Unreachable.code
    said = err.decode()
    assert said.startswith(f"weir: --kafka: {secured.tls_servers}: the brokers refuse the credentials")
    assert said.count("\n") == 1
    assert "not-it" not in said
