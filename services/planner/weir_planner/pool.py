"""Call installed planners in processes, with a deadline per call: one that hangs, exhausts memory or ends its process
costs its reply, never the loop.

A planner that decides is called in a process that is spawned and kept. A candidate or shadow has a process for one call,
forked from one without threads that has imported this module, and with it every planner; what it leaves there (threads,
children, memory) ends with the call. No two processes share a socket, so a killed one blocks no other.
"""

import asyncio
import gc
import json
import math
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.process import BaseProcess
from weakref import WeakValueDictionary

import structlog
from cachetools import LRUCache

from weir_contracts import MAX_REPLY_BYTES, PlanReply, PlanRequest, one_line
from weir_contracts.plan_state import parameters_id
from weir_runtime.loop import collect_seldom
from weir_sdk import InvalidParameters
from weir_sdk.installed import UnknownPlanner, ask, installed, needed, reads

from .core.breaker import Breaker
from .core.candidates import ContenderRequest, for_planner
from .core.decide import FAILED, INVALID, TIMEOUT
from .telemetry import PlannerFailed, no_reply

START_SECONDS = 60.0
CALLS_WAITING = 4
"""Encoded calls for each process that decides: the next one is sent before the last reply is read."""
CANDIDATES, SHADOWS = 15, 8
"""Processes for candidates and for shadows. One application may hold fewer, so that its planners that hang leave some to the
others."""
CANDIDATES_EACH, SHADOWS_EACH = 10, 5
"""Maximum for one application: as many as a policy may have, so that none of them waits for another."""
ALONGSIDE_PRIORITY = 5
ORPHAN_SECONDS = 1.0
"""Time after its deadline at which the kernel ends a call whose service was killed, also in code that never returns to
Python."""
CIRCUITS_KEPT = 10_000
_LENGTH = struct.Struct("!I")
"""Before each call and each answer on the socket: its bytes."""
STARTING = "the process that runs the candidates is still starting"

Answer = tuple[str | None, str]
"""A reply as JSON (code None), or code and sentence of why there is none."""


class Ended(Exception):
    """A call ended its process."""


class NoProcess(Exception):
    """A call did not begin in its time: no process was free."""


