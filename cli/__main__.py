"""The `weir` command."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live
from weir_contracts import InvalidPolicy, PlanRequest, parse_policy

from . import output as tables
from .client import Client, application_id
from .errors import EXIT_CODES, CommandError, InvalidInput
from .replay.command import replay
from .trial.command import trial

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Weir, an autoscaler for stream processing.",
)
Server = Annotated[str, typer.Option("--server", envvar="WEIR_SERVER", help="Address of the knowledge service.")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with the bearer token (else WEIR_TOKEN).")]
Output = Annotated[str, typer.Option("--output", "-o", help="table, json or yaml.")]
Application = Annotated[str, typer.Argument(help="namespace/name; a name alone is in the namespace default.")]
LOCAL = "http://127.0.0.1:8080"


@app.callback(epilog=EXIT_CODES)
def _root() -> None:
    """Weir holds a streaming application's freshness at its objective with as little parallelism as that takes."""


@app.command()
def apply(
    file: Annotated[
        str, typer.Option("--file", "-f", help="YAML or JSON; several documents are fine; - for standard input.")
    ],
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = "table",
) -> None:
    """Create or replace policies."""
    client = _client(server, token_file)
    stored = []
    for place, document in _documents(file):
        try:
            policy = parse_policy(document)
        except InvalidPolicy as error:
            raise InvalidInput(f"{place}: {error}") from None
        answer, created, warning = client.put_policy(policy.application, document)
        stored.append(answer)
        if warning:
            _say(f"note: {warning}", error=True)
        if output == "table":
            mode = answer["spec"].get("mode", "advise")
            done, version = "created" if created else "replaced", answer["metadata"]["resourceVersion"]
            _say(f"{policy.application} {done} (version {version}, mode {mode})")
    if output != "table":
        _print(stored if len(stored) != 1 else stored[0], output, None)


@app.command()
def get(
    application: Annotated[str | None, typer.Argument(help="namespace/name, or `policies`; nothing for all.")] = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = "table",
) -> None:
    """Show applications, one application, or the policies."""
    client = _client(server, token_file)
    if application is None:
        items = client.applications()
        _print(items, output, lambda: tables.applications_table(items))
    elif application in ("policies", "policy"):
        policies = client.policies()
        _print(policies, output, lambda: tables.policies_table(policies))
    elif output == "yaml":
        _print(client.policy(application_id(application)), output, None)
    else:
        found = client.application(application_id(application))
        _print(found, output, lambda: tables.application_panel(found))


@app.command()
def delete(application: Application, server: Server = LOCAL, token_file: TokenFile = None) -> None:
    """Delete a policy; the application itself stays as it is."""
    name = application_id(application)
    _client(server, token_file).delete_policy(name)
    _say(f"{name} deleted; the application stays as it is")


@app.command()
def pause(application: Application, server: Server = LOCAL, token_file: TokenFile = None) -> None:
    """Stop planning for an application; what is in flight is finished."""
    _switch(application, "pause", server, token_file)


@app.command()
def resume(application: Application, server: Server = LOCAL, token_file: TokenFile = None) -> None:
    """Go on in the mode it had before it was paused."""
    _switch(application, "resume", server, token_file)


@app.command()
def explain(
    application: Application,
    last: Annotated[int, typer.Option(min=1, max=60, help="How many decisions.")] = 3,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = "table",
) -> None:
    """Why: the last decisions, from reading to outcome, newest last."""
    turns = _client(server, token_file).explain(application_id(application), last)
    if output != "table":
        _print(turns, output, None)
        return
    console = Console()
    for turn in reversed(turns):
        console.print(tables.turn_panel(turn))
    if not turns:
        _say("nothing was decided yet")


@app.command()
def watch(
    application: Application, server: Server = LOCAL, token_file: TokenFile = None, output: Output = "table"
) -> None:
    """Follow an application live until Ctrl-C; with -o json an event a line."""
    client, name = _client(server, token_file), application_id(application)
    found = client.application(name)
    if output == "json":
        for event in client.events(name):
            sys.stdout.write(json.dumps({"id": event.id, "kind": event.kind, "data": event.data}) + "\n")
            sys.stdout.flush()
        return
    with Live(tables.application_panel(found), refresh_per_second=4) as live:
        for _event in client.events(name):
            live.update(tables.application_panel(client.application(name)))


@app.command()
def plan(
    request: Annotated[Path, typer.Option(help="A PlanRequest as JSON (see contracts/examples).")],
    planner: Annotated[str | None, typer.Option(help="Which planner; by default the policy's.")] = None,
    output: Output = "table",
) -> None:
    """What a planner and the guards would decide on a saved request. Needs no server."""
    from services.planner.offline import plan_offline

    try:
        asked = PlanRequest.model_validate_json(request.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{request}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        raise InvalidInput(f"{request}: {field}: {first['msg']}") from None
    try:
        decided = plan_offline(asked, planner)
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    document = decided.model_dump(mode="json")
    turn = {"correlation_id": decided.observation_id, "plan": document}
    _print(document, output, lambda: tables.turn_panel(turn))


app.command()(trial)
app.command()(replay)


def _switch(application: str, verb: str, server: str, token_file: Path | None) -> None:
    name = application_id(application)
    _say(f"{name} is in mode {_client(server, token_file).switch(name, verb)['spec'].get('mode', 'advise')}")


def _client(server: str, token_file: Path | None) -> Client:
    token = os.environ.get("WEIR_TOKEN")
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise InvalidInput(f"--token-file: {token_file}: {error.strerror}") from None
    return Client(server, token)


def _documents(file: str) -> list[tuple[str, Any]]:
    """The documents of a file with the place of each, for errors."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        found = [document for document in yaml.safe_load_all(text) if document is not None]
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark else file
        raise InvalidInput(f"{place}: is not YAML: {getattr(error, 'problem', None) or error}") from None
    if not found:
        raise InvalidInput(f"{file}: holds no document")
    return [(file if len(found) == 1 else f"{file}, document {i + 1}", each) for i, each in enumerate(found)]


def _print(document: Any, form: str, table: Any) -> None:
    if form == "json":
        sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
    elif form == "yaml":
        sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    elif form == "table" and table is not None:
        Console().print(table())
    else:
        raise InvalidInput(f"--output: {form!r} is none of table, json and yaml")


def _say(text: str, *, error: bool = False) -> None:
    (sys.stderr if error else sys.stdout).write(text + "\n")


def main() -> None:
    """The entry point: every expected failure is one line and its exit code."""
    try:
        app()
    except CommandError as error:
        _say(f"weir: {error}", error=True)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read has had enough. Python would complain once more when it flushes at its end.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
        sys.exit(1)


if __name__ == "__main__":
    main()
