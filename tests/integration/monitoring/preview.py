"""The dashboards' panels in a browser without Grafana: each where its dashboard has it, with what Prometheus answers to
its queries.

A preview, and it says so: Grafana draws them in its own way. What it shows of a panel is what matters here: title,
queries, legends, units.
"""

import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from tests.integration.monitoring.prometheus import Prometheus, Series
from tests.unit.deploy.queries import VARIABLES, filled

WIDTH, ROW = 1440, 32
"""A dashboard's width and the height of a row of its grid, in pixels."""
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d", "#ffee52", "#ffb357")
_UNITS = {"s": " s", "percentunit": "", "bytes": "B", "short": ""}
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class View:
    """The server, time range and application of a dashboard."""

    prometheus: Prometheus
    start: datetime
    end: datetime
    application: str
    step_seconds: float = 10.0

    def filled(self, query: str) -> str:
        """A dashboard's query with its variables replaced."""
        return filled(query, {**VARIABLES, "$application": self.application})

    def over_time(self, query: str) -> Series:
        """Values from start to end."""
        return self.prometheus.query_range(self.filled(query), self.start, self.end, self.step_seconds)

    def at_the_end(self, query: str) -> Series:
        """Return the last values."""
        return self.prometheus.query(self.filled(query), self.end)


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ margin: 0; background: #111217; color: #ccccdc; font: 13px "DejaVu Sans", sans-serif; width: {width}px; height: {height}px; }}
header {{ padding: 12px 14px 0; font-size: 17px; }} header small {{ color: #8e8e99; font-size: 12px; margin-left: 14px; }}
section {{ position: absolute; box-sizing: border-box; background: #181b1f; border: 1px solid #2b2d33; overflow: hidden; }}
h2 {{ font-size: 13px; font-weight: 600; margin: 7px 10px 0; }}
.stat {{ font-size: 22px; text-align: center; margin-top: 18px; white-space: nowrap; }} .red {{ color: #f2495c; }}
.plot {{ position: absolute; inset: 26px 2px 2px 2px; }} table {{ margin: 8px 10px; }} td {{ padding-right: 18px; }}
</style>
<header>{title}<small>panels of {file}, drawn from Prometheus' answers without Grafana; {span}</small></header>
{sections}
<script>{plotly}</script>
<script>
const plots = {plots};
Promise.all(Object.entries(plots).map(([id, p]) => Plotly.newPlot(id, p.data, p.layout, {{displayModeBar: false, staticPlot: true}})))
  .then(all => document.body.dataset.drawn = all.length);
</script>
"""


def page(dashboard: Path, view: View) -> tuple[str, int]:
    """A dashboard as HTML, and its height in pixels."""
    document = json.loads(dashboard.read_text())
    panels = document["panels"]
    bottom = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels)
    height = bottom * ROW + 52
    sections, plots = [], {}
    for panel in panels:
        inside, plot = _inside(panel, view)
        if plot is not None:
            plots[f"p{panel['id']}"] = plot
        sections.append(_section(panel, inside))
    html = _PAGE.format(
        title=escape(document["title"]),
        file=f"deploy/monitoring/grafana/dashboards/{dashboard.name}",
        span=f"{(view.end - view.start).total_seconds() / 60:.0f} minutes",
        width=WIDTH,
        height=height,
        sections="\n".join(sections),
        plotly=get_plotlyjs(),
        plots=json.dumps(plots),
    )
    return html, height


def _section(panel: dict[str, Any], inside: str) -> str:
    where, column = panel["gridPos"], WIDTH / 24
    left, width = where["x"] * column + 4, where["w"] * column - 8
    top, height = where["y"] * ROW + 44, where["h"] * ROW - 8
    style = f"left:{left:.0f}px; top:{top}px; width:{width:.0f}px; height:{height}px"
    return f'<section style="{style}"><h2>{escape(panel["title"])}</h2>{inside}</section>'


def _inside(panel: dict[str, Any], view: View) -> tuple[str, dict[str, Any] | None]:
    """Return the content of a panel's frame, and the plot to draw there."""
    if panel["type"] == "stat":
        return _stat(panel, view), None
    if panel["type"] == "table":
        return _table(panel, view), None
    lines = list(_lines(panel, view))
    draw = _states if panel["type"] == "state-timeline" else _plot
    return f'<div class="plot" id="p{panel["id"]}"></div>', draw(panel, lines)


def _lines(panel: dict[str, Any], view: View) -> Iterator[tuple[str, Points]]:
    for target in panel["targets"]:
        answer = view.over_time(target["expr"])
        for labels, points in sorted(answer.items()):
            yield _legend(target["legendFormat"], dict(labels)), points


def _legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), form)


def _stat(panel: dict[str, Any], view: View) -> str:
    (target,) = panel["targets"]
    answer = view.at_the_end(target["expr"])
    if not answer:
        return '<div class="stat">–</div>'
    labels, ((_, value),) = next(iter(sorted(answer.items())))
    shown = _legend(target["legendFormat"], dict(labels))
    if not shown:
        shown = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        shown += _UNITS.get(panel["fieldConfig"]["defaults"]["unit"], "")
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    red = any(step["color"] == "red" and value >= step["value"] for step in steps if step["value"] is not None)
    return f'<div class="stat{" red" if red else ""}">{escape(shown)}</div>'


def _table(panel: dict[str, Any], view: View) -> str:
    (target,) = panel["targets"]
    hidden = panel["transformations"][0]["options"]["excludeByName"]
    rows = [{k: v for k, v in labels if k not in hidden} for labels in view.at_the_end(target["expr"])]
    cells = ("".join(f"<td>{escape(f'{k}: {v}')}</td>" for k, v in row.items()) for row in rows)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>" if rows else "<p>&nbsp; none</p>"


def _times(points: Sequence[tuple[float, float | None]]) -> list[str]:
    return [datetime.fromtimestamp(at, UTC).isoformat() for at, _ in points]


def _with_gaps(points: Points) -> Iterator[tuple[float, float | None]]:
    """A line ends where there was nothing for a minute, as the panels are set."""
    last: float | None = None
    for at, value in points:
        if last is not None and at - last > 60:
            yield last + 1, None
        yield at, value
        last = at


def _layout(**more: Any) -> dict[str, Any]:
    axis = {"gridcolor": "#2b2d33", "zeroline": False, "automargin": True}
    return {
        "paper_bgcolor": "#181b1f",
        "plot_bgcolor": "#181b1f",
        "font": {"color": "#ccccdc", "size": 11, "family": "DejaVu Sans"},
        "margin": {"l": 46, "r": 12, "t": 6, "b": 26},
        "legend": {"orientation": "h", "y": -0.12, "font": {"size": 10}},
        "xaxis": {**axis, "tickformat": "%H:%M"},
        "yaxis": {**axis, "rangemode": "tozero"},
        **more,
    }


def _plot(panel: dict[str, Any], lines: list[tuple[str, Points]]) -> dict[str, Any]:
    custom, unit = panel["fieldConfig"]["defaults"]["custom"], panel["fieldConfig"]["defaults"]["unit"]
    is_bars = custom["drawStyle"] == "bars"
    data = []
    for place, (name, points) in enumerate(lines):
        colour = COLOURS[place % len(COLOURS)]
        drawn = list(_with_gaps(points))
        trace: dict[str, Any] = {
            "x": _times(drawn),
            "y": [value for _, value in drawn],
            "name": name,
            "showlegend": True,
        }
        if is_bars:
            trace |= {"type": "bar", "marker": {"color": colour}}
        else:
            shape = "hv" if custom.get("lineInterpolation") == "stepAfter" else "linear"
            dash = "dot" if name.endswith("planned") or name.startswith("objective") else "solid"
            trace |= {"type": "scatter", "mode": "lines"}
            trace["line"] = {"color": colour, "width": custom["lineWidth"] + 0.5, "shape": shape, "dash": dash}
        data.append(trace)
    layout = _layout(barmode="stack", bargap=0)
    suffix = unit.removeprefix("suffix:") if unit.startswith("suffix:") else _UNITS.get(unit, "")
    layout["yaxis"] |= {"ticksuffix": suffix, "tickformat": ".0%" if unit == "percentunit" else None}
    return {"data": data, "layout": layout}


def _states(panel: dict[str, Any], lines: list[tuple[str, Points]]) -> dict[str, Any]:
    """A bar for each series where it is 1."""
    del panel
    data = []
    for place, (name, points) in enumerate(lines):
        shown = [point for point in points if point[1] >= 1]
        if shown:
            marker = {"symbol": "square", "size": 9, "color": COLOURS[place % len(COLOURS)]}
            trace = {
                "type": "scatter",
                "mode": "markers",
                "x": _times(shown),
                "y": [name] * len(shown),
                "marker": marker,
            }
            data.append({**trace, "showlegend": False})
    layout = _layout()
    layout["yaxis"] = {"automargin": True, "gridcolor": "#2b2d33", "type": "category"}
    return {"data": data, "layout": layout}


def browser() -> str | None:
    """A Chromium on the PATH."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


def browse(html: Path, *arguments: str, timeout_seconds: float = 300.0) -> str:
    """Open a file in a headless browser without network or profile; return its output."""
    program = browser()
    if program is None:
        raise FileNotFoundError("no chromium on the PATH: install Debian's package chromium")
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--virtual-time-budget=20000",
                "--proxy-server=127.0.0.1:9",
                f"--user-data-dir={profile}",
                *arguments,
                html.resolve().as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=True,
        )
    return done.stdout


@dataclass(frozen=True)
class Rendering:
    """A dashboard as a browser has drawn it."""

    path: Path
    drawn: int
    """Plots, as the browser itself counted them."""
    size: tuple[int, int]


def render(dashboard: Path, view: View, folder: Path) -> Rendering:
    """Let a browser draw a dashboard. Where WEIR_IMAGES names a folder, the image is kept there, too."""
    html, height = page(dashboard, view)
    opened, path = folder / f"{dashboard.stem}.html", folder / f"dashboard-{dashboard.stem}.png"
    opened.write_text(html)
    window = f"--window-size={WIDTH},{height}"
    counted = re.search(r'data-drawn="(\d+)"', browse(opened, window, "--dump-dom"))
    browse(opened, window, f"--screenshot={path}")
    width, tall = struct.unpack(">II", path.read_bytes()[16:24])
    if keep := os.environ.get("WEIR_IMAGES"):
        shutil.copy(path, keep)
    return Rendering(path, int(counted[1]) if counted else 0, (width, tall))
