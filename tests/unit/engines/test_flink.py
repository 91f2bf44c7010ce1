"""Flink's answers as they are read: each trap of the reference, and what a hostile or broken cluster may send."""

import copy
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.flink import metrics, rescale, topology
from engines.flink.health import health_of
from engines.flink.rest import reason
from engines.flink.values import Unreadable, flink_seconds
from tests.unit.monitor.builders import recorded

SOURCE, PARSE, ENRICH, AGGREGATE, SINK = (vertex["id"] for vertex in recorded("job")["vertices"])


def changed(name: str, change: Callable[[Any], Any]) -> Any:
    """A recorded answer with something else in it."""
    document = copy.deepcopy(recorded(name))
    change(document)
    return document


# --- the job


def test_a_recorded_job_is_read_whole() -> None:
    """Graph, state, clocks and counters of the sample job."""
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


def test_a_first_call_s_zeros_are_no_readings() -> None:
    """Right after a start Flink shows zeros and says by its `complete` flags that they mean nothing."""

    def incomplete(document: Any) -> None:
        document["vertices"][1]["metrics"]["read-records-complete"] = False

    job = topology.job(changed("job", incomplete))
    assert [v.complete for v in job.vertices] == [True, False, True, True, True]


def test_a_missing_flag_counts_as_incomplete() -> None:
    """What does not say that it is complete is not."""
    job = topology.job(changed("job", lambda d: d["vertices"][0].pop("metrics")))
    assert not job.vertices[0].complete
    assert job.vertices[0].write_records is None
    assert job.vertices[0].busy_ms is None


@pytest.mark.parametrize("value", ["NaN", math.nan, None, "soon", -1, True, [], 2**200, 1.1e18, "1e306", "9" * 5000])
def test_a_time_that_is_no_number_is_unknown(value: Any) -> None:
    """Legacy sources answer NaN; and unknown is never 0."""

    def set_busy(document: Any) -> None:
        document["vertices"][0]["metrics"]["accumulated-busy-time"] = value

    assert topology.job(changed("job", set_busy)).vertices[0].busy_ms is None


def test_a_job_runs_only_when_all_its_tasks_do() -> None:
    """RUNNING is said as soon as the first task is deployed."""

    def deploying(document: Any) -> None:
        document["vertices"][2]["tasks"].update({"RUNNING": 0, "INITIALIZING": 1})

    assert not topology.job(changed("job", deploying)).all_running


def test_finished_tasks_do_not_hold_a_job_up() -> None:
    """A bounded source ends while the rest goes on."""

    def finished(document: Any) -> None:
        document["vertices"][0]["tasks"].update({"RUNNING": 0, "FINISHED": 1})

    assert topology.job(changed("job", finished)).all_running


def test_a_restarting_job_does_not_run() -> None:
    """Its vertices may still be shown with tasks."""
    assert not topology.job(changed("job", lambda d: d.update(state="RESTARTING"))).all_running


def test_names_are_unique_in_topological_order() -> None:
    """Two vertices called `map`, and one that already has the other's new name."""

    def rename(document: Any) -> None:
        for vertex, name in zip(document["vertices"], ("map", "map #2", "map", "map", "sink"), strict=True):
            vertex["name"] = name

    names = topology.job(changed("job", rename)).names()
    assert list(names.values()) == ["map", "map #2", "map #3", "map #4", "sink"]


def test_a_vertex_without_inputs_is_a_source_whatever_its_name() -> None:
    """Legacy sources are not called `Source: …`; only the plan tells."""
    job = topology.job(changed("job", lambda d: d["vertices"][0].update(name="legacy-reader")))
    assert [job.names()[s.id] for s in job.sources] == ["legacy-reader"]


def test_order_is_topological_whatever_order_flink_lists() -> None:
    """Readers of the graph rely on sources coming first."""
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
    """Nothing is guessed about the graph: the error names call and field."""
    with pytest.raises(Unreadable) as refused:
        topology.job(changed("job", change))
    assert refused.value.where == place


def test_a_graph_beyond_reason_is_refused() -> None:
    """A thousand operators is what an observation may hold."""
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
def test_a_time_that_never_was_is_unknown(value: Any) -> None:
    """Flink writes 0 or -1 for what has not happened: that is no instant in 1970."""
    job = topology.job(changed("job", lambda d: d["timestamps"].update(RUNNING=value)))
    assert job.running_since is None


# --- finding a job


