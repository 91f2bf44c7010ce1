"""Parsing of Flink's responses: each pitfall of the reference, and responses of a hostile or broken cluster."""

import copy
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engines.flink.fake_rest import recorded
from weir_engines.flink import metrics, rescale, topology
from weir_engines.flink.readings import FlinkReadings, scrape_of
from weir_engines.flink.rest import Unreadable, flink_seconds, reason
from weir_engines.flink.topology import health_of

SOURCE, PARSE, ENRICH, AGGREGATE, SINK = (vertex["id"] for vertex in recorded("job")["vertices"])


def changed(name: str, change: Callable[[Any], Any]) -> Any:
    """Return a recorded response after `change`."""
    document = copy.deepcopy(recorded(name))
    change(document)
    return document


# --- the job


def test_a_recorded_job_is_read() -> None:
    """The sample job has its graph, state, times and counters."""
    job = topology.job(recorded("job"))
    assert [job.names()[v.id] for v in job.vertices] == [
        "Source: orders",
        "parse",
        "enrich",
        "aggregate",
        "sink: Writer",
    ]
    assert [(link.source, link.target, link.ship_strategy) for link in job.links] == [
        (SOURCE, PARSE, "REBALANCE"),
        (PARSE, ENRICH, "HASH"),
        (ENRICH, AGGREGATE, "HASH"),
        (AGGREGATE, SINK, "REBALANCE"),
    ]
    assert job.all_running
    assert [source.id for source in job.sources] == [SOURCE]
    assert job.running_since is not None and job.now is not None and job.now > job.running_since
    assert {v.max_parallelism for v in job.vertices} == {120}
    assert len({v.slot_sharing_group for v in job.vertices}) == 1
    source, parse = job.vertices[0], job.vertices[1]
    assert source.complete and parse.complete
    assert source.write_records == source.read_records == 649061
    assert parse.busy_ms is not None and parse.busy_ms > 0


def test_zeros_of_the_first_call_are_incomplete() -> None:
    """Right after a start Flink's counters are 0, and its `complete` flags false."""

    def incomplete(document: Any) -> None:
        document["vertices"][1]["metrics"]["read-records-complete"] = False

    job = topology.job(changed("job", incomplete))
    assert [v.complete for v in job.vertices] == [True, False, True, True, True]


def test_a_missing_flag_counts_as_incomplete() -> None:
    """A vertex without metrics is not complete, and its counters are unknown."""
    job = topology.job(changed("job", lambda d: d["vertices"][0].pop("metrics")))
    assert not job.vertices[0].complete
    assert job.vertices[0].write_records is None
    assert job.vertices[0].busy_ms is None


@pytest.mark.parametrize("value", ["NaN", math.nan, None, "soon", -1, True, [], 2**200, 1.1e18, "1e306", "9" * 5000])
def test_a_time_that_is_not_a_number_is_unknown(value: Any) -> None:
    """Legacy sources report NaN; unknown is never 0."""

    def set_busy(document: Any) -> None:
        document["vertices"][0]["metrics"]["accumulated-busy-time"] = value

    assert topology.job(changed("job", set_busy)).vertices[0].busy_ms is None


def test_a_job_runs_only_when_all_its_tasks_do() -> None:
    """Flink reports RUNNING as soon as the first task is deployed."""

    def deploying(document: Any) -> None:
        document["vertices"][2]["tasks"].update({"RUNNING": 0, "INITIALIZING": 1})

    assert not topology.job(changed("job", deploying)).all_running


def test_finished_tasks_count_as_running() -> None:
    """A bounded source ends while the other vertices continue."""

    def finished(document: Any) -> None:
        document["vertices"][0]["tasks"].update({"RUNNING": 0, "FINISHED": 1})

    job = topology.job(changed("job", finished))
    assert job.all_running
    assert [vertex.finished for vertex in job.vertices] == [True, False, False, False, False]
    assert [reading.finished for reading in scrape_of(FlinkReadings(job=job)).operators] == [True, *[False] * 4]


def test_a_vertex_of_which_some_tasks_have_finished_goes_on() -> None:
    """One of two subtasks of a bounded source has read its split: the other still brings records."""

    def partly(document: Any) -> None:
        document["vertices"][0].update(parallelism=2)
        document["vertices"][0]["tasks"].update({"RUNNING": 1, "FINISHED": 1})

    job = topology.job(changed("job", partly))
    assert job.all_running
    assert not job.vertices[0].finished


