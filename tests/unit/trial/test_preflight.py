"""Checks before a trial starts, and a stop in spite of a lost cluster."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from testbed import kafka
from testbed.trial.options import TrialError, TrialOptions, trial_policy
from testbed.trial.preflight import check_cluster, check_planners, check_writable
from testbed.trial.stack import TrialStack

Serve = Callable[[int, Any], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that answers everything with one status and document; returns its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, document: Any) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(made)
        return f"http://127.0.0.1:{made.server_address[1]}"

    yield start
    for each in servers:
        each.shutdown()
        each.server_close()


def entry(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value}


def test_a_cluster_with_the_adaptive_scheduler_will_do(serve: Serve) -> None:
    """With or without a slash at the end of its address."""
    url = serve(200, [entry("jobmanager.scheduler", "Adaptive")])
    check_cluster(url)
    check_cluster(f"{url}/")


@pytest.mark.parametrize("name", ["hpa", "flink-autoscaler", "keda-kafka"])
def test_the_built_in_planners_are_accepted(name: str) -> None:
    """By the same table as the planner service's."""
    check_planners(trial_policy(TrialOptions(planner=name), "http://127.0.0.1:1", "127.0.0.1:1"))


@pytest.mark.parametrize(
    ("planners", "expected"),
    [
        ("planner: {name: mine}", "no planner 'mine'; there are: .*registered once the trial runs"),
        ("planner: {name: static}", "planner static: .*(parallelism|operators)"),
        ("planner: {fallback: {name: rate, parameters: {speed: 3}}}", "planner rate: speed: is not a parameter"),
        ("shadows: [{name: hpa}, {name: mine}]", "no planner 'mine'"),
        ("candidates: [{name: hpa}, {name: mine}]", "no planner 'mine'"),
    ],
)
def test_an_unreachable_planner_is_refused_before_anything_starts(tmp_path: Path, planners: str, expected: str) -> None:
    """Chosen, as a fallback or as a shadow: minutes later knowledge would refuse the policy, with everything running."""
    file = tmp_path / "policy.yaml"
    head = "apiVersion: weir.dev/v1alpha1\nkind: ScalingPolicy\nmetadata: {}\nspec:\n"
    file.write_text(f"{head}  objective: {{maxLag: 30s}}\n  {planners}\n")
    policy = trial_policy(TrialOptions(policy_file=file), "http://127.0.0.1:1", "127.0.0.1:1")
    with pytest.raises(TrialError, match=expected):
        check_planners(policy)


@pytest.mark.parametrize(
    ("status", "document", "expected"),
    [
        (200, [], "default scheduler"),
        (200, [entry("jobmanager.scheduler", "AdaptiveBatch")], "adaptivebatch scheduler"),
        (200, [entry("jobmanager.scheduler", "adaptive"), entry("scheduler-mode", "REACTIVE")], "reactive"),
        (200, {"items": []}, "not the REST address"),
        (404, {"errors": ["Not found"]}, "answers 404"),
    ],
)
def test_a_cluster_that_cannot_rescale_is_refused(serve: Serve, status: int, document: Any, expected: str) -> None:
    """In one line that names the option and what to do."""
    with pytest.raises(TrialError, match=expected) as caught:
        check_cluster(serve(status, document))
    assert str(caught.value).startswith("--external-flink: http://127.0.0.1")
    assert "\n" not in str(caught.value)


def test_a_cluster_that_is_away_is_refused() -> None:
    with pytest.raises(TrialError, match="does not answer"):
        check_cluster("http://127.0.0.1:1")


def test_an_external_cluster_that_is_away_does_not_keep_the_rest_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that may still run is named; the trial's own parts are stopped all the same."""
    monkeypatch.setattr(kafka, "java", lambda: "java")  # nothing is started: neither Java nor jars are needed
    monkeypatch.setattr(kafka, "class_path", lambda part: part)
    stack = TrialStack(TrialOptions(external_flink="http://127.0.0.1:1"), tmp_path)
    stack.job_id = "0123"
    reported: list[str] = []
    stack.stop(reported.append)
    assert len(reported) == 1
    assert "job 0123 could not be cancelled" in reported[0]


def test_looking_whether_a_report_can_be_written_leaves_no_trace(tmp_path: Path) -> None:
    """A new file is not left behind, an old one stays as it is until the trial ends."""
    check_writable(tmp_path / "new.json")
    assert list(tmp_path.iterdir()) == []
    old = tmp_path / "old.json"
    old.write_text("{}")
    check_writable(old)
    assert old.read_text() == "{}"
