"""All five services in one process, on one log, around Flink's REST API: from a policy to a rescale that was verified."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from testbed.simulated_flink import SOURCE, WORK, ManyJobs
from tests.unit.knowledge.http_receiver import HttpReceiver
from weir_cli import discovery
from weir_cli.discovery import Discovery
from weir_cli.discovery_flink import FlinkJobs
from weir_cli.single import OneProcess, SingleSettings, compose
from weir_cli.single_run import FILE, log_and_store
from weir_runtime.bus import Bus
from weir_runtime.clock import Clock, SystemClock
from weir_runtime.loop import Stop

pytestmark = pytest.mark.thorough
START_SECONDS = 300.0
"""For a process to start, or to end, on a busy machine."""


@asynccontextmanager
async def one_process(
    folder: Path, clock: Clock | None = None, on_bus: Callable[[Bus], None] | None = None
) -> AsyncIterator[OneProcess]:
    """Run the services until the end of the block; then every task ends by itself. `on_bus` gets their log."""
    clock, stop = clock or SystemClock(), Stop()
    with log_and_store(folder, clock) as (bus, store):
        if on_bus is not None:
            on_bus(bus)
        one = compose(SingleSettings(), bus, store, clock)
        tasks = [asyncio.create_task(task(stop), name=name) for name, task in one.tasks.items()]
        try:
            yield one
        finally:
            stop.request("the test is over")
            _, late = await asyncio.wait(tasks, timeout=60.0)
            await one.close()
        assert [task.get_name() for task in late] == []


async def until(one: OneProcess, path: str, holds: Callable[[Any], bool], seconds: float = START_SECONDS) -> Any:
    """Return the first document at a path that `holds`."""
    async with asyncio.timeout(seconds):
        while True:
            answer = await one.api.client.get(path)
            if answer.is_success and holds(answer.json()):
                return answer.json()
            await asyncio.sleep(0.1)


def policy(jobs: ManyJobs, **spec: Any) -> dict[str, Any]:
    """A job that is to run with at least four subtasks an operator: reason enough to rescale it at once."""
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "shop", "name": "orders"},
        "spec": {
            "application": {"flink": {"url": jobs.url, "job": "orders"}},
            "objective": {"maxLatency": "30s"},
            "planner": {"name": "static", "parameters": {"parallelism": 4}},
            "interval": "1s",
            **spec,
        },
    }


async def test_a_policy_that_acts_rescales_the_job(tmp_path: Path) -> None:
    """The cluster gets the request of the plan, and the outcome says that it was verified; all by one log."""
    jobs = ManyJobs(["orders"], 0.5)
    async with jobs.serving(), one_process(tmp_path) as one:
        assert await one.api.put("shop/orders", policy(jobs, mode="act")) is None
        explained = await until(
            one, "/v1/applications/shop/orders/outcome", lambda outcome: outcome["phase"] in ("verified", "failed")
        )
    assert explained["phase"] == "verified"
    assert jobs.jobs["orders"].requests == [{SOURCE: 4, WORK: 4}]


async def test_a_process_that_comes_back_knows_its_policies_and_repeats_nothing(tmp_path: Path) -> None:
    """The second process on the folder goes on where the first one ended."""
    jobs = ManyJobs(["orders"], 0.5)
    async with jobs.serving():
        async with one_process(tmp_path) as one:
            assert await one.api.put("shop/orders", policy(jobs, mode="act")) is None
            await until(one, "/v1/applications/shop/orders/outcome", lambda found: found["phase"] == "verified")
            before = (await one.api.client.get("/v1/policies/shop/orders")).json()
        async with one_process(tmp_path) as one:
            after = await until(one, "/v1/policies/shop/orders", lambda _: True)
            newest = (await one.api.client.get("/v1/applications/shop/orders/plan")).json()["id"]
            await until(one, "/v1/applications/shop/orders/plan", lambda plan: plan["id"] != newest)
    assert after == before
    assert len(jobs.jobs["orders"].requests) == 1


async def test_found_jobs_are_watched_and_never_changed(tmp_path: Path) -> None:
    """Without a policy each job gets one that advises, and a plan."""
    jobs = ManyJobs(["orders", "Clicks (EU)"], 0.5)
    async with jobs.serving(), one_process(tmp_path) as one:
        discovery = Discovery(FlinkJobs(jobs.url), one.api)
        assert len((await discovery.source.find()).candidates) == 2
        stop = Stop()
        looking = asyncio.create_task(discovery.run(stop))
        for name in ("orders", "clicks-eu"):
            await until(one, f"/v1/applications/default/{name}/plan", lambda plan: plan["mode"] == "advise")
        stop.request("the test is over")
        await looking
        await discovery.source.close()
    assert [job.requests for job in jobs.jobs.values()] == [[], []]


async def test_a_job_that_ended_between_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process removes the policy that the first one found, and not that of a job that runs."""
    monkeypatch.setattr(discovery, "EARLIER_SECONDS", 0.0)
    jobs = ManyJobs(["orders", "clicks"], 0.5)
    async with jobs.serving():
        async with one_process(tmp_path) as one:
            first = Discovery(FlinkJobs(jobs.url), one.api)
            await first._look()
            await first.source.close()
            before = (await one.api.client.get("/v1/policies")).json()["items"]
        del jobs.jobs["orders"]
        async with one_process(tmp_path) as one:
            second = Discovery(FlinkJobs(jobs.url), one.api)
            await second._look()
            await second.source.close()
            after = (await one.api.client.get("/v1/policies")).json()["items"]
    assert second.is_settled
    assert [each["metadata"]["name"] for each in before] == ["clicks", "orders"]
    assert [each["metadata"]["name"] for each in after] == ["clicks"]


