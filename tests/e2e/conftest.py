"""One unattended trial for all that is said of it, scraped by a Prometheus where there is one."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.process import free_port
from tests.e2e.processes import WEIR, left
from tests.e2e.scraped import Scraped


@pytest.fixture(scope="package")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Prometheus next to the trial of `report`; use it together with that."""
    watching = Scraped(tmp_path_factory.mktemp("trial"), tmp_path_factory.mktemp("prometheus"))
    yield watching
    watching.close()


@pytest.fixture(scope="package")
def report(scraped: Scraped) -> Iterator[dict[str, Any]]:
    """One unattended trial with a load step, as the README has it."""
    folder = scraped.trial
    path = folder / "out.json"
    scraped.follow()
    done = subprocess.run(
        [
            *(str(WEIR), "trial", "--duration", "180", "--trace", "step", "--mode", "act"),
            *("--report", str(path), "--port", str(free_port())),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
    )
    scraped.stopped()
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    yield json.loads(path.read_text())
    assert left(folder) == []
