"""One application's watch: its cadence, and what happens to it when something goes wrong."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tests.unit.engines.memory_sources import MemoryFlink
from tests.unit.monitor.builders import policy
from tests.unit.monitor.virtual_time import VirtualTime
from weir_contracts import Observation, ScalingPolicy
from weir_engines.scrape import PartitionOffsets
from weir_monitor.core import Readings
from weir_monitor.watch import Watch


class Cluster:
    """Makes collectors of one memory cluster; `takes_seconds` of virtual time a scrape."""

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.flink = MemoryFlink(time)
        self.takes_seconds = 0.1
        self.made: list[ScalingPolicy] = []
        self.closed = 0
        self.error: Exception | None = None
        self.partitions: tuple[tuple[str, PartitionOffsets], ...] = ()
        self.offsets = lambda: self.partitions

    def new(self, made_for: ScalingPolicy) -> "Cluster":
        self.made.append(made_for)
        if self.error is not None:
            raise self.error
        return self

    async def read(self, policy: ScalingPolicy) -> Readings:
        await self.time.sleep(self.takes_seconds)
        if self.error is not None:
            raise self.error
        return Readings(policy, await self.flink.scrape(), self.offsets())

    async def close(self) -> None:
        self.closed += 1


class Story:
    """A watch and everything it published, with the time of each."""

    def __init__(self, scaling_policy: ScalingPolicy, scrape_timeout_seconds: float = 10.0) -> None:
        self.time = VirtualTime()
        self.cluster = Cluster(self.time)
        self.published: list[Observation] = []
        self.first = asyncio.Event()
        self.refuse: Exception | None = None
        self.watch = Watch(
            scaling_policy,
            self.cluster.new,
            self._publish,
            self.time,
            scrape_timeout_seconds=scrape_timeout_seconds,
            pause=self.time.pause,
        )

    async def _publish(self, observation: Observation) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.published.append(observation)
        self.first.set()

    @property
    def times(self) -> list[float]:
        """Seconds from the beginning at which each observation was complete."""
        return [round(o.observed_at.timestamp() - self.published[0].observed_at.timestamp(), 3) for o in self.published]

    @property
    def statuses(self) -> list[str]:
        return [observation.status for observation in self.published]


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    """An application scraped every 2 s."""
    watching = Story(policy(interval="2s"))
    yield watching
    await watching.watch.stop()


async def test_the_cadence_does_not_drift(story: Story) -> None:
    """Every 2 s, whatever a scrape takes."""
    await story.time.run(9)
    story.cluster.takes_seconds = 0.1
    assert story.times == [0.0, 2.0, 4.0, 6.0, 8.0]


async def test_a_slow_scrape_skips_its_missed_cycles() -> None:
    """One that takes 5 s at 2 s: the next is on time again; one log entry marks the overrun, one its end."""
    with capture_logs() as logs:
        story = Story(policy(interval="2s"))
        story.cluster.takes_seconds = 5.0
        await story.time.run(12)
        story.cluster.takes_seconds = 0.1
        await story.time.run(12)
    assert story.times[:2] == [0.0, 6.0]
    reported = [log["event"] for log in logs if log["event"] in ("overrun", "in-time")]
    assert reported == ["overrun", "in-time"]
    beats = {round(at - story.times[-1], 3) % 2 for at in story.times[-3:]}
    assert beats == {0.0}


def load(story: Story, step_at: float, factor: float = 3.0, batch: int = 1) -> None:
    """Append 300 records/s to the source's topic, from `step_at` seconds on `factor` times as many, in batches."""
    began = story.time.monotonic()

    def offsets() -> tuple[tuple[str, PartitionOffsets], ...]:
        seconds = story.time.monotonic() - began
        records = 300 * (min(seconds, step_at) + factor * max(0.0, seconds - step_at))
        end = int(records / batch) * batch
        return (("Source: orders", PartitionOffsets("orders", "orders", 0, log_end_offset=end)),)

    story.cluster.offsets = offsets


async def test_a_jump_of_the_load_is_scraped_again_after_half_an_interval(story: Story) -> None:
    """A step just before a scrape, which sees little of it; the scrapes after the additional one keep their cadence."""
    load(story, step_at=7.8)
    await story.time.run(13)
    assert story.times == [0.0, 2.0, 4.0, 6.0, 8.0, 9.0, 10.0, 12.0]


@pytest.mark.parametrize(
    ("factor", "batch"), [(1.1, 1), (0.0, 1), (1.0, 1000)], ids=["noise", "a load that ends", "batches of 1,000"]
)
async def test_no_other_load_is_scraped_more_often(story: Story, factor: float, batch: int) -> None:
    """Not after a rise within noise, after a fall, or while batches make each interval another one."""
    load(story, 7.8, factor, batch)
    await story.time.run(31)
    assert story.times == [2.0 * i for i in range(16)]


async def test_a_policy_that_changes_before_the_additional_scrape_is_used_at_once(story: Story) -> None:
    """Its own interval begins then, and its first scrape sees the jump."""
    load(story, step_at=7.8)
    await story.time.run(8.5)
    story.watch.change(policy(interval="10s", version=2))
    await story.time.run(11)
    assert story.times == [0.0, 2.0, 4.0, 6.0, 8.0, 8.5, 13.5, 18.5]


