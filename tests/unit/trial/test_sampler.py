"""The event feed of a trial is followed without a gap, and only what a report needs is kept."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from testbed.process import wait_until
from testbed.trial.sampler import UNREPORTED_FIELDS, EventFollower, decisions_of
from weir_runtime.http_client import Event

FEEDS = [
    b'id: 1\nevent: observation\ndata: {"big": 1}\n\nid: 2\nevent: plan\ndata: {"id": "a", "state": {"big": 1}}\n\n',
    None,
    b'id: 3\nevent: analysis\ndata: {}\n\nid: 4\nevent: outcome\ndata: {"id": "b"}\n\n',
]
"""What the server says to each connection in turn; None: that it is not ready."""


class _Feed(BaseHTTPRequestHandler):
    resumed: list[str | None]

    def do_GET(self) -> None:
        cycle = len(self.resumed)
        self.resumed.append(self.headers.get("last-event-id"))
        text = FEEDS[cycle] if cycle < len(FEEDS) else b""
        self.send_response(503 if text is None else 200)
        self.end_headers()
        self.wfile.write(text or b"")

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def feed() -> Iterator[str]:
    _Feed.resumed = []
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Feed)
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_address[1]}/v1/events"
    made.shutdown()
    made.server_close()


def test_only_what_the_report_needs_is_kept_across_breaks(feed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kinds and the large fields are let go of; after a break it goes on behind the last event of any kind."""
    monkeypatch.setattr("testbed.trial.sampler.BREAK_SECONDS", 0.01)
    follower = EventFollower(feed, kinds={"plan", "outcome"}, without={"state"})
    follower.start()
    try:
        wait_until(lambda: len(follower.events()) == 2, timeout_seconds=5, what="both events")
    finally:
        follower.stop()
    assert [(e.id, e.kind, e.data) for e in follower.events()] == [
        ("2", "plan", {"id": "a"}),
        ("4", "outcome", {"id": "b"}),
    ]
    assert _Feed.resumed[:3] == ["0", "2", "2"]


def test_a_slim_plan_makes_the_same_decision() -> None:
    """Dropped fields are no part of a report."""
    examples = Path(__file__).resolve().parents[3] / "contracts" / "examples" / "v1alpha1" / "plan"
    whole = json.loads((examples / "full.json").read_text())
    slim = {name: value for name, value in whole.items() if name not in UNREPORTED_FIELDS}
    assert len(slim) < len(whole)
    assert decisions_of([Event("1", "plan", slim)], 0.0) == decisions_of([Event("1", "plan", whole)], 0.0)
