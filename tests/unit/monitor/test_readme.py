"""The README agrees with the code."""

import re
from pathlib import Path

from weir_monitor.settings import MonitorSettings
from weir_runtime.settings import table

FOLDER = Path(__file__).parents[3] / "services" / "monitor"
README = (FOLDER / "README.md").read_text()


def test_the_settings_are_the_ones_there_are() -> None:
    """The table is generated; print it again after a change with weir_runtime.settings.table(MonitorSettings,
    own_only=True)."""
    assert table(MonitorSettings, own_only=True) in README


def test_every_metric_is_documented() -> None:
    """Each metric of a dashboard is explained there."""
    names = set(re.findall(r'"(weir_monitor_[a-z_]+)"', "".join(path.read_text() for path in FOLDER.rglob("*.py"))))
    assert len(names) >= 6
    assert {name for name in names if name not in README} == set()
