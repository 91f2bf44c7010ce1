"""The shell: receive analyses, plan the newest of each application, publish the plan, commit."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any

import structlog

from weir_contracts import Analysis, Observation, Outcome, Plan, PlanRequest, derive_id
from weir_contracts.topics import ANALYSES, OBSERVATIONS, OUTCOMES, PLANNERS, PLANS
from weir_runtime.bus import Bus, Consumer, Reader, Record, Refused, partition_of
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop, run_forever
from weir_runtime.messages import Decoded, TooLarge, child_traceparent, decode, encode
from weir_runtime.reading import DeadLetters, GlobalTable, readable

from . import telemetry
from .calls import CallsPlanners, plan_for, reads_observations
from .remote import registration_of
from .request_cache import RequestCache

GROUP = "weir-planner"
BATCH_SECONDS = 0.5
"""Wait for a batch before the next one is received: installed planners reply within it, slow remote ones stay pending."""
UNCOMMITTED_SECONDS = 60.0
"""The maximum timeout of a planner. Offsets are committed once nothing is pending, or after this time if something
always is: then a crash may cost the pending decisions, and the applications' next analyses are planned."""


class Planner:
    """Plans for the applications of its assigned partitions."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        planners: CallsPlanners,
        cache: RequestCache,
        *,
        partitions: int,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._planners = planners
        self._cache = cache
        self._partitions = partitions
        self._dead_letters = DeadLetters(bus, "planner", clock)
        self._outcomes = GlobalTable(bus, OUTCOMES.name, _outcome, on_change=cache.happened)
        self._assigned: frozenset[int] = frozenset()
        self._pending: list[Record] = []
        self._decisions = PendingDecisions(self._decide)
        self._uncommitted_since: float | None = None
        self._log = structlog.get_logger("planner")

    async def ping(self) -> None:
        """Check readiness: outcomes have been read to their end once."""
        await self._outcomes.ping()

    async def run(self, stop: Stop) -> None:
        """Plan until stopped."""
        await stop.race(self._planners.start())
        tables = {OUTCOMES.name: _outcome, PLANNERS.name: registration_of}
        following = asyncio.gather(self._outcomes.follow(stop), self._dead_letters.watch(tables, stop))
        try:
            while not stop.requested and not await self._outcomes.wait_ready(0.5):
                continue
            await self._plan_until(stop)
        finally:
            await following

    async def _plan_until(self, stop: Stop) -> None:
        member = self._bus.consumer([ANALYSES.name], GROUP)
        # Not part of the consumer group: read for the same partition numbers.
        plans = self._bus.reader(PLANS.name, partitions=[])
        observations = self._bus.reader(OBSERVATIONS.name, partitions=[], from_beginning=False)
        try:
            await run_forever("planner", lambda: self._cycle(member, plans, observations, stop), stop)
        finally:
            await self._decisions.settle()
            await self._decisions.close()
            for opened in (member, plans, observations):
                await opened.close()

    async def _cycle(self, member: Consumer, plans: Reader, observations: Reader, stop: Stop) -> None:
        if not self._pending:
            # Received analyses are kept until their plans are published: a failure in between must not skip them.
            self._pending = await stop.race(member.receive(timeout_seconds=0.5)) or []
        if member.assignment != self._assigned:
            await self._take_over(member.assignment, plans, observations, stop)
        for record in await observations.receive(timeout_seconds=0.0):
            await self._take_observation(record)
            await asyncio.sleep(0)  # publish finished plans between observations
        if self._pending:
            await self._begin_newest(self._pending)
            self._uncommitted_since = self._uncommitted_since or self._clock.monotonic()
            self._pending = []
        await self._settle(member)

    async def _settle(self, member: Consumer) -> None:
        """Retry failed decisions; commit offsets once all plans are published."""
        failed = await self._decisions.settle()
        if failed:
            self._pending = [record for record, _ in failed]
            raise failed[0][1]
        since = self._uncommitted_since
        if since is None or not (self._decisions.quiet or self._clock.monotonic() - since > UNCOMMITTED_SECONDS):
            return
        await member.commit()
        self._uncommitted_since = None

    async def _take_over(self, assigned: frozenset[int], plans: Reader, observations: Reader, stop: Stop) -> None:
        """Read the plans of newly assigned partitions to their end, because they carry the state for the next ones."""
        self._log.info("assignment", partitions=sorted(assigned))
        # Another replica plans for the lost partitions; their state here would be stale if they came back.
        self._decisions.drop(lambda application: partition_of(application, self._partitions) in assigned)
        self._cache.keep_only(lambda application: partition_of(application, self._partitions) in assigned)
        await plans.assign([])
        await plans.assign(assigned)
        await observations.assign(assigned)
        while assigned and not stop.requested:
            for record in await plans.receive(timeout_seconds=0.2):
                if (plan := readable(record, Plan)) is not None:
                    self._cache.planned(plan)
            if await plans.caught_up():
                break
        # From here on the replica's own plans are in the cache.
        await plans.assign([])
        self._assigned = assigned

    async def _take_observation(self, record: Record) -> None:
        decoded = await self._dead_letters.decoded(record, Observation)
        if decoded is not None:
            self._cache.observed(decoded.message)

    async def _begin_newest(self, records: list[Record]) -> None:
        """Begin one decision for each application: after an outage only the newest analysis counts."""
        newest: dict[str, Decoded[Analysis]] = {}
        for record in reversed(records):
            if _is_superseded(record, newest.get(record.key or "")):
                telemetry.skipped()
                continue
            decoded = await self._dead_letters.decoded(record, Analysis)
            await asyncio.sleep(0)
            if decoded is None:
                continue
            analysis = decoded.message
            if analysis.status == "ended" and self._is_in_its_partition(decoded):
                # Even if the application is back by the end of the batch, its earlier state ended here.
                self._cache.ended(analysis)
                self._decisions.drop(lambda name, ended=analysis.application: name != ended)  # type: ignore[misc]
            other = newest.get(analysis.application)
            if other is not None:
                telemetry.skipped()
            if other is None or analysis.observed_at > other.message.observed_at:
                newest[analysis.application] = decoded
        self._decisions.begin(newest)

    def _is_in_its_partition(self, decoded: Decoded[Analysis]) -> bool:
        return partition_of(decoded.message.application, self._partitions) == decoded.record.partition

    async def _decide(self, decoded: Decoded[Analysis]) -> None:
        analysis = decoded.message
        if not self._is_in_its_partition(decoded):
            await self._dead_letters.send(
                decoded.record, "wrong-partition", "stands in another partition than its key's", "key"
            )
            return
        last = self._cache.plan(analysis.application)
        if analysis.status == "ended" or (last is not None and analysis.observed_at <= last.observed_at):
            return  # nothing to plan, or a replay of a planned analysis
        telemetry.analysed(analysis, decoded.record.timestamp)
        try:
            plan = await plan_for(self._planners, self._request(analysis), self._clock)
        except Exception as error:  # noqa: BLE001 - one application's odd numbers must not block all others
            self._log.exception("plan-failed", application=analysis.application, place=decoded.record.place)
            reason = f"no plan could be made: {type(error).__name__}: {error}"
            await self._dead_letters.send(decoded.record, "planning-failed", reason)
            return
        try:
            await self._publish(plan, decoded.traceparent)
        except Refused as error:
            code = "plan-too-large" if isinstance(error, TooLarge) else "plan-refused"
            await self._dead_letters.send(decoded.record, code, f"the plan is not published: {error}")
            return
        self._cache.planned(plan, analysis)

    def _request(self, analysis: Analysis) -> PlanRequest:
        wanted = reads_observations(self._planners, analysis.policy)
        return self._cache.request(analysis, self._clock.now(), with_observations=wanted)

    async def _publish(self, plan: Plan, parent: str | None) -> None:
        trace = child_traceparent(parent, derive_id(plan.id, "trace"))
        body, headers = encode(
            plan, type=PLANS.type, source="planner", id=plan.id, time=plan.created_at, traceparent=trace
        )
        await self._bus.publish(PLANS.name, plan.application, body, headers)
        telemetry.planned(plan)
        self._log.info(
            "planned",
            application=plan.application,
            decision=plan.kind,
            code=plan.code,
            sentence=plan.sentence,
            current=plan.current,
            approved=plan.approved,
            guards=[a.guard for a in plan.amendments],
            observation_age_seconds=round(telemetry.age_seconds(plan), 3),
            planning_seconds=plan.planning_seconds,
            traceparent=trace,
        )


def _outcome(record: Record) -> Outcome:
    return decode(record, Outcome).message


def _is_superseded(record: Record, newer: Decoded[Analysis] | None) -> bool:
    """Return whether a record is older than a newer one of its application by its header, so that it need not be
    decoded.

    Not if it may be another application's under this key, or may be the application's end.
    """
    if newer is None or record.value is None or b'"ended"' in record.value:
        return False
    if f'"application":"{newer.message.application}"'.encode() not in record.value:
        return False
    try:
        return datetime.fromisoformat(record.headers.get("ce_time", "")) <= newer.message.observed_at
    except (ValueError, TypeError):  # no time, or one without a zone
        return False


class PendingDecisions:
    """Pending decisions: one at a time for each application, and no application waits for another one's slow planner.

    Starts decisions and returns the failed ones. While one is pending, the newest analysis of its application waits."""

    def __init__(self, decide: Callable[[Decoded[Analysis]], Coroutine[Any, Any, None]]) -> None:
        self._decide = decide
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._current: dict[str, Decoded[Analysis]] = {}
        self._next: dict[str, Decoded[Analysis]] = {}
        self._done: list[tuple[str, asyncio.Task[None]]] = []
        self._any_done = asyncio.Event()

    @property
    def quiet(self) -> bool:
        """Whether nothing is pending."""
        return not self._tasks

    def begin(self, newest: Mapping[str, Decoded[Analysis]]) -> None:
        """Decide for each application, now or after its pending decision."""
        for application, analysis in newest.items():
            if application not in self._tasks:
                self._start(application, analysis)
                continue
            waiting = self._next.get(application)
            if waiting is not None:
                telemetry.skipped()
            if waiting is None or analysis.message.observed_at >= waiting.message.observed_at:
                self._next[application] = analysis

    async def settle(self, timeout_seconds: float = BATCH_SECONDS) -> list[tuple[Record, BaseException]]:
        """Wait until nothing is pending, at most so long; return what failed, with the error."""
        failed: list[tuple[Record, BaseException]] = []
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_seconds
        while self._tasks and await self._wait(until - loop.time()):
            done, self._done = self._done, []
            for application, task in done:
                if self._tasks.get(application) is task:
                    self._ended(application, failed)
        telemetry.pending(len(self._tasks))
        return failed

    async def _wait(self, timeout_seconds: float) -> bool:
        """Wait for a finished task. Each task signals its own completion; re-waiting on the full set would be O(n²)."""
        if not self._done:
            self._any_done.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._any_done.wait(), timeout_seconds)
        return bool(self._done)

    def _start(self, application: str, analysis: Decoded[Analysis]) -> None:
        def signal(task: asyncio.Task[None]) -> None:
            self._done.append((application, task))
            self._any_done.set()

        self._current[application] = analysis
        self._tasks[application] = task = asyncio.create_task(self._decide(analysis), name=f"plan {application}")
        task.add_done_callback(signal)

    def _ended(self, application: str, failed: list[tuple[Record, BaseException]]) -> None:
        task, analysis = self._tasks.pop(application), self._current.pop(application)
        following = self._next.pop(application, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The newer one is retried with it, and makes it superfluous.
            failed.extend((each.record, error) for each in (analysis, following) if each is not None)
        elif following is not None:
            self._start(application, following)

    def drop(self, is_mine: Callable[[str], bool]) -> None:
        """Cancel the decisions for applications that are no longer assigned."""
        for application in [name for name in self._tasks if not is_mine(name)]:
            self._tasks.pop(application).cancel()
            self._current.pop(application)
            self._next.pop(application, None)

    async def close(self) -> None:
        """Cancel everything."""
        tasks = list(self._tasks.values())
        self.drop(lambda _: False)
        await asyncio.gather(*tasks, return_exceptions=True)
