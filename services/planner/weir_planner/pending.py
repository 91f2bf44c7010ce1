"""Pending decisions: one at a time for each application, and no application waits for another one's slow planner."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from prometheus_client import Counter, Gauge

from weir_contracts import Analysis
from weir_runtime.bus import Record
from weir_runtime.messages import Decoded

BATCH_SECONDS = 0.5
"""Wait for a batch before the next one is received: installed planners reply within it, slow remote ones stay pending.
"""
UNCOMMITTED_SECONDS = 60.0
"""The maximum timeout of a planner. Offsets are committed once nothing is pending, or after this time if something
always is: then a crash may cost the pending decisions, and the applications' next analyses are planned."""

_SKIPPED = Counter("weir_planner_analyses_skipped_total", "Analyses left out because a newer one was there")
_PENDING = Gauge("weir_planner_decisions_under_way", "Decisions whose planner has not answered yet")


def skipped() -> None:
    """Count an analysis that a newer one replaces."""
    _SKIPPED.inc()


class PendingDecisions:
    """Starts decisions and returns the failed ones. While one is pending, the newest analysis of its application waits."""

    def __init__(self, decide: Callable[[Decoded[Analysis]], Coroutine[Any, Any, None]]) -> None:
        self._decide = decide
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._current: dict[str, Decoded[Analysis]] = {}
        self._next: dict[str, Decoded[Analysis]] = {}
        self._done: list[tuple[str, asyncio.Task[None]]] = []
        self._any_done = asyncio.Event()

    @property
    def quiet(self) -> bool:
        """Whether nothing is pending."""
        return not self._tasks

    def begin(self, newest: Mapping[str, Decoded[Analysis]]) -> None:
        """Decide for each application, now or after its pending decision."""
        for application, analysis in newest.items():
            if application not in self._tasks:
                self._start(application, analysis)
                continue
            waiting = self._next.get(application)
            if waiting is not None:
                skipped()
            if waiting is None or analysis.message.observed_at >= waiting.message.observed_at:
                self._next[application] = analysis

    async def settle(self, timeout_seconds: float = BATCH_SECONDS) -> list[tuple[Record, BaseException]]:
        """Wait until nothing is pending, at most so long; return what failed, with the error."""
        failed: list[tuple[Record, BaseException]] = []
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_seconds
        while self._tasks and await self._wait(until - loop.time()):
            done, self._done = self._done, []
            for application, task in done:
                if self._tasks.get(application) is task:
                    self._ended(application, failed)
        _PENDING.set(len(self._tasks))
        return failed

    async def _wait(self, timeout_seconds: float) -> bool:
        """Wait for a finished task. Each task signals its own completion; re-waiting on the full set would be O(n²)."""
        if not self._done:
            self._any_done.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._any_done.wait(), timeout_seconds)
        return bool(self._done)

    def _start(self, application: str, analysis: Decoded[Analysis]) -> None:
        def signal(task: asyncio.Task[None]) -> None:
            self._done.append((application, task))
            self._any_done.set()

        self._current[application] = analysis
        self._tasks[application] = task = asyncio.create_task(self._decide(analysis), name=f"plan {application}")
        task.add_done_callback(signal)

    def _ended(self, application: str, failed: list[tuple[Record, BaseException]]) -> None:
        task, analysis = self._tasks.pop(application), self._current.pop(application)
        following = self._next.pop(application, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The newer one is retried with it, and makes it superfluous.
            failed.extend((each.record, error) for each in (analysis, following) if each is not None)
        elif following is not None:
            self._start(application, following)

    def drop(self, is_mine: Callable[[str], bool]) -> None:
        """Cancel the decisions for applications that are no longer assigned."""
        for application in [name for name in self._tasks if not is_mine(name)]:
            self._tasks.pop(application).cancel()
            self._current.pop(application)
            self._next.pop(application, None)

    async def close(self) -> None:
        """Cancel everything."""
        tasks = list(self._tasks.values())
        self.drop(lambda _: False)
        await asyncio.gather(*tasks, return_exceptions=True)
