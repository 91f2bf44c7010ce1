"""Messages that the previous version wrote are read after an upgrade."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from weir_contracts.export import CONTRACTS

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLES = "contracts/examples/v1alpha1"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def _earlier_commits() -> list[str]:
    """Return the commits before the last few changes of the contracts, newest first."""
    if shutil.which("git") is None:
        return []
    changes = _git("log", "--format=%H", "-n", "5", "--", "contracts/weir_contracts").split()
    return [parent for change in changes if (parent := _git("rev-parse", "--verify", "-q", f"{change}^").strip())]


def _examples_of(commit: str) -> list[str]:
    return [path for path in _git("ls-tree", "-r", "--name-only", commit, EXAMPLES).split() if path.endswith(".json")]


@pytest.mark.thorough
def test_examples_of_earlier_commits_are_still_read() -> None:
    """Golden examples from before each of the last changes to the contracts are valid."""
    cases = [(commit, path) for commit in _earlier_commits() for path in _examples_of(commit)]
    if not cases:
        pytest.skip("no history here: not a git checkout, or a shallow one")
    for commit, path in cases:
        name = Path(path).parent.name
        CONTRACTS[name].model_validate(json.loads(_git("show", f"{commit}:{path}")))
