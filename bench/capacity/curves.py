"""Measured capacities that others published: parallelism, and the rate that was sustained with it.

Of several runs with one parallelism the median is kept. A run that did less than half of what its neighbours did
(StreamBed's search has five such runs) is left out: it failed.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Curve(NamedTuple):
    """One system, and its capacity at each parallelism that was measured."""

    source: str
    points: tuple[tuple[int, float], ...]


_STREAMBED = (
    "StreamBed (Rosinosky et al., DEBS 2024), github.com/CloudLargeScale-UCLouvain/StreamBed, experiments/"
    "search-results/final and variable-results/r1: Flink on Grid'5000, sustained records/s of Nexmark "
)

CURVES: Mapping[str, Curve] = {
    "nexmark-q1": Curve(
        _STREAMBED + "q1 by subtasks of its Calc, in thousands",
        (
            (1, 1441.0),
            (2, 2951.0),
            (4, 6092.0),
            (5, 6866.0),
            (6, 7656.0),
            (8, 11963.0),
            (9, 12003.0),
            (10, 12433.0),
            (12, 15803.0),
            (13, 15240.0),
        ),
    ),
    "nexmark-q2": Curve(
        _STREAMBED + "q2 by subtasks of its Calc, in thousands",
        ((1, 3832.0), (3, 9844.0), (4, 12805.0), (5, 16353.0)),
    ),
    "nexmark-q5": Curve(
        _STREAMBED + "q5 by subtasks of its window, in thousands",
        (
            (1, 52.0),
            (2, 96.0),
            (3, 139.9),
            (8, 397.1),
            (18, 706.9),
            (22, 771.6),
            (24, 833.4),
            (32, 981.1),
            (33, 949.8),
            (34, 965.2),
            (35, 937.7),
        ),
    ),
    "nexmark-q11": Curve(
        _STREAMBED + "q11 by subtasks of its window, in thousands",
        ((1, 61.3), (15, 733.4), (28, 1467.9), (31, 1497.7), (34, 1762.7), (42, 1908.0), (43, 2346.7)),
    ),
    "raytracer": Curve(
        "Gunther, Guerrilla Capacity Planning (Springer, 2007), data set raytracer of the R package usl: BRL-CAD on an "
        "SGI Origin 2000, ray-geometry intersections/s by processors",
        (
            (1, 20.0),
            (4, 78.0),
            (8, 130.0),
            (12, 170.0),
            (16, 190.0),
            (20, 200.0),
            (24, 210.0),
            (28, 230.0),
            (32, 260.0),
            (48, 280.0),
            (64, 310.0),
        ),
    ),
    "database": Curve(
        "Schwartz, Practical Scalability Analysis with the Universal Scalability Law (2015), the worked example: "
        "queries/s by concurrent connections",
        tuple(
            enumerate(
                (
                    *(955.16, 1878.91, 2688.01, 3548.68, 4315.54, 5130.43, 5931.37, 6531.08, 7219.8, 7867.61, 8278.71),
                    *(8646.7, 9047.84, 9426.55, 9645.37, 9897.24, 10097.6, 10240.5, 10532.39, 10798.52, 11151.43),
                    *(11518.63, 11806.0, 12089.37, 12075.41, 12177.29, 12211.41, 12158.93, 12155.27, 12118.04),
                    *(12140.4, 12074.39),
                ),
                start=1,
            )
        ),
    ),
}
