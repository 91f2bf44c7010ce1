"""A proposal judged: lateness and cost under the forecast, its upper edge and the present load; and no guesses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, analysis, operator, policy
from weir_contracts import Analysis, ForecastPoint, Judgement, PeakForecast, SourceForecast
from weir_predictor import InvalidQuestion, NotYet, cost_of, judged


def forecast(
    points: list[tuple[float, float]], peaks: list[tuple[float, float, float | None, float]] | None = None
) -> SourceForecast:
    """`points`: seconds and rate; `peaks`: horizon, peak, its upper bound, and when it is expected."""
    return SourceForecast(
        operator=SOURCE,
        method="damped-trend",
        path=[ForecastPoint(after_seconds=at, records_per_second=rate) for at, rate in points],
        horizons=[
            PeakForecast(horizon_seconds=length, peak=peak, peak_upper=upper, peak_at_seconds=at)
            for length, peak, upper, at in peaks or []
        ],
    )


def seen(ahead: SourceForecast | None = None, **changes: Any) -> Analysis:
    """800/s that two subtasks of 500/s hold; a restart takes 4 s."""
    return analysis(forecasts=[ahead] if ahead else [], **changes)


RISES = forecast([(60.0, 800.0), (120.0, 1400.0), (600.0, 1400.0)], [(600.0, 1400.0, 2600.0, 300.0)])


def test_without_a_forecast_the_present_arrivals_stay() -> None:
    """Growth is not late and costs slots; the judgement says that no source has a forecast."""
    found = judged(seen(), {WORK: 4})
    (load,) = found.loads
    assert (load.arrivals, load.max_arrival_rate, load.keeps_up) == ("present", 800.0, True)
    assert (load.late_seconds, load.hold_late_seconds, load.recovers) == (0, 0, True)
    assert (found.slots_now, found.slots, found.slot_seconds, found.slot_hours) == (2, 4, 2400, 0.6667)
    assert (found.restart.seconds, found.restart.away_share, found.restart.measured) == (4.0, 1.0, True)
    assert found.notes[-1] == "no source has a forecast: the present arrivals are assumed to stay"
    assert found.sentence == (
        "work 2 → 4, 600 s ahead: never late (holding: never late); 4 slots instead of 2, a restart of 4 s."
    )


def test_holding_is_a_proposal_too() -> None:
    """No restart, and nothing to compare with."""
    found = judged(seen(), {}, horizon_seconds=60)
    assert (found.restart.seconds, found.slot_seconds) == (0, 120)
    assert found.sentence == "Holding, 60 s ahead: never late; 2 slots."


def test_the_forecast_decides_and_its_upper_edge_decides_again() -> None:
    """1,400/s are expected and up to 2,600/s possible: holding is late, three subtasks bear what is expected, and only six
    bear the upper edge. By cost the first that is punctual under the upper edge wins."""
    vectors = [{}, {WORK: 3}, {WORK: 6}, {WORK: 8}]
    held, three, six, eight = (judged(seen(RISES), vector) for vector in vectors)
    assert [each.loads[0].arrivals for each in (held, three)] == ["expected", "expected"]
    assert held.loads[0].recovers is False and held.loads[0].late_seconds is None
    assert (three.loads[0].late_seconds, three.loads[0].keeps_up) == (0, True)
    assert three.worst.arrivals == "upper-edge" and three.worst.max_arrival_rate == 2600
    assert three.worst.recovers is False
    assert (six.worst.late_seconds, six.worst.keeps_up) == (0, True)
    assert min((three, eight, six, held), key=cost_of) == six
    assert six.forecast_seconds == 600
    assert six.sentence == (
        "work 2 → 6, 600 s ahead: never late as forecast (holding: late without end); never late at the forecast's upper "
        "edge (holding: late without end); 6 slots instead of 2, a restart of 4 s."
    )


def test_the_reach_of_a_forecast_is_said() -> None:
    """Behind its path the last rate stays, and without bounds there is no upper edge."""
    found = judged(seen(forecast([(60.0, 900.0)], [(60.0, 900.0, None, 60.0)])), {}, horizon_seconds=120)
    assert [load.arrivals for load in found.loads] == ["expected"]
    assert found.loads[0].max_arrival_rate == 900
    assert found.notes[-2:] == [
        "the forecast reaches 60 s ahead: its last rate is assumed to stay behind it",
        "the forecast has no upper edge yet: its history is too short",
    ]


def test_a_forecast_beyond_the_measured_is_unknown() -> None:
    """An operator of unknown capacity suffices for what arrives now, not for twice as much."""
    found = seen(
        forecast([(60.0, 1600.0), (600.0, 1600.0)]),
        operators=[operator(SOURCE, 1, None, 800.0), *analysis().operators[1:]],
    )
    load = judged(found, {WORK: 4}).loads[0]
    assert (load.keeps_up, load.late_seconds, load.recovers, load.prediction) == (None, None, None, None)
    assert [gap.operator for gap in load.unknown] == [SOURCE]
    assert cost_of(judged(found, {WORK: 4}))[1:3] == (True, float("inf"))


def test_limits_are_named() -> None:
    """A vector beyond the policy's bounds is judged all the same, and not possible."""
    found = judged(seen(policy=policy(bounds={"max": 3})), {WORK: 4})
    assert not found.possible and found.infeasible[0].code == "bounds"
    assert found.sentence.endswith("It is not possible: the policy allows work at most 3.")
    assert cost_of(found) > cost_of(judged(seen(policy=policy(bounds={"max": 3})), {WORK: 3}))


def test_an_objective_of_utilization_counts_load_beyond_it() -> None:
    """800/s on 1,000/s are 80 %: 20 points above 60 % for 100 s."""
    found = judged(seen(policy=policy(objective={"utilization": 0.6})), {}, horizon_seconds=100)
    assert found.loads[0].late_seconds == pytest.approx(20, abs=0.1)


def test_what_cannot_be_judged_is_refused() -> None:
    """An operator that does not exist, and an application of which nothing is known."""
    with pytest.raises(InvalidQuestion, match="there is no operator 'wrok'"):
        judged(seen(), {"wrok": 2})
    with pytest.raises(NotYet, match="graph and parallelism"):
        judged(seen(topology=None), {})


rates = st.floats(0, 5000)


@examples(30)
@given(
    st.lists(st.tuples(st.floats(0, 2000), rates), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(1, 2000), rates, st.none() | rates, st.floats(0, 3000)), max_size=4),
    st.integers(1, 12),
    st.floats(10, 2000),
)
def test_any_forecast_gives_a_judgement(
    points: list[tuple[float, float]], peaks: list[Any], p: int, horizon: float
) -> None:
    """More subtasks are never later with the same restart, and the upper edge never lies below the middle."""
    ahead = forecast(sorted(points), sorted(peaks, key=lambda peak: peak[0]))
    found = judged(seen(ahead), {WORK: p}, horizon_seconds=horizon)
    assert Judgement.model_validate_json(found.model_dump_json()) == found
    if len(found.loads) == 2:
        assert found.loads[1].max_arrival_rate >= found.loads[0].max_arrival_rate - 0.01
    if p > 2:
        more = judged(seen(ahead), {WORK: p + 1}, horizon_seconds=horizon)
        for one, other in zip(found.loads, more.loads, strict=True):
            assert other.recovers or not one.recovers
