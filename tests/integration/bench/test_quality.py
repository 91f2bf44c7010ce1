"""The table of `make bench-quality`: every strategy is measured on the same days in the same way."""

from dataclasses import replace

from bench.quality import around_the_peak, held
from weir_replay.options import ReplayOptions

OPTIONS = ReplayOptions(trace="", duration_seconds=4 * 3600.0, noise=0.0)
TRACE = "worldcup98_minutes"


def test_the_days_begin_at_a_midnight_and_hold_the_highest_point() -> None:
    """The peak of the recording is within the day around it, at the rate that was asked for."""
    prepared = around_the_peak(TRACE, replace(OPTIONS, duration_seconds=86_400.0, peak_rate=1000.0))

    rates = [prepared.trace.rate_at(minute * 60.0) for minute in range(24 * 60)]

    assert prepared.trace.start_seconds % 86_400 == 0
    assert abs(max(rates) - 1000.0) < 1.0


def test_a_parallelism_for_the_peak_is_never_late_and_costs_the_most() -> None:
    """Static parallelism for the peak holds the objective; that for the mean costs less; neither ever rescales."""
    peak, mean = held(TRACE, "static-peak", OPTIONS), held(TRACE, "static-mean", OPTIONS)

    assert peak.score.violation_share == 0.0
    assert mean.score.slot_seconds <= peak.score.slot_seconds
    assert (peak.score.rescales, mean.score.rescales) == (0, 0)


def test_the_reactive_rule_follows_the_load() -> None:
    """On the day of the highest point the rule rescales, and holds less than a parallelism for the peak."""
    day = replace(OPTIONS, duration_seconds=86_400.0)
    rule, peak = held(TRACE, "reactive", day), held(TRACE, "static-peak", day)

    assert rule.score.rescales > 2
    assert rule.score.slot_seconds < peak.score.slot_seconds
