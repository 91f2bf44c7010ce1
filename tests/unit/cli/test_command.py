"""The command line through its own entry point: what is printed, and the code it ends with."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
import yaml
from rich.console import Console

from weir_cli.__main__ import main
from weir_cli.chart import check_place
from weir_cli.client import Client, InvalidInput, Refused, application_id
from weir_cli.client import seconds as parse_seconds
from weir_cli.output import applications_table
from weir_runtime.http_client import Event

PROJECT = Path(__file__).resolve().parents[3]
REQUEST = PROJECT / "contracts" / "examples" / "v1alpha1" / "plan-request" / "full.json"
POLICY = """
apiVersion: weir.dev/v1alpha1
kind: ScalingPolicy
metadata: {namespace: shop, name: orders}
spec:
  application: {flink: {url: "http://jobmanager:8081", job: orders}}
  objective: {maxLag: 30s}
"""


@dataclass(frozen=True)
class Done:
    """Output and exit code of a command."""

    returncode: int
    stdout: str
    stderr: str


def weir(*arguments: str, program: str = "weir", **environment: str) -> Done:
    """The command's entry point as a user's shell would call it, in this process: a new one would import for a second."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", [program, *arguments]),
        mock.patch.dict(os.environ, {"COLUMNS": "160", **environment}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return Done(code, out.getvalue(), err.getvalue())


class _Server:
    """Server with a test's responses; it records requests."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, str, Any]] = []
        self.queries: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                path, _, query = self.path.partition("?")
                outer.queries.append(query)
                outer.requests.append((self.command, path, self.headers.get("authorization", ""), body))
                status, document = outer.answers.get((self.command, path), (404, {"detail": f"no {path}"}))
                text = (document if isinstance(document, str) else json.dumps(document)).encode()
                self.send_response(status)
                self.send_header("content-type", "text/html" if isinstance(document, str) else "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - the handler's own names

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server() -> Iterator[_Server]:
    made = _Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join(5)


def test_apply_reports_the_mode(server: _Server, tmp_path: Path) -> None:
    """The document goes to its own address; the token goes along and is not printed."""
    file = tmp_path / "orders.yaml"
    file.write_text(POLICY)
    stored = {"metadata": {"namespace": "shop", "name": "orders", "version": 1}, "spec": {}}
    server.answers["PUT", "/v1/policies/shop/orders"] = (201, stored)
    done = weir("apply", "-f", str(file), "--server", server.url, WEIR_TOKEN="not-to-be-shown")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "shop/orders created (version 1, mode advise)\n"
    method, path, authorization, body = server.requests[0]
    assert (method, path, authorization) == ("PUT", "/v1/policies/shop/orders", "Bearer not-to-be-shown")
    assert body["spec"]["objective"] == {"maxLag": "30s"}
    assert "not-to-be-shown" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (POLICY.replace("maxLag: 30s", "maxLag: 30"), "spec.objective.maxLag"),
        (POLICY + "  mood: good\n", "spec.mood"),
        ("a: [1", ":1: is not YAML"),
        ("a: 0b_", "is not YAML: invalid literal"),
        ("kind: A\n" + POLICY, "is not YAML: the key 'kind' comes twice"),
        ("a: \x00", "is not YAML: unacceptable character #x0000"),
        (POLICY + '  "a\\e[31m\\nb": 1\n', r"spec.a\x1b[31m\nb: is not a field"),
        (POLICY + "".join(f"  x{i}: 1\n" for i in range(2000)), "; and 1,995 more"),
        ("[" * 600, "nested too deeply"),
        ("", "holds no document"),
        (POLICY + "---\nkind: Other\n", "document 2: "),
    ],
)
def test_a_wrong_file_names_file_and_field(text: str, expected: str, tmp_path: Path) -> None:
    """Code 2, one line, nothing sent: a second document that is wrong keeps the first back, too."""
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    done = weir("apply", "-f", str(file), "--server", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert str(file) in done.stderr
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("status", "code"), [(404, 3), (409, 4), (422, 2), (401, 6), (403, 6), (503, 5), (500, 1), (418, 1)]
)
def test_each_kind_of_failure_has_its_code(server: _Server, status: int, code: int) -> None:
    """The server's sentence is printed as one line."""
    server.answers["POST", "/v1/policies/shop/orders/pause"] = (status, {"detail": "because of that"})
    done = weir("pause", "shop/orders", "--server", server.url)
    assert done.returncode == code
    assert "because of that" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_incident_is_written_into_a_file(server: _Server, tmp_path: Path) -> None:
    """The page of a moment, as the server makes it. `--at` alone, and a place that cannot be written, are refused before."""
    place = tmp_path / "incident.html"
    server.answers["GET", "/v1/applications/shop/orders/report"] = 200, "<!doctype html>"
    done = weir(
        "explain", "shop/orders", "--html", str(place), "--at", "2026-06-14T18:30:00+02:00", "--server", server.url
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"shop/orders on the page {place}\n")
    assert place.read_text() == "<!doctype html>"
    assert server.queries == ["at=2026-06-14T18%3A30%3A00%2B02%3A00"]
    done = weir("explain", "shop/orders", "--at", "30m", "--server", server.url)
    assert (done.returncode, done.stderr) == (2, "weir: --at: is the moment of a page: add --html FILE\n")
    done = weir("explain", "shop/orders", "--html", str(tmp_path), "--server", server.url)
    assert (done.returncode, done.stderr) == (2, f"weir: --html: {tmp_path}: is a folder\n")
    done = weir("explain", "shop/orders", "--html", str(place), "-o", "json", "--server", server.url)
    said = "weir: --output: is the form of decisions on the screen: leave it or --html out\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert len(server.requests) == 1


CTRL_C = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["MODULE"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
from weir_cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "weir_cli.watch", "weir_cli.single_run"])
def test_ctrl_c_in_the_first_second_says_nothing(module: str) -> None:
    """While modules are imported, of the command and of `weir run`: no traceback, and a code that says what ended it."""
    started = [sys.executable, "-c", CTRL_C, "run", "--once", "--listen", "127.0.0.1:0"]
    environment = os.environ | {"MODULE": module}
    done = subprocess.run(started, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode in (-signal.SIGINT, 130), done.stdout, done.stderr) == (True, "", "")


