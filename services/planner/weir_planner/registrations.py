"""The registered planners: a compacted topic that every replica reads completely."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid5

from weir_contracts import NewPlanner, PlannerDescription, PlannerRegistration
from weir_contracts.base import WEIR_NAMESPACE
from weir_contracts.topics import PLANNERS
from weir_runtime.bus import Bus, Record
from weir_runtime.clock import Clock
from weir_runtime.loop import Stop
from weir_runtime.messages import GlobalTable, Undecodable, decode, encode

MAX_PLANNERS = 500
"""Each is read by every replica."""
READ_BACK_SECONDS = 5.0
"""Wait for a change to come back; it is stored either way."""


class Registrations:
    """Reads, writes and removes registrations."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        on_removed: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._on_removed = on_removed
        self._changes = asyncio.Event()
        self._table = GlobalTable(bus, PLANNERS.name, registration_of, on_change=self._changed)

    async def follow(self, stop: Stop) -> None:
        """Read until stopped."""
        await self._table.follow(stop)

    async def ping(self) -> None:
        """Check readiness: all registrations have been read once."""
        await self._table.ping()

    async def wait_ready(self, timeout_seconds: float) -> bool:
        return await self._table.wait_ready(timeout_seconds)

    @property
    def ready(self) -> bool:
        return self._table.ready

    @property
    def latest(self) -> dict[str, PlannerRegistration]:
        return self._table.latest

    async def register(self, new: NewPlanner, description: PlannerDescription, caller: str) -> PlannerRegistration:
        """Publish a registration as the name's next version."""
        before, now = self.latest.get(new.name), self._clock.now()
        # By time, as a policy's: no version repeats, even after a removal.
        version = max((before.version if before else 0) + 1, int(now.timestamp() * 1000))
        made = PlannerRegistration(
            **new.model_dump(), version=version, description=description, registered_at=now, registered_by=caller
        )
        id = uuid5(WEIR_NAMESPACE, f"planner {made.name} {version}")
        body, headers = encode(made, type=PLANNERS.type, source="planner", id=id, time=now)
        await self._bus.publish(PLANNERS.name, made.name, body, headers)
        await self._read_back(lambda: made.name in self.latest and self.latest[made.name].version >= version)
        return made

    async def remove(self, name: str) -> None:
        """Publish a tombstone."""
        await self._bus.publish(PLANNERS.name, name, None)
        await self._read_back(lambda: name not in self.latest)

    async def _read_back(self, done: Callable[[], bool]) -> None:
        """Wait until the change has come back, so that its author finds it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_BACK_SECONDS):
                while not done():
                    self._changes.clear()
                    await self._changes.wait()

    def _changed(self, name: str, registration: PlannerRegistration | None) -> None:
        if registration is None:
            self._on_removed(name)
        self._changes.set()


def registration_of(record: Record) -> PlannerRegistration:
    """Return the registration of a record; `Undecodable` also for one under another planner's name."""
    registration = decode(record, PlannerRegistration).message
    if registration.name != record.key:
        raise Undecodable(record, f"names {registration.name}, its key {record.key}", "name", code="wrong-key")
    return registration
