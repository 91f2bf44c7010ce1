"""The life of an application as the analysis sees it."""

import pytest

from tests.unit.analyzer.story import Job, Loop, Stage


def test_a_steady_job_is_understood_after_its_first_window() -> None:
    """Half busy at 300 records/s: capacity 600, nothing waits, selectivities of one."""
    analysis = Loop().watch(60)
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert enrich.input_rate.value == pytest.approx(300, rel=0.02)
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)
    assert enrich.utilization.value == pytest.approx(0.5, abs=0.02)
    assert enrich.target_input_rate.value == pytest.approx(300, rel=0.02)
    assert analysis.lag_records.value == 0
    assert analysis.lag_seconds.value == 0
    assert [edge.selectivity.value for edge in analysis.edges] == pytest.approx([1, 1], rel=0.01)
    assert analysis.symptoms == []


def test_a_load_step_shows_within_two_scrapes() -> None:
    """Demand is the brokers': three times the load shows after 4 s, long before any average of the engine's."""
    loop = Loop()
    loop.watch(60)
    loop.job.rate = 900
    loop.watch(4)
    assert loop.analyses[-1].arrival_rate.value == pytest.approx(900, rel=0.02)
    sink = loop.analyses[-1].operator("sink: Writer")
    assert sink is not None
    assert sink.target_input_rate.value == pytest.approx(900, rel=0.02)


def test_a_saturated_operator_holds_the_others_back() -> None:
    """At 900 records/s `enrich` takes in its 600: that is its capacity, and lag grows by the rest."""
    loop = Loop()
    loop.watch(60)
    loop.job.rate = 900
    analysis = loop.watch(60)
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert analysis.bottleneck == "enrich"
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)
    assert "saturated" in enrich.true_processing_rate.basis
    assert enrich.capacities[0].saturated
    assert analysis.lag_growth.value == pytest.approx(300, rel=0.05)
    assert analysis.lag_records.value == pytest.approx(60 * 300, rel=0.02)
    # the oldest waiting record came a third of the time ago: 36,000 of 54,000 were processed
    assert analysis.lag_seconds.value == pytest.approx(60 * 300 / 900, rel=0.15)
    assert analysis.expected_latency_seconds.value == pytest.approx(60 * 300 / 600, rel=0.05)


def test_after_a_rescale_it_catches_up_and_both_capacities_are_learned() -> None:
    """A new run wipes the window, not what was learned; the restart's length is learned, too."""
    loop = Loop()
    loop.watch(60)
    loop.job.rate = 900
    loop.watch(60)
    loop.job.restart({"enrich": 2})
    early = loop.watch(20)
    assert early.has("warming-up")
    assert early.has("catching-up")
    enrich = early.operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value is None
    assert [(p.parallelism, round(p.records_per_second)) for p in enrich.capacities] == [(1, 600)]
    late = loop.watch(60)
    enrich = late.operator("enrich")
    assert enrich is not None
    rates = {p.parallelism: p.records_per_second for p in enrich.capacities}
    assert rates == {1: pytest.approx(600, rel=0.02), 2: pytest.approx(1200, rel=0.02)}
    assert late.lag_seconds.value == 0
    assert late.restart_times.seconds is not None


def test_a_window_operator_has_no_selectivity_before_three_bursts() -> None:
    """Output once in 20 s: unknown until three bursts were observed from end to end, and so is what lies behind."""
    stages = [Stage("Source: orders", 50_000), Stage("aggregate", 2000, selectivity=0.1, window_seconds=20)]
    loop = Loop(Job(stages=[*stages, Stage("sink: Writer", 5000)]))
    early = loop.watch(70)
    by_edge = {(e.source, e.target): e.selectivity for e in early.edges}
    assert by_edge["aggregate", "sink: Writer"].value is None
    assert "bursts" in by_edge["aggregate", "sink: Writer"].basis
    sink = early.operator("sink: Writer")
    assert sink is not None
    assert sink.target_input_rate.value is None
    late = loop.watch(40)
    by_edge = {(e.source, e.target): e.selectivity for e in late.edges}
    assert by_edge["aggregate", "sink: Writer"].value == pytest.approx(0.1, rel=0.02)
    assert by_edge["Source: orders", "aggregate"].value == pytest.approx(1, rel=0.02)
