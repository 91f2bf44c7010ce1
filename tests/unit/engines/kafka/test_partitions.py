"""Offsets of an application's partitions, and the cluster in memory behind them."""

from datetime import datetime, timedelta

import pytest

from tests.unit.engines.kafka.brokers_suite import BrokersSuite
from tests.unit.engines.memory_sources import MemoryBrokers
from tests.unit.monitor.builders import policy
from weir_contracts import KafkaSignals
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.engine import KafkaEngine
from weir_engines.kafka.partitions import KafkaReadings, PartitionCollector, resolve
from weir_engines.registry import Engines, Resources
from weir_engines.scrape import PartitionOffsets
from weir_runtime.clock import FakeClock


class MemoryRig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.topic, self.dotted, self.group = "orders", "shop.orders", "orders"
        self.memory = MemoryBrokers(self.clock, {self.topic: 2, self.dotted: 1})
        self.brokers = self.memory
        self.away = MemoryBrokers(self.clock, {self.topic: 2})
        self.away.break_down()

    async def append(self, place: Place, records: int, stamped_ms: int | None = None) -> datetime:
        at = self.clock.advance(1)
        self.memory.append(place, records, stamped_ms=stamped_ms)
        return at

    async def transact(self, place: Place, records: int, *, aborts: bool = False) -> None:
        self.memory.transact(place, records, aborts=aborts)

    async def stamp_by_broker(self) -> None:
        self.memory.stamp_by_broker(self.topic)

    async def open_transaction(self, place: Place, records: int) -> None:
        self.memory.append(place, records, in_transaction=True)

    async def delete_before(self, place: Place, offset: int) -> None:
        self.memory.delete_before(place, offset)

    async def commit(self, place: Place, offset: int) -> None:
        self.memory.commit(self.group, {place: offset})


class TestMemory(BrokersSuite):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig()


SOURCE = "source"
FIRST, SECOND = ("orders", 0), ("orders", 1)


class Story:
    """A collector, its cluster, and time that passes between scrapes."""

    def __init__(self, group: str | None = "orders", topics: list[str] | None = None) -> None:
        self.clock = FakeClock()
        self.brokers = MemoryBrokers(self.clock, {"orders": 2, "shop.orders": 1, "other": 3})
        signals = KafkaSignals(bootstrapServers="127.0.0.1:9092", groupId=group, topics=topics)
        self.collector = PartitionCollector(signals, self.brokers)

    async def scrape(self, positions: dict[Place, int | None], *, after: float = 2.0) -> KafkaReadings:
        """Scrape `after` seconds, the source at these positions."""
        self.clock.advance(after)
        return await self.collector.scrape({SOURCE: positions}, self.clock.now())

    async def first(self, positions: dict[Place, int | None], *, after: float = 2.0) -> PartitionOffsets:
        """The first partition of it."""
        return (await self.scrape(positions, after=after)).partitions[0][1]


@pytest.fixture
def story() -> Story:
    return Story()


async def test_every_partition_of_a_named_topic_is_read(story: Story) -> None:
    """Also those that the source has not read from: their records wait too."""
    story.brokers.append(SECOND, 6)
    readings = await story.scrape({FIRST: 0})
    assert readings.problems == ()
    assert [(v, p.topic, p.partition, p.log_start_offset, p.log_end_offset) for v, p in readings.partitions] == [
        (SOURCE, "orders", 0, 0, 0),
        (SOURCE, "orders", 1, 0, 6),
    ]


async def test_demand_goes_on_while_the_job_restarts(story: Story) -> None:
    """The source then names no topic; its arrivals are read all the same, or each rescale would be a blind spot."""
    await story.scrape({FIRST: 0})
    story.brokers.append(FIRST, 8)
    readings = await story.scrape({})
    assert [p.log_end_offset for _, p in readings.partitions] == [8, 0]


async def test_before_its_first_run_the_policy_s_topics_count() -> None:
    """A job that never came up has a backlog all the same."""
    story = Story(topics=["shop.orders"])
    readings = await story.scrape({})
    assert [(p.topic, p.metric_topic) for _, p in readings.partitions] == [("shop.orders", "shop_orders")]


