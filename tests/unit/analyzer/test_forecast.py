"""The forecast of one source: invariants of any series, what it learns, and what it must not learn."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from tests.effort import examples, some, thorough
from tests.unit.analyzer.forecast_series import DAY, Source, days
from weir_analyzer.core.forecast.application import forecast_of
from weir_analyzer.core.forecast.series import SeriesState
from weir_contracts import MAX_NUMBER, SourceForecast

_RATES = st.floats(0, 1e9) | st.just(0.0) | st.sampled_from([1e-18, 1e9, MAX_NUMBER])
_INTERVALS = st.sampled_from([2.0, 7.3, 30.0, 60.0, 61.7, 600.0])
_STEPS = st.floats(0.001, 1e7) | st.sampled_from([-3600.0, -86_400.0, 86_400.0, 7 * 86_400.0])
"""Seconds by which the clock goes on without an observation, or back."""
_MAX_BYTES = 11_000
"""Bound of a source's state."""


def _numbers(forecast: SourceForecast) -> list[float]:
    found = [number for point in forecast.path for number in (point.after_seconds, point.records_per_second)]
    for each in forecast.horizons:
        found += [each.horizon_seconds, each.peak, each.peak_at_seconds]
        found += [number for number in (each.peak_upper, each.coverage) if number is not None]
    return found


@examples(60)
@given(st.lists(st.none() | _RATES, max_size=60), _INTERVALS, st.lists(_STEPS, max_size=3))
def test_any_series_gives_bounded_numbers(rates: list[float | None], interval: float, steps: list[float]) -> None:
    """Zeros, huge and tiny rates, unknown intervals, gaps of any length and a clock that is set back: every number is finite
    and at least 0, times are in order, a bound is at least its peak, and the state is bounded."""
    source = Source(interval)
    for step in [*steps, 0.0]:
        source.take(rates).wait(step)
        forecast = None if source.state is None else forecast_of(source.state, "orders", source.at)
        assert source.state is None or len(to_json(source.state.to_json())) < _MAX_BYTES
        if forecast is None:
            went_back = min(steps, default=0.0) < 0
            since_known = next((rates[i:] for i, rate in enumerate(rates) if rate is not None), [])
            assert step or went_back or len(since_known) * interval < 120
            continue
        assert all(math.isfinite(number) and number >= 0 for number in _numbers(forecast))
        assert all(a.after_seconds < b.after_seconds for a, b in pairwise(forecast.path))
        assert all(a.horizon_seconds < b.horizon_seconds for a, b in pairwise(forecast.horizons))
        assert all(each.peak_upper is None or each.peak_upper >= each.peak for each in forecast.horizons)


@examples(30)
@given(st.lists(_RATES, min_size=3, max_size=80), _INTERVALS)
def test_the_state_survives_its_json(rates: list[float], interval: float) -> None:
    """A state that was written and read goes on like the one that was not."""
    kept, written = Source(interval).take(rates), Source(interval)
    for rate in rates:
        written.take([rate])
        assert written.state is not None
        written.state = SeriesState.from_json(from_json(to_json(written.state.to_json())))
    assert written.state == kept.state


@examples(20)
@given(st.floats(1e-9, 1e15), st.sampled_from([2.0, 7.3, 60.0]))
def test_a_constant_stays_constant(rate: float, interval: float) -> None:
    """After hours of one rate that rate is expected, and it is its own bound."""
    forecast = Source(interval).take([rate] * round(3 * 3600 / interval)).forecast
    assert [point.records_per_second for point in forecast.path] == pytest.approx([rate] * len(forecast.path), rel=1e-4)
    assert forecast.horizons[0].peak_upper is not None
    for each in forecast.horizons:
        assert each.peak == pytest.approx(rate, rel=1e-4)
        assert each.peak_upper is None or each.peak_upper == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize(("factor", "seed"), some([(1e-6, 1), (1e3, 2), (1e6, 3), (1e-3, 4)], 3))
def test_a_forecast_scales_with_the_load(factor: float, seed: int) -> None:
    """The same load in another unit has the same forecast in that unit."""
    rng = random.Random(seed)
    rates = [1000 * (1 + 0.5 * math.sin(minute / 90)) * rng.uniform(0.8, 1.2) for minute in range(400)]
    one, other = Source().take(rates).forecast, Source().take([factor * rate for rate in rates]).forecast
    assert one.method == other.method
    for a, b in zip(one.horizons, other.horizons, strict=True):
        # rates of profiles are rounded: one peak near the border may be high in one unit only
        assert b.peak == pytest.approx(factor * a.peak, rel=1e-2)
        assert b.peak_upper == (None if a.peak_upper is None else pytest.approx(factor * a.peak_upper, rel=1e-2))
        assert a.judged == pytest.approx(b.judged, rel=0.02, abs=1)
        assert a.coverage == (None if b.coverage is None else pytest.approx(b.coverage, abs=0.02))


