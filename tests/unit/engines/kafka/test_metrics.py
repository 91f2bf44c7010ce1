"""Metrics endpoints of Kafka Streams instances: what is read of them, and what is refused."""

import random
from dataclasses import replace

import pytest

from tests.effort import some
from weir_engines.kafka.group import Member, Membership
from weir_engines.kafka.metrics import (
    MAX_BYTES,
    MAX_SAMPLES,
    BusyMeter,
    InstanceMetrics,
    ThreadMetrics,
    Unreadable,
    instance_metrics,
    merged,
)
from weir_engines.kafka.readings import GroupMeter

PAGE = """\
# HELP jvm_memory_used_bytes Used bytes of a given JVM memory area.
# TYPE jvm_memory_used_bytes gauge
jvm_memory_used_bytes{area="heap"} 3.0E8
jvm_memory_used_bytes{area="nonheap"} 1.0E8
# TYPE kafka_streams_stream_thread_metrics_blocked_time_ns_total counter
kafka_streams_stream_thread_metrics_blocked_time_ns_total{thread_id="orders-1-StreamThread-1",} 2.5E9
kafka_streams_stream_thread_metrics_process_total{thread_id="orders-1-StreamThread-1"} 4200.0
kafka_streams_stream_thread_metrics_thread_state{thread_id="orders-1-StreamThread-1"} 4.0
kafka_streams_stream_thread_metrics_poll_ratio{thread_id="orders-1-StreamThread-1"} 0.4
kafka_streams_stream_metrics_client_state{client_id="orders-1"} 2.0
kafka_streams_stream_metrics_failed_stream_threads{client_id="orders-1"} 1.0
kafka_streams_stream_task_metrics_restore_remaining_records{thread_id="orders-1-StreamThread-1",task_id="0_1"} 0.0
kafka_consumer_consumer_coordinator_metrics_last_rebalance_seconds_ago{client_id="orders-1"} 12.0
"""
THREAD = "orders-1-StreamThread-1"


def test_a_page_of_the_jmx_exporter() -> None:
    found = instance_metrics(PAGE.encode())
    assert found.threads == {THREAD: ThreadMetrics(2.5e9, 4200.0, 4)}
    assert (found.client_state, found.memory_bytes) == ("RUNNING", 400_000_000)
    assert (found.restore_remaining_records, found.restores) == (0, False)


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ('stream_task_metrics_restore_remaining_records{thread_id="a",task_id="0_2"} 7', 7),
        ('STREAM_TASK_METRICS_RESTORE_REMAINING_RECORDS_TOTAL{thread_id="a",task_id="0_2"} 7', 7),
        ('stream_task_metrics_restore_remaining_records{thread_id="a",task_id="0_2"} NaN', 0),
        ('stream_task_metrics_restore_remaining_records{thread_id="a",task_id="0_2"} +Inf', 0),
        ('stream_task_metrics_restore_remaining_records{thread_id="a",task_id="0_2"} -1', 0),
        ('stream_task_metrics_restore_remaining_records{thread_id="a",task_id="0_2"} seven', 0),
        ('stream_task_metrics_restore_remaining_records{thread_id="a' + "b" * 5000 + '"} 7', 0),
    ],
)
def test_only_finite_numbers_count(line: str, number: int) -> None:
    """NaN, infinity and lines that are no samples are left out, and the others still count."""
    found = instance_metrics(f"{PAGE}kafka_streams_{line}\n".encode())
    assert found.restore_remaining_records == number
    assert found.restores is (number > 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no stream-thread-metrics"),
        (b"<html>not found</html>", "no stream-thread-metrics"),
        (b"\xff\xfe\x00" * 100, "no stream-thread-metrics"),
        (b"x" * (MAX_BYTES + 1), "bytes, more than"),
        (
            b'kafka_streams_stream_thread_metrics_process_total{thread_id="a"} 1\n' * (MAX_SAMPLES + 1),
            f"more than {MAX_SAMPLES:,} samples",
        ),
    ],
)
def test_what_is_no_page_of_metrics_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        instance_metrics(content)


@pytest.mark.parametrize("seed", some(range(100), one_in=20))
def test_a_damaged_page_is_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    page = bytearray(PAGE.encode())
    for _ in range(30):
        page[chance.randrange(len(page))] = chance.randrange(256)
    try:
        found = instance_metrics(bytes(page))
    except Unreadable:
        return
    assert found.memory_bytes is None or found.memory_bytes >= 0


def metrics(blocked_s: float, processed: float = 0, **more: object) -> InstanceMetrics:
    return InstanceMetrics(threads={THREAD: ThreadMetrics(blocked_s * 1e9, processed, 4)}, **more)  # type: ignore[arg-type]


def test_busy_time_is_what_a_thread_does_not_wait() -> None:
    """Differences of counters: a thread that begins again, as after each change of instances, counts from its next
    reading, and busy time stays known."""
    meter = BusyMeter()
    for at, blocked, processed in ((0, 100, 0), (10, 104, 50), (20, 114, 60), (30, 1, 5), (40, 2, 15)):
        assert meter.add([metrics(blocked, processed)], at) == []
        assert meter.is_known
    assert (meter.busy_ms, meter.idle_ms, meter.processed) == (15_000, 15_000, 70)


def test_a_clock_that_differs_makes_no_negative_busy_time() -> None:
    meter = BusyMeter()
    meter.add([metrics(0)], 0)
    meter.add([metrics(11)], 10)
    assert (meter.busy_ms, meter.idle_ms) == (0, 10_000)


