"""`pytest tests/conformance --planner-url=URL`: does the planner at an address keep the plugin contract?"""

import asyncio
import os
from pathlib import Path

import pytest

from cli.planner_registry import check_from_here, new_planner
from services.planner.conformance import Finding

SECONDS = 5.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("planner conformance")
    group.addoption("--planner-url", help="the planner's address; with --planner-kta the base of its steps")
    group.addoption("--planner-kta", action="store_true", help="it speaks KTA's protocol")
    group.addoption("--planner-no-analyze", action="store_true", help="with --planner-kta: it has no analyze step")
    group.addoption("--planner-timeout", type=float, default=SECONDS, help="seconds that one exchange may take")


@pytest.fixture(scope="session")
def findings(request: pytest.FixtureRequest) -> dict[str, Finding]:
    """By check. The token, where it wants one, is in the file that WEIR_PLANNER_CREDENTIAL_FILE names."""
    option = request.config.getoption
    url = option("--planner-url", default=None)
    if not url:
        pytest.skip("no --planner-url")
    token = os.environ.get("WEIR_PLANNER_CREDENTIAL_FILE")
    new = new_planner(
        "conformance", url, kta=option("--planner-kta"), no_analyze=option("--planner-no-analyze"), steps={}
    )
    report = asyncio.run(check_from_here(new, Path(token) if token else None, option("--planner-timeout")))
    return {finding.check: finding for finding in report.findings}
