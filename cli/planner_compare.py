"""`weir planner compare`: scores of the chosen planner and its shadows."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .client import LOCAL, Application, Server, TokenFile, application_id, connect
from .output import Format, Json, Output, show
from .terminal import Listing
from .trial.view import number

MIN_CONFIDENCE = 0.8
"""Lower confidence is shown as a warning."""


def compare(
    application: Application,
    since: Annotated[str, typer.Option(help="How far back, 1m to 7d, in complete hours.")] = "24h",
    json: Json = False,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Compare the chosen planner and its shadows, each on a simulated copy of the application, and name a cheaper one."""
    found = connect(server, token_file).scores(application_id(application), since)
    show(found, Format.JSON if json else output, lambda: scores_panel(found))


def scores_panel(found: Mapping[str, Any]) -> RenderableType:
    """Return the scores: a line for each planner, the result, and the confidence."""
    result = Text(str(found["sentence"]), "bold green" if found.get("cheaper") else "bold")
    return Group(_heading(found), _table(found), result, _confidence(found))


def _heading(found: Mapping[str, Any]) -> Text:
    text = Text(str(found["application"]), "bold")
    since, until = (datetime.fromisoformat(found[end]).astimezone(UTC) for end in ("since", "until"))
    return text.append(f"   {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC", "not bold dim")


def _table(found: Mapping[str, Any]) -> Table:
    shares = ("UNDER %", "OVER %", "UNDER TIME %", "OVER TIME %", "UNSTABLE %")
    table = Listing("PLANNER", "", optional=("NO ANSWER", "HOURS", "SLOTS", *shares))
    for heading in ("SLOT-HOURS", "LATE", "RESCALES", "NO ANSWER", "HOURS", "SLOTS", *shares):
        table.add_column(heading, justify="right")
    for row in found["planners"]:
        style = "bold green" if row["label"] == found.get("cheaper") and row["current"] else ""
        named = row["label"] if row["label"] in (row["planner"], "observed") else f"{row['label']} ({row['planner']})"
        share = row.get("violation_share")
        percent = (
            "under_provisioning",
            "over_provisioning",
            "under_provisioned_time",
            "over_provisioned_time",
            "instability",
        )
        table.add_row(
            Text(named, style),
            Text(_role(row), "dim"),
            number(row["slot_hours"], digits=2),
            "–" if share is None else f"{row['violation_seconds']:,.0f} s ({share:.2%})",
            number(row["rescales"]),
            f"{row['unanswered']} of {row['cycles']}" if row["unanswered"] else "–",
            number(row["seconds"] / 3600, digits=1),
            number(row.get("mean_slots"), digits=2),
            *(number(row.get(name), digits=2) for name in percent),
        )
    return table


def _role(row: Mapping[str, Any]) -> str:
    if not row["current"]:
        return "former"
    return {"chosen": "chosen, simulated", "observed": "the real application"}.get(str(row["role"]), "shadow")


def _confidence(found: Mapping[str, Any]) -> Text:
    confidence = found.get("confidence")
    if confidence is None:
        sentence = "confidence unknown: the application did not follow the chosen planner (mode act), so no real run can be compared"
        return Text(sentence, "yellow")
    hours = found["compared_seconds"] / 3600
    text = f"confidence {confidence:.0%}: the chosen planner's simulation compared with the real application over {hours:.1f} h"
    return Text(text, "yellow" if confidence < MIN_CONFIDENCE else "dim")
