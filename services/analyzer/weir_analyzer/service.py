"""The shell: runs one stream while it holds the lease, reports it, and restarts it when it dies.

Spark is one stream; tests have another.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import Counter, Gauge, Histogram

from weir_runtime.clock import Clock
from weir_runtime.kafka_client import ClientThread
from weir_runtime.lease import Lease, Terms, judge
from weir_runtime.loop import MAX_BACKOFF_SECONDS, Stop

_BATCHES = Counter("weir_analyzer_batches_total", "Micro-batches finished")
_RECORDS = Counter("weir_analyzer_observations_total", "Observations read")
_LOST = Counter("weir_analyzer_lost_observations_total", "Observations that retention deleted before they were read")
_RESTARTS = Counter("weir_analyzer_stream_restarts_total", "Times the stream died and was started again")
_SECONDS = Histogram(
    "weir_analyzer_batch_seconds", "Duration of a micro-batch", buckets=(0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10)
)
_RUNNING = Gauge("weir_analyzer_stream_running", "1 while the stream runs")
_HOLDS_LEASE = Gauge("weir_analyzer_lease_held", "1 while this analyzer is the one that works")
_LEASES_LOST = Counter("weir_analyzer_leases_lost_total", "Times the lease was lost while the stream ran")

_POLL_SECONDS = 0.5
_GUARD_SECONDS = 0.2
_MIN_BACKOFF_SECONDS = 0.5
_DEATHS_OF_ITS_STATE = 3
"""After so many deaths by its state without a finished batch the stream starts again from the analyses. Any other death
(a full disk, no memory) keeps the state."""
_SUSPEND_SECONDS = 3.0
_STOP_SECONDS = 4.0
"""Less than a service gets to end, so that the lease is given back in time; a driver that is still starting cannot be
asked to stop."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished micro-batch."""

    id: int
    records: int
    seconds: float
    lost: int
    """Records between the batch's offsets that retention had deleted before they were read."""


class StreamDied(RuntimeError):
    """The stream ended by itself; holds the reason."""


class StateUnusable(StreamDied):
    """The stream ended because its state is damaged, incomplete or of another format."""


class NotYet(RuntimeError):
    """The stream cannot be started yet: something it needs is away."""


class Stream(Protocol):
    """Blocking; called from one thread, but for `abort`."""

    def prepare(self) -> None:
        """Do what takes long and touches no state that another analyzer may use. Returns at once if it is done already."""

    def start(self) -> str:
        """Start from the checkpoint, or seeded from the latest analyses; returns where the state is kept.

        `NotYet` while the brokers are away, `StateUnusable`, `StreamDied`.
        """

    def batches(self) -> list[Batch]:
        """Return the batches finished since the last call; `StreamDied` if it ended, `StateUnusable` if by its state."""

    def set_aside(self) -> None:
        """Rename the state: the next start is a new one, seeded from the latest analyses."""

    def suspend(self) -> None:
        """End the query and keep the session."""

    def abort(self) -> None:
        """End everything that could still write, at once, from any thread."""

    def stop(self) -> None:
        """End the query and the session."""


class LeaseLost(RuntimeError):
    """The stream's owner has no lease any more, so the stream was stopped; holds the reason."""


class NotRunning(RuntimeError):
    """The stream is not running (yet); for the readiness probe."""


