"""`weir export` and `weir import`: policies, what was learned and past cycles, from one Weir to another.

The file has a line of JSON for each application between a first line, which names the format, and a last one, which counts
them. All of it is checked before anything is sent. Readings, tokens and planners' memories are not in it.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from weir_runtime.http_client import MAX_ELEMENTS, elements_in

from .client import (
    LOCAL,
    Client,
    Conflict,
    InvalidInput,
    NotFound,
    Server,
    TokenFile,
    application_id,
    connect,
)
from .output import Format, Output, text_of
from .terminal import say

FORMAT_VERSION = 1
MAX_APPLICATIONS = 10_000
PART_BYTES = 1_000_000
"""Of one request: half of what the server takes."""
PART_ELEMENTS = MAX_ELEMENTS // 2
ONE_ACTS = "two Weirs that act on one application undo each other's rescales"
File = Annotated[Path, typer.Argument(help="File of the export.", show_default=False)]


@dataclass(frozen=True)
class Line:
    """An application of the file, as it was checked."""

    number: int
    offset: int
    application: str
    policy: Mapping[str, Any]
    operators: int
    """With a learned capacity."""

    @property
    def mode(self) -> str:
        return str(self.policy["spec"].get("mode", "advise"))

    def document(self, mode: str) -> dict[str, Any]:
        """Return the policy in a mode."""
        return {**self.policy, "spec": {**self.policy["spec"], "mode": mode}}


def export(
    file: File,
    applications: Annotated[
        list[str] | None, typer.Argument(help="namespace/name, several; default: all.", show_default=False)
    ] = None,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Write policies, what was learned of their applications and past cycles into a file, for weir import elsewhere."""
    client, names = connect(server, token_file), [application_id(each) for each in applications or []]
    policies = {_name(each): each for each in client.policies()}
    for name in names:
        if name not in policies:
            raise NotFound(f"{name} has no policy")
    wanted = {name: policy for name, policy in policies.items() if not names or name in names}
    results, acting = list[dict[str, Any]](), list[str]()
    with _written(file) as out:
        out.write(_encoded(_first_line()))
        for name, policy in wanted.items():
            line, result = _exported(client, name, policy)
            out.write(line)
            results.append(result)
            if policy["spec"].get("mode") == "act":
                acting.append(name)
            if output is Format.TABLE:
                say(f"{name} exported: {_amounts(result)}{result['left_out']}")
        out.write(_encoded({"end": True, "applications": len(results)}))
    if output is not Format.TABLE:
        sys.stdout.write(text_of(results, output))
    elif not results:
        say("no policy: the file holds no application")
    if acting:
        say(f"note: {', '.join(acting)} {_act(acting)} here: pause it before another Weir does; {ONE_ACTS}", error=True)


@contextmanager
def _written(file: Path) -> Iterator[BinaryIO]:
    """Give what to write to, which becomes `file` once all is written. A link stays one, and a device or a pipe is written to.
    `InvalidInput` if it cannot be written."""
    place = file.resolve()
    is_replaced = place.is_file() or not place.exists()
    part = place.with_name(f"{place.name}.part") if is_replaced else place
    try:
        with part.open("wb") as out:
            yield out
        if is_replaced:
            part.replace(place)
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be written: {error.strerror}") from None
    finally:
        if is_replaced:
            part.unlink(missing_ok=True)


def _act(names: Sequence[str]) -> str:
    return "acts" if len(names) == 1 else "act"


def _first_line() -> dict[str, Any]:
    return {
        "weir": "export",
        "version": FORMAT_VERSION,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "written_by": f"weir {installed_version('weir-autoscaler')}",
    }


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _name(policy: Mapping[str, Any]) -> str:
    return f"{policy['metadata']['namespace']}/{policy['metadata']['name']}"


