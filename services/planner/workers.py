"""Call installed planners in worker processes with a deadline: one that hangs or crashes costs its reply, never the loop."""

import asyncio
from concurrent.futures.process import BrokenProcessPool

import structlog
from weir_contracts import PlanReply, PlanRequest, one_line
from weir_planner.installed import InvalidParameters, UnknownPlanner, ask, installed, needed, reads

from runtime.garbage import collect_seldom

from .core.decide import FAILED, INVALID, TIMEOUT
from .failures import no_reply
from .process import WorkerProcess

DEPTH = 4
"""Calls that a process has at once. It runs one after the other; with only one it would idle while a reply passes the service's event
loop, which under load takes longer than planning."""


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

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.close()
