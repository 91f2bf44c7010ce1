"""`weir replay --recorded`: where the history comes from, and how differences are printed."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from tests.unit.cli.test_command import Done, weir
from tests.unit.replay.test_recorded import APP, SECONDS, recorded, second_half
from weir_cli.client import Client
from weir_runtime.clock import FakeClock
from weir_runtime.http_client import Event

BEGAN = datetime(2026, 1, 5, tzinfo=UTC)
"""Of simulated time."""
NOW = BEGAN + timedelta(minutes=10)


class Knowledge:
    """The knowledge service with the stored events of one application."""

    def __init__(
        self, events: tuple[Event, ...], outcomes: list[Any] | None = None, *, breaks: bool = False, after: str = "0"
    ) -> None:
        self.requests: list[httpx.Request] = []
        self._after = after
        self._events, self._outcomes, self._breaks = events, outcomes or [], breaks

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path.removeprefix(f"/v1/applications/{APP}/")
        if path == "explain":
            return httpx.Response(200, json={"items": [{"outcomes": self._outcomes}]})
        if path == "events":
            assert (request.url.query, request.headers["last-event-id"]) == (b"follow=false", self._after)
            return httpx.Response(200, text=": weir\n\n" + "".join(self._lines()))
        return httpx.Response(404, json={"detail": f"no {request.url.path}"})

    def _lines(self) -> list[str]:
        lines = []
        for event in self._events:
            at = event.data.get("created_at") or event.data.get("observed_at") or event.data["at"]
            milliseconds = int(datetime.fromisoformat(at).timestamp() * 1000)
            lines.append(f"id: {milliseconds}-0\nevent: {event.kind}\ndata: {json.dumps(event.data)}\n\n")
        return lines if self._breaks else [*lines, "id: 1-0\nevent: end\ndata: {}\n\n"]

    def client(self, *_: Any) -> Client:
        return Client("http://knowledge", None, httpx.MockTransport(self))


def run(knowledge: Knowledge, *arguments: str) -> Done:
    with (
        mock.patch("weir_cli.replay.connect", knowledge.client),
        mock.patch("weir_cli.replay.SystemClock", lambda: FakeClock(NOW)),
    ):
        return weir("replay", "--recorded", APP, *arguments)


def test_the_servers_history_is_the_same_today() -> None:
    """Recorded from its beginning, less than asked: both are said, and that nothing differs."""
    done = run(Knowledge(recorded()), "--since", "24h")
    assert done.returncode == 0, done.stderr
    assert "history is stored from 2026-01-05 00:00:05 on, later than asked (2026-01-04 00:10:00)" in done.stdout
    assert f"{SECONDS // 5} made again from the observations, all the same" in done.stdout
    assert (
        f"{SECONDS // 5} decisions from 2026-01-05 00:00:05 to 2026-01-05 00:0{SECONDS // 60}:00: 0 differences"
        in done.stdout
    )


def test_outcomes_from_before_the_stored_history_are_asked_for() -> None:
    """The feed is shorter than what explains the last decisions."""
    events = recorded()
    outcomes = [event.data for event in events if event.kind == "outcome"]
    done = run(Knowledge(second_half(events), outcomes))
    assert done.returncode == 0, done.stderr
    assert "analyses: as recorded" in done.stdout
    assert "0 differences" in done.stdout


def test_differences_of_another_planner_are_lines() -> None:
    """Time, both decisions, and the first guard or number; the same for programs."""
    done = run(Knowledge(recorded()), "--planner", "hpa")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "00:00:45" in line and "→" in line)
    assert line.startswith("2026-01-05 00:00:45  enrich 2 → 4 (overloaded)")
    assert "hold (within-tolerance)" in line and "proposed: " in line
    document = json.loads(run(Knowledge(recorded()), "--planner", "hpa", "-o", "json").stdout)
    assert document["asked_from"] == "2026-01-04T00:10:00+00:00"
    first = document["differences"][0]
    assert (first["recorded"], first["present"]) == ("enrich 2 → 4 (overloaded)", "hold (within-tolerance)")


def test_a_history_travels_in_a_file(tmp_path: Path) -> None:
    """Exported once, replayed without a server: the lines are those of `weir watch -o json`."""
    file = tmp_path / "orders.jsonl"
    assert run(Knowledge(recorded()), "--export", str(file)).returncode == 0
    assert len(file.read_text().splitlines()) == len(recorded())
    done = weir("replay", "--file", str(file))
    assert done.returncode == 0, done.stderr
    assert "0 differences" in done.stdout
    other = weir("replay", "--file", str(file), "--recorded", "shop/other")
    assert "shop/other: no message is stored" in other.stdout


def test_a_feed_that_breaks_is_no_history() -> None:
    """It ends before its newest event: an error, not a shorter history."""
    done = run(Knowledge(recorded(), breaks=True))
    assert (done.returncode, done.stdout) == (5, "")
    assert "ended the feed before its newest event" in done.stderr


def test_changed_parameters_come_from_a_policy(tmp_path: Path) -> None:
    """Its planner, bounds and objective; the application stays the recorded one."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: weir.dev/v1alpha1\nkind: ScalingPolicy\nmetadata: {namespace: shop, name: orders}\n"
        "spec: {application: {flink: {url: 'http://jobmanager:8081', job: orders}}, objective: {maxLag: 30s}, bounds: {max: 3}}\n"
    )
    done = run(Knowledge(recorded()), "--policy", str(policy))
    assert done.returncode == 0, done.stderr
    assert "enrich 2 → 3 (overloaded)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "name either --trace, or --recorded"),
        (("--trace", "step", "--recorded", APP), "name either --trace, or --recorded"),
        (("--recorded", APP, "--since", "10s"), "--since: 10s does not lie between 1m and 31d"),
        (("--recorded", APP, "--planner", "none"), "--planner: there is no planner 'none'"),
        (("--recorded", APP, "--policy", "/nonexist"), "--policy: /nonexist"),
        (("--file", "/nonexist"), "--file: /nonexist: No such file"),
        (("--file", "{file}"), "--file: {file}: line 2 is no event"),
        (("--file", "{file}", "--since", "1h"), "--since: a file is replayed as a whole"),
        (("--file", "{file}", "--speedup", "2"), "--speedup: is for --trace only"),
        (("--recorded", APP, "--plot", "a.svg"), "--plot: is for --trace only"),
        (("--file", "{event}"), "the first event names no application"),
        (("--file", "{invalid}"), "a/b: plan: "),
    ],
)
def test_what_cannot_be_replayed_is_one_line(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    """Exit code 2, with the option or the line."""
    contents = {
        "file": '{"kind": "else", "data": {"application": "a/b"}}\n[1]\n',
        "event": '{"kind": "plan", "data": []}\n',
        "invalid": '{"kind": "plan", "data": {"application": "a/b", "id": 1}}\n',
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    places = {name: str(tmp_path / name) for name in contents}
    done = weir("replay", *(each.format(**places) for each in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert reason.format(**places) in done.stderr
    assert done.stderr.count("\n") == 1
