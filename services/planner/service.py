"""The shell: receive analyses, plan the newest of each application, publish the plan, commit."""

import asyncio
from datetime import datetime

import structlog
from weir_contracts import Analysis, Observation, Outcome, Plan, PlanRequest, derive_id
from weir_contracts.topics import ANALYSES, OBSERVATIONS, OUTCOMES, PLANS

from runtime.bus import Bus, Consumer, Reader
from runtime.clock import Clock
from runtime.dead_letters import DeadLetters
from runtime.envelope import Decoded, child_traceparent, decode, encode
from runtime.loop import Stop, run_forever
from runtime.records import Record, partition_of
from runtime.schema_version import NewerMessages
from runtime.table import GlobalTable

from . import telemetry
from .core.decide import make_plan, precheck
from .memory import Applications
from .planners import Asks, decide, observations_wanted
from .shadows import ShadowRunner
from .turns import UNCOMMITTED_SECONDS, Turns, skipped

GROUP = "weir-planner"


class Planner:
    """Plans for the applications of its share of the analyses."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        planners: Asks,
        applications: Applications,
        *,
        partitions: int,
        shadows: ShadowRunner | None = None,
        newer: NewerMessages | None = None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._planners = planners
        self._applications = applications
        self._partitions = partitions
        self._shadows = shadows
        self._dead_letters = DeadLetters(bus, "planner", clock, newer)
        self._outcomes = GlobalTable(
            bus,
            OUTCOMES.name,
            lambda record: decode(record, Outcome).message,
            on_change=applications.happened,
            on_unreadable=self._dead_letters.undecodable,
        )
        self._owned: frozenset[int] = frozenset()
        self._pending: list[Record] = []
        self._turns = Turns(self._decide)
        self._uncommitted_since: float | None = None
        self._log = structlog.get_logger("planner")

    async def ping(self) -> None:
        """For readiness: outcomes have been read to their end once."""
        await self._outcomes.ping()

    async def run(self, stop: Stop) -> None:
        """Plan until stopped."""
        await stop.race(self._planners.start())
        following = asyncio.create_task(self._outcomes.follow(stop))
        try:
            while not stop.requested and not await self._outcomes.wait_ready(0.5):
                continue
            await self._plan_until(stop)
        finally:
            await following

    async def _plan_until(self, stop: Stop) -> None:
        member = self._bus.consumer([ANALYSES.name], GROUP)
        # What is needed beside the driving topic is read by itself, for the same partition numbers.
        plans = self._bus.reader(PLANS.name, partitions=[])
        observations = self._bus.reader(OBSERVATIONS.name, partitions=[], from_beginning=False)
        try:
            await run_forever("planner", lambda: self._cycle(member, plans, observations, stop), stop)
        finally:
            await self._turns.settle()
            await self._turns.close()
            for opened in (member, plans, observations):
                await opened.close()

    async def _cycle(self, member: Consumer, plans: Reader, observations: Reader, stop: Stop) -> None:
        if not self._pending:
            # What was received is kept until its plans are out: a failure in between must not skip it.
            self._pending = await stop.race(member.receive(timeout_seconds=0.5)) or []
        if member.assignment != self._owned:
            await self._take_share(member.assignment, plans, observations, stop)
        for record in await observations.receive(timeout_seconds=0.0):
            await self._take_observation(record)
            await asyncio.sleep(0)  # reading is work: what planners have answered goes out in between
        if self._pending:
            await self._begin_newest(self._pending)
            self._uncommitted_since = self._uncommitted_since or self._clock.monotonic()
            self._pending = []
        await self._settle(member)

    async def _settle(self, member: Consumer) -> None:
        """What has failed is decided again; what was received is committed once all of its plans are out."""
        failed = await self._turns.settle()
        if failed:
            self._pending = [record for record, _ in failed]
            raise failed[0][1]
        since = self._uncommitted_since
        if since is None or not (self._turns.quiet or self._clock.monotonic() - since > UNCOMMITTED_SECONDS):
            return
        await member.commit()
        self._uncommitted_since = None

    async def _take_share(self, owned: frozenset[int], plans: Reader, observations: Reader, stop: Stop) -> None:
        """After a rebalance: read the plans of the new share to their end, so that what they carry is known."""
        self._log.info("share", partitions=sorted(owned))
        # Whoever has them now plans on; what is known of them here would be out of date if they came back.
        self._turns.drop(lambda application: partition_of(application, self._partitions) in owned)
        self._applications.keep_only(lambda application: partition_of(application, self._partitions) in owned)
        if self._shadows is not None:
            self._shadows.assign(owned)
        await plans.assign([])
        await plans.assign(owned)
        await observations.assign(owned)
        while owned and not stop.requested:
            for record in await plans.receive(timeout_seconds=0.2):
                decoded = await self._dead_letters.decoded(record, Plan)
                if decoded is not None:
                    self._applications.planned(decoded.message)
            if await plans.caught_up():
                break
        # One's own plans come from memory from here on.
        await plans.assign([])
        self._owned = owned

    async def _take_observation(self, record: Record) -> None:
        decoded = await self._dead_letters.decoded(record, Observation)
        if decoded is not None:
            self._applications.observed(decoded.message)

    async def _begin_newest(self, records: list[Record]) -> None:
        """One decision for each application in the batch: after an outage one current decision, not hundreds of old ones."""
        newest: dict[str, Decoded[Analysis]] = {}
        for record in reversed(records):  # the newest first: what is older need not be read
            if _is_superseded(record, newest.get(record.key or "")):
                skipped()
                continue
            decoded = await self._dead_letters.decoded(record, Analysis)
            await asyncio.sleep(0)
            if decoded is None:
                continue
            if decoded.message.status == "ended" and self._stands_right(decoded):
                # Also where the application is back by the end of the batch: what was known of it ended here.
                self._applications.ended(decoded.message)
                self._turns.drop(lambda name, ended=decoded.message.application: name != ended)  # type: ignore[misc]
                if self._shadows is not None:
                    self._shadows.ended(decoded.message.application)
            known = newest.get(decoded.message.application)
            if known is not None:
                skipped()
            if known is None or decoded.message.observed_at > known.message.observed_at:
                newest[decoded.message.application] = decoded
        self._turns.begin(newest)

    def _stands_right(self, decoded: Decoded[Analysis]) -> bool:
        """Whether it is in its key's partition."""
        return partition_of(decoded.message.application, self._partitions) == decoded.record.partition

    async def _decide(self, decoded: Decoded[Analysis]) -> None:
        analysis = decoded.message
        if not self._stands_right(decoded):
            await self._dead_letters.send(
                decoded.record, "wrong-partition", "stands in another partition than its key's", "key"
            )
            return
        last = self._applications.plan(analysis.application)
        if last is not None and analysis.observed_at <= last.observed_at:
            return  # a replay: it has been decided
        if analysis.status == "ended":
            return
        telemetry.analysed(analysis, decoded.record.timestamp)
        try:
            plan = await self._plan(analysis)
        except Exception as error:  # noqa: BLE001 - odd numbers of one application must not hold up all others for ever
            self._log.exception("plan-failed", application=analysis.application, place=decoded.record.place)
            reason = f"no plan could be made: {type(error).__name__}: {error}"
            await self._dead_letters.send(decoded.record, "planning-failed", reason)
            return
        await self._publish(plan, decoded.traceparent)
        self._applications.planned(plan, analysis)
        if self._shadows is not None:
            self._shadows.offer(self._request(analysis))

    def _request(self, analysis: Analysis) -> PlanRequest:
        wanted = observations_wanted(self._planners, analysis.policy)
        return self._applications.request(analysis, self._clock.now(), with_observations=wanted)

    async def _plan(self, analysis: Analysis) -> Plan:
        began = self._clock.monotonic()
        request = self._request(analysis)
        choice = analysis.policy.spec.planner
        reply = precheck(request) or await decide(self._planners, request)
        return make_plan(
            request,
            reply,
            self._applications.state(analysis.application, choice.name),
            planner=choice.name,
            created_at=self._clock.now(),
            planning_seconds=round(self._clock.monotonic() - began, 4),
        )

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


def _is_superseded(record: Record, newer: Decoded[Analysis] | None) -> bool:
    """Whether it need not even be read: by its header it is of an earlier time than what was read of its application. Not where it
    is another's under this key, or may say that the application ended."""
    if newer is None or record.value is None or b'"ended"' in record.value:
        return False
    if f'"application":"{newer.message.application}"'.encode() not in record.value:
        return False
    try:
        return datetime.fromisoformat(record.headers.get("ce_time", "")) <= newer.message.observed_at
    except (ValueError, TypeError):  # no time, or one without a zone
        return False
