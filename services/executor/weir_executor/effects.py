"""Fenced effects on the loop itself: outcomes on their topic, and actions in knowledge.

The invariant of `fence` holds directly before each write.
"""

import asyncio

import structlog

from weir_contracts import ActionState, Outcome
from weir_contracts.topics import OUTCOMES
from weir_engines.driver import Rejected, Unanswered
from weir_executor.core.observed import Conflict, Recorded
from weir_executor.knowledge import Knowledge
from weir_runtime.bus import Bus, BusError, Refused
from weir_runtime.messages import child_traceparent, encode, new_traceparent

from .applications import Application
from .core.history import CompareAndSwap, resolve_conflict
from .fence import LostPartition, Ownership

MAX_SWAPS = 4


class OutcomePublisher:
    """Publishes outcomes of owned applications."""

    def __init__(self, bus: Bus, ownership: Ownership, retry_seconds: float) -> None:
        self._bus = bus
        self._ownership = ownership
        self._retry_seconds = retry_seconds
        self._log = structlog.get_logger("executor")

    async def publish(self, app: Application, outcome: Outcome, traceparent: str) -> None:
        """Publish until acknowledged: without the outcome no replica could continue from here. `Refused` if it never
        will be.

        The effect that follows passes the fence again.
        """
        warned = False
        while True:
            held = await self._ownership.unconfirmed(app)
            try:
                if held is None:
                    await self._send(outcome, traceparent)
                    return
                reason = held.reason
            except Refused:
                raise
            except BusError as error:
                reason = str(error)
            if not warned:
                reason = f"outcome not written: {reason}"
                self._log.warning("held", application=app.id, reason=reason, traceparent=traceparent)
                warned = True
            await asyncio.sleep(self._retry_seconds)  # cancelled at the end

    async def repeat(self, app: Application, outcome: Outcome) -> bool:
        """Publish an outcome again; return False if the fence refuses. Raises `BusError` if the brokers are away, `Refused` if
        they do not accept it."""
        try:
            if await self._ownership.unconfirmed(app) is not None:
                return False
        except LostPartition:
            return False
        await self._send(outcome, new_traceparent(outcome.observation_id))
        self._log.info("outcome-repeated", application=outcome.application, outcome_id=str(outcome.id))
        return True

    async def _send(self, outcome: Outcome, traceparent: str) -> None:
        body, headers = encode(
            outcome,
            type=OUTCOMES.type,
            source="executor",
            id=outcome.id,
            time=outcome.at,
            traceparent=child_traceparent(traceparent, outcome.id),
        )
        await self._bus.publish(OUTCOMES.name, outcome.application, body, headers)


class ActionStore:
    """The actions in knowledge, written by compare-and-swap."""

    def __init__(self, knowledge: Knowledge, ownership: Ownership) -> None:
        self._knowledge = knowledge
        self._ownership = ownership
        self._mirrors: set[asyncio.Task[None]] = set()

    async def record(self, app: Application, action: ActionState) -> Recorded | Conflict | Rejected | Unanswered:
        """Store an action in place of the application's stored one, unless that is another executor's."""
        return await self._swap(app, action, app.previous)

    def mirror(self, app: Application, action: ActionState) -> None:
        """Store a published action in the background: verifying and rolling back continue without knowledge."""
        previous, log = app.previous, app.log

        async def record() -> None:
            try:
                answer = await self._swap(app, action, previous)
            except LostPartition:
                return  # the new owner stores it
            if not isinstance(answer, Recorded):
                log.info("not-mirrored", phase=action.phase, answer=str(answer)[:300])

        task = asyncio.create_task(record(), name=f"mirror {app.id}")
        self._mirrors.add(task)
        task.add_done_callback(self._mirrors.discard)

    async def drain(self) -> None:
        """Wait for the pending writes."""
        await asyncio.gather(*self._mirrors, return_exceptions=True)

    async def _swap(
        self, app: Application, action: ActionState, previous: ActionState | None
    ) -> Recorded | Conflict | Rejected | Unanswered:
        version = action.version - 1
        for _ in range(MAX_SWAPS):
            held = await self._ownership.unconfirmed(app)
            if held is not None:
                return held
            answer = await self._knowledge.record(action, version)
            if not isinstance(answer, Conflict):
                return answer
            resolved = resolve_conflict(action, answer.current, previous)
            if not isinstance(resolved, CompareAndSwap):
                return resolved
            version = resolved.version
        return Unanswered("the stored action changes faster than it can be replaced")