async def test_the_policy_s_topics_are_not_dealt_out_to_several_sources() -> None:
    """It is unknown which source reads which, so nothing is reported."""
    story = Story(topics=["orders", "other"])
    readings = await story.collector.scrape({"a": {}, "b": {}}, story.clock.now())
    assert readings.partitions == ()


# --- topics


async def test_a_dotted_topic_is_found_by_its_metric_name(story: Story) -> None:
    """Flink writes `shop_orders`."""
    readings = await story.scrape({("shop_orders", 0): 0})
    assert [(p.topic, p.metric_topic) for _, p in readings.partitions] == [("shop.orders", "shop_orders")]


async def test_two_topics_that_flink_calls_alike_are_ambiguous(story: Story) -> None:
    """Offsets of the wrong one would be taken for lag: nothing is read, and the policy can say which it is."""
    story.brokers.add_topic("shop_orders", 1)
    readings = await story.scrape({("shop_orders", 0): 0})
    assert readings.partitions == ()
    (problem,) = readings.problems
    assert problem.where == "topic shop_orders"
    assert "shop.orders, shop_orders" in problem.what and "spec.signals.kafka.topics" in problem.what


async def test_the_policy_settles_which_topic_is_meant() -> None:
    """Naming it is enough."""
    story = Story(topics=["shop.orders"])
    story.brokers.add_topic("shop_orders", 1)
    readings = await story.scrape({("shop_orders", 0): 0})
    assert [p.topic for _, p in readings.partitions] == ["shop.orders"]
    assert readings.problems == ()


async def test_a_missing_topic_is_reported(story: Story) -> None:
    """The policy may name the wrong cluster."""
    readings = await story.scrape({("payments", 0): 0, FIRST: 0})
    assert [p.topic for _, p in readings.partitions] == ["orders", "orders"]
    assert [problem.where for problem in readings.problems] == ["topic payments"]


async def test_a_new_topic_is_looked_for_at_once(story: Story) -> None:
    """The list of topics is half a minute old; a source that names one that is not in it is right."""
    await story.scrape({FIRST: 0})
    story.brokers.add_topic("payments", 1)
    assert len((await story.scrape({("payments", 0): 0})).partitions) == 1


@pytest.mark.parametrize(
    ("hinted", "expected"),
    [(None, None), (["a.b"], "a.b"), (["a_b"], "a_b"), (["a.b", "a_b"], None), (["c"], None), ([], None)],
)
def test_names_are_resolved_only_without_doubt(hinted: list[str] | None, expected: str | None) -> None:
    """Two topics fit: only a policy that names one of them helps."""
    assert resolve("a_b", {"a.b": [0], "a_b": [0]}, hinted) == expected


# --- commits


async def test_a_commit_is_as_old_as_its_first_observation(story: Story) -> None:
    """Its age is at least the time since; an unchanged one keeps its age."""
    story.brokers.commit("orders", {FIRST: 5})
    first = await story.first({FIRST: None})
    again = await story.first({FIRST: None})
    story.brokers.commit("orders", {FIRST: 9})
    moved = await story.first({FIRST: None})
    assert (first.committed_offset, again.committed_at) == (5, first.committed_at)
    assert moved.committed_offset == 9
    assert moved.committed_at == story.clock.now()


async def test_without_a_group_there_are_no_commits() -> None:
    """Another group's would be worse than none."""
    story = Story(group=None)
    story.brokers.commit("orders", {FIRST: 5})
    assert (await story.first({FIRST: None})).committed_offset is None


# --- the age of what waits


async def test_a_backlog_from_before_is_looked_up(story: Story) -> None:
    """At the first scrape the position is older than the history: its time is read from the log."""
    written = story.clock.now()
    story.brokers.append(FIRST, 10)
    assert (await story.first({FIRST: 4}, after=600)).position_appended_at == written


async def test_what_came_while_watching_is_not_looked_up(story: Story) -> None:
    """Its time follows from observed log ends, without a request."""
    await story.scrape({FIRST: 0})
    story.brokers.append(FIRST, 10)
    assert (await story.first({FIRST: 4})).position_appended_at is None


async def test_a_source_that_is_not_behind_has_nothing_to_look_up(story: Story) -> None:
    """Nothing waits."""
    story.brokers.append(FIRST, 10)
    assert (await story.first({FIRST: 10})).position_appended_at is None


