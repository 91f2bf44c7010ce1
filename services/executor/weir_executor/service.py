"""The executor's shell: receives the plans of its partitions, runs the actions, and resumes those of other replicas.

Each application has one lock and, while its action is in flight, one task: sequential within an application, concurrent
across them.
"""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from uuid import UUID

import structlog
from prometheus_client import Gauge

from weir_contracts import Outcome, Plan, ScalingPolicy
from weir_contracts.topics import ANALYSES, OUTCOMES, PLANS, POLICIES
from weir_engines.driver import Driver
from weir_executor.knowledge import Knowledge
from weir_runtime.bus import Bus, BusError, Consumer, Reader, Record, Refused
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, run_forever
from weir_runtime.messages import Decoded, Undecodable, decode, is_tombstone
from weir_runtime.reach import REACH, Reach
from weir_runtime.reading import DeadLetters, GlobalTable

from .action_runner import ActionRunner, Pace
from .analyses import LatestAnalyses
from .applications import Application, Applications, NewestOutcomes
from .core.history import ActionHistory, recall, taken_over
from .core.parameters import Rules
from .fence import LostPartition, Ownership

_IN_FLIGHT = Gauge("weir_executor_actions_in_flight", "Actions of this process that have not ended")

CONCURRENT_GATES = 32
ANALYSES_SINCE = timedelta(minutes=5)
"""Maximum age of analyses that are read at a takeover; older ones are irrelevant."""
MAX_CLOCK_DIFFERENCE = timedelta(hours=1)
"""Of the clocks of two machines that run executors."""
RETRY_SECONDS = 1.0
REFUSED_PAUSE_SECONDS = 60.0
"""Before an outcome that the brokers refused is published again."""
END_SECONDS = 3.0


class NotReady(Exception):
    """A dependency is not ready; the message names it."""


