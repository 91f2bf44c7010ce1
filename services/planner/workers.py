"""Built-in planners run in processes of their own with a deadline: one that hangs or crashes costs its answer, never the loop."""

import asyncio
from concurrent.futures.process import BrokenProcessPool

import structlog
from weir_contracts import PlanReply, PlanRequest
from weir_planner.installed import InvalidParameters, UnknownPlanner, ask, installed, needed, reads

from runtime.garbage import collect_seldom

from .core.decide import FAILED, INVALID, TIMEOUT
from .failures import no_reply
from .process import WorkerProcess

DEPTH = 4
"""Questions that a process has at once. It answers one after the other; with no other at hand it would idle for as long as an answer
takes to get through the service's event loop, which under load is longer than the answering."""


def _answer(request: str, planner: str) -> str:
    """In the process: JSON in, JSON out, so that nothing but contracts crosses the border."""
    try:
        return ask(PlanRequest.model_validate_json(request), planner).model_dump_json()
    except (UnknownPlanner, InvalidParameters):
        raise
    except Exception as error:  # noqa: BLE001 - an exception class of a planner's package may not survive the way back
        raise RuntimeError(str(error) or type(error).__name__) from None


def _warm() -> None:
    """In the process: import what a first question would otherwise wait for."""
    installed()
    collect_seldom()


class Workers:
    """Processes that built-in planners are asked in: whichever has the fewest questions."""

    def __init__(self, count: int = 1) -> None:
        self._processes = [WorkerProcess(_warm) for _ in range(count)]
        self._room = asyncio.Semaphore(count * DEPTH)
        self._log = structlog.get_logger("planner")

    async def start(self) -> None:
        """Make the processes and let them import what they need."""
        await asyncio.gather(*(process.start() for process in self._processes))

    def looks_at(self, planner: str) -> frozenset[str]:
        """Which of a request's `LARGE` fields this one may look at."""
        return reads(planner)

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        """The planner's reply, or a hold that says why there is none."""
        try:
            async with self._room:
                process = min(self._processes, key=len)
                question = needed(request, planner).model_dump_json()
                reply = await process.run(_answer, question, planner, timeout_seconds=timeout_seconds)
            return PlanReply.model_validate_json(reply)
        except TimeoutError:
            return no_reply(planner, TIMEOUT, f"planner {planner} gave no answer within {timeout_seconds:g} s")
        except BrokenProcessPool:
            return no_reply(planner, FAILED, f"planner {planner} ended its process")
        except (UnknownPlanner, InvalidParameters) as error:
            return no_reply(planner, INVALID, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a planner raises, the plan is a hold
            self._log.warning("planner-raised", planner=planner, error=str(error) or type(error).__name__)
            return no_reply(planner, FAILED, f"planner {planner} failed: {error or type(error).__name__}")

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.close()