def test_an_impossible_blocked_time_is_no_idle_thread() -> None:
    """Five times the time that passed was read as a thread without work, for which an application may shrink. Busy time
    is unknown for this reading, and known again from the next one on."""
    group, meter = Membership((member(THREAD, "p1"),)), BusyMeter()
    shares = []
    sentence = "grew by 50.0 s while 10.0 s passed: busy time is unknown"
    for at, value in ((0, 100.0), (10, 150.0), (20, 154.0)):
        problems = meter.add([metrics(value)], at)
        found = merged(group, [metrics(value)], meter)
        shares.append((found.busy is not None, found.instances["p1"].blocked_share))
        if at == 10:
            assert [(each.where, each.what) for each in problems] == [(f"blocked-time-ns-total of {THREAD}", sentence)]
    assert shares == [(True, None), (False, None), (True, pytest.approx(0.4))]
    assert (meter.busy_ms, meter.idle_ms) == (6_000, 4_000)


def test_a_long_wait_that_is_booked_when_it_ends_is_no_contradiction() -> None:
    """A commit of a transaction took 20 s: the counter stood still, and then grew by 20 s within one scrape of 5 s."""
    meter = BusyMeter()
    for at, blocked in ((0, 0), (5, 2), (10, 2), (15, 2), (20, 2), (25, 22)):
        assert meter.add([metrics(blocked)], at) == []
    assert meter.is_known


def test_a_quick_answer_after_a_slow_one_is_no_contradiction() -> None:
    """One endpoint of two took 4 s of a scrape each 10 s: the other one's counters are of the time at which it answered."""
    meter = BusyMeter()
    for at, read_at, blocked in ((4, 0.0, 0), (10, 10.0, 10), (24, 20.0, 20), (30, 30.0, 30)):
        assert meter.add([replace(metrics(blocked), read_at=read_at)], at) == []
    assert (meter.is_known, meter.busy_ms, meter.idle_ms) == (True, 0, 30_000)


def test_fewer_processed_records_than_before_are_named() -> None:
    """As of a service's signals: what was processed meanwhile is unknown, and counts as nothing."""
    meter = BusyMeter()
    meter.add([metrics(0, 1_500)], 0)
    (problem,) = meter.add([metrics(4, 200)], 10)
    assert problem.where == f"process-total of {THREAD}"
    assert problem.what == "fell from 1,500 to 200 records, as when a thread restarts: none are counted"
    assert meter.add([metrics(8, 230)], 20) == []
    assert (meter.processed, meter.busy_ms) == (30, 12_000)


def test_many_contradictory_threads_are_one_problem() -> None:
    """An observation has a limit of problems, and an application up to 32,768 threads."""
    threads = [f"orders-1-StreamThread-{i}" for i in range(500)]
    meter = BusyMeter()
    for at, blocked_ns in ((0, 0.0), (10, 9e10)):
        problems = meter.add([InstanceMetrics({name: ThreadMetrics(blocked_ns, 1.0, 4) for name in threads})], at)
    assert [problem.where for problem in problems] == [f"blocked-time-ns-total of {threads[0]}"]


def test_the_blocked_share_is_that_of_the_last_minute() -> None:
    meter = BusyMeter()
    blocked = 0.0
    for at in range(0, 121, 5):
        meter.add([metrics(blocked)], at)
        blocked += 0.0 if at < 60 else 4.0
    assert meter.blocked_share({THREAD: ThreadMetrics()}) == pytest.approx(0.8, abs=0.05)
    assert meter.blocked_share({"another": ThreadMetrics()}) is None


def member(thread: str, process: str) -> Member:
    return Member(thread, f"{thread}-consumer", process, "127.0.0.1", "", (), (), None)


def test_instances_have_the_metrics_of_their_threads() -> None:
    """Matched by the threads' ids, wherever the endpoint is."""
    group = Membership((member(THREAD, "p1"),))
    measured = merged(group, [metrics(1, client_state="RUNNING", memory_bytes=7)], BusyMeter())
    assert measured.instances["p1"].state == "RUNNING"
    assert measured.instances["p1"].memory_bytes == 7
    assert measured.busy is not None and not measured.restores


def test_busy_time_is_unknown_while_a_thread_has_no_metrics() -> None:
    """A share of the threads would be a wrong mean."""
    group = Membership((member(THREAD, "p1"), member("orders-2-StreamThread-1", "p2")))
    measured = merged(group, [metrics(1)], BusyMeter())
    assert (measured.busy, measured.threads) == (None, 1)


def test_a_thread_whose_exporter_has_no_blocked_time_is_not_idle() -> None:
    """A configuration of the JMX exporter that leaves the metric out: neither busy nor idle time is counted for it."""
    group, silent = Membership((member(THREAD, "p1"),)), InstanceMetrics({THREAD: ThreadMetrics(None, 5, 4)})
    meter = BusyMeter()
    for at in (0, 10):
        assert meter.add([silent], at) == []
    measured = merged(group, [silent], meter)
    assert (measured.busy, measured.threads) == (None, 0)


def test_an_instance_that_restores_is_not_idle() -> None:
    """Reading changelogs counts as blocked time."""
    group = Membership((member(THREAD, "p1"),))
    measured = merged(group, [metrics(1, restore_remaining_records=5)], BusyMeter())
    assert measured.restores
    assert (measured.instances["p1"].blocked_share, measured.instances["p1"].restore_remaining_records) == (None, 5)


def test_throughput_is_never_counted_twice_by_threads_and_commits() -> None:
    """While the endpoints are silent commits count; afterwards the sum waits for the threads' counters."""
    meter = GroupMeter()
    readings = ((0, None), (100, None), (100, 5.0), (100, 45.0), (130, None), (150, None), (150, 85.0), (150, 125.0))
    assert [meter.counted(commits, threads) for commits, threads in readings] == [0, 100, 100, 140, 170, 190, 190, 220]
