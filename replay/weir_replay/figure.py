"""Figures of runs as SVG: panels of curves over one common time axis, readable on light and dark pages.

An SVG is complete in itself: no font, script or style sheet is fetched. Colours follow the viewer's colour scheme.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Literal

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 900, 70, 20, 44, 40
"""Of the figure, and of the margins around its panels, in pixels."""
GAP, HEADING = 30, 18
COLOURS = {
    "load": ("#0b7285", "#66d9e8"),
    "lag": ("#b35900", "#ffc078"),
    "bound": ("#c92a2a", "#ff8787"),
    "held": ("#2b8a3e", "#8ce99a"),
    "optimum": ("#364fc7", "#91a7ff"),
    "other": ("#862e9c", "#e599f7"),
}
"""What a curve shows: its colour on a light and on a dark page. The pairs have a contrast of at least 4.5 to 1."""
DASHES = {"bound": ("6 3", "╌╌"), "optimum": ("2 3", "┈┈"), "other": ("8 3 2 3", "━╌")}
"""What a curve shows: its dashes, and their picture in the legend, so that no curve needs its colour. Others are solid."""
Shows = Literal["load", "lag", "bound", "held", "optimum", "other"]


@dataclass(frozen=True)
class Curve:
    """A quantity over time: (seconds, value) in order of time; None breaks the line."""

    name: str
    shows: Shows
    points: Sequence[tuple[float, float | None]]
    stepped: bool = False
    """Whether a value holds until the next one, as a number of slots does."""


@dataclass(frozen=True)
class Panel:
    """Curves over one axis of values. `top` makes panels comparable: without it the axis ends at the largest value."""

    title: str
    curves: Sequence[Curve]
    top: float | None = None
    height: int = 130
    marks: Sequence[float] = field(default_factory=tuple)
    """Moments in seconds that get a vertical line, such as rescales."""


def write_svg(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write the figure. Raises `OSError`."""
    path.write_text(svg(title, panels), encoding="utf-8")


@dataclass(frozen=True)
class _TimeAxis:
    """The common axis."""

    seconds: float

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.seconds

    def ticks(self) -> list[tuple[float, str]]:
        """Return where the axis has a text, in seconds, and the text."""
        step, _, divisor = _time_step(self.seconds)
        return [(i * step, f"{i * step / divisor:g}") for i in range(int(self.seconds / step + 1e-9) + 1)]

    @property
    def title(self) -> str:
        return f"time, {_time_step(self.seconds)[1]}"


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Return the figure as an SVG document."""
    seconds = max((at for p in panels for c in p.curves for at, _ in c.points), default=0.0) or 1.0
    axis = _TimeAxis(seconds)
    height = TOP + sum(p.height + GAP for p in panels) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}">',
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
    ]
    y = TOP
    for panel in panels:
        parts += _panel(panel, y + HEADING, axis)
        y += panel.height + GAP
    for at, text in axis.ticks():
        parts.append(f'<text class="tick middle" x="{axis.x(at):.1f}" y="{y + 14}">{text}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick middle" x="{middle:.0f}" y="{y + 30}">{escape(axis.title)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _style() -> str:
    """Return the style sheet of figures."""

    def colours(index: int) -> str:
        return " ".join(f".{name} {{ stroke: {pair[index]}; fill: {pair[index]} }}" for name, pair in COLOURS.items())

    dashes = " ".join(f".curve.{name} {{ stroke-dasharray: {each} }}" for name, (each, _) in DASHES.items())
    return (
        "text { font: 12px system-ui, sans-serif; fill: #343a40 } .title { font-size: 15px; font-weight: 600 } "
        ".tick { font-size: 11px; fill: #5c636a } .middle { text-anchor: middle } .end { text-anchor: end } "
        ".page { fill: #ffffff } .grid { stroke: #dee2e6; stroke-width: 1 } "
        ".mark { stroke: #868e96; stroke-width: 1; stroke-dasharray: 2 3 } "
        "path { stroke-width: 1.5; stroke-linejoin: round } path.curve { fill: none !important } "
        f"{colours(0)} {dashes} @media screen and (prefers-color-scheme: dark) {{ .page {{ fill: #16191d }} text {{ fill: #e9ecef }} "
        f".tick {{ fill: #adb5bd }} .grid {{ stroke: #343a40 }} .mark {{ stroke: #868e96 }} {colours(1)} }}"
    )


def _panel(panel: Panel, y: int, axis: _TimeAxis) -> list[str]:
    """Return a panel whose plot area begins at `y`: heading with legend, grid, marks, curves."""
    inner = panel.height - HEADING
    max_value = max((v for c in panel.curves for _, v in c.points if v is not None), default=0.0)
    top = panel.top or nice_top(max_value)
    parts = [_heading(panel, y)]
    for share in (0.0, 0.5, 1.0):
        line = y + inner * (1 - share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{line:.1f}" y2="{line:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 8}" y="{line + 4:.1f}">{short(top * share)}</text>')
    for at, _ in axis.ticks():
        x = axis.x(at)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + inner}"/>')
    for at in panel.marks:
        x = axis.x(at)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + inner}"/>')
    return parts + [_path(curve, y, inner, top, axis) for curve in panel.curves]


def _heading(panel: Panel, y: int) -> str:
    legend = ""
    for curve in panel.curves:
        _, dashes = DASHES.get(curve.shows, ("", "━"))
        name = escape(curve.name)
        legend += f'<tspan dx="14" class="{curve.shows}" stroke="none" style="stroke: none">{dashes} {name}</tspan>'
    if panel.marks:
        legend += '<tspan dx="14" class="tick">┆ rescale</tspan>'
    return f'<text x="{LEFT}" y="{y - 6}"><tspan font-weight="600">{escape(panel.title)}</tspan>{legend}</text>'


def _path(curve: Curve, y: int, inner: int, top: float, axis: _TimeAxis) -> str:
    """Return a curve as a path. A value above the top of the axis is drawn at the top."""
    commands: list[str] = []
    pen_down, last = False, 0.0
    for at, value in curve.points:
        if value is None:
            pen_down = False
            continue
        x, down = axis.x(at), y + inner * (1 - min(1.0, max(0.0, value) / top))
        if pen_down and curve.stepped:
            commands.append(f"L{x:.1f} {last:.1f}")
        commands.append(f"{'L' if pen_down else 'M'}{x:.1f} {down:.1f}")
        pen_down, last = True, down
    return f'<path class="curve {curve.shows}" d="{"".join(commands)}"/>'


def nice_top(max_value: float) -> float:
    """Return the end of an axis: 1, 2, 2.5 or 5 times a power of ten, at least `largest`."""
    if max_value <= 0 or not math.isfinite(max_value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(max_value))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= max_value * (1 - 1e-9))


def _time_step(seconds: float) -> tuple[float, str, float]:
    """Return the distance of time ticks in seconds, the unit they are written in, and the unit's length in seconds."""
    unit, divisor = next(
        (name, each) for name, each in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
        if seconds >= 2 * each or each == 1.0
    )  # fmt: skip
    whole = seconds / divisor
    step = next((s for s in (0.5, 1, 2, 3, 5, 6, 10, 15, 20, 30, 60) if whole / s <= 10), math.ceil(whole / 10))
    return step * divisor, unit, divisor


def short(value: float) -> str:
    """Return a number in at most seven characters."""
    for unit, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= 0.9995 * unit:
            return f"{value / unit:.3g} {letter}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
