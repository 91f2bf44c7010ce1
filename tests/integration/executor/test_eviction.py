"""Members of a real consumer group: a dead one goes at once, a living one stays."""

import asyncio
import gc
import re
import subprocess
import sys
import threading
import uuid
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from testbed.bootstrap import PROJECT
from testbed.kafka import SASL_USER, KafkaBroker
from tests.unit.engines.endpoint.memory_endpoint import PATH, Supervisor, endpoint_policy
from weir_contracts import KafkaSignals, policy_of
from weir_engines.driver import DepartedMember, Evicted, Snapshot, Unanswered
from weir_engines.endpoint.driver import EndpointDriver
from weir_engines.kafka.coordinators import KafkaGroups, _remove
from weir_engines.kafka.members import GroupMember, GroupReading, GroupUnread
from weir_engines.registry import Engines, Resources
from weir_monitor.applications import Collectors
from weir_runtime.clock import SystemClock
from weir_runtime.policy_credentials import BrokerCredentials
from weir_runtime.reach import Allowed

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("sockets_are_collected")]

PROGRAM = Path(__file__).parent / "group_member.py"
DOCUMENT = PROJECT / "docs" / "reference" / "signals.md"
SECONDS = 120.0
"""Below the members' session timeout of 300 s, after which the brokers would drop them by themselves."""


class RealGroup:
    """Consumers in processes of their own."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self.name = f"evict-{uuid.uuid4().hex[:8]}"
        kafka.create_topic(self.name, 4)
        self.signals = KafkaSignals(bootstrap_servers=kafka.bootstrap_servers)
        self.groups = KafkaGroups(SystemClock(), timeout_seconds=20.0)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, client: str, instance: str = "") -> None:
        given = [self.signals.bootstrap_servers, self.name, self.name, client, *([instance] if instance else [])]
        self.processes[client] = subprocess.Popen([sys.executable, str(PROGRAM), *given])

    def kill(self, client: str) -> None:
        process = self.processes.pop(client)
        process.kill()
        process.wait(timeout=10)

    async def until(self, condition: Callable[[GroupReading], bool]) -> GroupReading:
        found: GroupReading | GroupUnread | None = None
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    try:
                        found = await self.groups.read(self.signals, self.name)
                    except GroupUnread as error:  # a new broker has no coordinator yet
                        found = error
                    if isinstance(found, GroupReading) and condition(found):
                        return found
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not within {SECONDS} s: {found!r}") from None

    async def stable(self, *clients: str) -> dict[str, GroupMember]:
        """The members by client id once exactly these share all partitions."""
        found = await self.until(
            lambda g: g.state == "Stable" and {*clients} == {m.client_id for m in g.members} and not g.unassigned
        )
        return {member.client_id: member for member in found.members}

    async def evict(self, *members: DepartedMember) -> tuple[DepartedMember, ...]:
        return await self.groups.evict(self.signals, self.name, members)


@pytest.fixture
async def group(kafka: KafkaBroker) -> AsyncIterator[RealGroup]:
    made = RealGroup(kafka)
    yield made
    for client in list(made.processes):
        made.kill(client)
    await made.groups.close()


async def test_a_dead_member_goes_and_a_living_one_stays(group: RealGroup) -> None:
    """Its partitions move before its session ends; the survivor keeps its member id. An unknown id removes no member."""
    group.start("orders-1")
    group.start("orders-2")
    before = await group.stable("orders-1", "orders-2")
    group.kill("orders-2")
    dead = DepartedMember(before["orders-2"].id, "orders-2")
    assert await group.evict(dead, DepartedMember("orders-2-unknown", "orders-2")) == (dead,)
    after = await group.stable("orders-1")
    assert after["orders-1"].id == before["orders-1"].id
    assert await group.evict(dead) == ()


async def test_a_static_member_is_evicted_by_its_instance_id_and_a_later_holder_is_not(group: RealGroup) -> None:
    """Both ids are sent: a request for the earlier holder is fenced."""
    group.start("orders-1", "one")
    group.start("orders-2", "two")
    first = await group.stable("orders-1", "orders-2")
    assert first["orders-2"].static_id == "two"
    group.kill("orders-2")
    group.start("orders-2", "two")
    earlier = first["orders-2"].id
    await group.until(lambda g: g.state == "Stable" and earlier not in {m.id for m in g.members})
    second = await group.stable("orders-1", "orders-2")
    assert await group.evict(DepartedMember(earlier, "orders-2", "two")) == ()
    assert (await group.stable("orders-1", "orders-2"))["orders-2"] == second["orders-2"]
    group.kill("orders-2")
    gone = DepartedMember(second["orders-2"].id, "orders-2", "two")
    assert await group.evict(gone) == (gone,)
    assert (await group.stable("orders-1"))["orders-1"].id == first["orders-1"].id


async def test_the_driver_evicts_what_the_endpoint_ended(group: RealGroup) -> None:
    """Endpoint over HTTP, group at real brokers: the member of the listed instance is never named."""
    supervisor = Supervisor(SystemClock())
    for instance in supervisor.instances:
        group.start(instance)
    await group.stable("orders-1", "orders-2")
    with supervisor.serving() as url:
        policy = endpoint_policy(url, PATH)
        document = policy.to_document()
        document["spec"]["application"] = {"consumerGroup": {"groupId": group.name}}
        document["spec"]["signals"]["kafka"]["bootstrapServers"] = group.signals.bootstrap_servers
        subject = type(policy).model_validate(document).subject
        driver = EndpointDriver(SystemClock(), group.groups)

        async def until(condition: Callable[[Snapshot], bool]) -> Snapshot:
            async with asyncio.timeout(SECONDS):
                while not condition(found := await driver.observe(subject)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            return found

        found = await until(lambda s: s.runs({group.name: 2}))
        assert found.departed == ()
        supervisor.replicas = 1
        group.kill("orders-2")
        found = await until(lambda s: bool(s.departed))
        assert [member.instance for member in found.departed] == ["orders-2"] and not found.all_running
        assert await driver.evict(subject, found.departed) == Evicted(found.departed)
        await until(lambda s: s.runs({group.name: 1}))
        assert isinstance(await driver.evict(subject, found.departed), Unanswered)
        await driver.close()


async def test_credentials_are_used_to_read_and_to_remove(group: RealGroup, kafka: KafkaBroker) -> None:
    """They are sent to the brokers of their entry; the reason of a failure does not show the password."""

    def credentials(password: str) -> dict[str, BrokerCredentials]:
        names = ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password")
        values = ("SASL_PLAINTEXT", "PLAIN", SASL_USER, password)
        return {
            "shop": BrokerCredentials(
                frozenset({kafka.sasl_servers}), dict(zip(names, values, strict=True)), frozenset("*")
            )
        }

    group.start("orders-1")
    group.start("orders-2")
    dead = DepartedMember((await group.stable("orders-1", "orders-2"))["orders-2"].id, "orders-2")
    group.kill("orders-2")
    signals = KafkaSignals(bootstrapServers=kafka.sasl_servers, credentials="shop")
    groups = KafkaGroups(SystemClock(), credentials(kafka.sasl_password), timeout_seconds=20.0)
    assert await groups.evict(signals, group.name, [dead]) == (dead,)
    assert {member.client_id for member in (await groups.read(signals, group.name)).members} == {"orders-1"}
    await groups.close()
    for given, reason in ((credentials("not-the-password"), "."), ({}, "has no entry 'shop'")):
        groups = KafkaGroups(SystemClock(), given, timeout_seconds=2.0)
        with pytest.raises(GroupUnread, match=reason) as error:
            await groups.read(signals, group.name)
        assert "not-the-password" not in str(error.value)
        await groups.close()


def documented(name: str) -> list[tuple[str, str, str]]:
    """Return the rights of the document's table, of a topic and a group with this name."""
    rows = re.findall(r"^\| (topics that|the application's group).*? \| `(\w+)` \|", DOCUMENT.read_text(), re.M)
    return [("topic" if kind == "topics that" else "group", name, operation) for kind, operation in rows]


