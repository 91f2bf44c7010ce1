"""The shell: keeps one stream going, says what it does, and starts it again when it dies."""

import asyncio
import contextlib

import structlog
from prometheus_client import Counter, Gauge, Histogram

from runtime.clock import Clock
from runtime.loop import LONGEST_BACKOFF_SECONDS, Stop

from .adapters.thread import BlockingThread
from .stream import Batch, NotYet, Stream, StreamDied

_BATCHES = Counter("weir_analyzer_batches_total", "Micro-batches finished")
_RECORDS = Counter("weir_analyzer_observations_total", "Observations read")
_LOST = Counter("weir_analyzer_lost_observations_total", "Observations that retention deleted before they were read")
_RESTARTS = Counter("weir_analyzer_stream_restarts_total", "Times the stream died and was started again")
_SECONDS = Histogram(
    "weir_analyzer_batch_seconds", "Duration of a micro-batch", buckets=(0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)
)
_RUNNING = Gauge("weir_analyzer_stream_running", "1 while the stream runs")

_POLL_SECONDS = 0.5
_DEATHS_WITHOUT_A_BATCH = 3
"""A stream that dies so often before it finishes anything cannot use its state: it starts anew from the analyses."""
_STOP_SECONDS = 7.0


class NotRunning(RuntimeError):
    """The stream is not running (yet); for the readiness probe."""


class Analyzer:
    """Keeps the stream of observations to analyses going."""

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._thread = BlockingThread("spark")
        self._log = structlog.get_logger("analyzer")
        self._why_not = "the stream has not been started"
        self._fruitless = 0
        self._started = False

    async def ping(self) -> None:
        """Returns while the stream runs; `NotRunning` says why it does not."""
        if self._why_not:
            raise NotRunning(self._why_not)

    async def run(self, stop: Stop) -> None:
        """Until stopped: start, watch, and after a death wait a little and start again."""
        backoff_seconds = 0.5
        while not stop.requested:
            begun = self._clock.monotonic()
            try:
                await self._once(stop)
            except asyncio.CancelledError:
                raise
            except NotYet as error:
                self._why_not = str(error)
                self._log.warning("waiting", reason=str(error)[:500], retry_in_seconds=backoff_seconds)
                await stop.wait(backoff_seconds)
                backoff_seconds = min(LONGEST_BACKOFF_SECONDS, backoff_seconds * 2)
            except Exception as error:  # noqa: BLE001 - the border of a cycle: whatever ended it, it is started again
                self._died(error, backoff_seconds)
                if self._fruitless >= _DEATHS_WITHOUT_A_BATCH:
                    await self._set_aside()
                if self._clock.monotonic() - begun > 60:
                    backoff_seconds = 0.5
                await stop.wait(backoff_seconds)
                backoff_seconds = min(LONGEST_BACKOFF_SECONDS, backoff_seconds * 2)
        await self._end()

    async def _once(self, stop: Stop) -> None:
        """One life of the stream."""
        self._started = True
        place = await stop.race(self._thread.call(self._stream.start))
        if place is None:
            return
        self._why_not = ""
        _RUNNING.set(1)
        self._log.info("stream-running", state=place)
        while not await stop.wait(_POLL_SECONDS):
            for batch in await self._thread.call(self._stream.batches):
                self._finished(batch)

    def _finished(self, batch: Batch) -> None:
        self._fruitless = 0
        _BATCHES.inc()
        _RECORDS.inc(batch.records)
        _SECONDS.observe(batch.seconds)
        if batch.lost:
            _LOST.inc(batch.lost)
            self._log.warning("retention-gap", batch=batch.id, observations=batch.lost)
        self._log.info("batch", batch=batch.id, observations=batch.records, seconds=round(batch.seconds, 3))

    def _died(self, error: Exception, backoff_seconds: float) -> None:
        self._why_not = f"the stream died: {error}"[:500] or "the stream died"
        self._fruitless += 1
        _RUNNING.set(0)
        _RESTARTS.inc()
        expected = isinstance(error, StreamDied)
        self._log.error(
            "stream-died",
            reason=str(error)[:2000],
            retry_in_seconds=backoff_seconds,
            exc_info=None if expected else error,
        )

    async def _set_aside(self) -> None:
        self._fruitless = 0
        self._log.error("state-set-aside", reason=f"{_DEATHS_WITHOUT_A_BATCH} deaths without a finished batch")
        with contextlib.suppress(Exception):
            await self._thread.call(self._stream.set_aside)

    async def _end(self) -> None:
        self._why_not = "the stream is stopped"
        _RUNNING.set(0)
        if not self._started:
            return
        # a driver that is still starting cannot be asked to stop; it ends with this process
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._thread.call(self._stream.stop), _STOP_SECONDS)
