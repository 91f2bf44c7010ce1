"""The complete loop on real parts through its public API: a load step on a real job is answered and held."""

import itertools
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.process import free_port, wait_until
from tests.e2e.processes import WEIR, descendants, left

OBJECTIVE_SECONDS = 30.0


def test_the_job_was_rescaled_and_is_fresh_at_the_end(report: dict[str, Any]) -> None:
    """Judged by the probe at the sink, not by Weir's own numbers."""
    assert report["verdict"]["passed"]
    verified = [a for a in report["actions"] if a["verified_at"] is not None]
    assert verified
    assert all(a["requested_at"] < a["running_at"] <= a["verified_at"] for a in verified)
    assert any(a["to"]["enrich"] > a["from"]["enrich"] for a in verified)
    last = [s["probe_lag_seconds"] for s in report["series"][-3:]]
    assert max(last) <= OBJECTIVE_SECONDS


def test_the_load_step_was_answered(report: dict[str, Any]) -> None:
    """The trace's step is found in the series, and a rescale followed it."""
    (step,) = report["summary"]["load_steps"]
    assert step["to_rate"] > 1.5 * step["from_rate"]
    assert report["summary"]["reaction_seconds"][0] is not None


def test_each_process_was_one_of_its_own(report: dict[str, Any]) -> None:
    """Five services, five processes, each ready."""
    assert {s["name"] for s in report["services"]} == {"monitor", "analyzer", "planner", "executor", "knowledge"}
    assert len({s["pid"] for s in report["services"]}) == 5
    assert all(s["ready_seconds"] > 0 for s in report["services"])


def test_the_series_is_regular_and_complete(report: dict[str, Any]) -> None:
    """A sample every 2 s with everything a plot needs."""
    series = report["series"]
    assert len(series) >= 80
    gaps = [b["t"] - a["t"] for a, b in itertools.pairwise(series)]
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(2.0, abs=0.2)
    measured = [
        s for s in series if s["lag_seconds"] is not None and s["parallelism"] and s["slots"] and s["input_rate"]
    ]
    assert len(measured) > 0.8 * len(series)


def test_every_decision_explains_itself(report: dict[str, Any]) -> None:
    """Holds included: a code, a sentence and what was running."""
    assert len(report["decisions"]) > 20
    assert all(d["reason_code"] and d["sentence"] for d in report["decisions"])
    acted = {a["plan_id"] for a in report["actions"]}
    assert acted <= {d["plan_id"] for d in report["decisions"]}


def test_weirs_lag_agrees_with_the_probes(report: dict[str, Any]) -> None:
    """The probe sees results a window later; half of the samples differ by less than the window and two scrapes."""
    assert report["summary"]["median_lag_difference_seconds"] < 5.0


def test_ctrl_c_stops_everything_within_15_seconds(tmp_path: Path) -> None:
    """Interrupted as soon as the API answers: nothing is left, and the exit code says so."""
    port = free_port()
    with (tmp_path / "out.log").open("wb") as out:
        running = subprocess.Popen([str(WEIR), "trial", "--port", str(port)], cwd=tmp_path, stdout=out, stderr=out)

    def answers() -> bool:
        assert running.poll() is None, (tmp_path / "out.log").read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until(answers, timeout_seconds=90, what="the API answers")
        assert descendants(str(tmp_path))
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(timeout=15) == 130
    finally:
        running.kill()
        running.wait()
    assert left(tmp_path) == []


def test_a_port_in_use_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    """The line names the option that helps, and no run folder was made."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [str(WEIR), "trial", "--duration", "20", "--port", str(taken.getsockname()[1])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
