"""The shell: watches each application of the policies' partitions that this replica owns."""

import asyncio
from dataclasses import dataclass, field

import structlog
from prometheus_client import Gauge

from weir_contracts import Observation, ScalingPolicy
from weir_contracts.topics import OBSERVATIONS, POLICIES
from weir_runtime.bus import UNSIGNED_HEADER, Bus, BusError, Reader, Record, Refused
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, run_forever
from weir_runtime.messages import Undecodable, decode, encode, new_traceparent
from weir_runtime.reading import DeadLetters, log_unreadable

from .watch import CollectorFactory, Pause, Watch, pause

GROUP = "weir-monitor"
_APPLICATIONS = Gauge("weir_monitor_applications", "Applications this replica watches")
_UNPUBLISHED = Gauge("weir_monitor_unpublished_observations", "Observations in a row that the brokers did not take")


@dataclass
class _Inbox:
    """Policy records not yet acted on, the newest of each application."""

    newest: dict[str, Record] = field(default_factory=dict)
    last: dict[str, Record] = field(default_factory=dict)
    """The newest with a value: a policy and its deletion, read together, still end the application properly."""

    def add(self, record: Record) -> None:
        if record.key is None or (record.key in self.newest and UNSIGNED_HEADER in record.headers):
            return
        self.newest[record.key] = record
        if record.value is not None:
            self.last[record.key] = record

    def done(self, key: str) -> None:
        del self.newest[key]
        self.last.pop(key, None)

    def keep(self, partitions: frozenset[int]) -> None:
        """Drop the records of partitions that another replica owns now."""
        for key in [key for key, record in self.newest.items() if record.partition not in partitions]:
            self.done(key)


