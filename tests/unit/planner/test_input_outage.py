"""Usual arrivals, and the detection of an input outage."""

from datetime import timedelta

import pytest

from tests.unit.planner.build import NOON, after, analysis
from weir_contracts import Analysis, Behavior, UsualArrivals
from weir_planner.core.input_outage import HALF_LIFE_SECONDS, prevents_scale_down, usual_arrivals


def arriving(rate: float | None) -> Analysis:
    return analysis(arrivals=rate)


def usual(rate: float, at: float = 0.0, since: float | None = None) -> UsualArrivals:
    return UsualArrivals(at=after(at), records_per_second=rate, outage_since=None if since is None else after(since))


def test_the_recent_maximum_is_usual_and_decays() -> None:
    """It halves in an hour, so that a permanently lower load becomes usual."""
    assert usual_arrivals(None, arriving(800), NOON) == usual(800).model_copy(
        update={"lately": 800.0, "min_lately": 800.0}
    )
    later = usual_arrivals(usual(800), arriving(300), after(HALF_LIFE_SECONDS))
    assert later is not None
    assert later.records_per_second == pytest.approx(400)
    assert later.outage_since is None


def test_almost_no_input_is_an_outage_from_its_first_reading() -> None:
    """It lasts until the input is restored."""
    first = usual_arrivals(usual(800), arriving(10), after(2))
    assert first is not None
    assert first.outage_since == after(2)
    second = usual_arrivals(first, arriving(0), after(4))
    assert second is not None
    assert second.outage_since == after(2)
    restored = usual_arrivals(second, arriving(700), after(6))
    assert restored is not None
    assert restored.outage_since is None


def test_an_unknown_rate_is_no_outage() -> None:
    """Unknown is not zero."""
    assert usual_arrivals(usual(800), arriving(None), after(2)) == usual(800)
    assert usual_arrivals(None, arriving(None), NOON) is None


def test_it_prevents_scale_down_for_the_policys_time() -> None:
    """Ten minutes by default."""
    outage = usual(800, 100, since=10)
    assert prevents_scale_down(outage, Behavior(), after(609))
    assert not prevents_scale_down(outage, Behavior(), after(610))
    assert not prevents_scale_down(usual(800), Behavior(), NOON)
    assert not prevents_scale_down(None, Behavior(), NOON + timedelta(days=1))


def usual_after(*readings: tuple[float, float]) -> UsualArrivals:
    """Return the usual arrivals after readings of (seconds after noon, rate)."""
    found: UsualArrivals | None = None
    for at, rate in readings:
        found = usual_arrivals(found, arriving(rate), after(at))
    assert found is not None
    return found


STEADY = tuple((at, 800.0) for at in range(0, 600, 10))


def test_a_fall_by_over_80_percent_within_minutes_is_an_outage_until_half_is_restored() -> None:
    """800 fall to 120 with one of six producers left; at 300 it lasts, at 420 the input is restored."""
    fallen = usual_after(*STEADY, (600, 120))
    assert (fallen.outage_since, fallen.rate_before_outage) == (after(600), pytest.approx(800))
    still = usual_after(*STEADY, (600, 120), (900, 150), (1100, 300))
    assert still.outage_since == after(600)
    restored = usual_after(*STEADY, (600, 120), (900, 150), (1100, 420))
    assert (restored.outage_since, restored.rate_before_outage) == (None, None)


def test_a_fall_for_good_becomes_usual() -> None:
    """After an hour the lower rate is usual."""
    later = tuple((float(at), 120.0) for at in range(600, 4400, 100))
    assert usual_after(*STEADY, *later).outage_since is None


def test_a_wave_and_the_end_of_a_spike_are_no_outage() -> None:
    """800 fall to 100 within an hour; 100 rise to 800 for 10 s."""
    wave = tuple((600 + 60.0 * minute, 800 * 0.966**minute) for minute in range(61))
    assert usual_after(*STEADY, *wave).outage_since is None
    assert usual_after((0, 100), (300, 100), (310, 800), (320, 100)).outage_since is None


def test_a_burst_is_not_usual() -> None:
    """A producer delayed by 80 s catches up in 4 s: the usual rate barely changes; the burst's end is no outage."""
    held_up = tuple((at, 400.0) for at in range(0, 600, 2))
    burst = ((680.0, 10_700.0), (682.0, 10_700.0))
    after_burst = usual_after(*held_up, *burst, *((at, 400.0) for at in range(684, 800, 2)))
    assert after_burst.outage_since is None
    assert after_burst.records_per_second < 2_000


CROWD = (*((float(at), 100.0) for at in range(0, 900, 15)), *((float(at), 1000.0) for at in range(900, 1500, 15)))


def test_the_end_of_a_flash_crowd_is_no_outage_where_the_load_was_before_it() -> None:
    """100 rise to 1,000 for ten minutes and are 100 again, which was usual a quarter of an hour ago."""
    assert usual_after(*CROWD, (1515, 100.0)).outage_since is None
    assert usual_after(*CROWD, (1515, 50.0)).outage_since == after(1515)


def test_silence_is_an_outage_however_low_the_load_was_before() -> None:
    """2 records/s overnight, 1,000 in the morning, and then next to nothing."""
    morning = ((0.0, 2.0), (600.0, 2.0), *((float(at), 1000.0) for at in range(630, 1500, 30)))
    assert usual_after(*morning, (1530, 2.0)).outage_since == after(1530)
