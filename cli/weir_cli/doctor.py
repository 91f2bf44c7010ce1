"""`weir doctor`: an installation through its APIs, or one application from its policy to its last action; what is wrong,
and what to do.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from .client import (
    LOCAL,
    Client,
    CommandError,
    InvalidInput,
    NotFound,
    Server,
    TokenFile,
    application_id,
    connect,
)
from .completion import complete_application
from .output import Format, Output, text_of
from .terminal import say

PORTS = {"monitor": 8091, "analyzer": 8092, "planner": 8093, "executor": 8094}
"""Usual ports of the services, beside knowledge's address."""
SEES = {"monitor": "observation", "analyzer": "analysis", "planner": "plan"}
"""Message of each stage, which shows that it runs."""
READY_SECONDS = 3.0
WARNING_REMEDIES = {
    "topics": "docs/how-to/own-cluster.md, Replicas of Weir's topics",
    "installed-planners": "correct or remove the package that provides the planner",
}
"""By dependency: what to do about one that is there and has a text."""


@dataclass(frozen=True)
class Finding:
    """Result of one check: what was found, and what to do if it is wrong."""

    check: str
    ok: bool
    found: str
    remedy: str = ""
    warning: bool = False
    """Weir works, and something should be mended."""


def doctor(
    application: Annotated[
        str | None,
        typer.Argument(
            help="namespace/name: check one application; default: the installation.",
            show_default=False,
            autocompletion=complete_application,
        ),
    ] = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Check an installation on Kubernetes, through kubectl.")
    ] = False,
    context: Annotated[
        str | None, typer.Option(help="With --kubernetes: context of kubectl; default: its current one.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="With --kubernetes: namespace in which Weir is installed.")
    ] = "weir",
    server: Server = LOCAL,
    token_file: TokenFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Check an installation, or one application, and say what to do. Exit code 1 if something is wrong.

    Through the API of --server: each service's readiness, and each application's messages, problems and target. With
    --kubernetes: pods, topics, rights, and whether targets can be reached.
    """
    from .doctor_kubernetes import Kubectl, examine

    if kubernetes and application is not None:
        raise InvalidInput("name either an application or --kubernetes")
    if kubernetes:
        findings = examine(Kubectl(context, namespace), namespace)
    elif application is not None:
        findings = application_findings(connect(server, token_file), application_id(application))
    else:
        findings = installation(connect(server, token_file), server)
    found = []
    for each in findings:
        found.append(each)
        if output is Format.TABLE:
            say(line(each))
    if output is not Format.TABLE:
        sys.stdout.write(text_of([asdict(each) for each in found], output))
    if wrong := sum(not each.ok for each in found):
        raise CommandError(f"{wrong} of {len(found)} checks failed")


def line(finding: Finding) -> str:
    """Return a finding for a person, with the remedy below it."""
    remedy = f"\n      do: {finding.remedy}" if finding.remedy else ""
    mark = "FAIL" if not finding.ok else "warn" if finding.warning else "ok  "
    return f"{mark}  {finding.check}: {finding.found}{remedy}"


def installation(client: Client, server: str) -> Iterator[Finding]:
    """Yield whether each service is ready, whether there are policies, and the state of each application."""
    yield from readiness("knowledge", client.readiness())
    items = client.applications()
    parts = urlsplit(server)
    for service, port in PORTS.items():
        neighbour = Client(f"{parts.scheme}://{parts.hostname}:{port}", None, seconds=READY_SECONDS)
        try:
            found = neighbour.readiness()
        except CommandError:
            found = None
        if found is not None:
            yield from readiness(service, found)
        else:
            yield by_messages(service, items, f"{parts.hostname}:{port}")
    if not items:
        yield Finding("applications", True, "there is no policy yet", "weir apply -f FILE")
    for item in items:
        yield summary_finding(item)


def readiness(service: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each dependency that a service waits for, or that it is ready; and what it says of those that are
    there."""
    missing = {name: each for name, each in found["dependencies"].items() if each.get("ok") is not True}
    for name, each in missing.items():
        reason = f"{name}: {each.get('reason') or 'not checked yet'}"
        yield Finding(service, False, reason, "docs/how-to/runbook.md, WeirDependencyAway, lists each dependency")
    if not missing:
        yield Finding(service, True, "ready")
    for name, each in found["dependencies"].items():
        if each.get("ok") is True and each.get("reason") not in (None, "ok"):
            yield Finding(service, True, f"{name}: {each['reason']}", WARNING_REMEDIES.get(name, ""), warning=True)


def by_messages(service: str, items: Sequence[Mapping[str, Any]], address: str) -> Finding:
    """Return what the messages show of a service that does not answer at its usual address, as in containers."""
    away = f"no answer at {address}"
    if service not in SEES or not items:
        return Finding(service, True, f"{away}: its readiness is not visible from here")
    silent = [str(each["application"]) for each in items if service in (each.get("silent") or [])]
    if silent:
        more = f" and {len(silent) - 1:,} more" if len(silent) > 1 else ""
        return Finding(service, False, f"{away}; no {SEES[service]} of {silent[0]}{more}", f"read the log of {service}")
    return Finding(service, True, f"{away}, but its messages arrive")


def summary_finding(item: Mapping[str, Any]) -> Finding:
    """Return the state of an application in a line."""
    name, problems = str(item["application"]), list(item.get("problems") or [])
    silent = [f"no {SEES.get(stage, 'message')} from the {stage}" for stage in item.get("silent") or []]
    wrong = silent + ([str(item["obstacle"])] if item.get("obstacle") else []) + problems
    if not wrong:
        return Finding(name, True, f"{item.get('status') or 'not observed yet'}, mode {item.get('mode') or 'unknown'}")
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return Finding(name, False, f"{wrong[0]}{more}", f"weir doctor {name}")


def application_findings(client: Client, name: str) -> Iterator[Finding]:
    """Yield the state of an application: its policy, readings, target, lag, decision and action."""
    try:
        policy = client.policy(name)
    except NotFound:
        yield Finding("policy", False, f"{name} has none", "weir get policies lists them; weir apply -f FILE adds one")
        return
    metadata, mode = policy["metadata"], policy["spec"].get("mode", "advise")
    yield Finding(
        "policy",
        True,
        f"version {metadata.get('version')}, mode {mode}",
        {"advise": "set mode: act when the advice convinces you", "paused": f"weir resume {name}"}.get(mode, ""),
    )
    item = client.application(name)
    ages, silent = item.get("ages_seconds") or {}, item.get("silent") or []
    for stage, what in SEES.items():
        age = ages.get(stage)
        found = "there is none yet" if age is None else f"{age:,.0f} s old"
        late = age is None or stage in silent
        yield Finding(what, not late, found, f"read the log of the {stage}" if late else "")
    with suppress(NotFound):  # none yet, as the line above says
        yield from _observed(client.observation(name), metadata.get("version"))
    for problem in item.get("problems") or []:
        yield Finding("problem", False, str(problem), "docs/how-to/troubleshooting.md, by its text")
    yield from _signals(item)
    obstacle = item.get("obstacle")
    yield Finding("target", not obstacle, str(obstacle or "can be scaled, as far as is known"))
    if item.get("decision"):
        yield Finding("decision", True, str(item["decision"]))
    if item.get("action"):
        yield Finding("last action", True, f"{item.get('action_phase')}: {item['action']}")


def _observed(observation: Mapping[str, Any], version: int | None) -> Iterator[Finding]:
    under = (observation.get("policy") or {}).get("metadata", {}).get("version")
    if version is not None and under is not None and under < version:
        found = f"read under version {under} of the policy, not {version}"
        yield Finding("observed policy", False, found, "wait for an interval; else read the log of the monitor")
    status, message = str(observation.get("status")), observation.get("message")
    reached = status not in ("unreachable", "not_found")
    remedy = "" if reached else "correct the address or the name in the policy, or start the application"
    yield Finding("application", reached, f"{status}: {message}" if message else status, remedy)


def _signals(item: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether lag and arrivals are known: without them nothing is scaled down."""
    for name, unit, what in (("lag_seconds", "s", "lag"), ("arrival_rate", "records/s", "arrivals")):
        value, bound = item.get(name), (item.get("lower_bounds") or {}).get(name)
        if value is not None:
            yield Finding(what, True, f"{value:,.1f} {unit}")
        else:
            known = "unknown" if bound is None else f"known in part: at least {bound:,.1f} {unit}"
            yield Finding(what, False, known, "check spec.signals; weir explain names what is missing")
