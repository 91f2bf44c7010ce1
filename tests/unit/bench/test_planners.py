"""The table of `make bench-planners`: every built-in planner is in it, with parameters it takes, and is measured in the
same way."""

import pytest

from bench.planners import contest, cost
from bench.planners.__main__ import figure_panels, summary
from bench.planners.contest import CLAIRVOYANT, STATIC_PEAK, Situation, elasticity, held, load_of, prepared
from bench.sizes import SIZES
from tests.effort import some
from weir_replay.run import Point
from weir_sdk.installed import built_in

pytestmark = pytest.mark.thorough

STEP = Situation("step", "chain")


def test_every_built_in_planner_takes_part() -> None:
    """A new one has to be in the comparison, and its configuration has to be its parameters."""
    assert set(contest.contestants()) == {CLAIRVOYANT, STATIC_PEAK, *built_in()}
    for name in built_in():
        assert prepared(STEP, name).policy.spec.planner.name == name
    assert set(contest.PARAMETERS) <= set(built_in())


@pytest.mark.parametrize("trace", some(contest.traces(), 4))
def test_every_load_reaches_its_peak_and_no_more(trace: str) -> None:
    """The highest point lies within the run, whatever the shape."""
    load, lasts = load_of(trace)
    rates = [load.rate_at(float(at)) for at in range(int(lasts))]
    assert max(rates) == pytest.approx(contest.PEAK_RATE, rel=0.02)
    assert min(rates) >= 0
    assert max(rates) > 1.5 * (sum(rates) / len(rates)) or min(rates) < 0.5 * max(rates)


def test_the_swings_are_what_they_are_called() -> None:
    """A sawtooth falls once a period, a flash crowd comes within a minute from its fraction, a burst is as short."""
    saw = load_of("sawtooth-3min")[0]
    assert [saw.rate_at(at) for at in (0.0, 178.5, 180.0, 358.5)] == pytest.approx([480, 2400, 480, 2400], rel=0.02)
    flash = load_of("flash-x20")[0]
    assert [flash.rate_at(at) for at in (900.0, 930.0, 960.0, 1500.0)] == pytest.approx([120, 1260, 2400, 2400])
    burst = load_of("bursts-2s")[0]
    assert [burst.rate_at(at) for at in (58.0, 60.0, 61.0, 63.0)] == pytest.approx([720, 2400, 2400, 720])


def test_the_whole_bench_stays_below_half_an_hour() -> None:
    """Every planner in every situation, and `rate` with all seeds: a run is some 2.7 s of a core, one of a leap half."""
    situations = contest.situations()
    runs = sum(len(contest.seeds_of(planner)) for planner in contest.contestants()) * len(situations)
    leaps = [each for each in situations if each.trace in contest.LEAPS]
    assert len(situations) == len(set(situations)) == 38 + len(leaps)
    assert 2.7 * runs * (1 - len(leaps) / 2 / len(situations)) <= 1850
    assert [prepared(each, None).policy.spec.bounds.max for each in leaps] == [8, 64, 500]
    assert {s.interval_seconds for s in situations} == {10.0, 15.0, 60.0}
    assert prepared(situations[-1], "rate").policy.spec.interval.total_seconds() == 60


def test_the_references_hold_every_situation() -> None:
    """Neither is ever late, and the clairvoyant has the minimum of slots."""
    for topology in contest.topologies():
        situation = Situation("leap" if topology in SIZES else "step", topology)
        best = held(situation, CLAIRVOYANT, duration_seconds=1800.0)
        peak = held(situation, STATIC_PEAK, duration_seconds=1800.0)
        assert best.score.violation_share == peak.score.violation_share == 0.0
        assert best.score.slot_seconds <= peak.score.slot_seconds
        assert best.score.times_optimum == 1.0


def test_a_planner_is_measured_and_drawn() -> None:
    """A few minutes of one: plans were made, the table and the figure have it."""
    found = held(STEP, "threshold", duration_seconds=300.0)
    assert sum(found.codes.values()) >= 18
    assert summary([found], ["threshold"]).row_count == 1
    assert figure_panels([found]) is not None


def test_the_schedule_is_of_the_day_before() -> None:
    """The schedule of a recording is made from the day before."""
    entries = prepared(Situation("nyc_taxi", "chain"), "schedule").policy.spec.planner.parameters["entries"]
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
