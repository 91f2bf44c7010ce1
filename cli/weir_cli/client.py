"""The services' public APIs as the command line uses them, the options that commands share, and errors with their exit
codes.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer
from pydantic import SecretStr

from weir_runtime.http_client import ENDLESS, Event, client, parse_events

EXIT_CODES = """Exit codes: 0 done; 1 failed; 2 invalid input (the line names file and field); 3 not found; 4 changed by another user;
5 the server does not answer; 6 not allowed."""
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
"""Pauses between attempts to resume a broken feed, doubled from the first to the maximum."""

MAX_CYCLES = 60
"""Decisions whose outcomes a judgement learns the cost of a restart from."""
CHECK_SECONDS = 40.0
"""Timeout of a check; the planner service answers within 35 s, however slow the planner is."""
WRITE_SECONDS = 15.0
"""Of a change of a policy: knowledge answers within 10 s, if only that it is not known."""
_FEED_TIMEOUT = httpx.Timeout(10.0, read=60.0)
"""A feed without events sends a comment every few seconds."""


class CommandError(Exception):
    """One line for the user, one exit code for programs. 1: it failed."""

    code = 1


class InvalidInput(CommandError):
    """A file, an option or a document is wrong; the line names place and field."""

    code = 2


class NotFound(CommandError):
    code = 3


class Conflict(CommandError):
    """Another user changed it first."""

    code = 4


class Unreachable(CommandError):
    """The server does not answer; the line says which and how to name another."""

    code = 5


class Refused(CommandError):
    """The server wants a token, or one that may do more."""

    code = 6


LOCAL = "http://127.0.0.1:8080"
Server = Annotated[str, typer.Option("--server", envvar="WEIR_SERVER", help="Address of the knowledge service.")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with the bearer token (else WEIR_TOKEN).")]


def seconds(option: str) -> Callable[[str], float]:
    """Return a parser of an option in seconds: a number, or a duration with a unit."""

    def parsed(text: str) -> float:
        from weir_contracts import parse_duration

        try:
            return float(text)
        except ValueError:
            pass
        try:
            return parse_duration(text).total_seconds()
        except ValueError as error:
            raise InvalidInput(f"{option}: {error}") from None

    return parsed


def folder(option: str) -> Callable[[str], Path]:
    """Return a parser of an option that names a folder, which need not exist. An empty text, which a path takes for the current
    folder, is none, nor is a file or what would be in one."""

    def parsed(text: str) -> Path:
        if not text:
            raise InvalidInput(f"{option}: is empty")
        path = Path(text)
        for each in (path, *path.parents):
            if os.path.lexists(each) and not os.path.isdir(each):  # noqa: PTH112 - in a closed folder Path raises
                raise InvalidInput(f"{option}: {each} is no folder: name one")
        return path

    return parsed


def in_seconds(option: str, help: str) -> Any:
    """Return an option that takes seconds, or a duration with a unit."""
    return typer.Option(parser=seconds(option), metavar="DURATION", help=help)


TRACE = typer.Option(help="step, sine, spike, the name of a bundled recording, or a CSV file (timestamp,value).")


def application_id(text: str) -> str:
    """Return `namespace/name`; a name alone is in the namespace `default`."""
    namespace, _, name = text.rpartition("/")
    if not name or "/" in namespace:
        raise InvalidInput(f"{text!r} is not an application: write namespace/name")
    return f"{namespace or 'default'}/{name}"


def duration(option: str, text: str, low: str, high: str) -> timedelta:
    """Return a duration of the command line; `InvalidInput` unless it lies between `low` and `high`."""
    from weir_contracts import parse_duration

    try:
        found = parse_duration(text)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from None
    if not parse_duration(low) <= found <= parse_duration(high):
        raise InvalidInput(f"{option}: {text} does not lie between {low} and {high}")
    return found


def connect(server: str, token_file: Path | None, option: str = "--server", *, seconds: float = 10.0) -> "Client":
    """Return a client of the server, with the token from the file or WEIR_TOKEN. `option` named the server."""
    if not server.startswith(("http://", "https://")):
        raise InvalidInput(f"{option}: {server!r} has no scheme: write http://{server}")
    token = os.environ.get("WEIR_TOKEN")
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise InvalidInput(f"--token-file: {token_file}: {error.strerror}") from None
    try:
        return Client(server, token, option=option, seconds=seconds)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{option}: {server!r}: {error}") from None


class Client:
    """Calls the server; every failure is a `CommandError` of one line."""

    def __init__(
        self,
        server: str,
        token: str | None,
        transport: httpx.BaseTransport | None = None,
        *,
        option: str = "--server",
        seconds: float = 10.0,
    ) -> None:
        """`seconds` bounds each wait for the server."""
        self._server = server.rstrip("/")
        self._option = option
        self._http = client(self._server, SecretStr(token) if token else None, seconds, transport=transport)

    def readiness(self) -> dict[str, Any]:
        """Return a service's report on its dependencies, also of one that is not ready."""
        try:
            answer = self._http.get("/health/ready")
            report = answer.json()
            if isinstance(report["dependencies"], dict):
                return dict(report)
        except httpx.HTTPError as error:
            raise self._away(error) from None
        except (ValueError, LookupError, TypeError):
            pass
        raise Unreachable(f"{self._server} is no service of Weir: its /health/ready is none")

    def get(self, path: str) -> Any:
        """Return the document at a path."""
        return self._json("GET", path)

    def policies(self) -> list[dict[str, Any]]:
        return self._pages("/v1/policies")

    def policy(self, application: str) -> dict[str, Any]:
        return dict(self._json("GET", f"/v1/policies/{quote(application)}"))

    def put_policy(
        self, application: str, document: Any, *, dry_run: bool = False
    ) -> tuple[dict[str, Any], str, str | None]:
        """Store a policy, or with `dry_run` only check it. Returns it, whether it is created, replaced or unchanged, and
        the server's warning about what it could not check."""
        path = f"/v1/policies/{quote(application)}{'?dry_run=true' if dry_run else ''}"
        answer = self._call("PUT", path, json=document, timeout=WRITE_SECONDS)
        result = answer.headers.get("X-Weir-Result") or ("created" if answer.status_code == 201 else "replaced")
        return answer.json(), result, answer.headers.get("X-Weir-Warning")

    def delete_policy(self, application: str) -> None:
        self._call("DELETE", f"/v1/policies/{quote(application)}", timeout=WRITE_SECONDS)

    def switch(self, application: str, verb: str, reason: str | None) -> dict[str, Any]:
        """Pause or resume an application (`verb`), for a reason if there is one; returns its policy."""
        given = {} if reason is None else {"params": {"reason": reason}}
        return dict(self._json("POST", f"/v1/policies/{quote(application)}/{verb}", timeout=WRITE_SECONDS, **given))

    def applications(self) -> list[dict[str, Any]]:
        return self._pages("/v1/applications")

    def application(self, application: str) -> dict[str, Any]:
        return dict(self._json("GET", f"/v1/applications/{quote(application)}"))

    def explain(self, application: str, last: int) -> tuple[list[dict[str, Any]], str | None]:
        """Return the last decisions, and a sentence about the slot-hours; None from a server that does not count them."""
        found = self._json("GET", f"/v1/applications/{quote(application)}/explain?limit={last}")
        return list(found["items"]), found.get("spend_sentence")

    def report(self, application: str, at: str | None) -> str:
        """Return an incident as one file of HTML: the page of the application at a moment, None for now."""
        given = {} if at is None else {"at": at}
        return self._call(
            "GET", f"/v1/applications/{quote(application)}/report", params=given, timeout=WRITE_SECONDS
        ).text

    def history(self, application: str, limit: int) -> list[dict[str, Any]]:
        """Return past cycles in one line each, newest first."""
        return list(self._json("GET", f"/v1/applications/{quote(application)}/history?limit={limit}")["items"])

    def import_part(self, application: str, part: Any) -> None:
        """Add what another Weir knew of an application with a policy."""
        self._call("POST", f"/v1/applications/{quote(application)}/import", json=part, timeout=WRITE_SECONDS)

    def what_if(self, application: str, parallelism: Sequence[str], load: str, horizon: str, at: str) -> dict[str, Any]:
        """Return the prediction for this parallelism (`operator=number` each) and load."""
        parameters = httpx.QueryParams(
            [*(("parallelism", each) for each in parallelism), ("load", load), ("horizon", horizon), ("at", at)]
        )
        try:
            return dict(self._json("GET", f"/v1/applications/{quote(application)}/what-if?{parameters}"))
        except Conflict as missing:
            raise CommandError(str(missing)) from None  # no conflict: too little is known yet

    def observation(self, application: str) -> dict[str, Any]:
        return dict(self._json("GET", f"/v1/applications/{quote(application)}/observation"))

    def analysis(self, application: str) -> dict[str, Any]:
        return dict(self._json("GET", f"/v1/applications/{quote(application)}/analysis"))

    def outcomes(self, application: str) -> list[dict[str, Any]]:
        """Return the outcomes of the last decisions, each once, newest first."""
        cycles, _ = self.explain(application, MAX_CYCLES)
        found = {each["id"]: each for cycle in cycles for each in cycle["outcomes"]}
        try:
            newest = dict(self._json("GET", f"/v1/applications/{quote(application)}/outcome"))
        except NotFound:
            return list(found.values())
        # The only one of a knowledge service that was rebuilt from its topics.
        found[newest["id"]] = newest
        return sorted(found.values(), key=lambda each: datetime.fromisoformat(each["at"]), reverse=True)

    def judge(self, proposal: Any) -> dict[str, Any]:
        """Return a planner service's judgement of a proposal."""
        try:
            return dict(self._json("POST", "/v1/judge", json=proposal))
        except Conflict as missing:
            raise CommandError(str(missing)) from None  # no conflict: too little is known yet

    def planners(self) -> list[dict[str, Any]]:
        return list(self._json("GET", "/v1/planners")["planners"])

    def register_planner(self, document: Any, *, replace: bool, timeout_seconds: float) -> dict[str, Any]:
        """Register a planner; returns it and its reply to a trial request."""
        parameters = {"replace": replace, "timeout_seconds": timeout_seconds}
        return dict(self._json("POST", "/v1/planners", json=document, params=parameters, timeout=CHECK_SECONDS))

    def remove_planner(self, name: str) -> None:
        self._call("DELETE", f"/v1/planners/{quote(name, safe='')}")

    def check_planner(self, name: str, *, timeout_seconds: float) -> dict[str, Any]:
        """Send a registered planner a trial request; returns the result."""
        path, parameters = f"/v1/planners/{quote(name, safe='')}/check", {"timeout_seconds": timeout_seconds}
        return dict(self._json("POST", path, params=parameters, timeout=CHECK_SECONDS))

    def follow(
        self, application: str | None, report: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
    ) -> Iterator[Event]:
        """Yield the events of an application (None: of all) from now on, without an end; after a break it resumes behind the last
        event.

        `report` gets a sentence about each break. Raises what a retry does not mend: a wrong token, an unknown
        application.
        """
        last, pause = "", FIRST_PAUSE_SECONDS
        while True:
            try:
                for event in self._events(application, last):
                    last, pause = event.id or last, FIRST_PAUSE_SECONDS
                    yield event
                reason = f"{self._server} ended the feed"
            except Unreachable as error:
                reason = str(error)
            report(f"{reason}; trying again in {pause:g} s")
            sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def recorded(self, application: str, since: datetime | None = None) -> Iterator[Event]:
        """Yield the application's stored events, oldest first, from `since` on."""
        # The id of an event begins with its time in milliseconds.
        after = "0" if since is None else f"{int(since.timestamp() * 1000)}-0"
        for event in self._events(application, after, follow=False):
            if event.kind == "end":
                return
            yield event
        raise Unreachable(f"{self._server} ended the feed before its newest event: try again")

    def _events(self, application: str | None, last: str, *, follow: bool = True) -> Iterator[Event]:
        """Yield the events of one connection to the feed."""
        feed = "/v1/events" if application is None else f"/v1/applications/{quote(application)}/events"
        path = f"{feed}{'' if follow else '?follow=false'}"
        headers = {"Last-Event-ID": last} if last else {}
        try:
            with self._http.stream("GET", path, headers=headers, timeout=_FEED_TIMEOUT, extensions=ENDLESS) as response:
                if not response.is_success:
                    response.read()
                    refused = _error(response)
                    if response.is_server_error:
                        raise Unreachable(f"{self._server} answered {response.status_code}: {refused}")
                    raise refused
                yield from parse_events(response.iter_lines())
        except httpx.HTTPError as error:
            raise self._away(error) from None

    def _pages(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            page = self._json("GET", f"{path}?limit=500&after={quote(after, safe='')}")
            items += page["items"]
            after = page["next"]
        return items

    def _json(self, method: str, path: str, **arguments: Any) -> Any:
        return self._call(method, path, **arguments).json()

    def _call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise self._away(error) from None
        if answer.is_success:
            return answer
        raise _error(answer)

    def _away(self, error: httpx.HTTPError) -> Unreachable:
        reason = str(error) or type(error).__name__
        return Unreachable(f"{self._server} does not answer ({reason}): start it, or name another with {self._option}")


def _error(answer: httpx.Response) -> CommandError:
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    detail = problem.get("detail") if isinstance(problem, dict) else None
    text = str(detail or f"the server answered {answer.status_code}")
    kinds: dict[int, type[CommandError]] = {404: NotFound, 409: Conflict, 422: InvalidInput, 400: InvalidInput}
    if answer.status_code in (401, 403):
        return Refused(f"{text}: set WEIR_TOKEN or --token-file")
    if answer.status_code == 503:
        return Unreachable(text)
    return kinds.get(answer.status_code, CommandError)(text)
