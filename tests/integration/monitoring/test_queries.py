"""Prometheus itself takes the files as they are shipped, and every panel has something to show of a loop that ran."""

import datetime as dt

import pytest

from testbed.process import wait_until
from tests.integration.monitoring.prometheus import Prometheus, promtool
from tests.integration.monitoring.recorder import APPLICATION, Recorder
from tests.unit.deploy.queries import MONITORING, filled, of_alerts, of_dashboards, of_variables

FOLDER = MONITORING / "prometheus"
ALERTS_TABLE = "loop: Alerts A"
"""Made by rules, which look at the present only: it has a test of its own."""


@pytest.mark.usefixtures("programs")
def test_the_files_are_valid_and_each_alert_comes_when_it_must() -> None:
    """Configuration and rules by Prometheus' own reading, and the stories of alerts_test.yml."""
    # The token that it names is in the container only.
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", str(FOLDER / "prometheus.yml"))
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", folder=FOLDER)


def _span(recorded: Recorder) -> tuple[dt.datetime, dt.datetime]:
    assert recorded.began is not None
    assert recorded.ended is not None
    return recorded.began, recorded.ended


def test_every_panel_has_data(prometheus: Prometheus, recorded: Recorder) -> None:
    """Over the half hour each query of each dashboard gives at least one number."""
    start, end = _span(recorded)
    queries = {place: filled(query) for place, query in of_dashboards().items() if place != ALERTS_TABLE}
    assert len(queries) > 40
    empty = {place: query for place, query in queries.items() if not prometheus.query_range(query, start, end)}
    assert empty == {}


def test_the_dashboards_choices_offer_the_application_and_its_operators(
    prometheus: Prometheus, recorded: Recorder
) -> None:
    """Its choices are a label's values."""
    _, end = _span(recorded)
    offered = {
        place: {dict(labels)[label] for labels in prometheus.query(filled(selector), end)}
        for place, (selector, label) in of_variables().items()
    }
    assert offered["application: $application"] == {APPLICATION}
    assert "enrich" in offered["application: $operator"]


def test_no_alert_is_raised_but_for_what_happened(prometheus: Prometheus, recorded: Recorder) -> None:
    """The loop ran well, but for the dead letter of a quarter of an hour before: looked at while it was fresh."""
    _, end = _span(recorded)
    at = end - dt.timedelta(minutes=10)
    raised = {name for name, query in of_alerts().items() if prometheus.query(query, at)}
    assert raised == {"WeirDeadLetters"}


def test_a_firing_alert_is_a_series_that_the_dashboard_lists(prometheus: Prometheus) -> None:
    """No service is scraped here now, so all are down; for less than a minute, so the alert is pending."""
    wait_until(
        lambda: prometheus.query("ALERTS{alertname='WeirServiceDown'}"), timeout_seconds=60, what="the alert is there"
    )


def test_the_story_can_be_read_off_the_panels(prometheus: Prometheus, recorded: Recorder) -> None:
    """The load doubled twice: parallelism followed, and the lag came back under the objective."""
    start, end = _span(recorded)

    def values(query: str) -> list[float]:
        (series,) = prometheus.query_range(filled(query), start, end).values()
        return [value for _, value in series]

    enrich = values("max(weir_operator_parallelism_observed{application='$application', operator='enrich'})")
    assert max(enrich) > enrich[0]
    lag = values("max(weir_application_lag_seconds{application='$application'})")
    objective = values("max(weir_application_objective_seconds{application='$application'})")
    assert lag[-1] < objective[-1]
