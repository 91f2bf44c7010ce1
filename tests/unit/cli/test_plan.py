"""`weir plan`: on a saved request, and on the last one of an application."""

import json
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from tests.unit.cli.test_command import REQUEST, Done, weir
from tests.unit.cli.test_replay_recorded import NOW, Knowledge
from tests.unit.replay.test_recorded import APP, recorded
from weir_runtime.clock import FakeClock
from weir_runtime.http_client import Event

SINCE = f"{int((NOW - timedelta(minutes=30)).timestamp() * 1000)}-0"


def run(events: tuple[Event, ...], *arguments: str) -> Done:
    with (
        mock.patch("weir_cli.recorded.connect", Knowledge(events, after=SINCE).client),
        mock.patch("weir_cli.recorded.SystemClock", lambda: FakeClock(NOW)),
    ):
        return weir("plan", APP, *arguments)


def test_a_plan_is_made_without_any_server() -> None:
    """`weir plan` on the golden request: a vector for each operator, with its reason."""
    done = weir("plan", "--planner", "rate", "--request", str(REQUEST), "-o", "json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["kind"] == "scale"
    assert plan["action"]["parallelism"]["enrich"] > 2
    assert "1,190 records/s arrive" in plan["sentence"]
    assert weir("plan", "--request", str(REQUEST)).stdout.count("enrich") >= 1


def test_a_wrong_request_or_planner_is_named(tmp_path: Path) -> None:
    """Code 2, with the field or the planners there are."""
    document = json.loads(REQUEST.read_text())
    document["analysis"]["observed_at"] = "yesterday"
    wrong = tmp_path / "request.json"
    wrong.write_text(json.dumps(document))
    done = weir("plan", "--request", str(wrong))
    assert done.returncode == 2
    assert "analysis.observed_at" in done.stderr
    done = weir("plan", "--planner", "oracle", "--request", str(REQUEST))
    assert done.returncode == 2
    assert "rate" in done.stderr


def test_the_last_request_of_an_application_is_decided_again_and_saved(tmp_path: Path) -> None:
    """The decision is the recorded one; the file gives the same without a server, and another planner another one."""
    last = next(event.data for event in reversed(recorded()) if event.kind == "plan")
    file = tmp_path / "request.json"
    done = run(recorded(), "--save", str(file), "-o", "json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [plan[name] for name in ("kind", "code", "sentence", "proposed")] == [
        last[name] for name in ("kind", "code", "sentence", "proposed")
    ]
    again = weir("plan", "--request", str(file), "-o", "json")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    other = json.loads(run(recorded(), "--planner", "hpa", "-o", "json").stdout)
    assert other["planner"] == "hpa" and other["observation_id"] == plan["observation_id"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "name either an application or --request with a file"),
        ((APP, "--request", str(REQUEST)), "name either an application or --request with a file"),
        (("--request", str(REQUEST), "--save", "a.json"), "--save: is for an application only"),
        (("--request", "/nonexist"), "--request: /nonexist: No such file"),
        (("a/b/c",), "'a/b/c' is not an application"),
    ],
)
def test_a_wrong_use_is_one_line(arguments: tuple[str, ...], reason: str) -> None:
    """Exit code 2, with the option."""
    done = weir("plan", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert reason in done.stderr


def test_an_application_without_an_analysis_and_a_wrong_place_are_named(tmp_path: Path) -> None:
    """Nothing was stored of the last half hour; the folder of the file does not exist."""
    assert run(()).stderr == f"weir: {APP}: no analysis is stored of the last 30 min\n"
    done = run(recorded(), "--save", str(tmp_path / "none" / "request.json"))
    assert done.returncode == 2 and "--save: " in done.stderr and "No such file" in done.stderr
