"""Sources that report neither offsets nor waiting records, and those that have finished."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.analyzer.story import Job, Loop
from weir_contracts import Analysis, Edge, Observation, Operator, OperatorReading, Topology, policy_of

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


def test_what_a_source_takes_in_to_catch_up_is_no_demand() -> None:
    """600 of 900 records/s, and after a rescale to 1,200/s the backlog first: 1,200 records/s are no lower bound of what
    arrives. Then they are 900."""
    loop = Loop(Job(rate=900))
    _seen(loop, 60, _without_offsets())
    loop.job.restart({"enrich": 2})
    behind = _seen(loop, 14, _without_offsets())
    taken = behind.operator(ORDERS)
    assert taken is not None
    assert taken.input_rate.value == pytest.approx(1200, rel=0.1)
    assert behind.arrival_rate.value is None
    assert behind.arrival_rate.lower_bound == pytest.approx(600, rel=0.05)
    assert behind.arrival_rate.basis.startswith("until this run is")
    assert _seen(loop, 120, _without_offsets()).arrival_rate.value == pytest.approx(900, rel=0.05)


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


# --- pendingRecords


def _pending(loop: Loop, **changes: Any) -> Callable[[Observation], Observation]:
    """Return observations of a source that reports what waits, and nothing of its partitions."""

    def edit(observation: Observation) -> Observation:
        return _without_offsets(pending_records=int(loop.job.backlog), **changes)(observation)

    return edit


def test_arrivals_are_what_is_taken_in_and_the_growth_of_what_waits() -> None:
    """`enrich` can do 600 of 900 records/s: what waits grows by 300 records/s. Lag in seconds is the time in which the source
    takes in as many as wait."""
    loop = Loop(Job(rate=900))
    analysis = _seen(loop, 60, _pending(loop))
    assert analysis.arrival_rate.value == pytest.approx(900, rel=0.05)
    assert analysis.arrival_rate.basis == "source throughput + growth of lag (it has no offsets)"
    assert analysis.lag_records.value == pytest.approx(60 * 300, rel=0.05)
    assert analysis.lag_seconds.value == pytest.approx(60 * 300 / 600, rel=0.05)
    assert analysis.lag_seconds.basis == "pendingRecords ÷ throughput"
    assert 0 < analysis.lag_seconds.confidence <= 0.5
    assert not analysis.has("metric-missing")


def test_nothing_pending_is_no_lag_even_while_nothing_is_taken_in() -> None:
    """0 records ÷ 0 records/s."""
    loop = Loop(Job(rate=0))
    analysis = _seen(loop, 40, _pending(loop))
    assert analysis.lag_records.value == analysis.lag_seconds.value == 0
    assert analysis.arrival_rate.value == 0


def test_records_that_wait_while_nothing_is_taken_in_have_no_age() -> None:
    """A division by 0 is unknown, not endless."""
    loop = Loop(Job(rate=100))
    _seen(loop, 40, _pending(loop))
    loop.job.stages[0].subtask_rate = 1e-9
    analysis = _seen(loop, 40, _pending(loop))
    assert analysis.lag_records.value == pytest.approx(4000, rel=0.1)
    assert analysis.lag_seconds.value is None


def test_a_jump_counts_once_the_next_reading_repeats_it() -> None:
    """A table is found whose 500,000 rows wait: at first the source says no more than before, then there is a backlog. It
    came at once, so that it is no arrival rate."""
    loop = Loop(Job(rate=300))
    _seen(loop, 60, _pending(loop))
    loop.job.ends[0] += 500_000
    first = _seen(loop, 2, _pending(loop))
    assert first.lag_records.value is None and first.lag_records.lower_bound == pytest.approx(0, abs=70)
    assert first.lag_records.basis.startswith("pendingRecords jumped from 0 to 49")
    assert first.arrival_rate.value is None
    assert first.arrival_rate.lower_bound == pytest.approx(345, rel=0.2)
    assert first.has("metric-missing")
    then = _seen(loop, 2, _pending(loop))
    assert then.lag_records.value == pytest.approx(500_000, rel=0.01)
    later = _seen(loop, 20, _pending(loop))
    assert later.arrival_rate.value == pytest.approx(300, rel=0.1)


def test_one_wrong_reading_is_forgotten() -> None:
    """A single 2,000,000 between zeros is never believed, and leaves no trace."""
    loop = Loop(Job(rate=300))
    _seen(loop, 60, _pending(loop))
    wrong = _seen(loop, 2, _without_offsets(pending_records=2_000_000))
    assert wrong.lag_records.value is None
    after = _seen(loop, 2, _pending(loop))
    assert after.lag_records.value == pytest.approx(0, abs=70)
    assert after.arrival_rate.value == pytest.approx(300, rel=0.1)


def test_readings_at_random_are_never_believed() -> None:
    """Each contradicts the one before: what is taken in is all that is known, and there is no rate of 10⁹ records/s."""
    loop = Loop(Job(rate=300))
    _seen(loop, 60, _pending(loop))
    for waiting in (10**9, 5, 7 * 10**6, 3 * 10**10, 40_000, 10**8, 0, 2 * 10**7):
        analysis = _seen(loop, 2, _without_offsets(pending_records=waiting))
        assert (analysis.arrival_rate.proven or 0) < 1000, waiting


def test_a_load_far_above_the_throughput_is_believed() -> None:
    """20,000 records/s arrive at a job that does 600: what waits grows by 30 times the throughput, each scrape."""
    loop = Loop(Job(rate=300))
    _seen(loop, 60, _pending(loop))
    loop.job.rate = 20_000
    analysis = _seen(loop, 40, _pending(loop))
    assert analysis.arrival_rate.value == pytest.approx(20_000, rel=0.15)
    assert analysis.lag_records.value == pytest.approx(40 * 19_400, rel=0.05)


def test_what_leaves_without_being_taken_in_is_no_negative_rate() -> None:
    """Rows are deleted before they are read, 1,000 a second of a backlog: demand is unknown, and what waits is known."""
    loop = Loop(Job(rate=300))
    loop.job.ends[0] += 500_000
    _seen(loop, 60, _pending(loop))
    gone = 0

    def fewer(observation: Observation) -> Observation:
        nonlocal gone
        gone += 2000
        return _without_offsets(pending_records=max(0, int(loop.job.backlog) - gone))(observation)

    analysis = _seen(loop, 60, fewer)
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.basis.startswith("lag fell by")


def test_refused_pending_records_leave_the_throughput_as_a_lower_bound() -> None:
    """They are not 0: the source may lag, whatever its busy share."""
    analysis = _seen(Loop(), 60, _without_offsets(pending_refused="are negative or not a number"))
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(300, rel=0.05)
    assert analysis.arrival_rate.basis == "its pendingRecords are negative or not a number"
    assert analysis.lag_records.value is None
    missing = [s.evidence for s in analysis.symptoms if s.code == "metric-missing"]
    assert missing[0] == (
        "Source: orders: arrival rate at least 300 records/s, its pendingRecords are negative or not a number."
    )


# --- shards that report how far they are behind


def _behind(loop: Loop, **changes: Any) -> Callable[[Observation], Observation]:
    """Return observations of a source of Kinesis: the age of its next record, by the constant load of the story."""

    def edit(observation: Observation) -> Observation:
        changed = _without_offsets(behind_seconds=loop.job.backlog / max(1.0, loop.job.rate), **changes)(observation)
        topology = changed.topology
        assert topology is not None
        shards = topology.operators[0].model_copy(update={"source_partitions": 4, "has_broker_offsets": False})
        return changed.model_copy(
            update={"topology": Topology(operators=[shards, *topology.operators[1:]], edges=topology.edges)}
        )

    return edit


def test_shards_read_to_their_end_bring_what_is_taken_in_however_busy_the_source_is() -> None:
    """Nothing waits, so that it is not too slow; its busy time is not believed."""
    loop = Loop()
    analysis = _seen(loop, 60, _behind(loop, busy_share_mean=1.0, busy_share_max=1.0, busy_ms=None, idle_ms=None))
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.05)
    assert analysis.lag_records.value == 0
    assert analysis.lag_seconds.value == pytest.approx(0, abs=0.5)
    assert analysis.has("contradiction")


@pytest.mark.parametrize(("rate", "subtask_rate"), [(900, 600), (2400, 600)])
def test_arrivals_follow_from_the_pace_through_the_shards(rate: float, subtask_rate: float) -> None:
    """It takes in 600 records/s, and needs 1.5 or 4 seconds for one of its shards'."""
    loop = Loop(Job(rate=rate))
    loop.job.stages[1].subtask_rate = subtask_rate
    analysis = _seen(loop, 60, _behind(loop))
    assert analysis.arrival_rate.value == pytest.approx(rate, rel=0.05)
    assert analysis.lag_seconds.value == pytest.approx(60 * (rate - 600) / rate, rel=0.05)
    assert analysis.lag_seconds.basis == "millisBehindLatest of its shards"
    assert analysis.lag_records.value == pytest.approx(60 * (rate - 600), rel=0.1)
    assert analysis.lag_growth.value == pytest.approx(rate - 600, rel=0.1)


