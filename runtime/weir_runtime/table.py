"""The newest value of each key of a topic, in memory, like Kafka Streams' global table."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from .bus import Bus, BusError, Reader
from .dead_letters import log_unreadable
from .envelope import Undecodable
from .loop import Stop
from .records import NewestVersions, Record

T = TypeVar("T")
_log = structlog.get_logger("table")


@dataclass(eq=False, repr=False)
class GlobalTable(Generic[T]):
    """Follows a topic from its beginning. `latest` is the newest readable value of every key.

    A record with an older version than an earlier one of its key is ignored. An unreadable record leaves its key
    unchanged and is logged: every replica reads it, so its dead letter comes from `DeadLetters.watch`.
    """

    bus: Bus
    topic: str
    decode: Callable[[Record], T]
    on_change: Callable[[str, T | None], None] | None = None
    latest: dict[str, T] = field(default_factory=dict, init=False)
    _reader: Reader | None = field(default=None, init=False)
    _versions: NewestVersions = field(default_factory=NewestVersions, init=False)
    _ready: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def ready(self) -> bool:
        """Whether every partition has been read to its end once."""
        return self._ready.is_set()

    async def wait_ready(self, timeout_seconds: float) -> bool:
        """Wait until ready; False after `timeout_seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), timeout_seconds)
        return self.ready

    async def ping(self) -> None:
        """For readiness: `BusError` until ready."""
        if not self.ready:
            raise BusError(f"{self.topic} is being read")

    async def follow(self, stop: Stop) -> None:
        """Read until stopped, also through an outage of the brokers."""
        self._reader = self.bus.reader(self.topic)
        try:
            while not stop.requested:
                try:
                    await stop.race(self.step())
                except BusError as error:
                    _log.warning("table-waits", topic=self.topic, reason=str(error))
                    await stop.wait(1.0)
        finally:
            await self._reader.close()

    async def step(self, timeout_seconds: float = 0.5) -> int:
        """Read once; return the number of records."""
        if self._reader is None:
            self._reader = self.bus.reader(self.topic)
        records = await self._reader.receive(timeout_seconds=timeout_seconds)
        for record in records:
            self._apply(record)
        if not self.ready and await self._reader.caught_up():
            self._ready.set()
        return len(records)

    def _apply(self, record: Record) -> None:
        if record.key is None or self._versions.outdated(record):
            return
        value = None
        try:
            if record.value is None:
                self.latest.pop(record.key, None)
            else:
                value = self.latest[record.key] = self.decode(record)
        except Undecodable as error:
            log_unreadable(record, error)
            return
        if self.on_change:
            self.on_change(record.key, value)
