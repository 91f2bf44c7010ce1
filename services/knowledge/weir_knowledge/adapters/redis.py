"""The store in Redis: a hash for each document, a string for each position, past cycles of an application as a sorted set
of lines, the feed of all as a stream, and one script that changes them together.

A line that is written twice is one line. The feed is bounded by its number of events and by the memory they take.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from weir_contracts import LoopResult
from weir_knowledge.adapters.connection import Connection, pack, unpack
from weir_knowledge.core import End, HistoryEntry, with_ends
from weir_knowledge.store import Batch, FeedEvent, Incomplete, Key, NotContinued, Position, StoreFull

POSITION = "weir:position:"
DOCUMENT = "weir:document:"
KEYS = "weir:keys:"
"""A set of the keys of a kind."""

# KEYS: positions. ARGV: the value that each must have, "" for none; then commands, each after its number of arguments.
# A script is refused as a whole if its first write finds no memory, and is not interrupted afterwards.
_APPLY = """
for place = 1, #KEYS do
  if (redis.call('GET', KEYS[place]) or '') ~= ARGV[place] then return place end
end
local at = #KEYS + 1
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
return 0
"""


class RedisStore(Connection):
    """The store in Redis; a lost connection is `StoreUnavailable`, and the next call reconnects."""

    def __init__(
        self,
        url: SecretStr,
        events_kept: int = 20_000,
        timeout_seconds: float = 3.0,
        *,
        connections: int = 100,
        events_bytes: int = 16_000_000,
        history_kept: int = 500,
        history_seconds: float = 86_400.0,
    ) -> None:
        """`connections`: as many at most; each open event stream has one."""
        super().__init__(url, timeout_seconds, connections)
        self._feed = RedisFeed(self, events_kept, events_bytes)
        self._history = RedisHistory(self, history_kept, history_seconds)

    async def applied(self, partitions: Collection[int]) -> dict[int, Position | None]:
        if not partitions:
            return {}
        texts = await self.do(self.client.mget([f"{POSITION}{partition}" for partition in partitions]))
        return {partition: _position(text) for partition, text in zip(partitions, texts, strict=True)}

    async def get(
        self, keys: Collection[Key], names: Collection[str] | None = None, *, complete: Collection[int] = ()
    ) -> dict[Key, dict[str, str]]:
        documents = [_document(key) for key in keys]
        if names is None:
            hashes = await self._complete([("HGETALL", document) for document in documents], complete)
            found = [fields or None for fields in hashes]
        else:
            reads = [(("HMGET", document, *names), ("EXISTS", document)) for document in documents]
            answers = await self._complete([command for pair in reads for command in pair], complete)
            pairs = zip(answers[::2], answers[1::2], strict=True)
            found = [dict(zip(names, texts, strict=True)) if exists else None for texts, exists in pairs]
        return {key: _unpacked(fields) for key, fields in zip(keys, found, strict=True) if fields is not None}

    async def all(
        self, kind: str, names: Collection[str] | None = None, *, complete: Collection[int] = ()
    ) -> dict[str, dict[str, str]]:
        (keys,) = await self._complete([("SMEMBERS", KEYS + kind)], complete)
        documents = await self.get([(kind, key) for key in sorted(keys)], names, complete=complete)
        return {key: fields for (_, key), fields in documents.items()}

    async def _complete(self, reads: Sequence[tuple[str, ...]], partitions: Collection[int]) -> list[Any]:
        """Return the answers to commands that are sent together with the question for these positions."""
        answers = await self.batch([*reads, *(("EXISTS", f"{POSITION}{each}") for each in partitions)])
        if not all(answers[len(reads) :]):
            raise Incomplete
        return answers[: len(reads)]

    async def keys(self, kind: str) -> list[str]:
        return sorted(await self.do(self.client.smembers(KEYS + kind)))

    async def apply(self, batch: Batch) -> None:
        # Most events are newest messages as well: no text is packed twice.
        once = cache(pack)
        await self._feed.make_room(sum(len(once(text)) + EVENT_BYTES for _, _, text in batch.events))
        partitions = list(batch.continues)
        # The pipeline only collects the commands; the script runs them.
        pipeline = self.client.pipeline()
        for kind, key in batch.deleted:
            pipeline.delete(_document((kind, key)))
            pipeline.srem(KEYS + kind, key)
        for application in batch.forgotten:
            pipeline.delete(*history_keys(application))
        for document, names in batch.removed.items():
            if names:
                pipeline.hdel(_document(document), *names)
        for (kind, key), fields in batch.changed.items():
            pipeline.hset(_document((kind, key)), mapping={name: once(text) for name, text in fields.items()})
            pipeline.sadd(KEYS + kind, key)
        for kind, application, text in batch.events:
            self._feed.add(pipeline, kind, application, once(text))
        self._history.add(pipeline, batch.entries)
        for partition, position in batch.positions.items():
            pipeline.set(f"{POSITION}{partition}", _text(position))
        arguments: list[Any] = [_text(batch.continues[partition]) for partition in partitions]
        for command, _ in pipeline.command_stack:
            arguments += [len(command), *command]
        try:
            place = await self.script(_APPLY, [f"{POSITION}{partition}" for partition in partitions], *arguments)
        except StoreFull:
            self._feed.measure_next()
            raise
        if place:
            raise NotContinued(partitions[place - 1])
        self.refused = False
        await self._history.tidy(batch.entries)

    async def history(self, application: str) -> list[LoopResult]:
        return await self._history.read(application)

    async def events(self, after: str, count: int = 100, wait_seconds: float = 0.0) -> list[FeedEvent]:
        return await self._feed.after(after, count, wait_seconds)

    async def newest_event(self) -> str:
        return await self._feed.newest()


def _document(key: Key) -> str:
    return f"{DOCUMENT}{key[0]}:{key[1]}"


def _unpacked(fields: dict[str, str | None]) -> dict[str, str]:
    return {name: unpack(text) for name, text in fields.items() if text is not None}


def _text(position: Position | None) -> str:
    """Return the text by which positions are compared."""
    return (
        ""
        if position is None
        else json.dumps([position.offsets, position.versions, position.written_ms], sort_keys=True)
    )


def _position(text: str | None) -> Position | None:
    return Position(*json.loads(text)) if text else None


LINES = "weir:history:"
ENDS = "weir:history-ends:"
SPARE_ENDS = 2
"""Ends per line before ends without lines are deleted: that reads all lines, so it must not happen with each end."""


def history_keys(application: str) -> tuple[str, str]:
    return LINES + application, ENDS + application


class RedisHistory:
    """Lines of each application up to a number and an age, and the ends of their plans."""

    def __init__(self, connection: Connection, max_lines: int, age_seconds: float) -> None:
        self._client, self._do, self._batch = connection.client, connection.do, connection.batch
        self._max_lines, self._age_seconds = max_lines, age_seconds

    def add(self, pipeline: Any, entries: Sequence[tuple[str, HistoryEntry]]) -> None:
        """Append entries of applications to a transaction."""
        lines, ends = defaultdict[str, list[LoopResult]](list), defaultdict[str, dict[str, str]](dict)
        for application, entry in entries:
            if isinstance(entry, End):
                ends[application][str(entry.plan_id)] = entry.phase
            else:
                lines[application].append(entry)
        for application, each in lines.items():
            key, newest = LINES + application, max(line.at.timestamp() for line in each)
            pipeline.zadd(key, {pack(line.model_dump_json()): line.at.timestamp() for line in each})
            pipeline.zremrangebyrank(key, 0, -self._max_lines - 1)
            pipeline.zremrangebyscore(key, "-inf", f"({newest - self._age_seconds}")
        for application, phases in ends.items():
            pipeline.hset(ENDS + application, mapping=phases)

    async def tidy(self, entries: Sequence[tuple[str, HistoryEntry]]) -> None:
        """Delete ends without lines once there are many more ends than lines. An end may come before its line."""
        ended = defaultdict[str, set[str]](set)
        for application, each in entries:
            if isinstance(each, End):
                ended[application].add(str(each.plan_id))
        for application, now in ended.items():
            ends = ENDS + application
            if await self._do(self._client.hlen(ends)) <= SPARE_ENDS * self._max_lines:
                continue
            kept = now | {str(line.plan_id) for line in await self.read(application)}
            plans = await self._do(self._client.hkeys(ends))
            missing = [plan_id for plan_id in plans if plan_id not in kept]
            if missing:
                await self._do(self._client.hdel(ends, *missing))

    async def read(self, application: str) -> list[LoopResult]:
        """Return all lines, newest first."""
        lines, ends = history_keys(application)
        texts, phases = await self._batch([("ZREVRANGE", lines, "0", "-1"), ("HGETALL", ends)])
        return with_ends(
            (LoopResult.model_validate_json(unpack(text)) for text in texts),
            {UUID(plan_id): phase for plan_id, phase in phases.items()},
        )


EVENTS = "weir:events"
EVENT_BYTES = 150
"""Approximate memory of an event in Redis in addition to its data."""
MEASUREMENTS = 32
"""Of the feed's memory, while its full size is written once."""
SPARE_STEPS = 3
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
        wanted = max(0, self._max_bytes - (SPARE_STEPS + 1) * step - incoming)
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
