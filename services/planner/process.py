"""A process of one's own for work that may hang or crash: what is asked of it comes back in time, or costs that process."""

import asyncio
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import TypeVar

START_SECONDS = 60.0
LEAST_KILL_SECONDS = 1.0
"""For so long a process may work on one question before it is killed, also where its deadline was shorter: a new one takes about as long
to start, so that a call which only misses a short deadline costs the calls behind it less than a new process would."""
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Question:
    work: Callable[..., str]
    arguments: tuple[str, ...]
    answer: "Future[str]" = field(init=False)


class WorkerProcess:
    """One process that answers questions in the order they were asked. If one outlives its deadline (and `LEAST_KILL_SECONDS`) or ends the
    process, a new process is made, and is asked all that waited behind it."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        """`prepare` runs in the process before its first question; the module it is in is imported by then."""
        self._prepare = prepare
        self._made: tuple[ProcessPoolExecutor, Future[None]] | None = None  # and whether it takes questions
        self._line: deque[_Question] = deque()
        self._turn = asyncio.Lock()  # its waiters are in the order of the line
        # The answer to a call that missed its deadline, and the loop's time from which on the process is killed for it.
        self._overdue: tuple[Future[str], float] | None = None

    def __len__(self) -> int:
        """Questions without an answer."""
        return len(self._line) + (self._overdue is not None and not self._overdue[0].done())

    async def start(self) -> None:
        """Make the process, if there is none, and wait until it takes questions. `TimeoutError`, `BrokenProcessPool`"""
        _, ready = self._made or self._make()
        await _result(ready, START_SECONDS)

    async def run(self, work: Callable[..., str], *arguments: str, timeout_seconds: float) -> str:
        """`work(*arguments)` in the process; the time counts from its turn, once there is a process. `TimeoutError`, `BrokenProcessPool`
        if it ended the process, or what it raised."""
        question = _Question(work, arguments)
        self._hand_over(question)
        self._line.append(question)
        loop = asyncio.get_running_loop()
        try:
            async with self._turn:
                await self._settled()
                await self.start()
                kill_at = loop.time() + LEAST_KILL_SECONDS
                try:
                    return await _result(question.answer, timeout_seconds)
                except TimeoutError:
                    if loop.time() >= kill_at:
                        raise
                    self._overdue = question.answer, kill_at
        except (TimeoutError, BrokenProcessPool):
            self._replace(question)
            raise
        finally:
            self._line.remove(question)
        raise TimeoutError

    async def _settled(self) -> None:
        """Wait for the answer to an earlier call that missed its deadline; replace the process if it does not come."""
        if self._overdue is None:
            return
        answer, kill_at = self._overdue
        try:
            await _result(answer, kill_at - asyncio.get_running_loop().time())
        except (TimeoutError, BrokenProcessPool):
            self._replace()
        except Exception:  # noqa: BLE001, S110 - what the planner raised is of no use to anyone any more
            pass
        self._overdue = None

    def _replace(self, failed: _Question | None = None) -> None:
        """Make a new process and ask it all but `failed`, in one go, so that each keeps its place."""
        self.close()
        for waiting in self._line:
            if waiting is not failed:
                self._hand_over(waiting)

    def _hand_over(self, question: _Question) -> None:
        pool, _ = self._made or self._make()
        try:
            question.answer = pool.submit(question.work, *question.arguments)
        except BrokenProcessPool:
            self.close()
            self._hand_over(question)

    def _make(self) -> tuple[ProcessPoolExecutor, Future[None]]:
        # Not fork: the parent has threads of Kafka clients.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_the_service)
        self._made = pool, pool.submit(self._prepare)
        return self._made

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._made is None:
            return
        pool, _ = self._made
        self._made = self._overdue = None
        for process in list((pool._processes or {}).values()):  # the pool itself never gives up on a busy worker
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


async def _result(answer: "Future[Answer]", timeout_seconds: float) -> Answer:
    """Its result. Never cancelled: a pool that breaks does not get over a question that was (Python 3.11)."""
    if answer.done():
        return answer.result()
    return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(answer)), timeout_seconds)


def _end_with_the_service() -> None:
    """In the process: watches the service's. It waits for questions on a pipe that it holds open itself, so that it
    would otherwise outlive a service that was killed."""
    service = multiprocessing.parent_process()
    if service is not None:
        threading.Thread(target=_exit_after, args=[service], name="parent", daemon=True).start()


def _exit_after(service: BaseProcess) -> None:
    service.join()
    os._exit(1)
