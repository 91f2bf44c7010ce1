"""The benchmark of capacity curves: its data, its prior, and what it says of the predictor."""

from itertools import pairwise

import pytest

from bench.capacity import CURVES, MAX_POINTS, fit, floor_of, learned, misses_of, serial_share, summary, thinned
from weir_predictor.fit import PRIOR


def amdahl(share: float) -> list[tuple[int, float]]:
    """Return a curve without noise."""
    return [(p, 100 * p / (1 + share * (p - 1))) for p in (1, 2, 4, 8, 16)]


def test_every_curve_names_its_source_and_is_ordered() -> None:
    """A misplaced digit shows as a parallelism out of order or a rate far from its neighbour's."""
    for name, curve in CURVES.items():
        assert len(curve.source) > 40, name
        assert all(a < b for (a, _), (b, _) in pairwise(curve.points)), name
        assert all(rate > 0.8 * before for (_, before), (_, rate) in pairwise(curve.points)), name


def test_the_prior_is_what_the_curves_teach() -> None:
    """The constants in the predictor come from these data."""
    prior = learned({name: curve.points for name, curve in CURVES.items()}, without="")
    assert prior.serial_share == pytest.approx(PRIOR.serial_share, rel=0.1)
    assert prior.deviation == pytest.approx(PRIOR.deviation, rel=0.1)


def test_without_noise_nothing_is_missed() -> None:
    """A curve of the form itself has no floor, its share is found, and a triple of it predicts the rest well."""
    points = amdahl(0.05)
    assert serial_share(points) == pytest.approx(0.05, rel=0.02)
    assert floor_of(points)["p90"] < 0.005
    found = summary(misses_of(points, 3, PRIOR))
    assert found["count"] == 20
    assert found["median"] < 0.03
    assert found["inside"] == 1.0


def test_a_curve_is_better_than_a_line_from_one_point() -> None:
    """The prior is for that: over all curves, half of the maximum parallelism predicts it better."""
    curved, straight = [], []
    for curve in CURVES.values():
        (p, rate), (last, best) = curve.points[len(curve.points) // 2 - 1], curve.points[-1]
        curved.append(abs(fit([(p, rate)], PRIOR).rate(last) / best - 1))
        straight.append(abs(rate * last / p / best - 1))
    assert sum(curved) < 0.6 * sum(straight)


def test_a_long_curve_is_thinned_evenly() -> None:
    """The ends stay."""
    points = CURVES["database"].points
    assert len(thinned(points)) == MAX_POINTS
    assert (thinned(points)[0], thinned(points)[-1]) == (points[0], points[-1])