def entry(job_id: str, name: str = "orders", state: str = "RUNNING", started: int = 1_000) -> dict[str, Any]:
    return {"jid": job_id, "name": name, "state": state, "start-time": started}


def found(wanted: str, *entries: Any) -> tuple[str | None, str | None]:
    job, odd = topology.find_job({"jobs": list(entries)}, wanted)
    return (job.id if job else None), odd


def test_a_resubmitted_job_is_found_again_by_name() -> None:
    """The old one has ended, however recently."""
    assert found("orders", entry("old", state="CANCELED", started=2_000), entry("new", started=1_000)) == ("new", None)


def test_a_job_that_has_ended_is_better_than_none() -> None:
    """Its end is worth saying; the newest counts."""
    ended = [entry("a", state="FAILED", started=1_000), entry("b", state="FINISHED", started=2_000)]
    assert found("orders", *ended) == ("b", None)


def test_two_running_jobs_of_one_name_are_said_and_the_newest_is_meant() -> None:
    """Somebody forgot to cancel the old one: its numbers would be taken for the new one's."""
    job, odd = found("orders", entry("old", started=1_000), entry("new", started=2_000))
    assert job == "new"
    assert odd is not None and "old" in odd and "the newest, new, is meant" in odd


def test_a_job_is_found_by_id() -> None:
    """An id stays with its job even if another takes its name."""
    assert found("id-2", entry("id-1"), entry("id-2")) == ("id-2", None)


def test_a_line_that_may_be_of_the_job_is_no_proof_that_it_is_gone() -> None:
    """Its id cannot be part of a path: nothing is known of the job, and that is not its end."""
    with pytest.raises(Unreadable, match=r"jobs\.1\.jid"):
        found("orders", entry("a", name="other"), entry("../../x"))


def test_no_job_is_no_error() -> None:
    """The caller says so."""
    assert found("orders", entry("a", name="other")) == (None, None)


def test_a_line_of_somebody_else_s_job_may_be_anything() -> None:
    """A strange neighbour in a session cluster makes nobody blind; an id that would change a path is none."""
    strange = [None, "job", {}, {"jid": None}, entry("x/../y"), {"jid": "a", "name": "orders", "state": None}]
    assert found("orders", *strange, entry("mine")) == ("mine", None)


@pytest.mark.parametrize("document", [None, [], {}, {"jobs": None}, {"jobs": "none"}, "jobs"])
def test_an_overview_that_is_none_is_refused(document: Any) -> None:
    """That the job is gone must not be concluded from it."""
    with pytest.raises(Unreadable, match="/jobs/overview"):
        topology.find_job(document, "orders")


# --- metrics


def test_a_source_s_position_is_one_past_the_last_record_it_sent() -> None:
    """currentOffset is the last record's offset: in the recording the positions sum up to all records read."""
    told = metrics.source_offsets(metrics.aggregates(recorded("source_metrics")))
    positions = [position for position in told.positions.values() if position is not None]
    assert set(told.positions) == {("m_orders", n) for n in range(4)}
    assert sum(positions) == told.records_in
    assert told.pending_records == 0


def test_before_the_first_record_nothing_is_known() -> None:
    """-1 is no position; pendingRecords does not exist yet, which is not 0."""
    name = "Source__orders.KafkaSourceReader.topic.orders.partition.0.currentOffset"
    told = metrics.source_offsets(metrics.aggregates([{"id": name, "max": -1.0}]))
    assert told.positions == {("orders", 0): None}
    assert told.pending_records is None
    assert told.records_in is None


def test_subtasks_that_do_not_read_a_partition_do_not_hide_the_one_that_does() -> None:
    """Each subtask has the metric once it was assigned the partition: the largest is the reader's."""
    name = "Source__orders.KafkaSourceReader.topic.orders.partition.7.currentOffset"
    told = metrics.source_offsets(metrics.aggregates([{"id": name, "min": -1.0, "max": 41.0}]))
    assert told.positions == {("orders", 7): 42}


def test_a_partition_read_from_two_clusters_has_no_position() -> None:
    """One topic name, two places: neither offset can be held against one log."""
    names = [f"Source__x.kafkaCluster.{c}.KafkaSourceReader.topic.t.partition.0.currentOffset" for c in "ab"]
    told = metrics.source_offsets(metrics.aggregates([{"id": name, "max": 5.0} for name in names]))
    assert told.positions == {("t", 0): None}