def test_a_source_that_catches_up_brings_less_than_it_takes_in() -> None:
    """Of 600 records/s that it takes in 300 were appended in a second: throughput is no lower bound then."""
    loop = Loop(Job(rate=300))
    loop.job.ends[0] += 30_000
    analysis = _seen(loop, 60, _behind(loop))
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.05)
    assert (analysis.lag_growth.value or 0) == pytest.approx(-300, rel=0.1)


# --- idle sources, and busy time that is none


def test_an_idle_source_brings_nothing_however_busy_it_says_it_is() -> None:
    """Paimon's monitor waited in its poll, busy by its counters (github.com/apache/paimon/pull/6396); `sourceIdleTime` says
    that it has no record."""
    busy = {"busy_share_mean": 1.0, "busy_share_max": 1.0, "busy_ms": None, "idle_ms": None, "idle_seconds": 45.0}
    analysis = _seen(Loop(Job(rate=0)), 60, _without_offsets(**busy))
    assert analysis.arrival_rate.value == analysis.lag_records.value == 0
    assert analysis.arrival_rate.basis == "it has had no record for 45 s"
    lie = next(s for s in analysis.symptoms if s.code == "contradiction")
    assert lie.evidence == ("Source: orders: it is 100% busy without a record for 45 s: its busy time is not used.")
    source = analysis.operator(ORDERS)
    assert source is not None
    assert source.utilization.value is None


