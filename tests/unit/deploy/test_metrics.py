"""docs/reference/metrics.md lists exactly the exported metrics."""

from tests.unit.deploy.inventory import documented, exported


def test_the_documented_metrics_are_the_exported_ones() -> None:
    """Name, type and labels."""
    assert documented() == exported()