def test_a_restarting_job_does_not_run() -> None:
    """Flink may still list tasks of its vertices."""
    assert not topology.job(changed("job", lambda d: d.update(state="RESTARTING"))).all_running


def test_names_are_unique_in_topological_order() -> None:
    """Two vertices are called `map`, and one already has the suffixed name of another."""

    def rename(document: Any) -> None:
        for vertex, name in zip(document["vertices"], ("map", "map #2", "map", "map", "sink"), strict=True):
            vertex["name"] = name

    names = topology.job(changed("job", rename)).names()
    assert list(names.values()) == ["map", "map #2", "map #3", "map #4", "sink"]


def test_names_of_a_large_job_share_a_budget() -> None:
    """Each message names each operator several times: 1,000 names of 390 characters would be megabytes every interval.
    They stay unique."""
    vertex = recorded("job")["vertices"][0]
    vertices = [{**vertex, "id": f"{i:032x}", "name": "Source: " + "x" * 382} for i in range(1000)]
    nodes = [{"id": each["id"], "inputs": []} for each in vertices]
    document = changed("job", lambda d: d.update(vertices=vertices, plan={**d["plan"], "nodes": nodes}))
    names = set(topology.job(document).names().values())
    assert len(names) == 1000
    assert sum(map(len, names)) < 110_000


def test_a_vertex_without_inputs_is_a_source_whatever_its_name() -> None:
    """Names of legacy sources do not begin with `Source: `; only the plan shows that they have no inputs."""
    job = topology.job(changed("job", lambda d: d["vertices"][0].update(name="legacy-reader")))
    assert [job.names()[s.id] for s in job.sources] == ["legacy-reader"]


def test_order_is_topological_whatever_order_flink_lists() -> None:
    """Readers of the graph rely on sources being first."""
    job = topology.job(changed("job", lambda d: d["vertices"].reverse()))
    assert [v.id for v in job.vertices] == [SOURCE, PARSE, ENRICH, AGGREGATE, SINK]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d.update(vertices=None), "/jobs/:id vertices"),
        (lambda d: d.pop("plan"), "/jobs/:id plan"),
        (lambda d: d["plan"].update(nodes={}), "/jobs/:id plan.nodes"),
        (lambda d: d["vertices"][0].update(parallelism=0), "/jobs/:id vertices.0.parallelism"),
        (lambda d: d["vertices"][0].update(parallelism=10**9), "/jobs/:id vertices.0.parallelism"),
        (lambda d: d["vertices"][0].update(id="../../etc"), "/jobs/:id vertices.0.id"),
        (lambda d: d["vertices"].append("vertex"), "/jobs/:id vertices.5"),
        (lambda d: d["plan"]["nodes"][1]["inputs"][0].update(id="nobody"), "/jobs/:id plan.nodes.1.inputs.0"),
        (lambda d: d["plan"]["nodes"][0].update(inputs=[{"id": SINK}]), "/jobs/:id plan"),
        (lambda d: d["plan"]["nodes"].pop(), "/jobs/:id plan.nodes"),
        (lambda d: d.update(jid=5), "/jobs/:id jid"),
        (lambda d: d.update(state=""), "/jobs/:id state"),
        (lambda d: d.update(timestamps=[1]), "/jobs/:id timestamps"),
    ],
)
def test_an_answer_of_the_wrong_form_is_refused_by_place(change: Callable[[Any], Any], place: str) -> None:
    """The graph is never guessed: the error names call and field."""
    with pytest.raises(Unreadable) as refused:
        topology.job(changed("job", change))
    assert refused.value.where == place


def test_a_graph_that_is_too_large_is_refused() -> None:
    """An observation has at most a thousand operators."""
    vertices = [{"id": f"v{n}", "name": "map", "parallelism": 1} for n in range(1001)]
    document = {
        "jid": "a",
        "name": "n",
        "state": "RUNNING",
        "vertices": vertices,
        "plan": {"nodes": [{"id": v["id"]} for v in vertices]},
    }
    with pytest.raises(Unreadable, match="too large"):
        topology.job(document)


@pytest.mark.parametrize("value", [0, -1, None, "never", 10**30, math.inf])
def test_the_time_of_an_event_that_did_not_happen_is_unknown(value: Any) -> None:
    """Flink writes 0 or -1 for it, which is not an instant in 1970."""
    job = topology.job(changed("job", lambda d: d["timestamps"].update(RUNNING=value)))
    assert job.running_since is None


