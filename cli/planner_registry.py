"""`weir planner register`, `list`, `check`, `remove`: planners that run elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from .client import TokenFile, complete_planner, connect
from .errors import CommandError, InvalidInput
from .output import Format, Json, Output, show
from .terminal import Listing

if TYPE_CHECKING:
    from weir_contracts import NewPlanner

LOCAL = "http://127.0.0.1:8093"
Server = Annotated[str, typer.Option("--server", envvar="WEIR_PLANNER_SERVER", help="Address of the planner service.")]
Kta = Annotated[
    bool, typer.Option("--kta", help="The planner implements KTA's protocol; its steps are below URL/api/v1alpha1.")
]
NoAnalyze = Annotated[bool, typer.Option("--no-analyze", help="With --kta: the planner has no analyze step.")]
NoWeirField = Annotated[
    bool, typer.Option("--no-weir-field", help="With --kta: send KTA's own fields only, without Weir's analysis.")
]
MonitorUrl = Annotated[
    str | None, typer.Option("--monitor-url", help="Address of KTA's monitor step, if it is not below URL.")
]
AnalyzeUrl = Annotated[str | None, typer.Option("--analyze-url", help="Address of KTA's analyze step, likewise.")]
PlanUrl = Annotated[str | None, typer.Option("--plan-url", help="Address of KTA's plan step, likewise.")]
Timeout = Annotated[
    float, typer.Option(min=0.05, max=20, help="Time limit of each request to the planner, in seconds.")
]
_KTA = "/api/v1alpha1"


def register(
    name: Annotated[str, typer.Argument(help="Name by which policies choose the planner.")],
    url: Annotated[str | None, typer.Argument(help="Address at which the planner service reaches the planner.")] = None,
    kta: Kta = False,
    no_analyze: NoAnalyze = False,
    monitor_url: MonitorUrl = None,
    analyze_url: AnalyzeUrl = None,
    plan_url: PlanUrl = None,
    history: Annotated[int | None, typer.Option(help="With --kta: maximum number of earlier results to send.")] = None,
    no_weir_field: NoWeirField = False,
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
    steps = {"monitor_url": monitor_url, "analyze_url": analyze_url, "plan_url": plan_url}
    new = new_planner(
        name,
        url,
        kta=kta,
        no_analyze=no_analyze,
        no_weir_field=no_weir_field,
        steps=steps,
        credential=credential,
        history=history,
    )
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
    from weir_planner.testing.conformance import check_planner

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


def new_planner(
    name: str,
    url: str | None,
    *,
    kta: bool,
    no_analyze: bool,
    no_weir_field: bool = False,
    steps: Mapping[str, str | None],
    credential: str | None = None,
    history: int | None = None,
) -> "NewPlanner":
    """Return the planner that the options describe; `InvalidInput` names a wrong one."""
    from pydantic import ValidationError
    from weir_contracts import InvalidDocument, NewPlanner

    fields: dict[str, Any] = {"name": name, "credential": credential, "result_history_length": history}
    given = {step: address for step, address in steps.items() if address is not None}
    if kta and url is not None:
        named = ("monitor", "plan") if no_analyze else ("monitor", "analyze", "plan")
        fields |= {f"{step}_url": f"{url.rstrip('/')}{_KTA}/{step}" for step in named} | given
    elif given:
        fields |= given
    else:
        fields["url"] = url
    fields |= {"kind": "kta" if kta or given else "http", "offer_analysis": False if no_weir_field else None}
    if url is None and not given:
        raise InvalidInput("URL: the planner's address is missing")
    try:
        return NewPlanner.model_validate(fields)
    except ValidationError as error:
        raise InvalidInput(str(InvalidDocument.of(error, "planner"))) from None


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
            each.get("url") or each.get("plan_url") or "–",
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
