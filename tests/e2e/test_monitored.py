"""Prometheus next to a trial: a real loop, its metrics and its dashboards."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scraped import SERVICES, Scraped
from tests.integration.monitoring.preview import View, browser, render
from tests.integration.monitoring.prometheus import INSTALL
from tests.unit.deploy.inventory import documented
from tests.unit.deploy.queries import DASHBOARDS, of_dashboards

RARE = {
    "loop: Alerts A",
    "loop: Dead letters A",
    "loop: Planners without an answer A",
    "loop: Plans that guards amended, a minute A",
    "application: Symptoms A",
}
"""Panels that a loop in which all goes well leaves empty."""


@pytest.fixture
def view(scraped: Scraped, report: dict[str, Any]) -> View:
    """The trial as Prometheus has it."""
    for name in ("prometheus", "promtool"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name} on the PATH: {INSTALL}")
    del report
    assert scraped.prometheus is not None, "the trial's services were not found"
    return View(scraped.prometheus, scraped.began, scraped.ended, "trial/orders", step_seconds=5.0)


def test_each_service_was_scraped(view: View) -> None:
    """By the jobs of the configuration as it is shipped."""
    answered = view.over_time("max by (job) (max_over_time(up[1m]))")
    assert {dict(labels)["job"] for labels, points in answered.items() if points[-1][1] == 1} == {
        f"weir-{name}" for name in SERVICES
    }


def test_real_services_export_what_is_documented(view: View) -> None:
    """Names as they come out of the processes, not as the source says them."""
    measured = documented()
    names = {name for name in view.prometheus.get("/api/v1/label/__name__/values") if name.startswith("weir_")}
    histograms = {name for name, metric in measured.items() if metric.kind == "histogram"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    created = {f"{name.removesuffix('_total')}_created" for name in measured}
    assert names - created - parts <= set(measured)
    assert len(names & set(measured)) > 35


def test_every_panel_had_something_to_show(view: View) -> None:
    """But for those of what went wrong."""
    empty = {place for place, query in of_dashboards().items() if not view.over_time(query)}
    assert empty <= RARE


def test_the_rescale_can_be_read_off_the_metrics(view: View) -> None:
    """The observed parallelism followed the requested one, which followed the plan; and the stages of the action were
    timed."""
    stages = ("planned", "requested", "observed")
    observed = {
        fact: view.over_time(f"max(weir_operator_parallelism_{fact}{{application='$application', operator='enrich'}})")
        for fact in stages
    }
    maximum = {
        fact: max(value for points in series.values() for _, value in points) for fact, series in observed.items()
    }
    assert maximum["observed"] > 1
    # A plan may have been refused.
    assert maximum["observed"] == maximum["requested"] <= maximum["planned"]
    for stage in ("plan_age", "accept", "restart", "verify"):
        counted = view.at_the_end(f"max(max_over_time(weir_executor_{stage}_seconds_count[10m]))")
        assert max(value for points in counted.values() for _, value in points) >= 1, stage


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_its_dashboards_in_a_browser(dashboard: Path, view: View, tmp_path: Path) -> None:
    """As in tests/integration/monitoring, of a real loop."""
    if browser() is None:
        pytest.skip("no chromium on the PATH: install Debian's package chromium")
    observed = render(dashboard, view, tmp_path)
    assert observed.drawn > 10
    assert len(observed.path.read_bytes()) > 40_000
