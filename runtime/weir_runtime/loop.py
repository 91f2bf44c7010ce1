"""Loops that can be stopped: every wait ends at the stop, and each loop has one catch-all, around a cycle."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from prometheus_client import Counter

T = TypeVar("T")

_FAILED = Counter("weir_cycles_failed_total", "Cycles that ended with an unexpected error", ["loop"])
MIN_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0


class Stop:
    """Requested once, by a signal or by the program; every wait ends at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason: str | None = None

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, reason: str) -> None:
        """Request the stop; the first reason is kept."""
        self.reason = self.reason or reason
        self._event.set()

    def on_signals(self) -> None:
        """Let SIGTERM and SIGINT request it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request, number.name)

    async def wait(self, seconds: float | None = None) -> bool:
        """Sleep until the stop, at most for `seconds` (None: no limit); return whether it was requested."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self.requested

    async def race(self, work: Awaitable[T]) -> T | None:
        """Return the result of `work`, or None after the stop, which cancels `work`."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


async def retry_until_ready(
    name: str, ping: Callable[[], Awaitable[object]], stop: Stop, timeout_seconds: float = 10.0
) -> bool:
    """Call `ping` until it succeeds; log the reason whenever it changes, and the success. Returns False when stopped
    first."""
    log = structlog.get_logger("start")
    logged: str | None = None
    pause_seconds = MIN_BACKOFF_SECONDS
    while not stop.requested:
        reason = await stop.race(_problem(ping, timeout_seconds))
        if reason == "":
            if logged is not None:
                log.info("ready", dependency=name)
            return True
        if reason is not None and reason != logged:
            log.warning("waiting", dependency=name, reason=reason)
            logged = reason
        await stop.wait(pause_seconds)
        pause_seconds = min(MAX_BACKOFF_SECONDS, pause_seconds * 2)
    return False


async def _problem(ping: Callable[[], Awaitable[object]], timeout_seconds: float) -> str:
    """Return the reason why `ping` failed; empty after success."""
    try:
        async with asyncio.timeout(timeout_seconds) as deadline:
            await ping()
    except Exception as error:  # noqa: BLE001 - every error leads to a wait
        if deadline.expired():
            return f"no answer within {timeout_seconds:g} s"
        return str(error) or type(error).__name__
    return ""


async def run_forever(
    name: str, cycle: Callable[[], Awaitable[object]], stop: Stop, *, pause_seconds: float = 0.0
) -> None:
    """Run `cycle` until stopped. A failed cycle is logged with its trace, counted, and followed by a pause that doubles
    up to 5 s; a successful one resets the pause. Cancellation escapes."""
    log = structlog.get_logger(name)
    backoff_seconds = MIN_BACKOFF_SECONDS
    while not stop.requested:
        try:
            await cycle()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _FAILED.labels(name).inc()
            log.exception("cycle-failed", error=str(error) or type(error).__name__, retry_in_seconds=backoff_seconds)
            await stop.wait(backoff_seconds)
            backoff_seconds = min(MAX_BACKOFF_SECONDS, backoff_seconds * 2)
        else:
            backoff_seconds = MIN_BACKOFF_SECONDS
            # Without a pause other tasks must run as well: a cycle that never waits would block the process.
            await (stop.wait(pause_seconds) if pause_seconds > 0 else asyncio.sleep(0))