class _Process:
    """A process and the socket on which it takes calls."""

    def __init__(self, process: BaseProcess, calls: socket.socket) -> None:
        self._process, self._calls = process, calls

    async def receive(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises `Ended`."""
        loop, parts, missing = asyncio.get_running_loop(), [], count
        while missing:
            try:
                part = await loop.sock_recv(self._calls, missing)
            except OSError:
                part = b""
            if not part:
                raise Ended
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    async def run(self, work: Callable[..., Answer], arguments: Sequence[str], timeout_seconds: float) -> Answer:
        """Return the answer of `work`. Raises `Ended`, and `OSError` if what comes back is longer than an answer may be."""
        call = pickle.dumps((work, arguments, timeout_seconds))
        try:
            await asyncio.get_running_loop().sock_sendall(self._calls, _LENGTH.pack(len(call)) + call)
        except OSError:
            raise Ended from None
        (length,) = _LENGTH.unpack(await self.receive(_LENGTH.size))
        if length > 2 * MAX_REPLY_BYTES:
            raise OSError(f"it wrote {length:,} bytes")
        code, _, text = (await self.receive(length)).decode(errors="replace").partition("\n")
        return code or None, text

    def is_idle(self) -> bool:
        """Return whether it waits for a call: it has neither ended nor written anything since its last answer."""
        try:
            self._calls.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def end(self) -> None:
        """Kill it with the children that its calls left."""
        self._calls.close()
        if self._process.pid is not None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()


class Pool:
    """Processes that run calls, one at a time each. A call that exceeds its deadline, is cancelled or ends its process
    costs this process; calls that wait keep their places."""

    def __init__(self, processes: int, *, is_kept: bool = True, each: int | None = None, niceness: int = 0) -> None:
        """`is_kept`: spawn processes and keep them; else fork one for each call. `each`: maximum for one holder at
        a time."""
        self._count, self._is_kept, self._niceness = processes, is_kept, niceness
        self._each = each or processes
        self._free = asyncio.Semaphore(processes)
        self._free_of = WeakValueDictionary[str, asyncio.Semaphore]()
        self._running = set[_Process]()
        self._idle = list[_Process]()
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait until the processes take calls, or until one does that was forked. Raises `OSError`."""
        if self._starting is None or (
            self._starting.done() and (self._starting.cancelled() or self._starting.exception())
        ):
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        async def idle() -> None:
            self._idle.append(await self._started())

        await asyncio.gather(*(idle() for _ in range(self._count if self._is_kept else 1)))

    async def _started(self) -> _Process:
        """Return a new process that waits for a call. Raises `OSError`."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # Not fork: this process has the threads of the Kafka clients.
        made: SpawnProcess | ForkServerProcess
        if self._is_kept:
            made = multiprocessing.get_context("spawn").Process(
                target=_serve, args=(theirs, self._niceness), daemon=True
            )
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])
            made = context.Process(target=_serve, args=(theirs, self._niceness, 1), daemon=True)
        process = _Process(made, ours)
        self._running.add(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.to_thread(_launch, made, theirs)
                await process.receive(1)
        except BaseException as error:
            self._end(process)
            if isinstance(error, TimeoutError):
                raise OSError(f"no process started within {START_SECONDS:g} s") from None
            if isinstance(error, Ended | EOFError):
                raise OSError("a process ended while it started") from None
            raise
        return process

    def _end(self, process: _Process) -> None:
        self._running.discard(process)
        process.end()

    async def run(
        self,
        work: Callable[..., Answer],
        *arguments: str,
        timeout_seconds: float,
        until: float | None = None,
        holder: str = "",
    ) -> Answer:
        """Run `work(*arguments)`, which must not raise; the time starts when a process takes the call, and ends at `until`
        at the latest, a time of the event loop.

        Raises `TimeoutError`, `NoProcess` if the call did not begin, `Ended` if it ended its process, `OSError` if no
        process can be started.
        """
        process = None
        free_of_holder = self._free_of.setdefault(holder, asyncio.Semaphore(self._each))
        try:
            async with asyncio.timeout_at(until), free_of_holder, self._free:
                process = await self._taken()
                async with asyncio.timeout(timeout_seconds):
                    answer = await process.run(work, arguments, timeout_seconds)
                if self._is_kept:
                    self._idle.append(process)
                    process = None
        except TimeoutError:
            if process is None:
                raise NoProcess from None
            raise
        finally:
            if process is not None:
                self._end(process)
        # The next call is sent before this one's reply is read, so that the process does not wait for the event loop.
        await asyncio.sleep(0)
        return answer

    async def _taken(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.is_idle():
                return process
            self._end(process)
        return await self._started()

    def close(self) -> None:
        """Kill the processes."""
        for process in list(self._running):
            self._end(process)
        self._idle.clear()


def _launch(process: BaseProcess, calls: socket.socket) -> None:
    with calls:
        try:
            process.start()
        except (OSError, EOFError):
            process.start()  # the process that it is forked from had just died: this makes another


def _serve(calls: socket.socket, niceness: int, count: int = 0) -> None:
    """Prepare this process, then run `count` calls (0: any number)."""
    # `end` kills the process group, and with it the children that the calls left.
    os.setpgid(0, 0)
    with suppress(OSError):
        os.nice(niceness)
    service = multiprocessing.parent_process()
    if service is not None:
        # A process in a call would survive a service that was killed.
        threading.Thread(target=_exit_after, args=[service], name="parent", daemon=True).start()
    installed()
    gc.freeze()  # first: what was forked stays shared
    collect_seldom()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with suppress(OSError), calls, calls.makefile("rwb") as stream:  # the service may have ended
        stream.write(b"\n")
        stream.flush()
        while header := stream.read(_LENGTH.size):
            call = stream.read(*_LENGTH.unpack(header))
            work, arguments, timeout_seconds = pickle.loads(call)  # noqa: S301 - the service wrote it
            signal.setitimer(signal.ITIMER_REAL, timeout_seconds + ORPHAN_SECONDS)
            code, text = work(*arguments)
            signal.setitimer(signal.ITIMER_REAL, 0)
            answer = f"{code or ''}\n{text}".encode(errors="replace")
            stream.write(_LENGTH.pack(len(answer)) + answer)
            stream.flush()
            count -= 1
            if count == 0:
                break
    # Not by return, which waits for the threads that calls left.
    os._exit(0)


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
    if len(reply.encode()) > MAX_REPLY_BYTES:
        return FAILED, f"planner {planner} failed: its reply has more than {MAX_REPLY_BYTES:,} bytes"
    return None, reply


class Workers:
    """Processes for installed planners: those that decide, candidates and shadows. None of these can take the others'
    processes."""

    def __init__(self, count: int = 1) -> None:
        """`count`: processes for planners that decide."""
        self._deciding = Pool(count)
        self._room = asyncio.Semaphore(count * CALLS_WAITING)
        self._candidates = Pool(CANDIDATES, is_kept=False, each=CANDIDATES_EACH, niceness=ALONGSIDE_PRIORITY)
        self._shadows = Pool(SHADOWS, is_kept=False, each=SHADOWS_EACH, niceness=ALONGSIDE_PRIORITY)
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
                question = _encoded(request, planner)
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
            # They differ in their parameters and memories: the request is encoded once.
            widest = max((each.planner for each in requests), key=lambda name: len(reads(name)))
            question = _encoded(requests[0].request, widest)
        except OSError:
            return [no_reply(each.planner, FAILED, STARTING, "starting", of_shadow=each.is_shadow) for each in requests]
        except PlannerFailed as failure:
            return [no_reply(each.planner, FAILED, failure.sentence, of_shadow=each.is_shadow) for each in requests]
        calls = [self._ask_contender(pool, each, question, until, timeout_seconds) for each in requests]
        return list(await asyncio.gather(*calls))

    async def _ask_contender(
        self, pool: Pool, call: ContenderRequest, question: str, until: float, timeout_seconds: float
    ) -> PlanReply:
        """Return a candidate's or a shadow's reply, or a hold with the reason. One that gives no reply five times in a
        row about an application is not called about it for a while."""
        name, parameters = call.planner, call.request.policy.spec.planner.parameters
        application = call.request.application
        key = application, call.label, parameters_id(parameters)
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
            reply = await _reply(
                pool, name, question, own, timeout_seconds=timeout_seconds, until=until, holder=application
            )
        except PlannerFailed as failure:
            if failure.counts:
                given = timeout_seconds if failure.code == TIMEOUT else math.inf
                circuit = self._circuits.get(key, Breaker())
                self._circuits[key] = circuit.failed(time.monotonic(), failure.sentence, given)
            event = "shadow-failed" if call.is_shadow else "candidate-failed"
            self._log.warning(event, planner=name, application=application, reason=failure.sentence)
            return no_reply(name, failure.code, failure.sentence, of_shadow=call.is_shadow)
        self._circuits[key] = Breaker()
        return reply

    def close(self) -> None:
        """Kill the processes."""
        for pool in (self._deciding, self._candidates, self._shadows):
            pool.close()


def _encoded(request: PlanRequest, planner: str) -> str:
    """Return as JSON what the planner may read. Raises `PlannerFailed`."""
    try:
        return needed(request, planner).model_dump_json()
    except ValueError as error:
        raise PlannerFailed(
            f"planner {planner} was not called: its request cannot be encoded: {one_line(error)}"
        ) from None


async def _reply(
    pool: Pool,
    planner: str,
    *arguments: str,
    timeout_seconds: float,
    until: float | None = None,
    holder: str = "",
) -> PlanReply:
    """Return the planner's reply. Raises `PlannerFailed`, also at `until`, a time of the event loop."""
    try:
        code, text = await pool.run(
            _answer, planner, *arguments, timeout_seconds=timeout_seconds, until=until, holder=holder
        )
    except TimeoutError:
        sentence = f"planner {planner} did not reply within {timeout_seconds:g} s"
        raise PlannerFailed(sentence, code=TIMEOUT) from None
    except NoProcess:
        sentence = f"planner {planner} was not called: no process was free for {timeout_seconds:g} s"
        raise PlannerFailed(sentence, counts=False) from None
    except Ended:
        raise PlannerFailed(f"planner {planner} ended its process") from None
    except OSError as error:
        raise PlannerFailed(f"planner {planner} failed: {one_line(error)}") from None
    if code is not None:
        raise PlannerFailed(text, code=code)
    try:
        return PlanReply.model_validate_json(text)
    except ValueError:
        raise PlannerFailed(f"planner {planner} failed: its reply cannot be read") from None


installed()  # for the process that all others are forked from
