"""Writes dashboards/*.json: `python -m deploy.monitoring.grafana.generate`. Each query is written here once.

A dashboard is rows of panels (panels.py). Grafana restores provisioned dashboards: save a changed one under another
name.
"""

import json
import sys
from pathlib import Path
from typing import Any

from .panels import RECORDS, bars, choice, dashboard, lines, number, quantile, states, steps, table, variable

FOLDER = Path(__file__).parent / "dashboards"
SILENCE = "time() - min by (stage) (max by (application, stage) (weir_application_last_message_timestamp_seconds))"


def loop() -> dict[str, Any]:
    """Return the dashboard of the loop: times, decisions, errors."""
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
                        "Age of each stage's last message",
                        (SILENCE, "{{stage}}"),
                        unit="s",
                        about="For the application that has waited longest for a message of the stage.",
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
                        "Actions and refusals by their end",
                        (
                            "sum by (phase, code) (weir_executor_outcomes_total"
                            "{phase=~'verified|rolled-back|superseded|refused|failed'})",
                            "{{phase}}: {{code}}",
                        ),
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
                        about="Remedies: docs/how-to/runbook.md",
                    )
                ],
            ),
        ],
    )


def of_application(metric: str, *labels: str, **matched: str) -> str:
    """Return an application's gauge; two replicas may both export it for a moment."""
    matchers = "".join(f", {name}='{value}'" for name, value in matched.items())
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"max{by} ({metric}{{application='$application'{matchers}}})"


def of_operators(metric: str) -> str:
    """Return the gauge of the chosen operators."""
    return f"max by (operator) (weir_operator_{metric}{{application='$application', operator=~'$operator'}})"


def of_bottleneck(rate: str) -> str:
    """Return a rate of the current bottleneck."""
    here = "{application='$application'}"
    limits = f"(weir_operator_bottleneck{here} == 1)"
    return f"max by (operator) (weir_operator_{rate}_records_per_second{here} and on (operator) {limits})"


def application() -> dict[str, Any]:
    """Return the dashboard of one application: load, lag and objective, parallelism, capacity."""
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
                        about="Records appended to the topics that the sources read.",
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
                        "Parallelism of the chosen operators together",
                        (f"sum({of_operators('parallelism_planned')})", "planned"),
                        (f"sum({of_operators('parallelism_requested')})", "requested"),
                        (f"sum({of_operators('parallelism_observed')})", "observed"),
                        about="Planned by Weir, requested from the engine, running. Choose an operator to see it alone.",
                    ),
                    steps("Parallelism observed", (of_operators("parallelism_observed"), "{{operator}}")),
                    steps(
                        "Slots",
                        (of_application("weir_application_slots"), "taken"),
                        about="Slots that the application occupies.",
                    ),
                ],
            ),
            (
                9,
                [
                    lines(
                        "The bottleneck's capacity",
                        (of_bottleneck("capacity"), "{{operator}}: capacity"),
                        (of_bottleneck("target_input"), "{{operator}}: target input"),
                        unit=RECORDS,
                        about="The input it could process at its parallelism, and the input without backpressure.",
                    ),
                    lines(
                        "Target input as a share of capacity",
                        (
                            f"{of_operators('target_input_records_per_second')} / {of_operators('capacity_records_per_second')}",
                            "{{operator}}",
                        ),
                        unit="percentunit",
                        about="Above 100 % the operator limits the application.",
                    ),
                    lines("Utilization", (of_operators("utilization"), "{{operator}}"), unit="percentunit"),
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
                    lines("Age of each stage's last message", (f"time() - {ages}", "{{stage}}"), unit="s"),
                    steps("Restarts", (of_application("weir_application_restarts"), "since the job's start")),
                    steps("Missing readings", (of_application("weir_application_reading_problems"), "problems")),
                ],
            ),
        ],
    )


DASHBOARDS = {"loop": loop, "application": application}


def text(name: str) -> str:
    """Return the content of a dashboard's file."""
    return json.dumps(DASHBOARDS[name](), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
