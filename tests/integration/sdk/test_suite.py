"""The conformance suite as a planner's author runs it."""

import subprocess
import sys
from pathlib import Path

from tests.unit.cli.test_planner_registry import planner_url
from weir_sdk.testing.conformance import CHECKS

__all__ = ["planner_url"]


def test_the_suite_runs_under_pytest(planner_url: str) -> None:
    """`pytest tests/conformance --planner-url=…`; without one it is skipped with one line."""
    root = Path(__file__).resolve().parents[3]

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance", *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False).stdout

    assert f"{len(CHECKS)} passed" in run(f"--planner-url={planner_url}")
    without = run()
    assert without.count("no --planner-url") == 1
    assert f"{len(CHECKS)} skipped" in without
