"""`weir judge`: what is read from knowledge, judged by a planner service, and printed."""

import asyncio
import json
from typing import Any
from unittest import mock

import httpx
import pytest
import yaml

from tests.unit.cli.test_command import PROJECT, weir
from tests.unit.planner.build import NOON
from tests.unit.planner.plugin import LOOPBACK
from tests.unit.planner.shelf import FixedRegistrations, RequestsHere
from weir_cli.client import Client
from weir_planner.adapters.http import PlannerClient
from weir_planner.api import planner_router
from weir_planner.calls import Planners
from weir_planner.remote import Remote
from weir_runtime.clock import FakeClock
from weir_runtime.http import application

EXAMPLES = PROJECT / "contracts" / "examples" / "v1alpha1"
ANALYSIS = json.loads((EXAMPLES / "analysis" / "full.json").read_text())
OUTCOME = json.loads((EXAMPLES / "outcome" / "full.json").read_text())


class Servers:
    """Knowledge with one application, and the planner service's own API."""

    def __init__(self, *, analysis: Any = ANALYSIS, outcome_status: int = 200) -> None:
        self.requests: list[httpx.Request] = []
        self._analysis, self._outcome_status = analysis, outcome_status
        clock = FakeClock(NOON)
        remote = Remote(PlannerClient(LOOPBACK, reply_bytes=20_000), clock)
        app = application("Weir planner", "Of a test.")
        app.include_router(planner_router(Planners(RequestsHere(), FixedRegistrations(clock), remote), clock))
        self._planner = httpx.ASGITransport(app)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path.endswith("/explain"):
            return httpx.Response(200, json={"items": [{"outcomes": [OUTCOME]}]})
        if request.url.path.endswith("/outcome"):
            document = OUTCOME if self._outcome_status == 200 else {"detail": "no outcome"}
            return httpx.Response(self._outcome_status, json=document)
        if request.url.path.endswith("/analysis"):
            return httpx.Response(200, json=self._analysis)
        return asyncio.run(self._judged(request))

    async def _judged(self, request: httpx.Request) -> httpx.Response:
        if request.url.host == "away":
            raise httpx.ConnectError("Connection refused")
        async with httpx.AsyncClient(transport=self._planner, base_url="http://planner") as http:
            answer = await http.post(request.url.path, content=request.content, headers=request.headers)
        return httpx.Response(answer.status_code, json=answer.json())

    def client(self, server: str, _token_file: Any, option: str = "--server") -> Client:
        """In the place of `weir_cli.client.connect`."""
        return Client(server, None, httpx.MockTransport(self), option=option)

    def run(self, *arguments: str) -> Any:
        with mock.patch("weir_cli.what_if.connect", self.client):
            return weir("judge", "shop/orders", *arguments)


def test_a_judgement_is_printed() -> None:
    """A line for the forecast and for its upper edge, the cost, and the sentence; outcomes are sent once."""
    servers = Servers()
    done = servers.run("-p", "enrich=8", "--horizon", "5m", "--planner-server", "http://planner:8093")
    assert done.returncode == 0, done.stderr
    assert [r.url.host for r in servers.requests] == ["127.0.0.1"] * 3 + ["planner"]
    assert len(json.loads(servers.requests[-1].content)["outcomes"]) == 1
    lines = done.stdout.splitlines()
    assert next(line for line in lines if line.startswith("forecast ")).split()[1:6] == [
        "1,717",
        "yes",
        "0",
        "s",
        "without",
    ]
    assert any(line.startswith("forecast's upper edge") for line in lines)
    assert "slots 2 → 8, 0.67 slot-hours, restart" in done.stdout
    assert "enrich 2 → 8, 300 s ahead: never late as forecast (holding: late without end)" in " ".join(
        done.stdout.split()
    )


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_the_document(form: str, read: Any) -> None:
    """Also where the application has no outcome yet."""
    done = Servers(outcome_status=404).run("-p", "enrich=8", "-o", form)
    assert done.returncode == 0, done.stderr
    assert read(done.stdout)["parallelism"]["enrich"] == 8


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["-p", "enrich"], 2, "weir: --parallelism: 'enrich' is no operator=number"),
        (["--horizon", "1s"], 2, "weir: --horizon: 1s does not lie between 10s and 1d"),
        (["--horizon", "soon"], 2, "weir: --horizon: must be a duration"),
        (["-p", "enrch=3"], 2, "weir: there is no operator 'enrch'"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], code: int, sentence: str) -> None:
    """Found before any request where the command alone can see it."""
    servers = Servers()
    done = servers.run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(sentence), done.stderr
    assert bool(servers.requests) == ("enrch" in sentence)


def test_too_little_is_known_yet() -> None:
    """A failure, but no mistake of the user."""
    done = Servers(analysis={**ANALYSIS, "topology": None}).run()
    assert (done.returncode, done.stdout) == (1, "")
    assert "shop/orders cannot be judged yet: the application's graph" in done.stderr


def test_a_planner_service_that_is_away_has_its_own_option() -> None:
    """The error names the server that does not answer, and its option."""
    done = Servers().run("--planner-server", "http://away:8093")
    assert done.returncode == 5
    assert "http://away:8093 does not answer" in done.stderr and "name another with --planner-server" in done.stderr