# --- finding a job


def entry(job_id: str, name: str = "orders", state: str = "RUNNING", started: int = 1_000) -> dict[str, Any]:
    return {"jid": job_id, "name": name, "state": state, "start-time": started}


def found(wanted: str, *entries: Any) -> tuple[str | None, str | None]:
    job, warning = topology.find_job({"jobs": list(entries)}, wanted)
    return (job.id if job else None), warning


def test_a_resubmitted_job_is_found_again_by_name() -> None:
    """The old job has ended, even if it started later."""
    assert found("orders", entry("old", state="CANCELED", started=2_000), entry("new", started=1_000)) == ("new", None)


def test_the_newest_ended_job_is_found_if_none_runs() -> None:
    """The user reads that it ended, not that it does not exist."""
    ended = [entry("a", state="FAILED", started=1_000), entry("b", state="FINISHED", started=2_000)]
    assert found("orders", *ended) == ("b", None)


def test_two_running_jobs_of_one_name_give_a_warning_and_the_newest_is_used() -> None:
    """The user forgot to cancel the old one, and must know which job the numbers are of."""
    job, warning = found("orders", entry("old", started=1_000), entry("new", started=2_000))
    assert job == "new"
    assert warning is not None and "old" in warning and "the newest, new, is used" in warning


def test_a_job_is_found_by_id() -> None:
    """An id identifies its job even if another job has the same name."""
    assert found("id-2", entry("id-1"), entry("id-2")) == ("id-2", None)


def test_an_unreadable_entry_of_the_job_does_not_mean_that_it_is_missing() -> None:
    """Its id cannot be part of a path: the state of the job is unknown."""
    with pytest.raises(Unreadable, match=r"jobs\.1\.jid"):
        found("orders", entry("a", name="other"), entry("../../x"))


def test_a_missing_job_is_not_an_error() -> None:
    """The caller reports it."""
    assert found("orders", entry("a", name="other")) == (None, None)


def test_an_entry_of_another_job_may_be_invalid() -> None:
    """Other users' jobs in a session cluster do not matter; an id that would change a path is invalid."""
    strange = [None, "job", {}, {"jid": None}, entry("x/../y"), {"jid": "a", "name": "orders", "state": None}]
    assert found("orders", *strange, entry("mine")) == ("mine", None)


@pytest.mark.parametrize("document", [None, [], {}, {"jobs": None}, {"jobs": "none"}, "jobs"])
def test_an_invalid_overview_is_refused(document: Any) -> None:
    """It must not be read as an overview without the job."""
    with pytest.raises(Unreadable, match="/jobs/overview"):
        topology.find_job(document, "orders")


# --- metrics


def test_the_position_of_a_source_is_one_past_its_last_record() -> None:
    """currentOffset is the offset of the last record: the positions of the recording add up to all records read."""
    source = metrics.source_offsets(metrics.aggregates(recorded("source_metrics")))
    positions = [position for position in source.positions.values() if position is not None]
    assert set(source.positions) == {("m_orders", n) for n in range(4)}
    assert sum(positions) == source.records_in
    assert source.pending_records == 0


def test_before_the_first_record_positions_are_unknown() -> None:
    """-1 is not a position, and the missing pendingRecords is not 0."""
    name = "Source__orders.KafkaSourceReader.topic.orders.partition.0.currentOffset"
    source = metrics.source_offsets(metrics.aggregates([{"id": name, "max": -1.0}]))
    assert source.positions == {("orders", 0): None}
    assert source.pending_records is None
    assert source.records_in is None


def test_the_position_is_of_the_subtask_that_reads_the_partition() -> None:
    """Every subtask that was ever assigned the partition has the metric: the maximum is the reader's."""
    name = "Source__orders.KafkaSourceReader.topic.orders.partition.7.currentOffset"
    source = metrics.source_offsets(metrics.aggregates([{"id": name, "min": -1.0, "max": 41.0}]))
    assert source.positions == {("orders", 7): 42}


def test_a_partition_read_from_two_clusters_has_no_position() -> None:
    """Two partitions have the same topic name: neither offset can be compared with one log."""
    names = [f"Source__x.kafkaCluster.{c}.KafkaSourceReader.topic.t.partition.0.currentOffset" for c in "ab"]
    source = metrics.source_offsets(metrics.aggregates([{"id": name, "max": 5.0} for name in names]))
    assert source.positions == {("t", 0): None}
    assert source.splits == 2


