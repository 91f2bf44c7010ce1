"""A what-if on the forecast: its middle, its upper edge, a later time, and where each figure comes from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import SOURCE, WORK, analysis
from tests.unit.predictor.test_judgement import forecast, seen
from weir_contracts import Analysis, WhatIf
from weir_predictor import InvalidQuestion, NotYet, parse_at, parse_load, what_if

WAVE = forecast(
    [(60.0, 800.0), (600.0, 900.0), (1800.0, 1400.0), (3600.0, 1400.0)],
    [(600.0, 950.0, 1200.0, 600.0), (3600.0, 1400.0, 1800.0, 1800.0)],
)
"""From 800/s now to 1,400/s in half an hour."""


def ask(
    load: str = "forecast", at: str = "now", horizon: float = 600, found: Analysis | None = None, work: int = 2
) -> WhatIf:
    """Answer for 800 records/s on two subtasks of 500 records/s each, with WAVE ahead."""
    return what_if(found or seen(WAVE), {WORK: work}, parse_load(load), horizon, after_seconds=parse_at(at))


def test_the_load_is_the_highest_of_the_forecast() -> None:
    """The middle is 900/s within ten minutes, which two subtasks hold; its upper edge of 1,200/s is too much."""
    answer = ask()
    assert (answer.arrival_rate_now, answer.arrival_rate, answer.keeps_up) == (800.0, 900.0, True)
    assert [(load.arrivals, load.max_arrival_rate, load.keeps_up) for load in answer.loads] == [
        ("expected", 900.0, True),
        ("upper-edge", 1200.0, False),
    ]
    assert answer.sentence.startswith(
        "At 900 records/s (x1.12), the highest of the forecast, with the present parallelism it keeps"
    )
    assert "At the forecast's upper edge of 1,200 records/s it is late without end" in answer.sentence


def test_later_the_forecast_of_then_counts() -> None:
    """In half an hour 1,400/s arrive: two subtasks do not hold it, four do, also at the upper edge of 1,800/s; what waits
    now does not count then."""
    late = seen(WAVE, backlog=50_000.0)
    two, four = ask(at="in 30m", found=late), ask(at="in 30m", found=late, work=4)
    assert (two.arrival_rate, two.keeps_up, two.after_seconds) == (1400.0, False, 1800.0)
    assert [load.keeps_up for load in four.loads] == [True, True]
    assert four.prediction is not None and four.prediction.max_lag_seconds < 30
    assert "what waits now is assumed to be worked off until then" in four.notes
    assert "the highest of the forecast from 30m ahead on" in four.sentence


def test_a_factor_is_of_the_forecast() -> None:
    """Twice what is forecast for then."""
    assert ask(load="x2", at="in 30m").arrival_rate == 2800.0
    assert ask(load="x2").arrival_rate == 1600.0  # now: of the present load


def test_each_figure_is_explained() -> None:
    """Arrivals with their method, the upper edge with its record, utilization with its points, lag with its restart."""
    judged = [each.model_copy(update={"coverage": 0.91, "judged": 120}) for each in WAVE.horizons]
    answer = ask(work=4, found=seen(WAVE.model_copy(update={"horizons": judged})))
    arrivals, edge, *rest = answer.explained
    assert arrivals == f"{SOURCE}: 900 records/s at the highest, 10m from now, by its damped trend; 800 arrive now"
    assert (
        edge
        == f"{SOURCE}: 1,200 records/s at its upper edge: 91% of 120 past high peaks within 10m stayed below theirs"
    )
    assert any(each.startswith(f"{WORK}: 900 of ") and "was measured at 2" in each for each in rest)
    assert rest[-1].startswith("lag: ") and "a restart of" in rest[-1]
    assert ask().explained[1] == f"{SOURCE}: 1,200 records/s at its upper edge, which was not judged yet"
    assert what_if(seen(WAVE), {}, parse_load("x2"), 600).explained == []


def test_a_horizon_beyond_the_forecast_is_refused() -> None:
    """With how far it reaches."""
    with pytest.raises(InvalidQuestion, match=r"the forecast reaches 1h ahead; the horizon of 2h is longer") as wrong:
        ask(horizon=7200)
    assert wrong.value.field == "horizon"
    with pytest.raises(
        InvalidQuestion, match=r"the forecast reaches 1h ahead; 2h and the horizon of 10m are 2h10m"
    ) as wrong:
        ask(at="in 2h")
    assert wrong.value.field == "at"


def test_what_the_forecast_cannot_answer() -> None:
    """No forecast yet; a rate of one's own at a later time; a bound that is unknown."""
    with pytest.raises(NotYet, match="no source has a forecast yet"):
        ask(found=analysis())
    with pytest.raises(InvalidQuestion, match="later than now the load is the forecast") as wrong:
        ask(load="1200/s", at="in 30m")
    assert wrong.value.field == "load"
    unbounded = ask(found=seen(forecast([(60.0, 800.0), (900.0, 900.0)], [(900.0, 900.0, None, 900.0)])))
    assert [load.arrivals for load in unbounded.loads] == ["expected"]
    assert f"{SOURCE}: its upper edge is unknown: too few high peaks were judged" in unbounded.explained


def test_a_time_needs_no_preposition() -> None:
    """`2h` can only mean in 2 hours."""
    assert parse_at("2h") == parse_at("in 2h") == 7200
    assert parse_at("now") == 0


@pytest.mark.parametrize("text", ["in", "2", "in 2", "in -2h", "IN 2h", "in 2h ", "tomorrow", "in  2h", "in 9" * 20])
def test_an_invalid_time(text: str) -> None:
    """A duration with a unit from now."""
    with pytest.raises(InvalidQuestion, match="is no time from now") as wrong:
        parse_at(text)
    assert wrong.value.field == "at"


@given(
    rates=st.lists(st.floats(0, 1e9), min_size=1, max_size=6),
    upper=st.floats(0, 1e9),
    after=st.sampled_from([0.0, 60.0, 600.0]),
)
@examples(30)
def test_any_forecast_gives_an_answer(rates: list[float], upper: float, after: float) -> None:
    """Zeros, 10⁹ records/s, an upper bound below the middle: finite figures or unknown ones, and the upper edge is never
    below the middle."""
    path = [(300.0 * (i + 1), rate) for i, rate in enumerate(rates)]
    found = seen(forecast([*path, (3600.0, rates[-1])], [(3600.0, max(rates), max(upper, *rates), 300.0)]))
    answer = what_if(found, {}, parse_load("forecast"), 600, after_seconds=after)
    assert WhatIf.model_validate_json(answer.model_dump_json()) == answer
    middle, edge = answer.loads
    assert middle.max_arrival_rate <= edge.max_arrival_rate * (1 + 1e-9) + 0.01