def test_observations_need_not_fit_minutes() -> None:
    """A ramp read every 2 s, every 7.3 s and every 60 s has the same forecast."""
    found = []
    for interval in (2.0, 7.3, 60.0):
        count = math.ceil(3600 / interval)
        rates = [1000 + (i + 0.5) * interval / 6 for i in range(count)]
        found.append(Source(interval).take(rates).rate_in(10))
    assert found == pytest.approx([found[0]] * 3, rel=0.02)


def test_a_trend_is_continued_and_damped() -> None:
    """A rising load is expected to rise, by less than the line through it; a falling one never below 0."""
    rising = Source().take([1000 + 50.0 * minute for minute in range(300)])
    last = 1000 + 50.0 * 299
    assert last + 50 < rising.rate_in(10) < last + 11 * 50
    falling = Source().take([max(0.0, 3000 - 50.0 * minute) for minute in range(58)])
    assert 0 <= falling.rate_in(10) < 150


def test_too_little_history_has_no_bound() -> None:
    """After half an hour there is a bound for a minute and none for an hour, and no coverage that nothing supports."""
    by_minutes = {round(each.horizon_seconds / 60): each for each in Source().take([100.0] * 30).forecast.horizons}
    assert by_minutes[1].peak_upper is not None
    assert by_minutes[60].peak_upper is None
    assert (by_minutes[60].coverage, by_minutes[60].judged) == (None, 0)


def _daily(minute: int) -> float:
    return 2000 + 1500 * math.sin(2 * math.pi * (minute % DAY) / DAY)


@pytest.mark.thorough
def test_a_day_is_learned() -> None:
    """After three days the profile forecasts half an hour ahead where the last value is off by a tenth."""
    source = Source().take(days(3.25, _daily))
    now = round(3.25 * DAY)
    for _ in range(4):
        now += 180
        source.take([_daily(minute) for minute in range(now - 180, now)])
        assert source.rate_in(29.5) == pytest.approx(_daily(now + 29), rel=0.03)
    assert source.forecast.method in ("daily-profile", "weekly-profile")


def _at_nine(minute: int) -> float:
    return 3000.0 if 540 <= minute % DAY < 600 else 300.0


def test_a_peak_at_nine_is_seen_before_it_comes() -> None:
    """After some days with a peak from nine to ten the horizon of half an hour has it at a quarter to nine, and has none
    at noon."""
    source = Source().take(days(3 if thorough() else 2, _at_nine)).take([300.0] * 525)
    before = source.forecast.within(1800)
    assert before is not None and before.peak_upper is not None
    assert before.peak_upper > 2000
    source.take([_at_nine(minute) for minute in range(525, 720)])
    noon = source.forecast.within(1800)
    assert noon is not None
    assert noon.peak == pytest.approx(300, rel=0.1)


def test_the_bound_covers_nine_peaks_of_ten() -> None:
    """On noisy days the peaks within ten minutes stay under their bound in 90 ± 3 % of the cases, and the published coverage
    is the share of the high ones."""
    rng = random.Random(1)
    rates = [_daily(minute) * rng.lognormvariate(0, 0.1) for minute in range(2 * DAY)]
    source, covered, high = Source(), [], []
    for i in range(len(rates) - 10):
        source.take([rates[i]])
        found = source.forecast.within(600)
        assert found is not None
        if found.peak_upper is not None:
            highest = max(rates[i + 1 : i + 11])
            covered.append(highest <= found.peak_upper)
            if i > DAY and highest > 2800:  # a quarter of the time
                high.append(highest <= found.peak_upper)
    last = source.forecast.within(600)
    assert last is not None and last.coverage is not None
    assert sum(covered) / len(covered) == pytest.approx(0.9, abs=0.03)
    assert last.coverage == pytest.approx(sum(high) / len(high), abs=0.04)


def test_an_outage_and_the_backlog_after_it_are_no_pattern() -> None:
    """For half an hour nothing arrives, then the missing records at once: the forecast stays at the usual rate through
    both, and next day at that time nothing of either is expected."""
    source = Source().take([1000.0] * 1380)
    upper = source.forecast.horizons[2].peak_upper
    for _ in range(30):
        assert source.take([0.0]).rate_in(10) == pytest.approx(1000, rel=0.01)
    for _ in range(10):
        assert source.take([4000.0]).rate_in(10) == pytest.approx(1000, rel=0.01)
    source.take([1000.0] * 1410)
    assert source.rate_in(10) == pytest.approx(1000, rel=0.01)
    assert source.forecast.horizons[2].peak_upper == pytest.approx(upper, rel=0.01)


