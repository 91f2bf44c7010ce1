"""Rules of the contest, and how long a task stands still by its commits."""

import pytest

from bench.contest import Contestant, Sample
from bench.streams.rules import LagRule
from weir_planners.keda_kafka import KedaKafkaParameters, Partition


def partitions(*lags: int) -> list[Partition]:
    return [Partition(100, 100 + lag) for lag in lags]


@pytest.mark.parametrize(("lags", "wanted"), [((0, 0), 1), ((12, 12), 3), ((9, 0), 1)])
def test_keda_s_defaults_are_ten_records_a_replica(lags: tuple[int, ...], wanted: int) -> None:
    """The total counts at most ten records a partition, but its integer division lets one replica more pass."""
    rule = LagRule(KedaKafkaParameters(), 6, 300.0)
    assert rule.decide(0.0, 1, partitions(*lags)) == wanted
    assert LagRule(KedaKafkaParameters(), 6, 300.0).decide(0.0, 1, partitions(5000, 5000)) == 2


def test_a_rule_goes_down_by_the_largest_recommendation_of_its_window() -> None:
    """As the autoscaler that KEDA feeds; up it goes to at most twice the size, or to four, at a time."""
    rule = LagRule(KedaKafkaParameters(lag_threshold=100, allow_idle_consumers=True), 6, 10.0)
    assert rule.decide(0.0, 1, partitions(1000)) == 4
    assert rule.decide(5.0, 4, partitions(0)) == 6
    assert rule.decide(16.0, 6, partitions(0)) == 1


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
