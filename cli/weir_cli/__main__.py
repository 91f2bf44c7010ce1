"""The `weir` command."""

import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from . import output as tables
from .apply import apply
from .client import (
    EXIT_CODES,
    LOCAL,
    Client,
    CommandError,
    InvalidInput,
    Server,
    TokenFile,
    application_id,
    connect,
)
from .completion import Application, complete_application
from .doctor import doctor
from .move import export, import_
from .output import Format, ListFormat, Output, show, text_of
from .planner_registry import check, kta_bridge, list_planners, register, remove
from .recorded import plan
from .replay import replay
from .run import demo, run
from .terminal import discard_output, prepare_output, say, show_table, terminal
from .trial import trial
from .watch import follow_all, follow_one, watch
from .what_if import judge, what_if


# Contracts, planners and the simulator are imported by the commands that need them: most only speak HTTP.
def _flags_without_type(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command; help shows no type of those that take no value."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


_Function = TypeVar("_Function", bound=Callable[..., Any])


class _App(typer.Typer):
    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        return super().command(name, cls=_Command, **options)


app = _App(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Weir, an autoscaler for stream processing.",
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"weir {version('weir-autoscaler')}")
        raise typer.Exit


@app.callback(epilog=EXIT_CODES)
def _root(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Print the version, or run one of the commands."""


app.command()(apply)


@app.command()
def get(
    application: Annotated[
        str | None,
        typer.Argument(
            help="namespace/name, or `policies`; default: all applications.", autocompletion=complete_application
        ),
    ] = None,
    policy: Annotated[
        bool,
        typer.Option("--policy", help="Show the policy instead; -o yaml gives a document to edit and apply."),
    ] = False,
    with_version: Annotated[
        bool,
        typer.Option(
            "--with-version", help="Keep the version in documents: applied again, they replace only what you have read."
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Go on until Ctrl-C: a screen, or into a pipe a line for each decision."),
    ] = False,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Annotated[
        ListFormat,
        typer.Option("--output", "-o", help="table for people, wide with more columns, json or yaml for programs."),
    ] = ListFormat.TABLE,
) -> None:
    """Show applications, one application, or policies."""
    client, wide = connect(server, token_file), output is ListFormat.WIDE
    found: Any
    policies = policy or application in ("policies", "policy")
    if follow and policies:
        raise InvalidInput("--watch: follows applications, not policies")
    if follow:
        if application is None:
            follow_all(client, output.plain, wide=wide)
        else:
            follow_one(client, application_id(application), output.plain, wide=wide)
        return
    if application in ("policies", "policy") or (application is None and policy):
        found = client.policies()
        table = tables.policies_table(found)
    elif application is None:
        found = client.applications()
        table = tables.applications_table(found, wide=wide)
    elif policy:
        found = client.policy(application_id(application))
        table = tables.policies_table([found])
    else:
        found = client.application(application_id(application))
        show(found, output.plain, lambda: tables.application_panel(found, wide=wide))
        return
    if output.plain is Format.TABLE:
        show_table(table, wide=wide)
    else:
        if policies and not with_version:
            for each in found if isinstance(found, list) else [found]:
                each["metadata"].pop("version", None)
        show(found, output.plain, lambda: table)


@app.command()
def delete(
    application: Application, server: Server = LOCAL, token_file: TokenFile = None, output: Output = Format.TABLE
) -> None:
    """Delete a policy; the application itself stays as it is."""
    name = application_id(application)
    connect(server, token_file).delete_policy(name)
    show({"application": name, "deleted": True}, output, f"{name} deleted; the application stays as it is")


Reason = Annotated[
    str | None, typer.Option(help="Why, in up to 200 characters: kept in the policy, and shown by the page.")
]


@app.command()
def pause(
    application: Application,
    reason: Reason = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Hold an application at its parallelism; an action in flight is finished."""
    _switch(application, "pause", reason, connect(server, token_file), output)


@app.command()
def resume(
    application: Application,
    reason: Reason = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Resume an application in the mode that it had before the pause."""
    _switch(application, "resume", reason, connect(server, token_file), output)


@app.command()
def explain(
    application: Application,
    last: Annotated[int, typer.Option(min=1, max=60, help="Number of decisions.")] = 3,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Add the evidence, how readings were measured, and ids.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="File for an incident instead: the page of the application with its data, which needs no network."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="With --html: the moment, such as 2026-06-14T18:30:00Z, or 30m for so long ago; default: now."
        ),
    ] = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Explain the last decisions, from reading to outcome, newest last."""
    if at is not None and html is None:
        raise InvalidInput("--at: is the moment of a page: add --html FILE")
    if html is not None and output is not Format.TABLE:
        raise InvalidInput("--output: is the form of decisions on the screen: leave it or --html out")
    client, name = connect(server, token_file), application_id(application)
    if html is not None:
        # Draws curves as well, which no other command that speaks HTTP needs.
        from .chart import check_place, save_page

        check_place(html, "--html", None)
        save_page(html, client.report(name, at))
        say(f"{name} on the page {html}", error=True)
        return
    cycles, spend = client.explain(name, last)
    if output is not Format.TABLE:
        sys.stdout.write(text_of(cycles, output))
        return
    console = terminal()
    for cycle in reversed(cycles):
        console.print(tables.cycle_panel(cycle, verbose=verbose))
    if not cycles:
        say("no decision yet")
    if spend:
        say(spend)


app.command(name="what-if")(what_if)
app.command()(judge)


app.command()(watch)
app.command()(export)
app.command(name="import")(import_)
app.command()(plan)
app.command()(run)
app.command()(demo)

planner_app = _App(
    cls=_Group, no_args_is_help=True, help="List, register and check planners, and serve a KTA container as one."
)
planner_app.command()(register)
planner_app.command(name="list")(list_planners)
planner_app.command()(check)
planner_app.command()(remove)
planner_app.command()(kta_bridge)
app.add_typer(planner_app, name="planner")
app.command()(trial)
app.command()(doctor)
app.command()(replay)


def _switch(application: str, verb: str, reason: str | None, client: Client, output: Format) -> None:
    name = application_id(application)
    policy = client.switch(name, verb, reason)
    show(policy, output, f"{name} is in mode {policy['spec'].get('mode', 'advise')}")


def _called() -> str | None:
    """Return how the user calls the command where that is not the program's name. Shells complete the program's."""
    is_plugin = Path(sys.argv[0]).name.removesuffix(".exe") == "kubectl-weir"
    return "kubectl weir" if is_plugin and not {"--install-completion", "--show-completion"} & {*sys.argv} else None


def main() -> None:
    """Run the command; an expected failure is one line and its exit code."""
    prepare_output()
    try:
        try:
            app(prog_name=_called())
        finally:
            sys.stdout.flush()
    except CommandError as error:
        from weir_contracts import printable

        # Files and servers may contain line breaks and control sequences.
        say(f"weir: {printable(str(error), 10_000)}", error=True)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        discard_output()  # the reader closed the pipe
        sys.exit(1)
    except OSError as error:
        discard_output()
        if error.filename is not None:
            raise
        say(f"weir: standard output cannot be written: {error.strerror}", error=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