async def test_a_disk_that_fills_while_it_runs(tmp_path: Path) -> None:
    """Nothing is acknowledged and nothing rescaled; readiness, each refusal and a warning of the log say why. With room it goes on
    by itself, and what was accepted before is there."""
    jobs = ManyJobs(["orders"], 0.5)
    logs: list[Any] = []
    full = f"the disk of {tmp_path} is full"
    async with jobs.serving(), one_process(tmp_path, on_bus=logs.append) as one:
        assert await one.api.put("shop/orders", policy(jobs)) is None
        await until(one, "/v1/applications/shop/orders/plan", lambda plan: plan["mode"] == "advise")
        file = logs[0]._file
        kept, file.min_free_bytes = file.min_free_bytes, 2**60
        refused = await one.api.client.put("/v1/policies/shop/orders", json=policy(jobs, mode="act"))
        ready = await one.api.client.get("/health/ready")
        with capture_logs() as lines:
            await until(
                one,
                "/health/live",
                lambda _: any(full in str(line) for line in lines if line["log_level"] == "warning"),
            )
        requests = list(jobs.jobs["orders"].requests)
        file.min_free_bytes = kept
        await until(one, "/health/ready", lambda report: report["ready"])
        stored = (await one.api.client.get("/v1/policies/shop/orders")).json()
        assert await one.api.put("shop/orders", policy(jobs, mode="act")) is None
        await until(one, "/v1/applications/shop/orders/outcome", lambda found: found["phase"] == "verified")
    assert refused.status_code == 503
    assert full in refused.json()["detail"]
    assert ready.status_code == 503
    assert full in ready.json()["dependencies"]["log"]["reason"]
    assert (requests, stored["spec"].get("mode", "advise")) == ([], "advise")


