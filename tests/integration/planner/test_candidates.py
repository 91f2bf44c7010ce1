"""Candidates and shadows in processes of their own: those that hang, die or raise cost only their own proposals."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.installed import install

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = """
import os, signal, time
from weir_sdk import planner

@planner(name="spins", reads=[])
def spins(request):
    "never returns"
    while True:
        pass

@planner(name="sleeps", reads=[])
def sleeps(request):
    "never returns, and catches everything"
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass

@planner(name="dies", reads=[])
def dies(request):
    "ends its process"
    os.kill(os.getpid(), signal.SIGKILL)

@planner(name="raises", reads=[])
def raises(request):
    "raises"
    raise KeyError("no such thing")

@planner(name="six", reads=[])
def six(request):
    "six subtasks"
    return request.scale({n: 6 if n == "work" else 1 for n in request.operators}, "six", "six are enough")
"""
THREADED = """
import queue, threading
from weir_sdk import planner

questions, answers = queue.Queue(), queue.Queue()

def work():
    while True:
        answers.put(questions.get())

threading.Thread(target=work, daemon=True).start()

@planner(name="threaded", reads=[])
def threaded(request):
    "six subtasks, by a thread that the import started"
    questions.put(6)
    six = answers.get()
    return request.scale({n: six if n == "work" else 1 for n in request.operators}, "six", "six are enough")
"""
NAMES = ("spins", "sleeps", "dies", "raises", "six")
TIMEOUT_SECONDS = 4.0


def cycles(site: Path, count: int, timeout: str, *, with_threads: bool = False, **spec: Any) -> list[dict[str, Any]]:
    """Return the plans of a planner process in whose environment the package is installed, and their durations."""
    install(site, "odd", PACKAGE, **{name: f"odd:{name}" for name in NAMES})
    if with_threads:
        install(site, "threads", THREADED, threaded="threads:threaded")
    run = "from tests.integration.planner.candidates_process import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", run, json.dumps(spec), timeout, str(count)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seconds"')]


def test_nine_of_ten_candidates_that_hang_cost_only_their_own_proposals(tmp_path: Path) -> None:
    """Six hang, two end their process, one raises; the tenth proposes six subtasks, one less than the own planner, and
    the plan is made at the deadline. What hung is named."""
    bad = [{"name": "spins", "label": f"spins-{i}"} for i in range(3)]
    bad += [{"name": "sleeps", "label": f"sleeps-{i}"} for i in range(3)]
    bad += [{"name": "dies"}, {"name": "dies", "label": "dies-again"}, {"name": "raises"}]
    (cycle,) = cycles(tmp_path, 1, f"{TIMEOUT_SECONDS:g}s", candidates=[*bad, {"name": "six"}])
    plan = cycle["plan"]
    listed = {each["label"]: each for each in plan["contenders"]}
    assert plan["planner"] == "six"
    assert plan["action"]["parallelism"]["work"] == 6
    assert listed["rate"]["lost_because"] == "costs 7 slots, six 6"
    codes = {label: listed[label]["code"] for label in (each.get("label", each["name"]) for each in bad)}
    late = {"spins-0", "spins-1", "spins-2", "sleeps-0", "sleeps-1", "sleeps-2"}
    assert {label for label, code in codes.items() if code == "planner-timeout"} == late
    assert listed["spins-0"]["lost_because"] == "planner spins did not reply within 4 s"
    assert listed["dies"]["lost_because"] == "planner dies ended its process"
    assert listed["raises"]["lost_because"] == "planner raises failed: 'no such thing'"
    # As long as the deadline and what collecting the replies takes; one after the other it would be six times that.
    assert cycle["seconds"] < 2 * TIMEOUT_SECONDS


def test_a_candidate_that_always_hangs_is_not_asked_each_time(tmp_path: Path) -> None:
    """After five failures in a row the plan no longer waits for it."""
    found = cycles(tmp_path, 6, "1s", candidates=[{"name": "spins"}])
    reasons = [cycle["plan"]["contenders"][1]["lost_because"] for cycle in found]
    assert reasons[:5] == ["planner spins did not reply within 1 s"] * 5
    assert "is not called for another" in reasons[5]


def test_shadows_that_hang_die_or_raise_neither_change_nor_delay_the_plan(tmp_path: Path) -> None:
    """Two hang, for which the policy's planner would have 20 s. The plan is the own planner's seven subtasks, made after
    a tenth of the interval: what hung, died or raised is named."""
    bad = [{"name": "spins"}, {"name": "sleeps"}, {"name": "dies"}, {"name": "raises"}]
    (cycle,) = cycles(tmp_path, 1, "20s", shadows=[*bad, {"name": "six"}], interval="20s")
    assert cycle["plan"]["planner"] == "rate"
    assert cycle["plan"]["action"]["parallelism"]["work"] == 7
    listed = {each["label"]: each for each in cycle["plan"]["contenders"]}
    assert listed["spins"]["lost_because"] == "planner spins did not reply within 2 s"
    assert [listed[each["name"]]["code"] for each in bad] == ["planner-timeout"] * 2 + ["planner-failed"] * 2
    assert cycle["seconds"] < 20


@pytest.mark.parametrize(("name", "reason"), [("spins", "planner-timeout"), ("dies", "planner-failed")])
def test_a_planner_that_hangs_or_dies_costs_its_reply(tmp_path: Path, name: str, reason: str) -> None:
    """The policy's own planner: its fallback is asked in the process that takes its place."""
    planner = {"name": name, "timeout": "500ms", "fallback": {"name": "six"}}
    (cycle,) = cycles(tmp_path, 1, "", planner=planner)
    plan = cycle["plan"]
    assert plan["action"]["parallelism"]["work"] == 6
    assert (plan["evidence"]["planner_failure"], plan["evidence"]["answered_by"]) == (reason, "six")


def test_a_planner_whose_package_starts_a_thread_decides(tmp_path: Path) -> None:
    """The process of a planner that decides has imported its package itself: a fork would not have the thread."""
    planner = {"name": "threaded", "timeout": "20s"}
    (cycle,) = cycles(tmp_path, 1, "", with_threads=True, planner=planner)
    assert cycle["plan"]["code"] == "six", cycle["plan"]["sentence"]
    assert cycle["plan"]["action"]["parallelism"]["work"] == 6
