"""Topics: one cumulative curve, positions by partition, ages read off it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from weir_replay.simulator.log import AppendCurve, Topic


def test_when_a_record_was_appended() -> None:
    """100/s for ten seconds, nothing for ten, 50/s for ten: record 1,000 is the first of the last interval."""
    curve = AppendCurve()
    curve.append(10.0, 1000.0)
    curve.append(20.0, 0.0)
    curve.append(30.0, 500.0)
    assert curve.appended_at(500.0) == pytest.approx(5.0)
    assert curve.appended_at(999.999) == pytest.approx(10.0)
    assert curve.appended_at(1000.0) == pytest.approx(20.0)
    assert curve.appended_at(1250.0) == pytest.approx(25.0)
    assert curve.appended_at(1500.0) == 30.0


def test_what_nobody_will_ask_for_is_forgotten() -> None:
    """And what is kept is as before."""
    curve = AppendCurve()
    for second in range(1, 101):
        curve.append(float(second), 10.0)
    curve.forget_before(500.0)
    assert curve.appended_at(505.0) == pytest.approx(50.5)
    assert curve.total == 1000.0


def test_partitions_that_fill_unevenly_age_unevenly() -> None:
    """Half of all records are in the first of three partitions, whose subtask can do no more than the others': it falls
    behind."""
    topic = Topic([0.5, 0.25, 0.25])
    topic.assign(3)
    topic.curve.append(10.0, 400.0)
    assert topic.take(1000.0, per_subtask=100.0) == pytest.approx(300.0)
    assert topic.positions() == pytest.approx([100.0, 100.0, 100.0])
    assert topic.ends() == pytest.approx([200.0, 100.0, 100.0])
    assert topic.lag_seconds(10.0) == pytest.approx(5.0)


def test_a_subtask_with_more_partitions_falls_behind() -> None:
    """Four partitions on three subtasks: the one with two of them has twice the work."""
    topic = Topic([0.25] * 4)
    topic.assign(3)
    assert topic.busiest_share == 0.5
    topic.curve.append(10.0, 400.0)
    assert topic.take(1000.0, per_subtask=100.0) == pytest.approx(300.0)
    assert topic.positions() == pytest.approx([100.0, 100.0, 100.0, 0.0])


def test_partitions_are_read_in_turn_each_as_far_as_it_was_fetched() -> None:
    """Three partitions with 100 records each: what was fetched of one is read before the next has its turn, as with
    Kafka's consumer, so the last one's oldest record grows old while the others are read."""
    topic = Topic([1 / 3] * 3, fetch_records=60.0)
    topic.assign(1)
    topic.curve.append(10.0, 300.0)
    assert topic.take(90.0, per_subtask=90.0) == pytest.approx(90.0)
    assert topic.positions() == pytest.approx([60.0, 30.0, 0.0])
    assert topic.reported_positions() == [pytest.approx(60.0), pytest.approx(30.0), None]
    topic.curve.append(11.0, 0.0)
    assert topic.lag_seconds(11.0) == pytest.approx(11.0)
    topic.take(150.0, per_subtask=150.0)
    assert topic.positions() == pytest.approx([100.0, 80.0, 60.0])
    assert topic.take(1000.0, per_subtask=1000.0) == pytest.approx(60.0)
    assert topic.lag_seconds(11.0) == 0.0


@examples(40)
@given(
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    steps=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 1e4)), min_size=1, max_size=12),
    subtasks=st.integers(1, 12),
)
def test_what_was_appended_was_read_or_waits(
    weights: Sequence[float], steps: Sequence[tuple[float, float, float]], subtasks: int
) -> None:
    """No position passes its end, none goes back, and no more is read than was allowed."""
    topic = Topic([weight / sum(weights) for weight in weights])
    topic.assign(subtasks)
    before = topic.positions()
    for i, (records, max_records, per_subtask) in enumerate(steps):
        topic.curve.append(float(i + 1), records)
        waiting = topic.backlog
        taken = topic.take(max_records, per_subtask)
        assert -1e-6 <= taken <= min(max_records, waiting) * (1 + 1e-9) + 1e-6
        after = topic.positions()
        assert sum(after) == pytest.approx(topic.taken, abs=1e-5)
        assert topic.taken + topic.backlog == pytest.approx(topic.curve.total, abs=1e-5)
        for old, new, end in zip(before, after, topic.ends(), strict=True):
            assert old - 1e-5 <= new <= end + 1e-5
        assert 0.0 <= topic.lag_seconds(float(i + 1)) <= i + 1
        before = after
