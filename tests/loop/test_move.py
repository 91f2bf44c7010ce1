"""A move from one Weir to another: what the first has learned of a job counts in the first decision of the second."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from testbed.simulated_flink import WORK, ManyJobs
from tests.loop.test_one_process import START_SECONDS, one_process, policy, until
from tests.unit.cli.test_command import Done, weir
from weir_cli.client import connect
from weir_cli.single import OneProcess
from weir_runtime.http import listen, serve
from weir_runtime.loop import Stop

pytestmark = pytest.mark.thorough
APP = "/v1/applications/shop/orders"
SHORT = {"WEIR_ANALYZER_WARM_UP_SECONDS": "0", "WEIR_ANALYZER_CAPACITY_WINDOW_SECONDS": "5"}
"""Settings with which a capacity is learned at once."""
LONG = {"WEIR_ANALYZER_WARM_UP_SECONDS": "3600", "WEIR_ANALYZER_CAPACITY_WINDOW_SECONDS": "3600"}
"""Settings with which the story ends before one is: a decision that has one has it from elsewhere."""
TOO_LITTLE = ("warming-up", "unreachable", "not-running", "gap")

Starts = Callable[[], AbstractAsyncContextManager[OneProcess]]


async def command(one: OneProcess, *arguments: str) -> Done:
    """Run a command as a user does, on the listener of this Weir."""
    stop, bound = Stop(), listen("127.0.0.1", 0)
    serving = asyncio.create_task(serve(one.app, bound, stop))
    try:
        client = connect(f"http://127.0.0.1:{bound.getsockname()[1]}", None, seconds=START_SECONDS)
        with (
            closing(client._http),
            mock.patch("weir_cli.move.connect", lambda *_: client),
        ):
            return await asyncio.to_thread(weir, *arguments)
    finally:
        stop.request("the command is done")
        await asyncio.wait_for(serving, START_SECONDS)


def capacities(analysis: dict[str, Any]) -> dict[int, float]:
    """Return the learned rates of the work by parallelism, in records/s."""
    for each in analysis["operators"]:
        if each["operator"] == WORK:
            return {point["parallelism"]: point["records_per_second"] for point in each["capacities"]}
    return {}


async def moves_between(starts: Sequence[Starts], jobs: ManyJobs, file: Path, environment: pytest.MonkeyPatch) -> None:
    """The first Weir learns the job's capacity and exports; each of the others imports, decides and exports."""
    for name, value in SHORT.items():
        environment.setenv(name, value)
    async with starts[0]() as one:
        assert await one.api.put("shop/orders", policy(jobs, mode="act", planner={"name": "rate"})) is None
        analysis = await until(one, f"{APP}/analysis", lambda found: bool(capacities(found)))
        await until(one, f"{APP}/plan", lambda plan: plan["code"] not in TOO_LITTLE)
        # 500 records/s while it is busy for half of the time.
        assert capacities(analysis)[1] == pytest.approx(1000, rel=0.2)
        assert (await command(one, "export", str(file))).returncode == 0
        exported = await asyncio.to_thread(file.read_text)
        lines = (await one.api.client.get(f"{APP}/history?limit=1000")).json()["items"]
    # A plan that came after the export is not in the file.
    first = {line["plan_id"] for line in lines if line["plan_id"] in exported}
    assert first
    for name, value in LONG.items():
        environment.setenv(name, value)
    for start in starts[1:]:
        async with start() as one:
            await until(one, "/v1/policies", lambda _: True)
            done = await command(one, "import", str(file))
            assert done.returncode == 0, done.stderr
            assert "shop/orders created (mode advise)" in done.stdout
            own = await until(
                one, f"{APP}/plan", lambda plan: plan["mode"] == "advise" and plan["code"] not in TOO_LITTLE
            )
            assert own["id"] not in first
            # What was imported is all that can be known: this Weir's own window is an hour long.
            there = (await one.api.client.get(f"{APP}/analysis")).json()
            assert capacities(there)[1] == pytest.approx(1000, rel=0.2)
            history = (await one.api.client.get(f"{APP}/history?limit=1000")).json()["items"]
            assert first < {line["plan_id"] for line in history}
            assert [line["at"] for line in history] == sorted((line["at"] for line in history), reverse=True)
            assert (await command(one, "export", str(file))).returncode == 0
            first |= {own["id"]}
    assert jobs.jobs["orders"].requests == []


async def test_what_one_process_learned_counts_in_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one, whose own window is an hour long, decides with the first one's capacity, and has its past."""
    jobs = ManyJobs(["orders"], 0.5)
    async with jobs.serving():
        starts = [partial(one_process, tmp_path / name) for name in ("first", "second")]
        await moves_between(starts, jobs, tmp_path / "weir.jsonl", monkeypatch)
