"""Each symptom has a sentence and its numbers, and shows when it should."""

from typing import Any

import pytest

from tests.unit.analyzer.story import Job, Loop, Stage, policy
from weir_contracts import Analysis, Observation, Symptom, Topology, derive_id


def _symptom(analysis: Analysis, code: str) -> Symptom:
    found = next((s for s in analysis.symptoms if s.code == code), None)
    assert found is not None, [s.code for s in analysis.symptoms]
    return found


def _bare(loop: Loop, status: str, **changes: Any) -> Analysis:
    """Return an observation of an application without readings."""
    loop.job.run_for(2)
    observed = loop.job.observe(
        status=status, run=None, deployment=None, topology=None, operators=[], partitions=[], **changes
    )
    analysis = loop.see(observed)
    assert analysis is not None
    return analysis


def test_an_analysis_passes_on_what_it_was_made_from() -> None:
    """Topology, deployment, policy, run and problems travel; the id is derived, so a replay repeats it."""
    loop = Loop()
    loop.job.run_for(2)
    observed = loop.job.observe()
    analysis = loop.see(observed)
    assert analysis is not None
    assert analysis.id == derive_id(observed.id, "analysis")
    assert analysis.observation_id == observed.id
    for name in ("topology", "deployment", "policy", "run", "problems", "observed_at", "application", "status"):
        assert getattr(analysis, name) == getattr(observed, name)


def test_warming_up_has_two_stages() -> None:
    """First the warm-up itself, then the window that is not full yet; each names what it waits for."""
    loop = Loop()
    assert _symptom(loop.watch(6), "warming-up").numbers["warm_up_seconds"] == 10
    assert _symptom(loop.watch(20), "warming-up").numbers["needed_seconds"] == 40
    assert not loop.watch(30).has("warming-up")


def test_catching_up_reports_the_time_left() -> None:
    """A backlog that shrinks by 300 records/s is cleared at a predictable time."""
    loop = Loop()
    loop.watch(40)
    loop.job.rate = 900
    loop.watch(60)
    loop.job.rate = 300
    symptom = _symptom(loop.watch(34), "catching-up")
    assert symptom.operator == "Source: orders"
    assert symptom.numbers["lag_growth"] == pytest.approx(-300, rel=0.1)
    lag = symptom.numbers["lag_records"]
    assert lag is not None
    assert symptom.numbers["seconds_left"] == pytest.approx(lag / 300, rel=0.1)


def test_stalled_is_not_idle() -> None:
    """Nothing taken in while records wait is a standstill; without any waiting it is only quiet."""
    quiet = Loop(Job(rate=0)).watch(60)
    assert not quiet.has("stalled")
    loop = Loop()
    loop.watch(40)
    loop.job.stages[1].subtask_rate = 1e-9
    symptom = _symptom(loop.watch(30), "stalled")
    assert symptom.numbers["input_rate"] == 0
    assert loop.analyses[-1].expected_latency_seconds.value is None


def test_a_new_run_is_a_restart() -> None:
    """The first observation of another run reports it, and the next one does not."""
    loop = Loop()
    loop.watch(20)
    loop.job.restart()
    assert loop.watch(2).has("restarting")
    assert not loop.watch(2).has("restarting")


def test_a_crash_looping_job_is_still_understood() -> None:
    """Not running: demand, lag, targets and learned capacities are all reported, so that it can still be scaled."""
    loop = Loop()
    loop.watch(60)
    loop.job.status, loop.job.state = "not_running", "RESTARTING"
    analysis = loop.watch(10)
    assert analysis.has("not-running")
    assert analysis.has("restarting")
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.02)
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert enrich.parallelism == 1
    assert enrich.input_rate.value is None
    assert enrich.true_processing_rate.value is None
    assert enrich.target_input_rate.value == pytest.approx(300, rel=0.02)
    assert [round(p.records_per_second) for p in enrich.capacities] == [600]
    assert analysis.deployment is not None


@pytest.mark.parametrize(
    ("status", "code"), [("unreachable", "unreachable"), ("not_found", "not-found"), ("not_running", "not-running")]
)
def test_an_application_that_cannot_be_read_is_reported(status: str, code: str) -> None:
    """Everything is unknown but what was learned, and nothing is 0."""
    loop = Loop()
    loop.watch(60)
    analysis = _bare(loop, status, message="connection refused")
    assert "connection refused" in _symptom(analysis, code).evidence
    for estimate in (analysis.arrival_rate, analysis.lag_records, analysis.lag_seconds, analysis.lag_growth):
        assert estimate.value is None
    assert analysis.learned["capacities"]["enrich"]
    assert not loop.watch(2).has(code)


def test_a_run_is_remembered_through_an_outage_of_its_cluster() -> None:
    """Unreachable for half a minute, then the same run again: its rates are available at once, what it learned is kept,
    and capacity is measured from now on, as the time in between is unknown."""
    loop = Loop()
    loop.watch(60)
    for _ in range(15):
        _bare(loop, "unreachable")
    reachable = loop.watch(4)
    assert not reachable.has("restarting")
    assert "window is not full" in _symptom(reachable, "warming-up").evidence
    enrich = reachable.operator("enrich")
    assert enrich is not None
    assert enrich.input_rate.value == pytest.approx(300, rel=0.02)
    assert enrich.true_processing_rate.value is None
    assert [round(p.records_per_second) for p in enrich.capacities] == [600]
    enrich = loop.watch(45).operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)


