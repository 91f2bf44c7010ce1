"""The benchmarks of `scenarios.yaml`: every built-in planner takes part with valid parameters, and every strategy is
measured on the same load in the same way."""

from dataclasses import replace

import pytest

from bench import cost
from bench.scenarios import figure_panels, pairs, sums, table
from bench.simulated import SCENARIOS, Held, Situation, held, load_of, prepared, recordings
from bench.strategies import elasticity
from tests.effort import some
from weir_replay.run import Point, Score
from weir_sdk.installed import built_in

pytestmark = pytest.mark.thorough

PLANNERS, QUALITY, AHEAD = (SCENARIOS[name] for name in ("planners", "quality", "ahead"))
STEP = Situation("step", "chain", 15.0)
TRACE = Situation("worldcup98_minutes", "chain", 15.0)
LOADS = list(dict.fromkeys(s.trace for s in PLANNERS.situations()))


def test_every_built_in_planner_takes_part() -> None:
    """A new planner has to be in the comparison, and its configuration has to be valid."""
    assert set(PLANNERS.contestants()) == {"clairvoyant", "static-peak", *built_in()}
    for name in built_in():
        assert prepared(PLANNERS, STEP, name).policy.spec.planner.name == name
    assert set(PLANNERS.parameters) <= set(built_in())


@pytest.mark.parametrize("trace", some(LOADS, 4))
def test_every_load_reaches_its_peak_and_no_more(trace: str) -> None:
    """The highest point lies within the run, whatever the shape."""
    load, lasts = load_of(PLANNERS, replace(STEP, trace=trace))
    rates = [load.rate_at(float(at)) for at in range(int(lasts))]
    assert max(rates) == pytest.approx(2400.0, rel=0.02)
    assert min(rates) >= 0
    assert max(rates) > 1.5 * (sum(rates) / len(rates)) or min(rates) < 0.5 * max(rates)


def test_the_swings_are_what_they_are_called() -> None:
    """A sawtooth falls once a period, a flash crowd comes within a minute from its fraction, a burst is as short."""
    saw, flash, burst = (
        load_of(PLANNERS, replace(STEP, trace=name))[0] for name in ("sawtooth-3min", "flash-x20", "bursts-2s")
    )
    assert [saw.rate_at(at) for at in (0.0, 178.5, 180.0, 358.5)] == pytest.approx([480, 2400, 480, 2400], rel=0.02)
    assert [flash.rate_at(at) for at in (900.0, 930.0, 960.0, 1500.0)] == pytest.approx([120, 1260, 2400, 2400])
    assert [burst.rate_at(at) for at in (58.0, 60.0, 61.0, 63.0)] == pytest.approx([720, 2400, 2400, 720])


def test_the_daily_peak_is_at_nine_each_day() -> None:
    """Before it a fifth of the load, a quarter of an hour after nine nearly all of it, on each of seven days."""
    load, lasts = load_of(AHEAD, Situation("daily-peak-at-nine", "chain", 60.0))
    assert lasts == 7 * 86_400
    for day in range(7):
        low, high = (load.rate_at(86_400.0 * day + 3600 * hour) for hour in (8.5, 9.5))
        assert low == pytest.approx(480, rel=0.1) and high > 2000


def test_the_whole_bench_of_planners_stays_below_half_an_hour() -> None:
    """Every planner in every situation, and `rate` with all seeds: a run is some 2.7 s of a core, one of a leap half."""
    situations = PLANNERS.situations()
    runs = sum(len(PLANNERS.seeds_of(planner)) for planner in PLANNERS.contestants()) * len(situations)
    leaps = [each for each in situations if each.trace == "leap"]
    assert len(situations) == len(set(situations)) == 38 + len(leaps)
    assert 2.7 * runs * (1 - len(leaps) / 2 / len(situations)) <= 1850
    assert [prepared(PLANNERS, each).policy.spec.bounds.max for each in leaps] == [8, 64, 500]
    assert {s.interval_seconds for s in situations} == {10.0, 15.0, 60.0}
    assert prepared(PLANNERS, situations[-1], "rate").policy.spec.interval.total_seconds() == 60


def test_the_references_hold_every_application() -> None:
    """Neither is ever late, and the clairvoyant has the minimum of slots."""
    topologies = {situation.topology for situation in PLANNERS.situations()}
    assert len(topologies) == 6
    for topology in sorted(topologies):
        situation = replace(STEP, topology=topology, trace="leap" if topology.startswith("stepped") else "step")
        best = held(PLANNERS, situation, "clairvoyant", duration_seconds=1800.0)
        peak = held(PLANNERS, situation, "static-peak", duration_seconds=1800.0)
        assert best.score.violation_share == peak.score.violation_share == 0.0
        assert best.score.slot_seconds <= peak.score.slot_seconds
        assert best.score.times_optimum == 1.0


def test_a_planner_is_measured_and_drawn() -> None:
    """A few minutes of one: plans were made, the table and the figure have it."""
    found = held(PLANNERS, STEP, "threshold", duration_seconds=300.0)
    assert sum(found.codes.values()) >= 18
    assert table([found]).row_count == sums("threshold", [found])["situations"] == 1
    assert len(figure_panels([found])) == 2


def test_the_schedule_is_of_the_day_before() -> None:
    """The schedule of a recording is made from the day before."""
    situation = Situation("nyc_taxi", "chain", 15.0)
    entries = prepared(PLANNERS, situation, "schedule").policy.spec.planner.parameters["entries"]
    assert 1 < len(entries) <= 100
    assert entries[0]["cron"] == "0 0 5 1 *"


