"""Decisions on an application's stored messages: `weir plan` on its last request, `weir replay --recorded` on its history
from the server or from a file, with the decisions that would be others today.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from weir_runtime.clock import SystemClock
from weir_runtime.http_client import Event

from . import output as tables
from .client import LOCAL, Client, InvalidInput, Server, TokenFile, application_id, connect
from .completion import complete_application, complete_installed_planner
from .output import Format, Output, show
from .terminal import Listing

if TYPE_CHECKING:
    from weir_contracts import PlanRequest
    from weir_replay.recorded import Changed, Comparison

MAX_LINES = 100
"""Differences in a table; programs get all."""
MAX_LINE_CHARACTERS = 16_000_000
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
    planner: Annotated[
        str | None,
        typer.Option(
            help="Built-in or installed planner; default: the policy's.",
            autocompletion=complete_installed_planner,
        ),
    ] = None,
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


# -- the whole history -------------------------------------------------------------------------------------------------


def stored_events(client: Client, application: str, since: datetime | None = None) -> Iterator[Event]:
    """Yield the application's stored events from `since` on, oldest first, behind the older outcomes that are still
    known."""
    outcomes = client.outcomes(application)
    events = client.recorded(application, since)
    first = next(events, None)
    if first is None:
        return
    # The id of an event begins with its time in milliseconds.
    began = datetime.fromtimestamp(int(first.id.partition("-")[0]) / 1000, UTC)
    early = [each for each in reversed(outcomes) if datetime.fromisoformat(each["at"]) < began]
    yield from chain((Event("", "outcome", each) for each in early), (first,), events)


def events_in(path: Path) -> Iterator[Event]:
    """Yield the events of a file: a line of JSON each, as `weir watch -o json` prints them."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_CHARACTERS), ""), 1):
                if not line.strip():
                    continue
                try:
                    found = json.loads(line)
                    yield Event(str(found.get("id") or ""), str(found["kind"]), found["data"])
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    what = "is no event: a JSON object with kind and data, as weir watch -o json prints it"
                    raise InvalidInput(f"--file: {path}: line {number} {what}") from None
    except OSError as error:
        raise InvalidInput(f"--file: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"--file: {path}: is not UTF-8 text") from None


def exported(events: Iterator[Event], path: Path) -> Iterator[Event]:
    """Yield the events and write each to a file, which `--file` reads."""
    try:
        with path.open("w", encoding="utf-8") as out:
            for event in events:
                out.write(json.dumps({"id": event.id, "kind": event.kind, "data": event.data}) + "\n")
                yield event
    except OSError as error:
        raise InvalidInput(f"--export: {path}: {error.strerror}") from None


def changed(planner: str | None, policy: Path | None) -> "Changed":
    """Return what the present decisions are made with instead of what was recorded."""
    from weir_contracts import InvalidPolicy, parse_policy
    from weir_replay.recorded import Changed
    from weir_runtime.documents import Unreadable, read_file
    from weir_sdk import InvalidParameters
    from weir_sdk.installed import UnknownPlanner, parse_parameters

    spec, parameters, name = None, {}, planner
    place = "--planner"
    if policy is not None:
        try:
            spec = parse_policy(read_file(policy)).spec
        except Unreadable as error:
            raise InvalidInput(f"--policy: {error}") from None
        except InvalidPolicy as error:
            raise InvalidInput(f"--policy: {policy}: {error}") from None
        if planner in (None, spec.planner.name):
            name, parameters, planner = spec.planner.name, spec.planner.parameters, None
            place = f"--policy: {policy}: spec.planner"
    if name is not None:
        try:
            parse_parameters(name, parameters)
        except (UnknownPlanner, InvalidParameters) as error:
            raise InvalidInput(f"{place}: {error}") from None
    return Changed(planner, spec)


def replayed(events: Iterator[Event], application: str, since: datetime | None, changed: "Changed") -> "Comparison":
    """Return the comparison of the decisions from `since` on."""
    from weir_replay.recorded import InvalidRecording, compare

    try:
        return compare(events, application, since=since, changed=changed)
    except InvalidRecording as error:
        raise InvalidInput(f"{application}: {error}") from None


def document(found: "Comparison", since: datetime | None) -> dict[str, Any]:
    """Return the comparison for programs."""
    from pydantic import TypeAdapter

    about = TypeAdapter(type(found)).dump_python(found, mode="json")
    return {"asked_from": since and since.isoformat(), **about}


def comparison_panel(found: "Comparison", since: datetime | None) -> RenderableType:
    """Return the comparison: what was recorded, what was replayed, and a line for each difference."""
    lines = [*_about(found, since), ""]
    if found.decisions:
        lines.append(_result(found))
    parts: list[RenderableType] = [Text("\n".join(lines))]
    if found.differences:
        table = Listing("TIME (UTC)")
        for heading in ("RECORDED", "PRESENT", "FIRST DIFFERENCE"):
            table.add_column(heading, overflow="fold")
        for each in found.differences[:MAX_LINES]:
            style = "" if each.is_decision else "dim"
            at = f"{each.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
            table.add_row(*(Text(text, style) for text in (at, each.recorded, each.present, each.first)))
        parts.append(table)
        if len(found.differences) > MAX_LINES:
            parts.append(Text(f"and {len(found.differences) - MAX_LINES:,} more: -o json lists all"))
    return Group(*parts)


def _about(found: "Comparison", asked: datetime | None) -> Iterator[str]:
    if found.recorded_from is None:
        yield f"{found.application}: no message is stored"
        return
    began = _at(found.recorded_from)
    if asked is not None and found.recorded_from > asked:
        yield f"{found.application}: history is stored from {began} on, later than asked ({_at(asked)})"
    else:
        yield f"{found.application}: history from {_at(asked) if asked else began} on"
    if found.analyses == 0:
        yield "analyses: as recorded, because the analyzer's state before the first one is not stored"
    elif found.analyses_differ_from is None:
        yield f"analyses: {found.analyses:,} made again from the observations, all the same"
    else:
        at = _at(found.analyses_differ_from)
        yield f"analyses: {found.analyses:,} made again, others from {at} on: {found.analyses_first}"
    if found.incomplete:
        yield f"not compared: the first {found.incomplete:,} decisions, whose planner had seen more than is stored"
    if found.unanswered:
        yield f"not compared: {found.unanswered:,} decisions, whose planner had given no usable reply"


def _result(found: "Comparison") -> str:
    others = sum(each.is_decision for each in found.differences)
    reasons = len(found.differences) - others
    of = f"{found.decisions:,} decisions from {_at(found.decided_from)} to {_at(found.decided_until)}"
    if not found.differences:
        return f"{of}: 0 differences"
    more = f", {reasons:,} more have other reasons or numbers" if reasons else ""
    return f"{of}: {others:,} differ{more}"


def _at(time: datetime | None) -> str:
    return "–" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def application_of(events: Iterator[Event]) -> tuple[str, Iterator[Event]]:
    """Return the application of a file's first event, and all events."""
    first = next(events, None)
    data = first.data if first is not None else None
    name = data.get("application") if isinstance(data, Mapping) else None
    if first is None or not isinstance(name, str):
        raise InvalidInput("--file: the first event names no application")
    return name, chain((first,), events)
