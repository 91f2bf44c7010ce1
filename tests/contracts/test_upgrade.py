"""Messages that the previous version wrote are read after an upgrade."""

import json
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from weir_contracts import Analysis, Scores, parse_policy
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


def test_fields_under_their_earlier_names_are_read() -> None:
    """An analysis re-seeds the analyzer's state after an upgrade; a policy was written by a user."""
    analysis = json.loads((PROJECT / EXAMPLES / "analysis" / "full.json").read_text())
    analysis["learnt"] = analysis.pop("learned")
    operator = analysis["operators"][0]
    operator["least_processing_rate"] = {"value": 12.0, "basis": "busy time"}
    operator.pop("min_processing_rate", None)
    read = Analysis.model_validate(analysis)
    assert read.learned == analysis["learnt"]
    assert read.operators[0].min_processing_rate is not None and read.operators[0].min_processing_rate.value == 12.0
    scores = json.loads((PROJECT / EXAMPLES / "scores" / "full.json").read_text())
    scores["planners"][0]["turns"] = scores["planners"][0].pop("cycles")
    assert Scores.model_validate(scores).planners[0].cycles == scores["planners"][0]["turns"] > 0
    policy = json.loads((PROJECT / EXAMPLES / "policy" / "full.json").read_text())
    policy["spec"]["behavior"]["scaleDown"]["collapseHold"] = "7m"
    del policy["spec"]["behavior"]["scaleDown"]["inputOutageHold"]
    assert parse_policy(policy).spec.behavior.scale_down.input_outage_hold == timedelta(minutes=7)
