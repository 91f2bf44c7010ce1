"""Call functions in processes, with a deadline per call: one that hangs, exhausts memory or ends its process costs its
answer, never the loop.

A pool keeps processes that it has spawned, or forks one for each call from one without threads that has imported every
planner; what such a call leaves there (threads, children, memory) ends with it. No two processes share a socket, so a
killed one blocks no other.
"""

import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Any

from weir_contracts import MAX_REPLY_BYTES
from weir_runtime.loop import collect_seldom
from weir_sdk.installed import installed

FORKED_FROM = f"{__package__}.workers"
"""Module that imports every planner, loaded once in the process that calls are forked from."""
START_SECONDS = 60.0
FORK_SECONDS = 5.0
"""Time limit of a fork, which usually takes a few hundredths of a second; after it the process that calls are forked from
counts as hung and is replaced."""
ORPHAN_SECONDS = 1.0
"""Time after its deadline at which the kernel ends a call whose service was killed, also in code that never returns to
Python."""
_LENGTH = struct.Struct("!I")
"""Before each call and each answer on the socket: its bytes."""

Answer = tuple[str | None, str]
"""What a call returns (code None), or code and sentence of why there is nothing."""


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

    async def run(self, work: Callable[..., Answer], arguments: Sequence[Any], timeout_seconds: float) -> Answer:
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


class _Places:
    """The processes of a pool as places, for which calls wait in the order in which they came.

    A holder takes another place only if at least half as many as it already has are free afterwards: one holder gets at
    most ten of fifteen, the next one three of the other five. So holders whose calls hang leave places to the others.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._held = Counter[str]()
        self._waiting: dict[asyncio.Future[None], str | None] = {}

    @asynccontextmanager
    async def taken(self, holder: str | None) -> AsyncIterator[None]:
        """Wait for a place and take it; without a holder any that is free."""
        place = asyncio.get_running_loop().create_future()
        self._waiting[place] = holder
        self._hand_out()
        try:
            await place
            yield
        finally:
            if place in self._waiting:  # cancelled before it had one
                del self._waiting[place]
            else:
                self._free += 1
                if holder is not None:
                    self._held[holder] -= 1
                    if self._held[holder] == 0:
                        del self._held[holder]
            self._hand_out()

    def _hand_out(self) -> None:
        for place, holder in list(self._waiting.items()):
            if self._free == 0:
                return
            if place.done() or self._free <= (0 if holder is None else (self._held[holder] + 1) // 2):
                continue
            del self._waiting[place]
            self._free -= 1
            if holder is not None:
                self._held[holder] += 1
            place.set_result(None)


class Pool:
    """Processes that run calls, one at a time each. A call that exceeds its deadline, is cancelled or ends its process
    costs this process; calls that wait keep their places."""

    def __init__(self, processes: int, *, is_kept: bool = True, niceness: int = 0) -> None:
        """`is_kept`: spawn processes and keep them; else fork one for each call."""
        self._count, self._is_kept, self._niceness = processes, is_kept, niceness
        self._places = _Places(processes)
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
            context.set_forkserver_preload([FORKED_FROM])
            made = context.Process(target=_serve, args=(theirs, self._niceness, 1), daemon=True)
        process, handed = _Process(made, ours), deque([theirs])
        self._running.add(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.to_thread(_launch, made, handed)
                await process.receive(1)
        except BaseException as error:
            with suppress(IndexError):
                handed.pop().close()  # no thread was free to begin
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
        *arguments: Any,
        timeout_seconds: float,
        until: float | None = None,
        holder: str | None = None,
    ) -> Answer:
        """Run `work(*arguments)`, which must not raise; the time starts when a process takes the call, and ends at `until`
        at the latest, a time of the event loop. `holder`: the application or planner that the call is for, which gets a
        limited number of processes.

        Raises `TimeoutError`, `NoProcess` if the call did not begin, `Ended` if it ended its process, `OSError` if no
        process can be started.
        """
        process = None
        try:
            async with asyncio.timeout_at(until), self._places.taken(holder):
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


def _launch(process: BaseProcess, handed: deque[socket.socket]) -> None:
    """Start a process and close this side's copy of its socket. If the caller gave up before, `handed` is empty: `IndexError`."""
    calls = handed.pop()
    parent: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    watch = threading.Timer(FORK_SECONDS, _end_parent, [parent])
    watch.daemon = True
    if isinstance(process, ForkServerProcess) and parent is not None:
        watch.start()
    # Ctrl-C reaches every process of a terminal, and one that still imports would write a traceback: the service ends it.
    # The tracker comes first, since its start ends the block.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with calls:
        try:
            process.start()
        except (OSError, EOFError):
            process.start()  # the process that it is forked from had just died: this makes another
        finally:
            watch.cancel()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_parent(pid: int) -> None:
    """Kill the process that calls are forked from, if it is still this one."""
    if forkserver._forkserver._forkserver_pid == pid:  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)


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