def test_the_end_of_an_application_is_its_forgetting() -> None:
    """The last analysis marks the end and carries no data to restore the state from."""
    loop = Loop()
    loop.watch(60)
    analysis = _bare(loop, "ended")
    assert analysis.has("ended")
    assert analysis.learned == {}
    assert loop.memory is None


def test_skew_is_shown_where_it_matters() -> None:
    """A subtask twice as busy as the mean, and busy at all: more subtasks would help little."""
    stages = [Stage("Source: orders", 50_000), Stage("enrich", 600, parallelism=4)]
    loop = Loop(Job(stages=stages))
    last: Analysis | None = None
    for share in (0.1, 0.9):
        loop.job.run_for(2)
        fresh = loop.job.observe()
        readings = [
            r.model_copy(update={"busy_share_mean": share / 2, "busy_share_max": share})
            if r.operator == "enrich"
            else r
            for r in fresh.operators
        ]
        last = loop.see(fresh.model_copy(update={"operators": readings}))
        assert last is not None
        assert last.has("skewed") == (share > 0.5)
    assert last is not None
    assert _symptom(last, "skewed").operator == "enrich"


def test_a_step_is_no_skew() -> None:
    """At 11 of 12 key groups the busiest subtask has two and the others have one: more subtasks end that."""
    stages = [Stage("Source: orders", 50_000), Stage("enrich", 600, parallelism=11)]
    loop = Loop(Job(stages=stages))
    loop.job.run_for(2)
    fresh = loop.job.observe()
    readings = [
        r.model_copy(update={"busy_share_mean": 0.5, "busy_share_max": 0.9}) if r.operator == "enrich" else r
        for r in fresh.operators
    ]
    assert fresh.topology is not None
    operators = [o.model_copy(update={"max_parallelism": 12}) for o in fresh.topology.operators]
    edges = [e.model_copy(update={"ship_strategy": "HASH"}) for e in fresh.topology.edges]
    stepped = Topology(operators=operators, edges=edges)
    seen = loop.see(fresh.model_copy(update={"operators": readings, "topology": stepped}))
    assert seen is not None
    assert not seen.has("skewed")


def test_more_subtasks_that_bring_nothing_mean_a_limit_outside() -> None:
    """600 records/s with one subtask and 620 with two: what it writes to is the limit."""
    loop = Loop(Job(rate=900))
    loop.watch(80)
    loop.job.stages[1].subtask_rate = 310
    loop.job.restart({"enrich": 2})
    symptom = _symptom(loop.watch(80), "downstream-bound")
    assert symptom.operator == "enrich"
    assert symptom.numbers["earlier_parallelism"] == 1
    assert symptom.numbers["capacity"] == pytest.approx(620, rel=0.05)


def test_an_operator_that_waits_without_being_busy_is_bound_from_outside() -> None:
    """The sink is 20 % busy and not backpressured, yet everything before it is held back."""
    loop = Loop(Job(rate=900, stages=[Stage("Source: orders", 50_000), Stage("enrich", 5000), Stage("sink", 600)]))
    last = None
    for _ in range(40):
        loop.job.run_for(2)
        fresh = loop.job.observe()
        sink = fresh.operators[2]
        spent = (sink.busy_ms or 0) + (sink.idle_ms or 0)
        waits = sink.model_copy(
            update={"busy_ms": 0.2 * spent, "idle_ms": 0.8 * spent, "busy_share_mean": 0.2, "busy_share_max": 0.2}
        )
        last = loop.see(fresh.model_copy(update={"operators": [*fresh.operators[:2], waits]}))
    assert last is not None
    assert last.bottleneck == "sink"
    assert _symptom(last, "downstream-bound").numbers["busy_share"] == pytest.approx(0.2, abs=0.02)


def test_silence_of_the_monitor_is_a_gap() -> None:
    """Thirty seconds without an observation at an interval of two; differences go on across it."""
    loop = Loop()
    loop.watch(60)
    loop.job.run_for(28)
    analysis = loop.watch(2)
    symptom = _symptom(analysis, "gap")
    assert symptom.numbers["gap_seconds"] == 30
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.02)
    assert not loop.watch(2).has("gap")


def test_a_slow_interval_is_no_gap() -> None:
    """A gap is measured by the policy's own interval."""
    loop = Loop(Job(interval=60))
    assert not loop.watch(300).has("gap")
    assert policy(60).spec.interval.total_seconds() == 60


def test_a_reading_that_is_missing_is_named() -> None:
    """The operator without any reading, the counter that is unknown: each in its own symptom."""
    loop = Loop()
    loop.watch(20)
    loop.job.run_for(2)
    observed: Observation = loop.job.observe()
    readings = [observed.operators[0], observed.operators[1].model_copy(update={"records_in": None})]
    analysis = loop.see(observed.model_copy(update={"operators": readings}))
    assert analysis is not None
    reported = {s.operator: s.evidence for s in analysis.symptoms if s.code == "metric-missing"}
    assert "records in is unknown" in reported["enrich"]
    assert "every reading" in reported["sink: Writer"]
