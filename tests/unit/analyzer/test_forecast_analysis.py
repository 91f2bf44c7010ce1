"""The forecast as part of an analysis: where its minutes come from, its horizons, and its state."""

import json
import math
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.analyzer.story import NOON, Job, Loop
from weir_analyzer.core import seed
from weir_analyzer.core.forecast.application import ForecastState, own_horizon_seconds
from weir_contracts import MAX_NUMBER, Analysis, observation_id

SOURCE = "Source: orders"


def _expected(analysis: Analysis) -> float:
    """Return the rate that is expected next."""
    found = analysis.forecast(SOURCE)
    assert found is not None
    return found.path[0].records_per_second


def test_a_source_has_a_forecast_after_its_first_minutes() -> None:
    """The rate of all partitions together is expected to stay; before that there is no forecast."""
    loop = Loop()
    assert loop.watch(20).forecasts == []
    analysis = loop.watch(160)
    assert _expected(analysis) == pytest.approx(300, rel=0.02)
    found = analysis.forecast(SOURCE)
    assert found is not None and found.method == "last-value"
    assert [each.horizon_seconds for each in found.horizons] == [60, 300, 600, 1800, 3600]
    assert analysis.forecast("enrich") is None


def test_the_forecast_moves_with_the_present_minute() -> None:
    """Half a minute after the load doubled, half of it is in the forecast; after a minute and a half all of it."""
    loop = Loop(Job(interval=5))
    loop.watch(240)
    loop.job.rate = 600
    half, whole = _expected(loop.watch(30)), _expected(loop.watch(90))
    assert 400 < half < 500
    assert whole == pytest.approx(600, rel=0.02)


def test_the_job_need_not_run() -> None:
    """Arrivals are the brokers': a job that restarts changes no forecast, and an engine that does not answer leaves it."""
    loop = Loop(Job(interval=10))
    loop.watch(180)
    loop.job.status = "not_running"
    assert _expected(loop.watch(60)) == pytest.approx(300, rel=0.02)
    away = loop.now(status="unreachable", topology=None, run=None, deployment=None, operators=[])
    assert _expected(away) == pytest.approx(300, rel=0.02)


def test_a_topic_made_again_teaches_nothing() -> None:
    """The log begins again at a few records: neither a fall nor a surge is learned from it."""
    loop = Loop(Job(interval=10))
    loop.watch(300)
    loop.job.ends = [end % 7 for end in loop.job.ends]
    loop.job.positions = [0.0] * len(loop.job.positions)
    for _ in range(12):
        assert _expected(loop.watch(10)) == pytest.approx(300, rel=0.05)


def test_a_partition_without_an_offset_leaves_its_time_out() -> None:
    """A sum over some of the partitions is no rate of the source."""
    loop = Loop(Job(interval=10))
    loop.watch(300)
    for _ in range(4):
        loop.job.run_for(10)
        observation = loop.job.observe()
        first, *others = observation.partitions
        unknown = [first.model_copy(update={"log_end_offset": None}), *others]
        loop.see(observation.model_copy(update={"partitions": unknown}))
    assert _expected(loop.watch(60)) == pytest.approx(300, rel=0.02)


def test_a_source_without_a_log_has_its_estimated_rate() -> None:
    """Where no log is known, throughput plus growth of lag is the demand; where it is a lower bound only, as the source is
    held back and reports no lag, there is no forecast."""
    loop = Loop(Job(interval=10))
    for _ in range(30):
        loop.job.run_for(10)
        observation = loop.job.observe(partitions=[])
        source, *others = observation.operators
        operators = [source.model_copy(update={"pending_records": 0}), *others]
        loop.see(observation.model_copy(update={"operators": operators}))
    assert _expected(loop.analyses[-1]) == pytest.approx(300, rel=0.02)
    blind = Loop(Job(interval=10, rate=900))
    for _ in range(30):
        assert blind.now(partitions=[]).forecasts == []


_STEPS = st.sampled_from([0.0, -3600.0, 1500.0, 86_400.0, 7 * 86_400.0])
_RATES = st.sampled_from([0.0, 0.01, 300.0, 1e9])


