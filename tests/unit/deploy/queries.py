"""Queries of dashboards and alerts."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.unit.deploy.inventory import ROOT

MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARDS = tuple(sorted((MONITORING / "grafana" / "dashboards").glob("*.json")))
VARIABLES = {
    "$__rate_interval": "1m",
    "$__range": "30m",
    "$quantile": "0.95",
    "$application": "shop/orders",
    "$operator": ".*",
}


def filled(query: str, values: Mapping[str, str] = VARIABLES) -> str:
    """A dashboard's query with its variables replaced, as Grafana does before a request."""
    for name, value in values.items():
        query = query.replace(name, value)
    return query


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every panel, by its dashboard's name."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            yield path.stem, panel


def of_dashboards() -> dict[str, str]:
    """Query by dashboard, panel and letter."""
    return {f"{name}: {p['title']} {t['refId']}": t["expr"] for name, p in panels() for t in p["targets"]}


def of_variables() -> dict[str, tuple[str, str]]:
    """(selector, label) of the variables that list a label's values."""
    found: dict[str, tuple[str, str]] = {}
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable.get("definition", ""))
            if match:
                found[f"{path.stem}: ${variable['name']}"] = (match[1], match[2])
    return found


@cache
def rules() -> list[dict[str, Any]]:
    """Every alert."""
    document = yaml.safe_load((MONITORING / "prometheus" / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def of_alerts() -> dict[str, str]:
    return {rule["alert"]: rule["expr"] for rule in rules()}


def runbook() -> Path:
    return ROOT / "docs" / "how-to" / "runbook.md"
