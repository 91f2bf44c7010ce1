"""Submitting the sample job: once, and again only when the cluster has lost it."""

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from weir_engines.flink.jobs import Jobs
from workloads import submit
from workloads.submit import SubmitError


class Flink:
    """As much of a session cluster's REST API as submitting takes."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, str]] = {}
        self.submitted: list[dict[str, Any]] = []
        self.slots = 4
        self.refuses = False

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if self.refuses:
            return httpx.Response(500, text="no")
        if path == "/overview":
            return httpx.Response(200, json={"slots-total": self.slots})
        if path == "/jobs/overview":
            tasks = {"total": 5, "running": 4, "finished": 1}
            found = [{"jid": i, "name": n, "state": s, "tasks": tasks} for i, (n, s) in self.jobs.items()]
            return httpx.Response(200, json={"jobs": found})
        if path == "/jars/upload":
            return httpx.Response(200, json={"filename": "/tmp/flink-web/abc_job.jar"})  # noqa: S108 - Flink's
        if path == "/jars/abc_job.jar/run":
            self.submitted.append(json.loads(request.content))
            self.jobs[f"job{len(self.submitted)}"] = ("orders", "RUNNING")
            return httpx.Response(200, json={"jobid": f"job{len(self.submitted)}"})
        return httpx.Response(404, text="no")


@pytest.fixture
def flink() -> Flink:
    return Flink()


@pytest.fixture
def cluster(flink: Flink) -> Jobs:
    return Jobs(httpx.Client(transport=httpx.MockTransport(flink.answer), base_url="http://flink"))


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "job.jar"
    path.write_bytes(b"PK")
    return path


def options(jar: Path, *more: str) -> Any:
    return submit.parse(["--flink", "http://flink", "--jar", str(jar), "--timeout", "0", *more])


def test_it_is_submitted_once(flink: Flink, cluster: Jobs, jar: Path) -> None:
    """A second start finds the first one's job and leaves it alone."""
    parsed = options(jar, "--parallelism", "2", "--", "--input-topic", "orders")
    assert submit.submit(cluster, parsed, threading.Event()) == "orders runs as job job1"
    assert submit.submit(cluster, parsed, threading.Event()) == "orders ran already as job job1"
    assert flink.submitted == [{"programArgsList": ["--input-topic", "orders"], "parallelism": 2}]
    assert submit.check(cluster, "orders") == ""


def test_costs_as_in_the_trial(jar: Path) -> None:
    """With one option records take what they take there."""
    assert "--service-time-us" in options(jar, "--sample-costs").arguments
    assert options(jar).arguments == []


def test_a_lost_job_is_submitted_again(
    flink: Flink, cluster: Jobs, jar: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that has failed for good counts as lost; a cluster that does not answer is waited for, and printed once."""
    monkeypatch.setattr(submit, "LOOK_SECONDS", 0.0)
    looks = iter([lambda: setattr(flink, "refuses", True), None, lambda: setattr(flink, "refuses", False), None])
    flink.jobs["job0"] = ("orders", "FAILED")
    stop = threading.Event()

    def wait(seconds: float | None = None) -> bool:
        del seconds
        look = next(looks, stop.set)
        if look is not None:
            look()
        return stop.is_set()

    monkeypatch.setattr(stop, "wait", wait)
    submit.stay(cluster, options(jar), stop)
    assert len(flink.submitted) == 1
    printed = capsys.readouterr()
    assert printed.out == "orders runs as job job1\n"
    assert printed.err.count("submit: flink: GET /jobs/overview: 500 no") == 1


def test_missing_slots_and_jobs_are_named(flink: Flink, cluster: Jobs, jar: Path) -> None:
    """No slots in time, a job that ends at once, no job at all."""
    flink.slots = 0
    with pytest.raises(SubmitError, match="1 slot of http://flink: not reached in time"):
        submit.submit(cluster, options(jar), threading.Event())
    assert submit.check(cluster, "orders") == "no job orders"
    flink.slots = 1
    flink.jobs["job0"] = ("orders", "RESTARTING")
    assert submit.check(cluster, "orders") == "job orders is RESTARTING"


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the argument's name."""
    with pytest.raises(SystemExit) as ended:
        submit.main(["--flink", "http://flink", "--jar", str(tmp_path / "none.jar")])
    assert ended.value.code == 2
    assert "argument --jar" in capsys.readouterr().err
