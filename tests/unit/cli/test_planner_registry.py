"""`weir planner register|list|check|remove`: requests to the planner service, and output."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.unit.cli.test_command import _Server as Server
from tests.unit.cli.test_command import server, weir
from tests.unit.planner.plugin import Received, good
from weir_sdk.testing.conformance import CHECKS

__all__ = ["server"]
VIEW = {
    "name": "mine",
    "kind": "http",
    "description": "one more each",
    "scope": "operator",
    "version": 7,
    "url": "http://127.0.0.1:8097",
    "breaker": {
        "state": "open",
        "failures_in_a_row": 5,
        "asked_again_in_seconds": 8.0,
        "last_failure": "answered 503: ill",
    },
}
PASSED = {"ok": True, "sentence": "scale (more): one more each"}
FAILED = {"ok": False, "sentence": "answered 500: KeyError"}


@pytest.fixture(scope="module")
def planner_url() -> Iterator[str]:
    """A planner that keeps the contract, on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            reported = good(Received(self.command, self.path, {}, body))
            assert isinstance(reported, bytes)
            self.wfile.write(reported)
            self.close_connection = True

        do_GET = do_POST = _answer  # noqa: N815 - the handler's own names

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    http.server_close()
    thread.join(5)


def test_a_planner_is_registered(server: Server) -> None:
    """The request has the options; the output has the reply to the trial request."""
    server.answers["POST", "/v1/planners"] = (201, {"planner": VIEW, "trial": PASSED})
    done = weir(
        *("planner", "register", "mine", "http://127.0.0.1:8097/", "--credential", "for-mine"), "--server", server.url
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "mine registered (version 7)",
        "its reply to a trial request: scale (more): one more each",
    ]
    assert server.requests[-1][3] == {
        "name": "mine",
        "url": "http://127.0.0.1:8097",
        "credential": "for-mine",
    }
    reported = weir("planner", "register", "mine", "http://127.0.0.1:8097", "--json", "--server", server.url)
    assert json.loads(reported.stdout)["planner"]["name"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["mine"], "Missing argument"),
        (
            ["Mine", "http://a.example.org"],
            "name: must consist of lower-case letters, digits, dashes and dots, at most 63",
        ),
        (["mine", "a.example.org"], "url"),
        (["mine", "http://user:word@a.example.org"], "must not carry credentials"),
    ],
)
def test_an_invalid_planner_is_refused_without_a_request(server: Server, arguments: list[str], expected: str) -> None:
    """The reason, and code 2."""
    done = weir("planner", "register", *arguments, "--server", server.url)
    assert done.returncode == 2
    assert expected in done.stderr
    assert server.requests == []


def test_a_refusal_names_the_reason(server: Server) -> None:
    """With the server's own text; and a name that is taken is code 4."""
    detail = "mine failed its trial request: answered 500: KeyError"
    server.answers["POST", "/v1/planners"] = (422, {"detail": detail})
    done = weir("planner", "register", "mine", "http://127.0.0.1:1", "--server", server.url)
    assert (done.returncode, done.stderr) == (2, f"weir: {detail}\n")
    server.answers["POST", "/v1/planners"] = (409, {"detail": "mine is registered already"})
    assert weir("planner", "register", "mine", "http://127.0.0.1:1", "--server", server.url).returncode == 4


def test_planners_are_listed_with_their_circuits(server: Server) -> None:
    """Built-in ones have none; brackets in a description are shown as they are."""
    built_in = {"name": "rate", "kind": "built-in", "description": "compares", "parameters": {}, "breaker": None}
    server.answers["GET", "/v1/planners"] = (200, {"planners": [built_in, VIEW | {"description": "[/b] [red]"}]})
    done = weir("planner", "list", "--server", server.url)
    assert [part in done.stdout for part in ("rate", "built-in", "open", "answered 503: ill", "[/b] [red]")] == [
        True
    ] * 5
    assert json.loads(weir("planner", "list", "--json", "--server", server.url).stdout)[1]["name"] == "mine"


def test_an_installed_planner_that_cannot_be_used_is_listed_with_the_reason(server: Server) -> None:
    """The package is named, which is what has to be mended."""
    broken = {"name": "theirs", "kind": "installed", "package": "their-package", "problem": "ImportError: no [x]"}
    server.answers["GET", "/v1/planners"] = (200, {"planners": [broken]})
    done = weir("planner", "list", "--server", server.url)
    assert "theirs of package their-package cannot be used: ImportError: no [x]" in " ".join(done.stdout.split())


def test_a_registered_planner_is_tried_again_and_removed_by_name(server: Server) -> None:
    """The check ends with 1 if the planner gives no valid reply."""
    server.answers["POST", "/v1/planners/mine/check"] = (200, PASSED)
    done = weir("planner", "check", "mine", "--server", server.url)
    assert (done.returncode, done.stdout) == (0, "mine: scale (more): one more each\n")
    server.answers["POST", "/v1/planners/mine/check"] = (200, FAILED)
    done = weir("planner", "check", "mine", "--server", server.url)
    assert (done.returncode, done.stderr) == (1, "weir: mine failed its trial request\n")
    assert done.stdout == "mine: answered 500: KeyError\n"
    server.answers["DELETE", "/v1/planners/mine"] = (204, None)
    assert weir("planner", "remove", "mine", "--server", server.url).returncode == 0
    assert weir("planner", "remove", "theirs", "--server", server.url).returncode == 3


def test_any_address_can_be_checked_from_here(planner_url: str) -> None:
    """Without any service; every check is listed."""
    done = weir("planner", "check", planner_url, "--json")
    assert done.returncode == 0, done.stdout
    reported = json.loads(done.stdout)
    assert reported["ok"]
    assert {each["check"] for each in reported["checks"]} == set(CHECKS)
    away = weir("planner", "check", "http://127.0.0.1:1")
    assert away.returncode == 1
    assert "could not be called" in away.stdout
