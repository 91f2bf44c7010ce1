"""Call installed planners in processes, with a deadline per call: one that hangs, exhausts memory or ends its process
costs its reply, never the loop.

All processes are forked from one without threads that has imported this module, and with it every planner. A replaced
process therefore takes calls again within some hundredths of a second.
"""

import asyncio
import gc
import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess

import structlog
from cachetools import LRUCache
from pebble import ProcessExpired, ProcessPool

from weir_contracts import PlanReply, PlanRequest, one_line
from weir_contracts.planning import parameters_id
from weir_runtime.loop import collect_seldom
from weir_sdk import InvalidParameters
from weir_sdk.installed import UnknownPlanner, ask, installed, needed, reads

from .core.breaker import Breaker
from .core.candidates import ContenderRequest, for_planner
from .core.decide import FAILED, INVALID, TIMEOUT
from .telemetry import PlannerFailed, no_reply

START_SECONDS = 60.0
STUCK_SECONDS = 300.0
"""A pool that neither answers a call nor ends it so long after its deadline is replaced: a process that is killed while
it takes a call keeps the lock of all. Longer than the calls before it may take, 60 s each."""
CALLS_WAITING = 4
"""Calls for each process that decides. It runs one after the other; with only one it would idle while a reply passes the
service's event loop, which under load takes longer than planning."""
CANDIDATES, SHADOWS = 10, 5
"""Processes for candidates and for shadows: the most that a policy may have, so that none waits for another. One that has
planned has about 13 MB of its own."""
ALONGSIDE_PRIORITY = 5
ALONGSIDE_CALLS = 100
"""Calls after which a candidate's process is replaced, with what they left in its memory."""
MAX_REPLY_BYTES = 1_000_000
CIRCUITS_KEPT = 10_000
STARTING = "the process that runs the candidates is still starting"

Answer = tuple[str | None, str]
"""A reply as JSON (code None), or code and sentence of why there is none."""


class Pool:
    """Processes that run calls. A call that exceeds its deadline, is cancelled or ends its process costs this process,
    which is replaced; calls that wait keep their places."""

    def __init__(self, processes: int, *, niceness: int = 0, calls_each: int = 0) -> None:
        """`calls_each`: calls after which a process is replaced; 0: it is kept."""
        self._processes, self._niceness, self._calls_each = processes, niceness, calls_each
        self._pool: ProcessPool | None = None
        self._starting: asyncio.Task[ProcessPool] | None = None

    async def start(self) -> ProcessPool:
        """Start the processes, if they do not run, and wait until one takes calls. Raises `OSError`, `RuntimeError`."""
        if self._pool is not None and self._pool.active:
            return self._pool
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(asyncio.to_thread(self._replaced, self._pool))
        return await asyncio.shield(self._starting)

    def _replaced(self, broken: ProcessPool | None) -> ProcessPool:
        if broken is not None:
            _end(broken)
        # Not fork: this process has the threads of the Kafka clients.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        pool = ProcessPool(
            self._processes, self._calls_each, initializer=_prepare, initargs=(self._niceness,), context=context
        )
        try:
            pool.schedule(_nothing).result(START_SECONDS)
        except BaseException:
            _end(pool)
            raise
        self._pool = pool
        return pool

    async def run(self, work: Callable[..., Answer], *arguments: str, timeout_seconds: float) -> Answer:
        """Run `work(*arguments)`, which must not raise; the time starts when a process takes the call.

        Raises `TimeoutError`, `ProcessExpired` if the call ended its process, `OSError` or `RuntimeError` if no process
        can be started.
        """
        for is_last in (False, True):
            pool = await self.start()
            try:
                call = pool.schedule(work, arguments, timeout=timeout_seconds)
                try:
                    return await asyncio.wait_for(asyncio.wrap_future(call), timeout_seconds + STUCK_SECONDS)
                except TimeoutError:
                    if call.cancelled() and self._pool is pool:
                        self._pool = None
                        await asyncio.to_thread(_end, pool)
                    raise
            except RuntimeError:
                # The pool broke before the call began, as after the death of an idle process: `start` makes another.
                if is_last:
                    raise
        raise AssertionError

    def close(self) -> None:
        """Kill the processes."""
        if self._pool is not None:
            _end(self._pool)


