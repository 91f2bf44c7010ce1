"""Writes dashboards/*.json: `python -m deploy.monitoring.grafana.generate`. Queries stand here once, in words that can be read.

A dashboard is rows of panels; a panel is what Grafana calls one (schema 39, Grafana 11 and newer). Whoever changes a dashboard in Grafana
saves its JSON under another name: these are provisioned and come back as they are.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "weir-prometheus"}
COLUMNS = 24
RECORDS = "suffix: rec/s"
Query = tuple[str, str]
"""What is asked, and how its series are called."""
Panel = dict[str, Any]


def panel(kind: str, title: str, queries: Sequence[Query], unit: str, about: str, **custom: Any) -> Panel:
    """What all kinds have in common. `about` is shown with the title."""
    instant = kind in ("stat", "table")
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": SOURCE,
            "expr": expr,
            "legendFormat": legend,
            "instant": instant,
            "range": not instant,
        }
        for place, (expr, legend) in enumerate(queries)
    ]
    made: Panel = {"type": kind, "title": title, "description": about, "datasource": SOURCE, "targets": targets}
    made["fieldConfig"] = {"defaults": {"unit": unit, "custom": custom}, "overrides": []}
    return made


def lines(title: str, *queries: Query, unit: str = "short", about: str = "", **custom: Any) -> Panel:
    """Values over time."""
    style = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 5, "showPoints": "never", "spanNulls": 60_000}
    made = panel("timeseries", title, queries, unit, about, **{**style, **custom})
    made["fieldConfig"]["defaults"]["min"] = 0
    made["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def steps(title: str, *queries: Query, unit: str = "short", about: str = "") -> Panel:
    """Whole numbers that jump."""
    return lines(title, *queries, unit=unit, about=about, lineInterpolation="stepAfter", lineWidth=2, fillOpacity=0)


def bars(title: str, *queries: Query, unit: str = "short", about: str = "") -> Panel:
    """Parts of a whole over time."""
    stacking = {"mode": "normal", "group": "A"}
    return lines(title, *queries, unit=unit, about=about, drawStyle="bars", fillOpacity=80, stacking=stacking)


def states(title: str, *queries: Query, about: str = "") -> Panel:
    """Which of several states when: a bar for each series while it is 1."""
    made = panel("state-timeline", title, queries, "short", about, fillOpacity=70, lineWidth=0)
    mapping = {"0": {"text": "no", "color": "transparent"}, "1": {"text": "yes", "color": "blue"}}
    made["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": mapping}]
    made["options"] = {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}, "rowHeight": 0.8}
    return made


def number(
    title: str, query: str, legend: str = "", *, unit: str = "short", about: str = "", red: float | None = None
) -> Panel:
    """The newest value; with a legend, the newest series' name. Red from `red` on."""
    made = panel("stat", title, [(query, legend)], unit, about)
    colours: list[dict[str, Any]] = [{"color": "text" if red is None else "green", "value": None}]
    if red is not None:
        colours.append({"color": "red", "value": red})
    made["fieldConfig"]["defaults"]["thresholds"] = {"mode": "absolute", "steps": colours}
    made["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "name" if legend else "value",
        "colorMode": "value",
        "graphMode": "none",
    }
    return made


def table(title: str, query: str, hidden: Sequence[str], *, about: str = "") -> Panel:
    """The series there are now, their labels in columns."""
    made = panel("table", title, [(query, "")], "short", about)
    made["targets"][0]["format"] = "table"
    made["transformations"] = [{"id": "organize", "options": {"excludeByName": dict.fromkeys(hidden, True)}}]
    return made


def quantile(metric: str, window: str = "$__rate_interval") -> str:
    """Of a histogram, all its processes together."""
    return f"histogram_quantile($quantile, sum by (le) (rate({metric}_bucket[{window}])))"


