"""`weir watch` and `weir get --watch`: one application, or all of them, live until Ctrl-C."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from . import output as tables
from .client import LOCAL, Client, Server, TokenFile, Unreachable, application_id, connect
from .completion import complete_application
from .output import Format, Output, one_of_many
from .terminal import say, show_table, terminal

LOOK_SECONDS = 2.0
"""Between two looks at all applications: with hundreds of them the feed has an event every few milliseconds."""
MAX_PAUSE_SECONDS = 30.0


def watch(
    application: Annotated[
        str | None,
        typer.Argument(
            help="namespace/name; a name alone is in the namespace default. Default: all applications.",
            autocompletion=complete_application,
        ),
    ] = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Follow an application, or all, live until Ctrl-C: a screen, or into a pipe a line for each decision and outcome, from
    the last decision on. `weir get --watch` is the same.

    With -o json the command prints each event as a line, with -o yaml as a document.
    """
    client = connect(server, token_file)
    if application is None:
        follow_all(client, output)
    else:
        follow_one(client, application_id(application), output)


def follow_one(client: Client, name: str, output: Format, *, wide: bool = False) -> None:
    """Show an application, and what becomes of it."""
    found = client.application(name)
    events = client.follow(name, _report)
    if output is not Format.TABLE:
        _print_events(events, output)
    elif not terminal().is_terminal:
        last, _ = client.explain(name, 1)
        decided = [("plan", cycle["plan"]) for cycle in last if cycle.get("plan")]
        for kind, data in chain(decided, ((event.kind, event.data) for event in events)):
            if (text := tables.event_line(kind, data)) is not None:
                say(text)
    else:
        with Live(tables.application_panel(found, wide=wide), console=terminal(), refresh_per_second=4) as live:
            for _event in events:
                # While the server is away, the feed breaks too and reports it.
                with contextlib.suppress(Unreachable):
                    live.update(tables.application_panel(client.application(name), wide=wide))


def follow_all(client: Client, output: Format, *, wide: bool = False) -> None:
    """Show all applications, and what becomes of them. Into a pipe, the lines begin with the application."""
    if output is not Format.TABLE:
        _print_events(client.follow(None, _report), output)
        return
    found = client.applications()
    if terminal().is_terminal:
        _screen(client, found, wide=wide)
        return
    show_table(tables.applications_table(found, wide=wide), wide=wide)
    for event in client.follow(None, _report):
        if (text := tables.event_line(event.kind, event.data, event.data.get("application"))) is not None:
            say(text)


def _screen(client: Client, found: Sequence[Any], *, wide: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show all applications until Ctrl-C, through an outage of the server as well: a line says that they are old."""
    pause_seconds = LOOK_SECONDS
    with Live(tables.applications_table(found, wide=wide), console=terminal(), auto_refresh=False) as live:
        while True:
            sleep(pause_seconds)
            note = None
            try:
                found = client.applications()
                pause_seconds = LOOK_SECONDS
            except Unreachable as error:
                pause_seconds = min(MAX_PAUSE_SECONDS, 2 * pause_seconds)
                note = Text(f"not current: {error}; trying again in {pause_seconds:g} s", "bold red")
            table = tables.applications_table(found, wide=wide)
            live.update(table if note is None else Group(table, note), refresh=True)


def _print_events(events: Iterator[Any], output: Format) -> None:
    for event in events:
        sys.stdout.write(one_of_many({"id": event.id, "kind": event.kind, "data": event.data}, output))
        sys.stdout.flush()


def _report(reason: str) -> None:
    say(f"weir: {reason}", error=True)
