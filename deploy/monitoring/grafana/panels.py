"""Parts of a dashboard, as Grafana's JSON (schema 39, Grafana 11 and newer)."""

from collections.abc import Sequence
from typing import Any

SOURCE = {"type": "prometheus", "uid": "weir-prometheus"}
COLUMNS = 24
RECORDS = "suffix: rec/s"
Query = tuple[str, str]
"""A query, and the legend of its series."""
Panel = dict[str, Any]


def panel(kind: str, title: str, queries: Sequence[Query], unit: str, about: str, **custom: Any) -> Panel:
    """Return the fields that all panels have. `about` is shown with the title."""
    instant = kind in ("stat", "table")
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": SOURCE,
            "expr": expr,
            "legendFormat": legend,
            "instant": instant,
            "range": not instant,
        }
        for place, (expr, legend) in enumerate(queries)
    ]
    made: Panel = {"type": kind, "title": title, "description": about, "datasource": SOURCE, "targets": targets}
    made["fieldConfig"] = {"defaults": {"unit": unit, "custom": custom}, "overrides": []}
    return made


def lines(title: str, *queries: Query, unit: str = "short", about: str = "", **custom: Any) -> Panel:
    """Return a panel with values over time."""
    style = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 5, "showPoints": "never", "spanNulls": 60_000}
    made = panel("timeseries", title, queries, unit, about, **{**style, **custom})
    made["fieldConfig"]["defaults"]["min"] = 0
    made["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def steps(title: str, *queries: Query, unit: str = "short", about: str = "") -> Panel:
    """Return a panel with stepped integers."""
    return lines(title, *queries, unit=unit, about=about, lineInterpolation="stepAfter", lineWidth=2, fillOpacity=0)


def bars(title: str, *queries: Query, unit: str = "short", about: str = "") -> Panel:
    """Return a panel with stacked shares over time."""
    stacking = {"mode": "normal", "group": "A"}
    return lines(title, *queries, unit=unit, about=about, drawStyle="bars", fillOpacity=80, stacking=stacking)


def states(title: str, *queries: Query, about: str = "") -> Panel:
    """Return a panel with the state over time: a bar for each series while it is 1."""
    made = panel("state-timeline", title, queries, "short", about, fillOpacity=70, lineWidth=0)
    mapping = {"0": {"text": "no", "color": "transparent"}, "1": {"text": "yes", "color": "blue"}}
    made["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": mapping}]
    made["options"] = {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}, "rowHeight": 0.8}
    return made


def number(
    title: str, query: str, legend: str = "", *, unit: str = "short", about: str = "", red: float | None = None
) -> Panel:
    """Return a panel with the last value, or with the last series' legend. Red from `red` on."""
    made = panel("stat", title, [(query, legend)], unit, about)
    colours: list[dict[str, Any]] = [{"color": "text" if red is None else "green", "value": None}]
    if red is not None:
        colours.append({"color": "red", "value": red})
    made["fieldConfig"]["defaults"]["thresholds"] = {"mode": "absolute", "steps": colours}
    made["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "name" if legend else "value",
        "colorMode": "value",
        "graphMode": "none",
    }
    return made


def table(title: str, query: str, hidden: Sequence[str], *, about: str = "") -> Panel:
    """Return a panel with the current series, their labels in columns."""
    made = panel("table", title, [(query, "")], "short", about)
    made["targets"][0]["format"] = "table"
    made["transformations"] = [{"id": "organize", "options": {"excludeByName": dict.fromkeys(hidden, True)}}]
    return made


def quantile(metric: str, window: str = "$__rate_interval") -> str:
    """Return a quantile of a histogram over all processes."""
    return f"histogram_quantile($quantile, sum by (le) (rate({metric}_bucket[{window}])))"


def dashboard(
    uid: str, title: str, variables: list[dict[str, Any]], rows: Sequence[tuple[int, Sequence[Panel]]]
) -> dict[str, Any]:
    """Return the panels with positions; `rows` are (height, panels of equal width)."""
    panels: list[Panel] = []
    y = 0
    for height, row in rows:
        width = COLUMNS // len(row)
        for place, one in enumerate(row):
            position = {"x": place * width, "y": y, "w": width, "h": height}
            panels.append({"id": len(panels) + 1, **one, "gridPos": position})
        y += height
    return {
        "uid": uid,
        "title": title,
        "tags": ["weir"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [{"type": "dashboards", "title": "Weir", "tags": ["weir"], "keepTime": True, "asDropdown": False}],
        "templating": {"list": variables},
        "panels": panels,
    }


def variable(name: str, query: str, *, every: bool = False) -> dict[str, Any]:
    """Return a variable with the values of a label."""
    made: dict[str, Any] = {"type": "query", "name": name, "datasource": SOURCE, "refresh": 2, "sort": 1}
    made["definition"] = query
    made["query"] = {"query": query, "refId": name}
    made |= {"includeAll": every, "multi": every}
    if every:
        made["allValue"] = ".*"
        made["current"] = {"text": ["All"], "value": ["$__all"]}
    return made


def choice(name: str, *values: str) -> dict[str, Any]:
    """Return a variable with fixed values; the first is the default."""
    options = [{"text": value, "value": value, "selected": place == 0} for place, value in enumerate(values)]
    return {"type": "custom", "name": name, "query": ",".join(values), "options": options, "current": options[0]}
