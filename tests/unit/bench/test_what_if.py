"""Predicted beside measured: the arithmetic of `make bench-what-if`."""

from datetime import timedelta
from typing import Any

import pytest

from bench.what_if.__main__ import picture, readings
from bench.what_if.figures import Measured, at, between, compared, mean_difference, rate_within, summary
from cli.trial.events import Event
from predictor import parse_load, what_if
from tests.unit.planner.build import NOON, WORK, analysis


def told(load: str, horizon: float = 60.0) -> Any:
    return what_if(analysis(), {}, parse_load(load), horizon)


def measured(rate: float, lag_per_second: float = 0.0, busy: float = 0.8) -> Measured:
    """A job that takes in `rate` records/s, whose lag grows evenly; at the sink a second more."""
    seconds = [float(t) for t in range(61)]
    return Measured(
        source_lag=[(t, t * lag_per_second) for t in seconds],
        sink_lag=[(t, 1.0 + t * lag_per_second) for t in seconds],
        positions=[(t, 5000 + t * rate) for t in seconds],
        utilisation={WORK: busy},
    )


def test_a_prediction_that_came_true() -> None:
    """1,600/s on 1,000/s: the lag grows by 3/8 s each second, as was said."""
    found = compared(told("x2"), measured(1000, 3 / 8, 1.0))
    assert found["throughput"]["relative_error"] == pytest.approx(0, abs=1e-3)
    assert found["keeps_up"] == {"predicted": False, "measured": False}
    assert found["utilisation"][WORK]["error"] == 0
    assert found["final_lag_seconds"]["source"]["error"] == pytest.approx(0, abs=0.1)
    assert found["mean_lag_difference_seconds"] == {
        "source": pytest.approx(0, abs=0.1),
        "sink": pytest.approx(1, abs=0.1),
    }


def test_a_prediction_that_did_not() -> None:
    """The job took in only 900 of 1,000 promised: 11 % too much was said."""
    found = compared(told("x2"), measured(900, 0.5, 1.0))
    assert found["throughput"]["relative_error"] == pytest.approx(1000 / 900 - 1, abs=1e-3)
    assert found["final_lag_seconds"]["source"]["relative_error"] == pytest.approx(22.5 / 30 - 1, abs=0.02)


def test_positions_told_late_are_no_lag() -> None:
    """A source tells where it is up to a second late: what it takes in is read over all readings, and that it keeps up at the sink."""
    late = [(float(t), 5000 + 800.0 * (t - (t % 3) / 2)) for t in range(61)]
    steady = measured(800)
    found = compared(told("x1"), Measured(steady.source_lag, steady.sink_lag, late, steady.utilisation))
    assert found["keeps_up"] == {"predicted": True, "measured": True}
    assert found["throughput"]["measured"] == pytest.approx(800, rel=0.01)


def test_the_summary_counts_verdicts_and_errors() -> None:
    """One right, one wrong: it was said to keep up and took in half."""
    pairs = [compared(told("x1"), measured(800)), compared(told("x1"), measured(400, 0.5))]
    found = summary(pairs)
    assert (found["questions"], found["answered"], found["verdicts_right"]) == (2, 2, 1)
    assert found["throughput_relative_error"]["max"] == pytest.approx(1.0, abs=1e-2)


def test_what_was_not_answered_has_no_error() -> None:
    """Unknown capacities give no figures, and none are made up for the comparison."""
    blind = what_if(analysis(selectivity=None), {}, parse_load("x2"), 60)
    found = compared(blind, measured(1000))
    assert found["throughput"] == {"predicted": None, "measured": 1000.0, "error": None, "relative_error": None}
    assert summary([found])["answered"] == 0


def test_series_are_read_between_their_readings() -> None:
    """Constant beyond the ends, linear between; rates need two readings."""
    series = [(0.0, 0.0), (10.0, 5.0)]
    assert [between(series, t) for t in (-1, 4, 10, 99)] == [0, 2, 5, 5]
    assert (at(series, 9.9), at([], 1.0)) == (0.0, None)
    assert mean_difference([], series) is None
    assert rate_within(series, 0, 5) is None
    assert rate_within(series, 0, 10) == 0.5


def test_the_feed_is_read_by_when_things_were_observed() -> None:
    """What is before the change or behind the horizon, or not wholly known, is left out."""

    def event(kind: str, seconds: float, **data: Any) -> Event:
        return Event("1", kind, {"observed_at": (NOON + timedelta(seconds=seconds)).isoformat(), **data})

    def offsets(*values: int | None) -> list[dict[str, int | None]]:
        return [{"current_offset": value} for value in values]

    events = [
        event("observation", -1, partitions=offsets(1, 1)),
        event("observation", 2, partitions=offsets(10, 20)),
        event("observation", 1, partitions=offsets(5, 6)),
        event("observation", 3, partitions=offsets(10, None)),
        event("analysis", 2, lag_seconds={"value": 1.5}),
        event("analysis", 3, lag_seconds={"value": None}),
        event("analysis", 61, lag_seconds={"value": 9.0}),
    ]
    assert readings(events, NOON.timestamp(), 60) == ([(1.0, 11.0), (2.0, 30.0)], [(2.0, 1.5)])


def test_the_picture_is_drawn_also_of_a_question_without_an_answer() -> None:
    """Its curves are the measured ones."""
    result = {
        "parallelism": 3,
        "rate": 900.0,
        "series": {"predicted_lag_seconds": [], "source_lag_seconds": [[0.0, 1.0]]},
    }
    result["series"]["sink_lag_seconds"] = [[0.0, 1.0], [30.0, 2.0]]  # type: ignore[index]
    assert picture({"horizon_seconds": 60.0, "questions": [result]})