class Monitor:
    """Scrapes the applications whose policies lie in the partitions assigned to this replica."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        new_collector: CollectorFactory,
        *,
        scrape_timeout_seconds: float = 10.0,
        pause: Pause = pause,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._new_collector = new_collector
        self._scrape_timeout_seconds = scrape_timeout_seconds
        self._pause = pause
        self._dead_letters = DeadLetters(bus, "monitor", clock)
        self._watched: dict[str, tuple[int, Watch]] = {}
        self._assignment: frozenset[int] = frozenset()
        self._inbox = _Inbox()
        self._uncommitted: list[Record] = []
        self._caught_up = False
        self._refused = 0
        self._log = structlog.get_logger("monitor")

    @property
    def applications(self) -> list[str]:
        """Return the applications that this replica scrapes."""
        return sorted(self._watched)

    async def ping(self) -> None:
        """Return once all assigned policies are read and the brokers accept observations; `BusError` otherwise."""
        if not self._caught_up:
            raise BusError("the assigned partitions of the policies are not read yet")
        if self._refused:
            raise BusError(f"the brokers refused the last {self._refused} observations")

    async def run(self, stop: Stop) -> None:
        """Scrape until stopped. The group assigns partitions; each is read from its beginning, with all older policies."""
        member = self._bus.consumer([POLICIES.name], GROUP)
        policies = self._bus.reader(POLICIES.name, partitions=[])

        async def cycle() -> None:
            # The member's records are its heartbeat, and each is received by one replica, once: the reader gets the same ones,
            # and again the older ones.
            self._uncommitted += await member.receive(timeout_seconds=0.1)
            if member.assignment != self._assignment:
                await self._take_over(member.assignment, policies)
            for record in await stop.race(policies.receive(timeout_seconds=0.4)) or []:
                self._inbox.add(record)
            # While the topic is replayed only the newest record of each application counts.
            if await policies.caught_up():
                await self._act()
                self._caught_up = True
            if self._uncommitted:
                await self._dead_letters.of_unreadable(self._uncommitted, {POLICIES.name: _policy_of})
                await member.commit()
                self._uncommitted = []

        try:
            await run_forever("monitor", cycle, stop)
        finally:
            await self._forget(list(self._watched))
            await policies.close()
            await member.close()

    async def _take_over(self, assignment: frozenset[int], policies: Reader) -> None:
        self._caught_up = False
        await self._forget([name for name, (partition, _) in self._watched.items() if partition not in assignment])
        self._inbox.keep(assignment)
        await policies.assign(assignment)
        self._assignment = assignment
        self._log.info("assignment", partitions=sorted(assignment))

    async def _act(self) -> None:
        """Act on each record; one that failed stays, so that nothing is lost while the brokers are away."""
        for key, record in list(self._inbox.newest.items()):
            await self._take(key, record)
            self._inbox.done(key)
        _APPLICATIONS.set(len(self._watched))

    async def _take(self, key: str, record: Record) -> None:
        if record.value is None:
            await self._end(key)
            return
        try:
            policy = _policy_of(record)
        except Undecodable as error:
            log_unreadable(record, error)
            return
        if key in self._watched:
            self._watched[key][1].change(policy)
        else:
            self._watched[key] = (record.partition, self._watch(policy))
            self._log.info("watching", application=key, interval_seconds=policy.spec.interval.total_seconds())

    def _watch(self, policy: ScalingPolicy) -> Watch:
        return Watch(
            policy,
            self._new_collector,
            self._publish,
            self._clock,
            scrape_timeout_seconds=self._scrape_timeout_seconds,
            pause=self._pause,
        )

    async def _end(self, application: str) -> None:
        entry = self._watched.get(application)
        if entry is None:
            # deleted while no replica scraped it: the policy's last record still names it
            try:
                last = _policy_of(self._inbox.last[application])
            except (KeyError, Undecodable):
                return
            entry = self._watched[application] = (-1, self._watch(last))
        await entry[1].end()
        del self._watched[application]
        self._log.info("ended", application=application)

    async def _forget(self, applications: list[str]) -> None:
        watches = [self._watched.pop(name)[1] for name in applications]
        await asyncio.gather(*(watch.stop() for watch in watches))
        _APPLICATIONS.set(len(self._watched))

    async def _send(self, observation: Observation) -> None:
        body, headers = encode(
            observation,
            type=OBSERVATIONS.type,
            source="monitor",
            id=observation.id,
            time=observation.observed_at,
            traceparent=new_traceparent(observation.id),
        )
        await self._bus.publish(OBSERVATIONS.name, observation.application, body, headers)

    async def _publish(self, observation: Observation) -> None:
        try:
            try:
                await self._send(observation)
            except Refused as error:
                if observation.status == "ended":
                    raise
                # Without its graph it still says that the application is watched, and why nothing is known of it.
                reduced = {"application": observation.application, "id": observation.id, "policy": observation.policy}
                times = {"observed_at": observation.observed_at, "scrape_seconds": observation.scrape_seconds}
                observation = Observation(**reduced, **times, status="unreachable", message=f"not published: {error}")
                await self._send(observation)
        except BusError as error:
            self._refused += 1
            _UNPUBLISHED.set(self._refused)
            self._log.warning("not-published", application=observation.application, reason=str(error))
            if observation.status == "ended" and not isinstance(error, Refused):
                raise  # an end is published once, so it must not be lost
            return
        self._refused = 0
        _UNPUBLISHED.set(0)
        self._log.info(
            "observed",
            application=observation.application,
            status=observation.status,
            message=observation.message,
            observed=observation.deployment.observed if observation.deployment else None,
            problems=[f"{problem.where}: {problem.what}" for problem in observation.problems[:3]],
            scrape_seconds=observation.scrape_seconds,
            traceparent=new_traceparent(observation.id),
        )


def _policy_of(record: Record) -> ScalingPolicy:
    policy = decode(record, ScalingPolicy).message
    if policy.application != record.key:
        raise Undecodable(record, f"is of {policy.application}", "metadata", code="wrong-key")
    return policy
