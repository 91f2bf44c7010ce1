"""`weir judge`: lateness and cost of a proposed parallelism, under the forecast and its upper edge."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .client import LOCAL, Application, Server, TokenFile, application_id, connect, duration
from .errors import InvalidInput
from .output import Format, Output, show
from .planner_registry import LOCAL as LOCAL_PLANNER
from .terminal import Listing

PlannerServer = Annotated[
    str, typer.Option("--planner-server", envvar="WEIR_PLANNER_SERVER", help="Address of the planner service.")
]
_ARRIVALS = {"present": "present load", "expected": "forecast", "upper-edge": "forecast's upper edge"}
_HORIZON = ("10s", "1d")


def judge(
    application: Application,
    parallelism: Annotated[
        list[str] | None,
        typer.Option(
            "--parallelism", "-p", help="operator=number, repeatable; other operators keep their parallelism."
        ),
    ] = None,
    horizon: Annotated[str, typer.Option(help="Horizon of the prediction, 10s to 1d.")] = "10m",
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
    from weir_predictor.question import InvalidQuestion, parse_parallelism

    try:
        return parse_parallelism(texts)
    except InvalidQuestion as wrong:
        raise InvalidInput(f"--parallelism: {wrong}") from None


def judgement_panel(found: Mapping[str, Any]) -> RenderableType:
    """Return the judgement: the cost, a line for each course of the arrivals, the sentence and its caveats."""
    parts: list[RenderableType] = [_heading(found), loads_table(found["loads"])]
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


def _heading(found: Mapping[str, Any]) -> Text:
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
