"""The dashboards' panels in a real browser."""

import json
from pathlib import Path

import pytest

from tests.integration.monitoring.preview import WIDTH, View, browser, render
from tests.integration.monitoring.prometheus import Prometheus
from tests.integration.monitoring.recorder import APPLICATION, Recorder
from tests.unit.deploy.queries import DASHBOARDS


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_is_drawn(dashboard: Path, prometheus: Prometheus, recorded: Recorder, tmp_path: Path) -> None:
    """The browser itself counts the plots it drew; the image is as wide as the page and not empty."""
    if browser() is None:
        pytest.skip("no chromium on the PATH: install Debian's package chromium")
    assert recorded.began is not None
    assert recorded.ended is not None
    rendering = render(dashboard, View(prometheus, recorded.began, recorded.ended, APPLICATION), tmp_path)
    panels = json.loads(dashboard.read_text())["panels"]
    assert rendering.drawn == sum(panel["type"] in ("timeseries", "state-timeline") for panel in panels)
    assert rendering.size[0] == WIDTH
    assert len(rendering.path.read_bytes()) > 40_000