def dashboard(
    uid: str, title: str, variables: list[dict[str, Any]], rows: Sequence[tuple[int, Sequence[Panel]]]
) -> dict[str, Any]:
    """Rows of (height, panels of equal width)."""
    panels: list[Panel] = []
    y = 0
    for height, row in rows:
        width = COLUMNS // len(row)
        for place, one in enumerate(row):
            position = {"x": place * width, "y": y, "w": width, "h": height}
            panels.append({"id": len(panels) + 1, **one, "gridPos": position})
        y += height
    return {
        "uid": uid,
        "title": title,
        "tags": ["weir"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [{"type": "dashboards", "title": "Weir", "tags": ["weir"], "keepTime": True, "asDropdown": False}],
        "templating": {"list": variables},
        "panels": panels,
    }


def variable(name: str, query: str, *, every: bool = False) -> dict[str, Any]:
    """A choice among the values of a label."""
    made: dict[str, Any] = {"type": "query", "name": name, "datasource": SOURCE, "refresh": 2, "sort": 1}
    made["definition"] = query
    made["query"] = {"query": query, "refId": name}
    made |= {"includeAll": every, "multi": every}
    if every:
        made["allValue"] = ".*"
        made["current"] = {"text": ["All"], "value": ["$__all"]}
    return made


def choice(name: str, *values: str) -> dict[str, Any]:
    """A choice among fixed values; the first is chosen."""
    options = [{"text": value, "value": value, "selected": place == 0} for place, value in enumerate(values)]
    return {"type": "custom", "name": name, "query": ",".join(values), "options": options, "current": options[0]}


SILENCE = "time() - min by (stage) (max by (application, stage) (weir_application_last_message_timestamp_seconds))"


def loop() -> dict[str, Any]:
    """How the loop itself is: time, decisions, what went wrong."""
    return dashboard(
        "weir-loop",
        "Weir: the loop",
        [choice("quantile", "0.95", "0.5", "0.99")],
        [
            (
                4,
                [
                    number("Services that answer", "sum(max by (job) (up{job=~'weir-.+'}))", about="Of five."),
                    number("Dependencies away", "count(weir_dependency_ready == 0) or vector(0)", red=1),
                    number("Applications", "sum(weir_knowledge_applications_shown)"),
                    number("Plans a minute", "60 * sum(rate(weir_planner_plans_total[$__rate_interval]))"),
                    number("Actions under way", "sum(weir_executor_actions_in_flight)"),
                    number("Dead letters", "sum(weir_knowledge_dead_letters_total) or vector(0)", red=1),
                ],
            ),
            (
                9,
                [
                    lines(
                        "From reading to plan",
                        (quantile("weir_monitor_scrape_seconds"), "scrape"),
                        (quantile("weir_planner_analysis_age_seconds"), "observation → analysis"),
                        (quantile("weir_planner_planning_seconds"), "planning"),
                        (quantile("weir_planner_observation_age_seconds"), "observation → plan"),
                        unit="s",
                        about="The chosen quantile of the time that each stage takes.",
                    ),
                    lines(
                        "From plan to verified",
                        (quantile("weir_executor_plan_age_seconds", "30m"), "plan → decision to act"),
                        (quantile("weir_executor_accept_seconds", "30m"), "→ accepted"),
                        (quantile("weir_executor_restart_seconds", "30m"), "accepted → running"),
                        (quantile("weir_executor_verify_seconds", "30m"), "accepted → verified"),
                        unit="s",
                        about="The chosen quantile over the actions of the last half hour.",
                    ),
                    lines(
                        "Age of what each stage said last",
                        (SILENCE, "{{stage}}"),
                        unit="s",
                        about="Of the application that it has said nothing of for longest.",
                    ),
                ],
            ),
            (
                9,
                [
                    bars(
                        "Decisions by reason, a minute",
                        (
                            "60 * sum by (kind, code) (rate(weir_planner_plans_total[$__rate_interval]))",
                            "{{kind}}: {{code}}",
                        ),
                    ),
                    bars(
                        "Holds by reason, a minute",
                        (
                            "60 * sum by (code) (rate(weir_planner_plans_total{kind='hold'}[$__rate_interval]))",
                            "{{code}}",
                        ),
                    ),
                    bars(
                        "Plans that guards amended, a minute",
                        ("60 * sum by (guard) (rate(weir_planner_amendments_total[$__rate_interval]))", "{{guard}}"),
                    ),
                ],
            ),
            (
                8,
                [
                    steps(
                        "Actions and refusals",
                        ("sum by (phase, code) (weir_executor_outcomes_total)", "{{phase}}: {{code}}"),
                        about="Since the executor's start.",
                    ),
                    steps(
                        "Dead letters",
                        ("sum by (service, topic) (weir_knowledge_dead_letters_total)", "{{service}}: {{topic}}"),
                        about="Since knowledge's start.",
                    ),
                    steps(
                        "Planners without an answer",
                        ("sum by (planner, reason) (weir_planner_failures_total)", "{{planner}}: {{reason}}"),
                        about="Since the planner's start.",
                    ),
                ],
            ),
            (
                8,
                [
                    bars(
                        "Observations by status, a minute",
                        ("60 * sum by (status) (rate(weir_monitor_scrapes_total[$__rate_interval]))", "{{status}}"),
                    ),
                    lines("The analyzer's batches", (quantile("weir_analyzer_batch_seconds"), "duration"), unit="s"),
                    lines(
                        "Memory",
                        ("sum by (job) (process_resident_memory_bytes{job=~'weir-.+'})", "{{job}}"),
                        unit="bytes",
                    ),
                    lines(
                        "Cores",
                        ("sum by (job) (rate(process_cpu_seconds_total{job=~'weir-.+'}[$__rate_interval]))", "{{job}}"),
                    ),
                ],
            ),
            (
                7,
                [
                    table(
                        "Alerts",
                        "ALERTS{alertstate='firing'}",
                        ["Time", "Value", "__name__", "alertstate"],
                        about="What to do about each: docs/runbook.md",
                    )
                ],
            ),
        ],
    )


def of_application(metric: str, *labels: str, **matched: str) -> str:
    """An application's gauge; two replicas may both show it for a moment."""
    matchers = "".join(f", {name}='{value}'" for name, value in matched.items())
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"max{by} ({metric}{{application='$application'{matchers}}})"


def of_operators(metric: str) -> str:
    """The chosen operators' gauge."""
    return f"max by (operator) (weir_operator_{metric}{{application='$application', operator=~'$operator'}})"


def application() -> dict[str, Any]:
    """How one application is: load, lag against its objective, parallelism, capacity."""
    ages = of_application("weir_application_last_message_timestamp_seconds", "stage")
    return dashboard(
        "weir-application",
        "Weir: an application",
        [
            variable("application", "label_values(weir_application_status, application)"),
            variable(
                "operator",
                'label_values(weir_operator_parallelism_observed{application="$application"}, operator)',
                every=True,
            ),
        ],
        [
            (
                4,
                [
                    number("Status", of_application("weir_application_status", "status"), "{{status}}"),
                    number("Mode", of_application("weir_application_mode", "mode"), "{{mode}}"),
                    number(
                        "Decision", of_application("weir_application_decision", "kind", "code"), "{{kind}}: {{code}}"
                    ),
                    number(
                        "Bottleneck", of_application("weir_operator_bottleneck", "operator") + " == 1", "{{operator}}"
                    ),
                    number("Lag", of_application("weir_application_lag_seconds"), unit="s"),
                    number("Slots", of_application("weir_application_slots")),
                ],
            ),
            (
                9,
                [
                    lines(
                        "Load",
                        (of_application("weir_application_arrival_records_per_second"), "arrives"),
                        unit=RECORDS,
                        about="What is appended to the topics that the sources read.",
                    ),
                    lines(
                        "Lag against the objective",
                        (of_application("weir_application_lag_seconds"), "lag: age of the oldest unprocessed record"),
                        (
                            of_application("weir_application_expected_latency_seconds"),
                            "latency expected of a new record",
                        ),
                        (of_application("weir_application_objective_seconds", "bound"), "objective: {{bound}}"),
                        unit="s",
                    ),
                ],
            ),
            (
                9,
                [
                    steps(
                        "Parallelism",
                        (of_operators("parallelism_planned"), "{{operator}} planned"),
                        (of_operators("parallelism_requested"), "{{operator}} requested"),
                        (of_operators("parallelism_observed"), "{{operator}} observed"),
                        about="Three facts: what Weir wants, what the engine was asked for, what runs.",
                    ),
                    steps("Slots", (of_application("weir_application_slots"), "taken"), about="What it costs."),
                ],
            ),
            (
                9,
                [
                    lines(
                        "Capacity, and what is to come in",
                        (of_operators("capacity_records_per_second"), "{{operator}} capacity"),
                        (of_operators("target_input_records_per_second"), "{{operator}} to come in"),
                        unit=RECORDS,
                        about="An operator whose capacity is below what is to come in holds the application back.",
                    ),
                    lines("Utilisation", (of_operators("utilisation"), "{{operator}}"), unit="percentunit"),
                    lines("Backpressure", (of_operators("backpressure"), "{{operator}}"), unit="percentunit"),
                ],
            ),
            (
                8,
                [
                    states("Bottleneck", (of_operators("bottleneck"), "{{operator}}")),
                    states(
                        "Decision", (of_application("weir_application_decision", "kind", "code"), "{{kind}}: {{code}}")
                    ),
                    states("Symptoms", (of_application("weir_application_symptom", "code"), "{{code}}")),
                ],
            ),
            (
                7,
                [
                    lines("Age of what each stage said last", (f"time() - {ages}", "{{stage}}"), unit="s"),
                    steps("Restarts", (of_application("weir_application_restarts"), "since the job's start")),
                    steps(
                        "Readings that did not come", (of_application("weir_application_reading_problems"), "problems")
                    ),
                ],
            ),
        ],
    )


DASHBOARDS = {"loop": loop, "application": application}


def text(name: str) -> str:
    """A dashboard's file as it should be."""
    return json.dumps(DASHBOARDS[name](), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
