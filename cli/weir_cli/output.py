"""Printed output: sentences and panels for users, documents for programs."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .terminal import Listing, say, terminal, visible


class Format(StrEnum):
    """Formats of printed output."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ListFormat(StrEnum):
    """Formats of a list: `wide` has more columns and cuts nothing."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def plain(self) -> Format:
        """The format that every command has."""
        return Format.TABLE if self is ListFormat.WIDE else Format(self.value)


Output = Annotated[Format, typer.Option("--output", "-o", help="table for people, json or yaml for programs.")]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json.")]


def show(document: Any, form: Format, table: str | Callable[[], RenderableType]) -> None:
    """Print the document, or for users a sentence or a table instead."""
    if form is not Format.TABLE:
        sys.stdout.write(text_of(document, form))
    elif isinstance(table, str):
        say(table)
    else:
        terminal().print(table())


def text_of(document: Any, form: Format) -> str:
    """Return the document as JSON or YAML, with a newline at its end."""
    if form is Format.JSON:
        return json.dumps(document, indent=2, default=str) + "\n"
    text = str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
        written = visible(text) == text
    except UnicodeEncodeError:
        written = False
    # As escapes, the document can be read back and no terminal follows what it contains.
    return text if written else str(yaml.safe_dump(document, sort_keys=False))


def one_of_many(document: Any, form: Format) -> str:
    """Return one document of a stream: a line of JSON, or a YAML document with its separator."""
    return json.dumps(document, default=str) + "\n" if form is Format.JSON else "---\n" + text_of(document, form)


def applications_table(items: Sequence[Mapping[str, Any]], *, wide: bool = False) -> Table:
    """Return the applications, one line each, with the problem that a hold follows from before the hold's sentence."""
    table = Listing(
        "APPLICATION",
        "MODE",
        "STATUS",
        "LAG",
        "OBJECTIVE",
        *(("ARRIVALS", "PARALLELISM", "SLOT-HOURS OF STATIC PEAK") if wide else ()),
    )
    table.add_column("PROBLEM OR DECISION")
    for item in items:
        table.add_row(
            str(item["application"]),
            str(item.get("mode") or "–"),
            Text("silent", "bold red") if item.get("silent") else str(item.get("status") or "–"),
            _lag(item),
            number(item.get("objective_seconds"), " s"),
            *(
                (_value_or_bound(item, "arrival_rate", "/s"), vector(item.get("observed")), _spend(item))
                if wide
                else ()
            ),
            _problem_or_decision(item),
        )
    return table


def _spend(item: Mapping[str, Any]) -> str:
    """Return the slot-hours used since the policy acts and those of the static peak; while it advises, those of the plans
    and of what ran."""
    spend, advice = item.get("spend"), item.get("advice")
    if advice:
        share = advice["saved_share"]
        saved = f"{share:.0%} less" if share >= 0 else f"{-share:.0%} more"
        return f"advised {advice['slot_hours']:,.1f} of {advice['running_slot_hours']:,.1f} ({saved}){_money(advice)}"
    if not spend:
        return "unknown"
    used, peak = spend["slot_hours"], spend["peak_slot_hours"]
    return f"{used:,.1f} of {peak:,.1f} ({spend['saved_share']:.0%} less){_money(spend)}"


def _money(found: Mapping[str, Any]) -> str:
    """Return what slot-hours cost, empty without a price."""
    money = found.get("money")
    return f", {money['used']:,.2f} of {money['against']:,.2f} {money['currency']}" if money else ""


def _problem_or_decision(item: Mapping[str, Any]) -> Text:
    """Return a sentence that is cut where the terminal ends."""
    problems = [f"no message from the {stage}" for stage in item.get("silent") or []] + (item.get("problems") or [])
    others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    problem = (f"{problems[0]}{others}; ", "yellow") if problems else ""
    return Text.assemble(problem, str(item.get("decision") or "–"), no_wrap=True, overflow="ellipsis")


def policies_table(items: Sequence[Mapping[str, Any]]) -> Table:
    """Return the policies, one line each."""
    changed = ("CHANGED AT", "CHANGED BY", "VERSION")
    table = Listing("POLICY", "MODE", "OBJECTIVE", "PLANNER", *changed, optional=changed)
    for item in items:
        metadata, spec = item["metadata"], item["spec"]
        objective = ", ".join(f"{name} {value}" for name, value in spec["objective"].items() if value is not None)
        table.add_row(
            f"{metadata['namespace']}/{metadata['name']}",
            spec.get("mode", "advise"),
            objective,
            spec.get("planner", {}).get("name", "rate"),
            moment(metadata.get("updatedAt")),
            str(metadata.get("updatedBy") or "–"),
            str(metadata.get("version", "–")),
        )
    return table


