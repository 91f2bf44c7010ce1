"""What sources of other systems than Kafka report, in the names that their connectors have, and reports that are unusable."""

import json
from typing import Any

import httpx
import pytest

from tests.unit.engines.flink.fake_rest import FakeFlink, recorded
from tests.unit.engines.memory_sources import JOB_ID, SOURCE, MemoryFlink
from tests.unit.monitor.builders import policy
from weir_contracts import OperatorReading
from weir_engines.flink import collector as flink_adapter
from weir_engines.flink import metrics, topology
from weir_engines.flink.collector import FlinkCollector
from weir_engines.flink.readings import FlinkReadings, scrape_of
from weir_runtime.clock import FakeClock

SHARD = "Source__clicks.KinesisStreamSource.accountId.123456789012.region.eu-west-1.stream.stream/clicks.shardId"
"""Of `flink-connector-aws-kinesis-streams`: the groups of KinesisShardMetrics."""
LEGACY_SHARD = "Source__clicks.KinesisConsumer.stream.clicks.shardId"
PULSAR = "Source__pulsar_source[1].PulsarConsumer.persistent_//public/default/orders"
"""As the Flink autoscaler's own tests have it (PartitionMetricNameParserTest)."""


def _source(*found: tuple[str, dict[str, Any]], vertex: str | None = None) -> metrics.SourceOffsets:
    return metrics.source_offsets(metrics.aggregates([{"id": name, **values} for name, values in found]), vertex)


def _all(value: float) -> dict[str, Any]:
    """A metric of one subtask."""
    return dict.fromkeys(("min", "max", "avg", "sum"), value)


@pytest.mark.parametrize("prefix", [SHARD, LEGACY_SHARD])
def test_shards_of_kinesis_bound_a_source_and_report_how_far_it_is_behind(prefix: str) -> None:
    """Three shards, of which one is 4.2 s behind its end: more than three subtasks would be idle."""
    names = [f"{prefix}.shardId-00000000000{n}.millisBehindLatest" for n in range(3)]
    assert metrics.wanted_source_metrics([*names, "Source__clicks.x.bytesRequestedPerFetch"]) == names
    source = _source(*((name, _all(millis)) for name, millis in zip(names, (0, 4200, 300), strict=True)))
    assert (source.splits, source.has_broker_offsets, source.behind_seconds) == (3, False, 4.2)
    assert source.positions == {} and source.pending_records is None


def test_a_shard_that_was_not_read_yet_leaves_the_age_unknown() -> None:
    """The connector begins with -1, which is no age."""
    source = _source((f"{SHARD}.a.millisBehindLatest", _all(100)), (f"{SHARD}.b.millisBehindLatest", _all(-1)))
    assert (source.splits, source.behind_seconds) == (2, None)


def test_partitions_of_pulsar_bound_a_source() -> None:
    """A partition whose consumer reconnected has two of them; a topic without partitions bounds nothing."""
    names = [
        f"{PULSAR}-partition-{n}.{consumer}.numMsgsReceived" for n, consumer in ((0, "d842f"), (1, "a1"), (1, "b2"))
    ]
    plain = f"{PULSAR}.660d2.numMsgsReceived"
    assert metrics.wanted_source_metrics([*names, plain]) == names
    source = _source(*((name, _all(7)) for name in names))
    assert (source.splits, source.has_broker_offsets) == (2, False)


def test_partitions_of_another_system_are_told_from_those_of_kafka() -> None:
    """The topology has their number, and that no broker of the policy knows them."""
    job = topology.job(recorded("job"))
    (kafka,) = job.sources
    for names, count, known in (
        ([f"{SHARD}.{n}.millisBehindLatest" for n in "ab"], 2, False),
        ([f"Source__orders.KafkaSourceReader.topic.t.partition.{n}.currentOffset" for n in range(3)], 3, None),
        (["Source__files.numRecordsIn"], None, None),
    ):
        readings = FlinkReadings(job=job, sources={kafka.id: _source(*((name, _all(1)) for name in names))})
        graph = scrape_of(readings).topology
        assert graph is not None
        operator = graph.operator("Source: orders")
        assert (operator.source_partitions, operator.has_broker_offsets) == (count, known)


def test_a_source_of_change_data_reports_ages_and_idle_time() -> None:
    """Of Flink's standard metrics (FLIP-33) the longest lag counts, and the shortest idle time: one subtask of two, which
    reads the binary log, is enough for the source to have records. -1 is a lag without records."""
    prefix = "Source__MySQL_Source"
    source = _source(
        (f"{prefix}.currentFetchEventTimeLag", {"min": -1, "max": 1250, "sum": 1249}),
        (f"{prefix}.watermarkLag", {"min": 100, "max": 3000, "sum": 3100}),
        (f"{prefix}.sourceIdleTime", {"min": 0, "max": 86_000, "sum": 86_000}),
        vertex="Source: MySQL Source -> Sink: Writer",
    )
    assert (source.fetch_lag_seconds, source.watermark_lag_seconds, source.idle_seconds) == (1.25, 3.0, 0.0)
    undefined = _source((f"{prefix}.currentFetchEventTimeLag", _all(-1)))
    assert undefined.fetch_lag_seconds is None


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"min": 5, "max": 7, "sum": 12}, ""),
        ({"min": -5, "max": -5, "sum": -5}, "are negative or not a number"),
        ({"min": -1, "max": 40, "sum": 39}, "are negative or not a number"),
        ({"min": "NaN", "max": "NaN", "sum": "NaN"}, "are negative or not a number"),
        ({"min": 0, "max": "Infinity", "sum": "Infinity"}, "are negative or not a number"),
        ({"min": 0, "max": 1e30, "sum": 1e30}, "are negative or not a number"),
    ],
)
def test_waiting_records_that_are_no_number_of_records_are_refused(values: dict[str, Any], refused: str) -> None:
    """Also if one subtask of several reports such a number: the sum of the others is not the whole."""
    source = _source(("Source__orders.pendingRecords", values))
    assert source.pending_refused == refused
    assert source.pending_records == (None if refused else 12)