def test_a_place_for_a_page_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    """Before minutes are spent: a folder, a folder that does not exist, and one that refuses files."""
    for place, reason in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "report.html", f"there is no folder {tmp_path / 'no'}"),
        (Path("/proc/report.html"), "cannot be written: "),
    ):
        with pytest.raises(InvalidInput, match=re.escape(f"--html: {place}: {reason}")):
            check_place(place, "--html", None)
    check_place(tmp_path / "report.html", "--html", None)
    assert list(tmp_path.iterdir()) == []
    for command in ("run", "demo"):
        done = weir(command, "--html", str(tmp_path))
        assert (done.returncode, done.stderr) == (2, f"weir: --html: {tmp_path}: is a folder\n")


def test_an_unreachable_server_is_reported_with_a_remedy() -> None:
    """Code 5."""
    done = weir("get", "--server", "http://127.0.0.1:1")
    assert done.returncode == 5
    assert "http://127.0.0.1:1 does not answer" in done.stderr and "--server" in done.stderr


def test_programs_get_json_and_users_a_table(server: _Server) -> None:
    """The same content; -o json is exactly the API's document."""
    item = {
        "application": "shop/orders",
        "mode": "act",
        "status": "running",
        "lag_seconds": 31.5,
        "objective_seconds": 30.0,
        "arrival_rate": 1190.0,
        "observed": {"work[a]": 5},
        "decision": "[/srv/m.bin] says 2 → 5",
        "silent": [],
    }
    server.answers["GET", "/v1/applications"] = (200, {"items": [item], "next": None})
    table = weir("get", "--server", server.url)
    assert table.returncode == 0, table.stderr
    for shown in ("shop/orders", "31.5 s", "[/srv/m.bin] says"):
        assert shown in table.stdout
    wide = weir("get", "--server", server.url, "-o", "wide").stdout
    assert "1,190/s" in wide
    assert "work[a]=5" in wide
    server.answers["GET", "/v1/applications/shop/orders"] = (200, item)
    one = ("get", "shop/orders", "--server", server.url, "-o")
    scored = json.loads((REQUEST.parents[1] / "plan" / "full.json").read_text())["state"]["courses"]
    server.answers["GET", "/v1/applications/shop/orders"] = (200, {**item, "scores": [c["score"] for c in scored]})
    assert "hpa: 4.2 slots on average, late 86 s (0.4%), restarts 9," in weir(*one, "wide").stdout
    assert "slots on average" not in weir(*one, "table").stdout
    server.answers["GET", "/v1/applications/shop/orders"] = (200, item)
    assert json.loads(weir(*one, "json").stdout) == yaml.safe_load(weir(*one, "yaml").stdout) == item
    assert json.loads(weir("get", "--server", server.url, "-o", "json").stdout) == [item]
    requests = len(server.requests)
    assert weir("get", "--server", server.url, "-o", "xml").returncode == 2
    assert len(server.requests) == requests