class AheadClock(SystemClock):
    """The clock of this machine before it was set back."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=5)


async def test_a_clock_that_was_set_back_between_two_runs(tmp_path: Path) -> None:
    """By five hours: what is seen counts as old, so that nothing is planned or scaled, and the log says so. Nothing is lost: with
    the clock corrected the job is planned for again."""
    jobs = ManyJobs(["orders"], 0.5)
    planned = "/v1/applications/shop/orders/plan"
    async with jobs.serving():
        async with one_process(tmp_path, AheadClock()) as one:
            assert await one.api.put("shop/orders", policy(jobs)) is None
            await until(one, planned, lambda plan: plan["mode"] == "advise")
        with capture_logs() as lines:
            async with one_process(tmp_path) as one:
                assert await one.api.put("shop/orders", policy(jobs, mode="act")) is None
                newest = (await until(one, planned, lambda _: True))["id"]
                await until(one, planned, lambda _: [line["event"] for line in lines].count("observed") >= 3)
                assert (await one.api.client.get(planned)).json()["id"] == newest
        requests = list(jobs.jobs["orders"].requests)
        async with one_process(tmp_path, AheadClock()) as one:
            await until(one, planned, lambda plan: plan["id"] != newest)
    reasons = [line["reason"] for line in lines if line["event"] == "clock-set-back"]
    assert f"the newest record of {tmp_path / FILE} is " in reasons[0]
    assert requests == []


async def command(*arguments: str) -> asyncio.subprocess.Process:
    """Start `weir run` as a user's shell does, on a free port."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weir_cli", "run", "--listen", "127.0.0.1:0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def test_it_says_where_its_page_is_and_ends_while_it_starts() -> None:
    """Without options or a terminal, with the port that it has. Ctrl-C reaches the planners' processes as well, which start: no
    traceback."""
    process = await command()
    assert process.stderr is not None
    async with asyncio.timeout(START_SECONDS):
        line = (await process.stderr.readline()).decode()
        said = re.fullmatch(r"weir: (http://127\.0\.0\.1:[1-9]\d*/) is the page; Ctrl-C ends it\n", line)
        assert said is not None, line
        async with httpx.AsyncClient(timeout=START_SECONDS) as client:
            assert "<title>Weir</title>" in (await client.get(said[1])).text
        os.killpg(process.pid, signal.SIGINT)
        _, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")


async def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    """Every task ends by itself, and the folder is free for the next process."""
    jobs = ManyJobs(["orders"], 0.5)
    async with jobs.serving():
        process = await command("--flink", jobs.url, "--data", str(tmp_path))
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), START_SECONDS)
    assert process.returncode == 0, err.decode()
    assert "task-cancelled" not in err.decode()
    with log_and_store(tmp_path, SystemClock()):
        pass


async def test_a_second_process_on_the_folder_is_refused(tmp_path: Path) -> None:
    """One sentence that names the file."""
    with log_and_store(tmp_path, SystemClock()):
        process = await command("--data", str(tmp_path))
        _, err = await asyncio.wait_for(process.communicate(), START_SECONDS)
    assert process.returncode == 2
    assert err.decode().startswith(f"weir: --data: {tmp_path / FILE}")


async def test_receivers_are_told_by_one_process_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rescale and a refused document reach the receiver that the same setting names, once each."""
    jobs = ManyJobs(["orders"], 0.5)
    with HttpReceiver() as receiver:
        file = tmp_path / "receivers.json"
        file.write_text(json.dumps({"*": {"url": receiver.url}}))
        monkeypatch.setenv("WEIR_KNOWLEDGE_NOTIFICATIONS_FILE", str(file))
        async with jobs.serving(), one_process(tmp_path) as one:
            assert await one.api.put("shop/orders", policy(jobs, mode="act")) is None
            refused = await one.api.put("shop/orders", policy(jobs, mode="dance"))
            async with asyncio.timeout(START_SECONDS):
                while len(receiver.received) < 3:  # noqa: ASYNC110 - filled by another thread
                    await asyncio.sleep(0.1)
    assert refused is not None and refused.status_code == 422
    assert sorted(receiver.kinds()) == ["action-accepted", "action-verified", "policy-refused"]
    assert len(set(receiver.ids())) == 3
