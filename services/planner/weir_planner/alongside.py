"""Ask installed candidates, or shadows, side by side: each call is a dedicated process, forked from one that has
imported all planners, and ends at the deadline whatever it does.

The loop's worker processes run one call after the other, so that a call that hangs would delay the calls behind it.
"""

import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import structlog
from cachetools import LRUCache

from weir_contracts import PlanReply, PlanRequest, one_line
from weir_contracts.planning import parameters_id
from weir_sdk import InvalidParameters
from weir_sdk.installed import UnknownPlanner, ask, needed, reads

from .core.breaker import Breaker
from .core.contest import ContenderRequest, for_planner
from .core.decide import FAILED, INVALID, TIMEOUT
from .failures import no_reply

PRELOADED = "weir_planner.preloaded"
MAX_CYCLES = 16
"""Applications whose candidates are called at once; further ones wait within their own deadline."""
MAX_REPLY_BYTES = 1_000_000
GRACE_SECONDS = 1.0
"""For the reply of the process that waits for the candidates."""
START_SECONDS = 60.0
CIRCUITS_KEPT = 10_000
_PRIORITY = 5
STARTING = "the process that runs the candidates is still starting"

_Key = tuple[str, str, str]


class _Answer(NamedTuple):
    """A reply as JSON (code None), or why there is none."""

    code: str | None
    text: str


class Alongside:
    """Asks installed planners in dedicated processes. One that gives no answer five times in a row about an
    application is not called about it for a while."""

    def __init__(self) -> None:
        # Forked from a process without threads; this one has those of the Kafka clients.
        self._context = multiprocessing.get_context("forkserver")
        self._room = asyncio.Semaphore(MAX_CYCLES)
        self._starting: asyncio.Task[None] | None = None
        self._circuits: LRUCache[_Key, Breaker] = LRUCache(CIRCUITS_KEPT)
        self._log = structlog.get_logger("planner")

    async def ask(self, requests: Sequence[ContenderRequest], timeout_seconds: float) -> list[PlanReply]:
        """Return each planner's reply, or a hold with the reason why there is none."""
        if not requests:
            return []
        deadline = time.monotonic() + timeout_seconds
        if not await self._started(timeout_seconds):
            return [no_reply(each.planner, FAILED, STARTING, "starting", of_shadow=each.is_shadow) for each in requests]
        now = time.monotonic()
        paused = {key: wait for each in requests if (wait := self._waits(key := _key(each), now, timeout_seconds)) > 0}
        called = [each for each in requests if _key(each) not in paused]
        answers = dict(
            zip((_key(each) for each in called), await self._called(called, deadline, timeout_seconds), strict=True)
        )
        return [self._reply(each, answers.get(_key(each)), paused, timeout_seconds) for each in requests]

    async def _started(self, timeout_seconds: float) -> bool:
        """Start the process that candidates are forked from; return whether it has imported everything in time."""
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.create_task(self._start())
        await asyncio.wait([self._starting], timeout=timeout_seconds)
        return self._starting.done() and self._starting.exception() is None

    async def _start(self) -> None:
        self._context.set_forkserver_preload([PRELOADED])
        first = self._context.Process(target=_nothing, daemon=True)
        await asyncio.to_thread(first.start)
        await asyncio.to_thread(first.join, START_SECONDS)

    def _waits(self, key: _Key, now: float, timeout_seconds: float) -> float:
        circuit = self._circuits.get(key, Breaker())
        waits = circuit.waits_seconds(now, timeout_seconds)
        if waits <= 0:
            self._circuits[key] = circuit.called(now, timeout_seconds)
        return waits

    def _reply(
        self, each: ContenderRequest, answer: _Answer | None, paused: Mapping[_Key, float], timeout_seconds: float
    ) -> PlanReply:
        key, name = _key(each), each.planner
        circuit = self._circuits.get(key, Breaker())
        if answer is None:
            sentence = (
                f"planner {name} is not called for another {paused[key]:.0f} s after {circuit.failures} failures in a "
                f"row, the last: {circuit.last_failure}"
            )
            return no_reply(name, FAILED, sentence, "circuit-open", of_shadow=each.is_shadow)
        code, sentence = answer
        if code is None:
            try:
                reply = PlanReply.model_validate_json(answer.text)
            except ValueError:
                code, sentence = FAILED, f"planner {name} failed: its reply cannot be read"
            else:
                self._circuits[key] = circuit.answered()
                return reply
        given = timeout_seconds if code == TIMEOUT else math.inf
        self._circuits[key] = circuit.failed(time.monotonic(), sentence, given)
        event = "shadow-failed" if each.is_shadow else "candidate-failed"
        self._log.warning(event, planner=name, application=each.request.application, reason=sentence)
        return no_reply(name, code, sentence, of_shadow=each.is_shadow)

    async def _called(
        self, requests: Sequence[ContenderRequest], deadline: float, timeout_seconds: float
    ) -> list[_Answer]:
        if not requests:
            return []
        late = [
            _Answer(TIMEOUT, f"planner {each.planner} did not reply within {timeout_seconds:g} s") for each in requests
        ]
        try:
            async with asyncio.timeout(deadline + GRACE_SECONDS - time.monotonic()), self._room:
                return await self._in_processes(_task(requests, deadline, timeout_seconds))
        except TimeoutError:
            return late
        except (OSError, EOFError, ValueError) as error:
            self._log.warning("candidates-failed", reason=one_line(error))
            return [_Answer(FAILED, f"planner {each.planner} failed: {one_line(error)}") for each in requests]

    async def _in_processes(self, task: str) -> list[_Answer]:
        receiving, sending = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_cycle, args=(sending, task), daemon=True)
        try:
            await asyncio.to_thread(process.start)
            sending.close()
            await _readable(receiving)
            return [_Answer(*each) for each in json.loads(await asyncio.to_thread(receiving.recv_bytes))]
        finally:
            receiving.close()
            if process.pid is not None:
                process.kill()