def test_a_lag_that_is_known_in_part_is_shown_as_a_lower_bound(server: _Server) -> None:
    """A list, one application and its explanation show that the lag is 93 s or more, not that nothing is known."""
    item = {
        "application": "shop/orders",
        "lag_seconds": None,
        "arrival_rate": 1500.0,
        "lower_bounds": {"lag_seconds": 93.2},
        "objective_seconds": 30.0,
    }
    server.answers["GET", "/v1/applications"] = (200, {"items": [item], "next": None})
    assert "≥ 93.2 s" in weir("get", "--server", server.url).stdout
    server.answers["GET", "/v1/applications/shop/orders"] = (200, item)
    assert "≥ 93.2 s" in weir("get", "shop/orders", "--server", server.url).stdout


def test_a_list_has_one_line_for_each_application() -> None:
    """On a terminal of 80 columns; the problem stands before the hold that follows from it."""
    item = {
        "application": "shop/orders",
        "mode": "act",
        "status": "running",
        "lag_seconds": 31.5,
        "objective_seconds": 30.0,
        "decision": "Hold: " + "the lag of partition orders-7 is unknown " * 9,
        "problems": ["kafka: no answer within 2 s", "flink: late"],
    }
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system=None).print(applications_table([item, item]))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "kafka: no answer" in lines[1]


def test_problems_of_the_last_reading_are_shown(server: _Server) -> None:
    """The first in the table, each with its sentence for one application."""
    group = "group ordres: does not exist or has committed nothing for orders: check spec.signals.kafka.groupId"
    item = {"application": "shop/orders", "status": "running", "problems": [group]}
    server.answers["GET", "/v1/applications"] = (200, {"items": [item], "next": None})
    server.answers["GET", "/v1/applications/shop/orders"] = (200, item)
    assert group in weir("get", "--server", server.url).stdout
    shown = weir("get", "shop/orders", "--server", server.url).stdout
    assert "group ordres" in shown
    assert "groupId" in shown


def test_what_keeps_an_application_from_being_scaled_is_shown(server: _Server) -> None:
    """The refusal in full, on any width of a terminal; without one there is no such line. A name with markup stays text."""
    sentence = "HorizontalPodAutoscaler [orders] scales Deployment orders, too"
    item = {"application": "shop/orders", "status": "running", "mode": "act"}
    refused = {**item, "obstacle_code": "other-autoscaler", "obstacle": sentence}
    server.answers["GET", "/v1/applications/shop/orders"] = (200, refused)
    for columns in ("60", "160"):
        done = weir("get", "shop/orders", "--server", server.url, COLUMNS=columns)
        assert done.returncode == 0, done.stderr
        shown = " ".join(done.stdout.replace("│", " ").split())
        assert f"not scaled other-autoscaler: {sentence} decision" in shown, columns
    server.answers["GET", "/v1/applications/shop/orders"] = (200, item)
    assert "not scaled" not in weir("get", "shop/orders", "--server", server.url).stdout


