"""`weir run --data`, killed with SIGKILL while it rescales, and started again on the folder. The oracle is the cluster: it
keeps each request that changes a job."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

import httpx
import pytest
import yaml
from fastapi import Request
from fastapi.responses import JSONResponse

from testbed.process import ManagedProcess, free_port
from testbed.simulated_flink import SOURCE, WORK, ManyJobs
from testbed.trial.options import short_behavior
from tests.effort import exploring

pytestmark = pytest.mark.thorough
KILLED_RUN = Path(__file__).with_name("killed_run.py")
ROUND_SECONDS = 300.0
"""For a process to start and to rescale, on a busy machine."""
WRITES = 40
"""From the plan until the action is verified there are about as many."""
EVERY = 1 if exploring() else 12
Side = Literal["before", "after"]
SIDES: tuple[Side, Side] = ("before", "after")


class Cluster(ManyJobs):
    """Kills a process `before` or `after` it applies a request for another parallelism, if told to."""

    kill: Callable[[], None] | None = None
    side: Side = "before"

    async def _answer(self, path: str, request: Request) -> JSONResponse:
        kill = self.kill if request.method == "PUT" else None
        if kill is not None:
            self.kill = None
            if self.side == "before":
                kill()
                return JSONResponse({}, status_code=503)
        answer = await super()._answer(path, request)
        if kill is not None:
            kill()
        return answer


class Rounds:
    """One folder and one job: each round asks for one subtask more an operator, and is interrupted once."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(["orders"], 0.2)
        self.parallelism = 1
        self._folder, self._data, self._file = folder, folder / "data", folder / "policy.yaml"
        self._api = f"http://127.0.0.1:{free_port()}"

    async def interrupted(
        self, *, side: Side = "before", write: int = 0, after_seconds: float | None = None, at_request: bool = False
    ) -> bool:
        """Rescale with a process that is killed at this instant, then with one that is not; check what the cluster got.
        Return whether it was killed before the rescale was verified.

        `write`: a number of `killed_run.py`; `at_request`: when the cluster gets the request.
        """
        self.parallelism += 1
        self._file.write_text(yaml.safe_dump(self._policy()))
        with self._process(side, write) as process:
            if at_request:
                self.cluster.side, self.cluster.kill = side, process.kill
            await self._until(self._is_verified, process, after_seconds)
            self.cluster.kill = None
            is_early = process.exit_code is not None or after_seconds is not None
            process.kill()
        with self._process() as process:
            await self._until(self._is_verified, process)
            newest = await self._get("plan")
            # The loop goes on: it finds nothing else to do.
            await self._until(lambda: self._holds_after(newest), process)
            verified = await self._verified()
            process.kill()
        wanted = [dict.fromkeys((SOURCE, WORK), each) for each in range(2, self.parallelism + 1)]
        assert verified == wanted
        assert self.cluster.jobs["orders"].requests == wanted, f"killed {side} write {write}, {after_seconds} s"
        return is_early

    async def _verified(self) -> list[Any]:
        """Return the parallelism of each rescale that the history says was verified, oldest first."""
        history = await self._get("history?limit=500") or {"items": []}
        return [each["approved"] for each in reversed(history["items"]) if each["outcome"] == "verified"]

    async def _is_verified(self) -> bool:
        return dict.fromkeys((SOURCE, WORK), self.parallelism) in await self._verified()

    async def _holds_after(self, before: Any) -> bool:
        plan = await self._get("plan")
        return plan is not None and before is not None and plan["id"] != before["id"] and plan["kind"] == "hold"

    async def _until(
        self,
        holds: Callable[[], Awaitable[bool]],
        process: ManagedProcess,
        seconds: float | None = None,
    ) -> None:
        """Return once it holds, once the process was killed, or after the seconds; fail after `ROUND_SECONDS`."""
        began = time.monotonic()
        while not await holds():
            elapsed = time.monotonic() - began
            if process.exit_code == -signal.SIGKILL or (seconds is not None and elapsed > seconds):
                return
            process.check()
            assert elapsed < ROUND_SECONDS, f"{await self._get('explain')}"
            await asyncio.sleep(0.05)

    async def _get(self, what: str) -> Any:
        async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
            with suppress(httpx.HTTPError):
                answer = await client.get(f"{self._api}/v1/applications/shop/orders/{what}")
                return answer.json() if answer.is_success else None

    def _process(self, side: Side = "before", write: int = 0) -> ManagedProcess:
        address = self._api.removeprefix("http://")
        arguments = ["run", "-f", str(self._file), "--data", str(self._data), "--listen", address]
        return ManagedProcess("weir", [sys.executable, str(KILLED_RUN), side, str(write), *arguments], self._folder)

    def _policy(self) -> dict[str, Any]:
        return {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": "shop", "name": "orders"},
            "spec": {
                "application": {"flink": {"url": self.cluster.url, "job": "orders"}},
                "objective": {"maxLatency": "30s"},
                "planner": {"name": "static", "parameters": {"parallelism": self.parallelism}},
                "behavior": short_behavior(0.0, 0.0),
                "interval": "1s",
                "mode": "act",
            },
        }


async def test_killed_when_the_cluster_gets_the_request(tmp_path: Path) -> None:
    """Before the cluster applies it, and after that but before the answer: it is applied once."""
    rounds = Rounds(tmp_path)
    async with rounds.cluster.serving():
        for side in SIDES:
            assert await rounds.interrupted(side=side, at_request=True)


async def test_killed_at_any_write(tmp_path: Path) -> None:
    """Directly before and after the commits between the plan and its verified outcome: each decided rescale arrives once."""
    rounds = Rounds(tmp_path)
    async with rounds.cluster.serving():
        numbers = range(1, WRITES, EVERY)
        early = [await rounds.interrupted(side=SIDES[number // EVERY % 2], write=number) for number in numbers]
    assert sum(early) > len(early) / 2


async def test_killed_at_any_instant(tmp_path: Path) -> None:
    """At random moments after its start, also before it has read its file."""
    rounds, random = Rounds(tmp_path), Random(34)
    async with rounds.cluster.serving():
        for _ in range(24 // EVERY):
            await rounds.interrupted(after_seconds=random.uniform(0.0, 10.0))
