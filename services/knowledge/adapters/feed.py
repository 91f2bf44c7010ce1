"""The event feed on a Redis stream, bounded by its number of events and by the memory they take."""

from collections.abc import Awaitable
from typing import Any, cast

from redis.asyncio.client import Pipeline

from services.knowledge.adapters.connection import Connection, unpack
from services.knowledge.store import FeedEvent

EVENTS = "weir:events"
EVENT_BYTES = 150
"""What Redis needs for an event beside its data, about."""
LOOKS = 32
"""How often the feed is measured while it takes its whole size in."""
SPARE = 3
"""Of such steps left free: as many replicas may add to it without having seen what the others have added."""


class RedisFeed:
    """A stream of packed messages. Redis measures its memory: an estimate from message lengths would miss the events of other replicas
    and those present at the start."""

    def __init__(self, connection: Connection, max_events: int, max_bytes: int) -> None:
        self._client, self._do, self._if_allowed = connection.client, connection.do, connection.if_allowed
        self._max_events = max_events
        self._max_bytes = max_bytes
        # Measured before the first is added: it may be there already, of another setting.
        self._unmeasured = max_bytes

    async def make_room(self, incoming: int) -> None:
        """Let the oldest events go, so that the feed keeps within its memory with so many bytes more. Redis does this also where it is
        full."""
        self._unmeasured += incoming
        step = self._max_bytes // LOOKS
        if self._unmeasured < step:
            return
        wanted = max(0, self._max_bytes - (SPARE + 1) * step - incoming)
        # Not done at once where the oldest are smaller than the others.
        while (used := await self._used()) > wanted + step:
            length = await self._do(cast(Awaitable[Any], self._client.xlen(EVENTS)))
            if length == 0:
                break
            kept = length * wanted // used
            await self._do(cast(Awaitable[Any], self._client.xtrim(EVENTS, maxlen=kept, approximate=False)))
        self._unmeasured = incoming

    async def _used(self) -> int:
        """Bytes of Redis' memory, all nodes of the stream counted; 0 where that cannot be asked: then the number alone bounds it."""
        return await self._if_allowed(cast(Awaitable[Any], self._client.memory_usage(EVENTS, samples=0))) or 0

    def measure_next(self) -> None:
        """Before the next events are added: these were not taken in."""
        self._unmeasured = self._max_bytes

    def add(self, pipeline: Pipeline, kind: str, application: str, data: bytes) -> None:
        """Append one event to a transaction."""
        fields = {"kind": kind, "application": application, "data": data}
        pipeline.xadd(EVENTS, cast(Any, fields), maxlen=self._max_events, approximate=True)

    async def after(self, event_id: str, count: int, wait_seconds: float) -> list[FeedEvent]:
        """Events after an id, oldest first, waiting for the first one."""
        block = int(wait_seconds * 1000) or None
        found = await self._do(cast(Awaitable[Any], self._client.xread({EVENTS: event_id}, count=count, block=block)))
        entries = found[0][1] if isinstance(found, list) and found else found.get(EVENTS, [[]])[0] if found else []
        return [FeedEvent(entry, f["kind"], f["application"], unpack(f["data"])) for entry, f in entries]

    async def newest(self) -> str:
        """The newest one's id; `0-0` if there is none."""
        newest = await self._do(cast(Awaitable[Any], self._client.xrevrange(EVENTS, count=1)))
        return str(newest[0][0]) if newest else "0-0"
