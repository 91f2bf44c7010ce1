"""The probe's arithmetic: a lag that is measured while results come, and grows while they do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.probe import Freshness, Result, UnreadableResult

T0 = 1_800_000_000.0


def _result(oldest: float, newest: float | None = None) -> Result:
    return Result(oldest, oldest if newest is None else newest)


def test_a_result_is_read_from_the_sinks_line() -> None:
    """Key, count, bytes, oldest, newest, window end."""
    result = Result.read(b"customer-000001;3;420;1800000000250;1800000000900;1800000001000")
    assert (result.oldest_seconds, result.newest_seconds) == (T0 + 0.25, T0 + 0.9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "1 fields"),
        (b"a;1;2;3;4", "5 fields"),
        (b"a;1;2;soon;4;5", "oldest_ms"),
        (b"a;1;2;3;-4;5", "newest_ms"),
    ],
)
def test_an_unreadable_result_is_refused_with_its_field(line: bytes, message: str) -> None:
    """A foreign record at the sink does not stop the probe: its reader counts it."""
    with pytest.raises(UnreadableResult, match=message):
        Result.read(line)


def test_before_the_first_result_the_lag_is_unknown() -> None:
    """Unknown, not 0."""
    assert Freshness().lag_seconds(T0) is None


def test_the_lag_is_the_worst_of_the_recent_results() -> None:
    """One key late by five seconds counts, until it is two seconds past."""
    freshness = Freshness()
    freshness.add(_result(T0 - 5), T0)
    freshness.add(_result(T0 + 0.5), T0 + 1.5)
    assert freshness.lag_seconds(T0 + 1.9) == 5
    assert freshness.lag_seconds(T0 + 2.1) == pytest.approx(1.6)


def test_when_results_stop_the_lag_grows() -> None:
    """The freshest result was a second old when it came; a minute later the lag is 61 seconds, not 1."""
    freshness = Freshness()
    freshness.add(_result(T0 - 1), T0)
    assert [freshness.lag_seconds(T0 + later) for later in (0, 10, 60)] == [1, 11, 61]


def test_it_does_not_grow_when_there_is_nothing_to_be_late_with() -> None:
    """The newest input is in a result already: the job is idle, not late. New input makes it late again."""
    freshness = Freshness()
    freshness.add(_result(T0 - 1, newest=T0 - 0.5), T0)
    assert freshness.lag_seconds(T0 + 1, newest_input=T0 - 0.5) == 1
    assert freshness.lag_seconds(T0 + 60, newest_input=T0 - 0.5) == 0
    assert freshness.lag_seconds(T0 + 60, newest_input=T0 + 50) == 61


def test_results_of_a_replay_do_not_make_the_job_look_fresher() -> None:
    """After a restart old windows come again: their age is their lag; what is freshest stays what it was."""
    freshness = Freshness()
    freshness.add(_result(T0 - 1), T0)
    freshness.add(_result(T0 - 8), T0 + 6)
    assert freshness.lag_seconds(T0 + 6) == 14
    assert freshness.lag_seconds(T0 + 9) == 10


@given(
    lags=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), min_size=1, max_size=100), silence=st.floats(0, 1000)
)
def test_the_lag_is_never_below_the_age_of_the_freshest(lags: list[tuple[float, float]], silence: float) -> None:
    """And never below any result that arrived within the last two seconds."""
    freshness, now = Freshness(), T0
    arrivals = []
    for lag, pause in lags:
        now += pause
        freshness.add(_result(now - lag), now)
        arrivals.append((now, now - lag))
    at = now + silence
    lag_now = freshness.lag_seconds(at)
    assert lag_now is not None
    assert lag_now >= at - max(oldest for _, oldest in arrivals) - 1e-6
    assert all(lag_now >= arrived - oldest - 1e-6 for arrived, oldest in arrivals if arrived >= at - 2)
