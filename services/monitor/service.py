"""The shell: one task for each application of the policies' partitions this replica owns, each at its own interval."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import Counter, Gauge, Histogram
from weir_contracts import Observation, Problem, ScalingPolicy
from weir_contracts.topics import OBSERVATIONS, POLICIES

from runtime.bus import Bus, BusError
from runtime.clock import Clock
from runtime.dead_letters import DeadLetters
from runtime.envelope import Undecodable, decode, encode, new_traceparent
from runtime.loop import Stop, run_forever
from runtime.records import Record

from .core import FlinkReadings, Readings, ended, observe

GROUP = "weir-monitor"
_SCRAPES = Counter("weir_monitor_scrapes_total", "Observations published", ["status"])
_SECONDS = Histogram("weir_monitor_scrape_seconds", "Time of a scrape", buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10))
_APPLICATIONS = Gauge("weir_monitor_applications", "Applications this replica watches")
_OVERRUNS = Counter("weir_monitor_overruns_total", "Scrapes that took longer than their interval")


class Collector(Protocol):
    """Reads one application; never raises for what the application does wrong."""

    async def read(self, policy: ScalingPolicy) -> Readings: ...

    async def close(self) -> None: ...


CollectorFactory = Callable[[ScalingPolicy], Collector]


@dataclass
class _Watched:
    policy: ScalingPolicy
    partition: int
    changed: asyncio.Event
    task: asyncio.Task[None]


class Monitor:
    """Watches the applications of its share of the policies."""

    def __init__(
        self, bus: Bus, clock: Clock, new_collector: CollectorFactory, *, scrape_timeout_seconds: float = 10.0
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._new_collector = new_collector
        self._scrape_timeout_seconds = scrape_timeout_seconds
        self._dead_letters = DeadLetters(bus, "monitor", clock)
        self._watched: dict[str, _Watched] = {}
        self._owned: frozenset[int] = frozenset()
        self._moved = asyncio.Event()
        self._log = structlog.get_logger("monitor")

    @property
    def applications(self) -> list[str]:
        """The applications watched now."""
        return sorted(self._watched)

    async def run(self, stop: Stop) -> None:
        """Watch until stopped. Group membership gives the share; what is in it is read from the topic's beginning, so that a
        partition taken over is known whole."""
        member = self._bus.consumer([POLICIES.name], GROUP)
        policies = self._bus.reader(POLICIES.name, partitions=[])

        async def cycle() -> None:
            # The member's records are only its heartbeat; the reader below sees the same ones, and the older ones.
            await member.receive(timeout_seconds=0.1)
            await member.commit()
            if member.assignment != self._owned:
                self._owned = member.assignment
                await self._forget([n for n, w in self._watched.items() if w.partition not in self._owned])
                await policies.assign(self._owned)
                self._log.info("share", partitions=sorted(self._owned))
            for record in await policies.receive(timeout_seconds=0.4):
                await self._take(record, stop)

        try:
            await run_forever("monitor", cycle, stop)
        finally:
            await self._forget(list(self._watched))
            await policies.close()
            await member.close()

    async def _take(self, record: Record, stop: Stop) -> None:
        if record.key is None or record.partition not in self._owned:
            return
        if record.value is None:
            await self._end(record.key)
            return
        try:
            policy = _policy_of(record)
        except Undecodable as error:
            await self._dead_letters.undecodable(record, error)
            return
        known = self._watched.get(record.key)
        if known is None:
            changed = asyncio.Event()
            watching = asyncio.create_task(self._watch(record.key, stop), name=f"watch-{record.key}")
            self._watched[record.key] = _Watched(policy, record.partition, changed, watching)
        else:
            known.policy = policy
            known.changed.set()
        _APPLICATIONS.set(len(self._watched))

    async def _end(self, application: str) -> None:
        watched = self._watched.get(application)
        if watched is None:
            return
        await self._forget([application])
        await self._publish(ended(watched.policy, self._clock.now()))

    async def _forget(self, applications: list[str]) -> None:
        gone = [self._watched.pop(name) for name in applications]
        for watched in gone:
            watched.task.cancel()
        await asyncio.gather(*(watched.task for watched in gone), return_exceptions=True)
        _APPLICATIONS.set(len(self._watched))

    async def _watch(self, application: str, stop: Stop) -> None:
        """Scrape one application at a fixed cadence; a changed policy takes effect at once."""
        collector: Collector | None = None
        made_for: object = None
        due = self._clock.monotonic()
        try:
            while not stop.requested:
                watched = self._watched[application]
                watched.changed.clear()
                policy = watched.policy
                interval = policy.spec.interval.total_seconds()
                wanted = (policy.spec.target, policy.spec.signals)
                if collector is None or made_for != wanted:
                    if collector is not None:
                        await collector.close()
                    collector, made_for = self._new_collector(policy), wanted
                await self._cycle(policy, collector)
                due = max(due + interval, self._clock.monotonic())
                await self._pause(watched, due, stop)
        finally:
            if collector is not None:
                await collector.close()

    async def _pause(self, watched: _Watched, due: float, stop: Stop) -> None:
        left = due - self._clock.monotonic()
        if left <= 0:
            _OVERRUNS.inc()
            await asyncio.sleep(0)
            return
        try:
            await asyncio.wait_for(stop.race(watched.changed.wait()), left)
        except TimeoutError:
            return

    async def _cycle(self, policy: ScalingPolicy, collector: Collector) -> None:
        """One scrape and its one line. An unexpected error is this application's alone."""
        began = self._clock.monotonic()
        try:
            readings = await asyncio.wait_for(collector.read(policy), self._scrape_timeout_seconds)
        except TimeoutError:
            message = f"the scrape took longer than {self._scrape_timeout_seconds:g} s"
            readings = Readings(policy, FlinkReadings(reachable=False, message=message))
        except Exception as error:  # noqa: BLE001 - the border of the cycle: the next scrape may do better
            self._log.exception("scrape-failed", application=policy.application)
            problem = Problem(where="scrape", what=(str(error) or type(error).__name__)[:1000])
            readings = Readings(policy, FlinkReadings(reachable=False, message=problem.what, problems=(problem,)))
        took = self._clock.monotonic() - began
        _SECONDS.observe(took)
        observation = observe(
            Readings(policy, readings.flink, readings.partitions, readings.problems, round(took, 4)), self._clock.now()
        )
        try:
            await self._publish(observation)
        except BusError as error:
            self._log.warning("not-published", application=policy.application, reason=str(error))

    async def _publish(self, observation: Observation) -> None:
        body, headers = encode(
            observation,
            type=OBSERVATIONS.type,
            source="monitor",
            id=observation.id,
            time=observation.observed_at,
            traceparent=new_traceparent(observation.id),
        )
        await self._bus.publish(OBSERVATIONS.name, observation.application, body, headers)
        _SCRAPES.labels(observation.status).inc()
        self._log.info(
            "observed",
            application=observation.application,
            status=observation.status,
            message=observation.message,
            observed=observation.deployment.observed if observation.deployment else None,
            problems=len(observation.problems),
            scrape_seconds=observation.scrape_seconds,
            traceparent=headers["traceparent"],
        )


def _policy_of(record: Record) -> ScalingPolicy:
    policy = decode(record, ScalingPolicy).message
    if policy.application != record.key:
        raise Undecodable(record, f"is of {policy.application}", "metadata")
    return policy
