"""What every tier shares: a tier whose means are missing is skipped with one line, or fails where it is required."""

import os
import shutil
from pathlib import Path

import pytest

from testbed.jars import CACHE

REQUIRED = {tier for tier in os.environ.get("WEIR_REQUIRE", "").split(",") if tier}
TIERS = ("integration", "e2e")


def _missing() -> str | None:
    if shutil.which("java") is None:
        return "no java on the PATH: install Java 17"
    for part in ("kafka", "flink", "spark", "job"):
        if not list((CACHE / "jars" / part).glob("*.jar")):
            return f"no jars of {part}: run `make setup`"
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder, so that no test of a slow tier can end up in a fast one by a forgotten marker."""
    for item in items:
        for tier in TIERS:
            if f"tests/{tier}/" in Path(str(item.path)).as_posix():
                item.add_marker(tier)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for tier in TIERS:
        if item.get_closest_marker(tier) and (reason := _missing()):
            if tier in REQUIRED:
                pytest.fail(f"the {tier} tier is required and cannot run: {reason}", pytrace=False)
            pytest.skip(f"{tier}: {reason}")
