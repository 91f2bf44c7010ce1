"""The sample job on a real Flink and Kafka: its vertices, its honesty about capacity, and changes while it runs."""

import time
from collections.abc import Callable

import httpx
import pytest

from testbed.flink import FlinkCluster
from testbed.process import TestbedError, wait_until

from .conftest import LoadGenerator, Topics, Totals

VERTICES = ["Source: orders", "parse", "enrich", "aggregate", "sink: Writer"]
ONLY_ENRICH = "parse=0,enrich=1000,aggregate=0,sink=0"
"""Service times in microseconds with which enrich alone bounds the job's rate: 1,000/s for each of its subtasks."""


def _now_millis() -> int:
    return int(time.time() * 1000)


def _metric(flink: FlinkCluster, job: str, vertex: str, name: str) -> float | None:
    found = {v["name"]: v["id"] for v in flink.get(f"/jobs/{job}")["vertices"]}[vertex]
    answer = flink.get(f"/jobs/{job}/vertices/{found}/subtasks/metrics?get={name}&agg=sum")
    return float(answer[0]["sum"]) if answer else None


def _enrich_at(flink: FlinkCluster, job: str, parallelism: int) -> None:
    """Ask for a parallelism of enrich, and wait until the job runs with it."""
    wanted = flink.get(f"/jobs/{job}/resource-requirements")
    enrich = next(v["id"] for v in flink.get(f"/jobs/{job}")["vertices"] if v["name"] == "enrich")
    wanted[enrich]["parallelism"]["upperBound"] = parallelism
    httpx.put(f"{flink.rest_url}/jobs/{job}/resource-requirements", json=wanted, timeout=10).raise_for_status()
    wait_until(
        lambda: flink.job_state(job) == "RUNNING" and flink.observed(job).get("enrich") == parallelism,
        timeout_seconds=60,
        what=f"enrich at {parallelism}",
    )


def test_orders_become_totals_and_what_is_no_order_is_dropped(
    topics: Topics, totals: Totals, start_job: Callable[..., str], flink_cluster: FlinkCluster
) -> None:
    """Five vertices. Three good orders are totalled per key and window; seven bad records are counted, and the job goes
    on."""
    now = _now_millis()
    good = [b"%d;anna;12345" % (now - 300), b"%d;anna;123" % (now - 200), b"%d;bert;with;semicolons" % now]
    bad = [b"", b"no fields", b";anna;x", b"12x;anna;x", b"%d;anna" % now, b"%d;;x" % now, None]
    topics.put(*good, *bad)
    job = start_job("--window-ms", "2000")
    assert list(flink_cluster.observed(job)) == VERTICES

    def read() -> bool:
        totals.read()
        return totals.orders >= len(good)

    wait_until(read, timeout_seconds=30, what="totals")
    assert totals.orders == len(good)
    by_key = {key: [int(number) for number in numbers] for key, *numbers in totals.lines}
    if len(totals.lines) == 2:  # unless the orders fell on both sides of a window's end
        count, payload_bytes, oldest, newest, _ = by_key["anna"]
        assert (count, payload_bytes, oldest, newest) == (2, 8, now - 300, now - 200)
        assert by_key["bert"][:3] == [1, 15, now]
    assert all(line[5].endswith("000") for line in totals.lines)
    wait_until(
        lambda: _metric(flink_cluster, job, "parse", "parse.badRecords") == len(bad),
        timeout_seconds=20,
        what="bad records counted",
    )
    assert flink_cluster.job_state(job) == "RUNNING"


@pytest.mark.parametrize("parallelism", [1, 4])
def test_a_millisecond_of_service_time_is_a_thousand_orders_a_second_and_subtask(
    topics: Topics, totals: Totals, start_job: Callable[..., str], parallelism: int
) -> None:
    """One subtask does 1,000/s, four do 4,000/s, on two cores, to within a tenth."""
    topics.fill(50_000 * parallelism)
    start_job(
        *("--service-time-us", ONLY_ENRICH),
        *("--parallelism", f"orders=1,parse=1,enrich={parallelism},aggregate=1,sink=1"),
    )
    totals.wait_rate(1000 * parallelism, within=0.1, since_millis=_now_millis())


