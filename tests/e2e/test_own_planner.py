"""The complete tutorial: a user's planner, registered with a real trial, rescales a real job."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.process import free_port, wait_until
from tests.e2e.processes import WEIR, left
from tests.tutorial import Reader, shell

APPLICATION = "trial/orders"
PERIOD_SECONDS = 240.0
"""Of the trial's sine: within one the load grows to five times its least."""
ELSEWHERE = re.compile(r"the planner service answers at (\S+): set")


@contextmanager
def trial(folder: Path) -> Iterator[dict[str, str]]:
    """`weir trial --trace sine` in the background; yields the settings of a second shell once it shows the application."""
    port = free_port()
    environment = shell() | {"WEIR_SERVER": f"http://127.0.0.1:{port}"}
    log = folder / "trial.log"
    with log.open("wb") as out:
        running = subprocess.Popen(
            [str(WEIR), "trial", "--trace", "sine", "--port", str(port)], cwd=folder, stdout=out, stderr=out
        )

    def shown() -> bool:
        assert running.poll() is None, log.read_text()
        return bool(cycles(environment))

    try:
        wait_until(shown, timeout_seconds=300, what="the trial shows the application")
        elsewhere = ELSEWHERE.search(log.read_text())
        yield environment | ({"WEIR_PLANNER_SERVER": elsewhere[1]} if elsewhere else {})
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(timeout=30) == 130
    finally:
        running.kill()
        running.wait()


def cycles(environment: dict[str, str]) -> list[dict[str, Any]]:
    """The last decisions, as `weir explain` gets them."""
    try:
        answer = httpx.get(f"{environment['WEIR_SERVER']}/v1/applications/{APPLICATION}/explain?limit=20", timeout=10)
    except httpx.TransportError:
        return []
    return list(answer.json()["items"]) if answer.status_code == 200 else []


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The first cycle that `my-planner` decided and the executor verified."""
    folder = tmp_path_factory.mktemp("own-planner")
    with trial(folder) as environment:
        reader = Reader(tmp_path_factory.mktemp("project"), environment, free_port())
        try:
            reader.reads()

            def verified() -> dict[str, Any] | None:
                for cycle in cycles(environment):
                    is_mine = cycle["plan"] is not None and cycle["plan"]["planner"] == "my-planner"
                    if is_mine and "verified" in {outcome["phase"] for outcome in cycle["outcomes"]}:
                        return cycle
                return None

            yield wait_until(verified, timeout_seconds=1.5 * PERIOD_SECONDS, what="a verified rescale by my-planner")
        finally:
            reader.ends()
    assert left(folder) == []


def test_ones_own_planner_rescales_the_trials_job(mine: dict[str, Any]) -> None:
    """Its own code and sentence stand in the plan, and the job runs with what it asked for."""
    assert mine["plan"]["code"] in {"scale-out", "scale-in"}
    assert re.search(r"\w+ needs (only )?\d", mine["plan"]["sentence"])
    assert {outcome["plan_id"] for outcome in mine["outcomes"]} == {mine["plan"]["id"]}
