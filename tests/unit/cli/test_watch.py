"""`weir watch` and `weir get --watch`, which are the same: one application or all, on a screen and into a pipe."""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import httpx
import pytest
import typer.main

from tests.unit.cli.pseudo_terminal import in_terminal
from tests.unit.cli.test_command import _Server, server, weir
from weir_cli.__main__ import app, main
from weir_cli.client import Client
from weir_runtime.http_client import Event

__all__ = ["server"]
ITEM = {"application": "shop/orders", "mode": "act", "status": "running", "decision": "Lag is 3 s.", "silent": []}
PLAN = {
    "application": "shop/orders",
    "created_at": "2026-06-14T18:30:00.25Z",
    "kind": "hold",
    "code": "in-objective",
    "sentence": "Lag is 3 s.",
}
OUTCOME = {
    "application": "shop/payments",
    "at": "2026-06-14T18:30:09Z",
    "phase": "verified",
    "code": "healthy",
    "sentence": "enrich runs at 6.",
}


def feed(followed: list[str | None]) -> Any:
    """Replace the feed by three events, the first of which decides nothing."""

    def follow(_client: Client, application: str | None, *_: Any) -> Iterator[Event]:
        followed.append(application)
        yield from (Event("7-0", "observation", {}), Event("8-0", "plan", PLAN), Event("9-0", "outcome", OUTCOME))

    return mock.patch.object(Client, "follow", follow)


@pytest.mark.parametrize("command", [["watch"], ["get", "--watch"], ["get", "-w"]])
def test_all_applications_into_a_pipe(server: _Server, command: list[str]) -> None:
    """The list as it is, then a line for each decision and outcome, with its application behind the time."""
    server.answers["GET", "/v1/applications"] = (200, {"items": [ITEM], "next": None})
    followed: list[str | None] = []
    with feed(followed):
        done = weir(*command, "--server", server.url)
    assert done.returncode == 0, done.stderr
    heading, listed, *lines = done.stdout.splitlines()
    assert heading.startswith("APPLICATION") and listed.startswith("shop/orders")
    assert lines == [
        "2026-06-14 18:30:00 shop/orders hold in-objective: Lag is 3 s.",
        "2026-06-14 18:30:09 shop/payments verified healthy: enrich runs at 6.",
    ]
    assert followed == [None]


def test_all_applications_for_programs(server: _Server) -> None:
    """Each event is a line, also one that decides nothing; there is no list."""
    with feed([]):
        done = weir("get", "--watch", "-o", "json", "--server", server.url)
    assert [line[:13] for line in done.stdout.splitlines()] == ['{"id": "7-0",', '{"id": "8-0",', '{"id": "9-0",']
    assert server.requests == []


def test_one_application_is_watched_by_both_commands(server: _Server) -> None:
    """The same lines, from the feed of that application."""
    server.answers["GET", "/v1/applications/shop/orders"] = (200, ITEM)
    server.answers["GET", "/v1/applications/shop/orders/explain"] = (200, {"items": [], "spend_sentence": None})
    followed: list[str | None] = []
    with feed(followed):
        watched = weir("watch", "shop/orders", "--server", server.url)
        got = weir("get", "shop/orders", "--watch", "--server", server.url)
    assert watched == got and watched.returncode == 0
    assert watched.stdout.splitlines()[0] == "2026-06-14 18:30:00 hold in-objective: Lag is 3 s."
    assert followed == ["shop/orders", "shop/orders"]


@pytest.mark.parametrize("arguments", [["policies"], ["--policy"], ["shop/orders", "--policy"]])
def test_policies_are_not_watched(arguments: list[str]) -> None:
    """One sentence, before the server is asked."""
    done = weir("get", *arguments, "--watch", "--server", "http://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (2, "weir: --watch: follows applications, not policies\n")


def test_the_feed_of_all_has_its_own_address() -> None:
    """With the token of the caller, whose namespaces the server chooses the events by."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.url.path} {request.headers['authorization']}")
        return httpx.Response(200, text='id: 7-0\nevent: plan\ndata: {"a": 1}\n\n')

    client = Client("http://weir", "t0ken", httpx.MockTransport(answer))
    assert next(client.follow(None, lambda _: None)) == Event("7-0", "plan", {"a": 1})
    assert asked == ["/v1/events Bearer t0ken"]


def test_a_screen_of_all_goes_on_while_the_server_is_away(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it is old, shows what is new as soon as the server answers again, and ends with Ctrl-C."""
    monkeypatch.setattr("weir_cli.watch.LOOK_SECONDS", 0.05)
    server.answers["GET", "/v1/applications"] = (200, {"items": [ITEM], "next": None})
    typer.main.get_command(app)  # built once, before the fork

    def command() -> None:
        sys.argv = ["weir", "get", "--watch", "--server", server.url]
        main()

    interrupted: list[int] = []

    def react(pid: int, _terminal: int, shown: str) -> None:
        if "Lag is 4 s." in shown:
            if not interrupted:  # a second one would meet the command at its end
                os.kill(pid, signal.SIGINT)
            interrupted.append(pid)
        elif "not current: " in shown:
            item = {**ITEM, "decision": "Lag is 4 s."}
            server.answers["GET", "/v1/applications"] = (200, {"items": [item], "next": None})
        elif "Lag is 3 s." in shown:
            server.answers["GET", "/v1/applications"] = (503, {"detail": "policies are being read"})

    shown = in_terminal(100, command, react)
    assert shown.code == 130
    assert "not current: policies are being read; trying again in 0.1 s" in shown.raw
    assert "Lag is 4 s." in shown.raw
