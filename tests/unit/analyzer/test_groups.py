"""A group of consumers, seen from its brokers: commits are steps, and the analysis shows neither lag nor rates in steps."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.analyzer.group_story import NAME, NOON, PARTITIONS, App, policy
from weir_contracts import Analysis, Instance, Symptom


def found(analysis: Analysis, code: str) -> Symptom:
    (symptom,) = [each for each in analysis.symptoms if each.code == code]
    assert len(symptom.evidence) <= 160
    return symptom


def test_commits_every_30_s_are_neither_lag_nor_bursts() -> None:
    """An application that keeps up: at each instant between two commits its rate is the demand, and its lag is small."""
    app = App([25.0] * PARTITIONS)
    app.run_for(300)
    for _ in range(12):
        analysis = app.run_for(5)
        (operator,), (source,) = analysis.operators, analysis.sources
        assert operator.input_rate.value == pytest.approx(100, rel=0.02)
        assert source.arrival_rate.value == pytest.approx(100, rel=0.02)
        assert analysis.lag_seconds.value is not None and analysis.lag_seconds.value <= 6
        assert analysis.lag_records.value is not None and analysis.lag_records.value <= 600
        assert operator.true_processing_rate.value is None
        assert not operator.capacities
    assert not {"stalled", "catching-up", "source-bound"} & {each.code for each in analysis.symptoms}


def test_capacity_is_known_while_records_wait() -> None:
    """Without busy time throughput is capacity only under a backlog, and then the point is saturated."""
    app = App([100.0] * PARTITIONS, thread_rate=130.0)
    analysis = app.run_for(400)
    (operator,) = analysis.operators
    assert operator.utilization.value is None
    (point,) = operator.capacities
    assert point.saturated and point.parallelism == 2
    assert point.records_per_second == pytest.approx(260, rel=0.05)
    assert analysis.sources[0].lag_growth.value == pytest.approx(140, rel=0.1)


def test_a_load_step_is_seen_before_the_next_commit() -> None:
    """Demand comes from log ends, which do not wait for commits."""
    app = App([25.0] * PARTITIONS)
    app.run_for(300)
    app.rates = [75.0] * PARTITIONS
    assert app.run_for(15).arrival_rate.value == pytest.approx(300, rel=0.05)


def test_a_load_step_beyond_capacity_is_no_contradiction_before_the_next_commit() -> None:
    """The instances count 100 records/s themselves, while 300 arrive. The commits do not show yet that the rest waits, so
    that these seem to have been taken in: demand was corrected to what the instances do, and nothing grew."""
    app = App([20.0] * PARTITIONS, thread_rate=50.0, has_metrics=True)
    app.run_for(300)
    app.rates = [75.0] * PARTITIONS
    app.run_for(10)
    for _ in range(4):
        analysis = app.run_for(5)
        assert not analysis.has("contradiction")
        assert analysis.arrival_rate.value == pytest.approx(300, rel=0.05)


def test_a_group_that_stopped_shows_its_lag_and_that_it_stalls() -> None:
    """The lag as of the last commit would stand still for ever."""
    app = App([25.0] * PARTITIONS)
    before = app.run_for(300)
    app.stuck = set(range(PARTITIONS))
    analysis = app.run_for(240)
    assert before.lag_seconds.value is not None and analysis.lag_seconds.value is not None
    assert analysis.lag_seconds.value >= 200 > before.lag_seconds.value
    assert found(analysis, "stalled").operator == NAME


def test_one_partition_that_stalls_is_named() -> None:
    """Others go forward: the throughput alone hides it."""
    app = App([25.0] * PARTITIONS, instances=[Instance(id="a", threads=2)])
    app.run_for(300)
    app.stuck = {2}
    symptom = found(app.run_for(180), "stalled")
    assert symptom.evidence.startswith("app committed nothing of orders/2 for 1")


def two_instances(state: str = "RUNNING") -> list[Instance]:
    return [
        Instance(
            id=f"p{n}", threads=1, members=[f"app-{n}-StreamThread-1-consumer-a"], state=state if n == 2 else "RUNNING"
        )
        for n in (1, 2)
    ]


def stuck(**changes: Any) -> App:
    """The second of two instances, partitions 1 and 3, stands still after 300 s."""
    app = App([25.0] * PARTITIONS, instances=changes.pop("instances", two_instances()), **changes)
    app.run_for(300)
    app.stuck = {1, 3}
    return app


@pytest.mark.parametrize(("commit_seconds", "limit"), [(1.0, 20), (5.0, 20), (30.0, 120)])
def test_an_instance_that_stands_still_while_others_go_forward_is_named(commit_seconds: float, limit: int) -> None:
    """After 20 s and four commit intervals, by the id of its process; with what waits for it. The lag that grows is neither the
    brokers' nor a hot partition's."""
    app = stuck(commit_seconds=commit_seconds)
    assert not app.run_for(limit - 10).has("instance-stuck")
    app.instances = [each.model_copy(update={"blocked_share": 0.9}) for each in app.instances]
    analysis = app.run_for(50)
    assert not analysis.has("brokers-bound") and not analysis.has("hot-partition")
    symptom = found(analysis, "instance-stuck")
    assert symptom.instance == "p2" and symptom.operator == NAME
    assert symptom.evidence.startswith("app-2 (client RUNNING) has committed nothing for ")
    assert symptom.evidence.endswith(" records wait for it, and 1 other instance goes forward")
    assert (symptom.numbers["waiting_records"] or 0) > 40 * limit


@pytest.mark.parametrize(
    "case",
    [
        "rebalancing",
        "migrating",
        "restoring",
        "all stand still",
        "one partition goes on",
        "nothing waits",
        "unknown commit",
        "new run",
        "no commit interval",
        "alone",
    ],
)
def test_no_instance_is_stuck_while(case: str) -> None:
    """Tasks move; all stand still; a part of it goes on; nothing waits for it; something is unknown; there is no other."""
    app = stuck(commit_seconds=5.0)
    app.run_for(100)
    assert app.analysis is not None and app.analysis.has("instance-stuck")
    match case:
        case "rebalancing":
            app.group = {"state": "PreparingRebalance"}
        case "migrating":
            app.group = {"probing_rebalance_at": app.now + timedelta(seconds=60)}
        case "restoring":
            app.instances[0] = app.instances[0].model_copy(update={"restore_remaining_records": 9})
        case "all stand still":
            app.stuck = {0, 1, 2, 3}
            app.run_for(60)
        case "one partition goes on":
            app.stuck = {1}
        case "nothing waits":
            app.rates[1] = app.rates[3] = 0.0
            app.ends[1], app.ends[3] = app.committed[1], app.committed[3]
        case "unknown commit":
            app.committed_at[1] = None  # type: ignore[call-overload]
        case "new run":
            app.run_began = app.now
        case "no commit interval":
            app.commit_seconds = 0.0
        case "alone":
            app.instances = app.instances[1:]
    assert not app.run_for(10).has("instance-stuck")


def test_a_hot_partition_is_named() -> None:
    """It brings more than one thread processes, so that more threads do not help."""
    app = App([5.0, 5.0, 5.0, 400.0], thread_rate=150.0, threads=2)
    symptom = found(app.run_for(400), "hot-partition")
    assert symptom.numbers["partition"] == 3
    assert "more threads do not help" in symptom.evidence
    even = App([200.0] * PARTITIONS, thread_rate=150.0).run_for(400)
    assert not even.has("hot-partition")


def test_threads_that_wait_for_brokers_while_lag_grows_need_no_more_threads() -> None:
    slow = App([100.0] * PARTITIONS, thread_rate=130.0, instances=[Instance(id="a", threads=2, blocked_share=0.8)])
    symptom = found(slow.run_for(400), "brokers-bound")
    assert "waits for its brokers 80% of the time" in symptom.evidence
    busy = App([100.0] * PARTITIONS, thread_rate=130.0, instances=[Instance(id="a", threads=2, blocked_share=0.1)])
    assert not busy.run_for(400).has("brokers-bound")
    unknown = App([100.0] * PARTITIONS, thread_rate=130.0, instances=[Instance(id="a", threads=2)])
    assert not unknown.run_for(400).has("brokers-bound")


def test_movements_of_tasks_are_symptoms() -> None:
    """Rebalance, migration until a probing rebalance, and restore: each with its numbers."""
    instances = [Instance(id="a", threads=2, standby_tasks=2, restore_remaining_records=1200)]
    group = {"state": "Reconciling", "probing_rebalance_at": NOON + timedelta(minutes=10)}
    analysis = App([25.0] * PARTITIONS, group=group, instances=instances).run_for(5)
    assert found(analysis, "rebalancing").evidence.startswith("app rebalances (state Reconciling, 2 members)")
    waiting = App([25.0] * PARTITIONS, group={"state": "PreparingRebalance"}).run_for(5)
    assert "members that still process what they polled" in found(waiting, "rebalancing").evidence
    assert "12:10:00 UTC" in found(analysis, "migrating").evidence
    assert found(analysis, "restoring").numbers == {"instances": 1, "restore_remaining_records": 1200}
    quiet = App([25.0] * PARTITIONS).run_for(5)
    assert not {"rebalancing", "migrating", "restoring"} & {each.code for each in quiet.symptoms}


def test_offsets_that_went_back_are_shown_for_ten_minutes() -> None:
    app = App([25.0] * PARTITIONS, rewound_at=NOON)
    assert "orders/0 went back" in found(app.run_for(30), "offsets-reset").evidence
    assert not app.run_for(600).has("offsets-reset")


def test_records_that_expired_unread_are_counted() -> None:
    app = App([25.0] * PARTITIONS)
    app.run_for(60)
    app.expired = int(app.committed[0]) + 40
    symptom = found(app.run_for(5), "records-expired")
    assert symptom.numbers == {"partitions": 1, "records": 40}


@pytest.mark.parametrize(
    ("application", "words"),
    [
        ({"kafkaStreams": {"applicationId": NAME}}, "without application.kafkaStreams.metrics"),
        ({"kafkaStreams": {"applicationId": NAME, "metrics": {"port": 9404}}}, "busy time is unknown."),
        ({"consumerGroup": {"groupId": NAME}}, "without metrics of its consumers"),
    ],
)
def test_unknown_busy_time_names_its_remedy(application: dict[str, Any], words: str) -> None:
    app = App([25.0] * PARTITIONS, policy=policy(**application))
    assert words in found(app.run_for(60), "metric-missing").evidence