async def test_a_changed_policy_takes_effect_at_once(story: Story) -> None:
    """Not after the old interval; what was learned of the cluster stays."""
    await story.time.run(0.5)
    story.watch.change(policy(interval="10s", version=2))
    await story.time.run(0.5)
    assert [o.policy.metadata.version for o in story.published] == [None, 2]
    await story.time.run(9)
    assert len(story.published) == 2, "and from then on every 10 s"
    await story.time.run(1)
    assert len(story.published) == 3
    assert len(story.cluster.made) == 1


async def test_the_same_policy_again_changes_nothing(story: Story) -> None:
    """Topics are read again after a rebalance: no burst of scrapes."""
    await story.time.run(0.5)
    story.watch.change(policy(interval="2s"))
    await story.time.run(0.5)
    assert len(story.published) == 1


async def test_another_target_gets_another_collector(story: Story) -> None:
    """The old one is closed first, and its last observation is no predecessor of the new one's: fewer records are no
    fall."""
    story.cluster.flink.process(0, 9)
    await story.time.run(0.5)
    story.cluster.flink.processed = [1, 0, 0, 0]
    story.watch.change(policy(interval="2s", job="other"))
    await story.time.run(0.5)
    assert [made.subject.flink.job for made in story.cluster.made if made.subject.flink] == ["orders", "other"]
    assert story.cluster.closed == 1
    assert [reading.complete for reading in story.published[-1].operators] == [True, True]


async def test_an_unreachable_cluster_is_reported_at_each_interval(story: Story) -> None:
    """And it is found again without help."""
    story.cluster.flink.away = True
    await story.time.run(5)
    story.cluster.flink.away = False
    await story.time.run(2)
    assert story.statuses == ["unreachable", "unreachable", "unreachable", "running"]
    assert "connection refused" in story.published[0].message


async def test_a_scrape_without_end_is_given_up() -> None:
    """It would be this application's last."""
    story = Story(policy(), scrape_timeout_seconds=0.02)
    story.cluster.takes_seconds = 1e9
    async with asyncio.timeout(5):
        await story.first.wait()
    assert story.statuses == ["unreachable"]
    assert story.published[0].message == "the scrape took longer than 0.02 s"
    await story.watch.stop()


async def test_a_bug_in_a_collector_is_reported_and_the_next_scrape_comes(story: Story) -> None:
    """One catch-all, at the border of the cycle."""
    story.cluster.error = ZeroDivisionError("a bug")
    await story.time.run(3)
    story.cluster.error = None
    await story.time.run(2)
    assert story.statuses == ["unreachable", "unreachable", "running"]
    assert story.published[0].problems[0].what == "a bug"


async def test_a_collector_that_cannot_be_made_is_tried_again() -> None:
    """A wrong address in a policy is no reason to stop watching it."""
    story = Story(policy())
    story.cluster.error = ValueError("no such host")
    await story.time.run(0.5)
    story.cluster.error = None
    await story.time.run(3)
    assert story.statuses == ["unreachable", "running"]
    await story.watch.stop()


async def test_readings_that_fit_no_observation_are_reported_in_one_that_does(story: Story) -> None:
    """Whatever slips through the borders: a contract that refuses it must not end the watch."""
    story.cluster.partitions = (("Source: orders", PartitionOffsets("t", "t", -5)),)
    await story.time.run(1)
    story.cluster.partitions = ()
    await story.time.run(2)
    assert story.statuses == ["unreachable", "running"]
    assert "partition" in story.published[0].message


async def test_brokers_that_take_nothing_do_not_end_the_watch(story: Story) -> None:
    """The next observation is newer anyway."""
    story.refuse = RuntimeError("away")
    await story.time.run(3)
    story.refuse = None
    await story.time.run(2)
    assert story.statuses == ["running"]


async def test_an_end_is_the_last_message(story: Story) -> None:
    """A scrape under way is dropped: nothing comes after `ended`."""
    await story.time.run(2.05)
    await story.watch.end()
    await story.time.run(10)
    assert story.statuses == ["running", "ended"]
    assert story.cluster.closed == 1


async def test_a_collector_that_cannot_be_closed_is_let_go() -> None:
    """It is thrown away anyway."""
    story = Story(policy())
    await story.time.run(0.5)

    async def close() -> None:
        raise RuntimeError("stuck")

    story.cluster.close = close  # type: ignore[method-assign]
    await story.watch.stop()
    assert story.statuses == ["running"]


async def test_attempt_and_counters_are_compared_with_the_observation_before(story: Story) -> None:
    """Across an outage too: the last observation with the job counts."""
    story.cluster.flink.process(0, 9)
    await story.time.run(1)
    story.cluster.flink.away = True
    await story.time.run(2)
    story.cluster.flink.away = False
    story.cluster.flink.processed = [1, 0, 0, 0]
    await story.time.run(2)
    assert story.statuses == ["running", "unreachable", "running"]
    assert not story.published[-1].operators[0].complete


async def test_what_is_published_is_what_was_read(story: Story) -> None:
    """The time of the scrape is its end; its duration is published."""
    await story.time.run(1)
    story.cluster.takes_seconds = 0.4
    began = story.time.now()
    await story.time.run(2)
    observation = story.published[-1]
    assert observation.scrape_seconds == 0.4
    assert (observation.observed_at - began).total_seconds() == pytest.approx(1.4)
