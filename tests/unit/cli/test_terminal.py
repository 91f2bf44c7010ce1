"""What reaches the user's terminal: tables of any width, texts from outside, other encodings, and outputs that break."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.cells import cell_len

from tests.unit.cli.pseudo_terminal import on_terminal
from tests.unit.cli.test_command import PROJECT, _Server, server, weir
from tests.unit.replay.test_recorded import recorded

__all__ = ["server"]
EXAMPLES = PROJECT / "contracts" / "examples" / "v1alpha1"
_THOROUGH = pytest.mark.thorough
WIDTHS = (60, pytest.param(80, marks=_THOROUGH), 120, pytest.param(200, marks=_THOROUGH))
SENTENCE = (
    "Hold: p99 lag is 31.5 s, objective 30 s; the executor waits for the checkpoint that began 14 s ago, "
    "because a rescale would process 41,200 records again."
)
ITEM = {
    "application": "shop/orders-enrichment",
    "mode": "advise",
    "status": "degraded",
    "lag_seconds": 1231.5,
    "objective_seconds": 30.0,
    "arrival_rate": 1190.0,
    "observed": {"enrich": 5},
    "decision": SENTENCE,
    "silent": [],
}
HOSTILE = "enrich\x1b]0;owned\x07\x1b[2J\u202egnp.exe"
"""Sets the terminal's title, clears it, and turns the direction of writing."""


@pytest.fixture
def fleet(server: _Server) -> str:
    """A knowledge and planner service with a document for each table; returns its address."""
    policy = {
        "metadata": {
            "namespace": "shop",
            "name": "orders-enrichment",
            "version": 1_781_461_815_300,
            "updatedBy": "operator",
            "updatedAt": "2026-06-14T18:30:00.250Z",
        },
        "spec": {"mode": "advise", "objective": {"maxLag": "30s"}, "planner": {"name": "rate"}},
    }
    planner = {
        "name": "cautious-by-night",
        "kind": "http",
        "scope": "operator",
        "url": "http://planner.team-a.svc.cluster.local:8097/v1/plan",
        "description": SENTENCE,
        "breaker": {"state": "half-open"},
    }
    judged = json.loads((EXAMPLES / "judgement" / "full.json").read_text())
    for method, path, document in (
        ("GET", "/v1/applications", {"items": [ITEM, {**ITEM, "application": "a/b"}], "next": None}),
        ("GET", "/v1/policies", {"items": [policy], "next": None}),
        ("GET", "/v1/policies/shop/orders", policy),
        ("GET", "/v1/planners", {"planners": [planner]}),
        ("GET", "/v1/applications/shop/orders/what-if", json.loads((EXAMPLES / "what-if" / "full.json").read_text())),
        ("GET", "/v1/applications/shop/orders/analysis", {}),
        ("GET", "/v1/applications/shop/orders/outcome", None),
        ("GET", "/v1/applications/shop/orders/explain", {"items": []}),
        ("POST", "/v1/judge", judged),
    ):
        server.answers[method, path] = (200 if document is not None else 404, document or {})
    return server.url


TABLES = {
    "get": (("get",), ("shop/orders-enrichment", "advise", "degraded", "1,231.5 s", "30 s")),
    "wide": (("get", "-o", "wide"), ("shop/orders-enrichment", "1,190/s", "enrich=5", SENTENCE)),
    "policies": (("get", "policies"), ("shop/orders-enrichment", "advise", "maxLag 30s", "rate")),
    "all policies": (
        ("get", "policies", "-o", "wide"),
        ("shop/orders-enrichment", "operator", "2026-06-14 18:30:00", "1781461815300"),
    ),
    "policy": (("get", "shop/orders", "--policy"), ("shop/orders-enrichment", "advise", "maxLag 30s", "rate")),
    "planners": (("planner", "list"), ("cautious-by-night", "http", "operator", "half-open")),
    "what-if": (("what-if", "shop/orders"), ("enrich", "2 → 6", "2,380", "2,790", "85%")),
    "judge": (("judge", "shop/orders"), ("forecast's upper edge",)),
}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("table", TABLES)
def test_a_table_keeps_what_identifies_and_counts(fleet: str, table: str, columns: int) -> None:
    """Names, modes, states and numbers are whole and in one line at any width; what is too long is the sentence."""
    arguments, kept = TABLES[table]
    address = ("--planner-server", fleet, "--server", fleet) if table == "judge" else ("--server", fleet)
    shown = on_terminal(columns, *arguments, *address)
    assert shown.code == 0, shown.raw
    rows = [line for line in shown.lines if all(each in line for each in kept)]
    assert rows, "\n".join(shown.lines)


