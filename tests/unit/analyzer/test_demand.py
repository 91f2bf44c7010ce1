"""Demand from the brokers' offsets: steps, bursts, gaps."""

import pytest

from weir_analyzer.core import AnalysisSettings, demand, offsets
from weir_analyzer.core.offsets import LogHistory
from weir_contracts import PartitionReading

SETTINGS = AnalysisSettings()


def _history(ends: list[int | None], interval: float = 2.0, partitions: int = 1) -> tuple[LogHistory, float]:
    log, at = LogHistory(), 0.0
    for end in ends:
        at += interval
        readings = [
            PartitionReading(operator="s", topic="t", partition=p, log_end_offset=end) for p in range(partitions)
        ]
        log = offsets.extend(log, readings, at, interval_seconds=2)
    return log, at


def _rate(ends: list[int | None], interval: float = 2.0) -> float | None:
    log, at = _history(ends, interval)
    return demand.arrival_rate(log, "s", at, SETTINGS)[0].value


def test_one_scrape_has_no_rate() -> None:
    """A difference needs two."""
    assert _rate([100]) is None
    assert _rate([100, 300]) == 100


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.7, 1.0])
def test_a_tripled_load_is_seen_in_full_two_scrapes_after_it(fraction: float) -> None:
    """The step falls anywhere into the first interval; only the second shows the new level."""
    steady = [1000 * i for i in range(1, 21)]
    first = steady[-1] + int(1000 * (1 - fraction) + 3000 * fraction)
    assert _rate([*steady, first, first + 3000]) == pytest.approx(1500, rel=0.01)


def test_a_fall_is_believed_more_slowly() -> None:
    """After one quiet interval demand still comes from the window, after two from these two."""
    steady = [1000 * i for i in range(1, 21)]
    one = _rate([*steady, steady[-1] + 100])
    assert one is not None
    assert one > 300
    assert _rate([*steady, steady[-1] + 100, steady[-1] + 200]) == 50


def test_noise_is_no_step() -> None:
    """A few records more or less at a low rate leave the window alone."""
    ends, total = [], 0
    for i in range(20):
        total += 8 + (i % 3)
        ends.append(total)
    assert _rate([*ends, total + 14, total + 28]) == pytest.approx(5.5, rel=0.2)


def test_bursts_are_measured_from_end_to_end() -> None:
    """A transactional producer commits every 10 s: 3,000 records at once, then nothing; demand is 300/s throughout."""
    ends, total = [], 0
    for i in range(30):
        total += 3000 if i % 5 == 0 else 0
        ends.append(total)
        if i >= 15:
            assert _rate(ends[: i + 1]) == pytest.approx(300, rel=0.01)


def test_bursts_that_stop_fade() -> None:
    """Twice the usual pause without a burst: the silence counts."""
    ends, total = [], 0
    for i in range(20):
        total += 3000 if i % 5 == 0 else 0
        ends.append(total)
    after = _rate([*ends, *[total] * 10])
    assert after is not None
    assert after < 250


def test_a_load_that_stops_is_zero() -> None:
    """Zero is a measurement here, not an unknown."""
    assert _rate([*[1000 * i for i in range(1, 21)], *[20000] * 4]) == 0


def test_a_partition_without_an_end_makes_demand_unknown() -> None:
    """A sum with a missing part is no sum."""
    log, at = _history([100, 200, 300], partitions=2)
    readings = [PartitionReading(operator="s", topic="t", partition=0, log_end_offset=400)]
    log = offsets.extend(log, readings, at + 2, interval_seconds=2)
    rate, trend = demand.arrival_rate(log, "s", at + 2, SETTINGS)
    assert rate.value is None
    assert trend.value is None


def test_a_partition_seen_again_is_bridged() -> None:
    """One scrape without it: its records come back spread over the time between."""
    log, at = _history([100, 200, 300], partitions=2)
    missing = [PartitionReading(operator="s", topic="t", partition=0, log_end_offset=400)]
    log = offsets.extend(log, missing, at + 2, interval_seconds=2)
    both = [PartitionReading(operator="s", topic="t", partition=p, log_end_offset=500) for p in range(2)]
    log = offsets.extend(log, both, at + 4, interval_seconds=2)
    assert demand.arrival_rate(log, "s", at + 4, SETTINGS)[0].value == pytest.approx(100)


