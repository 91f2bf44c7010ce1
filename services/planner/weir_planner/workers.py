"""Worker processes with a deadline per call: an installed planner that hangs or crashes costs its reply, never the
loop."""

import asyncio
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import TypeVar

import structlog

from weir_contracts import PlanReply, PlanRequest, one_line
from weir_runtime.loop import collect_seldom
from weir_sdk import InvalidParameters
from weir_sdk.installed import UnknownPlanner, ask, installed, needed, reads

from .alongside import Alongside
from .core.contest import ContenderRequest
from .core.decide import FAILED, INVALID, TIMEOUT
from .failures import no_reply

START_SECONDS = 60.0
MIN_KILL_SECONDS = 1.0
"""A process may work on one call for this time before it is killed, also if the deadline was shorter. A new process
takes about as long to start, so that a call which misses a short deadline costs the calls behind it less than a new
process would."""
Result = TypeVar("Result")


@dataclass(eq=False)
class _Call:
    work: Callable[..., str]
    arguments: tuple[str, ...]
    result: "Future[str]" = field(init=False)


class WorkerProcess:
    """One process that runs calls in order. If a call exceeds its deadline (and `MIN_KILL_SECONDS`) or ends the
    process, a new process takes all calls that wait behind it."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        """`prepare` runs in the process before its first call, after the import of its module."""
        self._prepare = prepare
        self._made: tuple[ProcessPoolExecutor, Future[None]] | None = None  # and whether it takes calls
        self._line: deque[_Call] = deque()
        self._lock = asyncio.Lock()  # its waiters are in the order of the line
        # The result of a call that missed its deadline, and the loop's time at which the process is killed for it.
        self._overdue: tuple[Future[str], float] | None = None

    def __len__(self) -> int:
        """Return the number of unfinished calls."""
        return len(self._line) + (self._overdue is not None and not self._overdue[0].done())

    async def start(self) -> None:
        """Start the process, if there is none, and wait until it takes calls. Raises `TimeoutError`,
        `BrokenProcessPool`."""
        _, ready = self._made or self._make()
        await _result(ready, START_SECONDS)

    async def run(self, work: Callable[..., str], *arguments: str, timeout_seconds: float) -> str:
        """Run `work(*arguments)` in the process; the time starts when the call's turn comes.

        Raises `TimeoutError`, `BrokenProcessPool` if the call ended the process, or what it raised.
        """
        call = _Call(work, arguments)
        self._submit(call)
        self._line.append(call)
        loop = asyncio.get_running_loop()
        try:
            async with self._lock:
                await self._settled()
                await self.start()
                kill_at = loop.time() + MIN_KILL_SECONDS
                try:
                    return await _result(call.result, timeout_seconds)
                except TimeoutError:
                    if loop.time() >= kill_at:
                        raise
                    self._overdue = call.result, kill_at
        except (TimeoutError, BrokenProcessPool):
            self._replace(call)
            raise
        finally:
            self._line.remove(call)
        raise TimeoutError

    async def _settled(self) -> None:
        """Wait for an earlier call that missed its deadline; replace the process if it does not finish."""
        if self._overdue is None:
            return
        result, kill_at = self._overdue
        try:
            await _result(result, kill_at - asyncio.get_running_loop().time())
        except (TimeoutError, BrokenProcessPool):
            self._replace()
        except Exception:  # noqa: BLE001, S110 - its caller no longer waits
            pass
        self._overdue = None

    def _replace(self, failed: _Call | None = None) -> None:
        """Start a new process and submit all calls but `failed` at once, so that each keeps its place."""
        self.close()
        for waiting in self._line:
            if waiting is not failed:
                self._submit(waiting)

    def _submit(self, call: _Call) -> None:
        pool, _ = self._made or self._make()
        try:
            call.result = pool.submit(call.work, *call.arguments)
        except BrokenProcessPool:
            self.close()
            self._submit(call)

    def _make(self) -> tuple[ProcessPoolExecutor, Future[None]]:
        # Not fork: the parent has threads of Kafka clients.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_the_service)
        self._made = pool, pool.submit(self._prepare)
        return self._made

    def close(self) -> None:
        """Kill the process."""
        if self._made is None:
            return
        pool, _ = self._made
        self._made = self._overdue = None
        for process in list((pool._processes or {}).values()):  # the pool itself waits for a busy worker
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


async def _result(future: "Future[Result]", timeout_seconds: float) -> Result:
    """Wait for a result without cancelling it: a broken pool does not survive a cancelled call (Python 3.11)."""
    if future.done():
        return future.result()
    return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), timeout_seconds)


def _end_with_the_service() -> None:
    """Watch the service's process from the worker, which waits on a pipe that it holds open itself and would otherwise
    survive."""
    service = multiprocessing.parent_process()
    if service is not None:
        threading.Thread(target=_exit_after, args=[service], name="parent", daemon=True).start()


def _exit_after(service: BaseProcess) -> None:
    service.join()
    os._exit(1)


DEPTH = 4
"""Calls that a process has at once. It runs one after the other; with only one it would idle while a reply passes the
service's event loop, which under load takes longer than planning."""


def _reply(request: str, planner: str) -> str:
    """Call the planner in the worker process, JSON in and JSON out."""
    try:
        return ask(PlanRequest.model_validate_json(request), planner).model_dump_json()
    except (UnknownPlanner, InvalidParameters):
        raise
    except Exception as error:  # noqa: BLE001 - an exception class of a planner's package may not be picklable
        raise RuntimeError(str(error) or type(error).__name__) from None


def _warm() -> None:
    """Prepare the worker process: import what a first call would otherwise wait for."""
    installed()
    collect_seldom()


class Workers:
    """Worker processes for installed planners; a call goes to the one with the fewest calls."""

    def __init__(self, count: int = 1) -> None:
        self._processes = [WorkerProcess(_warm) for _ in range(count)]
        self._room = asyncio.Semaphore(count * DEPTH)
        # Shadows that hang must not take the places of candidates.
        self._alongside, self._shadows = Alongside(), Alongside()
        self._log = structlog.get_logger("planner")

    async def start(self) -> None:
        """Start the processes and wait for their imports."""
        await asyncio.gather(*(process.start() for process in self._processes))

    def looks_at(self, planner: str) -> frozenset[str]:
        """Return which of a request's `LARGE` fields the planner may read."""
        return reads(planner)

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        """Return the planner's reply, or a hold with the reason."""
        try:
            async with self._room:
                process = min(self._processes, key=len)
                question = needed(request, planner).model_dump_json()
                reply = await process.run(_reply, question, planner, timeout_seconds=timeout_seconds)
            return PlanReply.model_validate_json(reply)
        except TimeoutError:
            return no_reply(planner, TIMEOUT, f"planner {planner} did not reply within {timeout_seconds:g} s")
        except BrokenProcessPool:
            return no_reply(planner, FAILED, f"planner {planner} ended its process")
        except (UnknownPlanner, InvalidParameters) as error:
            return no_reply(planner, INVALID, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a planner raises, the plan is a hold
            self._log.warning("planner-raised", planner=planner, error=one_line(error))
            return no_reply(planner, FAILED, f"planner {planner} failed: {one_line(error)}")

    async def ask_alongside(self, requests: Sequence[ContenderRequest], timeout_seconds: float) -> list[PlanReply]:
        """Return each planner's reply, or a hold with the reason; each runs in its own process."""
        alongside = self._shadows if any(each.is_shadow for each in requests) else self._alongside
        return await alongside.ask(requests, timeout_seconds)

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.close()
