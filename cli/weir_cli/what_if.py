"""Predictions of another parallelism: `weir what-if` at a load, with the operators and the curve of the lag; `weir judge`
by lateness and cost, under the forecast and its upper edge.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir_replay import figure
from weir_runtime.clock import SystemClock

from .chart import LABEL, WIDTH, Curve, check_place, panel, save
from .client import LOCAL, InvalidInput, Server, TokenFile, application_id, connect, duration
from .completion import Application
from .output import Format, Output, number, show
from .planner_registry import LOCAL as LOCAL_PLANNER
from .terminal import Listing, terminal

FULL = 0.9995
"""A busy share that is shown as 100 % and in red."""
PlannerServer = Annotated[
    str, typer.Option("--planner-server", envvar="WEIR_PLANNER_SERVER", help="Address of the planner service.")
]
_ARRIVALS = {"present": "present load", "expected": "forecast", "upper-edge": "forecast's upper edge"}
_HORIZON = ("10s", "1d")
Horizon = Annotated[str, typer.Option(help="Horizon of the prediction, 10s to 1d.")]


def what_if(
    application: Application,
    parallelism: Annotated[
        list[str] | None,
        typer.Option(
            "--parallelism", "-p", help="operator=number, repeatable or with commas; others keep their parallelism."
        ),
    ] = None,
    load: Annotated[
        str, typer.Option(help="x2 for twice the load, 1200/s for records/s at all sources, forecast for the forecast.")
    ] = "x1",
    horizon: Horizon = "10m",
    at: Annotated[
        str,
        typer.Option(help="Begin later, such as 30m: the load is then the forecast, times the factor of --load."),
    ] = "now",
    plot: Annotated[Path | None, typer.Option(help="Write a figure to this file (.svg).")] = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Predict lag and throughput at another parallelism and load, and the load at which it breaks. Changes nothing."""
    if plot is not None:
        check_place(plot)
    name = application_id(application)
    found = connect(server, token_file).what_if(name, parallelism or [], load, horizon, at)
    width = max(20, min(WIDTH, terminal().width - LABEL))
    show(found, output, lambda: what_if_panel(found, SystemClock().now(), width))
    if plot is not None:
        save(plot, f"weir what-if {name}: {found['sentence']}", what_if_figure(found))


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


# -- judgement ----------------------------------------------------------------------------------------------------------


def judge(
    application: Application,
    parallelism: Annotated[
        list[str] | None,
        typer.Option(
            "--parallelism", "-p", help="operator=number, repeatable; other operators keep their parallelism."
        ),
    ] = None,
    horizon: Horizon = "10m",
    server: Server = LOCAL,
    planner_server: PlannerServer = LOCAL_PLANNER,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Judge a parallelism by lateness and cost, under the forecast and its upper edge. Changes nothing."""
    proposal = {
        "parallelism": _parallelism(parallelism or []),
        "horizon_seconds": duration("--horizon", horizon, *_HORIZON).total_seconds(),
    }
    name, knowledge = application_id(application), connect(server, token_file)
    proposal |= {"analysis": knowledge.analysis(name), "outcomes": knowledge.outcomes(name)}
    found = connect(planner_server, token_file, "--planner-server").judge(proposal)
    show(found, output, lambda: judgement_panel(found))


def _parallelism(texts: Sequence[str]) -> dict[str, int]:
    from weir_predictor import InvalidQuestion, parse_parallelism

    try:
        return parse_parallelism(texts)
    except InvalidQuestion as wrong:
        raise InvalidInput(f"--parallelism: {wrong}") from None


def judgement_panel(found: Mapping[str, Any]) -> RenderableType:
    """Return the judgement: the cost, a line for each course of the arrivals, the sentence and its caveats."""
    parts: list[RenderableType] = [_judgement_heading(found), loads_table(found["loads"])]
    possible = found["possible"] and all(load["recovers"] for load in found["loads"])
    parts.append(Text(str(found["sentence"]), "bold green" if possible else "bold red"))
    for load in found["loads"]:
        arrivals = _ARRIVALS.get(load["arrivals"], load["arrivals"])
        parts += [
            Text(f"unknown with the {arrivals}: the {gap['what']} of {gap['operator']}: {gap['because']}", "yellow")
            for gap in load["unknown"]
        ]
    parts += [Text(f"note: {note}", "dim") for note in found["notes"]]
    return Group(*parts)


def _judgement_heading(found: Mapping[str, Any]) -> Text:
    text = Text(str(found["application"]), "bold")
    at = datetime.fromisoformat(found["observed_at"]).astimezone(UTC)
    text.append(f"   readings of {at:%Y-%m-%d %H:%M:%S} UTC, {found['horizon_seconds']:,.0f} s ahead", "not bold dim")
    restart, slots = found["restart"], f"{found['slots_now']} → {found['slots']}"
    text.append(f"\nslots {slots}, {found['slot_hours']:,.2f} slot-hours", "not bold")
    if restart["seconds"] > 0 or restart["capacity_after_seconds"] > 0:
        measured = "" if restart["measured"] else " (assumed)"
        text.append(f", restart {restart['seconds']:,.3g} s{measured}", "not bold")
        if restart["away_share"] < 1:
            text.append(f" of {restart['away_share']:.0%} of it", "not bold")
        if restart["capacity_after_seconds"] > restart["seconds"]:
            text.append(f", new capacity after {restart['capacity_after_seconds']:,.3g} s", "not bold")
    return text


def loads_table(loads: Sequence[Mapping[str, Any]]) -> Table:
    """Return the outcome under each course of the arrivals."""
    table = Listing("ARRIVALS")
    for heading in ("MAX RECORDS/S", "KEEPS UP", "LATE", "LATE IF HELD", "MAX LAG", "BUSIEST"):
        table.add_column(heading, justify="right")
    for load in loads:
        course = load.get("prediction")
        table.add_row(
            _ARRIVALS.get(load["arrivals"], load["arrivals"]),
            f"{load['max_arrival_rate']:,.0f}",
            {True: "yes", False: "no", None: "?"}[load["keeps_up"]],
            _late(load["late_seconds"], load["recovers"]),
            _late(load["hold_late_seconds"], load["hold_recovers"]),
            "?" if course is None else f"{course['max_lag_seconds']:,.1f} s",
            _busiest(course),
        )
    return table


def _late(seconds: float | None, recovers: bool | None) -> str:
    if recovers is None:
        return "?"
    return "without end" if seconds is None or not recovers else f"{seconds:,.3g} s"


def _busiest(course: Mapping[str, Any] | None) -> str:
    if course is None or course["max_utilization"] is None:
        return "?"
    return f"{course['max_utilization']:.0%} {course['bottleneck'] or ''}".strip()
