"""`weir apply`: policies from files and folders, all of them or none."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from .client import (
    LOCAL,
    Client,
    CommandError,
    InvalidInput,
    NotFound,
    Refused,
    Server,
    TokenFile,
    Unreachable,
    connect,
    duration,
)
from .output import Format, Output, text_of
from .terminal import say

SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files that are read from a folder."""
POLL_SECONDS = 1.0
_WAIT = ("1s", "1h")


@dataclass(frozen=True)
class Document:
    """A policy, and where it was read, for error messages."""

    place: str
    application: str
    content: Any


def apply(
    files: Annotated[
        list[str],
        typer.Option(
            "--file", "-f", help="File with policies (YAML or JSON), folder of such files, or - for input; repeatable."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the server check the policies and say what would change.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until each application was read under its policy, without problems.")
    ] = False,
    timeout: Annotated[str, typer.Option(help="With --wait: how long, 1s to 1h.")] = "60s",
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Create or replace policies. If one of several is refused, none is changed.

    A policy that is stored already stays as it is: unchanged.
    """
    within = duration("--timeout", timeout, *_WAIT).total_seconds()
    client = connect(server, token_file)
    documents = checked(files)
    answers = [] if len(documents) == 1 and not dry_run else _sent(client, documents, dry_run=True)
    if not dry_run:
        answers = _sent(client, documents)
    for answer, result, warning in answers:
        if warning:
            say(f"note: {warning}", error=True)
        if output is Format.TABLE:
            say(_sentence(answer, result, dry_run=dry_run))
    if output is not Format.TABLE:
        stored = [answer for answer, _, _ in answers]
        sys.stdout.write(text_of(stored if len(stored) != 1 else stored[0], output))
    if wait and not dry_run:
        until = time.monotonic() + within
        for document, (answer, _, _) in zip(documents, answers, strict=True):
            observation = _observed(client, document.application, answer["metadata"]["version"], until, timeout)
            if output is Format.TABLE:
                say(f"{document.application} observed ({observation['status']})")


def _sentence(answer: Mapping[str, Any], result: str, *, dry_run: bool) -> str:
    metadata, mode = answer["metadata"], answer["spec"].get("mode", "advise")
    name = f"{metadata['namespace']}/{metadata['name']}"
    if dry_run:
        return f"{name} would be {result} (mode {mode})"
    return f"{name} {result} (version {metadata['version']}, mode {mode})"


def _sent(client: Client, documents: Sequence[Document], *, dry_run: bool = False) -> list[tuple[Any, str, str | None]]:
    """Send all policies; an error names the document, and what is in force nevertheless."""
    answers: list[tuple[Any, str, str | None]] = []
    for document in documents:
        try:
            answers.append(client.put_policy(document.application, document.content, dry_run=dry_run))
        except CommandError as error:
            # A server that does not answer, or wants a token, is not the document's fault.
            place = "" if isinstance(error, Unreachable | Refused) else f"{document.place}: "
            in_force = [each.application for each in documents[: len(answers)]] if not dry_run else []
            state = "nothing was changed" if not in_force else f"in force: {', '.join(in_force)}"
            raise type(error)(f"{place}{error}{f'; {state}' if len(documents) > 1 else ''}") from None
    return answers


def _observed(client: Client, application: str, version: int, until: float, timeout: str) -> dict[str, Any]:
    """Return the first observation under this version of the policy that has no problem; `CommandError` if there is none
    in time."""
    reason = "no observation under this policy yet: does the monitor run?"
    while True:
        try:
            observation = client.observation(application)
            if (observation["policy"]["metadata"].get("version") or 0) >= version:
                problems = [str(each) for each in observation.get("problems") or []]
                if not problems and observation["status"] != "unreachable":
                    return observation
                reason = problems[0] if problems else str(observation.get("message") or observation["status"])
        except NotFound:
            pass
        if time.monotonic() + POLL_SECONDS > until:
            raise CommandError(f"{application}: applied, but not observed without a problem within {timeout}: {reason}")
        time.sleep(POLL_SECONDS)


def checked(files: Sequence[str]) -> list[Document]:
    """Return all documents. All are checked before the first is sent; an application has one policy."""
    from weir_contracts import InvalidPolicy, parse_policy

    found: dict[str, Document] = {}
    for place, content in (each for file in files for path in _paths(file) for each in _read(path)):
        try:
            application = parse_policy(content).application
        except InvalidPolicy as error:
            raise InvalidInput(f"{place}: {error}") from None
        if application in found:
            raise InvalidInput(f"{place}: {application} has a policy in {found[application].place} already")
        found[application] = Document(place, application, content)
    return list(found.values())


def _paths(file: str) -> list[str]:
    """Return the file, or the files of a folder by name."""
    if file == "-" or not Path(file).is_dir():
        return [file]
    try:
        found = sorted(str(each) for each in Path(file).iterdir() if each.suffix in SUFFIXES and each.is_file())
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read: {error.strerror}") from None
    if not found:
        raise InvalidInput(f"{file}: the folder has no file that ends with {', '.join(SUFFIXES)}")
    return found


def _read(file: str) -> Iterator[tuple[str, Any]]:
    """Yield the documents of a file, and those of a list in it, each with its place."""
    from weir_runtime.documents import Unreadable, read_files

    try:
        found = [one for each in read_files(file) for one in (each if isinstance(each, list) else [each])]
    except Unreadable as error:
        raise InvalidInput(str(error)) from None
    place = "standard input" if file == "-" else file
    if not found:
        raise InvalidInput(f"{place}: holds no document")
    for number, each in enumerate(found, 1):
        yield place if len(found) == 1 else f"{place}, document {number}", each
