"""The demo's day, without its two minutes."""

import pytest

from weir_cli.client import InvalidInput
from weir_cli.demo_run import PACE, SPEEDUP, prepared_day


def test_the_day_is_one_of_the_recording_and_takes_two_minutes() -> None:
    """Without an end the recording gave twelve days in the time of one."""
    day = prepared_day("rate")
    assert day.duration_seconds * SPEEDUP == 86_400.0
    assert day.duration_seconds / PACE == 120.0


def test_an_unknown_planner_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no-such-planner"):
        prepared_day("no-such-planner")
