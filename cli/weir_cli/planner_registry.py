"""`weir planner register`, `list`, `check`, `remove`, `kta-bridge`: planners that run elsewhere."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from .client import CommandError, InvalidInput, TokenFile, connect
from .completion import complete_planner
from .output import Format, Json, Output, show
from .terminal import Listing

LOCAL = "http://127.0.0.1:8093"
Server = Annotated[str, typer.Option("--server", envvar="WEIR_PLANNER_SERVER", help="Address of the planner service.")]
Timeout = Annotated[
    float, typer.Option(min=0.05, max=20, help="Time limit of each request to the planner, in seconds.")
]


def register(
    name: Annotated[str, typer.Argument(help="Name by which policies choose the planner.")],
    url: Annotated[str, typer.Argument(help="Address at which the planner service reaches the planner.")],
    credential: Annotated[
        str | None, typer.Option(help="Name of a bearer token in the planner service's settings, never the token.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the registered planner of this name.")] = False,
    timeout: Timeout = 5.0,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
    json: Json = False,
) -> None:
    """Try a planner with one request and register it; without a valid reply it is refused with the reason."""
    from pydantic import ValidationError

    from weir_contracts import InvalidDocument, NewPlanner

    try:
        new = NewPlanner.model_validate({"name": name, "url": url, "credential": credential})
    except ValidationError as error:
        raise InvalidInput(str(InvalidDocument.of(error, "planner"))) from None
    document = new.model_dump(mode="json", exclude_none=True)
    registered = connect(server, token_file).register_planner(document, replace=replace, timeout_seconds=timeout)
    planner = registered["planner"]
    sentence = f"{planner['name']} registered (version {planner['version']})"
    tried = f"its reply to a trial request: {registered['trial']['sentence']}"
    usage = f"a policy chooses it with spec.planner.name: {planner['name']}"
    show(registered, Format.JSON if json else output, f"{sentence}\n{tried}\n{usage}")


def list_planners(
    server: Server = LOCAL, token_file: TokenFile = None, output: Output = Format.TABLE, json: Json = False
) -> None:
    """List the planners that policies can name, built in and registered."""
    planners = connect(server, token_file).planners()
    show(planners, Format.JSON if json else output, lambda: planners_table(planners))


def remove(
    name: Annotated[str, typer.Argument(help="Name of the registered planner.", autocompletion=complete_planner)],
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
    json: Json = False,
) -> None:
    """Remove a registered planner; policies that name it hold, or use their fallback."""
    connect(server, token_file).remove_planner(name)
    sentence = f"{name} removed; policies that name it hold, or use their fallback"
    show({"planner": name, "removed": True}, Format.JSON if json else output, sentence)


def check(
    planner: Annotated[
        str,
        typer.Argument(
            help="URL, checked from here, or name of a registered planner, which the planner service tries again.",
            autocompletion=complete_planner,
        ),
    ],
    credential_file: Annotated[
        Path | None, typer.Option("--credential-file", help="With a URL: file with the planner's bearer token.")
    ] = None,
    timeout: Timeout = 5.0,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
    json: Json = False,
) -> None:
    """Check every obligation of the plugin contract at a URL, or try a registered planner again; exit code 1 if it fails."""
    if "://" not in planner:
        tried = connect(server, token_file).check_planner(planner, timeout_seconds=timeout)
        show(tried, Format.JSON if json else output, f"{planner}: {tried['sentence']}")
        if not tried["ok"]:
            raise CommandError(f"{planner} failed its trial request")
        return
    from weir_sdk.testing.conformance import check_planner

    try:
        token = None if credential_file is None else credential_file.read_text().strip()
    except OSError as error:
        raise InvalidInput(f"--credential-file: {credential_file}: {error.strerror}") from None
    checks = [asdict(finding) for finding in check_planner(planner, token=token, timeout_seconds=timeout)]
    failed = sum(not each["ok"] for each in checks)
    report = {"ok": failed == 0, "checks": checks}
    show(report, Format.JSON if json else output, lambda: report_table(checks))
    if failed:
        raise CommandError(f"{failed} of {len(checks)} checks failed")


def planners_table(planners: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a line for each planner, with failures below; a circuit that is not closed is red."""
    table = Listing("PLANNER", "KIND", "SCOPE", "CIRCUIT")
    for heading in ("ADDRESS", "DESCRIPTION"):
        table.add_column(heading, overflow="fold")
    notes = []
    for each in planners:
        breaker = each.get("breaker") or {}
        state = breaker.get("state") or "–"
        if breaker.get("last_failure"):
            notes.append(Text(f"{each['name']}: {breaker['last_failure']}", "dim"))
        if each.get("problem"):
            notes.append(Text(f"{each['name']} of package {each['package']} cannot be used: {each['problem']}", "red"))
        table.add_row(
            each["name"],
            each["kind"],
            each.get("scope") or "–",
            Text(state, "bold red" if state in ("open", "half-open") else ""),
            each.get("url") or "–",
            each.get("description") or "–",
        )
    return Group(table, *notes)


def report_table(checks: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a line for each check."""
    table = Listing("", "", show_header=False)
    table.add_column()
    for each in checks:
        mark = Text("ok", "green") if each["ok"] else Text("failed", "bold red")
        table.add_row(mark, each["check"], Text(str(each["sentence"])))
    return table


def kta_bridge(
    plan_url: Annotated[str, typer.Option(help="Address of the plan step: http://toggler:8096/api/v1alpha1/plan.")],
    monitor_url: Annotated[str | None, typer.Option(help="Address of the monitor step, if there is one.")] = None,
    analyze_url: Annotated[str | None, typer.Option(help="Address of the analyze step, if there is one.")] = None,
    history: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Maximum number of earlier results in a request.")
    ] = None,
    no_weir_field: Annotated[
        bool, typer.Option("--no-weir-field", help="Send KTA's own fields only, without Weir's analysis.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback PLANNER_TOKEN is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8097,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Accept calls of other machines without a token.")
    ] = False,
) -> None:
    """Serve an unchanged container of KTA as a planner until Ctrl-C; register this listener's address."""
    from pydantic import TypeAdapter, ValidationError

    from weir_contracts import InvalidDocument
    from weir_contracts.plugins import PlannerUrl
    from weir_planner.adapters.http import PlannerClient
    from weir_runtime.reach import Allowed
    from weir_sdk import serve

    from .kta_bridge import KtaBridge

    logging.getLogger("httpx").setLevel(logging.WARNING)  # else two lines for each plan
    steps = {"--plan-url": plan_url, "--monitor-url": monitor_url, "--analyze-url": analyze_url}
    for option, url in steps.items():
        try:
            TypeAdapter(PlannerUrl | None).validate_python(url)
        except ValidationError as error:
            raise InvalidInput(f"{option}: {url!r} {InvalidDocument.of(error, '').problems[0][1]}") from None
    # All addresses are allowed, since the user names them.
    client = PlannerClient(Allowed.of("http,https", "*", "public,0.0.0.0/0,::/0", prefix="WEIR_PLANNER_PLUGIN"))
    step_urls, with_analysis = (plan_url, monitor_url, analyze_url), not no_weir_field
    bridge = KtaBridge(client.post_json, *step_urls, max_results=history, offer_analysis=with_analysis)
    try:
        serve(bridge, host, port, token=os.environ.get("PLANNER_TOKEN") or None, open_to_all=no_token)
    except ValueError as error:
        raise InvalidInput(str(error)) from None
