"""`weir planner compare`: how the chosen planner and its shadows did, and which would have been cheaper."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .client import application_id, connect
from .output import Format, show
from .trial.view import number

LITTLE_CONFIDENCE = 0.8
"""Below it the numbers are told with a warning."""


def compare(
    application: Annotated[str, typer.Argument(help="namespace/name; a name alone is in the namespace default.")],
    since: Annotated[str, typer.Option(help="How far back, 1m to 7d; whole hours are told.")] = "24h",
    json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    server: Annotated[
        str, typer.Option("--server", envvar="WEIR_SERVER", help="Address of the knowledge service.")
    ] = "http://127.0.0.1:8080",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the bearer token (else WEIR_TOKEN).")
    ] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="For people or for programs.")] = Format.TABLE,
) -> None:
    """How the chosen planner and its shadows did on simulated copies of the application, and which would have been cheaper."""
    found = connect(server, token_file).scores(application_id(application), since)
    show(found, Format.JSON if json else output, lambda: scores_panel(found))


def scores_panel(found: Mapping[str, Any]) -> RenderableType:
    """The whole account: a line for each planner, and the verdict."""
    return Group(_heading(found), _table(found), _verdict(found), *_notes(found))


def _heading(found: Mapping[str, Any]) -> Text:
    text = Text(str(found["application"]), "bold")
    since, until = (datetime.fromisoformat(found[end]).astimezone(UTC) for end in ("since", "until"))
    return text.append(f"   {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC", "not bold dim")


def _table(found: Mapping[str, Any]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("PLANNER")
    table.add_column("")
    headings = ("HOURS", "SLOT-HOURS", "SLOTS", "LATE", "RESCALES", "UNDER %", "OVER %", "UNDER TIME %", "OVER TIME %")
    for heading in (*headings, "UNSTABLE %", "NO ANSWER"):
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
            number(row["seconds"] / 3600, digits=1),
            number(row["slot_hours"], digits=2),
            number(row.get("mean_slots"), digits=2),
            "–" if share is None else f"{row['violation_seconds']:,.0f} s ({share:.2%})",
            number(row["rescales"]),
            *(number(row.get(name), digits=2) for name in percent),
            f"{row['unanswered']} of {row['turns']}" if row["unanswered"] else "–",
        )
    return table


def _role(row: Mapping[str, Any]) -> str:
    if not row["current"]:
        return "former"
    return {"chosen": "chosen, simulated", "observed": "what really ran"}.get(str(row["role"]), "shadow")


def _verdict(found: Mapping[str, Any]) -> Text:
    return Text(str(found["sentence"]), "bold green" if found.get("cheaper") else "bold")


def _notes(found: Mapping[str, Any]) -> list[Text]:
    confidence = found.get("confidence")
    if confidence is None:
        return [
            Text(
                "confidence unknown: the application did not follow the chosen planner (mode act), so its simulation could not be "
                "held beside what really happened",
                "yellow",
            )
        ]
    hours = found["compared_seconds"] / 3600
    text = (
        f"confidence {confidence:.0%}: the chosen planner's simulation beside what really happened, over {hours:.1f} h"
    )
    return [Text(text, "yellow" if confidence < LITTLE_CONFIDENCE else "dim")]
