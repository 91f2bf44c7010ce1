"""The pace: a rate is held exactly, whatever the clock does between two ticks."""

from hypothesis import given
from hypothesis import strategies as st

from workloads.loadgen.generator import MAX_CATCH_UP_SECONDS, Pace


def test_fractions_of_a_record_are_not_lost() -> None:
    """At 1.5 records/s, ticks of 10 ms yield 15 records in ten seconds, not none."""
    pace, produced = Pace(0.0), 0
    for tick in range(1, 1001):
        pace, due = pace.advance(tick / 100, 1.5)
        produced += due
    assert produced in (14, 15)


def test_a_short_stall_is_caught_up() -> None:
    """Half a second without a tick: all of its records are due at the next one."""
    _, due = Pace(10.0).advance(10.5, 1000)
    assert due == 500


def test_a_long_stall_is_caught_up_for_a_second_only() -> None:
    """Ten seconds without a tick at 1,000 records/s: 1,000 are due, 9,000 are let go and counted."""
    pace, due = Pace(10.0).advance(20.0, 1000)
    assert due == 1000
    assert pace.let_go == 9000


def test_a_clock_that_goes_back_owes_nothing() -> None:
    """And the time until it is where it was does not count twice."""
    pace, due = Pace(10.0).advance(9.0, 1000)
    assert due == 0
    assert pace.advance(10.0, 1000)[1] == 0


@given(
    steps=st.lists(st.floats(0, MAX_CATCH_UP_SECONDS), min_size=1, max_size=200),
    rate=st.floats(0, 10_000),
)
def test_what_is_produced_is_rate_times_time(steps: list[float], rate: float) -> None:
    """The count is exact to one record with irregular ticks, as long as none is a stall."""
    pace, now, produced = Pace(0.0), 0.0, 0
    for step in steps:
        now += step
        pace, due = pace.advance(now, rate)
        assert due >= 0
        assert 0 <= pace.fraction < 1
        produced += due
    assert abs(produced - rate * now) <= 1 + 1e-6 * rate * now


@given(steps=st.lists(st.floats(0, 30), min_size=1, max_size=50), rate=st.floats(0, 1000))
def test_nothing_is_forgotten_unsaid(steps: list[float], rate: float) -> None:
    """Produced and let go together are rate times time."""
    pace, now, produced = Pace(0.0), 0.0, 0
    for step in steps:
        now += step
        pace, due = pace.advance(now, rate)
        produced += due
    assert abs(produced + pace.let_go - rate * now) <= 1 + 1e-6 * rate * now