def test_offsets_that_stay_away_are_not_taken_for_today() -> None:
    """12 s after the last offsets demand is unknown, and until then less sure."""
    log, at = _history([1000 * i for i in range(1, 11)])
    fresh = demand.arrival_rate(log, "s", at, SETTINGS)[0]
    late = demand.arrival_rate(log, "s", at + 6, SETTINGS)[0]
    assert late.value == fresh.value
    assert late.confidence < fresh.confidence
    assert demand.arrival_rate(log, "s", at + 13, SETTINGS)[0].value is None


def test_the_trend_is_a_least_squares_slope() -> None:
    """Demand that grows by 10 records/s each second says so."""
    ends = [int(5 * (2 * i) ** 2) for i in range(1, 31)]
    log, at = _history(ends)
    trend = demand.arrival_rate(log, "s", at, SETTINGS)[1]
    assert trend.value == pytest.approx(10, rel=0.05)


def test_history_thins_with_age_and_never_erodes() -> None:
    """Two hours at 2 s: 40 minutes are kept, in fewer than 100 rows, dense at the end."""
    log, at = _history([300 * i for i in range(3600)])
    assert len(log.rows) < 100
    assert at - log.rows[0][0] > 2200
    assert [round(at - observed) for observed, _ in log.rows[-4:]] == [6, 4, 2, 0]
    gaps = [b[0] - a[0] for a, b in zip(log.rows, log.rows[1:], strict=False)]
    ages = [at - observed for observed, _ in log.rows[1:]]
    assert all(gap <= max(4, age / 5) for gap, age in zip(gaps, ages, strict=True))


def test_very_many_partitions_stay_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are limited, so rows get sparse instead of the state large."""
    monkeypatch.setattr(offsets, "_MAX_CELLS", 2000)
    log, at = _history([300 * i for i in range(240)], interval=10, partitions=50)
    assert len(log.rows) * 50 <= 3000
    assert at - log.rows[0][0] > 1500


def test_deleted_partitions_are_forgotten() -> None:
    """When a topic leaves the application, its columns leave with the last row that has them."""
    log, at = _history([100, 200])
    for i in range(40):
        other = [PartitionReading(operator="s", topic="u", partition=0, log_end_offset=i)]
        log = offsets.extend(log, other, at + 100 * (i + 1), interval_seconds=2)
    assert log.keys == ("s\nu\n0",)


def test_a_load_that_returns_after_a_trickle_is_measured_in_full() -> None:
    """A few records now and then, as bursts; then 1,300/s: two scrapes later that is the rate, and no pause thins it
    out."""
    trickle = [12 * (i // 3) for i in range(30)]
    returned = [trickle[-1] + 2600 * i for i in range(1, 4)]
    assert _rate([*trickle, *returned[:2]]) == pytest.approx(1300, rel=0.01)
    assert _rate([*trickle, *returned]) == pytest.approx(1300, rel=0.01)


def test_the_tail_of_a_column_gives_the_same_append_time_as_all_of_it() -> None:
    rows = tuple((float(t), [None if t % 7 == 3 else t * t]) for t in range(40))
    log = LogHistory(("s\nt\n0",), rows)
    for offset in range(-1, 1600, 3):
        points = offsets.tail(log, 0, offset)
        assert offsets.appended_at(points, offset) == offsets.appended_at(offsets.column(log, 0), offset)
    assert len(offsets.tail(log, 0, 1500)) == 2


def test_a_new_partition_of_one_of_two_sources() -> None:
    """The rows before it have as many ends as the source now has partitions, but one of them is the other source's."""
    log = LogHistory()
    for at, ends in ((2.0, {"a": [100], "b": [9000]}), (4.0, {"a": [300, 50], "b": [9000]})):
        readings = [
            PartitionReading(operator=name, topic=name, partition=p, log_end_offset=end)
            for name, values in ends.items()
            for p, end in enumerate(values)
        ]
        log = offsets.extend(log, readings, at, interval_seconds=2)
    assert demand.arrival_rate(log, "a", 4.0, SETTINGS)[0].value == 100
    assert demand.arrival_rate(log, "b", 4.0, SETTINGS)[0].value == 0
