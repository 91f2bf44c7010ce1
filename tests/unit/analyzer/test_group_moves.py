"""Time that a consumer group's tasks restore and warm up, learned from what is observed of them."""

from datetime import timedelta

import pytest

from tests.unit.planner.build import NOON, analysis, deployment
from weir_analyzer.core.lag import waiting_since
from weir_analyzer.core.restarts import RestartState, observed_group
from weir_analyzer.core.run import SourceState
from weir_analyzer.core.state import AnalyzerState, learned_of, seed
from weir_analyzer.core.window import AnalysisSettings
from weir_contracts import Deployment, Estimate, Group, Instance


def seen(restores: int | None = 0, *, probing: bool = False, state: str = "Stable") -> Deployment:
    """Return a group of one instance with so many records to restore."""
    at = NOON + timedelta(minutes=10) if probing else None
    group = Group(id="orders", state=state, members=1, probing_rebalance_at=at)
    return deployment(
        {"orders": 1}, group=group, instances=[Instance(id="a", threads=1, restore_remaining_records=restores)]
    )


def after(*observations: tuple[float, Deployment]) -> RestartState:
    found = RestartState()
    for at, each in observations:
        found = observed_group(found, each, at)
    return found


def test_a_restore_lasts_until_nothing_is_left() -> None:
    """Half of the newest time counts; a reading that is unknown neither begins nor ends a restore."""
    first = [(100.0, seen()), (110.0, seen(5000)), (120.0, seen(None)), (130.0, seen(100)), (140.0, seen())]
    assert after(*first).restore_seconds == 30.0
    assert after(*first, (200.0, seen(10)), (210.0, seen())).restore_seconds == 20.0
    assert after((100.0, seen(5000)), (110.0, seen(None))).restore_seconds is None


def test_a_warm_up_lasts_until_no_probing_rebalance_is_due() -> None:
    """In the rebalance itself no member carries the time of the next one: it ends nothing."""
    warm = [(0.0, seen(probing=True)), (600.0, seen(state="PreparingRebalance")), (605.0, seen(probing=True))]
    assert after(*warm).warm_up_seconds is None
    assert after(*warm, (1200.0, seen())).warm_up_seconds == 1200.0


def test_a_job_without_a_group_learns_nothing() -> None:
    """Its state stays the same object."""
    before = RestartState(4.0)
    assert observed_group(before, deployment({"work": 1}), 10.0) is before
    assert observed_group(before, None, 10.0) is before


def test_what_was_learned_outlives_the_state() -> None:
    """In the analysis."""
    state = AnalyzerState(
        observed_at=0.0, restarts=RestartState(4.0, 5.0, 2, restore_seconds=30.0, warm_up_seconds=600.0)
    )
    assert AnalyzerState.from_bytes(state.to_bytes()) == state
    learned = learned_of(state)
    again = seed(analysis(learned=learned))
    assert again is not None and again.restarts == state.restarts


@pytest.mark.parametrize(("counts_commits", "seconds"), [(True, 120.0), (False, 30.0)])
def test_windows_of_capacity_wait_for_commits_only_where_throughput_is_known_from_them(
    counts_commits: bool, seconds: float
) -> None:
    """Kafka's default of 30 s between commits. Lag is known from commits either way."""
    found = AnalysisSettings().following(30.0, counts_commits=counts_commits)
    assert found.capacity_window_seconds == seconds
    assert found.lag_window_seconds == 120.0


@pytest.mark.parametrize(
    ("records", "since"),
    [((0, 0, 0, 1800, 2700), None), ((0, 900, 1800, 2700, 3600), 5.0), ((900, 900, 900, 900, 900), None)],
)
def test_records_wait_since_the_first_commit_of_a_lag_that_changes(
    records: tuple[int, ...], since: float | None
) -> None:
    """A reading each 5 s, a commit each second, 300 records/s: for 10 s at least, and not as many throughout."""
    settings = AnalysisSettings().following(1.0, counts_commits=True)
    points = tuple((5.0 * i, float(count)) for i, count in enumerate(records))
    taken = Estimate(value=300.0, basis="counters", confidence=0.9)
    assert waiting_since(SourceState(points), taken, settings) == since
    assert waiting_since(SourceState(points), taken, AnalysisSettings()) is None