@examples(40)
@given(st.lists(st.tuples(_STEPS, _RATES, st.integers(1, 30)), min_size=1, max_size=8))
def test_no_clock_and_no_rate_spoils_a_forecast(stretches: list[tuple[float, float, int]]) -> None:
    """The clock jumps back an hour or forward a day, a week is missing, there is one reading a day, the load is none or
    10⁹/s or falls to nothing: every number is in bounds, a bound for longer than was ever observed is unknown, and the
    state is bounded. An observation that is older than the last one has no analysis."""
    loop, away, newest, observed = Loop(Job(interval=20)), 0.0, -math.inf, 0.0
    for step, rate, count in stretches:
        away, loop.job.rate = away + step, rate
        for _ in range(count):
            loop.job.run_for(20)
            seconds = loop.job.t + away
            at = NOON + timedelta(seconds=seconds)
            analysis = loop.see(loop.job.observe(observed_at=at, id=observation_id("shop/orders", at)))
            assert (analysis is None) == (seconds <= newest)
            if analysis is None:
                continue
            observed, newest = observed + 20, seconds
            _assert_in_bounds(analysis, observed)
    assert loop.memory is not None
    assert len(loop.memory.to_bytes()) < 30_000


def _assert_in_bounds(analysis: Analysis, observed_seconds: float) -> None:
    for found in analysis.forecasts:
        assert all(0 <= point.records_per_second <= MAX_NUMBER for point in found.path)
        assert all(0 <= a.after_seconds < b.after_seconds for a, b in pairwise(found.path))
        for each in found.horizons:
            assert 0 <= each.peak <= MAX_NUMBER
            if each.peak_upper is not None:
                assert each.peak <= each.peak_upper <= MAX_NUMBER
                assert each.horizon_seconds <= observed_seconds


def test_the_applications_own_horizon() -> None:
    """Interval + planning + restart + drain; new capacity that came late counts instead of a shorter restart."""
    observation = Job(interval=10).observe()
    assert own_horizon_seconds(ForecastState(), observation, None) == 10 + 5 + 8 + 30
    assert own_horizon_seconds(ForecastState(), observation, 20.0) == 10 + 5 + 20 + 30
    assert own_horizon_seconds(ForecastState(wait_seconds=180.0), observation, 20.0) == 10 + 5 + 180 + 30


def test_the_wait_for_new_capacity_is_learned() -> None:
    """Requested at once, running after 180 s: the application's own horizon is then a step longer than that."""
    loop = Loop(Job(interval=10))
    loop.watch(300)
    for _ in range(18):
        deployment = loop.job.observe().deployment
        assert deployment is not None
        loop.now(deployment=deployment.model_copy(update={"requested": {"enrich": 2}}))
    loop.job.restart({"enrich": 2})
    deployment = loop.job.observe().deployment
    assert deployment is not None
    loop.now(deployment=deployment.model_copy(update={"requested": {"enrich": 2}}))
    assert loop.memory is not None
    assert loop.memory.forecasts.wait_seconds == pytest.approx(180, abs=20)
    found = loop.watch(60).forecast(SOURCE)
    assert found is not None
    own = found.within(own_horizon_seconds(loop.memory.forecasts, loop.job.observe(), None))
    assert own is not None
    assert own.horizon_seconds == 300


def test_a_lost_state_forecasts_as_before() -> None:
    """An hour of a wave is in the analysis itself: the analyzer that is seeded from it expects the same rates."""
    loop = Loop(Job(interval=30))
    for minute in range(60):
        loop.job.rate = 300 + 100 * math.sin(minute / 10)
        last = loop.watch(60)
    kept = loop.memory
    loop.memory = seed(Analysis.model_validate_json(last.model_dump_json()))
    assert loop.memory is not None and kept is not None
    assert loop.memory.forecasts.series[SOURCE].text == kept.forecasts.series[SOURCE].text
    lost, before = loop.watch(90).forecast(SOURCE), last.forecast(SOURCE)
    assert lost is not None and before is not None
    assert [each.judged for each in lost.horizons] >= [each.judged for each in before.horizons]
    assert len(json.dumps(last.learned)) < 11_000


@pytest.mark.parametrize("forecasts", [None, [], {"series": 1}, {"series": {"a": [1, "?"]}, "wait_seconds": None}])
def test_an_unreadable_forecast_costs_no_capacity(forecasts: object) -> None:
    """All other learned values are kept."""
    last = Loop().watch(60)
    memory = seed(last.model_copy(update={"learned": last.learned | {"forecasts": forecasts}}))
    assert memory is not None
    assert memory.forecasts == ForecastState()
    assert memory.capacities