async def test_an_unknown_position_has_no_age(story: Story) -> None:
    """Without a commit either: it is not 0, and nothing is looked up."""
    story.brokers.append(FIRST, 10)
    partition = await story.first({FIRST: None})
    assert partition.position_appended_at is None
    assert partition.committed_offset is None


async def test_a_commit_stands_in_for_an_unknown_position(story: Story) -> None:
    """A source that is still starting resumes there."""
    written = story.clock.now()
    story.brokers.append(FIRST, 10)
    story.brokers.commit("orders", {FIRST: 3})
    assert (await story.first({FIRST: None}, after=30)).position_appended_at == written


async def test_a_position_that_stays_is_looked_up_once(story: Story) -> None:
    """A job that hangs must not read its backlog's head every two seconds."""
    story.brokers.append(FIRST, 10)
    first = await story.first({FIRST: 4})
    again = await story.first({FIRST: 4})
    assert first.position_appended_at == again.position_appended_at is not None
    assert story.brokers.looked_up == [{FIRST: 4}]


async def test_memory_reaches_back_half_an_hour(story: Story) -> None:
    """A record that waits for longer is looked up again."""
    await story.scrape({FIRST: 0})
    written = story.clock.now()
    story.brokers.append(FIRST, 1)
    append_times = [(await story.first({FIRST: 0}, after=60)).position_appended_at for _ in range(40)]
    assert append_times[:25] == [None] * 25
    assert append_times[-1] == written


async def test_a_recreated_topic_is_another_topic(story: Story) -> None:
    """Its offsets mean other records: what is remembered of the old ones would date them wrongly."""
    story.brokers.append(FIRST, 50)
    await story.scrape({FIRST: 50})
    story.brokers.add_topic("orders", 2)
    written = story.clock.advance(5)
    story.brokers.append(FIRST, 9)
    assert (await story.first({FIRST: 3})).position_appended_at == written


# --- outages


async def test_brokers_that_are_away_are_one_problem(story: Story) -> None:
    """No partitions, no exception; it goes on by itself."""
    await story.scrape({FIRST: 0})
    story.brokers.break_down("connection refused")
    readings = await story.scrape({FIRST: 0})
    assert readings.partitions == ()
    assert [(p.where, p.what) for p in readings.problems] == [("kafka 127.0.0.1:9092", "connection refused")]
    story.brokers.mend()
    assert len((await story.scrape({FIRST: 0})).partitions) == 2


async def test_lookups_are_bounded() -> None:
    """A job with a thousand lagging partitions costs sixteen reads a scrape, of those that lag most."""
    clock = FakeClock()
    brokers = MemoryBrokers(clock, {"wide": 40})
    for n in range(40):
        brokers.append(("wide", n), 100 + n)
    collector = PartitionCollector(KafkaSignals(bootstrapServers="127.0.0.1:9092"), brokers)
    wanted = {SOURCE: {("wide", n): 0 for n in range(40)}}
    readings = await collector.scrape(wanted, clock.now() + timedelta(seconds=1))
    looked_up = [p.partition for _, p in readings.partitions if p.position_appended_at is not None]
    assert looked_up == list(range(24, 40))


async def test_brokers_are_open_while_a_collector_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two collectors share one connection; the last one closes it, and the next one opens another."""
    opened: list[MemoryBrokers] = []
    closed: list[MemoryBrokers] = []

    class Closable(MemoryBrokers):
        async def close(self) -> None:
            closed.append(self)

    def opens(servers: str, name: str | None) -> MemoryBrokers:
        opened.append(Closable(FakeClock(), {"orders": 1}))
        return opened[-1]

    kafka = Engines(Resources(FakeClock())).of(KafkaEngine)
    monkeypatch.setattr(kafka, "_opened", opens)
    named = policy(kafka={"bootstrapServers": "kafka:9092"}).subject
    first, second = kafka.partitions(named), kafka.partitions(named)
    assert first is not None and second is not None
    await first.close()
    assert (len(opened), closed) == (1, [])
    await second.close()
    assert closed == opened
    assert kafka.partitions(named) is not None
    assert (len(opened), len(closed)) == (2, 1)
