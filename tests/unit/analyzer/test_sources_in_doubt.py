"""Sources without offsets whose metrics disappear, stand still or count something else for a while."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.analyzer.story import Job, Loop
from tests.unit.analyzer.test_sources_without_offsets import (
    ORDERS,
    _behind,
    _named,
    _pending,
    _seen,
    _without_offsets,
)
from weir_contracts import Observation

CALM: dict[str, Any] = {
    "busy_ms": None,
    "idle_ms": None,
    "backpressured_ms": None,
    "busy_share_mean": 0.3,
    "backpressure_share_mean": 0.0,
}
"""Shares of a source that waits for the system that it reads, neither busy nor held back."""


def test_pending_records_that_disappear_are_not_read_to_their_end() -> None:
    """18,000 records wait, and in one scrape Flink does not answer the request for the source's metrics. The source waits for
    its system, neither busy nor held back. Nothing says that the records are gone."""
    loop = Loop(Job(rate=900))
    before = _seen(loop, 60, _pending(loop, **CALM))
    assert before.lag_records.value == pytest.approx(18_000, rel=0.05)
    analysis = _seen(loop, 2, _without_offsets(**CALM))
    assert analysis.lag_records.value is None
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(600, rel=0.05)
    again = _seen(loop, 4, _pending(loop, **CALM))
    assert again.arrival_rate.value == pytest.approx(900, rel=0.05)


def test_an_age_of_shards_that_is_missing_once_is_not_the_end_of_the_shards() -> None:
    """As for waiting records: a source of Kinesis that is 33 s behind has not caught up because one request failed."""
    loop = Loop(Job(rate=900))
    _seen(loop, 60, _behind(loop, **CALM))
    analysis = _seen(loop, 2, _without_offsets(**CALM))
    assert analysis.lag_seconds.value is None
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(600, rel=0.05)
    assert _seen(loop, 4, _behind(loop, **CALM)).arrival_rate.value == pytest.approx(900, rel=0.05)


def test_pending_records_that_never_come_back_do_not_leave_the_demand_unknown() -> None:
    """A source that stops reporting them is one that does not report them, after the window of their trend."""
    loop = Loop()
    _seen(loop, 60, _pending(loop))
    assert _seen(loop, 90, _without_offsets()).arrival_rate.value == pytest.approx(300, rel=0.05)


@pytest.mark.parametrize("jumps", [True, False])
def test_what_is_taken_in_to_catch_up_is_no_lower_bound_when_pending_records_are_doubtful(jumps: bool) -> None:
    """300 records/s arrive, and 600 are taken in of a backlog. Then what waits jumps, or disappears: no more than 300 are
    proven to arrive."""
    loop = Loop(Job(rate=300))
    loop.job.ends[0] += 60_000
    _seen(loop, 60, _pending(loop))
    waiting = {"pending_records": 5_000_000} if jumps else {}
    idle = {"busy_ms": None, "idle_ms": None, "backpressured_ms": None, "busy_share_mean": 1.0}
    analysis = _seen(loop, 2, _without_offsets(**waiting, **({} if jumps else idle)))
    assert analysis.arrival_rate.value is None
    assert (analysis.arrival_rate.lower_bound or 0) <= 330


def test_shards_scraped_three_times_a_minute_bring_less_than_is_taken_in_while_it_catches_up() -> None:
    """With an interval of 20 s the window of lag has two ages. 300 records/s arrive, and 600 of the backlog are taken in:
    those are no lower bound, with which the job would grow for as long as it catches up."""
    loop = Loop(Job(rate=300, interval=20.0))
    loop.job.ends[0] += 300_000
    analysis = _seen(loop, 300, _behind(loop))
    assert analysis.arrival_rate.value == pytest.approx(300, rel=0.1)


def _stall(seconds: float) -> tuple[Loop, Callable[[Observation], Observation]]:
    """Return a job of one busy vertex after an outage of its sink, of so many seconds, in which it took nothing in."""
    loop = Loop(Job(rate=2000))
    loop.job.stages[0].subtask_rate = 600
    loop.job.stages[1].subtask_rate = 20_000
    edit = _without_offsets()
    _seen(loop, 60, edit)
    loop.job.stages[0].subtask_rate = 1e-9
    _seen(loop, seconds, edit)
    loop.job.stages[0].subtask_rate = 600
    return loop, edit


@pytest.mark.parametrize("seconds", [16, 40])
def test_a_saturated_source_is_believed_again_after_an_outage(seconds: float) -> None:
    """The sink is chained to the source, and its system is away for a while: 100 % busy and nothing taken in. Afterwards
    the vertex is saturated with its backlog, and never less busy: without its busy time it has no capacity for as long,
    and the job never grows."""
    loop, edit = _stall(seconds)
    analysis = _seen(loop, 120, edit)
    assert not analysis.has("contradiction")
    source = analysis.operator(ORDERS)
    assert source is not None
    assert source.true_processing_rate.value == pytest.approx(600, rel=0.05)
    assert analysis.arrival_rate.lower_bound == pytest.approx(600, rel=0.05)


@pytest.mark.parametrize("reported", [_pending, _behind], ids=["pending", "shards"])
def test_a_busy_source_is_believed_as_soon_as_records_wait(reported: Callable[..., Any]) -> None:
    """It does 560 of the 600 records/s that it can, and nothing waits: its 93 % may be a lie. Then 1,200 records/s come and
    wait, and it is never less busy: without its busy time it has no capacity, and the job never grows."""
    loop = Loop(Job(rate=560))
    loop.job.stages[0].subtask_rate = 600
    loop.job.stages[1].subtask_rate = 20_000
    edit = reported(loop)
    assert _seen(loop, 60, edit).has("contradiction")
    loop.job.rate = 1200
    analysis = _seen(loop, 90, reported(loop))
    assert not analysis.has("contradiction")
    source = analysis.operator(ORDERS)
    assert source is not None
    assert source.true_processing_rate.value == pytest.approx(600, rel=0.05)


def test_a_source_with_one_saturated_subtask_brings_at_least_what_it_takes_in() -> None:
    """One of four subtasks of a source of change data reads the log, fully busy: 25 % in the mean. What it cannot read is
    not known."""
    four = {"busy_share_mean": 0.25, "busy_share_max": 1.0, "busy_ms": None, "idle_ms": None}
    loop = Loop()
    loop.job.stages[0].parallelism = 4
    analysis = _seen(loop, 60, _without_offsets(**four))
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(300, rel=0.05)
    assert analysis.lag_records.value is None


def test_a_source_that_is_held_back_for_good_has_no_lag_of_0_by_a_metric() -> None:
    """Nothing is taken in as the sink stands still: what waits is unknown, and the metric stands still, too."""
    loop = Loop(Job(rate=300))
    edit = _named("currentFetchEventTimeLag", loop, _without_offsets(fetch_lag_seconds=2.0, idle_seconds=0.0))
    _seen(loop, 60, edit)
    loop.job.stages[1].subtask_rate = 1e-9
    assert _seen(loop, 60, edit).lag_seconds.value is None


def test_one_slow_shard_does_not_multiply_the_demand_of_all() -> None:
    """Three of four shards are read to their end, and the hot one at half its pace: twice what is taken in of all four is
    no demand, with which the job would grow until a bound stops it, as one shard has one subtask."""
    loop = Loop(Job(rate=300))
    for second in range(0, 60, 2):
        hot = {"behind_seconds": second / 2, "behind_shortest_seconds": 0.0}
        analysis = _seen(loop, 2, _without_offsets(**hot))
    assert analysis.arrival_rate.value is None
    assert analysis.arrival_rate.lower_bound == pytest.approx(300, rel=0.05)
    assert analysis.lag_seconds.value == pytest.approx(29)
