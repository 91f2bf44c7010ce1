"""Planners run in processes of their own with a deadline: one that hangs or crashes costs its answer, never the loop."""

import asyncio
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess

import structlog
from weir_contracts import PlanReply, PlanRequest

from .core.planners import InvalidParameters, UnknownPlanner, ask, needed
from .failures import FAILED, INVALID, TIMEOUT, no_answer


def _answer(request: str, planner: str) -> str:
    """In the worker: JSON in, JSON out, so that nothing but contracts crosses the border."""
    return ask(PlanRequest.model_validate_json(request), planner).model_dump_json()


def _end_with_the_service() -> None:
    """In the worker: watches the service's process. A worker waits for questions on a pipe that it holds open itself, so that it
    would otherwise outlive a service that was killed."""
    service = multiprocessing.parent_process()
    if service is not None:
        threading.Thread(target=_exit_after, args=[service], name="parent", daemon=True).start()


def _exit_after(service: BaseProcess) -> None:
    service.join()
    os._exit(1)


def _warm() -> str:
    """Imports what a first request would otherwise wait for."""
    return __name__


class Workers:
    """A pool of warm processes. A worker that outlives its deadline is killed with its pool, and a new pool is made."""

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        # No more questions than processes: a deadline is for the answer, not for the queue before it.
        self._free = asyncio.Semaphore(count)
        self._log = structlog.get_logger("planner")

    async def start(self) -> None:
        """Make the processes and let them import what they need."""
        pool = self._made()
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, _warm) for _ in range(self._count)))

    def _made(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not fork: the parent has threads of Kafka clients.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, mp_context=context, initializer=_end_with_the_service)
        return self._pool

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        """The planner's reply, or a hold that says why there is none."""
        async with self._free:
            return await self._ask(self._made(), request, planner, timeout_seconds)

    async def _ask(
        self, pool: ProcessPoolExecutor, request: PlanRequest, planner: str, timeout_seconds: float
    ) -> PlanReply:
        try:
            question = needed(request, planner).model_dump_json()
            asked = asyncio.get_running_loop().run_in_executor(pool, _answer, question, planner)
            return PlanReply.model_validate_json(await asyncio.wait_for(asked, timeout_seconds))
        except TimeoutError:
            self._discard(pool)
            return no_answer(planner, TIMEOUT, f"planner {planner} gave no answer within {timeout_seconds:g} s")
        except BrokenProcessPool:
            self._discard(pool)
            return no_answer(planner, FAILED, f"planner {planner} ended its process")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not this task was cancelled but its question, with the pool of another one that took too long.
            return no_answer(planner, FAILED, f"planner {planner} was stopped with another one's process")
        except (UnknownPlanner, InvalidParameters) as error:
            return no_answer(planner, INVALID, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a planner raises, the plan is a hold
            self._log.warning("planner-raised", planner=planner, error=str(error) or type(error).__name__)
            return no_answer(planner, FAILED, f"planner {planner} failed: {error or type(error).__name__}")

    def _discard(self, pool: ProcessPoolExecutor) -> None:
        if self._pool is pool:
            self._pool = None
        for process in list((pool._processes or {}).values()):  # the pool itself never gives up on a busy worker
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        if self._pool is not None:
            self._discard(self._pool)