def test_a_load_that_falls_for_good_is_believed_after_an_hour() -> None:
    """An outage does not last for ever: the low rate becomes the load."""
    source = Source().take([1000.0] * 300)
    assert source.take([50.0] * 30).rate_in(10) == pytest.approx(1000, rel=0.01)
    assert source.take([50.0] * 45).rate_in(10) == pytest.approx(50, rel=0.05)


@pytest.mark.thorough
def test_a_low_that_comes_every_day_is_no_outage() -> None:
    """A load that stops at night is expected to stop, at the latest on the third evening."""
    source = Source().take(days(2, lambda minute: 1000.0 if minute % DAY < 1200 else 0.0)).take([1000.0] * 1200)
    assert source.take([0.0] * 3).rate_in(10) == pytest.approx(0, abs=20)


@pytest.mark.parametrize("gap_seconds", [7 * 86_400.0, 86_400.0, 1500.0])
def test_a_gap_is_not_learned(gap_seconds: float) -> None:
    """After a week, a day or 25 minutes without observations the forecast goes on from the rate that is there now, and the
    gap's minutes are not judged."""
    source = Source().take([1000.0] * 300)
    judged = source.forecast.horizons[-1].judged
    source.wait(gap_seconds).take([None, 500.0, 500.0, 500.0])
    assert source.rate_in(10) == pytest.approx(500, rel=0.3)
    assert source.forecast.horizons[-1].judged == judged


@pytest.mark.parametrize("step_seconds", [-7200.0, -3600.0, 86_400.0])
def test_a_step_of_the_clock_does_no_harm(step_seconds: float) -> None:
    """Hours back, as a clock that is set: the forecast goes on once the old time is reached again. A day forward: it goes
    on at once."""
    source = Source().take([1000.0] * 300).wait(step_seconds).take([1000.0] * 150)
    assert source.rate_in(10) == pytest.approx(1000, rel=1e-3)


def test_one_point_a_day_is_no_forecast_of_a_day() -> None:
    """Readings a day apart say nothing of the minutes between them."""
    source = Source()
    for _ in range(10):
        source.take([100.0]).wait(86_400 - 60)
    assert source.state is not None
    assert all(each.peak_upper is None for each in source.take([100.0]).forecast.horizons)


def test_the_state_is_bounded() -> None:
    """Days of any load need no more bytes than the limit: all bins of the day, all waiting forecasts, the longest
    horizon."""
    some_days = 8 if thorough() else 1
    rng = random.Random(3)
    source = Source(own_minutes=120)
    source.take(rng.lognormvariate(10, 2) for _ in range(some_days * DAY))
    assert source.state is not None
    assert len(to_json(source.state.to_json())) < _MAX_BYTES
    assert len(to_json(source.state.learned())) < _MAX_BYTES


@pytest.mark.thorough
def test_history_outlives_the_state() -> None:
    """A series that is seeded from what was learned forecasts as the lost one did."""
    source = Source().take(days(2, _daily))
    assert source.state is not None
    before, learned = source.forecast, from_json(to_json(source.state.learned()))
    source.state = SeriesState.seeded(learned)
    after = source.forecast
    assert after.method == before.method
    assert [each.coverage for each in after.horizons] == [each.coverage for each in before.horizons]
    for a, b in zip(after.path, before.path, strict=True):
        assert a.records_per_second == pytest.approx(b.records_per_second, rel=1e-4)
    source.take([_daily(2 * DAY)] * 2)
    assert source.forecast.horizons[0].peak_upper is not None


@pytest.mark.parametrize(
    "learned", [[], [1], [1, "", "", ""], [1, "AAAA", "", ""], [1, "!", "", ""], [1, "AACAfw==", "", ""], ["x"] * 4]
)
def test_damage_is_refused(learned: list[object]) -> None:
    """A seed that cannot be read is a ValueError, whatever is wrong with it."""
    with pytest.raises(ValueError):
        SeriesState.seeded(learned)


@pytest.mark.parametrize("profile", [2, 3])
def test_a_damaged_profile_is_refused(profile: int) -> None:
    """A seed with a profile that lacks bins is a ValueError at once, not when the profile is next used."""
    state = Source().take([100.0] * 70).state
    learned = None if state is None else state.learned()
    assert learned is not None
    assert SeriesState.seeded(learned).outlook
    learned[profile] = learned[profile][:-8]
    with pytest.raises(ValueError):
        SeriesState.seeded(learned)