def test_too_few_and_too_many_slots_are_distinguished() -> None:
    """Half of the time one slot of two is missing, half of the time there is one too many."""
    points = [Point(0.0, 1.0, 0.0, 1.0, 2), Point(10.0, 1.0, 0.0, 3.0, 2)]
    assert elasticity(points) == {
        "under_accuracy_percent": 25.0,
        "over_accuracy_percent": 25.0,
        "under_time_percent": 50.0,
        "over_time_percent": 50.0,
    }


def test_the_requests_of_the_cost_are_the_three_that_are_named() -> None:
    """One with nothing to do, one to grow and one to shrink: together they go through all of planner and guards."""
    by_load = cost.requests()
    codes = {load: cost.planned(requests[0]).code for load, requests in by_load.items()}
    assert codes["steady"] == "objective-held"
    assert cost.planned(by_load["overloaded"][0]).kind == "scale"
    assert cost.planned(by_load["idle"][0]).amendments


def test_the_days_begin_at_a_midnight_and_hold_the_highest_point() -> None:
    """The peak of the recording is within the day around it, at the rate that was asked for."""
    load, lasts = load_of(QUALITY, replace(TRACE, days=1.0))

    rates = [load.rate_at(minute * 60.0) for minute in range(24 * 60)]

    assert lasts == 86_400 and load.start_seconds % 86_400 == 0
    assert abs(max(rates) - 2400.0) < 1.0


def test_a_parallelism_for_the_peak_is_never_late_and_costs_the_most() -> None:
    """Static parallelism for the peak holds the objective; that for the mean costs less; neither ever rescales."""
    peak, mean = (held(QUALITY, TRACE, name, duration_seconds=4 * 3600.0) for name in ("static-peak", "static-mean"))

    assert peak.score.violation_share == 0.0
    assert mean.score.slot_seconds <= peak.score.slot_seconds
    assert (peak.score.rescales, mean.score.rescales) == (0, 0)


def test_the_reactive_rule_follows_the_load() -> None:
    """On the day of the highest point the rule rescales, and holds less than a parallelism for the peak."""
    day = replace(TRACE, days=1.0)
    rule, peak = held(QUALITY, day, "reactive"), held(QUALITY, day, "static-peak")

    assert rule.score.rescales > 2
    assert rule.score.slot_seconds < peak.score.slot_seconds


def _week(strategy: str, late_share: float, slot_seconds: float, grown_ahead: int, after_seconds: float) -> Held:
    score = Score(1000.0, 30.0, late_share, slot_seconds, 3, 40.0, 1000.0, 2000.0)
    situation = Situation("nyc_taxi", "chain", 60.0, new_slot_seconds=after_seconds)
    return Held(situation, strategy, 0, score, [], {"before-the-peak": grown_ahead})


@pytest.mark.parametrize(
    ("late_share", "slot_seconds", "after_seconds", "sentence", "is_met"),
    [
        (0.1, 1100.0, 180.0, "late 33% of the time without the forecast", True),
        (0.1, 1101.0, 180.0, "late 33% of the time without the forecast", False),
        (0.2, 1000.0, 60.0, "late 67% of the time without the forecast", False),
        (0.2, 1000.0, 5.0, "late 67% of the time without the forecast", True),
        (0.2, 1001.0, 5.0, "late 67% of the time without the forecast", False),
    ],
)
def test_a_forecast_is_judged_by_the_time_it_saves_and_the_slots_it_costs(
    late_share: float, slot_seconds: float, after_seconds: float, sentence: str, is_met: bool
) -> None:
    """Where slots take a minute, at most a third of the late time with a tenth more slots; else no more of either."""
    without = _week("without-forecast", 0.3, 1000.0, 0, after_seconds)
    having = _week("with-forecast", late_share, slot_seconds, 4, after_seconds)
    (pair,) = pairs([without, having])
    assert (pair["sentence"], pair["is_met"]) == (sentence, is_met)
    assert pairs([without]) == []


def test_a_week_in_which_the_forecast_changed_nothing_says_so() -> None:
    """Either no plan grew before a peak, or there was no late time to save."""
    late, on_time = (_week("without-forecast", share, 1000.0, 0, 60.0) for share in (0.3, 0.0))
    (unchanged,) = pairs([late, replace(late, strategy="with-forecast")])
    (nothing,) = pairs([on_time, replace(on_time, strategy="with-forecast")])
    assert unchanged["sentence"] == "no plan grew before a forecast peak: the forecast saved nothing"
    assert nothing["sentence"] == "never late without the forecast: nothing to gain"


def test_without_the_forecast_no_analysis_has_one() -> None:
    """Both runs of a week have the same load; only one has the analyzer's forecasts."""
    situation = Situation(recordings()[0], "chain", 60.0, new_slot_seconds=60.0)
    cluster = prepared(AHEAD, situation).job.cluster
    assert (cluster.new_slot_seconds, cluster.stabilization_seconds) == (60.0, 60.0)
    both = [held(AHEAD, situation, name, duration_seconds=1200.0) for name in AHEAD.contestants()]
    assert [run.strategy for run in both] == ["without-forecast", "with-forecast"]
    assert [sum(run.codes.values()) for run in both] == [20, 20]