def _key(call: ContenderRequest) -> _Key:
    parameters = call.request.policy.spec.planner.parameters
    return call.request.application, call.label, parameters_id(parameters)


def _task(requests: Sequence[ContenderRequest], deadline: float, timeout_seconds: float) -> str:
    """Return the candidates' common request and what differs, as JSON."""
    names = [each.planner for each in requests]
    widest = max(names, key=lambda name: len(reads(name)))
    calls = [
        {
            "planner": each.planner,
            "parameters": each.request.policy.spec.planner.parameters,
            "memory": each.request.memory,
        }
        for each in requests
    ]
    request = needed(requests[0].request, widest).model_dump_json()
    return json.dumps({"request": request, "calls": calls, "deadline": deadline, "timeout_seconds": timeout_seconds})


async def _readable(connection: Connection) -> None:
    """Wait for the first byte without a thread: many applications may wait at once."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection.fileno(), came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(connection.fileno())


def _nothing() -> None:
    """Show that the process from which candidates are forked has imported everything."""


def _cycle(connection: Connection, text: str) -> None:
    """Fork a process for each candidate, and send all replies at the deadline (monotonic, the same for all processes of
    the machine) or as soon as there are all."""
    task = json.loads(text)
    deadline = task["deadline"]
    _end_after(deadline + GRACE_SECONDS - time.monotonic())
    request = PlanRequest.model_validate_json(task["request"])
    pipes, pids = dict[int, int](), list[int]()
    for i, call in enumerate(task["calls"]):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _answer(request, call, writing, deadline)
        os.close(writing)
        pipes[reading] = i
        pids.append(pid)
    written = _collected(pipes, deadline)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    answers = []
    for i, call in enumerate(task["calls"]):
        name = call["planner"]
        late = TIMEOUT, f"planner {name} did not reply within {task['timeout_seconds']:g} s"
        answers.append(_read(name, written[i]) if i in written else late)
    connection.send_bytes(json.dumps(answers).encode())
    connection.close()


def _collected(pipes: Mapping[int, int], deadline: float) -> dict[int, bytes | None]:
    """Return what the candidates wrote until they ended, by their number; None for too much. Those that still run at
    the deadline have no entry."""
    found, parts, opened = dict[int, bytes | None](), dict.fromkeys(pipes, b""), set(pipes)
    while opened and (left := deadline - time.monotonic()) > 0:
        for fd in select.select(list(opened), [], [], left)[0]:
            piece = os.read(fd, 65_536)
            parts[fd] += piece
            if not piece or len(parts[fd]) > MAX_REPLY_BYTES:
                found[pipes[fd]] = parts[fd] if not piece else None
                opened.discard(fd)
    return found


def _read(planner: str, written: bytes | None) -> tuple[str | None, str]:
    """Return code and text of what a candidate wrote; nothing if it ended its process."""
    if written is None:
        return FAILED, f"planner {planner} failed: its reply has more than {MAX_REPLY_BYTES:,} bytes"
    if not written:
        return FAILED, f"planner {planner} ended its process"
    code, text = json.loads(written)
    return code, text


def _answer(request: PlanRequest, call: Mapping[str, Any], writing: int, deadline: float) -> None:
    """Write the planner's reply, and end this process."""
    # Later than the deadline, at which the process that collects the replies ends this one.
    _end_after(deadline + GRACE_SECONDS - time.monotonic())
    with contextlib.suppress(OSError):
        os.nice(_PRIORITY)
    name = call["planner"]
    try:
        own = for_planner(request, name, call["parameters"], call["memory"])
        answer: tuple[str | None, str] = None, ask(own, name).model_dump_json()
    except (UnknownPlanner, InvalidParameters) as error:
        answer = INVALID, str(error)
    except BaseException as error:  # noqa: BLE001 - whatever a planner raises, it costs only its own reply
        answer = FAILED, f"planner {name} failed: {one_line(error)}"
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(json.dumps(answer).encode())
    os._exit(0)


def _end_after(seconds: float) -> None:
    """Let the kernel end this process after so long, also within code that returns to no interpreter."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
