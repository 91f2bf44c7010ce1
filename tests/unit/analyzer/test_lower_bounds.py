"""Lower bounds: what the known part of arrivals and lag proves while the rest is unknown."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.analyzer.story import Job, Loop
from weir_contracts import Analysis, Observation, PartitionReading


def _watched(loop: Loop, seconds: float, changed: Callable[[PartitionReading], dict[str, Any]]) -> Analysis:
    """Scrape for a while, with changes to what is read of each partition."""
    last = None
    for _ in range(round(seconds / loop.job.interval)):
        loop.job.run_for(loop.job.interval)
        last = loop.see(_with(loop.job.observe(), changed))
    assert last is not None
    return last


def _with(observation: Observation, changed: Callable[[PartitionReading], dict[str, Any]]) -> Observation:
    partitions = [p.model_copy(update=changed(p)) for p in observation.partitions]
    return observation.model_copy(update={"partitions": partitions})


def _never_read(p: PartitionReading) -> dict[str, Any]:
    """Five old records in the last partition, of which the source has read none and which gets no more."""
    return {"log_end_offset": 5, "current_offset": None} if p.partition == 3 else {}


def test_a_partition_without_a_position_leaves_the_others_lag_as_a_lower_bound() -> None:
    """A partition that was never consumed has no committed offset, for KEDA an invalid one of -1
    (github.com/kedacore/keda/issues/5274). The other three of four lag by 40 s, which grows."""
    loop = Loop()
    _watched(loop, 60, _never_read)
    loop.job.stages[1].subtask_rate = 1e-9
    analysis = _watched(loop, 40, _never_read)
    lag = analysis.lag_records
    assert lag.value is None
    assert lag.lower_bound == pytest.approx(40 * 300 * 3 / 4, rel=0.02)
    assert lag.basis.startswith("the position in 1 of 4 partitions is unknown")
    assert analysis.lag_seconds.value is None
    assert analysis.lag_seconds.lower_bound == pytest.approx(40, abs=2.5)
    assert analysis.lag_growth.lower_bound == pytest.approx(300 * 3 / 4, rel=0.1)
    missing = next(s for s in analysis.symptoms if s.code == "metric-missing")
    assert "lag at least 9,000 records" in missing.evidence
    assert missing.numbers["lower_bound"] == lag.lower_bound


def test_a_lower_bound_ends_once_every_position_is_known() -> None:
    """The first record is read from the last partition: from then on the lag is known, and the jump in the sum of
    partitions is no growth."""
    loop = Loop()
    loop.job.stages[1].subtask_rate = 1e-9
    _watched(loop, 60, lambda p: {"current_offset": None} if p.partition == 3 else {})
    loop.now()
    analysis = loop.now()
    assert analysis.lag_records.lower_bound is None
    assert analysis.lag_records.value == pytest.approx(64 * 300, rel=0.02)
    assert analysis.lag_growth.value == pytest.approx(300, rel=0.1)


def test_a_partition_whose_log_end_cannot_be_read_leaves_the_others_arrivals_as_a_lower_bound() -> None:
    """One broker of several is away: its partitions have no leader to ask."""
    loop = Loop()
    loop.watch(60)
    analysis = _watched(loop, 6, lambda p: {"log_end_offset": None} if p.partition == 0 else {})
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(300 * 3 / 4, rel=0.05)
    enrich = analysis.operator("enrich")
    assert enrich is not None
    assert enrich.target_input_rate.value is None
    assert enrich.target_input_rate.lower_bound == pytest.approx(300 * 3 / 4, rel=0.05)


def test_nothing_known_proves_nothing() -> None:
    """No partition has a position: there is neither a value nor a lower bound."""
    loop = Loop(Job())
    analysis = _watched(loop, 20, lambda _: {"current_offset": None})
    assert analysis.lag_records.value is None
    assert analysis.lag_records.lower_bound is None
    assert analysis.lag_seconds.proven is None