def test_an_idle_source_that_is_held_back_brings_an_unknown_amount() -> None:
    """Its idle time is from before, as it is not asked for records."""
    held = {"busy_share_mean": 0.0, "backpressure_share_mean": 1.0, "busy_ms": None, "idle_ms": None}
    analysis = _seen(Loop(Job(rate=0)), 60, _without_offsets(**held, backpressured_ms=None, idle_seconds=45.0))
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == 0


def test_a_busy_source_without_waiting_records_is_not_saturated() -> None:
    """100 % busy all the time, and never a record waits: its busy time is no time that it spends on records, and its
    throughput no capacity. It would grow without end."""
    loop = Loop()
    busy = {"busy_share_mean": 1.0, "busy_share_max": 1.0, "busy_ms": None, "idle_ms": None}
    analysis = _seen(loop, 80, _without_offsets(pending_records=0, **busy))
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.05)
    source = analysis.operator(ORDERS)
    assert source is not None
    assert source.true_processing_rate.value is None
    assert source.utilization.value is None
    lie = next(s for s in analysis.symptoms if s.code == "contradiction")
    assert "while nothing waits" in lie.evidence


def test_throughput_that_doubles_at_a_full_busy_share_shows_that_the_share_is_none() -> None:
    """With 300 records/s it was as busy as with 900. A later run is not believed either, until its busy share follows its
    throughput."""
    loop = Loop(Job(rate=300, stages=Loop().job.stages))
    loop.job.stages[1].subtask_rate = 20_000
    busy = {"busy_share_mean": 1.0, "busy_share_max": 1.0, "busy_ms": None, "idle_ms": None}
    quiet = _seen(loop, 60, _without_offsets(**busy))
    assert not quiet.has("contradiction")
    loop.job.rate = 900
    loud = _seen(loop, 60, _without_offsets(**busy))
    assert loud.has("contradiction")
    assert loud.arrival_rate.value is None
    assert loud.arrival_rate.lower_bound == pytest.approx(900, rel=0.05)
    source = loud.operator(ORDERS)
    assert source is not None
    assert source.true_processing_rate.value is None
    loop.job.restart({ORDERS: 2})
    again = _seen(loop, 60, _without_offsets(**busy))
    assert again.has("contradiction")
    honest = _seen(loop, 60, _without_offsets())
    assert not honest.has("contradiction")


