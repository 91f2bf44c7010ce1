"""Sources that report neither offsets nor waiting records, and those that have finished."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.analyzer.story import Job, Loop
from weir_contracts import Analysis, Edge, Observation, Operator, OperatorReading, Topology

ORDERS, RULES = "Source: orders", "Source: rules"


def _seen(loop: Loop, seconds: float, edit: Callable[[Observation], Observation]) -> Analysis:
    last = None
    for _ in range(round(seconds / loop.job.interval)):
        loop.job.run_for(loop.job.interval)
        last = loop.see(edit(loop.job.observe()))
    assert last is not None
    return last


def _without_offsets(**changes: Any) -> Callable[[Observation], Observation]:
    """Return observations of a source whose partitions nobody knows, with other changes to its reading."""

    def edit(observation: Observation) -> Observation:
        source = observation.operators[0].model_copy(update=changes)
        return observation.model_copy(update={"partitions": [], "operators": [source, *observation.operators[1:]]})

    return edit


def test_a_source_of_files_or_change_data_brings_what_it_takes_in() -> None:
    """Flink's Delta source reports no `pendingRecords`, so that the operator's autoscaler leaves its job alone
    (github.com/delta-io/delta/issues/2740). It is 1 % busy and not held back: nothing waits."""
    analysis = _seen(Loop(), 60, _without_offsets())
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.05)
    assert analysis.arrival_rate.basis.startswith("throughput of a source that is 1% busy")
    assert analysis.arrival_rate.confidence <= 0.6
    assert analysis.lag_records.value == analysis.lag_seconds.value == 0
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert enrich.target_input_rate.value == pytest.approx(300, rel=0.05)
    assert not analysis.has("metric-missing")


def test_what_a_source_takes_in_is_a_lower_bound_while_it_is_held_back() -> None:
    """`enrich` can do 600 of 900 records/s, and the source waits for it: nobody knows how many more there are."""
    analysis = _seen(Loop(Job(rate=900)), 60, _without_offsets())
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(600, rel=0.05)
    assert analysis.lag_records.lower_bound == 0
    assert "backpressured" in analysis.arrival_rate.basis


def test_what_a_source_takes_in_is_a_lower_bound_while_its_busy_share_is_unknown() -> None:
    """Sources of the old interface report no busy time (FLINK-31326, github.com/apache/flink-kubernetes-operator/pull/546)."""
    unknown = dict.fromkeys(("busy_ms", "idle_ms", "busy_share_mean", "busy_share_max"))
    analysis = _seen(Loop(), 60, _without_offsets(**unknown))
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(300, rel=0.05)


def test_a_source_that_polls_and_is_always_busy_has_a_lower_bound() -> None:
    """Paimon's monitor source spent all its time busy with waiting (github.com/apache/paimon/pull/6396)."""
    loop = Loop()
    busy = {"busy_share_mean": 1.0, "busy_share_max": 1.0, "busy_ms": None, "idle_ms": None}
    analysis = _seen(loop, 60, _without_offsets(**busy))
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(300, rel=0.05)


def test_an_idle_source_without_pending_records_brings_nothing() -> None:
    """A Kafka source registers `pendingRecords` with its first record: on an empty topic it has none (FLINK-31299,
    github.com/apache/flink-kubernetes-operator/pull/542)."""
    analysis = _seen(Loop(Job(rate=0)), 60, _without_offsets())
    assert analysis.arrival_rate.value == 0
    assert analysis.lag_records.value == 0


def test_offsets_that_were_read_before_are_not_replaced_by_throughput() -> None:
    """The brokers are away for a while: nothing is known of what arrives meanwhile."""
    loop = Loop()
    loop.watch(60)
    analysis = _seen(loop, 60, _without_offsets())
    assert analysis.arrival_rate.value is None
    assert analysis.lag_records.value is None


def _with_finished_rules(observation: Observation) -> Observation:
    """A second, bounded source has read its two rules and has finished, as Flink's final readings show it: no busy time, no
    metrics, no partitions."""
    rules = OperatorReading(operator=RULES, parallelism=1, finished=True, records_in=2, records_out=2, idle_ms=0.0)
    topology = observation.topology
    assert topology is not None
    joined = Topology(
        operators=[topology.operators[0], Operator(name=RULES, id="f" * 32), *topology.operators[1:]],
        edges=[*topology.edges, Edge(source=RULES, target="enrich")],
    )
    readings = observation.operators
    return observation.model_copy(
        update={"topology": joined, "operators": [readings[0], rules, *readings[1:]] if readings else []}
    )


def test_a_finished_source_brings_nothing_and_lags_by_nothing() -> None:
    """Since Flink 1.14 (FLIP-147) a bounded source may finish while the rest of the job goes on: arrivals, lag and the
    target of what it feeds are those of the other source."""
    analysis = _seen(Loop(), 60, _with_finished_rules)
    rules = next(source for source in analysis.sources if source.operator == RULES)
    assert rules.arrival_rate.value == rules.lag_records.value == rules.lag_seconds.value == rules.lag_growth.value == 0
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.02)
    assert analysis.lag_records.value is not None
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert enrich.target_input_rate.value == pytest.approx(300, rel=0.02)
    assert not analysis.has("metric-missing")
    reading = analysis.operator(RULES)
    assert reading is not None
    assert reading.utilization.value == reading.input_rate.value == 0
