"""Records that wait, and offsets that are none: a Flink job's sources over brokers in memory, and what the analysis says."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engines.kafka.brokers_suite import ODD_TIMESTAMPS
from tests.unit.engines.memory_sources import MemoryBrokers, MemoryFlink
from tests.unit.monitor.builders import kafka_signals, policy
from weir_analyzer.core import AnalyzerState, advance
from weir_contracts import Analysis, Observation, PartitionReading
from weir_engines.kafka.assignment import Place
from weir_engines.kafka.partitions import PartitionCollector
from weir_engines.kafka.positions import FirstRecord, PartitionHistory
from weir_monitor.applications import ApplicationCollector
from weir_monitor.core import observe
from weir_runtime.clock import FakeClock

PLACES: list[Place] = [("orders", n) for n in range(4)]
FIRST = PLACES[0]
DAY_MS = 86_400_000


class Watched:
    """Job that reads four partitions, watched every 5 s. `restart_monitor` forgets what the monitor saw."""

    def __init__(self, **kafka: Any) -> None:
        self.clock = FakeClock()
        self.brokers, self.flink = MemoryBrokers(self.clock, {"orders": 4}), MemoryFlink(self.clock)
        self.policy = policy(kafka=kafka_signals(**kafka), interval="5s")
        self.state: AnalyzerState | None = None
        self.observation: Observation
        self.analysis: Analysis
        self.restart_monitor()

    def restart_monitor(self) -> None:
        assert self.policy.spec.signals.kafka is not None
        partitions = PartitionCollector(self.policy.spec.signals.kafka, self.brokers)
        self.collector = ApplicationCollector(self.flink, self.clock, partitions=partitions)

    @property
    def now_ms(self) -> int:
        return round(self.clock.now().timestamp() * 1000)

    def append(self, records: int, **more: Any) -> None:
        for place in PLACES:
            self.brokers.append(place, records, **more)

    def process(self, records: int) -> None:
        for number in range(4):
            self.flink.process(number, records)

    def look(self, scrapes: int = 1, each: Callable[[], None] = lambda: None) -> Analysis:
        """Return the last analysis of so many scrapes; `each` happens before each of them."""
        for _ in range(scrapes):
            self.clock.advance(5)
            each()
            readings = asyncio.run(self.collector.read(self.policy))
            self.observation = observe(readings, self.clock.now())
            self.state, analysis = advance(self.state, self.observation)
            assert analysis is not None
            self.analysis = analysis
        return self.analysis

    def symptom(self, code: str) -> dict[str, float | None]:
        """Return the numbers of the one symptom with this code."""
        (found,) = [each for each in self.analysis.symptoms if each.code == code]
        assert len(found.evidence) <= 160
        return found.numbers

    @property
    def first(self) -> PartitionReading:
        return next(p for p in self.observation.partitions if p.partition == 0)


@pytest.fixture
def job() -> Watched:
    return Watched()


# -- timestamps of records


_ODD = {**ODD_TIMESTAMPS, "zero time of Go": -6_795_364_578_871}


@given(stamped_ms=st.integers(-(2**63), 2**63 - 1), grown=st.integers(1, 500), is_append_time=st.booleans())
def test_no_timestamp_gives_an_age_that_the_log_ends_contradict(
    stamped_ms: int, grown: int, is_append_time: bool
) -> None:
    """Whatever is stored, the append time is none, or after Kafka appeared and not after the record was seen."""
    clock, history = FakeClock(), PartitionHistory()
    began = clock.now()
    history.add_end(100, began)
    history.add_end(100 + grown, clock.advance(5))
    history.compare(FirstRecord(100, timestamp_ms=stamped_ms, is_append_time=is_append_time))
    record = FirstRecord(40, timestamp_ms=stamped_ms, is_append_time=is_append_time)
    at = history.append_time(record, clock.now())
    assert at is None or (at <= began and at.year >= 2011)


@pytest.mark.parametrize("stamped_ms", _ODD.values(), ids=_ODD.keys())
def test_an_odd_timestamp_makes_one_age_unknown_and_nothing_else(job: Watched, stamped_ms: int) -> None:
    """A backlog from before Weir began, whose records carry a timestamp that is no append time.

    Source: SPARK-56243 (apache/spark#55038: microseconds), boom-astro/boom#266 (seconds), KAFKA-4393
    (apache/kafka#2117: negative ones), BrightTag/kafkameter#19 (-1).
    """
    ahead = stamped_ms == ODD_TIMESTAMPS["two days ahead of 2026"]
    odd_ms = job.now_ms + 2 * DAY_MS if ahead else stamped_ms
    job.append(1000, stamped_ms=odd_ms)
    job.process(400)
    analysis = job.look(3)
    assert (job.observation.status, job.observation.problems, len(job.observation.partitions)) == ("running", [], 4)
    assert len(job.observation.operators) == 2
    assert analysis.lag_records.value == 2400
    assert analysis.lag_seconds.value is None
    if stamped_ms == -1:
        assert not analysis.has("timestamps-refused")
    else:
        assert job.symptom("timestamps-refused")["timestamp_ms"] == odd_ms


def test_the_age_of_records_with_odd_timestamps_follows_the_log_ends(job: Watched) -> None:
    """All records carry seconds for milliseconds; the job stops while 100 records/s go on arriving in each partition."""

    def arrive() -> None:
        job.append(500, stamped_ms=job.now_ms // 1000)

    def arrive_and_process() -> None:
        arrive()
        job.process(500)

    job.look(12, arrive_and_process)
    job.restart_monitor()
    analysis = job.look(8, arrive)
    assert analysis.lag_seconds.value == pytest.approx(40, abs=5)
    assert job.symptom("timestamps-refused")["partitions"] == 4


def test_event_times_of_producers_are_no_append_times(job: Watched) -> None:
    """A job upstream stamps its records with the times of events, three days ago; the backlog is older than the history.
    Until a new record shows it the timestamp stands alone; then it does not count.

    Source: teslamotors/kafka-helmsman#45 (a tracker of freshness that producers' times mislead); Kafka Streams and Flink's
    sink write the times of their input's events (apache/kafka#7274).
    """

    def arrive() -> None:
        job.append(500, stamped_ms=job.now_ms - 3 * DAY_MS)

    job.append(1000, stamped_ms=job.now_ms - 3 * DAY_MS)
    job.process(400)
    analysis = job.look(6, arrive)
    assert job.first.position_appended_at is None
    assert analysis.lag_seconds.value == pytest.approx(36, abs=10)  # 1,000 records before the first scrape are 10 s
    assert job.symptom("timestamps-refused")["timestamp_ms"] == pytest.approx(job.now_ms - 3 * DAY_MS, abs=60_000)


def test_a_restarted_monitor_does_not_believe_what_the_analysis_knows_better(job: Watched) -> None:
    """The monitor's own log ends are gone, the analyzer's are not: they bracket the record's append time."""

    def arrive() -> None:
        job.append(500, stamped_ms=job.now_ms - 3 * DAY_MS)

    job.append(1000)
    job.process(1000)
    job.look(12)
    job.look(4, arrive)
    job.restart_monitor()
    analysis = job.look()
    assert job.first.position_appended_at is not None
    assert analysis.lag_seconds.value == pytest.approx(22, abs=4)
    assert analysis.has("timestamps-refused")


def test_brokers_that_set_the_timestamps_are_believed(job: Watched) -> None:
    """`message.timestamp.type=LogAppendTime`: the same producers, and the age is known from the first scrape on."""
    job.brokers.stamp_by_broker("orders")
    job.append(1000, stamped_ms=0)
    job.process(400)
    job.clock.advance(3600)
    assert job.look().lag_seconds.value == pytest.approx(3605)
    assert job.look(4, lambda: job.append(500, stamped_ms=0)).lag_seconds.value == pytest.approx(3625)


def test_clocks_that_differ_by_seconds_are_no_contradiction(job: Watched) -> None:
    """The producer's clock is 4 s ahead: no age is negative, and none is refused.

    Source: karafka/karafka#1611, seglo/kafka-lag-exporter#138 (negative lag in seconds).
    """
    job.append(10, stamped_ms=job.now_ms + 9_000)
    job.process(4)
    analysis = job.look()
    assert analysis.lag_seconds.value == 0
    assert not analysis.has("timestamps-refused")
    assert job.look(2).lag_seconds.value == pytest.approx(10)


# -- offsets that are no records


def test_the_marker_of_a_transaction_is_no_record_that_waits(job: Watched) -> None:
    """A transaction of 1,000 records every two minutes, read within 5 s: between them nothing waits.

    Source: spring-projects/spring-kafka#1587, kedacore/keda#5675, linkedin/Burrow#461 (a lag of 1 for ever).
    """
    late = []
    for _ in range(2):
        for place in PLACES:
            job.brokers.transact(place, 250)
        job.look()
        for number in range(4):
            job.flink.processed[number] = len(job.brokers._logs[PLACES[number]].stamped) - 1
        for _ in range(23):
            job.look()
            late.append((job.analysis.lag_records.value, job.analysis.lag_seconds.value))
            assert not job.analysis.has("stalled")
    assert late.count((0, 0)) >= 20 * 2
    assert all(seconds is not None and seconds <= 20 for _, seconds in late)


def test_aborted_transactions_are_no_backlog(job: Watched) -> None:
    """A producer that crashes again and again aborts a transaction every 5 s: the log grows, and no record waits.

    Source: apache/druid#16689 (offsets of markers and of aborted records count as lag).
    """
    job.append(100)
    job.process(100)
    job.look(2)

    def abort() -> None:
        for place in PLACES:
            job.brokers.transact(place, 500, aborts=True)

    analysis = job.look(24, abort)
    assert analysis.lag_records.value == 0
    assert analysis.lag_seconds.value == 0
    job.append(7)
    assert job.look().lag_records.value == 4 * 7


def test_compacted_records_at_the_position_do_not_wait(job: Watched) -> None:
    """A job that starts at the beginning of a compacted topic: 900 of 1,000 offsets have no record any more.

    Source: confluentinc/kafka#101 (offsets of a compacted topic count as lag).
    """
    job.append(1000)
    job.process(10)
    for place in PLACES:
        job.brokers.compact(place, range(10, 910))
    analysis = job.look()
    assert job.first.next_record_offset == 910
    assert analysis.lag_records.value == 4 * 90


def test_a_committed_offset_before_a_marker_is_where_a_stopped_job_resumes_with_nothing_to_do() -> None:
    """Flink commits the offset after the last record, not after the marker; the job is down and has no position.

    Source: FLINK-33484 (apache/flink-connector-kafka#293).
    """
    job = Watched(groupId="orders", topics=["orders"])
    for place in PLACES:
        job.brokers.transact(place, 250)
        job.brokers.commit("orders", {place: 250})
    job.flink.deploying = True
    analysis = job.look(3)
    assert analysis.status == "not_running"
    assert (analysis.lag_records.value, analysis.lag_seconds.value) == (0, 0)


# -- positions outside of the log


def test_records_that_retention_deleted_unread_are_no_lag(job: Watched) -> None:
    """The position is below the log's start: the deleted records are lost, those that are left wait.

    Source: redpanda-data/redpanda#30624, kedacore/keda#7936 (records that retention deleted count as lag).
    """
    job.append(1000)
    job.process(10)
    job.look()
    for place in PLACES:
        job.brokers.delete_before(place, 900)
    analysis = job.look()
    assert analysis.lag_records.value == 4 * 100
    assert analysis.lag_seconds.value == pytest.approx(10)
    assert job.symptom("records-expired") == {"partitions": 4, "records": 4 * 890}


def test_the_marker_at_the_end_of_an_expired_log_is_no_lost_record(job: Watched) -> None:
    """An idle transactional topic whose records were all read, and then deleted."""
    for place in PLACES:
        job.brokers.transact(place, 250)
    job.process(250)
    job.look(3)
    for place in PLACES:
        job.brokers.delete_before(place, 251)
    analysis = job.look(3)
    assert analysis.lag_records.value == 0
    assert not analysis.has("records-expired")


def test_a_position_after_the_end_of_the_log_is_unknown_lag(job: Watched) -> None:
    """An unclean election cut the log off at 600; what is appended then is counted from the position's next move on.

    Source: confluentinc/kafka#101 and danielqsj/kafka_exporter#169 (negative lag), redpanda-data/console#590 (shown as 0).
    """
    job.append(1000)
    job.process(1000)
    assert job.look().lag_records.value == 0
    job.brokers.truncate(FIRST, 600)
    analysis = job.look()
    assert analysis.lag_records.value is None
    assert job.symptom("position-beyond-log") == {"partitions": 1, "position": 1000, "log_end": 600}
    assert analysis.has("offsets-reset")
    job.brokers.append(FIRST, 900)
    analysis = job.look()
    assert analysis.lag_records.value is None, "1,500 - 1,000 records of another log are no lag"
    assert job.first.current_offset is None
    job.flink.processed[0] = 1400
    assert job.look().lag_records.value == 100


def test_the_commits_of_a_deleted_topic_say_nothing_of_the_new_one() -> None:
    """The topic was created again and has more records by now than the group had committed; it has not begun to read."""
    job = Watched(groupId="orders", topics=["orders"])
    job.append(50)
    job.brokers.commit("orders", dict.fromkeys(PLACES, 50))
    job.flink.deploying = True
    assert job.look(2).lag_records.value == 0
    job.brokers.add_topic("orders", 4)
    job.append(10)
    assert job.look().lag_records.value is None
    job.append(90)
    assert job.look().lag_records.value is None
    job.brokers.commit("orders", dict.fromkeys(PLACES, 20))
    assert job.look().lag_records.value == 4 * 80


def test_a_job_that_reads_uncommitted_records_is_not_ahead_of_its_log(job: Watched) -> None:
    """Flink reads uncommitted records unless it is told otherwise; the policy counts committed ones. Nothing of those waits.

    Source: softwaremill/klag-exporter#104 (high watermark and last stable offset mixed up).
    """
    job.append(100)
    for place in PLACES:
        job.brokers.append(place, 40, in_transaction=True)
    job.process(140)
    analysis = job.look(3)
    assert (analysis.lag_records.value, analysis.lag_seconds.value) == (0, 0)
    assert job.symptom("reads-uncommitted") == {"partitions": 4, "position": 140, "log_end": 100}


def test_a_position_that_many_sources_share_is_looked_up_for_each() -> None:
    """Two sources read one topic; one stands at a marker, the other at a record before it."""
    clock = FakeClock()
    brokers = MemoryBrokers(clock, {"orders": 1})
    brokers.append(FIRST, 10)
    brokers.transact(FIRST, 5)
    signals = policy(kafka=kafka_signals()).spec.signals.kafka
    assert signals is not None
    collector = PartitionCollector(signals, brokers)
    for _ in range(4):
        now = clock.advance(5)
        readings = asyncio.run(collector.scrape({"a": {FIRST: 15}, "b": {FIRST: 4}}, now))
    assert {name: p.next_record_offset for name, p in readings.partitions} == {"a": 16, "b": 4}


def test_a_wide_idle_topic_is_looked_up_within_two_scrapes() -> None:
    """200 partitions end with a marker: the bound of a scrape must not keep any of them waiting for half a minute."""
    clock = FakeClock()
    brokers = MemoryBrokers(clock, {"wide": 200})
    signals = policy(kafka=kafka_signals()).spec.signals.kafka
    assert signals is not None
    collector = PartitionCollector(signals, brokers)
    positions = {("wide", n): 3 for n in range(200)}
    asyncio.run(collector.scrape({"a": dict.fromkeys(positions)}, clock.now()))
    for place in positions:
        brokers.transact(place, 3)
    for _ in range(4):
        now = clock.now() + timedelta(seconds=5)
        clock.advance(5)
        readings = asyncio.run(collector.scrape({"a": positions}, now))
    assert {p.next_record_offset for _, p in readings.partitions} == {4}