@pytest.mark.parametrize("columns", (80, 120))
def test_a_list_fits_the_terminal_with_a_line_for_each_application(fleet: str, columns: int) -> None:
    """Of a usual terminal; the sentence takes the room that is left, and is cut where it ends."""
    shown = on_terminal(columns, "get", "--server", fleet)
    assert len(shown.lines) == 3
    assert max(map(len, shown.lines)) <= columns
    assert "Hold: p99" in shown.lines[1]
    assert shown.lines[1].endswith("…")


@pytest.mark.parametrize("table", ["get", "policies", "what-if"])
def test_a_table_fits_a_terminal_of_80_columns(fleet: str, table: str) -> None:
    """Columns that matter less make room."""
    arguments, kept = TABLES[table]
    lines = on_terminal(80, *arguments, "--server", fleet).lines
    rows = [line for line in lines if all(each in line for each in kept)]
    assert max(map(len, rows)) <= 80


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_panel_wraps_names_and_keeps_numbers(server: _Server, columns: int) -> None:
    """An operator of Flink SQL has a name of hundreds of characters: all of it is shown, and each parallelism."""
    name = "".join(f"Join[{i}](joinType=[InnerJoin],where=[(id={i})])->" for i in range(8))
    item = {**ITEM, "planned": {name: 12345}, "requested": {name: 23456}, "observed": {name: 34567}}
    server.answers["GET", "/v1/applications/a/b"] = (200, item)
    shown = on_terminal(columns, "get", "a/b", "--server", server.url)
    assert shown.code == 0, shown.raw
    assert max(map(len, shown.lines)) <= columns
    first = next(i for i, line in enumerate(shown.lines) if "Join[0]" in line)
    text = "".join(line.strip("│ ").split(" ")[0] for line in shown.lines[first:])
    assert text.startswith(name)
    assert any(all(each in line for each in ("12,345", "23,456", "34,567")) for line in shown.lines)


@pytest.mark.parametrize("columns", WIDTHS)
def test_differences_of_a_replay_keep_their_time_and_decisions(columns: int, tmp_path: Path) -> None:
    """Each difference begins with its time; decisions are wrapped at words and lose none."""
    file = tmp_path / "history.jsonl"
    lines = [json.dumps({"id": e.id, "kind": e.kind, "data": e.data}) for e in recorded()]
    file.write_text("\n".join(lines))
    shown = on_terminal(columns, "replay", "--file", str(file), "--planner", "ds2")
    assert shown.code == 0, shown.raw
    header = next(i for i, line in enumerate(shown.lines) if line.startswith("TIME (UTC)"))
    assert shown.lines[header].split("  ")[0] == "TIME (UTC)"
    assert shown.lines[header + 1].startswith("2026-01-05 00:")
    assert "RECORDED" in shown.lines[header]
    assert "PRESENT" in shown.lines[header]
    assert "…" not in "".join(shown.lines[header + 1 :])


def test_a_table_of_a_pipe_is_whole(fleet: str) -> None:
    """A program that reads lines gets each cell, also those that a narrow terminal leaves out."""
    assert SENTENCE in weir("get", "--server", fleet, COLUMNS="40").stdout.splitlines()[1]
    policies = weir("get", "policies", "--server", fleet, COLUMNS="40").stdout.splitlines()
    assert len(policies) == 2
    assert "1781461815300" in policies[1]


