"""The trial of the Kafka Streams sample through its public command: a load step is answered by more instances."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.process import free_port
from tests.e2e.processes import WEIR, left

OBJECTIVE_SECONDS = 30.0
DURATION_SECONDS = 180
"""The step comes after half of it, when the first instances have settled."""


@pytest.fixture(scope="module")
def streams_report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """One unattended trial as docs/reference/trial.md has it; afterwards no process of it is left."""
    folder: Path = tmp_path_factory.mktemp("streams-trial")
    path = folder / "out.json"
    done = subprocess.run(
        [
            *(str(WEIR), "trial", "--workload", "kafka-streams", "--duration", str(DURATION_SECONDS)),
            *("--trace", "step", "--mode", "act", "--report", str(path), "--port", str(free_port())),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    yield json.loads(path.read_text())
    assert left(folder) == []


def test_more_instances_run_and_the_results_are_fresh_at_the_end(streams_report: dict[str, Any]) -> None:
    """Judged by the probe at the output topic, not by Weir's own numbers."""
    assert streams_report["verdict"]["passed"]
    verified = [a for a in streams_report["actions"] if a["verified_at"] is not None]
    assert any(a["to"]["orders"] > a["from"]["orders"] for a in verified)
    assert all(a["requested_at"] < a["running_at"] <= a["verified_at"] for a in verified)
    last = [s["probe_lag_seconds"] for s in streams_report["series"][-3:]]
    assert max(last) <= OBJECTIVE_SECONDS


def test_the_step_was_answered(streams_report: dict[str, Any]) -> None:
    """The trace's step is found in the series, and a change of the number of instances followed it."""
    (step,) = streams_report["summary"]["load_steps"]
    assert step["to_rate"] > 1.5 * step["from_rate"]
    assert streams_report["summary"]["reaction_seconds"][0] is not None


def test_every_decision_explains_itself(streams_report: dict[str, Any]) -> None:
    """Holds included: a code, a sentence, and the instances that ran."""
    decisions = streams_report["decisions"]
    assert len(decisions) > 10
    assert all(d["reason_code"] and d["sentence"] for d in decisions)
    assert {name for d in decisions for name in d["current"]} == {"orders"}
