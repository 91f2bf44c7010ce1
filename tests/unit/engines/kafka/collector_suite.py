"""Contract of the collector of groups, run against a group in memory and consumers of a real broker."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from weir_contracts import PartitionReading
from weir_engines.kafka.collector import GroupCollector
from weir_engines.scrape import Scrape

PARTITIONS = 4
STREAM_TIME = "AgAAAYvP5Wvn"
"""Metadata of Kafka Streams for the time 1700000000999, in 2023."""


class Rig(Protocol):
    """A group of this test alone that reads one topic of four partitions."""

    topic: str
    group: str
    collector: GroupCollector
    away: GroupCollector
    """One whose brokers do not answer."""

    async def join(self, members: int) -> None:
        """Let that many members share the partitions."""

    async def leave(self) -> None:
        """End all members."""

    async def append(self, partition: int, records: int) -> None:
        """Write records."""

    async def transact(self, partition: int, records: int) -> None:
        """Write records in a transaction, which ends with a marker."""

    async def commit(self, partition: int, offset: int, metadata: str = "") -> None:
        """Commit as the partition's member, or as no member while there is none."""

    async def delete_before(self, partition: int, offset: int) -> None:
        """Delete records as retention does."""


class GroupSuite:
    """Subclass it with a fixture `rig`."""

    async def test_a_group_that_does_not_exist_is_not_found(self, rig: Rig) -> None:
        # a new cluster makes its coordinator with the first request
        scrape = await eventually(rig, lambda scrape: scrape.status != "unreachable")
        assert (scrape.status, scrape.topology) == ("not_found", None)
        assert f"no group {rig.group!r}" in scrape.message

    async def test_members_share_the_partitions(self, rig: Rig) -> None:
        """Threads are the parallelism, partitions the shares of work; each partition has its owner."""
        await rig.join(2)
        scrape = await rig.collector.scrape()
        assert (scrape.status, scrape.run is not None) == ("running", True)
        assert scrape.deployment is not None and scrape.topology is not None
        assert scrape.deployment.observed == {rig.group: 2}
        assert scrape.topology.operators[0].source_partitions == PARTITIONS
        assert [each.active_tasks for each in scrape.deployment.instances] == [2, 2]
        owners = {each.owner for each in scrape.partitions}
        assert owners == {each.id for each in scrape.deployment.instances}
        assert scrape.deployment.group is not None
        assert (scrape.deployment.group.state, scrape.deployment.group.members) == ("Stable", 2)

    async def test_another_assignment_is_another_run(self, rig: Rig) -> None:
        """Two readings of one assignment have one key."""
        await rig.join(1)
        first, again = await rig.collector.scrape(), await rig.collector.scrape()
        await rig.join(1)
        moved = await rig.collector.scrape()
        assert first.run is not None and moved.run is not None
        assert first.run == again.run
        assert first.run.key != moved.run.key

    async def test_throughput_is_how_far_commits_went(self, rig: Rig) -> None:
        """Lag is what is left; a commit that goes back is remembered and counts nothing."""
        await rig.join(1)
        await rig.append(0, 10)
        await rig.commit(0, 4)
        before = await rig.collector.scrape()
        assert (of(before, 0).committed_offset, of(before, 0).log_end_offset) == (4, 10)
        await rig.commit(0, 9)
        after = await rig.collector.scrape()
        assert counted(after) - counted(before) == 5
        assert of(after, 0).rewound_at is None
        await rig.commit(0, 1)
        back = await rig.collector.scrape()
        assert counted(back) == counted(after)
        assert of(back, 0).rewound_at is not None

    async def test_the_time_that_kafka_streams_commits_is_no_append_time(self, rig: Rig) -> None:
        """Its metadata is the stream time, which is whatever the application's extractor returns: here years ago."""
        await rig.join(1)
        await rig.append(1, 3)
        await rig.commit(1, 1, STREAM_TIME)
        scrape = await eventually(rig, lambda scrape: of(scrape, 1).next_record_offset == 1)
        at = of(scrape, 1).position_appended_at
        assert at is None or at.year > 2023

    async def test_records_that_expired_unread_are_visible(self, rig: Rig) -> None:
        """The log begins after the commit."""
        await rig.join(1)
        await rig.append(2, 8)
        await rig.commit(2, 2)
        await rig.delete_before(2, 5)
        reading = await eventually(rig, lambda scrape: of(scrape, 2).log_start_offset == 5)
        assert of(reading, 2).committed_offset == 2

    async def test_the_marker_of_a_transaction_is_no_record_that_waits(self, rig: Rig) -> None:
        """Consumers commit the offset after the last record, and the marker's own follows it. A record after it waits."""
        await rig.join(1)
        await rig.transact(0, 3)
        await rig.commit(0, 3)
        scrape = await eventually(rig, lambda scrape: of(scrape, 0).next_record_offset == 4)
        assert (of(scrape, 0).committed_offset, of(scrape, 0).log_end_offset) == (3, 4)
        await rig.append(0, 1)
        scrape = await eventually(rig, lambda scrape: of(scrape, 0).log_end_offset == 5)
        for _ in range(6):
            scrape = await rig.collector.scrape()
        assert (of(scrape, 0).next_record_offset, of(scrape, 0).log_end_offset) == (4, 5)

    async def test_a_partition_without_a_commit_is_a_problem(self, rig: Rig) -> None:
        """Whether its records wait depends on where the application would begin."""
        await rig.join(1)
        await rig.append(3, 1)
        scrape = await rig.collector.scrape()
        assert of(scrape, 3).committed_offset is None
        assert any("1 of 4 partitions have records and no commit" in each.what for each in scrape.problems)

    async def test_without_members_demand_is_still_read(self, rig: Rig) -> None:
        """A group without members is not running, and its topics are those that it read."""
        await rig.join(1)
        await rig.commit(0, 0)
        await rig.collector.scrape()
        await rig.leave()
        await rig.append(0, 7)
        scrape = await eventually(rig, lambda scrape: scrape.status == "not_running")
        assert (scrape.run, scrape.operators) == (None, ())
        assert "Empty" in scrape.message
        assert of(scrape, 0).log_end_offset == 7

    async def test_a_group_that_never_had_members_while_it_was_read(self, rig: Rig) -> None:
        """Its topics are those that it has committed offsets of, as after a crash before Weir began."""
        await rig.append(0, 7)
        await rig.commit(0, 3)
        scrape = await eventually(rig, lambda scrape: scrape.status == "not_running")
        assert (of(scrape, 0).committed_offset, of(scrape, 0).log_end_offset) == (3, 7)
        assert len(scrape.partitions) == PARTITIONS

    async def test_brokers_that_are_away_are_unreachable(self, rig: Rig) -> None:
        scrape = await rig.away.scrape()
        assert scrape.status == "unreachable"
        assert scrape.problems and scrape.message


def of(scrape: Scrape, partition: int) -> PartitionReading:
    """Return the reading of one partition."""
    return next(each for each in scrape.partitions if each.partition == partition)


def counted(scrape: Scrape) -> int:
    """Return the records that were processed."""
    (reading,) = scrape.operators
    assert reading.records_in is not None
    return reading.records_in


async def eventually(rig: Rig, holds: Callable[[Scrape], bool]) -> Scrape:
    """Return the first scrape for which this holds, within 20 s."""
    scrape = await rig.collector.scrape()
    async with asyncio.timeout(20):
        for _ in range(200):
            if holds(scrape):
                break
            await asyncio.sleep(0.1)
            scrape = await rig.collector.scrape()
    assert holds(scrape), scrape
    return scrape
