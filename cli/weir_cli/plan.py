"""`weir plan`: the decision of a planner and the guards, on an application's last request or on a saved one."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir_runtime.clock import SystemClock

from . import output as tables
from .client import LOCAL, Server, TokenFile, application_id, complete_application, connect
from .errors import InvalidInput
from .output import Format, Output, show

if TYPE_CHECKING:
    from weir_contracts import PlanRequest

_HISTORY = timedelta(minutes=30)
"""History that the last request is built from: more than the observations and plans that a planner receives."""


def plan(
    application: Annotated[
        str | None,
        typer.Argument(
            help="namespace/name; a name alone is in the namespace default.",
            show_default=False,
            autocompletion=complete_application,
        ),
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option(help="File with a PlanRequest as JSON, as --save writes it, instead of an application."),
    ] = None,
    planner: Annotated[str | None, typer.Option(help="Built-in or installed planner; default: the policy's.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the application's request to this file (.json).")] = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the decision of a planner and the guards on what was last known of an application. Changes nothing.

    With --request the command reads what was known from a file and needs no server.
    """
    from weir_planner.core.decide import plan_offline

    if (application is None) == (request is None):
        raise InvalidInput("name either an application or --request with a file")
    if request is not None:
        if save is not None:
            raise InvalidInput("--save: is for an application only")
        found = _read(request)
    else:
        assert application is not None  # noqa: S101 - see above
        found = _last(application_id(application), server, token_file)
        if save is not None:
            _save(found, save)
    try:
        decided = plan_offline(found, planner)
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    document = decided.model_dump(mode="json")
    cycle = {"correlation_id": decided.observation_id, "plan": document}
    show(document, output, lambda: tables.cycle_panel(cycle, verbose=True))


def _read(path: Path) -> "PlanRequest":
    from pydantic import ValidationError

    from weir_contracts import InvalidDocument, PlanRequest

    try:
        return PlanRequest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"--request: {path}: {error.strerror}") from None
    except ValidationError as error:
        raise InvalidInput(f"--request: {path}: {InvalidDocument.of(error)}") from None


def _last(application: str, server: str, token_file: Path | None) -> "PlanRequest":
    from weir_replay.recorded import InvalidRecording, last_request

    from .replay.recorded import stored_events

    events = stored_events(connect(server, token_file), application, SystemClock().now() - _HISTORY)
    try:
        found = last_request(events, application)
    except InvalidRecording as error:
        raise InvalidInput(f"{application}: {error}") from None
    if found is None:
        raise InvalidInput(f"{application}: no analysis is stored of the last {_HISTORY.total_seconds() / 60:.0f} min")
    return found


def _save(request: "PlanRequest", path: Path) -> None:
    try:
        path.write_text(request.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--save: {path}: {error.strerror}") from None