def test_splits_that_a_dynamic_source_has_given_up_do_not_count() -> None:
    """The offsets of a removed cluster stay among the metrics; the source's count of active splits does not include them
    (FLINK-39981, github.com/apache/flink-kubernetes-operator/pull/1153)."""
    names = [
        f"Source__x.kafkaCluster.{c}.KafkaSourceReader.topic.t.partition.{n}.currentOffset"
        for c in "ab"
        for n in (0, 1)
    ]
    active = "Source__x.DynamicKafkaSource.activeSplitCount"
    assert metrics.wanted_source_metrics([*names, active]) == [*names, active]
    found = [{"id": name, "max": 5.0} for name in names]
    assert metrics.source_offsets(metrics.aggregates(found)).splits == 4
    assert metrics.source_offsets(metrics.aggregates([*found, {"id": active, "sum": 2.0}])).splits == 2


def test_records_sent_replace_missing_records_read() -> None:
    """Some connectors do not count the records that they read."""
    sent = {"id": "Source__x.numRecordsOut", "sum": 12.0}
    source = metrics.source_offsets(metrics.aggregates([sent]))
    assert source.records_in == 12
    uncounted = {"id": "Source__x.numRecordsIn", "sum": 0.0}
    assert metrics.source_offsets(metrics.aggregates([sent, uncounted])).records_in == 12
    assert metrics.source_offsets(metrics.aggregates([uncounted])).records_in == 0


def test_only_listed_metrics_are_requested() -> None:
    """An unlisted name makes Flink's response empty. Counters of chained operators are not the source's."""
    wanted = metrics.wanted_source_metrics(metrics.metric_names(recorded("source_metric_names")))
    offsets = [f"Source__orders.KafkaSourceReader.topic.m_orders.partition.{n}.currentOffset" for n in range(4)]
    own = ("numRecordsIn", "numRecordsOut", "pendingRecords", "sourceIdleTime")
    assert sorted(wanted) == sorted([*offsets, *(f"Source__orders.{name}" for name in own)])
    assert metrics.wanted_source_metrics(["map.numRecordsIn", "Source__a.b.numRecordsIn", "numRecordsIn"]) == []


def test_values_are_texts_or_missing() -> None:
    """Flink writes the value of a metric as a text; a text that is not a number is unknown."""
    document = [{"id": "numRestarts", "value": "3"}, {"id": "uptime", "value": "n/a"}, {"value": 1}, None]
    assert metrics.plain_metrics(document) == {"numRestarts": 3.0, "uptime": None}


# --- the rest


def test_recorded_checkpoints() -> None:
    """They have completion time and duration of the last one, and numbers of completed and failed ones."""
    found = rescale.checkpoints(recorded("checkpoints"))
    assert found.last_completed_at == datetime.fromtimestamp(1795243887.497, UTC)
    assert (found.last_duration_seconds, found.completed, found.failed) == (0.163, 4, 1)
    assert rescale.checkpoint_interval_seconds(recorded("checkpoints_config")) == 10.0


def test_no_checkpoint_yet() -> None:
    """`latest.completed` is null, or there is no `latest`."""
    for document in ({"counts": {"completed": 0, "failed": 0}, "latest": {"completed": None}}, {}):
        found = rescale.checkpoints(document)
        assert found.last_completed_at is None
        assert found.last_duration_seconds is None


def test_checkpointing_off_is_the_maximum_of_a_long() -> None:
    """Any other value that is not a number is an error, not `off`."""
    assert rescale.checkpoint_interval_seconds({"interval": 9223372036854775807}) is None
    with pytest.raises(Unreadable, match="interval"):
        rescale.checkpoint_interval_seconds({"interval": "often"})


def test_recorded_requirements() -> None:
    """They have lower and upper bounds by vertex."""
    assert rescale.requirements(recorded("resource_requirements"))[ENRICH] == (1, 1)


