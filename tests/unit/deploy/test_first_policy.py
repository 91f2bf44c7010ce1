"""The job that puts the first policy: once, only where there is none, and never again after a user deleted it."""

import runpy
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from .answers import Answers

JOBS = Path(__file__).resolve().parents[3] / "deploy" / "compose" / "jobs"


class Knowledge(ThreadingHTTPServer):
    """The policies of one application, and failures before their request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.policy: bytes | None = None
        self.requested: list[str] = []
        self.conditions: list[str | None] = []
        self.trouble: list[int] = []
        """Answered one after the other instead; 0 closes the connection."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(Answers):
    server: Knowledge

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requested.append(f"{self.command} {self.path}")
        if self.server.trouble:
            if status := self.server.trouble.pop(0):
                self.respond(status, b"Redis is away")
            return
        if self.command == "GET":
            self.respond(200 if self.server.policy else 404)
            return
        self.server.conditions.append(self.headers.get("If-None-Match"))
        if self.server.policy is not None:
            self.respond(409)
            return
        self.server.policy = body
        self.respond(201)

    do_GET = do_PUT = _answer  # noqa: N815 - the library's names


@pytest.fixture
def knowledge() -> Iterator[Knowledge]:
    with Knowledge() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


class Job:
    """The script, as each `up` runs it; `volume` is where it remembers."""

    def __init__(self, knowledge: Knowledge, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._knowledge, self._monkeypatch = knowledge, monkeypatch
        self.volume = folder / "volume"
        self.volume.mkdir()
        self._token = folder / "operator"
        self._token.write_text("a-token")

    def run(self, name: str = "policy", timeout_seconds: float = 30.0) -> int:
        module = runpy.run_path(str(JOBS / "policy.py"))
        module["main"].__globals__.update(
            KNOWLEDGE=self._knowledge.url,
            TOKEN=self._token,
            REMEMBERED=self.volume,
            TIMEOUT_SECONDS=timeout_seconds,
            PAUSE_SECONDS=0.01,
        )
        self._monkeypatch.setattr("sys.argv", ["policy.py", str(JOBS / f"{name}.yaml")])
        result: int = module["main"]()
        return result


@pytest.fixture
def job(knowledge: Knowledge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return Job(knowledge, tmp_path, monkeypatch)


def test_a_first_start_puts_it(job: Job, knowledge: Knowledge) -> None:
    """On the condition that none exists, so that two concurrent starts make one."""
    assert job.run() == 0
    assert knowledge.requested == ["GET /v1/policies/demo/orders", "PUT /v1/policies/demo/orders"]
    assert knowledge.conditions == ["*"]
    assert knowledge.policy == (JOBS / "policy.yaml").read_bytes()


def test_what_was_deleted_stays_deleted(job: Job, knowledge: Knowledge) -> None:
    """Whether the job had put it or found it there; without the volume a start is a first one."""
    job.run()
    knowledge.policy = None
    assert job.run() == 0
    assert knowledge.policy is None
    for mark in job.volume.iterdir():
        mark.unlink()
    knowledge.policy = b"somebody's"
    assert job.run() == 0
    knowledge.policy = None
    assert job.run() == 0
    assert knowledge.policy is None


def test_each_application_is_remembered_for_itself(job: Job, knowledge: Knowledge) -> None:
    """The profile `kafka-streams` shares the volume, and puts a policy of its own."""
    job.run()
    knowledge.policy = None
    assert job.run("streams") == 0
    assert knowledge.policy == (JOBS / "streams.yaml").read_bytes()


@pytest.mark.parametrize("trouble", [[500], [503, 502], [0], [401], [404, 503], [404, 0]])
@pytest.mark.parametrize("there", [b"somebody's", None])
def test_trouble_is_no_answer(job: Job, knowledge: Knowledge, trouble: list[int], there: bytes | None) -> None:
    """The request is repeated, and no policy is replaced: a failed GET or PUT leaves the state unknown."""
    knowledge.trouble = trouble
    knowledge.policy = there
    assert job.run() == 0
    assert knowledge.policy == (there or (JOBS / "policy.yaml").read_bytes())


def test_a_persistent_failure_is_reported(job: Job, knowledge: Knowledge, capsys: pytest.CaptureFixture[str]) -> None:
    """With what was answered last; nothing is put, and the next start tries again."""
    knowledge.trouble = [503] * 10_000
    assert job.run(timeout_seconds=0.1) == 1
    log = capsys.readouterr().err
    assert "demo/orders: not within 0.1 s; the last response: GET " in log
    assert log.rstrip().endswith("/v1/policies/demo/orders: 503 Redis is away")
    assert not any(line.startswith("PUT") for line in knowledge.requested)
    knowledge.trouble = []
    assert job.run() == 0
    assert knowledge.policy is not None


def test_what_could_not_be_remembered_is_not_put(
    job: Job, knowledge: Knowledge, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would come back after having been deleted."""
    job.volume.rmdir()
    assert job.run() == 1
    assert knowledge.requested == []
    assert f"{job.volume} cannot be written to" in capsys.readouterr().err