async def test_the_documented_rights_suffice(run_folder: Path) -> None:
    """Brokers with an authorizer: the monitor reads lag and members, the executor reads and removes members."""
    with KafkaBroker(run_folder / "kafka-rights", authorizer=True) as broker:
        group = RealGroup(broker)
        rights = documented(group.name)
        assert len(rights) == 3
        await asyncio.to_thread(broker.allow, rights)
        security = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": SASL_USER,
            "sasl.password": broker.sasl_password,
        }
        entry = {"shop": BrokerCredentials(frozenset({broker.sasl_servers}), security, frozenset("*"))}
        group.start("orders-1")
        group.start("orders-2")
        dead = DepartedMember((await group.stable("orders-1", "orders-2"))["orders-2"].id, "orders-2")
        signals = {"kafka": {"bootstrapServers": broker.sasl_servers, "credentials": "shop"}}
        application = {"consumerGroup": {"groupId": group.name}}
        target = {"endpoint": {"url": "http://127.0.0.1:1/scale"}}
        policy = policy_of(
            "shop/orders", application=application, target=target, signals=signals, objective={"maxLag": "30s"}
        )
        collector = Collectors(Engines(Resources(SystemClock(), broker_credentials=entry))).new(policy)
        async with asyncio.timeout(SECONDS):
            while (scrape := (await collector.read(policy)).scrape).status != "running":  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        await collector.close()
        assert scrape.deployment is not None and scrape.problems == ()
        group.kill("orders-2")
        groups = KafkaGroups(SystemClock(), entry, timeout_seconds=20.0)
        kafka = policy.spec.signals.kafka
        assert kafka is not None
        assert await groups.evict(kafka, group.name, [dead]) == (dead,)
        assert {member.client_id for member in (await groups.read(kafka, group.name)).members} == {"orders-1"}
        await groups.close()
        await group.groups.close()
        group.kill("orders-1")


def test_an_eviction_that_reaches_no_broker_leaves_no_thread() -> None:
    """It is tried again every two seconds while an action waits."""
    with warnings.catch_warnings():
        # kafka-python leaves sockets that never connected to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        reason = _remove(["127.0.0.1:1"], "orders", [DepartedMember("a#1", "a")], 1.0)
        gc.collect()
    assert isinstance(reason, str) and reason
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kafka-io")]


async def test_brokers_that_are_away_or_not_allowed_are_named(kafka: KafkaBroker) -> None:
    """No call waits longer than its limit, and no address outside the settings is connected to."""
    groups = KafkaGroups(SystemClock(), timeout_seconds=1.0)
    with pytest.raises(GroupUnread):
        await groups.read(KafkaSignals(bootstrap_servers="127.0.0.1:1"), "orders")
    await groups.close()
    groups = KafkaGroups(SystemClock(), allowed=Allowed.of("http,https", "*", "public", prefix="WEIR_TARGET"))
    with pytest.raises(GroupUnread, match="WEIR_TARGET_NETWORKS"):
        await groups.evict(
            KafkaSignals(bootstrap_servers=kafka.bootstrap_servers), "orders", [DepartedMember("a#1", "a")]
        )
    await groups.close()