def _exported(client: Client, name: str, policy: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Return the line of an application, and what it holds; the oldest cycles are left out where it would be too long."""
    from weir_knowledge.core import MAX_CYCLES_COUNT, MAX_HISTORY_COUNT
    from weir_runtime.messages import excess_of

    metadata = {
        key: policy["metadata"][key]
        for key in ("namespace", "name", "labels", "annotations")
        if key in policy["metadata"]
    }
    history, cycles = client.history(name, MAX_HISTORY_COUNT), client.explain(name, MAX_CYCLES_COUNT)[0]
    cycles = [each for each in cycles if each.get("plan")]
    for each in cycles:
        # The planner's memory is its own, and the next plan's state begins again.
        each["plan"].pop("state", None)
    try:
        learned = client.analysis(name).get("learned") or {}
    except (NotFound, Conflict):
        learned = {}
    found = len(history), len(cycles)
    while True:
        document = {
            "application": name,
            "policy": {**policy, "metadata": metadata},
            "learned": learned,
            "history": history,
            "cycles": cycles,
        }
        line = _encoded(document)
        if not (excess := excess_of(line)):
            break
        if not history and not cycles:
            raise InvalidInput(f"{name}: its policy and what was learned have {excess}")
        history, cycles = (history, cycles[: len(cycles) // 2]) if cycles else (history[: len(history) // 2], cycles)
    left_out = found[0] - len(history) + found[1] - len(cycles)
    return line, {
        "application": name,
        "operators": len(learned.get("capacities", {})),
        "history": len(history),
        "cycles": len(cycles),
        "left_out": f"; {left_out:,} older ones left out, as the line was too long" if left_out else "",
    }


def _amounts(result: Mapping[str, Any]) -> str:
    operators = f"capacities of {result['operators']:,} operators" if result["operators"] else "no capacity"
    return f"{operators}, {result['history']:,} past cycles, {result['cycles']:,} of them explained"


def import_(
    file: File,
    replace: Annotated[bool, typer.Option("--replace", help="Replace policies that differ from the file's.")] = False,
    act: Annotated[
        bool,
        typer.Option("--act", help="Keep mode: act, where the Weir of the export has stopped; else it becomes advise."),
    ] = False,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Read a file of weir export: policies, what was learned and past cycles. The same file again changes nothing.

    An application that has another policy here is skipped. What was measured here stays.
    """
    lines = checked(file)
    client = connect(server, token_file)
    before = {line.application: _tried(client, file, line, act=act) for line in lines}
    results = list[dict[str, Any]]()
    with file.open("rb") as source:
        for line in lines:
            result = _imported(client, source, line, before[line.application], replace=replace, act=act)
            results.append(result)
            if output is Format.TABLE:
                say(_sentence(result))
    if output is not Format.TABLE:
        sys.stdout.write(text_of(results, output))
    elif not results:
        say(f"{file} holds no application")
    acted = [line.application for line in lines if line.mode == "act"]
    names = [each["application"] for each in results if each["application"] in acted and each["result"] != "skipped"]
    if names and act:
        say(
            f"note: {', '.join(names)} {_act(names)} here now: the Weir of the export must have stopped; {ONE_ACTS}",
            error=True,
        )
    elif names:
        text = "advise here. Stop the Weir of the export, then: weir import --act --replace"
        say(f"note: {', '.join(names)}: mode act where exported, {text}; {ONE_ACTS}", error=True)


def _mode(line: Line, *, act: bool) -> str:
    return "advise" if line.mode == "act" and not act else line.mode


def _tried(client: Client, file: Path, line: Line, *, act: bool) -> str:
    """Return what the server would do with the policy; an error names the line."""
    try:
        return client.put_policy(line.application, line.document(_mode(line, act=act)), dry_run=True)[1]
    except (InvalidInput, Conflict) as error:
        raise type(error)(f"{file}:{line.number}: {error}; nothing was changed") from None


def _imported(client: Client, source: BinaryIO, line: Line, before: str, *, replace: bool, act: bool) -> dict[str, Any]:
    """Import an application; `before` is what the server would do with its policy."""
    name, mode = line.application, _mode(line, act=act)
    result = {"application": name, "result": before, "mode": mode, "exported_mode": line.mode}
    if before == "replaced" and not replace:
        return {**result, "result": "skipped", "operators": 0, "history": 0, "cycles": 0}
    if before == "created":
        # What was learned comes before the first action that could rest on it.
        client.put_policy(name, line.document("advise" if mode == "act" else mode))
    source.seek(line.offset)
    document = json.loads(source.readline())
    for part in parts(document):
        client.import_part(name, part)
    if before != "created" or mode == "act":
        client.put_policy(name, line.document(mode))
    return {**result, "operators": line.operators, **{each: len(document[each]) for each in ("history", "cycles")}}


def _sentence(result: Mapping[str, Any]) -> str:
    name = result["application"]
    if result["result"] == "skipped":
        return f"{name} skipped: it has another policy here; --replace replaces it"
    return f"{name} {result['result']} (mode {result['mode']}): {_amounts(result)}"


def parts(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield requests that together carry an application, each no larger than the server takes."""
    part: dict[str, Any] = {"learned": document["learned"]} if document["learned"] else {}
    size, elements = _size(document["learned"])
    for kind in ("history", "cycles"):
        for each in document[kind]:
            more_bytes, more_elements = _size(each)
            if part and (size + more_bytes > PART_BYTES or elements + more_elements > PART_ELEMENTS):
                yield part
                part, size, elements = {}, 0, 0
            part.setdefault(kind, []).append(each)
            size, elements = size + more_bytes, elements + more_elements
    if part:
        yield part


def _size(document: Any) -> tuple[int, int]:
    text = json.dumps(document).encode()
    return len(text), elements_in(text)


def checked(file: Path) -> list[Line]:
    """Return the applications of a file of `weir export`. `InvalidInput` names line and reason."""
    try:
        if file.exists() and not file.is_file():
            raise InvalidInput(f"{file}: is no regular file")
        with file.open("rb") as source:
            return _checked(file, source)
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read: {error.strerror}") from None


def _checked(file: Path, source: BinaryIO) -> list[Line]:
    from weir_runtime.messages import MAX_MESSAGE_BYTES

    found: dict[str, Line] = {}
    number, offset = 1, 0
    text = source.readline(MAX_MESSAGE_BYTES + 1)
    _check_first(file, text)
    while True:
        number, offset = number + 1, offset + len(text)
        text = source.readline(MAX_MESSAGE_BYTES + 1)
        place = f"{file}:{number}"
        if not text:
            raise InvalidInput(f"{file}: ends after line {number - 1} without its last line: copy or export it again")
        document = _document(place, text)
        if document.get("end") is True:
            if document.get("applications") != len(found):
                raise InvalidInput(
                    f"{place}: counts {document.get('applications')!r} applications, {len(found)} are there"
                )
            if source.readline(1):
                raise InvalidInput(f"{file}:{number + 1}: follows the last line")
            return list(found.values())
        line = _line(place, number, offset, document)
        if line.application in found:
            raise InvalidInput(f"{place}: {line.application} is in line {found[line.application].number} already")
        if len(found) >= MAX_APPLICATIONS:
            raise InvalidInput(f"{place}: is the application after {MAX_APPLICATIONS:,}, the most that are read")
        found[line.application] = line


def _check_first(file: Path, text: bytes) -> None:
    try:
        first = json.loads(text)
    except (ValueError, RecursionError):
        first = None
    if not isinstance(first, dict) or first.get("weir") != "export":
        raise InvalidInput(f"{file}:1: this is no file of weir export")
    version = first.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InvalidInput(f"{file}:1: version: must be a number, not {str(version)[:40]!r}")
    if version > FORMAT_VERSION:
        raise InvalidInput(
            f"{file}:1: version {version} is of a newer Weir than this, which reads {FORMAT_VERSION}: upgrade this one"
        )


def _document(place: str, text: bytes) -> dict[str, Any]:
    from weir_runtime.documents import Unreadable, read_json
    from weir_runtime.messages import excess_of

    if excess := excess_of(text):
        raise InvalidInput(f"{place}: has {excess}")
    if not text.endswith(b"\n"):
        raise InvalidInput(f"{place}: ends in the middle: copy or export it again")
    try:
        found = read_json(text.decode())
    except UnicodeDecodeError:
        raise InvalidInput(f"{place}: is not UTF-8 text") from None
    except Unreadable as error:
        raise InvalidInput(f"{place}: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{place}: is no application")
    return found


def _line(place: str, number: int, offset: int, document: Mapping[str, Any]) -> Line:
    from pydantic import ValidationError

    from weir_analyzer.core import UnreadableState, check_learned
    from weir_contracts import InvalidDocument, InvalidPolicy, parse_policy
    from weir_knowledge.documents import Import

    fields = ("application", "policy", "learned", "history", "cycles")
    if missing := [name for name in fields if name not in document]:
        raise InvalidInput(f"{place}: {missing[0]} is required")
    if unknown := [name for name in document if name not in fields]:
        raise InvalidInput(f"{place}: {unknown[0][:130]}: {InvalidDocument.unknown_field}")
    application, learned = document["application"], document["learned"]
    try:
        named = parse_policy(document["policy"]).application
        Import.model_validate({name: document[name] for name in ("learned", "history", "cycles")})
        operators = len(check_learned(learned).capacities) if learned else 0
    except InvalidPolicy as error:
        raise InvalidInput(f"{place}: policy: {error}") from None
    except ValidationError as error:
        raise InvalidInput(f"{place}: {InvalidDocument.of(error)}") from None
    except UnreadableState as error:
        raise InvalidInput(f"{place}: learned: {error}") from None
    if named != application:
        raise InvalidInput(f"{place}: application: is {str(application)[:130]!r}, its policy is of {named}")
    return Line(number, offset, named, document["policy"], operators)