def _end(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def _nothing() -> None:
    """Show that a process takes calls."""


def _prepare(niceness: int) -> None:
    """Prepare a process for its calls."""
    # Pebble's own handler waits for code that does not return to the interpreter.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(OSError):
        os.nice(niceness)
    service = multiprocessing.parent_process()
    if service is not None:
        # A process in a call would survive a service that was killed.
        threading.Thread(target=_exit_after, args=[service], name="parent", daemon=True).start()
    installed()
    gc.freeze()  # first: what was forked stays shared
    collect_seldom()


def _exit_after(service: BaseProcess) -> None:
    service.join()
    os._exit(1)


def _answer(planner: str, request: str, own: str = "") -> Answer:
    """Call the planner in the process; `own`: the parameters and the memory of a candidate or shadow, as JSON."""
    try:
        question = PlanRequest.model_validate_json(request)
        if own:
            question = for_planner(question, planner, **json.loads(own))
        reply = ask(question, planner).model_dump_json()
    except (UnknownPlanner, InvalidParameters) as error:
        return INVALID, str(error)
    except BaseException as error:  # noqa: BLE001 - whatever a planner raises costs only its own reply
        return FAILED, f"planner {planner} failed: {one_line(error)}"
    if len(reply) > MAX_REPLY_BYTES:
        return FAILED, f"planner {planner} failed: its reply has more than {MAX_REPLY_BYTES:,} bytes"
    return None, reply


class Workers:
    """Processes for installed planners: those that decide, candidates and shadows. None of these can take the others'
    processes."""

    def __init__(self, count: int = 1) -> None:
        """`count`: processes for planners that decide."""
        self._deciding = Pool(count)
        self._room = asyncio.Semaphore(count * CALLS_WAITING)
        self._candidates, self._shadows = (
            Pool(processes, niceness=ALONGSIDE_PRIORITY, calls_each=ALONGSIDE_CALLS)
            for processes in (CANDIDATES, SHADOWS)
        )
        self._circuits: LRUCache[tuple[str, str, str], Breaker] = LRUCache(CIRCUITS_KEPT)
        self._log = structlog.get_logger("planner")

    async def start(self) -> None:
        """Start the processes that decide; those of candidates and shadows start with the first of these."""
        await self._deciding.start()

    def looks_at(self, planner: str) -> frozenset[str]:
        """Return which of a request's `LARGE` fields the planner may read."""
        return reads(planner)

    async def ask(self, request: PlanRequest, planner: str, timeout_seconds: float) -> PlanReply:
        """Return the planner's reply, or a hold with the reason."""
        try:
            async with self._room:
                question = needed(request, planner).model_dump_json()
                return await _reply(self._deciding, planner, question, timeout_seconds=timeout_seconds)
        except PlannerFailed as failure:
            if failure.code == FAILED:
                self._log.warning("planner-failed", planner=planner, reason=failure.sentence)
            return no_reply(planner, failure.code, failure.sentence)

    async def ask_alongside(self, requests: Sequence[ContenderRequest], timeout_seconds: float) -> list[PlanReply]:
        """Return the reply of each candidate, or of each shadow, or a hold with the reason; the time starts now."""
        if not requests:
            return []
        pool = self._shadows if any(each.is_shadow for each in requests) else self._candidates
        until = asyncio.get_running_loop().time() + timeout_seconds
        try:
            async with asyncio.timeout_at(until):
                await pool.start()
        except (OSError, RuntimeError):
            return [no_reply(each.planner, FAILED, STARTING, "starting", of_shadow=each.is_shadow) for each in requests]
        # They differ in their parameters and memories: the request is encoded once.
        widest = max((each.planner for each in requests), key=lambda name: len(reads(name)))
        question = needed(requests[0].request, widest).model_dump_json()
        calls = [self._ask_contender(pool, each, question, until, timeout_seconds) for each in requests]
        return list(await asyncio.gather(*calls))

    async def _ask_contender(
        self, pool: Pool, call: ContenderRequest, question: str, until: float, timeout_seconds: float
    ) -> PlanReply:
        """Return a candidate's or a shadow's reply, or a hold with the reason. One that gives no reply five times in a
        row about an application is not called about it for a while."""
        name, parameters = call.planner, call.request.policy.spec.planner.parameters
        key = call.request.application, call.label, parameters_id(parameters)
        circuit, now = self._circuits.get(key, Breaker()), time.monotonic()
        if (waits := circuit.waits_seconds(now, timeout_seconds)) > 0:
            sentence = (
                f"planner {name} is not called for another {waits:.0f} s after {circuit.failures} failures in a row, "
                f"the last: {circuit.last_failure}"
            )
            return no_reply(name, FAILED, sentence, "circuit-open", of_shadow=call.is_shadow)
        self._circuits[key] = circuit.called(now, timeout_seconds)
        own = json.dumps({"parameters": parameters, "memory": call.request.memory})
        try:
            reply = await _reply(pool, name, question, own, timeout_seconds=timeout_seconds, until=until)
        except PlannerFailed as failure:
            given = timeout_seconds if failure.code == TIMEOUT else math.inf
            circuit = self._circuits.get(key, Breaker())
            self._circuits[key] = circuit.failed(time.monotonic(), failure.sentence, given)
            event = "shadow-failed" if call.is_shadow else "candidate-failed"
            application = call.request.application
            self._log.warning(event, planner=name, application=application, reason=failure.sentence)
            return no_reply(name, failure.code, failure.sentence, of_shadow=call.is_shadow)
        self._circuits[key] = Breaker()
        return reply

    def close(self) -> None:
        """Kill the processes."""
        for pool in (self._deciding, self._candidates, self._shadows):
            pool.close()


async def _reply(
    pool: Pool, planner: str, *arguments: str, timeout_seconds: float, until: float | None = None
) -> PlanReply:
    """Return the planner's reply. Raises `PlannerFailed`, also at `until`, a time of the event loop."""
    try:
        async with asyncio.timeout_at(until):
            code, text = await pool.run(_answer, planner, *arguments, timeout_seconds=timeout_seconds)
    except TimeoutError:
        sentence = f"planner {planner} did not reply within {timeout_seconds:g} s"
        raise PlannerFailed(sentence, code=TIMEOUT) from None
    except ProcessExpired:
        raise PlannerFailed(f"planner {planner} ended its process") from None
    except (OSError, RuntimeError) as error:
        raise PlannerFailed(f"planner {planner} failed: {one_line(error)}") from None
    if code is not None:
        raise PlannerFailed(text, code=code)
    try:
        return PlanReply.model_validate_json(text)
    except ValueError:
        raise PlannerFailed(f"planner {planner} failed: its reply cannot be read") from None


installed()  # for the process that all others are forked from