def application_panel(item: Mapping[str, Any], *, wide: bool = False) -> RenderableType:
    """Return one application; `wide`: with the scores of its planners."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold")
    rows.add_column()
    rows.add_row("status", _status(item))
    rows.add_row("lag", _lag(item))
    rows.add_row("objective", number(item.get("objective_seconds"), " s"))
    rows.add_row("arrivals", _value_or_bound(item, "arrival_rate", " records/s"))
    rows.add_row("bottleneck", str(item.get("bottleneck") or "–"))
    if item.get("silent"):
        rows.add_row("silent", Text(", ".join(item["silent"]), "bold red"))
    for problem in item.get("problems", []):
        rows.add_row("problem", Text(problem, "yellow"))
    if item.get("obstacle"):
        rows.add_row("not scaled", Text(f"{item['obstacle_code']}: {item['obstacle']}", "bold red"))
    rows.add_row("decision", str(item.get("decision") or "–"))
    rows.add_row("slot-hours", str(item.get("spend_sentence") or "unknown"))
    rows.add_row("last action", f"{item['action_phase']}: {item['action']}" if item.get("action") else "–")
    for score in item.get("scores", []) if wide else []:
        rows.add_row("score", f"{score['label']}: {_score(score)}")
    return Panel(
        Group(rows, _operators(item)),
        title=Text.assemble((item["application"], "bold"), f" · mode {item.get('mode') or '–'}"),
        padding=(0, 1),
    )


def _operators(item: Mapping[str, Any]) -> RenderableType:
    table = Table(box=None, header_style="bold", padding=(0, 2))
    for heading in ("operator", "planned", "requested", "observed"):
        is_name = heading == "operator"
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    vectors = [item.get(name) or {} for name in ("planned", "requested", "observed")]
    for name in vectors[2] or vectors[0]:
        table.add_row(name, *(number(each.get(name)) for each in vectors))
    return table


def cycle_panel(cycle: Mapping[str, Any], *, verbose: bool = False) -> RenderableType:
    """Return one decision as a panel: time, decision and planner, then the reason, what it rests on, and the outcomes.

    `verbose` adds the plan's evidence, how each reading was measured, and the id that correlates the messages.
    """
    steps = Table.grid(padding=(0, 2))
    steps.add_column(style="bold", no_wrap=True)
    steps.add_column()
    reading, analysis, plan = cycle.get("reading"), cycle.get("analysis"), cycle.get("plan") or {}
    rows = _plan(plan)
    rows += _reading(reading) if reading else []
    rows += _analysis(analysis, verbose=verbose) if analysis else []
    rows += [
        ("outcome", f"{moment(outcome['at'])} {outcome['phase']}: {outcome['sentence']}")
        for outcome in cycle.get("outcomes", [])
    ]
    if verbose:
        rows += [("evidence" if i == 0 else "", each) for i, each in enumerate(_evidence(plan.get("evidence") or {}))]
        rows.append(("correlation", str(cycle["correlation_id"])))
    for name, text in rows:
        steps.add_row(name, text)
    return Panel(steps, title=_cycle_title(cycle, plan), title_align="left", padding=(0, 1))


def _cycle_title(cycle: Mapping[str, Any], plan: Mapping[str, Any]) -> Text:
    if not plan:
        return Text(f"no plan yet · correlation {cycle['correlation_id']}")
    decision = Text(f"{plan.get('kind')} · {plan.get('code')}", "cyan" if plan.get("kind") == "hold" else "bold green")
    return Text.assemble(f"{moment(plan.get('created_at'))} · ", decision, f" · planner {plan.get('planner') or '–'}")


def event_line(kind: str, data: Mapping[str, Any], application: str | None = None) -> str | None:
    """Return an event of the feed as one line, with its application if there is one; None for a message that decides nothing."""
    subject = "" if application is None else f"{application} "
    if kind == "plan":
        return (
            f"{moment(data.get('created_at'))} {subject}{data.get('kind')} {data.get('code')}: {data.get('sentence')}"
        )
    if kind == "outcome":
        return f"{moment(data.get('at'))} {subject}{data.get('phase')} {data.get('code')}: {data.get('sentence')}"
    return None


def moment(instant: str | None) -> str:
    """Return an instant of a message in UTC to the second, or a dash where it is unknown."""
    return "–" if not instant else instant[:19].replace("T", " ")


Rows = list[tuple[str, str | Text]]


def _reading(reading: Mapping[str, Any]) -> Rows:
    message = f" ({reading['message']})" if reading.get("message") else ""
    rows: Rows = [("problem", problem) for problem in reading["problems"]]
    at = moment(reading["observed_at"])[-8:]
    return [*rows, ("reading", f"{at}, {reading['status']}{message}, {vector(reading['observed'])}")]


def _analysis(analysis: Mapping[str, Any], *, verbose: bool) -> Rows:
    measured = [
        f"{what} {estimated(estimate, unit, digits)}" + (f" ({estimate['basis']})" if verbose else "")
        for what, unit, digits, estimate in (
            ("lag", " s", 1, analysis["lag_seconds"]),
            ("backlog", " records", 0, analysis["lag_records"]),
            ("arrivals", " records/s", 0, analysis["arrival_rate"]),
        )
    ]
    rows: Rows = [("measured", f"{', '.join(measured)}; bottleneck {analysis['bottleneck'] or '–'}")]
    return rows + [("symptom", f"{symptom['code']}: {symptom['evidence']}") for symptom in analysis["symptoms"]]


def estimated(estimate: Mapping[str, Any], unit: str, digits: int) -> str:
    """Return an estimate's value, `≥ 93.2 s` if only a lower bound is known."""
    if estimate["value"] is None and estimate.get("lower_bound") is not None:
        return f"≥ {number(estimate['lower_bound'], unit, digits)}"
    return number(estimate["value"], unit, digits)


