"""A container's health check: ready, or one line that names the problem."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from weir_runtime import probe

NOT_READY = {
    "ready": False,
    "dependencies": {"kafka": {"ok": True, "reason": "ok"}, "redis": {"ok": False, "reason": "refused"}},
}


class _Service(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        body = json.dumps(NOT_READY).encode()
        self.send_response(self.status if self.path == "/health/ready" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not into the tests' output."""


@pytest.fixture
def port() -> Iterator[int]:
    """A service that answers with the class's status."""
    with HTTPServer(("127.0.0.1", 0), _Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "reported"), [(200, "ready\n"), (503, "redis: refused\n"), (404, "redis: refused\n")]
)
def test_it_reports_readiness(
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    reported: str,
) -> None:
    """The service is found by its own settings; listening everywhere includes loopback."""
    monkeypatch.setattr(_Service, "status", status)
    monkeypatch.setenv("WEIR_HTTP_HOST", "0.0.0.0")
    monkeypatch.setenv("WEIR_HTTP_PORT", str(port))
    assert probe.main() == (0 if status == 200 else 1)
    assert capsys.readouterr().out == reported


def test_no_listener() -> None:
    """A service that does not listen is a complaint like any other."""
    assert probe.ask("127.0.0.1", 9).startswith("no answer on port 9")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"dependencies": {"kafka": 1}}', b"<html>"])
def test_an_answer_that_is_none_of_ours(body: bytes) -> None:
    """Another program listens on the port: only its status is reported."""
    assert probe.complaint(502, body) == "answers 502"


def test_what_is_there_may_have_a_warning(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`weir doctor --kubernetes` asks for it: a dependency that answers and should be mended."""
    few = {"ok": True, "reason": "weir.plans has 1 replica, not 3"}
    monkeypatch.setitem(NOT_READY["dependencies"], "topics", few)  # type: ignore[arg-type]
    assert probe.ask("127.0.0.1", port, read=probe.warnings) == "topics: weir.plans has 1 replica, not 3"
    assert probe.warnings(404, b"{}") == ""
