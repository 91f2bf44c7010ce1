"""Watch of one application: scrapes it at a fixed cadence, once more after a jump of its load, and publishes the
observations."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import structlog
from prometheus_client import Counter, Histogram

from weir_contracts import Observation, Problem, ScalingPolicy, Subject, ended_observation
from weir_engines.scrape import Scrape
from weir_runtime.clock import Clock

from .core import Appended, Readings, appended, has_jumped, next_due, observe

_SCRAPES = Counter("weir_monitor_scrapes_total", "Observations made, by status", ["status"])
_FAILURES = Counter("weir_monitor_failures_total", "Scrapes that ended early, by reason", ["reason"])
_SECONDS = Histogram(
    "weir_monitor_scrape_seconds", "Time of a scrape", buckets=(0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 2, 5, 10)
)
_MISSED = Counter(
    "weir_monitor_missed_scrapes_total", "Scrapes left out because the last took longer than the interval"
)


class Collector(Protocol):
    """Reader of one application. It reports failures of the application in the readings and does not raise them."""

    async def read(self, policy: ScalingPolicy) -> Readings: ...

    async def close(self) -> None: ...


CollectorFactory = Callable[[ScalingPolicy], Collector]
Publish = Callable[[Observation], Awaitable[None]]
Pause = Callable[[asyncio.Event, float], Awaitable[None]]
"""Wait for the number of seconds, or until the event is set."""


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait in real time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Watch:
    """Watch of one application, from its first policy until the policy is deleted."""

    def __init__(
        self,
        policy: ScalingPolicy,
        new_collector: CollectorFactory,
        publish: Publish,
        clock: Clock,
        *,
        scrape_timeout_seconds: float,
        pause: Pause = pause,
    ) -> None:
        self.policy = policy
        self._new_collector = new_collector
        self._publish = publish
        self._clock = clock
        self._scrape_timeout_seconds = scrape_timeout_seconds
        self._pause = pause
        self._collector: Collector | None = None
        self._subject: Subject | None = None
        self._previous: Observation | None = None
        self._appended: deque[Appended | None] = deque([None] * 3, maxlen=3)
        self._changed = asyncio.Event()
        self._late = False
        self._log = structlog.get_logger("monitor").bind(application=policy.application)
        self._task = asyncio.create_task(self._run(), name=f"watch-{policy.application}")

    def change(self, policy: ScalingPolicy) -> None:
        """Use another version of the policy, and scrape at once."""
        if policy != self.policy:
            self.policy = policy
            self._changed.set()

    async def stop(self) -> None:
        """End the scrapes and close the collector."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._close_collector()

    async def end(self) -> None:
        """Stop after the policy was deleted, and publish the last observation."""
        await self.stop()
        await self._publish(ended_observation(self.policy, self._clock.now()))

    async def _run(self) -> None:
        due = self._clock.monotonic()
        while True:
            self._changed.clear()
            policy = self.policy
            await self._scrape(policy)
            due, missed = next_due(due, self._clock.monotonic(), policy.spec.interval.total_seconds())
            self._note_missed(missed, policy)
            await self._scrape_after_jump(policy, due)
            await self._pause(self._changed, due - self._clock.monotonic())
            if self._changed.is_set():
                due = self._clock.monotonic()

    async def _scrape_after_jump(self, policy: ScalingPolicy, due: float) -> None:
        """Scrape in the middle of the interval if arrivals have just jumped: the last one saw only the jump's beginning."""
        early = due - policy.spec.interval.total_seconds() / 2
        if has_jumped(*self._appended) and self._clock.monotonic() < early:
            await self._pause(self._changed, early - self._clock.monotonic())
            if not self._changed.is_set():
                await self._scrape(policy)

    def _note_missed(self, missed: int, policy: ScalingPolicy) -> None:
        """Log once that scrapes take longer than their interval, and once that they no longer do."""
        _MISSED.inc(missed)
        if (missed > 0) != self._late:
            self._late = missed > 0
            log = self._log.warning if self._late else self._log.info
            log("overrun" if self._late else "in-time", interval_seconds=policy.spec.interval.total_seconds())

    async def _scrape(self, policy: ScalingPolicy) -> None:
        """Scrape once and publish the observation. An unexpected error stays within this application's cycle."""
        try:
            observation = await self._observe(policy)
            self._appended.append(appended(self._previous, observation))
            if observation.topology is not None:
                self._previous = observation
            _SCRAPES.labels(observation.status).inc()
            await self._publish(observation)
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001 - the next scrape may do better
            _FAILURES.labels("unexpected").inc()
            self._log.exception("scrape-failed")

    async def _observe(self, policy: ScalingPolicy) -> Observation:
        began = self._clock.monotonic()
        readings = await self._read(policy)
        took = self._clock.monotonic() - began
        _SECONDS.observe(took)
        readings = replace(readings, scrape_seconds=round(took, 4), previous=self._previous)
        try:
            return observe(readings, self._clock.now())
        except ValueError as error:
            # Readings that do not fit an observation are reported in an observation without readings.
            _FAILURES.labels("unfit").inc()
            self._log.exception("observation-unfit")
            return observe(_failed(policy, str(error)), self._clock.now())

    async def _read(self, policy: ScalingPolicy) -> Readings:
        try:
            collector = await self._collector_for(policy)
            # Not `wait_for`: before Python 3.12 it ignores a cancellation at the moment the work is done, and the watch
            # would never end.
            async with asyncio.timeout(self._scrape_timeout_seconds):
                return await collector.read(policy)
        except TimeoutError:
            _FAILURES.labels("timeout").inc()
            return _failed(policy, f"the scrape took longer than {self._scrape_timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - reported in the observation
            _FAILURES.labels("unexpected").inc()
            self._log.exception("collector-failed")
            return _failed(policy, str(error) or type(error).__name__)

    async def _collector_for(self, policy: ScalingPolicy) -> Collector:
        """Return the current collector, or a new one if the policy's subject has changed."""
        subject = policy.subject
        if self._collector is None or self._subject != subject:
            await self._close_collector()
            self._collector, self._subject = self._new_collector(policy), subject
            self._previous = None
        return self._collector

    async def _close_collector(self) -> None:
        collector, self._collector = self._collector, None
        if collector is None:
            return
        try:
            await collector.close()
        except Exception as error:  # noqa: BLE001 - the collector is not used again
            self._log.warning("close-failed", reason=str(error) or type(error).__name__)


def _failed(policy: ScalingPolicy, reason: str) -> Readings:
    problem = Problem(where="scrape", what=reason)
    return Readings(policy, Scrape("unreachable", reason, problems=(problem,)))