def _plan(plan: Mapping[str, Any]) -> Rows:
    rows: Rows = [("reason", str(plan["sentence"]))] if plan else []
    said = {str(plan.get("sentence"))}
    for amendment in plan.get("amendments", []):
        because = str(amendment["because"])
        rows.append(("guard", amendment["guard"] if because in said else f"{amendment['guard']}: {because}"))
        said.add(because)
    rows += _contenders(plan.get("contenders") or [])
    rows += [("infeasible", infeasible["because"]) for infeasible in plan.get("infeasible", [])]
    for name, prediction in (("predicted", plan.get("prediction")), ("without it", plan.get("hold_prediction"))):
        if prediction:
            late = _late(prediction["violation_seconds"])
            rows.append((name, f"lag peaks at {prediction['max_lag_seconds']:,.1f} s, {late}"))
    return rows


def _late(seconds: float) -> str:
    return f"above the objective for {seconds:,.0f} s" if seconds else "never above the objective"


def _contenders(contenders: Sequence[Mapping[str, Any]]) -> Rows:
    """Return a line for each planner that proposed: what it leads to, why it lost, and its score in retrospect."""
    rows: Rows = []
    for each in contenders:
        figures = [number(each.get("cost_slots"), " slots")] if each.get("cost_slots") is not None else []
        if each.get("violation_seconds") is not None:
            figures.append(_late(each["violation_seconds"]))
        kind, lost = ("shadow", "") if each.get("is_shadow") else ("candidate", "lost: ")
        result = f"{lost}{each['lost_because']}" if each.get("lost_because") else "won"
        rows.append((kind, f"{each['label']}: {', '.join([*figures, result])}"))
        if each.get("score"):
            rows.append(("", f"score: {_score(each['score'])}"))
    return rows


def _score(score: Mapping[str, Any]) -> str:
    """Return what a planner's plans would have led to."""
    seconds, late, unanswered = score["seconds"], score["late_seconds"], score["unanswered"]
    figures = [f"restarts {score['restarts']:,}"]
    if seconds > 0:
        slots = score["slot_seconds"] / seconds
        figures = [f"{slots:,.1f} slots on average", f"late {late:,.0f} s ({late / seconds:.1%})", *figures]
    if unanswered:
        figures.append(f"unanswered cycles {unanswered:,}")
    return f"{', '.join(figures)}, since {moment(score['since'])}"


def _evidence(evidence: Mapping[str, Any]) -> list[str]:
    """Return a plan's evidence: a line for each figure of the application, then a line for each operator.

    Planners write an operator's figure as `figure[operator]`.
    """
    overall: list[str] = []
    of_operators: dict[str, list[str]] = {}
    for name, value in evidence.items():
        figure, bracket, operator = name.partition("[")
        if bracket and operator.endswith("]"):
            of_operators.setdefault(operator[:-1], []).append(f"{figure} {_figure(value)}")
        else:
            overall.append(f"{name} {_figure(value)}")
    return overall + [f"{operator}: {', '.join(figures)}" for operator, figures in of_operators.items()]


def _figure(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """A value with its unit, or a dash where it is unknown."""
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def vector(parallelism: Mapping[str, int] | None) -> str:
    """Return a parallelism vector as one line."""
    return "–" if not parallelism else " ".join(f"{name}={p}" for name, p in parallelism.items())


def _status(item: Mapping[str, Any]) -> Text:
    if item.get("silent"):
        return Text(f"silent: {', '.join(item['silent'])}", "bold red")
    status = str(item.get("status") or "–")
    problems = len(item.get("problems", []))
    if problems:
        return Text(f"{status}, {problems} problem{'s' if problems > 1 else ''}", "yellow")
    return Text(status, "green" if status == "running" else "yellow")


def _lag(item: Mapping[str, Any]) -> Text:
    objective, bounds = item.get("objective_seconds"), item.get("lower_bounds") or {}
    lag = bounds.get("lag_seconds") if item.get("lag_seconds") is None else item["lag_seconds"]
    late = lag is not None and objective is not None and lag > objective
    return Text(_value_or_bound(item, "lag_seconds", " s", 1), "bold red" if late else "")


def _value_or_bound(item: Mapping[str, Any], name: str, unit: str, digits: int = 0) -> str:
    """Return a figure of an application, as `≥ 93.2 s` if only its lower bound is known."""
    bound = (item.get("lower_bounds") or {}).get(name)
    return estimated({"value": item.get(name), "lower_bound": bound}, unit, digits)
