"""Output of `weir what-if`: the operators, the curve of the lag, and a sentence with the result."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir_replay import figure

from .judge import loads_table
from .replay.chart import LABEL, WIDTH, Curve, panel
from .terminal import Listing
from .trial.view import number

FULL = 0.9995
"""A busy share that is shown as 100 % and in red."""


def what_if_panel(answer: Mapping[str, Any], now: datetime, width: int = WIDTH) -> RenderableType:
    """Return the answer as a panel; `width` of the curves in characters."""
    parts: list[RenderableType] = [_heading(answer, now), _operators(answer)]
    if answer.get("prediction"):
        parts.append(_curves(answer, width))
    if answer.get("loads"):
        parts.append(loads_table(answer["loads"]))
    parts.append(_result(answer))
    parts += [Text(f"why: {each}") for each in answer.get("explained", ())]
    parts += [
        Text(f"unknown: the {gap['what']} of {gap['operator']}: {gap['because']}", "yellow")
        for gap in answer["unknown"]
    ]
    parts += [Text(f"note: {note}", "dim") for note in answer["notes"]]
    return Group(*parts)


def _heading(answer: Mapping[str, Any], now: datetime) -> Text:
    at = datetime.fromisoformat(answer["observed_at"])
    age = max(0.0, (now - at).total_seconds())
    text = Text(str(answer["application"]), "bold")
    text.append(f"   readings of {at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {age:,.0f} s ago", "dim")
    factor = answer.get("load_factor")
    times = "" if factor is None else f" (x{factor:.3g})"
    text.append(
        f"\narrivals {answer['arrival_rate_now']:,.0f} → {answer['arrival_rate']:,.0f} records/s{times}, "
        f"slots {answer['slots_now']} → {answer['slots']}, taken in {_taken_in(answer)}",
        "not bold",
    )
    return text


def _taken_in(answer: Mapping[str, Any]) -> str:
    if answer.get("throughput") is None:
        return f"at most {answer['max_throughput']:,.0f} records/s"
    return f"{answer['throughput']:,.0f} records/s"


def _operators(answer: Mapping[str, Any]) -> Table:
    table = Listing("OPERATOR", optional=("MINIMUM", "CAPACITY MEASURED AT"))
    for heading in ("PARALLELISM", "ARRIVE/s", "TAKEN IN/s", "CAPACITY/s", "UTILIZATION", "MINIMUM"):
        table.add_column(heading, justify="right")
    table.add_column("CAPACITY MEASURED AT")
    for row in answer["operators"]:
        now, then = row.get("parallelism_now"), row["parallelism"]
        table.add_row(
            Text(row["operator"], "bold" if row["operator"] == answer.get("bottleneck") else ""),
            Text(str(then) if now == then else f"{number(now)} → {then}", "" if now == then else "cyan"),
            number(row.get("arrival_rate")),
            number(row.get("input_rate")),
            number(row.get("capacity")),
            _busy(row.get("utilization")),
            number(row.get("min_parallelism")),
            ", ".join(str(p) for p in row["seen_at"]) or "unknown",
        )
    return table


def _busy(share: float | None) -> Text:
    if share is None:
        return Text("–", "dim")
    return Text(f"{share:.0%}", "bold red" if share >= FULL else "")


def _curves(answer: Mapping[str, Any], width: int) -> RenderableType:
    prediction, objective = answer["prediction"], answer.get("objective_seconds")
    points = prediction["points"]
    lag = [Curve("lag", [point["lag_seconds"] for point in points], "yellow")]
    if objective is not None:
        lag.insert(0, Curve("objective", [objective] * len(points), "red"))
    end = f"{prediction['horizon_seconds']:,.0f} s"
    return Group(
        panel("lag, s", lag, width=width),
        panel("taken in, records/s", [Curve("throughput", [p["throughput"] for p in points[1:]], "cyan")], width=width),
        Text(f"{'':>{LABEL}}0 s{end:>{width - 3}}", "dim"),
    )


def what_if_figure(answer: Mapping[str, Any]) -> list[figure.Panel]:
    """Return the predicted lag and throughput as a figure's panels; none where nothing could be predicted."""
    if not answer.get("prediction"):
        return []
    prediction, objective = answer["prediction"], answer.get("objective_seconds")
    points = prediction["points"]

    def over_time(name: str) -> list[tuple[float, float | None]]:
        return [(point["at_seconds"], point[name]) for point in points]

    lag = [figure.Curve("predicted", "lag", over_time("lag_seconds"))]
    if objective is not None:
        bound = [(0.0, objective), (prediction["horizon_seconds"], objective)]
        lag.append(figure.Curve("objective", "bound", bound))
    throughput = figure.Curve("predicted", "load", over_time("throughput")[1:])
    return [figure.Panel("lag, s", lag), figure.Panel("throughput, records/s", [throughput])]


def _result(answer: Mapping[str, Any]) -> Text:
    good = answer.get("keeps_up") and answer["possible"]
    style = "bold green" if good else "bold yellow" if answer.get("keeps_up") is None else "bold red"
    return Text(str(answer["sentence"]), style)
