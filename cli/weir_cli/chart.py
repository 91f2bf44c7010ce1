"""Curves in a terminal, two by four dots a character (Unicode braille), and the same as a figure (SVG)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from weir_replay import figure

from .client import InvalidInput

if TYPE_CHECKING:
    from weir_replay.run import Point

WIDTH, HEIGHT = 88, 6
LABEL = 9
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a character's dots, by row and column."""


@dataclass(frozen=True)
class Curve:
    """Values at even distances, and the colour they are drawn in."""

    name: str
    values: Sequence[float]
    colour: str


def panel(title: str, curves: Sequence[Curve], *, width: int = WIDTH, height: int = HEIGHT) -> RenderableType:
    """Curves over one another from 0 to their common largest value; later ones on top."""
    top = max((max(curve.values, default=0.0) for curve in curves), default=0.0) or 1.0
    cells: list[list[tuple[int, str]]] = [[(0, "")] * width for _ in range(height)]
    for curve in curves:
        _draw(cells, _stretched(curve.values, width * 2), top, curve.colour)
    heading = Text(title + "   ", "bold")
    for curve in curves:
        heading.append(f"━ {curve.name}   ", curve.colour)
    lines = [heading]
    for row, line in enumerate(cells):
        label = figure.short(top) if row == 0 else "0" if row == height - 1 else ""
        text = Text(f"{label:>{LABEL - 2}} │", "dim")
        for bits, colour in line:
            text.append(chr(_BRAILLE + bits) if bits else " ", colour)
        lines.append(text)
    return Group(*lines)


def charts(points: Sequence["Point"], objective_seconds: float | None, *, width: int = WIDTH) -> RenderableType:
    """A run: load, lag and slots over time. `width` is that of the curves, in characters."""
    lag = [Curve("largest lag", [p.lag_seconds for p in points], "yellow")]
    if objective_seconds is not None:
        lag.append(Curve("objective", [objective_seconds] * len(points), "red"))
    hours = (points[-1].at_seconds if points else 0.0) / 3600
    axis = Text(f"{'':>{LABEL}}0 h{'':>{width - 11}}{hours:6.1f} h", "dim")
    load = [Curve("arrivals", [p.arrivals for p in points], "cyan")]
    if any(point.is_peaked for point in points):
        load.insert(0, Curve("at most", [p.peak_arrivals for p in points], "blue"))
    return Group(
        panel("records/s", load, width=width),
        panel("lag, s", lag, width=width),
        panel(
            "slots",
            [
                Curve("offline optimum", [p.optimum_slots for p in points], "blue"),
                Curve("held", [p.slots for p in points], "green"),
            ],
            width=width,
        ),
        axis,
    )


def check_place(path: Path, option: str = "--plot", suffix: str | None = ".svg") -> None:
    """Raise `InvalidInput` if no file can be written there. Leaves no file, and an existing one unchanged."""
    if suffix is not None and path.suffix.lower() != suffix:
        raise InvalidInput(f"{option}: {path}: only {suffix} can be written")
    try:
        if not path.parent.is_dir():
            raise InvalidInput(f"{option}: {path}: there is no folder {path.parent}")
        if path.is_dir():
            raise InvalidInput(f"{option}: {path}: is a folder")
        before = path.exists()
        if before and not path.is_file():
            return  # a pipe would wait for its reader here
        # Some file systems refuse a writer whom the permissions allow.
        with path.open("ab"):
            pass
        if not before:
            path.resolve().unlink()
    except OSError as error:
        raise InvalidInput(f"{option}: {path}: cannot be written: {error.strerror}") from None


def save(path: Path, title: str, panels: Sequence[figure.Panel]) -> None:
    """Write a figure as SVG. Raises `InvalidInput` if the file cannot be written."""
    check_place(path)
    try:
        figure.write_svg(path, title, panels)
    except OSError as error:
        raise InvalidInput(f"--plot: {path}: cannot be written: {error.strerror}") from None


def save_page(path: Path, content: str) -> None:
    """Write a page of HTML for `--html`. Raises `InvalidInput` if the file cannot be written."""
    check_place(path, "--html", None)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--html: {path}: cannot be written: {error.strerror}; name another place") from None


def _draw(cells: list[list[tuple[int, str]]], values: Sequence[float], top: float, colour: str) -> None:
    dots = len(cells) * 4
    last: int | None = None
    for x, value in enumerate(values):
        y = dots - 1 - min(dots - 1, round(max(0.0, value) / top * (dots - 1)))
        before = y if last is None else last
        for at in range(min(y, before), max(y, before) + 1):  # a jump is a vertical line
            row, column = at // 4, x // 2
            bits = cells[row][column][0] | _DOTS[at % 4][x % 2]
            cells[row][column] = (bits, colour)
        last = y


def _stretched(values: Sequence[float], many: int) -> list[float]:
    """Return `many` values: the largest of those that fall together, repeated where there are too few."""
    if not values:
        return []
    starts = [i * len(values) // many for i in range(many + 1)]
    return [max(values[first : max(first + 1, last)]) for first, last in pairwise(starts)]
