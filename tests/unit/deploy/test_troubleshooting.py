"""docs/how-to/troubleshooting.md has cause and remedy of every code that analyzer, planner and executor give."""

import re
from pathlib import Path
from typing import get_args

import pytest

from weir_contracts import NO_REPLY
from weir_contracts.analysis import SymptomCode
from weir_planner.core.guards import GUARDS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()


def _codes(folder: str, pattern: str) -> set[str]:
    text = "".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))
    return {
        code for found in re.findall(pattern, text) for code in ([found] if isinstance(found, str) else found) if code
    }


CODES = {
    "symptoms": set(get_args(SymptomCode)),
    "checks before the planner": _codes("services/planner/weir_planner/core", r'_hold\(\s*"([a-z-]+)"') | NO_REPLY,
    "guards": {*GUARDS, *_codes("services/planner/weir_planner/core/guards", r'\.held\(\s*"[a-z-]+", "([a-z-]+)"')},
    "rate": _codes("planners/weir_planners/rate", r'Choice\(\w+, "([a-z-]+)"'),
    "infeasible": _codes("services/planner/weir_planner/core", r'\.noting\(\s*"([a-z-]+)"'),
    "refusals": _codes("services/executor", r'Refusal\(\s*"([a-z-]+)"'),
    "actions": _codes(
        "services/executor/weir_executor/core", r'code="([a-z]+-[a-z-]+)"|code = "([a-z-]+)" if .* else "([a-z-]+)"'
    ),
}


@pytest.mark.parametrize("kind", CODES)
def test_every_code_has_its_line(kind: str) -> None:
    """In backquotes; each kind has some."""
    assert CODES[kind]
    assert {code for code in CODES[kind] if f"`{code}`" not in PAGE} == set()