class Analyzer:
    """Runs the stream of observations to analyses while it holds the lease."""

    def __init__(self, stream: Stream, lease: Lease, clock: Clock, terms: Terms) -> None:
        self._stream = stream
        self._lease = lease
        self._clock = clock
        self._terms = terms
        self._thread = ClientThread("spark")
        self._log = structlog.get_logger("analyzer")
        self._why_not = "the stream has not been started"
        self._unusable = 0
        self._prepared = False
        self.refused: str | None = None
        """The reason this analyzer must not work: another one does."""

    async def ping(self) -> None:
        """Returns while the stream runs; `NotRunning` with the reason otherwise."""
        if self._why_not:
            raise NotRunning(self._why_not)

    async def run(self, stop: Stop) -> None:
        """Run until stopped or refused: prepare, wait for the lease, start, watch; after a death back off and start
        again."""
        backoff_seconds = _MIN_BACKOFF_SECONDS
        while not stop.requested:
            begun = self._clock.monotonic()
            try:
                await self._once(stop)
                continue
            except asyncio.CancelledError:
                raise
            except LeaseLost as error:
                await self._let_go(error)
                continue
            except NotYet as error:
                self._why_not = str(error)
                self._log.warning("waiting", reason=str(error)[:500], retry_in_seconds=backoff_seconds)
            except Exception as error:  # noqa: BLE001 - the border of a cycle: after any error the stream starts again
                self._died(error, backoff_seconds)
                if self._unusable >= _DEATHS_OF_ITS_STATE:
                    await self._set_aside(str(error))
                if self._clock.monotonic() - begun > 60:
                    backoff_seconds = _MIN_BACKOFF_SECONDS
            await stop.wait(backoff_seconds)
            backoff_seconds = min(MAX_BACKOFF_SECONDS, backoff_seconds * 2)
        await self._end()

    async def _once(self, stop: Stop) -> None:
        """Run the stream once. It prepares itself before it waits for the lease, since that takes long."""
        self._lease.open()
        self._prepared = True
        self._why_not = "Spark is starting; on a cluster it waits for a worker"
        await stop.race(self._thread.call(self._stream.prepare))
        epoch = await self._await_lease(stop)
        if epoch is None:
            return
        working = asyncio.ensure_future(self._work(stop))
        guard = asyncio.ensure_future(self._guard(epoch))
        try:
            await asyncio.wait({working, guard}, return_when=asyncio.FIRST_COMPLETED)
            if guard.done():
                guard.result()
            await working
        finally:
            for task in (working, guard):
                task.cancel()
            await asyncio.gather(working, guard, return_exceptions=True)

    async def _await_lease(self, stop: Stop) -> int | None:
        """Wait for the lease; returns its epoch, None if stopped or refused first."""
        reported = ""
        while not stop.requested:
            lease_state = self._lease.state()
            decision = judge(lease_state, self._clock.monotonic(), self._terms)
            if decision.kind == "works" and lease_state.own is not None:
                _HOLDS_LEASE.set(1)
                self._log.info("lease-held", epoch=lease_state.own.epoch, lease_seconds=self._terms.lease_seconds)
                return lease_state.own.epoch
            if decision.kind == "refused":
                self.refused = decision.reason
                self._log.error("refused", reason=decision.reason)
                stop.request("another analyzer is at work")
                return None
            holder = lease_state.other.name if lease_state.other else ""
            if holder != reported:
                reported = holder
                self._log.info(
                    "waits-for-its-turn", reason=decision.reason, standby_seconds=self._terms.standby_seconds
                )
            self._why_not = decision.reason[:500]
            await stop.wait(_GUARD_SECONDS)
        return None

    async def _guard(self, epoch: int) -> None:
        """Never returns; raises `LeaseLost` as soon as the lease may be another's.

        Where it certainly is, or this process itself was paused so long that another could take over, the stream is
        aborted.
        """
        looked = self._clock.monotonic()
        while True:
            lease_state, now = self._lease.state(), self._clock.monotonic()
            decision = judge(lease_state, now, self._terms)
            if decision.kind != "works" or lease_state.own is None or lease_state.own.epoch != epoch:
                lost = lease_state.own is None or lease_state.own.epoch != epoch or lease_state.confirmed_at is None
                slept = now - looked >= self._terms.lease_seconds / 2
                if lost or slept:
                    self._stream.abort()
                raise LeaseLost(decision.reason if decision.kind != "works" else "another analyzer held it meanwhile")
            looked = now
            await asyncio.sleep(_GUARD_SECONDS)

    async def _work(self, stop: Stop) -> None:
        """Start the query and follow it."""
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
        self._unusable = 0
        _BATCHES.inc()
        _RECORDS.inc(batch.records)
        _SECONDS.observe(batch.seconds)
        if batch.lost:
            _LOST.inc(batch.lost)
            self._log.warning("retention-gap", batch=batch.id, observations=batch.lost)
        self._log.info("batch", batch=batch.id, observations=batch.records, seconds=round(batch.seconds, 3))

    def _died(self, error: Exception, backoff_seconds: float) -> None:
        self._why_not = f"the stream died: {error}"[:500] or "the stream died"
        self._unusable += isinstance(error, StateUnusable)
        _RUNNING.set(0)
        _RESTARTS.inc()
        expected = isinstance(error, StreamDied)
        self._log.error(
            "stream-died",
            reason=str(error)[:2000],
            retry_in_seconds=backoff_seconds,
            exc_info=None if expected else error,
        )

    async def _let_go(self, error: LeaseLost) -> None:
        """End the query, by force if needed: without a lease nothing may be written."""
        self._why_not = f"the lease was lost: {error}"[:500]
        _RUNNING.set(0)
        _HOLDS_LEASE.set(0)
        _LEASES_LOST.inc()
        self._log.error("lease-lost", reason=str(error)[:500])
        try:
            await asyncio.wait_for(self._thread.call(self._stream.suspend), _SUSPEND_SECONDS)
        except Exception:  # noqa: BLE001 - a query that does not end is killed
            self._stream.abort()

    async def _set_aside(self, reason: str) -> None:
        self._unusable = 0
        if judge(self._lease.state(), self._clock.monotonic(), self._terms).kind != "works":
            return  # another analyzer owns the state
        self._log.error("state-set-aside", deaths=_DEATHS_OF_ITS_STATE, reason=reason[:500])
        with contextlib.suppress(Exception):
            await self._thread.call(self._stream.set_aside)

    async def _end(self) -> None:
        self._why_not = self.refused or "the stream is stopped"
        _RUNNING.set(0)
        _HOLDS_LEASE.set(0)
        try:
            if self._prepared:
                await asyncio.wait_for(self._thread.call(self._stream.stop), _STOP_SECONDS)
        except TimeoutError:
            self._stream.abort()
        finally:
            # only now: the next holder must find no other analyzer at work
            await asyncio.to_thread(self._lease.close)