@pytest.mark.parametrize(
    "arguments", [("get",), ("get", "a/b"), ("explain", "a/b"), ("pause", "a/b"), ("planner", "list")]
)
def test_texts_from_outside_do_not_control_the_terminal(server: _Server, arguments: tuple[str, ...]) -> None:
    """Names of operators, sentences and errors from elsewhere: title, clear screen and direction arrive as text."""
    item = {**ITEM, "application": HOSTILE, "decision": HOSTILE, "problems": [HOSTILE], "observed": {HOSTILE: 1}}
    reading = {
        "observed_at": "2026-01-01T00:00:00Z",
        "status": HOSTILE,
        "observed": {HOSTILE: 2},
        "problems": [HOSTILE],
    }
    plan = {"kind": HOSTILE, "code": HOSTILE, "sentence": HOSTILE, "planner": HOSTILE}
    cycle = {"correlation_id": HOSTILE, "reading": reading, "plan": plan}
    server.answers |= {
        ("GET", "/v1/applications"): (200, {"items": [item], "next": None}),
        ("GET", "/v1/applications/a/b"): (200, item),
        ("GET", "/v1/applications/a/b/explain"): (200, {"items": [cycle], "spend_sentence": HOSTILE}),
        ("POST", "/v1/policies/a/b/pause"): (409, {"detail": HOSTILE}),
        ("GET", "/v1/planners"): (200, {"planners": [{"name": HOSTILE, "kind": HOSTILE, "description": HOSTILE}]}),
    }
    for columns in (40, 200):
        shown = on_terminal(columns, *arguments, "--server", server.url)
        assert "\x1b]" not in shown.raw
        assert "\x1b[2J" not in shown.raw
        assert not {"\x07", "\u202e"} & set(shown.raw)
        assert "x1b]0" in shown.raw
    yaml_text = weir("get", "--server", server.url, "-o", "yaml").stdout
    assert "\u202e" not in yaml_text
    assert "\x1b" not in yaml_text
    if arguments == ("get",):
        assert yaml.safe_load(yaml_text)[0]["decision"] == HOSTILE


def _run(*arguments: str, to: Any = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "weir_cli", *arguments],
        stdout=to,
        stderr=subprocess.PIPE,
        check=False,
        cwd=PROJECT,
        env={"PATH": os.environ["PATH"], **environment},
        timeout=60,
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        pytest.param({"PYTHONIOENCODING": "latin-1"}, marks=_THOROUGH),
        pytest.param({"PYTHONIOENCODING": "cp1252"}, marks=_THOROUGH),
        pytest.param({"LC_ALL": "POSIX"}, marks=_THOROUGH),
        pytest.param({"LANG": "C"}, marks=_THOROUGH),
    ],
    ids=lambda each: "=".join(*each.items()),
)
def test_characters_that_the_encoding_lacks_are_replaced(server: _Server, environment: dict[str, str]) -> None:
    """An arrow and a box have a spelling; columns stay straight. Documents stay what they are."""
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    item = {**ITEM, "decision": "enrich 2 → 5: 日本 has 2× the load"}
    server.answers["GET", "/v1/applications/a/b"] = (200, item)
    command = ("get", "a/b", "--server", server.url)
    panel = _run(*command, **environment)
    assert (panel.returncode, panel.stderr) == (0, b"")
    text = panel.stdout.decode(encoding)
    assert ("enrich 2 -> 5: ?? has 2" in text) == (encoding != "utf-8")
    assert len({cell_len(line) for line in text.splitlines()}) == 1
    document = _run(*command, "-o", "yaml", **environment)
    assert (document.returncode, document.stderr) == (0, b"")
    assert yaml.safe_load(document.stdout.decode(encoding)) == item


def test_a_full_disk_is_one_line(fleet: str) -> None:
    """Exit code 1 with the system's reason, and no traceback when Python ends."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = _run("get", "-o", "json", "--server", fleet, to=full)
    assert done.returncode == 1
    assert done.stderr.decode() == "weir: standard output cannot be written: No space left on device\n"


def test_a_closed_pipe_is_quiet(fleet: str) -> None:
    """As with `| head -1`: the reader has enough, and nothing is printed about it."""
    reader, writer = os.pipe()
    os.close(reader)
    done = _run("get", "--server", fleet, to=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_long_replay_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal's standard error, written over and removed at the end; none of it into a pipe."""
    monkeypatch.setattr("weir_cli.terminal.FIRST_PROGRESS_SECONDS", 0.0)
    replayed = ("replay", "--trace", "step", "--duration", "5m")
    shown = on_terminal(120, *replayed)
    assert shown.code == 0, shown.raw
    assert "replaying step: 0.0 of 0.1 h" in shown.raw
    last = shown.raw.rindex("replaying step")
    assert "\r\x1b[K" in shown.raw[last:]
    assert "replaying" not in weir(*replayed).stderr
