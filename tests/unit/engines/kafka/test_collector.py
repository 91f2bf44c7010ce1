"""Collector of groups over brokers in memory, and what only Kafka Streams shows."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.unit.engines.kafka.collector_suite import PARTITIONS, GroupSuite
from tests.unit.engines.memory_sources import MemoryBrokers
from weir_contracts import Subject, parse_policy
from weir_engines.kafka.collector import GroupCollector
from weir_engines.kafka.group import DescribedGroup, DescribedMember
from weir_replay import streams as written
from weir_runtime.clock import FakeClock


def subject(application: dict[str, Any], servers: str = "127.0.0.1:9092", **kafka: Any) -> Subject:
    """Return the subject of a policy for a group."""
    document = {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": "orders"},
        "spec": {
            "application": application,
            "target": {"kubernetes": {"kind": "Deployment", "name": "orders"}},
            "signals": {"kafka": {"bootstrapServers": servers, **kafka}},
            "objective": {"maxLag": "30s"},
        },
    }
    return parse_policy(document).subject


class MemoryRig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.topic, self.group = "orders", "orders-app"
        self._brokers = MemoryBrokers(self.clock, {self.topic: PARTITIONS})
        broken = MemoryBrokers(self.clock, {})
        broken.break_down()
        plain = subject({"consumerGroup": {"groupId": self.group}})
        self.collector = GroupCollector(plain, self._brokers, self.clock)
        self.away = GroupCollector(plain, broken, self.clock)
        self._members = 0

    async def join(self, members: int) -> None:
        self._members += members
        shares = [[n for n in range(PARTITIONS) if n % self._members == i] for i in range(self._members)]
        self._become("Stable", [[(self.topic, n) for n in share] for share in shares])

    async def leave(self) -> None:
        self._become("Empty", [])

    def _become(self, state: str, shares: list[list[tuple[str, int]]]) -> None:
        members = tuple(DescribedMember(f"m{i}", "client", places=tuple(share)) for i, share in enumerate(shares))
        self._brokers.groups[self.group] = DescribedGroup(
            self.group, state, "consumer", assignor="uniform", members=members
        )

    async def append(self, partition: int, records: int) -> None:
        self.clock.advance(1)
        self._brokers.append((self.topic, partition), records)

    async def transact(self, partition: int, records: int) -> None:
        self.clock.advance(1)
        self._brokers.transact((self.topic, partition), records)

    async def commit(self, partition: int, offset: int, metadata: str = "") -> None:
        self.clock.advance(1)
        del metadata  # nothing of it is read
        self._brokers.commit(self.group, {(self.topic, partition): offset})
        if not self._members:
            self._become("Empty", [])

    async def delete_before(self, partition: int, offset: int) -> None:
        self._brokers.delete_before((self.topic, partition), offset)


class TestMemory(GroupSuite):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig()


PROCESS = UUID(int=1)


class Streams:
    """Kafka Streams application `app` with one thread, in memory."""

    def __init__(self, *topics: str, **application: Any) -> None:
        self.clock = FakeClock()
        self.brokers = MemoryBrokers(self.clock, dict.fromkeys(topics, 2))
        named = {"kafkaStreams": {"applicationId": "app", **application}}
        self.collector = GroupCollector(subject(named), self.brokers, self.clock)
        self.topics = topics
        self.stable()

    def stable(self, *, probing_ms: int = written.NEVER) -> None:
        places = [(topic, n) for topic in self.topics for n in range(2)]
        data = written.user_data(
            [(0, 0), (0, 1)], [(0, 2)] if probing_ms != written.NEVER else [], probing_ms=probing_ms
        )
        member = DescribedMember(
            "m",
            "c",
            assignment=written.assignment(places, data),
            subscription=written.subscription(self.topics, PROCESS),
        )
        self._become("Stable", member)

    def rebalance(self) -> None:
        """Let a member join: the coordinator reports no assignments."""
        self._become("PreparingRebalance", DescribedMember("m", "c"), DescribedMember("n", "c"))

    def _become(self, state: str, *members: DescribedMember) -> None:
        self.brokers.groups["app"] = DescribedGroup("app", state, "classic", "consumer", "stream", members)


async def test_tasks_are_the_shares_of_work() -> None:
    """A join of two topics with two partitions each has two tasks, not four."""
    scrape = await Streams("orders", "prices").collector.scrape()
    assert scrape.topology is not None and scrape.topology.operators[0].source_partitions == 2
    assert len(scrape.partitions) == 4


_INNER = (
    "app-agg-repartition",
    "app-store-changelog",
    "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic",
    "app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic",
    "app-enrich-subscription-registration-topic",
    "app-enrich-subscription-response-topic",
    "app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition",
)


async def test_inner_topics_are_no_demand() -> None:
    """An application writes its repartition topics and those of its foreign-key joins itself, whether their names are
    generated or given by `Repartitioned.as` and `TableJoined.as`.

    Source: KAFKA-9859 (apache/kafka#8671); Kafka's reset tool did not know the generated names of foreign-key joins.
    """
    app = Streams("orders", "customers", *_INNER)
    await app.collector.scrape()
    for topic in app.topics:
        app.brokers.append((topic, 0), 100)
    scrape = await app.collector.scrape()
    assert {each.topic: each.log_end_offset for each in scrape.partitions if each.partition == 0} == {
        "orders": 100,
        "customers": 100,
    }


@pytest.mark.parametrize(
    "topic",
    [
        "app-shop",
        "app-orders-topic",
        "app-subscription-topic",
        "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-topic",
        "other-agg-repartition",
        "app2-agg-repartition",
    ],
)
async def test_topics_that_merely_resemble_inner_ones_are_demand(topic: str) -> None:
    """Topics of other applications, and ones whose names only begin with the application's id: what is left out is lost."""
    scrape = await Streams("orders", topic).collector.scrape()
    assert {each.topic for each in scrape.partitions} == {"orders", topic}


async def test_a_rebalance_keeps_the_last_tasks() -> None:
    """While members join the coordinator reports no assignment: the application counts as restarting."""
    app = Streams("orders")
    before = await app.collector.scrape()
    app.rebalance()
    during = await app.collector.scrape()
    assert (during.status, during.run) == ("not_running", None)
    assert during.deployment is not None and during.deployment.health == "restarting"
    assert during.topology == before.topology and len(during.partitions) == 2
    app.stable()
    assert (await app.collector.scrape()).run == before.run


async def test_a_probing_rebalance_is_published() -> None:
    app = Streams("orders")
    app.stable(probing_ms=1_700_000_000_000)
    scrape = await app.collector.scrape()
    assert scrape.deployment is not None and scrape.deployment.group is not None
    assert scrape.deployment.group.probing_rebalance_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert scrape.deployment.instances[0].standby_tasks == 1


async def test_a_topic_that_was_created_again_is_no_throughput() -> None:
    """Its offsets begin at 0, and the commits of the old one do not count."""
    app = Streams("orders")
    app.brokers.append(("orders", 0), 50)
    app.brokers.commit("app", {("orders", 0): 40, ("orders", 1): 0})
    first = await app.collector.scrape()
    app.clock.advance(20)
    app.brokers.add_topic("orders", 2)
    app.brokers.commit("app", {("orders", 0): 0, ("orders", 1): 0})
    second = await app.collector.scrape()
    assert second.partitions[0].rewound_at == app.clock.now()
    assert [scrape.operators[0].records_in for scrape in (first, second)] == [0, 0]


@pytest.mark.parametrize(("application", "seconds"), [({}, 30.0), ({"commitInterval": "100ms"}, 0.1)])
async def test_the_commit_interval_is_the_policys_or_the_default(application: dict[str, Any], seconds: float) -> None:
    """It holds before commits were measured."""
    scrape = await Streams("orders", **application).collector.scrape()
    assert scrape.deployment is not None and scrape.deployment.commit_interval_seconds == seconds


async def test_topics_are_unknown_until_there_are_members() -> None:
    """Unless the policy names them."""
    app = Streams("orders")
    app.brokers.groups["app"] = DescribedGroup("app", "Empty", "classic", "consumer", "")
    scrape = await app.collector.scrape()
    assert any("name them in spec.signals.kafka.topics" in each.what for each in scrape.problems)
    named = subject({"kafkaStreams": {"applicationId": "app"}}, topics=["orders"])
    assert len((await GroupCollector(named, app.brokers, app.clock).scrape()).partitions) == 2
