"""The compared strategies decide as the rules they represent."""

import pytest

from bench.compare import optimum_slot_seconds
from bench.contest import Contestant, Sample
from bench.strategies import Busy, Reactive, min_parallelism_for


def test_utilization_is_unknown_while_counters_are() -> None:
    """While tasks start Flink reports no busy time, and after a rescale it counts from 0."""
    before = Busy(1000.0, 900.0, 100.0, 2)

    assert Busy(1900.0, 950.0, 150.0, 2).since(before) == 0.9
    assert Busy(None, 950.0, 150.0, 2).since(before) is None
    assert Busy(1900.0, None, 150.0, 2).since(before) is None
    assert Busy(1900.0, 950.0, 150.0, 3).since(before) is None
    assert Busy(10.0, 9.0, 1.0, 2).since(before) is None


def test_the_reactive_rule_goes_up_at_once_and_down_by_the_maximum_of_a_window() -> None:
    """At 90 % of a target of 70 % four become six; a lull of half the window takes nothing away, one of a full window
    does."""
    rule = Reactive(stabilization_seconds=300.0)

    assert rule.decide(0.0, {"enrich": 4}, {"enrich": 0.9}) == {"enrich": 6}
    assert rule.decide(150.0, {"enrich": 6}, {"enrich": 0.2}) == {"enrich": 6}
    assert rule.decide(301.0, {"enrich": 6}, {"enrich": 0.2}) == {"enrich": 2}


def test_within_the_tolerance_nothing_changes() -> None:
    """76 % of a target of 70 % is within ten percent of it; what is unknown stays as well."""
    assert Reactive().decide(0.0, {"a": 4, "b": 3}, {"a": 0.76, "b": None}) == {"a": 4, "b": 3}


def test_a_static_parallelism_carries_its_rate_at_its_utilization() -> None:
    """1,000/s at 80 % of subtasks of 485/s that lose 3 % to each other need three."""
    p = min_parallelism_for(1000.0, subtask_rate=485.0, contention=0.03, utilization=0.8)

    assert p == 3
    assert 485.0 * p / (1 + 0.03 * (p - 1)) * 0.8 >= 1000.0


def test_the_optimum_keeps_for_the_stabilization_what_was_needed() -> None:
    """Three subtasks are needed for ten seconds, then one: after 4 s of stabilization two are taken back."""
    samples = [Sample(float(at), 400.0 if at < 10 else 100.0, 0.0, 1) for at in range(21)]

    assert optimum_slot_seconds(samples) == 3 * 10 + 1 * 10
    assert optimum_slot_seconds(samples, 4.0) == 3 * 14 + 1 * 6


class _Silent:
    """Stands for a probe, which figures do not need."""


def test_what_an_application_costs_counts_until_the_next_sample() -> None:
    """An unknown number of instances is the last one; an unknown lag is no violation."""
    found = Contestant("weir", _Silent(), lambda: None)  # type: ignore[arg-type]
    observed = [(0.0, 1.0, 2), (1.0, 30.0, None), (3.0, None, 4), (4.0, 2.0, 4)]
    found.samples += [Sample(t, None, lag, size) for t, lag, size in observed]
    figures = found.figures(10.0)
    assert figures.size_seconds == 2 + 2 * 2 + 4
    assert figures.violation_share == pytest.approx(1 / 3, abs=1e-4)
    assert (figures.changes, figures.samples_without_lag, figures.max_lag_seconds) == (1, 1, 30.0)
