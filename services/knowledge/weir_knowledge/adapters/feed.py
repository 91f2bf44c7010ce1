"""The event feed on a Redis stream, bounded by its number of events and by the memory they take."""

from typing import Any

from weir_knowledge.adapters.connection import Connection, unpack
from weir_knowledge.store import FeedEvent

EVENTS = "weir:events"
EVENT_BYTES = 150
"""Approximate memory of an event in Redis in addition to its data."""
MEASUREMENTS = 32
"""Of the feed's memory, while its full size is written once."""
SPARE = 3
"""Steps between measurements left free: so many replicas may write at once without knowing of each other's events."""


class RedisFeed:
    """A stream of packed messages. Redis measures its memory; message lengths would miss the events of other replicas
    and earlier ones."""

    def __init__(self, connection: Connection, max_events: int, max_bytes: int) -> None:
        self._client, self._do, self._if_allowed = connection.client, connection.do, connection.if_allowed
        self._max_events, self._max_bytes = max_events, max_bytes
        self._unmeasured = max_bytes  # measure before the first write: the stream may exist, with another limit

    async def make_room(self, incoming: int) -> None:
        """Delete the oldest events until `incoming` bytes fit into the feed's memory. A full Redis does this as well."""
        self._unmeasured += incoming
        step = self._max_bytes // MEASUREMENTS
        if self._unmeasured < step:
            return
        wanted = max(0, self._max_bytes - (SPARE + 1) * step - incoming)
        # Takes several rounds if the oldest are smaller than the others.
        while (used := await self._used()) > wanted + step and (length := await self._do(self._client.xlen(EVENTS))):
            await self._do(self._client.xtrim(EVENTS, maxlen=length * wanted // used, approximate=False))
        self._unmeasured = incoming

    async def _used(self) -> int:
        """Return the bytes of all nodes of the stream; 0 if the command is not permitted: then only the number bounds
        it."""
        return await self._if_allowed(self._client.memory_usage(EVENTS, samples=0)) or 0

    def measure_next(self) -> None:
        """Measure before the next write: this one was refused."""
        self._unmeasured = self._max_bytes

    def add(self, pipeline: Any, kind: str, application: str, data: bytes) -> None:
        """Append one event to a transaction."""
        fields = {"kind": kind, "application": application, "data": data}
        pipeline.xadd(EVENTS, fields, maxlen=self._max_events, approximate=True)

    async def after(self, event_id: str, count: int, wait_seconds: float) -> list[FeedEvent]:
        """Return events after an id, oldest first, waiting for the first one."""
        block = int(wait_seconds * 1000) or None
        found = await self._do(self._client.xread({EVENTS: event_id}, count=count, block=block))
        entries = found[0][1] if isinstance(found, list) and found else found.get(EVENTS, [[]])[0] if found else []
        return [FeedEvent(entry, f["kind"], f["application"], unpack(f["data"])) for entry, f in entries]

    async def newest(self) -> str:
        """Return the newest id; `0-0` without events."""
        newest = await self._do(self._client.xrevrange(EVENTS, count=1))
        return str(newest[0][0]) if newest else "0-0"