def test_a_saturated_source_that_becomes_slower_is_believed() -> None:
    """Its records became dearer: 600 records/s, then 250. It is the bottleneck, and has a capacity."""
    loop = Loop(Job(rate=2000))
    loop.job.stages[0].subtask_rate = 600
    loop.job.stages[1].subtask_rate = 20_000
    _seen(loop, 60, _without_offsets())
    loop.job.stages[0].subtask_rate = 250
    analysis = _seen(loop, 90, _without_offsets())
    assert not analysis.has("contradiction")
    source = analysis.operator(ORDERS)
    assert source is not None
    assert source.true_processing_rate.value == pytest.approx(250, rel=0.1)
    assert analysis.arrival_rate.lower_bound == pytest.approx(250, rel=0.1)


# --- a metric that the objective names


def _named(metric: str, loop: Loop, edit: Callable[[Observation], Observation]) -> Callable[[Observation], Observation]:
    """Return observations of a policy whose `maxLag` bounds a metric."""
    named = policy_of(
        "shop/orders",
        application={"flink": {"url": "http://flink:8081", "job": "orders"}},
        objective={"maxLag": "30s", "lagMetric": metric},
        interval=f"{loop.job.interval:g}s",
    )
    return lambda observation: edit(observation).model_copy(update={"policy": named})


@pytest.mark.parametrize(
    ("metric", "field"), [("currentFetchEventTimeLag", "fetch_lag_seconds"), ("watermarkLag", "watermark_lag_seconds")]
)
@pytest.mark.parametrize("offsets", [True, False], ids=["offsets", "none"])
def test_the_lag_is_the_metric_that_the_objective_names(metric: str, field: str, offsets: bool) -> None:
    """Records are 12 s old when they come, whether brokers are read or not; how many wait stays as it was."""
    loop = Loop()

    def edit(observation: Observation) -> Observation:
        if not offsets:
            return _without_offsets(**{field: 12.0}, pending_records=0)(observation)
        source = observation.operators[0].model_copy(update={field: 12.0})
        return observation.model_copy(update={"operators": [source, *observation.operators[1:]]})

    analysis = _seen(loop, 60, _named(metric, loop, edit))
    assert analysis.lag_seconds.value == 12.0
    assert analysis.lag_seconds.basis == f"{metric}, which the objective names"
    assert analysis.lag_seconds.confidence <= 0.6
    assert analysis.lag_records.value == pytest.approx(0, abs=1)


def test_a_metric_that_is_not_reported_leaves_the_other_lag_and_says_so() -> None:
    """A generator reports no event time."""
    loop = Loop()
    analysis = _seen(loop, 60, _named("watermarkLag", loop, _without_offsets()))
    assert analysis.lag_seconds.value == 0
    assert analysis.lag_seconds.basis.endswith("; the source reports no watermarkLag")
    missing = [s.evidence for s in analysis.symptoms if s.code == "metric-missing"]
    assert missing == ["Source: orders: it reports no watermarkLag, which the objective names: another lag is used."]


def test_the_lag_of_the_last_record_is_no_lag_of_an_idle_source() -> None:
    """Both metrics stand still when no record comes any more."""
    loop = Loop(Job(rate=0))
    edit = _without_offsets(fetch_lag_seconds=400.0, idle_seconds=90.0)
    analysis = _seen(loop, 60, _named("currentFetchEventTimeLag", loop, edit))
    assert analysis.lag_seconds.value == 0


def test_records_that_come_later_than_the_objective_allows_are_named() -> None:
    """The pipeline before the source takes 45 s of 30 s: nothing waits, and no parallelism helps."""
    loop = Loop()
    edit = _without_offsets(fetch_lag_seconds=45.0, pending_records=0)
    analysis = _seen(loop, 60, _named("currentFetchEventTimeLag", loop, edit))
    late = next(s for s in analysis.symptoms if s.code == "late-at-source")
    assert late.evidence == (
        "Source: orders: currentFetchEventTimeLag is 45 s while nothing waits, above the 30 s of maxLag: "
        "no parallelism makes it shorter."
    )
