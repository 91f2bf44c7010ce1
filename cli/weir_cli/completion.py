"""Names for the shell: those of applications and planners, which the server gives within a second or not at all, and what
kubectl asks its plugins for.

Whatever goes wrong, nothing is said: the user is in the middle of a line.
"""

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from .client import connect
from .terminal import MAX_COLUMNS

COMPLETION_SECONDS = 1.0
"""For a name to be completed; a shell waits meanwhile."""
_COMPLETED = re.compile(r"[A-Za-z0-9._/-]+")
"""Names that a shell does not run or misread."""
NO_FILES, AS_USUAL = ":4", ":0"
"""Last line of an answer to kubectl, as its library has it: these are all, or the shell may complete files."""


def complete_application(context: typer.Context, incomplete: str) -> list[str]:
    """Return the applications that a shell may complete; none, without a word, if no server answers in time."""
    return _names(
        context, incomplete, "/v1/applications?limit=1000", lambda found: [e["application"] for e in found["items"]]
    )


def complete_planner(context: typer.Context, incomplete: str) -> list[str]:
    """Return the planners that the planner service lists, likewise."""
    return _names(context, incomplete, "/v1/planners", lambda found: [e["name"] for e in found["planners"]])


def complete_installed_planner(incomplete: str) -> list[str]:
    """Return the planners that are installed here, for commands that decide without a server."""
    return sorted(each.name for each in entry_points(group="weir.planners") if each.name.startswith(incomplete))


def _names(context: typer.Context, incomplete: str, path: str, names: Callable[[Any], list[str]]) -> list[str]:
    try:
        made = connect(context.params["server"], context.params.get("token_file"), seconds=COMPLETION_SECONDS)
        found = names(made.get(path))
        return [each for each in found if each.startswith(incomplete) and _COMPLETED.fullmatch(each)]
    except Exception:  # noqa: BLE001 - also a server that is none of Weir's
        return []


Application = Annotated[
    str,
    typer.Argument(
        help="namespace/name; a name alone is in the namespace default.", autocompletion=complete_application
    ),
]


def for_kubectl() -> None:
    """Print what completes the words of the line, the last of which is incomplete, a line each, and kubectl's instruction
    at the end."""
    from .__main__ import app

    *words, incomplete = sys.argv[1:] or [""]
    # As the scripts do that `weir --install-completion` writes.
    os.environ["_WEIR_COMPLETE"] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    os.environ["_TYPER_COMPLETE_ARGS"] = (
        f"{shlex.join(['weir', *words])} {shlex.quote(incomplete) if incomplete else ''}"
    )
    os.environ["COLUMNS"] = str(MAX_COLUMNS)  # each description on the line of its word
    found = io.StringIO()
    with (
        contextlib.redirect_stdout(found),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(Exception, SystemExit),
    ):
        app(prog_name="weir")
    lines = [line for line in found.getvalue().splitlines() if line]
    sys.stdout.write("\n".join([*lines, NO_FILES if lines else AS_USUAL]) + "\n")
