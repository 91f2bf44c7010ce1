"""`weir what-if`: the request to the server, and the output of its answer."""

import json
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml
from rich.console import Console

from tests.unit.cli.knowledge import Server
from tests.unit.cli.test_command import PROJECT, weir
from weir_cli.client import InvalidInput
from weir_cli.what_if import what_if_panel
from weir_predictor import InvalidQuestion, parse_load

EXAMPLE = PROJECT / "contracts" / "examples" / "v1alpha1" / "what-if" / "full.json"
ANSWER: dict[str, Any] = json.loads(EXAMPLE.read_text())


def run(server: Server, *arguments: str) -> Any:
    with mock.patch("weir_cli.what_if.connect", server.client):
        return weir("what-if", "shop/orders", *arguments)


def drawn(answer: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=140)
    console.print(what_if_panel(answer, datetime(2026, 6, 14, 18, 30, 5, tzinfo=UTC)))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_request_is_sent_unchanged() -> None:
    """Every operator by itself, with whatever its name holds."""
    server = Server(ANSWER)
    done = run(server, "--parallelism", "enrich=6", "-p", "Window(a=1, b) & c=2", "--load", "x2", "--horizon", "5m")
    assert done.returncode == 0, done.stderr
    address = urlsplit(str(server.requests[0].url))
    assert address.path == "/v1/applications/shop/orders/what-if"
    assert parse_qsl(address.query) == [
        ("parallelism", "enrich=6"),
        ("parallelism", "Window(a=1, b) & c=2"),
        ("load", "x2"),
        ("horizon", "5m"),
        ("at", "now"),
    ]
    server = Server(ANSWER)
    run(server, "--load", "forecast", "--at", "in 30m")
    query = dict(parse_qsl(urlsplit(str(server.requests[0].url)).query))
    assert (query["load"], query["at"]) == ("forecast", "in 30m")


def test_people_get_operators_a_curve_and_a_sentence() -> None:
    """The change, what arrives, capacity and utilization; then where it breaks and what to bear in mind."""
    text = drawn(ANSWER)
    row = next(line for line in text.splitlines() if line.startswith("enrich"))
    assert row.split() == ["enrich", "2", "→", "6", "2,380", "2,380", "2,790", "85%", "6", "2"]
    assert "readings of 2026-06-14 18:30:00 UTC, 5 s ago" in text
    assert "lag, s" in text and "600 s" in text
    assert any(0x2800 < ord(character) <= 0x28FF for character in text)
    assert "It breaks beyond x2.35 (2,790 records/s), where enrich is full." in " ".join(text.split())
    assert "note: enrich was measured at 2 only" in text
    edge = next(line for line in text.splitlines() if line.startswith("forecast's upper edge"))
    assert edge.split()[3:6] == ["1,940", "yes", "0"]
    assert "why: Source: orders: 2,380 records/s at the highest, 8m from now, by its daily profile" in text


def test_what_is_unknown_is_shown_as_unknown() -> None:
    """No curve, no figure that looks like one, and the reason."""
    gap = {"operator": "enrich", "what": "capacity", "because": "no reading yet"}
    row = {**ANSWER["operators"][1], "capacity": None, "utilization": None, "seen_at": []}
    text = drawn(
        {**ANSWER, "prediction": None, "throughput": None, "keeps_up": None, "unknown": [gap], "operators": [row]}
    )
    assert "unknown: the capacity of enrich: no reading yet" in text
    assert "lag, s" not in text
    assert "taken in at most 2,380 records/s" in text


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_the_document(form: str, read: Any) -> None:
    """All of it, and nothing else."""
    assert read(run(Server(ANSWER), "-o", form).stdout) == ANSWER


def test_the_figure_is_written(tmp_path: Path) -> None:
    """The curves of the terminal as SVG; another kind of file is refused before any request."""
    assert run(Server(ANSWER), "--plot", str(tmp_path / "lag.svg")).returncode == 0
    assert "enrich" in (tmp_path / "lag.svg").read_text()
    server = Server(ANSWER)
    done = run(server, "--plot", str(tmp_path / "lag.png"))
    assert (done.returncode, server.requests) == (2, [])


def test_a_place_that_cannot_be_written_is_found_before_any_request(tmp_path: Path) -> None:
    """A missing folder; and if the write fails nevertheless, the answer was printed before."""
    server = Server(ANSWER)
    done = run(server, "--plot", "/nonexist/a.svg")
    assert (done.returncode, server.requests, done.stdout) == (2, [], "")
    assert done.stderr == "weir: --plot: /nonexist/a.svg: there is no folder /nonexist\n"
    with mock.patch("weir_cli.what_if.save", side_effect=InvalidInput("--plot: the disk is full")):
        done = run(Server(ANSWER), "--plot", str(tmp_path / "a.svg"))
    assert (done.returncode, done.stderr) == (2, "weir: --plot: the disk is full\n")
    assert "It breaks beyond" in done.stdout


@pytest.mark.parametrize("text", ["２/s", "x２", "1.２/s", "x1.２", "١٢/s"])
def test_a_load_is_written_in_digits_from_0_to_9(text: str) -> None:
    """As parallelism is; other scripts' digits would be read as numbers."""
    with pytest.raises(InvalidQuestion, match="is no load"):
        parse_load(text)


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, 3), (409, 1), (422, 2), (503, 5), (403, 6)],
)
def test_what_went_wrong_is_one_line_and_a_code(status: int, code: int) -> None:
    """409 is not "changed by another user" here: data is still missing."""
    done = run(Server({"detail": "the reason"}, status), "--load", "x2")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("weir: the reason")
