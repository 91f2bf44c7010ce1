"""Prometheus with half an hour of a loop in it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.monitoring.prometheus import INSTALL, Prometheus
from tests.integration.monitoring.recorder import Recorder, record
from tests.unit.deploy.queries import MONITORING

CONFIGURATION = """
global: {evaluation_interval: 1s}
rule_files: [alerts.yml]
"""


@pytest.fixture(scope="package")
def programs() -> None:
    """The tier needs them; which are missing is said once a test."""
    for name in ("prometheus", "promtool"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name} on the PATH: {INSTALL}")


@pytest.fixture(scope="package")
def recorded(programs: None) -> Recorder:
    """A replayed loop."""
    return record()


@pytest.fixture(scope="package")
def prometheus(recorded: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that remembers it, with the alert rules as they are shipped."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    shutil.copy(MONITORING / "prometheus" / "alerts.yml", folder)
    server = Prometheus(folder, CONFIGURATION, lookback_seconds=15)
    server.remember(recorded.text)
    with server:
        yield server
