"""Positions of a Flink source over a real broker's logs: transactions, retention, timestamps, and rights."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from testbed.kafka import SASL_USER, KafkaBroker
from tests.integration.monitor.test_kafka import RealRig
from weir_contracts import KafkaSignals
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.brokers import KafkaBrokers
from weir_engines.kafka.partitions import Brokers, KafkaReadings, PartitionCollector
from weir_engines.scrape import PartitionOffsets
from weir_runtime.clock import SystemClock
from weir_runtime.policy_credentials import NO_CREDENTIALS

DAY_MS = 86_400_000


class Reader:
    """Source at one position of a topic's first partition, scraped until what is expected holds."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._collector = PartitionCollector(KafkaSignals(bootstrapServers="127.0.0.1:9092"), brokers)
        self._place = (topic.replace(".", "_"), 0)
        self.position = 0
        self.readings = KafkaReadings()

    async def scrape(self) -> PartitionOffsets:
        sources = {"source": {self._place: self.position}}
        self.readings = await self._collector.scrape(sources, datetime.now(UTC))
        return self.readings.partitions[0][1]

    async def until(self, holds: Callable[[PartitionOffsets], bool]) -> PartitionOffsets:
        async with asyncio.timeout(30):
            while not holds(found := await self.scrape()):  # noqa: ASYNC110 - no event signals it
                await asyncio.sleep(0.2)
        return found


@pytest.fixture
async def rig(kafka: KafkaBroker) -> AsyncIterator[RealRig]:
    rig = RealRig(kafka)
    yield rig
    await rig.close()


@pytest.fixture
def reader(rig: RealRig) -> Reader:
    return Reader(rig.brokers, rig.topic)


async def test_a_source_that_read_a_transaction_has_nothing_to_read(rig: RealRig, reader: Reader) -> None:
    """Its position is the offset after the last record, that of the marker; a record after the marker waits."""
    await rig.transact((rig.topic, 0), 3)
    reader.position = 3
    found = await reader.until(lambda p: p.next_record_offset == 4)
    assert found.log_end_offset == 4
    await rig.append((rig.topic, 0), 2)
    found = await reader.until(lambda p: p.log_end_offset == 6)
    assert found.next_record_offset == 4


async def test_aborted_transactions_leave_nothing_to_read(rig: RealRig, reader: Reader) -> None:
    """The stable end of the log moves with each of them, the position does not."""
    await rig.append((rig.topic, 0), 2)
    reader.position = 2
    await reader.scrape()
    for end in (2 + 5 + 1, 2 + 2 * (5 + 1)):
        await rig.transact((rig.topic, 0), 5, aborts=True)
        # The brokers move the stable end a moment after they have acknowledged the abort.
        await reader.until(lambda p, end=end: p.next_record_offset == p.log_end_offset == end)


async def test_a_position_below_the_log_is_as_old_as_what_is_left(rig: RealRig, reader: Reader) -> None:
    """Retention deletes four records of which two were unread."""
    place = (rig.topic, 0)
    await rig.append(place, 4)
    later = await rig.append(place, 1)
    await rig.delete_before(place, 4)
    reader.position = 2
    found = await reader.until(lambda p: p.next_record_offset is not None)
    assert (found.log_start_offset, found.next_record_offset, found.log_end_offset) == (4, 4, 5)
    assert found.position_appended_at is not None
    assert found.position_appended_at.timestamp() >= later.timestamp() - 0.001


async def test_a_position_among_records_of_an_open_transaction(rig: RealRig, reader: Reader) -> None:
    """A source that reads uncommitted records is after the stable end of the log, and before its high watermark."""
    place = (rig.topic, 0)
    await rig.append(place, 2)
    await rig.open_transaction(place, 3)
    reader.position = 5
    found = await reader.until(lambda p: p.high_watermark is not None)
    assert (found.log_end_offset, found.high_watermark, found.has_stale_position) == (2, 5, False)
    reader.position = 9
    await reader.scrape()
    await rig.append(place, 8)
    reader.position = 9
    assert (await reader.scrape()).has_stale_position is False, (
        "still after the stable end, so that the numbers are shown"
    )


@pytest.mark.parametrize("stamped_ms", [0, 1_780_000_000, 1_780_000_000_000_000])
async def test_an_odd_timestamp_is_refused(rig: RealRig, reader: Reader, stamped_ms: int) -> None:
    """Zero, seconds and microseconds: the offsets are read all the same."""
    await rig.append((rig.topic, 0), 3, stamped_ms)
    reader.position = 1
    found = await reader.until(lambda p: p.next_record_offset is not None)
    assert (found.next_record_offset, found.log_end_offset, found.position_appended_at) == (1, 3, None)
    assert found.refused_timestamp_ms == stamped_ms
    assert reader.readings.problems == ()


async def test_event_times_are_refused_when_new_records_show_them(rig: RealRig, reader: Reader) -> None:
    """Three days old when they are appended: the first one cannot be told from a backlog of three days."""
    place = (rig.topic, 0)
    stamped_ms = round(time.time() * 1000) - 3 * DAY_MS
    await rig.append(place, 3, stamped_ms)
    reader.position = 1
    found = await reader.until(lambda p: p.next_record_offset is not None)
    assert found.refused_timestamp_ms is None
    async with asyncio.timeout(30):
        while found.refused_timestamp_ms is None:  # a busy broker may not answer in the scrape that sees a new record
            await rig.append(place, 1, stamped_ms)
            found = await reader.scrape()
    assert (found.refused_timestamp_ms, found.position_appended_at) == (stamped_ms, None)


async def test_without_the_right_to_read_records_the_reason_is_named(run_folder: Path) -> None:
    """The user may describe the topic only. Its offsets are read, and nothing waits for an answer about its records."""
    with KafkaBroker(run_folder / "kafka-describe", authorizer=True) as broker:
        rig = RealRig(broker)
        security = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": SASL_USER,
            "sasl.password": broker.sasl_password,
        }
        entry = replace(NO_CREDENTIALS, settings=security)
        brokers = KafkaBrokers(broker.sasl_servers, 5.0, SystemClock(), credentials=lambda: entry)
        try:
            broker.allow([("topic", rig.topic, "Describe")])
            place: Place = (rig.topic, 0)
            await rig.append(place, 3)
            reader = Reader(brokers, rig.topic)
            found = await reader.until(lambda _: bool(reader.readings.problems))
            assert (found.log_end_offset, found.next_record_offset) == (3, None)
            (problem,) = reader.readings.problems
            assert problem.where == f"records of topic {rig.topic}"
            assert "grant the right Read" in problem.what and len(problem.what) <= 160
            broker.allow([("topic", rig.topic, "Read")])
            assert (await reader.until(lambda p: p.next_record_offset is not None)).next_record_offset == 0
        finally:
            await brokers.close()
            await rig.close()
