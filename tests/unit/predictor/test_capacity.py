"""Capacity curves: near what was seen, sublinear as usual or as measured, with an interval around."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.planner.build import WORK, after, operator, point
from weir_contracts import MAX_NUMBER, MIN_NUMBER, CapacityPoint
from weir_predictor.capacity import CapacityCurve, curve_of
from weir_replay.simulator import OperatorSpec
from weir_replay.simulator.capacity import hottest_share, sustained


def test_one_parallelism_seen_bends_as_usual() -> None:
    """2 subtasks do 1,000/s: 4 are taken to do a little less than 2,000, as those of other applications."""
    curve = curve_of(operator(WORK, 2, None, None, capacities=[point(2, 1000)]))
    assert curve is not None
    assert curve.points == 1
    assert curve.rate(2) == pytest.approx(1000)
    assert 1850 < curve.rate(4) < 1950
    assert (curve.needed(1001), curve.needed(1000)) == (3, 2)


def test_a_serial_share_is_found() -> None:
    """Points on C(p) = 500p / (1 + 0.1(p − 1)) give it back, and a ceiling near 5,000/s that no parallelism passes."""
    points = [point(p, 500 * p / (1 + 0.1 * (p - 1))) for p in (1, 2, 4, 8, 16)]
    curve = curve_of(operator(WORK, 4, None, None, capacities=points))
    assert curve is not None
    assert curve.rate(32) == pytest.approx(500 * 32 / 4.1, rel=0.03)
    assert curve.ceiling == pytest.approx(5000, rel=0.06)
    assert curve.needed(2300) == 8
    assert curve.needed(5600) is None


def test_a_noisy_present_does_not_pin_the_curve() -> None:
    """1 subtask did 500/s and 4 did 1,900: that 2 do 600 now is mostly noise."""
    measured = [point(1, 500), point(2, 600, saturated=False, confidence=0.4), point(4, 1900)]
    curve = curve_of(operator(WORK, 2, None, None, capacities=measured))
    assert curve is not None
    assert 800 < curve.rate(2) < 1000
    assert curve.rate(4) == pytest.approx(1900, rel=0.1)


def test_the_present_rate_counts_where_no_point_of_it_was_kept() -> None:
    """The analysis reports 700/s now; the learned points are of another parallelism."""
    curve = curve_of(operator(WORK, 2, 700.0, None, capacities=[point(1, 500)]))
    assert curve is not None
    assert curve.points == 2
    assert 700 < curve.rate(2) < 900


def test_a_hot_key_bends_the_curve_before_more_subtasks_were_tried() -> None:
    """A tenth of all records has one key: of 2 subtasks the busiest does 1.1 times the mean, of 15 it will do 2.4 times."""
    seen = point(2, 890).model_copy(update={"skew": 1.1})
    curve, even = curve_of(operator(WORK, 2, None, None, capacities=[seen])), curve_of_one(890)
    assert curve is not None
    assert curve.rate(2) == pytest.approx(890)
    assert curve.rate(15) == pytest.approx(even.rate(15) * 1.1 / 2.4)
    assert curve.needed(2300) == 14
    assert curve.needed(2 * curve.ceiling) is None


def test_a_key_of_most_records_leaves_nothing_to_gain() -> None:
    """60 % have one key: beyond some subtasks more would do less, and no demand asks for them."""
    curve = curve_of(operator(WORK, 2, None, None, capacities=[point(2, 625).model_copy(update={"skew": 1.6})]))
    assert curve is not None
    assert curve.best is not None
    assert curve.best <= 8
    assert curve.rate(curve.best) == curve.ceiling
    assert curve.needed(curve.ceiling * 1.01) is None


def test_gauges_that_differ_a_little_are_no_hot_key() -> None:
    """4 %: the curve is that of an even load."""
    seen = point(2, 890).model_copy(update={"skew": 1.04})
    assert curve_of(operator(WORK, 2, None, None, capacities=[seen])) == curve_of_one(890)


def test_partitions_are_steps_of_the_curve() -> None:
    """Of 12 partitions the busiest of 7 to 11 subtasks has two, as the busiest of 6: they do what 6 do. More than 12 do
    what 12 do, and no parallelism does more."""
    curve = curve_of(operator(WORK, 6, None, None, capacities=[point(6, 600)]), 12)
    assert curve is not None
    assert [curve.rate(p) for p in (6, 7, 11)] == [pytest.approx(600)] * 3
    assert curve.rate(12) == curve.rate(13) == curve.ceiling > 1000
    assert [curve.needed(demand) for demand in (90.0, 440.0, 600.0, 601.0, 2000.0)] == [1, 6, 6, 12, None]


def test_key_groups_are_steps_of_the_curve() -> None:
    """128 key groups on 50 subtasks: the busiest has 3, as of 43, so that 50 do what 42.7 even ones would."""
    curve = curve_of(operator(WORK, 64, None, None, capacities=[point(64, 6400), point(32, 3200)]), 128)
    assert curve is not None
    assert curve.rate(50) == curve.rate(43) == pytest.approx(100 * 128 / 3, rel=0.05)
    assert curve.needed(4800) == 64


@pytest.mark.parametrize("skew", [None, 8 / 6])
def test_what_was_measured_between_two_steps_is_the_rate_of_the_lower_one(skew: float | None) -> None:
    """8 of 12 did 600 records/s: so will 6, and 12 nearly twice as many. The skew of 8 that the gauges show is the step,
    and counts once."""
    seen = point(8, 600).model_copy(update={"skew": skew})
    curve = curve_of(operator(WORK, 8, None, None, capacities=[seen]), 12)
    assert curve is not None
    assert curve.hot_share == 0
    assert curve.rate(6) == curve.rate(8) == pytest.approx(600)
    assert 1000 < curve.rate(12) < 1200


@pytest.mark.parametrize("hot", [0.0, 0.05])
def test_a_hot_key_on_top_of_the_steps(hot: float) -> None:
    """The busiest of 8 subtasks has 2 of 12 key groups and the hot key: the curve through its rate and its skew is that
    of an operator of which the busiest subtask does so much, at every parallelism."""
    made = OperatorSpec(name=WORK, service_seconds=0.01, hot_key_share=hot, max_parallelism=12)

    def sustained_at(p: int) -> float:
        return sustained(made, p, keyed=True)

    skew = 8 * hottest_share(made, 8, keyed=True)
    seen = [point(p, sustained_at(p)) for p in (2, 6)] + [point(8, sustained_at(8)).model_copy(update={"skew": skew})]
    curve = curve_of(operator(WORK, 8, None, None, capacities=seen), 12)
    assert curve is not None
    assert curve.hot_share == pytest.approx(hot, abs=1e-6)
    assert [curve.rate(p) for p in (3, 5, 11, 12)] == [pytest.approx(sustained_at(p), rel=0.07) for p in (3, 5, 11, 12)]


def test_between_two_steps_there_is_no_fall() -> None:
    """9 of 12 did a little less than 6, which are as good: that is no reason to believe that more do less."""
    curve = curve_of(operator(WORK, 9, None, None, capacities=[point(6, 600), point(9, 520)]), 12)
    assert curve is not None
    assert curve.best is None
    assert curve.rate(12) > 1.7 * curve.rate(6)


@given(
    st.floats(1e-4, 1.0),
    st.floats(0, 0.9),
    st.just(0.0) | st.floats(1e-3, 0.95),
    st.just(0.0) | st.floats(1e-5, 0.1),
    st.integers(1, 64),
    st.floats(0.1, 1e5),
)
@examples(200)
def test_with_steps_the_needed_parallelism_is_the_smallest_that_does_it(  # noqa: PLR0917 - as many as hypothesis draws
    own: float, serial: float, hot: float, coherence: float, shares: int, demand: float
) -> None:
    """With any contention, any hot key and any number of partitions, also where more subtasks do less: found by trying
    each, as are the best and the ceiling."""
    if coherence:
        curve = CapacityCurve(own, coherence_seconds=coherence * own, shares=shares)
    else:
        curve = CapacityCurve(own, serial * own, hot_share=hot, shares=shares)
    rates = {p: curve.rate(p) for p in range(1, shares + 3)}
    assert curve.ceiling == pytest.approx(max(rates.values()), rel=1e-6)
    does = [p for p, rate in rates.items() if rate >= demand * (1 + 1e-6)]
    needed = curve.needed(demand)
    if does:
        assert needed is not None
        assert needed <= does[0]
    if needed is not None:
        assert curve.rate(needed) >= demand * (1 - 1e-6)


def curve_of_one(rate: float) -> CapacityCurve:
    """Return the curve through one measurement of two subtasks."""
    found = curve_of(operator(WORK, 2, None, None, capacities=[point(2, rate)]))
    assert found is not None
    return found


@given(st.floats(1e-4, 1.0), st.floats(0, 0.9), st.floats(0, 0.95), st.floats(0.1, 1e5))
@examples(200)
def test_the_needed_parallelism_is_the_smallest_that_does_it(
    own: float, serial: float, hot: float, demand: float
) -> None:
    """With any contention and any hot key, as far as 64 subtasks."""
    curve = CapacityCurve(own, serial * own, hot_share=hot)
    needed = curve.needed(demand)
    does = [p for p in range(1, 65) if curve.rate(p) >= demand * (1 + 1e-6)]
    if does:
        assert needed is not None
        assert needed <= does[0]
    if needed is not None and needed <= 64:
        assert curve.rate(needed) >= demand * (1 - 1e-6)


def test_the_interval_knows_spread_saturation_age_and_distance() -> None:
    """It is narrow where saturated points agree; each of the four makes it wider, and one point says least."""
    exact = [point(p, 500 * p / (1 + 0.03 * (p - 1))) for p in (2, 4, 6)]

    def error(points: list[CapacityPoint], p: int = 4) -> float:
        curve = curve_of(operator(WORK, 4, None, None, capacities=points))
        assert curve is not None
        assert curve.lower(p) < curve.rate(p) < curve.upper(p)
        return curve.error(p)

    sure = error(exact)
    spread = [exact[0], point(4, 1400), exact[2]]
    unsaturated = [each.model_copy(update={"saturated": False, "confidence": 0.4}) for each in exact]
    old = [exact[0].model_copy(update={"measured_at": after(-36_000)}), exact[1], exact[2]]
    assert sure < 0.05
    assert min(error(spread), error(unsaturated), error(old), error(exact, 12)) > sure
    assert error(exact[1:2], 12) > error(exact, 12) < error(exact, 24)


def test_what_is_surely_needed_counts_on_the_lower_edge() -> None:
    """2 subtasks did 1,000/s, so 3 may do less than the 1,400 that they most likely do; 32 are too few for 40,000."""
    curve = curve_of(operator(WORK, 2, None, None, capacities=[point(2, 1000)]))
    assert curve is not None
    surely = curve.surely_needed(1400, 32)
    assert surely is not None
    assert surely > (curve.needed(1400) or 0)
    assert curve.lower(surely) >= 1400 > curve.lower(surely - 1)
    assert curve.surely_needed(40_000, 32) is None


@pytest.mark.parametrize("confidence", [0.0, 0.04])
def test_what_nobody_trusts_is_no_knowledge(confidence: float) -> None:
    """Unknown stays unknown: no curve at all rather than one through noise."""
    assert curve_of(operator(WORK, 2, None, None, capacities=[point(2, 900, confidence=confidence)])) is None
    assert curve_of(operator(WORK, 2, None, None)) is None


def test_a_curve_is_trusted_as_much_as_its_best_point() -> None:
    """A saturated point weighs double in the fit; its confidence stays the same."""
    points = [point(2, 900, confidence=0.4), point(1, 450, confidence=0.2, saturated=False)]
    curve = curve_of(operator(WORK, 2, None, None, capacities=points))
    assert curve is not None
    assert curve.confidence == 0.4


def test_more_for_more_than_the_share_of_it_is_noise() -> None:
    """4 subtasks that would do less than 1, told from busy time: no curve of the family bends so far."""
    curve = curve_of(operator(WORK, 8, None, None, capacities=[point(1, 1000), point(4, 300, saturated=False)]))
    assert curve is not None
    assert curve.best is None
    assert curve.rate(1) < curve.rate(4) < curve.rate(8)


def test_where_more_were_seen_to_do_less_there_is_a_best() -> None:
    """3 subtasks did 915 records/s and 15 did 337, both full: the best is near 3, and none is said to do much more than
    that."""
    full = [point(3, 915), point(15, 337)]
    curve = curve_of(operator(WORK, 3, None, None, capacities=full))
    assert curve is not None
    assert curve.best == 3
    assert curve.ceiling == curve.rate(3) == pytest.approx(915, rel=0.01)
    assert curve.rate(15) == pytest.approx(337, rel=0.01)
    assert curve.rate(14) < curve.rate(6) < curve.rate(4) < 920
    assert [curve.needed(demand) for demand in (400.0, 900.0, 940.0)] == [1, 3, None]


def test_that_more_did_less_is_believed_for_an_hour() -> None:
    """It may have been a noisy neighbour: what is believed for ever is never tried again."""
    long_ago = point(15, 337).model_copy(update={"measured_at": after(-3700)})
    curve = curve_of(operator(WORK, 3, None, None, capacities=[point(3, 915), long_ago]))
    assert curve is not None
    assert curve.best is None


@examples(25)
@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(1, 1e6), st.floats(0.05, 1), st.booleans()), min_size=1, max_size=6
    ),
    st.integers(1, 64),
    st.floats(0.1, 1e6),
)
def test_any_points_give_a_curve_that_grows(
    measured: list[tuple[int, float, float, bool]], present: int, demand: float
) -> None:
    """However noisy: rates are positive and grow with parallelism up to the best, and `needed` is the smallest that
    suffices."""
    points = [point(p, rate, confidence=c, saturated=s) for p, rate, c, s in measured]
    curve = curve_of(operator(WORK, present, None, None, capacities=points))
    assert curve is not None
    rates = [curve.rate(p) for p in range(1, min(64, curve.best or 64) + 1)]
    assert curve.best is None or curve.rate(curve.best + 1) <= curve.ceiling
    assert all(0 < low < high * (1 + 1e-9) for low, high in pairwise(rates))
    needed = curve.needed(demand)
    if needed is None:
        assert demand >= curve.ceiling * (1 - 1e-6)
    else:
        assert curve.rate(needed) >= demand * (1 - 1e-6)
        assert needed == 1 or curve.rate(needed - 1) < demand * (1 + 1e-6)


def test_no_demand_needs_one() -> None:
    """Nothing arrives; an operator has at least one subtask."""
    assert CapacityCurve(0.01).needed(0.0) == 1


AT_THE_BORDERS = st.sampled_from([MIN_NUMBER, MAX_NUMBER]) | st.floats(MIN_NUMBER, MAX_NUMBER)


@examples(50)
@given(
    st.lists(st.tuples(st.integers(1, 32768), AT_THE_BORDERS, st.booleans()), max_size=4),
    st.integers(1, 32768),
    st.none() | AT_THE_BORDERS | st.sampled_from([0.0, -1.0, -MAX_NUMBER]),
    AT_THE_BORDERS,
)
def test_any_rates_that_a_message_may_hold_give_finite_curves(
    measured: list[tuple[int, float, bool]], present: int, now: float | None, demand: float
) -> None:
    """Also those next to nothing, the largest, and an estimate that is negative: such a rate is unknown."""
    points = [point(p, rate, saturated=s) for p, rate, s in measured]
    curve = curve_of(operator(WORK, present, now, None, capacities=points))
    if curve is None:
        assert not points and (now is None or now <= 0)
        return
    assert 0 < curve.rate(present) < math.inf
    needed = curve.needed(demand)
    assert needed is None or needed >= 1
