"""`weir planner compare`: the request to the server, and the output of the scores."""

import json
from io import StringIO
from typing import Any
from unittest import mock

from rich.console import Console

from cli.planner_compare import scores_panel
from tests.unit.cli.knowledge import Server
from tests.unit.cli.test_command import PROJECT, weir

EXAMPLE = PROJECT / "contracts" / "examples" / "v1alpha1" / "scores" / "full.json"
FOUND: dict[str, Any] = json.loads(EXAMPLE.read_text())


def run(server: Server, *arguments: str) -> Any:
    with mock.patch("cli.planner_compare.connect", server.client):
        return weir("planner", "compare", "shop/orders", *arguments)


def drawn(found: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=180)
    console.print(scores_panel(found))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_for_programs() -> None:
    """The service's document for the requested time."""
    server = Server(FOUND)
    done = run(server, "--since", "2h", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == FOUND
    assert str(server.requests[0].url).endswith("/v1/applications/shop/orders/scores?since=2h")


def test_for_users() -> None:
    """A line for each planner, the sentence, and the confidence."""
    text = drawn(FOUND)
    assert FOUND["sentence"] in text
    assert "careful (rate)" in text
    assert "the real application" in text
    assert "86 s (0.10%)" in text
    assert "confidence 94%" in text


def test_unknown_is_no_number() -> None:
    """No scores and no comparison yet: dashes, and the reason why the confidence is unknown."""
    row = {**FOUND["planners"][0], "under_provisioning": None, "violation_share": None, "current": False}
    text = drawn({**FOUND, "confidence": None, "cheaper": None, "planners": [row]})
    assert "–" in text
    assert "former" in text
    assert "confidence unknown" in text


def test_no_scores_yet() -> None:
    """The server's sentence, and the exit code for a missing resource."""
    done = run(Server({"detail": "shop/orders has no scores of this time: its policy lists no shadows"}, 404))
    assert done.returncode == 3
    assert "lists no shadows" in done.stderr
