"""Decisions under way: one at a time for each application, and nobody waits for another one's slow planner."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import Counter, Gauge
from weir_contracts import Analysis

from runtime.envelope import Decoded
from runtime.records import Record

PATIENCE_SECONDS = 0.5
"""How long a batch is waited for before the next one is received: built-in planners answer in it, slow ones elsewhere stay under way."""
UNCOMMITTED_SECONDS = 60.0
"""As long as a planner may take. What was received is committed once nothing is under way; where something always is, after this time:
then a crash may cost the turns that are under way, whose applications' next analyses are planned."""

_SKIPPED = Counter("weir_planner_analyses_skipped_total", "Analyses left out because a newer one was there")
_UNDER_WAY = Gauge("weir_planner_decisions_under_way", "Decisions whose planner has not answered yet")

Turn = Decoded[Analysis]


def skipped() -> None:
    """An analysis is left out because a newer one is there."""
    _SKIPPED.inc()


class Turns:
    """Starts decisions and hands back those that failed. What comes for an application meanwhile waits; the newest of it counts."""

    def __init__(self, decide: Callable[[Turn], Awaitable[None]]) -> None:
        self._decide = decide
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, Turn] = {}
        self._next: dict[str, Turn] = {}
        self._done: list[tuple[str, asyncio.Task[None]]] = []
        self._some_done = asyncio.Event()

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    def begin(self, newest: Mapping[str, Turn]) -> None:
        """Decide for each application, now or after what is under way for it."""
        for application, turn in newest.items():
            if application not in self._under_way:
                self._start(application, turn)
                continue
            waiting = self._next.get(application)
            if waiting is not None:
                skipped()
            if waiting is None or turn.message.observed_at >= waiting.message.observed_at:
                self._next[application] = turn

    async def settle(self, patience_seconds: float = PATIENCE_SECONDS) -> list[tuple[Record, BaseException]]:
        """Wait until nothing is under way, at most so long; what has failed, with its reason."""
        failed: list[tuple[Record, BaseException]] = []
        loop = asyncio.get_running_loop()
        until = loop.time() + patience_seconds
        while self._under_way and await self._some(until - loop.time()):
            done, self._done = self._done, []
            for application, task in done:
                if self._under_way.get(application) is task:
                    self._ended(application, failed)
        _UNDER_WAY.set(len(self._under_way))
        return failed

    async def _some(self, timeout_seconds: float) -> bool:
        """Wait for a decision that is done. Told by each task itself: to watch all of them anew for each costs their square."""
        if not self._done:
            self._some_done.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._some_done.wait(), timeout_seconds)
        return bool(self._done)

    def _start(self, application: str, turn: Turn) -> None:
        def tell(task: asyncio.Task[None]) -> None:
            self._done.append((application, task))
            self._some_done.set()

        self._turns[application] = turn
        self._under_way[application] = task = asyncio.create_task(self._run(turn), name=f"plan {application}")
        task.add_done_callback(tell)

    async def _run(self, turn: Turn) -> None:
        await self._decide(turn)

    def _ended(self, application: str, failed: list[tuple[Record, BaseException]]) -> None:
        task, turn = self._under_way.pop(application), self._turns.pop(application)
        following = self._next.pop(application, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The newer one is tried again with it, and makes it superfluous.
            failed.extend((each.record, error) for each in (turn, following) if each is not None)
        elif following is not None:
            self._start(application, following)

    def drop(self, is_mine: Callable[[str], bool]) -> None:
        """Give up what is under way for applications that are not to be decided for any more."""
        for application in [name for name in self._under_way if not is_mine(name)]:
            self._under_way.pop(application).cancel()
            self._turns.pop(application)
            self._next.pop(application, None)

    async def close(self) -> None:
        """Give up all that is under way."""
        tasks = list(self._under_way.values())
        self.drop(lambda _: False)
        await asyncio.gather(*tasks, return_exceptions=True)
