"""Tables and colours for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .trial.view import number


def applications_table(items: Sequence[Mapping[str, Any]]) -> RenderableType:
    """All applications, a line each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("APPLICATION", "MODE", "STATUS", "LAG", "OBJECTIVE", "ARRIVALS", "PARALLELISM", "LAST DECISION"):
        table.add_column(heading, no_wrap=heading != "LAST DECISION")
    for item in items:
        table.add_row(
            str(item["application"]),
            str(item.get("mode") or "–"),
            _status(item),
            _lag(item),
            number(item.get("objective_seconds"), " s"),
            number(item.get("arrival_rate"), "/s"),
            vector(item.get("observed")),
            str(item.get("decision") or "–"),
        )
    return table


def policies_table(items: Sequence[Mapping[str, Any]]) -> RenderableType:
    """All policies, a line each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("POLICY", "MODE", "OBJECTIVE", "PLANNER", "VERSION", "CHANGED BY", "CHANGED AT"):
        table.add_column(heading)
    for item in items:
        metadata, spec = item["metadata"], item["spec"]
        objective = ", ".join(f"{name} {value}" for name, value in spec["objective"].items() if value is not None)
        table.add_row(
            f"{metadata['namespace']}/{metadata['name']}",
            spec.get("mode", "advise"),
            objective,
            spec.get("planner", {}).get("name", "rate"),
            str(metadata.get("resourceVersion", "–")),
            str(metadata.get("updatedBy", "–")),
            str(metadata.get("updatedAt", "–")),
        )
    return table


def application_panel(item: Mapping[str, Any]) -> RenderableType:
    """One application on one screen."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    facts.add_row("status", _status(item))
    facts.add_row("lag", _lag(item))
    facts.add_row("objective", number(item.get("objective_seconds"), " s"))
    facts.add_row("arrivals", number(item.get("arrival_rate"), " records/s"))
    facts.add_row("bottleneck", str(item.get("bottleneck") or "–"))
    facts.add_row("decision", str(item.get("decision") or "–"))
    facts.add_row("last action", f"{item['action_phase']}: {item['action']}" if item.get("action") else "–")
    if item.get("silent"):
        facts.add_row("silent", Text(", ".join(item["silent"]), "bold red"))
    return Panel(
        Group(facts, _operators(item)),
        title=f"[bold]{item['application']}[/] · mode {item.get('mode') or '–'}",
        padding=(0, 1),
    )


def _operators(item: Mapping[str, Any]) -> RenderableType:
    table = Table(box=None, header_style="bold", padding=(0, 2))
    for heading in ("operator", "planned", "requested", "observed"):
        table.add_column(heading, justify="left" if heading == "operator" else "right")
    facts = [item.get(name) or {} for name in ("planned", "requested", "observed")]
    for name in facts[2] or facts[0]:
        table.add_row(name, *(number(fact.get(name)) for fact in facts))
    return table


def turn_panel(turn: Mapping[str, Any]) -> RenderableType:
    """One decision: reading → analysis → plan with guards → outcomes."""
    steps = Table.grid(padding=(0, 2))
    steps.add_column(style="bold", no_wrap=True)
    steps.add_column()
    reading, analysis, plan = turn.get("reading"), turn.get("analysis"), turn.get("plan") or {}
    if reading:
        problems = f"; {len(reading['problems'])} problems: {reading['problems'][0]}" if reading["problems"] else ""
        steps.add_row(
            "reading", f"{reading['observed_at']}: {reading['status']}, {vector(reading['observed'])}{problems}"
        )
    if analysis:
        rate, lag = analysis["arrival_rate"], analysis["lag_seconds"]
        steps.add_row("analysis", f"{number(rate['value'], ' records/s')} arrive ({rate['basis']})")
        steps.add_row(
            "", f"lag {number(lag['value'], ' s', 1)} ({lag['basis']}); bottleneck {analysis['bottleneck'] or '–'}"
        )
        for symptom in analysis["symptoms"]:
            steps.add_row("", f"{symptom['code']}: {symptom['evidence']}")
    steps.add_row(
        "plan", Text(f"{plan.get('kind')} · {plan.get('code')}", "green" if plan.get("kind") == "scale" else "cyan")
    )
    steps.add_row("", str(plan.get("sentence")))
    for name, prediction in (("predicted", plan.get("prediction")), ("if it stayed", plan.get("hold_prediction"))):
        if prediction:
            steps.add_row(
                "",
                f"{name}: lag up to {prediction['max_lag_seconds']} s, {prediction['violation_seconds']} s in violation",
            )
    for amendment in plan.get("amendments", []):
        steps.add_row("guard", f"{amendment['guard']}: {amendment['because']}")
    for infeasible in plan.get("infeasible", []):
        steps.add_row("infeasible", infeasible["because"])
    for outcome in turn.get("outcomes", []):
        steps.add_row("outcome", f"{outcome['at']} {outcome['phase']}: {outcome['sentence']}")
    return Panel(steps, title=f"correlation {turn['correlation_id']}", title_align="left", padding=(0, 1))


def vector(parallelism: Mapping[str, int] | None) -> str:
    """A parallelism vector in a line."""
    return "–" if not parallelism else " ".join(f"{name}={p}" for name, p in parallelism.items())


def _status(item: Mapping[str, Any]) -> Text:
    if item.get("silent"):
        return Text(f"silent: {', '.join(item['silent'])}", "bold red")
    status = str(item.get("status") or "–")
    return Text(status, "green" if status == "running" else "yellow")


def _lag(item: Mapping[str, Any]) -> Text:
    lag, objective = item.get("lag_seconds"), item.get("objective_seconds")
    late = lag is not None and objective is not None and lag > objective
    return Text(number(lag, " s", 1), "bold red" if late else "")