def test_a_bound_that_is_not_set_is_unknown() -> None:
    """Flink accepts and returns -1."""
    document = {"a": {"parallelism": {"lowerBound": -1, "upperBound": 4}}, "b": {"parallelism": {"upperBound": 10**9}}}
    assert rescale.requirements(document) == {"a": (None, 4), "b": (None, None)}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30 s", 30.0),
        ("1min", 60.0),
        ("500ms", 0.5),
        ("2 hours", 7200.0),
        ("1 day", 86400.0),
        ("1500", 1.5),
        ("PT1M30S", 90.0),
        ("pt0.5s", 0.5),
        ("'10 s'", 10.0),
        ("1 us", 1e-6),
        ("soon", None),
        ("", None),
        ("PT", None),
        ("10 parsecs", None),
        ("366 d", 366 * 86400.0),
        ("367 d", None),
        ("999999999999999999 d", None),
        ("pt999999999999h", None),
        ("-5 s", None),
    ],
)
def test_durations_as_flink_writes_them(written: str, seconds: float | None) -> None:
    """A set but unreadable duration is unknown; only an unset one has the default."""
    assert flink_seconds(written, 7.0) == seconds
    assert flink_seconds(None, 7.0) == 7.0


# --- refusals

DEFAULT_SCHEDULER = (
    "x.UnsupportedOperationException: The DefaultScheduler does not support changing the parallelism "
    "without a job restart."
)
NO_SUCH_JOB = (
    "<Exception on server side:\na.b.FlinkJobNotFoundException: Could not find Flink job (x)\n\tat y\n"
    "End of exception on server side>"
)


def refusal(*errors: str) -> bytes:
    """Return the body of an error response of Flink."""
    return json.dumps({"errors": list(errors)}).encode()


TOO_MUCH = "The newly requested parallelism 121 for the job vertex 9f3c exceeds its maximum parallelism 120"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (refusal(f"org.x.RestHandlerException: {TOO_MUCH}.\n\tat a.b(C.java:1)"), TOO_MUCH),
        (refusal("Internal server error.", NO_SUCH_JOB), "Could not find Flink job"),
        (refusal("Internal server error.", DEFAULT_SCHEDULER), "does not support changing the parallelism"),
        (refusal("x.YException: password is hunter2"), None),
        (refusal(TOO_MUCH.replace("9f3c", "hunter2")), None),
        (b"hunter2", None),
        (b"", None),
    ],
)
def test_only_known_reasons_are_passed_on(body: bytes, expected: str | None) -> None:
    """The author of a policy chooses the address that a refusal comes from, and reads the reason."""
    assert reason(body) == expected


# --- hostile answers

PARSERS: dict[str, Callable[[Any], Any]] = {
    "job": topology.job,
    "jobs_overview": lambda document: topology.find_job(document, "orders"),
    "checkpoints": rescale.checkpoints,
    "checkpoints_config": rescale.checkpoint_interval_seconds,
    "resource_requirements": rescale.requirements,
    "source_metrics": lambda document: metrics.source_offsets(metrics.aggregates(document)),
    "source_metric_names": metrics.metric_names,
    "job_metrics": metrics.plain_metrics,
    "jobmanager_config": rescale.configuration,
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.just("x" * 3000),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document."""
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


@given(st.data())
def test_any_invalid_value_is_refused_with_its_place_or_unknown(data: st.DataObject) -> None:
    """A response with any value replaced by any other gives a typed value or `Unreadable`, never another error."""
    name = data.draw(st.sampled_from(sorted(PARSERS)))
    document = recorded(name)
    path = data.draw(st.sampled_from(places(document)))
    junk = data.draw(JUNK)
    if not path:
        document = junk
    else:
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = junk
    try:
        PARSERS[name](document)
    except Unreadable as refused:
        assert refused.where and refused.what


def test_nan_and_infinity_are_unknown() -> None:
    """Python's JSON parser accepts them, although JSON does not have them."""
    document = json.loads('[{"id": "a", "sum": NaN, "max": Infinity, "avg": 1.5}]')
    assert metrics.aggregates(document) == {"a": {"max": None, "avg": 1.5, "sum": None}}


@pytest.mark.parametrize(
    ("state", "all_running", "health"),
    [
        ("RUNNING", True, "running"),
        ("RUNNING", False, "restarting"),
        ("INITIALIZING", False, "restarting"),
        ("FAILING", False, "restarting"),
        ("FAILED", False, "failed"),
        ("CANCELLING", True, "ended"),
        ("SUSPENDED", False, "ended"),
        ("PAUSED", True, None),
    ],
)
def test_a_state_has_a_health(state: str, all_running: bool, health: str | None) -> None:
    """Each state of Flink maps to one of four; a state of a later version is unknown."""
    assert health_of(state, all_running=all_running) == health
