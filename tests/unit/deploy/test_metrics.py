"""docs/reference/metrics.md is the whole truth: nothing exported is missing there, nothing there is gone."""

from tests.unit.deploy.inventory import documented, exported


def test_the_documented_metrics_are_the_exported_ones() -> None:
    """Name, type and labels."""
    assert documented() == exported()
