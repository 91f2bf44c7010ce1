"""`pytest tests/conformance --planner-url=URL`: does the planner at an address keep the plugin contract?"""

import os
from pathlib import Path

import pytest

from weir_sdk.testing.conformance import Finding, check_planner


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("planner conformance")
    group.addoption("--planner-url", help="the planner's address")
    group.addoption("--planner-timeout", type=float, default=5.0, help="seconds that one exchange may take")


@pytest.fixture(scope="session")
def findings(request: pytest.FixtureRequest) -> dict[str, Finding]:
    """By check. The token, where it wants one, is in the file that WEIR_PLANNER_CREDENTIAL_FILE names."""
    url = request.config.getoption("--planner-url", default=None)
    if not url:
        pytest.skip("no --planner-url")
    file = os.environ.get("WEIR_PLANNER_CREDENTIAL_FILE")
    token = Path(file).read_text().strip() if file else None
    found = check_planner(url, token=token, timeout_seconds=request.config.getoption("--planner-timeout"))
    return {finding.check: finding for finding in found}