def test_costs_change_while_it_runs_and_outlive_a_rescale(
    topics: Topics,
    totals: Totals,
    start_job: Callable[..., str],
    start_loadgen: Callable[..., LoadGenerator],
    flink_cluster: FlinkCluster,
) -> None:
    """Cheaper records are noticed within seconds; after a rescale they are still cheap; contention makes them dearer
    again.

    1,000/s at one subtask; set to 2 ms: 500/s; four subtasks: 2,000/s; contention 1/3 halves that. Without the
    control the last costs stay.
    """
    generator = start_loadgen("--paused")
    topics.fill(120_000)
    job = start_job("--service-time-us", ONLY_ENRICH, "--control-url", f"{generator.url}/workload")
    generator.put("/workload", {"operators": {"enrich": {"service_time_us": 2000}}})
    totals.wait_rate(500, within=0.1, since_millis=_now_millis())
    _enrich_at(flink_cluster, job, 4)
    totals.wait_rate(2000, within=0.12, since_millis=_now_millis())
    generator.put("/workload", {"operators": {"enrich": {"contention": 1 / 3}}})
    totals.wait_rate(1000, within=0.12, since_millis=_now_millis() + 1000)
    generator.process.stop()
    totals.wait_rate(1000, within=0.12, since_millis=_now_millis() + 1000)


def test_the_sinks_limit_is_shared_by_its_subtasks(
    topics: Topics, totals: Totals, start_job: Callable[..., str]
) -> None:
    """400 results/s in all, at one subtask or at two: more parallelism does not help a limited downstream."""
    topics.fill(200_000)
    start_job(
        *("--service-time-us", "parse=0,enrich=0,aggregate=0,sink=0"),
        *("--sink-limit-per-second", "400"),
        *("--parallelism", "orders=1,parse=1,enrich=1,aggregate=1,sink=2"),
    )
    wait_until(lambda: totals.written() > 800, timeout_seconds=40, what="results")
    rates: list[float] = []

    def as_limited() -> bool:
        began, first = time.monotonic(), totals.written()
        wait_until(lambda: time.monotonic() - began >= 6, timeout_seconds=10, what="six seconds")
        rates.append((totals.written() - first) / (time.monotonic() - began))
        return abs(rates[-1] - 400) <= 40

    wait_until(as_limited, timeout_seconds=40, what="six seconds at the limit")
    assert max(rates) <= 440


def test_no_order_is_lost_over_a_rescale(
    topics: Topics, totals: Totals, start_job: Callable[..., str], flink_cluster: FlinkCluster
) -> None:
    """At least once: 12,000 orders before and during a rescale are all in some result."""
    topics.fill(12_000)
    job = start_job("--service-time-us", ONLY_ENRICH)
    wait_until(lambda: (totals.read(), totals.orders > 2000)[1], timeout_seconds=30, what="first totals")
    _enrich_at(flink_cluster, job, 3)
    wait_until(lambda: (totals.read(), totals.orders >= 12_000)[1], timeout_seconds=40, what="all totals")


def test_a_bounded_job_ends_with_every_order_counted(
    topics: Topics, totals: Totals, start_job: Callable[..., str], flink_cluster: FlinkCluster
) -> None:
    """It reads all records and finishes; windows still open at the end are written too, each order exactly once."""
    topics.fill(3000)
    job = start_job("--bounded", "true", "--window-ms", "5000", "--service-time-us", ONLY_ENRICH)
    wait_until(lambda: flink_cluster.job_state(job) == "FINISHED", timeout_seconds=40, what="the end")
    wait_until(lambda: (totals.read(), totals.orders >= 3000)[1], timeout_seconds=10, what="all totals")
    assert totals.orders == 3000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--windw-ms", "1000"), "--windw-ms: no such argument"),
        (("--window-ms", "soon"), "--window-ms: not a number: soon"),
        (("--window-ms", "0"), "--window-ms: not from"),
        (("--parallelism", "join=2"), "--parallelism: no such operator: join"),
        (("--parallelism", "enrich=1.5"), "--parallelism: enrich: not a whole number"),
        (("--service-time-us", "orders=5"), "--service-time-us: no such operator: orders"),
        (("--control-url", "ftp://127.0.0.1/x"), "--control-url: not an http URL"),
    ],
)
def test_a_wrong_argument_is_named(start_job: Callable[..., str], arguments: tuple[str, str], message: str) -> None:
    """Before the job starts."""
    with pytest.raises(TestbedError, match=message):
        start_job(*arguments)