class Executor:
    """One replica. `run` is its only task; the health endpoint calls `ping`."""

    def __init__(
        self,
        bus: Bus,
        drivers: Mapping[str, Driver],
        knowledge: Knowledge,
        clock: Clock,
        rules: Rules,
        *,
        attempt_id: UUID,
        group: str = "weir-executor",
        pace: Pace = Pace(),  # noqa: B008 - frozen
        reach: Reach = REACH,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._group = group
        self._pace = pace
        self._log = structlog.get_logger("executor")
        self._dead_letters = DeadLetters(bus, "executor", clock)
        self._policies = GlobalTable[ScalingPolicy](bus, POLICIES.name, lambda r: decode(r, ScalingPolicy).message)
        self._newest_outcomes = NewestOutcomes()
        self._outcomes = GlobalTable[Outcome](
            bus,
            OUTCOMES.name,
            self._outcome,
            on_change=self._newest_outcomes.note,
        )
        self.analyses = LatestAnalyses()
        self.applications = Applications(self._newest_outcomes, rules)
        self._ownership = Ownership(self.applications.own, clock)
        self._runner = ActionRunner(
            bus,
            drivers,
            knowledge,
            clock,
            rules,
            attempt_id=attempt_id,
            ownership=self._ownership,
            analyses=self.analyses,
            policies=self._policies.latest,
            applications=self.applications,
            reach=reach,
            pace=pace,
        )
        self._stop = Stop()
        self._gained: set[int] = set()
        self._repeat_at: dict[str, float] = {}
        """Monotonic second from which an application's refused outcome is published again."""
        self._gates = asyncio.Semaphore(CONCURRENT_GATES)
        self._consumer: Consumer | None = None

    async def ping(self) -> None:
        """Raise `NotReady` while the tables are read or gained partitions are recovered."""
        for table in (self._policies, self._outcomes):
            if not table.ready:
                raise NotReady(f"reading {table.topic}")
        if self._consumer is None or self._gained:
            raise NotReady("taking over partitions")

    async def run(self, stop: Stop) -> None:
        """Run until stopped. The brokers must be reachable at the start; a later outage is waited out."""
        self._stop = stop
        followers = [
            asyncio.create_task(self._policies.follow(stop), name="policies"),
            asyncio.create_task(self._outcomes.follow(stop), name="outcomes"),
            asyncio.create_task(self._follow_analyses(stop), name="analyses"),
            asyncio.create_task(self._dead_letters.watch({OUTCOMES.name: self._outcome}, stop), name="dead-letters"),
        ]
        try:
            await stop.race(self._tables_ready())
            self._consumer = self._bus.consumer(
                [PLANS.name], self._group, on_assigned=self._on_assigned, on_revoked=self._on_revoked
            )
            self._ownership.consumer = self._consumer
            await run_forever("executor", self.cycle, stop)
        finally:
            await self._end(followers)

    async def cycle(self) -> None:
        """Receive records, pass each application's newest plan to the gate, commit once all outcomes are published."""
        if self._consumer is None:
            return
        await self._recover()
        await self._repeat_buried()
        records = await self._consumer.receive(timeout_seconds=self._pace.receiving)
        if not records:
            return
        await self._recover()  # a partition may have come with its records
        plans = await self._newest(records)
        await asyncio.gather(*(self._consider(plan) for plan in plans.values()))
        await self._commit()

    # -- plans -----------------------------------------------------------------------------------------------------

    async def _newest(self, records: Iterable[Record]) -> dict[str, Decoded[Plan]]:
        """Return the newest plan of each application; refuse older ones of the same batch as superseded."""
        found: dict[str, Decoded[Plan]] = {}
        for record in records:
            decoded = await self._read_plan(record)
            if decoded is None:
                continue
            plan = decoded.message
            self.applications.note_recommendation(plan, self._clock.now())
            last = found.setdefault(plan.application, decoded)
            if last.message.id == plan.id:
                continue  # the first of its application, or the same once more
            older, newer = sorted((last, decoded), key=lambda each: each.message.created_at)
            found[plan.application] = newer
            app = self.applications.get(plan.application, older.record.partition)
            async with app.lock:
                try:
                    await self._runner.refuse_superseded(app, older.message, newer.message, older.traceparent)
                except LostPartition as lost:
                    self._log.info("dropped", reason=str(lost))
                except Refused as error:
                    await self._bury(older, error)
        return found

    async def _read_plan(self, record: Record) -> Decoded[Plan] | None:
        """Return the plan, or None for a tombstone and for a record that was sent to the dead-letter topic."""
        if is_tombstone(record):
            return None
        try:
            decoded = decode(record, Plan)
        except Undecodable as error:
            await self._send_letter(error)
            return None
        if record.key == decoded.message.application:
            return decoded
        reason = f"is {decoded.message.application}, the record's key {record.key}"
        await self._send_letter(Undecodable(record, reason, "application", code="wrong-key"))
        return None

    async def _consider(self, decoded: Decoded[Plan]) -> None:
        plan = decoded.message
        app = self.applications.get(plan.application, decoded.record.partition)
        try:
            async with self._gates, app.lock:
                begun = await self._runner.consider(app, plan, decoded.traceparent)
                if begun and self._owns(app):  # the partition may have been taken meanwhile
                    if app.task is not None:
                        app.task.cancel()  # it pauses, since the lock is held here: a new action does not wait for that
                    self._drive(app)
        except LostPartition as lost:
            self._log.info("dropped", application=app.id, reason=str(lost))
        except Refused as error:
            await self._bury(decoded, error)
        except BusError:
            raise
        except Exception as error:  # noqa: BLE001 - a bad plan must not block the others of its batch
            self._log.exception("plan-failed", application=app.id, place=decoded.record.place)
            reason = f"the plan could not be considered: {type(error).__name__}: {error}"
            await self._send_letter(Undecodable(decoded.record, reason, code="plan-failed"))

    async def _bury(self, decoded: Decoded[Plan], error: Refused) -> None:
        """Send the dead letter of a plan whose outcome the brokers refuse for good: nothing was done for it."""
        reason = f"its outcome cannot be written: {error}"
        await self._send_letter(Undecodable(decoded.record, reason, code="outcome-refused"))

    async def _send_letter(self, error: Undecodable) -> None:
        """Publish the dead letter of a plan until acknowledged: the next commit passes the plan."""
        warned = False
        while True:
            try:
                await self._dead_letters.undecodable(error.record, error)
                return
            except BusError as away:
                if not warned:
                    self._log.warning("held", reason=f"dead letter not written: {away}", place=error.record.place)
                    warned = True
            await asyncio.sleep(self._pace.retrying)  # cancelled at the end

    async def _commit(self) -> None:
        if self._consumer is None:
            return
        try:
            await self._consumer.commit()
        except BusError as error:
            # The outcomes hold every answered plan, so plans that are read again are ignored.
            self._log.warning("commit-failed", reason=str(error))

    # -- actions ---------------------------------------------------------------------------------------------------

    def _drive(self, app: Application) -> None:
        if not app.driven or (app.task is not None and app.task.cancelling()):
            app.task = asyncio.create_task(self._drive_on(app), name=f"drive {app.id}")
        self._count()

    async def _drive_on(self, app: Application) -> None:
        """Advance the action until it ends. An unexpected error only delays this action."""
        while not self._stop.requested and self._owns(app):
            pause_seconds: float | None = self._pace.watching
            try:
                async with app.lock:
                    pause_seconds = await self._runner.advance(app)
            except LostPartition as lost:
                self._log.info("dropped", application=app.id, reason=str(lost))
                return
            except Exception as error:  # noqa: BLE001 - the border of an action's cycle
                self._log.exception(
                    "step-failed",
                    application=app.id,
                    error=str(error) or type(error).__name__,
                    traceparent=app.trace,
                )
            self._count()
            if pause_seconds is None or await self._stop.wait(pause_seconds):
                return

    def _owns(self, app: Application) -> bool:
        return self.applications.own.get(app.id) is app

    def _count(self) -> None:
        _IN_FLIGHT.set(sum(app.in_flight for app in self.applications.own.values()))

    # -- partitions ------------------------------------------------------------------------------------------------

    def _on_assigned(self, partitions: frozenset[int]) -> None:
        self._gained |= partitions

    def _on_revoked(self, partitions: frozenset[int]) -> None:
        self._gained -= partitions
        for app in self.applications.of(partitions):
            if app.task is not None:
                app.task.cancel()
            self.applications.forget(app)
            self.analyses.forget(app.id)
        self._count()

    async def _recover(self) -> None:
        """Resume the actions of gained partitions from their outcomes."""
        while self._gained and not self._stop.requested:
            partitions = frozenset(self._gained)
            histories = await self._read_histories(partitions)
            if histories is None or not partitions <= self._gained:
                continue
            for (application, partition), history in histories.items():
                app = self.applications.get(application, partition)
                app.history, app.recalled = taken_over(history), True
                self._drive(app)
            self._gained -= partitions
            in_flight = [a.id for a in self.applications.of(partitions) if a.in_flight]
            self._log.info("recovered", partitions=sorted(partitions), applications=len(histories), in_flight=in_flight)

    async def _read_histories(self, partitions: frozenset[int]) -> dict[tuple[str, int], ActionHistory] | None:
        """Return the histories folded over the outcomes of some partitions; None if the brokers became unreachable."""
        histories: dict[tuple[str, int], ActionHistory] = {}
        reader = self._bus.reader(OUTCOMES.name, partitions=partitions)
        try:
            while not self._stop.requested:
                for record in await reader.receive(timeout_seconds=0.2):
                    self._fold(histories, record)
                if await reader.caught_up():
                    return histories
        except BusError as error:
            self._log.warning("held", reason=f"outcomes cannot be read: {error}")
            await self._stop.wait(RETRY_SECONDS)
        finally:
            await reader.close()
        return None

    def _outcome(self, record: Record) -> Outcome:
        """Return the outcome of a record. `Undecodable` also for one of a time to come: beyond the retention the time
        orders outcomes, so it would be the newest for good."""
        outcome, now = decode(record, Outcome).message, self._clock.now()
        if outcome.at > now + MAX_CLOCK_DIFFERENCE:
            reason = f"is {outcome.at:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M} UTC here"
            raise Undecodable(record, reason, "at", code="implausible")
        return outcome

    def _fold(self, histories: dict[tuple[str, int], ActionHistory], record: Record) -> None:
        if record.key is None:
            return
        place = (record.key, record.partition)
        if record.value is None:
            histories.pop(place, None)
            return
        try:
            outcome = self._outcome(record)
        except Undecodable as error:
            self._log.warning("outcome-skipped", place=record.place, reason=error.reason, field=error.field)
            return
        histories[place] = recall(histories.get(place, ActionHistory()), outcome)

    async def _repeat_buried(self) -> None:
        """Publish the newest outcome again if an earlier holder's came after it, as compaction keeps the last record, or if the
        brokers refused it."""
        outcomes, now = self._newest_outcomes, self._clock.monotonic()
        self._repeat_at = {name: at for name, at in self._repeat_at.items() if name in outcomes.buried}
        for application in sorted(outcomes.buried & self.applications.own.keys()):
            if now < self._repeat_at.get(application, 0.0):
                continue
            try:
                if await self._runner.repeat(self.applications.own[application], outcomes.latest[application]):
                    outcomes.buried.discard(application)
            except Refused as error:
                self._log.error("outcome-refused", application=application, reason=str(error))
                self._repeat_at[application] = now + REFUSED_PAUSE_SECONDS

    # -- inputs --------------------------------------------------------------------------------------------------

    async def _tables_ready(self) -> None:
        for table in (self._policies, self._outcomes):
            while not await table.wait_ready(10.0):
                self._log.warning("waiting", for_=table.topic)

    async def _follow_analyses(self, stop: Stop) -> None:
        """Follow the analyses of the owned partitions, for the capacities before and after an action."""
        reader: Reader | None = None
        try:
            while not stop.requested:
                try:
                    if reader is None:
                        reader = self._bus.reader(ANALYSES.name, partitions=(), since=ANALYSES_SINCE)
                    await self._read_analyses(reader)
                except BusError as error:
                    self._log.warning("analyses-wait", reason=str(error))
                    await stop.wait(RETRY_SECONDS)
        finally:
            if reader is not None:
                await reader.close()

    async def _read_analyses(self, reader: Reader) -> None:
        owned = self._consumer.assignment if self._consumer is not None else frozenset[int]()
        await reader.assign(owned)
        self.analyses.note(await reader.receive(timeout_seconds=self._pace.receiving))

    async def _end(self, followers: list[asyncio.Task[None]]) -> None:
        """Let steps end, then leave the group, so that other replicas take over from the outcomes."""
        for follower in followers:
            follower.cancel()
        driving = [app.task for app in self.applications.own.values() if app.task is not None]
        if driving:
            _, late = await asyncio.wait(driving, timeout=END_SECONDS)
            for task in late:
                task.cancel()
        await asyncio.gather(*followers, *driving, return_exceptions=True)
        await self._runner.drain()
        if self._consumer is not None:
            await self._consumer.close()