def test_changes_of_a_policy_are_documents_for_programs(server: _Server) -> None:
    """`-o json` of delete, pause and resume; the policy itself as JSON, a table, or YAML."""
    policy = {
        "metadata": {"namespace": "shop", "name": "orders", "version": 4},
        "spec": {"mode": "paused", "objective": {"maxLag": "30s"}},
    }
    for verb in ("pause", "resume"):
        server.answers["POST", f"/v1/policies/shop/orders/{verb}"] = (200, policy)
        assert json.loads(weir(verb, "shop/orders", "--server", server.url, "-o", "json").stdout) == policy
        assert "mode paused" in weir(verb, "shop/orders", "--server", server.url).stdout
        weir(verb, "shop/orders", "--reason", "migration until 15:00", "--server", server.url)
        assert server.queries[-2:] == ["", "reason=migration+until+15%3A00"]
    server.answers["DELETE", "/v1/policies/shop/orders"] = (204, None)
    deleted = weir("delete", "shop/orders", "--server", server.url, "-o", "json")
    assert json.loads(deleted.stdout) == {"application": "shop/orders", "deleted": True}
    server.answers["GET", "/v1/policies/shop/orders"] = (200, policy)
    server.answers["GET", "/v1/policies"] = (200, {"items": [policy], "next": None})
    one = ("get", "shop/orders", "--policy", "--server", server.url)
    assert json.loads(weir(*one, "-o", "json", "--with-version").stdout) == policy
    assert "maxLag 30s" in weir(*one).stdout
    del policy["metadata"]["version"]
    assert yaml.safe_load(weir(*one, "-o", "yaml").stdout) == policy
    assert json.loads(weir("get", "--policy", "--server", server.url, "-o", "json").stdout) == [policy]