def test_what_a_source_sent_stands_in_for_what_it_read() -> None:
    """Some connectors do not count what they read."""
    told = metrics.source_offsets(metrics.aggregates([{"id": "Source__x.numRecordsOut", "sum": 12.0}]))
    assert told.records_in == 12


def test_only_listed_metrics_are_wanted() -> None:
    """One unknown name would make Flink answer with an empty list. Others' counters in the chain are not the source's."""
    wanted = metrics.wanted_source_metrics(metrics.metric_names(recorded("source_metric_names")))
    offsets = [f"Source__orders.KafkaSourceReader.topic.m_orders.partition.{n}.currentOffset" for n in range(4)]
    counters = ["Source__orders.numRecordsIn", "Source__orders.numRecordsOut", "Source__orders.pendingRecords"]
    assert sorted(wanted) == sorted([*offsets, *counters])
    assert metrics.wanted_source_metrics(["map.numRecordsIn", "Source__a.b.numRecordsIn", "numRecordsIn"]) == []


def test_values_come_as_texts_or_not_at_all() -> None:
    """Flink writes a metric's value as a text; what is no number is unknown."""
    document = [{"id": "numRestarts", "value": "3"}, {"id": "uptime", "value": "n/a"}, {"value": 1}, None]
    assert metrics.plain_metrics(document) == {"numRestarts": 3.0, "uptime": None}


# --- the rest


def test_recorded_checkpoints() -> None:
    """When the last one was complete, how long it took, how many there were."""
    facts = rescale.checkpoints(recorded("checkpoints"))
    assert facts.last_completed_at == datetime.fromtimestamp(1795243887.497, UTC)
    assert (facts.last_duration_seconds, facts.completed, facts.failed) == (0.163, 4, 1)
    assert rescale.checkpoint_interval_seconds(recorded("checkpoints_config")) == 10.0


def test_no_checkpoint_yet() -> None:
    """`latest.completed` is null, or there is no `latest`."""
    for document in ({"counts": {"completed": 0, "failed": 0}, "latest": {"completed": None}}, {}):
        facts = rescale.checkpoints(document)
        assert facts.last_completed_at is None
        assert facts.last_duration_seconds is None


def test_checkpointing_off_is_written_as_the_largest_long() -> None:
    """Anything else that is no number is an error, not `off`."""
    assert rescale.checkpoint_interval_seconds({"interval": 9223372036854775807}) is None
    with pytest.raises(Unreadable, match="interval"):
        rescale.checkpoint_interval_seconds({"interval": "often"})


def test_recorded_requirements() -> None:
    """Lower and upper bound by vertex."""
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
    """Set but unreadable is unknown; only what is not set has the default."""
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


def said(*errors: str) -> bytes:
    """An error as Flink writes it."""
    return json.dumps({"errors": list(errors)}).encode()


TOO_MUCH = "The newly requested parallelism 121 for the job vertex 9f3c exceeds its maximum parallelism 120"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (said(f"org.x.RestHandlerException: {TOO_MUCH}.\n\tat a.b(C.java:1)"), TOO_MUCH),
        (said("Internal server error.", NO_SUCH_JOB), "Could not find Flink job"),
        (said("Internal server error.", DEFAULT_SCHEDULER), "does not support changing the parallelism"),
        (said("x.YException: password is hunter2"), None),
        (said(TOO_MUCH.replace("9f3c", "hunter2")), None),
        (b"hunter2", None),
        (b"", None),
    ],
)
def test_only_known_reasons_are_repeated(body: bytes, expected: str | None) -> None:
    """Whoever writes a policy chooses the address that a refusal comes from, and reads the reason."""
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
    """Every place in a document."""
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


@given(st.data())
def test_whatever_is_wrong_is_refused_by_place_or_read_around(data: st.DataObject) -> None:
    """Any value anywhere in any answer replaced by anything: a typed value or `Unreadable`, never another error."""
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


def test_json_that_only_python_reads_is_no_number() -> None:
    """Python's reader accepts NaN and Infinity; they are unknown."""
    document = json.loads('[{"id": "a", "sum": NaN, "max": Infinity, "avg": 1.5}]')
    assert metrics.aggregates(document) == {"a": {"min": None, "max": None, "avg": 1.5, "sum": None}}


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
    """Every engine's states come down to four; a state of a later Flink is unknown."""
    assert health_of(state, all_running=all_running) == health
