"""`make bench-capacity`: the predictor's capacity curves, fitted on every triple and on every single point of curves that
others measured and published (`capacity.yaml` names them), against the other points of the same curve.

Each curve counts the same. A point is within reach if its parallelism is at least half of the minimum and at most twice
the maximum fitted one: the longest step that is ever taken. The prior of contention is learned from the other curves.
The floor is the error of the same form fitted on all points of a curve: what is left is noise of the measurements.
Takes some seconds; the same figures on every machine.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from bench.results_file import write
from weir_predictor.capacity import DEVIATIONS, CapacityCurve, curve_through
from weir_predictor.fit import MAX_SERIAL_SHARE, NOISE, Measurement, Prior

Points = Sequence[tuple[int, float]]


class Curve(NamedTuple):
    """A system's capacity at each parallelism that was measured, and who published it."""

    source: str
    points: Points


CURVES: Mapping[str, Curve] = {
    name: Curve(curve["source"], tuple((parallelism, rate) for parallelism, rate in curve["points"]))
    for name, curve in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}
TARGETS = {"triples": {"median": 0.04, "p90": 0.07, "inside": 0.85}, "single": {"median": 0.08}}
MAX_POINTS = 12
"""Of a longer curve so many are taken, evenly: otherwise its triples alone take minutes."""


class Miss(NamedTuple):
    """A prediction and the measurement next to it."""

    error: float
    inside: bool
    reachable: bool
    weight: float


def main() -> int:
    """Measure, print and keep."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    curves = {name: thinned(curve.points) for name, curve in CURVES.items()}
    drawn = Table("curve", "fitted on", "n", "median", "p90", "inside", title="relative error within reach")
    figures: dict[str, Any] = {}
    for name, count in (("triples", 3), ("single", 1)):
        misses = {curve: misses_of(points, count, learned(curves, curve)) for curve, points in curves.items()}
        figures[name] = {
            "within_reach": summary(m for each in misses.values() for m in each if m.reachable),
            "everywhere": summary(m for each in misses.values() for m in each),
            "target": TARGETS[name],
            "curves": {curve: summary(m for m in each if m.reachable) for curve, each in misses.items()},
        }
        for curve, found in {**figures[name]["curves"], "all": figures[name]["within_reach"]}.items():
            median, p90, inside = (f"{found[key]:.1%}" for key in ("median", "p90", "inside"))
            drawn.add_row(curve, name, str(found["count"]), median, p90, inside)
    floor = {curve: floor_of(points) for curve, points in curves.items()}
    for curve, found in floor.items():
        drawn.add_row(curve, "all points", str(len(curves[curve])), f"{found['median']:.1%}", f"{found['p90']:.1%}", "")
    Console(width=110).print(drawn)
    sources = {name: {"source": CURVES[name].source, "points": len(points)} for name, points in curves.items()}
    print(f"written: {write('capacity', 'make bench-capacity', {**figures, 'floor': floor, 'curves': sources})}")
    return 0


def thinned(points: Points) -> Points:
    """Return at most `MAX_POINTS` of the points, evenly, the first and the last among them."""
    if len(points) <= MAX_POINTS:
        return points
    last = len(points) - 1
    return [points[round(k * last / (MAX_POINTS - 1))] for k in range(MAX_POINTS)]


def serial_share(points: Points) -> float:
    """Return s of the best Amdahl curve through all points, by the squares of relative errors."""
    rows = [(p, math.log(rate / p)) for p, rate in points]

    def squares(share: float) -> float:
        level = [y + math.log1p(share * (p - 1)) for p, y in rows]
        return pstdev(level)

    shares = [0.001 * 1.02**k for k in range(400)]
    return min((share for share in shares if share < MAX_SERIAL_SHARE), key=squares)


def learned(curves: Mapping[str, Points], without: str) -> Prior:
    """Return the prior that all curves but one teach."""
    logs = [math.log(serial_share(points)) for name, points in curves.items() if name != without]
    return Prior(math.exp(fmean(logs)), pstdev(logs))


def fit(points: Points, prior: Prior) -> CapacityCurve:
    """Return the predictor's curve through points measured under saturation."""
    return curve_through(tuple(Measurement(p, rate, 1.0) for p, rate in points), 1.0, prior=prior)


def misses_of(points: Points, count: int, prior: Prior) -> list[Miss]:
    """Return the errors at all other points of the curves through each choice of `count` points."""
    found = []
    for chosen in combinations(points, count):
        curve = fit(chosen, prior)
        low, high = chosen[0][0] / 2, chosen[-1][0] * 2
        for p, rate in points:
            if (p, rate) not in chosen:
                # The measurement there is noisy, too.
                half = DEVIATIONS * math.hypot(curve.error(p), NOISE)
                off = curve.rate(p) / rate
                found.append(Miss(abs(off - 1), abs(math.log(off)) <= half, low <= p <= high, 0.0))
    return [miss._replace(weight=1 / len(found)) for miss in found]


def floor_of(points: Points) -> dict[str, float]:
    """Return the errors that remain when the form is fitted on all points."""
    share = serial_share(points)
    level = math.exp(fmean(math.log(rate / p * (1 + share * (p - 1))) for p, rate in points))
    errors = [Miss(abs(level * p / (1 + share * (p - 1)) / rate - 1), True, True, 1.0) for p, rate in points]
    found = summary(errors)
    return {"serial_share": round(share, 4), "median": found["median"], "p90": found["p90"]}


def summary(misses: Iterable[Miss]) -> dict[str, float]:
    """Return median and 90th percentile of the errors, and the share inside the interval."""
    ordered = sorted(misses)
    whole = sum(miss.weight for miss in ordered)

    def quantile(share: float) -> float:
        passed = 0.0
        for miss in ordered:
            passed += miss.weight
            if passed >= share * whole * (1 - 1e-9):
                return round(miss.error, 4)
        return 0.0

    inside = sum(miss.weight for miss in ordered if miss.inside) / max(1e-9, whole)
    return {"count": len(ordered), "median": quantile(0.5), "p90": quantile(0.9), "inside": round(inside, 4)}


if __name__ == "__main__":
    raise SystemExit(main())