def test_an_invalid_address_is_reported_with_an_example() -> None:
    """Code 2, before any request."""
    done = weir("get", "--server", "localhost:8080")
    assert (done.returncode, done.stdout) == (2, "")
    assert "write http://localhost:8080" in done.stderr
    done = weir("get", "--server", "http://localhost:port")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_version_is_printed() -> None:
    done = weir("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("weir 0.")


def test_explain_leads_with_the_decision_and_keeps_the_numbers_for_verbose(server: _Server) -> None:
    """Time, decision and planner first, the id only on request; an operator's figures in a line; brackets stay."""
    estimate = {"value": 12.5, "basis": "counted [twice]", "confidence": 1.0}
    plan = weir("plan", "--request", str(REQUEST), "-o", "json").stdout
    contenders = json.loads((REQUEST.parents[1] / "plan" / "full.json").read_text())["contenders"]
    cycle = {
        "correlation_id": "8f2a",
        "reading": {
            "observed_at": "2026-01-01T00:00:00Z",
            "status": "degraded",
            "message": "one task is slow",
            "observed": {"enrich": 2},
            "problems": ["kafka: late", "flink: late"],
        },
        "analysis": {
            "arrival_rate": estimate,
            "lag_seconds": estimate,
            "lag_records": {**estimate, "value": 4200.0},
            "bottleneck": "enrich",
            "symptoms": [],
        },
        "plan": {**json.loads(plan), "contenders": contenders},
        "outcomes": [],
    }
    server.answers["GET", "/v1/applications/shop/orders/explain"] = (200, {"items": [cycle]})
    brief = weir("explain", "shop/orders", "--server", server.url)
    assert brief.returncode == 0, brief.stderr
    assert re.search(r"2026-06-14 18:30:00 · scale · overloaded · planner rate", brief.stdout.splitlines()[0])
    for shown in ("degraded (one task is slow), enrich=2", "kafka: late", "flink: late", "backlog 4,200 records"):
        assert shown in brief.stdout
    for shown in (
        "rate: 5 slots, never above the objective, won",
        "steps: 3 slots, above the objective for 34 s, lost: above",
        "mine: lost: planner mine did not reply within 2 s",
        "hpa: 4 slots, above the objective for 10 s, above the",
        "score: 4.2 slots on average, late 86 s (0.4%), restarts 9,",
    ):
        assert shown in brief.stdout
    verbose = weir("explain", "shop/orders", "--verbose", "--server", server.url).stdout
    for shown in (
        "backlog 4,200 records (counted [twice])",
        "arrival_rate_records_per_second 1,190.0",
        "enrich: target_rate 1,190.0, capacity 609.1",
        "8f2a",
    ):
        assert shown in verbose
        assert shown not in brief.stdout


class _Feed(httpx.BaseTransport):
    """A feed that breaks: each connection in turn a text, a status, or a failure to connect."""

    def __init__(self, *connections: str | int | httpx.HTTPError) -> None:
        self.connections = list(connections)
        self.resumed: list[str | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.resumed.append(request.headers.get("last-event-id"))
        found = self.connections.pop(0)
        if isinstance(found, httpx.HTTPError):
            raise found
        if isinstance(found, int):
            return httpx.Response(found, json={"detail": "because of that"})
        return httpx.Response(200, text=found)


def test_a_feed_that_breaks_is_taken_up_where_it_was() -> None:
    """Each break is reported; pauses grow while nothing comes; an error that no retry can fix ends it."""
    feed = _Feed(
        "id: 7-0\nevent: plan\ndata: {}\n\n",
        httpx.ConnectError("refused"),
        503,
        "id: 8-0\nevent: outcome\ndata: {}\n\n",
        401,
    )
    reported: list[str] = []
    pauses: list[float] = []
    events = Client("http://weir", None, feed).follow("shop/orders", reported.append, pauses.append)
    assert [next(events).id, next(events).id] == ["7-0", "8-0"]
    with pytest.raises(Refused, match="because of that"):
        next(events)
    assert feed.resumed == [None, "7-0", "7-0", "7-0", "8-0"]
    assert pauses == [1, 2, 4, 1]
    assert "ended the feed" in reported[0]
    assert "refused" in reported[1]
    assert "503" in reported[2]


@pytest.mark.parametrize(("form", "begins"), [("json", '{"id": "7-0"'), ("yaml", "---\nid: 7-0\n")])
def test_watch_prints_events_and_reports_a_break(server: _Server, form: str, begins: str) -> None:
    """Events on stdout, the break on stderr, so that a program reads only events."""
    server.answers["GET", "/v1/applications/shop/orders"] = (200, {"application": "shop/orders"})

    def follow(_client: Client, _name: str, report: Callable[[str], None]) -> Iterator[Event]:
        yield Event("7-0", "plan", {"a": 1})
        report("the feed ended")
        yield Event("8-0", "outcome", {})

    with mock.patch.object(Client, "follow", follow):
        done = weir("watch", "shop/orders", "--server", server.url, "-o", form)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(begins)
    assert "8-0" in done.stdout
    assert done.stderr == "weir: the feed ended\n"


def test_watch_prints_a_line_a_decision_into_a_pipe(server: _Server) -> None:
    """Plans and outcomes, each with its time, code and sentence, the last plan first; readings decide nothing and print
    nothing."""
    server.answers["GET", "/v1/applications/shop/orders"] = (200, {"application": "shop/orders"})
    last = {"created_at": "2026-06-14T18:29:55Z", "kind": "hold", "code": "warming-up", "sentence": "It starts."}
    explained = {"items": [{"plan": last}, {"plan": None}], "spend_sentence": None}
    server.answers["GET", "/v1/applications/shop/orders/explain"] = (200, explained)
    plan = {"created_at": "2026-06-14T18:30:00.25Z", "kind": "hold", "code": "in-objective", "sentence": "Lag is 3 s."}
    outcome = {"at": "2026-06-14T18:30:09Z", "phase": "verified", "code": "healthy", "sentence": "enrich runs at 6."}
    feed = [Event("7-0", "observation", {}), Event("8-0", "plan", plan), Event("9-0", "outcome", outcome)]
    with mock.patch.object(Client, "follow", lambda *_: iter(feed)):
        done = weir("watch", "shop/orders", "--server", server.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2026-06-14 18:29:55 hold warming-up: It starts.",
        "2026-06-14 18:30:00 hold in-objective: Lag is 3 s.",
        "2026-06-14 18:30:09 verified healthy: enrich runs at 6.",
    ]


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a check let something through, no real part is started for it."""

    def never(*_: Any) -> int:
        raise AssertionError("a trial was about to start")

    monkeypatch.setattr("weir_cli.trial_run._run_in", never)
    monkeypatch.setattr("weir_cli.trial_run._run_folder", never)


@pytest.mark.usefixtures("nothing_starts")
def test_the_trial_refuses_what_cannot_be_before_it_starts(tmp_path: Path) -> None:
    """Each wrong option is one line, code 2, and no run folder."""
    for arguments, expected in (
        (["--mode", "perhaps"], "--mode"),
        (["--duration", "1"], "--duration"),
        (["--peak-rate", "1e9"], "--peak-rate"),
        (["--trace", "no-such-recording"], "no-such-recording"),
        (["--policy", str(tmp_path / "none.yaml")], "--policy"),
        (["--planner", "oracle"], "oracle"),
        (["--external-flink", "jobmanager"], "--external-flink"),
        (["--report", str(tmp_path / "none" / "report.json")], "does not exist"),
        (["--report", str(tmp_path)], "is a folder"),
        (["--report", "/proc/report.json"], "--report"),
    ):
        done = weir("trial", *arguments)
        assert done.returncode == 2, (arguments, done.stdout, done.stderr)
        assert expected in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stdout == ""


@pytest.mark.usefixtures("nothing_starts")
def test_a_setting_that_is_not_a_number_is_reported_before_a_trial_starts() -> None:
    """As an option would be: one line, code 2."""
    done = weir("trial", WEIR_MIN_MEMORY_MB="x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("weir: WEIR_MIN_MEMORY_MB: 'x'")


def test_help_shows_no_type_of_a_flag() -> None:
    """`--policy <bool>` would ask for a value."""
    for command in ("get", "apply", "doctor"):
        assert "<bool>" not in weir(command, "--help").stdout


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("600", 600.0), ("10m", 600.0), ("1 hour", None), ("", None), ("1h30m", 5400.0)],
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, seconds: float | None) -> None:
    """As the trial and the replay take it; anything else is one line."""
    parse = parse_seconds("--duration")
    if seconds is None:
        with pytest.raises(InvalidInput, match="--duration: must be a duration with a unit"):
            parse(text)
    else:
        assert parse(text) == seconds


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        *((("--for", text), "--for: must be a number of seconds from 0 on") for text in ("-3", "-0.5", "nan", "inf")),
        (("--data", "", "--for", "1"), "--data: is empty"),
        (("--write", "", "--for", "1"), "--write: is empty"),
    ],
)
def test_a_run_without_end_or_place_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    """A negative time ended at once, without a word. An empty folder, as of an unset variable, was the current one."""
    done = weir("run", *arguments)
    assert (done.returncode, done.stderr) == (2, f"weir: {sentence}\n")


def test_an_application_without_a_namespace_is_in_default() -> None:
    """And nonsense is refused."""
    assert application_id("orders") == "default/orders"
    assert application_id("shop/orders") == "shop/orders"
    with pytest.raises(InvalidInput):
        application_id("a/b/c")


def test_a_command_that_only_speaks_http_starts_without_the_loop() -> None:
    """Contracts, planners and the simulator are a second of imports."""
    code = "import sys, weir_cli.__main__; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    heavy = {
        "weir_contracts",
        "numpy",
        "weir_replay.simulator",
        "weir_knowledge",
        "testbed",
        "fastapi",
        "confluent_kafka",
    }
    assert not heavy & set(loaded.stdout.split())
