"""The planners that were registered: a compacted topic that every replica follows whole."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid5

from weir_contracts import NewPlanner, PlannerDescription, PlannerRegistration
from weir_contracts.base import WEIR_NAMESPACE
from weir_contracts.topics import PLANNERS

from runtime.bus import Bus
from runtime.clock import Clock
from runtime.dead_letters import DeadLetters
from runtime.envelope import Undecodable, decode, encode
from runtime.loop import Stop
from runtime.records import Record
from runtime.schema_version import NewerMessages
from runtime.table import GlobalTable

MOST_PLANNERS = 500
"""Registered at once: each is read by every replica."""
SEEN_SECONDS = 5.0
"""How long a change may take to come back; it is kept either way."""


class Registrations:
    """Reads, writes and removes registrations; `latest` is what is known now."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        on_removed: Callable[[str], None] = lambda _name: None,
        newer: NewerMessages | None = None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._on_removed = on_removed
        self._news = asyncio.Event()
        self._table = GlobalTable(
            bus,
            PLANNERS.name,
            _decode,
            on_change=self._changed,
            on_unreadable=DeadLetters(bus, "planner", clock, newer).undecodable,
        )

    async def follow(self, stop: Stop) -> None:
        """Read until stopped."""
        await self._table.follow(stop)

    async def ping(self) -> None:
        """For readiness: all registrations have been read once."""
        await self._table.ping()

    async def wait_ready(self, timeout_seconds: float) -> bool:
        return await self._table.wait_ready(timeout_seconds)

    @property
    def ready(self) -> bool:
        return self._table.ready

    @property
    def latest(self) -> dict[str, PlannerRegistration]:
        """By name."""
        return self._table.latest

    async def register(
        self, new: NewPlanner, description: PlannerDescription | None, caller: str
    ) -> PlannerRegistration:
        """Publish it as the name's next version."""
        before, now = self.latest.get(new.name), self._clock.now()
        # By time, as a policy's: no version comes twice, also where a planner was removed and registered again.
        version = max((before.version if before else 0) + 1, int(now.timestamp() * 1000))
        made = PlannerRegistration(
            **new.model_dump(), version=version, description=description, registered_at=now, registered_by=caller
        )
        id = uuid5(WEIR_NAMESPACE, f"planner {made.name} {version}")
        body, headers = encode(made, type=PLANNERS.type, source="planner", id=id, time=now)
        await self._bus.publish(PLANNERS.name, made.name, body, headers)
        await self._seen(lambda: made.name in self.latest and self.latest[made.name].version >= version)
        return made

    async def remove(self, name: str) -> None:
        """Publish its tombstone."""
        await self._bus.publish(PLANNERS.name, name, None)
        await self._seen(lambda: name not in self.latest)

    async def _seen(self, done: Callable[[], bool]) -> None:
        """Until the change has come back, so that who made it finds it; it is kept whether or not it has come by then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SEEN_SECONDS):
                while not done():
                    self._news.clear()
                    await self._news.wait()

    def _changed(self, name: str, registration: PlannerRegistration | None) -> None:
        if registration is None:
            self._on_removed(name)
        self._news.set()


def _decode(record: Record) -> PlannerRegistration:
    registration = decode(record, PlannerRegistration).message
    if registration.name != record.key:
        raise Undecodable(record, f"names {registration.name}, its key {record.key}", "name", code="wrong-key")
    return registration
