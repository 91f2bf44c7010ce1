"""Loads that follow the calendar: weekdays and weekends, peaks that move, clocks that change, days that are missing.

The oracle is the load itself: what came after a look, compared with the forecast that was made at it.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import pytest

from tests.unit.analyzer.forecast_series import DAY, MIDNIGHT, Source
from weir_analyzer.core.forecast.application import forecast_of
from weir_analyzer.core.forecast.band import Band
from weir_analyzer.core.forecast.methods import (
    DAILY,
    LATEST,
    METHODS,
    WEEK,
    WEEKLY,
    Errors,
    high_rate,
    rates_at,
    updated,
)
from weir_analyzer.core.forecast.series import SeriesState
from weir_contracts import PeakForecast

MONDAY = MIDNIGHT + 6 * 86_400
LOW, PEAK = 300.0, 2700.0
SEEN, ALARM = 0.75, 1.5
"""Shares of the highest rate to come: a forecast above the first has seen it, one above the second is a false alarm."""

Load = Callable[[int, int], float]
"""Share of the peak at a day and a minute of it; day 0 is a Monday, days are UTC."""


def _bump(minute: float, begins: float, lasts: float = 90, rises: float = 6) -> float:
    """Return the share of a peak that begins at a minute: up within `rises` minutes, as long down."""
    return max(0.0, min(1.0, (minute - begins) / rises, (begins + lasts + 2 * rises - minute) / rises))


def weekdays(day: int, minute: int) -> float:
    """At nine from Monday to Friday."""
    return _bump(minute, 540) if day % 7 < 5 else 0.0


def moving(day: int, minute: int) -> float:
    """Each day 20 minutes later."""
    return _bump(minute, 480 + 20 * day)


def at_nine(_day: int, minute: int) -> float:
    """At nine each day."""
    return _bump(minute, 540)


def clock_change(day: int, minute: int) -> float:
    """At nine, from the second Sunday on an hour later."""
    return _bump(minute, 600 if day >= 13 else 540)


def kolkata(day: int, minute: int) -> float:
    """From Monday to Friday at four in the morning in India: half past ten in the evening before, in UTC."""
    return _bump(minute, 1350, 85) if day % 7 in (6, 0, 1, 2, 3) else 0.0


def holiday(day: int, minute: int) -> float:
    """On weekdays, but not on the second Monday."""
    return weekdays(day, minute) if day != 7 else 0.0


def job_at_six(_day: int, minute: int) -> float:
    """Ten minutes at six each day."""
    return _bump(minute, 360, 10, 1)


@dataclass(frozen=True)
class Story:
    """A load and what was forecast at each minute."""

    rates: list[float]
    states: list[SeriesState]

    def within(self, minute: int, minutes: int) -> tuple[PeakForecast, float]:
        """Return the forecast after a minute of the story, and the highest rate that came."""
        found = forecast_of(self.states[minute], "orders", MONDAY + 60 * (minute + 1))
        peak = None if found is None else found.within(60 * minutes)
        assert peak is not None
        return peak, max(self.rates[minute + 1 : minute + 1 + minutes])

    def seen(self, day: int, begins: int, minutes: int) -> float:
        """Return the expected peak over the true one, two thirds of a horizon before a peak begins."""
        peak, highest = self.within(day * DAY + begins - minutes * 2 // 3 + 6, minutes)
        return peak.peak / highest

    def alarm(self, day: int, minutes: int) -> float:
        """Return the highest ratio of an expected peak to the true one of a day."""
        looks = [self.within(minute, minutes) for minute in range(day * DAY, (day + 1) * DAY - minutes, 3)]
        return max(peak.peak / highest for peak, highest in looks)


@cache
def story(load: Load, days: int, missing: Iterable[int] = (), noise: float = 0.03) -> Story:
    """Let the analyzer see each minute of some days, but those of the `missing` days."""
    chance = random.Random(days)
    heights = [chance.uniform(0.9, 1.0) for _ in range(days)]
    rates, states, source = [], [], Source()
    source.at = MONDAY
    for day in range(days):
        for minute in range(DAY):
            rate = (LOW + PEAK * heights[day] * load(day, minute)) * chance.uniform(1 - noise, 1 + noise)
            rates.append(rate)
            state = (source.wait(60) if day in missing else source.take([rate])).state
            assert state is not None
            states.append(state)
    return Story(rates, states)


@pytest.mark.thorough
@pytest.mark.parametrize("minutes", [10, 30])
def test_the_second_week_is_known(minutes: int) -> None:
    """Weekdays have a peak at nine and weekends none. From the second Monday on each peak is seen before it comes, on no
    Saturday or Sunday one is expected.

    Reported of gocrane/crane (issue 387): a load with a weekend is forecast as if each day were like the one before.
    """
    told = story(weekdays, 16)
    assert min(told.seen(day, 540, minutes) for day in (7, 8, 9, 10, 11, 14, 15)) > SEEN
    assert max(told.alarm(day, minutes) for day in (12, 13)) < ALARM


@pytest.mark.thorough
@pytest.mark.parametrize("minutes", [10, 30])
def test_a_peak_that_moves_is_seen(minutes: int) -> None:
    """A peak comes 20 minutes later each day: from the fourth day on it is expected when it comes, and not at the time of
    the day before."""
    told = story(moving, 10)
    for day in range(3, 10):
        begins = 480 + 20 * day
        assert told.seen(day, begins, minutes) > SEEN
        early, highest = told.within(day * DAY + begins - 20 - minutes, 10)
        assert early.peak < ALARM * highest


@pytest.mark.thorough
def test_the_bound_lies_above_the_peaks_of_most_mornings() -> None:
    """Twelve mornings, each up to a tenth higher or lower: the bound for five minutes, made five minutes before a day's
    highest minute, lies above it on at least nine."""
    told, above = story(at_nine, 14), 0
    for day in range(2, 14):
        today = told.rates[day * DAY : (day + 1) * DAY]
        top = day * DAY + today.index(max(today))
        upper = told.within(top - 5, 5)[0].peak_upper
        above += upper is not None and upper >= told.rates[top]
    assert above >= 9


@pytest.mark.thorough
@pytest.mark.parametrize("minutes", [5, 10, 30])
def test_the_published_coverage_is_that_of_high_peaks(minutes: int) -> None:
    """Counted where more than half of the highest rate came, over the last days: what is published is what happened, and
    about nine of ten.

    Reported of facebook/prophet (issues 579 and 801): intervals are asked for a share that the history does not have.
    """
    told = story(weekdays, 16)
    looks = [told.within(minute, minutes) for minute in range(7 * DAY, 16 * DAY - minutes, 7)]
    high = [(peak.peak_upper, highest) for peak, highest in looks if highest > max(told.rates) / 2]
    share = sum(upper is not None and highest <= upper for upper, highest in high) / len(high)
    assert share == pytest.approx(0.9, abs=0.06)
    assert looks[-1][0].coverage == pytest.approx(share, abs=0.05)


@pytest.mark.thorough
def test_a_clock_change_is_learned_within_two_days() -> None:
    """From one Sunday on the peak comes an hour later in UTC: on the third day it is seen where it is now.

    Reported of elastic/ml-cpp (issue 2690): after daylight saving time begins or ends a model is wrong for days.
    """
    told = story(clock_change, 17)
    assert told.seen(12, 540, 10) > SEEN
    assert min(told.seen(day, 600, 10) for day in (15, 16)) > SEEN


@pytest.mark.thorough
def test_a_week_need_not_begin_at_midnight() -> None:
    """The working week of another time zone begins on a Sunday evening in UTC: its peaks are seen, and its weekend, Friday
    and Saturday evening in UTC, is quiet.

    Reported of facebook/prophet (issue 1247): effects of a day are off where days are counted in UTC.
    """
    told = story(kolkata, 14)
    assert min(told.seen(day, 1350, 10) for day in (7, 8, 9, 10, 13)) > SEEN
    assert max(told.alarm(day, 10) for day in (11, 12)) < ALARM


@pytest.mark.thorough
def test_a_missing_day_is_made_up_for() -> None:
    """Nothing was observed on the first Thursday: the next one's peak is seen all the same, as those around it.

    Reported of facebook/prophet (issue 2621): a season is made up where history is missing.
    """
    told = story(weekdays, 12, (3,))
    assert min(told.seen(day, 540, 30) for day in (7, 8, 9, 10, 11)) > SEEN


@pytest.mark.thorough
def test_a_holiday_is_not_the_rule() -> None:
    """One Monday has no peak. From Wednesday on peaks are seen again; next Monday at least half of its own is expected.

    Reported of gocrane/crane (issue 787): the last week is repeated as it was.
    """
    told = story(holiday, 15)
    assert min(told.seen(day, 540, 30) for day in (9, 10, 11)) > SEEN
    assert told.seen(14, 540, 30) > 0.5


@pytest.mark.thorough
def test_a_job_of_ten_minutes_is_seen() -> None:
    """Each day at six for ten minutes: from the third day on it is expected a quarter of an hour before.

    Reported of netdata (issue 12127): each night's cron job comes as a surprise.
    """
    told = story(job_at_six, 5)
    assert min(told.seen(day, 360, 30) for day in range(2, 5)) > SEEN


@pytest.mark.thorough
def test_one_day_is_enough_to_begin() -> None:
    """The third day's peak is expected by the two days before.

    Reported of jthomperoo/predictive-horizontal-pod-autoscaler (issue 74): without two whole seasons there is no forecast.
    """
    told = story(at_nine, 3)
    assert told.seen(2, 540, 10) > SEEN


def test_quiet_minutes_earn_no_coverage() -> None:
    """A thousand quiet minutes stay under their bound, thirty peaks come unforeseen: the published coverage is that of the
    peaks."""
    band, rates = Band(1), random.Random(1)
    for minute in range(1000):
        band.issue(minute, 100.0, 100.0, 1500.0)
        band.judge(minute + 1, [rates.uniform(95, 105)], 1500.0)
    assert (band.coverage, band.judged) == (None, 0)
    for minute in range(1000, 1030):
        band.issue(minute, 100.0, 100.0, 1500.0)
        band.judge(minute + 1, [3000.0], 1500.0)
    assert (band.coverage, band.judged) == (0.0, 30)


def test_high_peaks_have_their_own_bound() -> None:
    """Quiet minutes are off by a hundredth, peaks by up to a third: after as many of both, the bound of a peak is wide and
    that of a quiet minute narrow."""
    band, chance = Band(1), random.Random(2)
    for minute in range(400):
        expected, off = (2000.0, 0.33) if minute % 2 else (100.0, 0.01)
        band.issue(minute, expected, 0.0, 1000.0)
        band.judge(minute + 1, [expected * chance.uniform(1, 1 + off)], 1000.0)
    quiet, high = (band.errors_of(expected, 1000.0).bound for expected in (100.0, 2000.0))
    assert quiet == pytest.approx(0.009, abs=0.002)
    assert high == pytest.approx(0.3, abs=0.04)


def test_a_short_peak_is_high_and_an_accident_is_not() -> None:
    """Of a week with an hour at 3,000 records/s each day, only that hour is high; five minutes at a hundred times as many
    change nothing."""
    profile = ""
    for minute in range(0, 7 * DAY, 5):
        profile = updated(profile, WEEK, 60.0 * minute, 3000.0 if 540 <= minute % DAY < 600 else 300.0)
    assert high_rate(profile, WEEK) == pytest.approx(1500, rel=0.01)
    assert high_rate(updated(profile, WEEK, 0.0, 600_000.0), WEEK) == pytest.approx(1500, rel=0.01)
    assert high_rate("", WEEK) == 0.0


def test_quiet_days_do_not_forget_who_knows_the_busy_ones() -> None:
    """The profile was right on a busy day. Two quiet days, of which the last value is a little more right, leave it the
    best; two busy ones do not."""
    for rate, best in ((100.0, DAILY), (3000.0, 0)):
        errors = Errors(1)
        for minute in range(DAY):
            errors.issue(minute, [2000.0] * DAILY + [3000.0] * (len(METHODS) - DAILY))
            errors.judge(minute + 1, 3000.0, 1500.0)
        for minute in range(DAY, 3 * DAY):
            errors.issue(minute, [rate] * DAILY + [0.85 * rate] * (len(METHODS) - DAILY))
            errors.judge(minute + 1, rate, 1500.0)
        assert (errors.best(WEEKLY) >= DAILY) == (best >= DAILY)


def test_a_week_that_becomes_known_is_tried() -> None:
    """As long as no day of the week is known, the profile of the week has the error of the best method: it is used from
    the first day that is."""
    errors = Errors(1)
    for minute in range(100):
        errors.issue(minute, [50.0, *[100.0] * 3, *[70.0] * (len(METHODS) - 4)])
        errors.judge(minute + 1, 100.0, 80.0)
    assert errors.best(WEEKLY) in (1, 2, 3)
    assert errors.best(len(METHODS)) >= WEEKLY


def test_a_gap_leaves_no_older_day() -> None:
    """Of the latest day, minutes that were not observed are unknown, not those of a day before."""
    source = Source().take([100.0] * (26 * 60)).wait(3600.0).take([100.0] * 30)
    assert source.state is not None
    latest = source.state.text[3]
    minutes = [source.at - 60.0 * ago for ago in (15, 60, 120)]
    assert [rate is not None for rate in rates_at(latest, LATEST, minutes)] == [True, False, True]
