"""Dashboards and alerts query only existing series, and every alert names a remedy."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
import yaml

from tests.unit.deploy.inventory import Known, documented
from tests.unit.deploy.queries import (
    DASHBOARDS,
    MONITORING,
    filled,
    of_alerts,
    of_dashboards,
    of_variables,
    panels,
    rules,
    runbook,
)

TARGET = frozenset({"job", "instance"})
"""Labels that Prometheus adds to every series it scrapes."""
OTHERS = {
    "up": Known("gauge", frozenset()),
    "ALERTS": Known("gauge", frozenset({"alertname", "alertstate", "severity"})),
    "process_resident_memory_bytes": Known("gauge", frozenset()),
    "process_cpu_seconds_total": Known("counter", frozenset()),
}
_CHILDREN = ("lhs", "rhs", "expr", "vector_selector", "param")


def _series() -> dict[str, Known]:
    """Every series' name with its labels: a histogram has three."""
    found = dict(OTHERS)
    for name, documented_metric in documented().items():
        if documented_metric.kind == "histogram":
            found |= {f"{name}_{part}": documented_metric for part in ("sum", "count")}
            found[f"{name}_bucket"] = Known("histogram", documented_metric.labels | {"le"})
        else:
            found[name] = documented_metric
    return found


SERIES = _series()


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = [getattr(node, name, None) for name in _CHILDREN]
    for child in [*children, *getattr(node, "args", [])]:
        if child is not None and not isinstance(child, str):
            yield from _nodes(child)


def _selectors(node: Any) -> list[promql.VectorSelector]:
    return [each for each in _nodes(node) if isinstance(each, promql.VectorSelector)]


def problems(query: str) -> list[str]:
    """Return the metrics and labels of a query that do not exist."""
    tree = promql.parse(query)
    found: list[str] = []
    for selector in _selectors(tree):
        documented_metric = SERIES.get(selector.name)
        if documented_metric is None:
            found.append(f"no metric {selector.name}")
            continue
        labels = {matcher.name for matcher in selector.matchers.matchers}
        found += [f"{selector.name} has no label {label}" for label in labels - documented_metric.labels - TARGET]
    for node in _nodes(tree):
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            for selector in _selectors(node.expr):
                missing = set(node.modifier.labels) - SERIES.get(selector.name, Known("", frozenset())).labels - TARGET
                found += [f"{selector.name} has no label {label} to group by" for label in missing]
    return found


def test_a_query_for_what_is_not_there_is_found() -> None:
    """The check itself: a misspelt metric, a label it does not have, one to match and one to group by."""
    assert problems("rate(weir_planner_plan_total[1m])") == ["no metric weir_planner_plan_total"]
    assert problems("weir_application_lag_seconds{operator='a'}") == [
        "weir_application_lag_seconds has no label operator"
    ]
    grouped = "sum by (reason) (rate(weir_planner_plans_total[5m] offset 1h)) > 0"
    assert problems(grouped) == ["weir_planner_plans_total has no label reason to group by"]


@pytest.mark.parametrize("query", [of_dashboards, of_alerts])
def test_every_query_names_existing_metrics(query: Any) -> None:
    """Metrics and labels, of dashboards and of alerts."""
    queries = query()
    assert len(queries) > 15
    assert {place: found for place, query in queries.items() if (found := problems(filled(query)))} == {}


def test_the_choices_list_labels_there_are() -> None:
    """A dashboard's variables offer applications and their operators."""
    assert len(of_variables()) == 2
    for selector, label in of_variables().values():
        assert problems(filled(selector)) == []
        (node,) = _selectors(promql.parse(filled(selector)))
        assert label in SERIES[node.name].labels


def test_a_legend_names_labels_its_query_keeps() -> None:
    """Another one would be drawn as nothing."""
    for _, panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = re.findall(r"by \(([\w, ]+)\)", target["expr"])
            assert named <= {label for group in kept for label in group.split(", ")}, target


def test_no_variable_is_left_open() -> None:
    """A variable that is not expanded here would not be expanded in Grafana either."""
    assert {place for place, query in of_dashboards().items() if "$" in filled(query)} == set()


def test_panels_have_a_place_and_a_source_that_is_provisioned() -> None:
    """Nothing overlaps, and the data source is the one that Grafana is started with."""
    (source,) = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    for path in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(path.read_text())["panels"]:
            where = panel["gridPos"]
            cells = {(where["x"] + x, where["y"] + y) for x in range(where["w"]) for y in range(where["h"])}
            assert not cells & taken, panel["title"]
            assert where["x"] + where["w"] <= 24
            assert panel["datasource"]["uid"] == source["uid"]
            taken |= cells


def test_every_alert_has_a_test_and_a_runbook() -> None:
    """Its story in alerts_test.yml, its section in the runbook, and no section of a removed alert."""
    stories = (MONITORING / "prometheus" / "alerts_test.yml").read_text()
    sections = set(re.findall(r"^### (Weir\w+)$", runbook().read_text(), re.MULTILINE))
    assert sections == set(of_alerts())
    for rule in rules():
        name = rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/how-to/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert name in stories or re.sub(r"([a-z])[A-Z]\w*$", r"\1", name) in stories


def test_every_service_is_scraped() -> None:
    """By the name and the port it has in compose, and alerts know the jobs."""
    config = yaml.safe_load((MONITORING / "prometheus" / "prometheus.yml").read_text())
    scraped = {
        job["job_name"]: (job["dns_sd_configs"][0]["names"][0], job["dns_sd_configs"][0]["port"])
        for job in config["scrape_configs"]
    }
    ports = {"monitor": 8091, "analyzer": 8092, "planner": 8093, "executor": 8094, "knowledge": 8080}
    assert scraped == {f"weir-{name}": (name, port) for name, port in ports.items()}
    assert all(f'job="{job}"' in of_alerts()["WeirServiceDown"] for job in scraped)