@pytest.mark.parametrize(
    ("vertex", "operator", "own"),
    [
        ("Source: orders", "Source__orders", True),
        ("Source: orders[1] -> Calc[2]", "Source__orders[1]", True),
        ("Source: a.b, c -> map", "Source__a_b__c", True),
        ("Source: " + "x" * 100, ("Source__" + "x" * 100)[:80], True),
        ("Source: orders", "Source__payments", False),
    ],
)
def test_waiting_records_of_another_source_are_refused(vertex: str, operator: str, own: bool) -> None:
    """A metric has its operator's name, of which the vertex's is made; Flink cuts the former to 80 characters."""
    source = _source((f"{operator}.pendingRecords", _all(5)), vertex=vertex)
    assert source.pending_records == (5 if own else None)
    assert source.pending_refused == ("" if own else f"are those of another source, {operator}")


def test_waiting_records_of_two_sources_in_one_vertex_are_added() -> None:
    """Flink chains the sources of an operator with several inputs into its vertex."""
    both = (("Source__a.pendingRecords", _all(5)), ("Source__b.pendingRecords", _all(7)))
    assert _source(*both, vertex="join [Source: a, Source: b]").pending_records == 12
    only_own = _source(*both, vertex="Source: a")
    assert (only_own.pending_records, only_own.pending_refused) == (5, "")


async def test_a_refused_number_is_a_problem_of_the_scrape_and_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """-3 waiting records: the reading says why they are unknown, the problem where they were read, and all else counts."""
    monkeypatch.setattr(flink_adapter, "GATHER_SECONDS", 0.0)
    cluster = MemoryFlink(FakeClock())
    cluster.process(0, 10)
    fake = FakeFlink(cluster)
    path = f"/jobs/{JOB_ID}/vertices/{SOURCE}/subtasks/metrics"
    listed = {"busyTimeMsPerSecond": 500, "backPressuredTimeMsPerSecond": 0, "Source__orders.pendingRecords": -3}

    def answer(request: httpx.Request) -> httpx.Response:
        wanted = (request.url.params.get("get") or ",".join(listed)).split(",")
        return httpx.Response(200, content=json.dumps([{"id": name, **_all(listed[name])} for name in wanted]))

    fake.broken[path] = answer
    target = policy(url="http://jobmanager:8081", job="orders").subject.flink
    flink = FlinkCollector(target, 1.0, transport=fake.transport)
    scrape = await flink.scrape()
    await flink.close()
    reading = next(o for o in scrape.operators if o.operator == "Source: orders")
    assert isinstance(reading, OperatorReading)
    assert (reading.pending_records, reading.pending_refused) == (None, "are negative or not a number")
    assert reading.busy_share_mean == 0.5
    (problem,) = scrape.problems
    assert (problem.where, problem.what) == (f"vertex {SOURCE} pendingRecords", "are negative or not a number")


def test_records_of_two_sources_in_one_vertex_are_added() -> None:
    """Flink chains the sources of an operator with several inputs into its vertex: what is taken in is of both, as what
    waits is. One that counts only what it sends is counted by that."""
    source = _source(
        ("Source__a.numRecordsIn", _all(0)),
        ("Source__a.numRecordsOut", _all(500)),
        ("Source__a.pendingRecords", _all(10)),
        ("Source__b.numRecordsIn", _all(40)),
        ("Source__b.numRecordsOut", _all(40)),
        ("Source__b.pendingRecords", _all(10)),
    )
    assert source.records_in == 540
    assert source.pending_records == 20


def test_a_source_that_counts_batches_is_counted_by_what_it_sends() -> None:
    """Flink's reader counts what it fetches, which is a batch of change events for Flink CDC and of rows for Paimon
    (github.com/apache/paimon/pull/3533): two a second at any load, so that no demand would follow from them."""
    source = _source(
        ("Source__MySQL_Source.numRecordsIn", _all(12)), ("Source__MySQL_Source.numRecordsOut", _all(24_000))
    )
    assert source.records_in == 24_000
    kafka = _source(
        ("Source__o.numRecordsIn", _all(12)),
        ("Source__o.numRecordsOut", _all(24_000)),
        ("Source__o.KafkaSourceReader.topic.t.partition.0.currentOffset", _all(11)),
    )
    assert kafka.records_in == 12
    pending = _source(
        ("Source__o.numRecordsIn", _all(12)),
        ("Source__o.numRecordsOut", _all(24)),
        ("Source__o.pendingRecords", _all(3)),
    )
    assert pending.records_in == 12


def test_a_shard_that_was_not_read_yet_does_not_look_like_a_source_without_ages() -> None:
    """-1 of one shard: nothing is known of what waits there, so that it is neither 0 nor is throughput the demand."""
    shard = "Source__clicks.KinesisStreamSource.stream.clicks.shardId"
    source = _source((f"{shard}.a.millisBehindLatest", _all(100)), (f"{shard}.b.millisBehindLatest", _all(-1)))
    assert (source.behind_seconds, source.pending_refused != "") == (None, True)


def test_the_shortest_age_of_the_shards_is_read_too() -> None:
    """It shows whether one shard is slow or the source."""
    shard = "Source__clicks.KinesisStreamSource.stream.clicks.shardId"
    source = _source((f"{shard}.a.millisBehindLatest", _all(100)), (f"{shard}.b.millisBehindLatest", _all(7000)))
    assert (source.behind_seconds, source.behind_shortest_seconds) == (7.0, 0.1)
