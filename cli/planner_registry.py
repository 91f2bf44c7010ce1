"""`weir planner register`, `list`, `check`, `remove`: planners that run elsewhere."""

import asyncio
from collections.abc import Mapping, Sequence
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

    from services.planner.conformance import Report

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
Timeout = Annotated[float, typer.Option(min=0.05, max=20, help="Time limit of each request of the check, in seconds.")]
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
    """Check a planner and register it; a failed check is named, and nothing is registered."""
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
    planner, checks = registered["planner"], len(registered["checks"])
    sentence = f"{planner['name']} registered (version {planner['version']}, {checks} checks passed)"
    usage = f"a policy chooses it with spec.planner.name: {planner['name']}"
    show(registered, Format.JSON if json else output, f"{sentence}\n{usage}")


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
        str | None,
        typer.Argument(
            help="URL, requested from here, or name of a registered planner, requested by the planner service.",
            autocompletion=complete_planner,
        ),
    ] = None,
    kta: Kta = False,
    no_analyze: NoAnalyze = False,
    no_weir_field: NoWeirField = False,
    monitor_url: MonitorUrl = None,
    analyze_url: AnalyzeUrl = None,
    plan_url: PlanUrl = None,
    credential_file: Annotated[
        Path | None, typer.Option("--credential-file", help="With a URL: file with the planner's bearer token.")
    ] = None,
    timeout: Timeout = 5.0,
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
    json: Json = False,
) -> None:
    """Check whether a planner fulfils the plugin contract; exit code 1 if not."""
    if planner is not None and "://" not in planner:
        report = connect(server, token_file).check_planner(planner, timeout_seconds=timeout)
    else:
        steps = {"monitor_url": monitor_url, "analyze_url": analyze_url, "plan_url": plan_url}
        new = new_planner(
            "conformance", planner, kta=kta, no_analyze=no_analyze, no_weir_field=no_weir_field, steps=steps
        )
        report = asyncio.run(check_from_here(new, credential_file, timeout)).to_document()
    show(report, Format.JSON if json else output, lambda: report_table(report["checks"]))
    if not report["ok"]:
        failed = sum(not each["ok"] for each in report["checks"])
        raise CommandError(f"{failed} of {len(report['checks'])} checks failed")


async def check_from_here(new: "NewPlanner", credential_file: Path | None, timeout_seconds: float) -> "Report":
    """Run the conformance suite without a planner service. All addresses are allowed, since the user runs it."""
    from runtime.addresses import Allowed
    from runtime.clock import SystemClock
    from services.planner.adapters import kta
    from services.planner.adapters.http import Credentials, PlannerClient
    from services.planner.conformance import check_planner
    from services.planner.remote import Remote

    allowed = Allowed.of("http,https", "*", "public,0.0.0.0/0,::/0", prefix="WEIR_PLANNER_PLUGIN")
    if credential_file is not None:
        new = new.model_copy(update={"credential": credential_file.name})
    client = PlannerClient(allowed, Credentials(credential_file.parent if credential_file else None))
    try:
        report = await check_planner(
            Remote(client, SystemClock(), {"kta": kta.ask}), new, timeout_seconds=timeout_seconds, all_seconds=300.0
        )
    finally:
        await client.close()
    return report


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
