"""How applications lie in Redis: the state as a hash, past cycles as a sorted set of lines, and the feed of all of them as a
stream.

A hash has a field for each newest message and for each entry of its lists, so that a message writes only its changes: it
has up to some hundred kB of JSON, and each of the three messages of a cycle changes a few of them. The newest messages,
its largest part for a rarely scaled application, are read on request and not for the next message. Past cycles are kept
apart, since a message needs none of them, and 500 lines are four times as long as all that it needs; a line that two
replicas write is one line. The feed is bounded by its number of events and by the memory they take.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from cachetools import RRCache

from weir_contracts import LoopResult
from weir_knowledge.adapters.connection import Connection, pack, unpack
from weir_knowledge.core import KINDS, Cycle, End, HistoryEntry, Kind, Newest, State, with_ends
from weir_knowledge.store import FeedEvent

VERSION = "version"
"""A random text after each write, so that a cached state need not be read again, followed by the state's times."""
LISTS = ("cycles", "open_cycles")
SUMS = ("spend", "advice")
_SEPARATOR = "/"


@dataclass
class Change:
    """Fields to write and to remove."""

    fields: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    def packed(self, pack: Callable[[str], bytes]) -> dict[str, bytes]:
        """Return the fields to write. The version is compared in Redis, so it is not packed."""
        return {name: text.encode() if name == VERSION else pack(text) for name, text in self.fields.items()}


def changes(before: State | None, after: State, documents: Mapping[Kind, str], there: Collection[str] = ()) -> Change:
    """Return the change from the stored state to `after`, with new newest messages as JSON by kind.

    An entry that is the same object is unchanged. If `before` is None, the entries in the fields `there` are replaced.
    """
    change = Change({VERSION: f"{uuid4().hex} {after.times.model_dump_json()}", **dict(documents.items())})
    for name in LISTS:
        prefix, entries = name + _SEPARATOR, getattr(after, name)
        earlier: Mapping[str, Cycle | None]
        if before is None:
            earlier = {field.removeprefix(prefix): None for field in there if field.startswith(prefix)}
        elif entries is getattr(before, name):
            continue
        else:
            earlier = _by_id(getattr(before, name))
        current = _by_id(entries)
        for key, entry in current.items():
            if earlier.get(key) is not entry:
                change.fields[prefix + key] = entry.model_dump_json()
        change.removed += [prefix + key for key in earlier if key not in current]
        change.fields[name] = json.dumps(list(current))
    for name in SUMS:
        earlier_sums, sums = getattr(before, name, None), getattr(after, name)
        had = name in there if before is None else earlier_sums is not None
        if sums is not None and sums != earlier_sums:
            change.fields[name] = sums.model_dump_json()
        elif sums is None and had:
            change.removed.append(name)
    return change


def _by_id(cycles: list[Cycle]) -> dict[str, Cycle]:
    return {str(cycle.correlation_id): cycle for cycle in cycles}


def read_newest(application: str, packed: Mapping[str, str]) -> Newest:
    """Return the newest messages and the sums of an application from fields of its hash. `ValueError` for an invalid one."""
    return Newest.read(application, {name: unpack(packed[name]) for name in (*KINDS, *SUMS) if packed.get(name)})


@dataclass(frozen=True)
class Stored:
    """A state as it is stored."""

    version: str
    state: State
    lengths: Mapping[str, int]
    """Characters of each field that it was read from."""

    def changed(self, state: State, change: Change) -> "Stored":
        """Return the stored state after a change."""
        lengths = {name: length for name, length in self.lengths.items() if name not in change.removed}
        lengths |= {name: len(text) for name, text in change.fields.items() if name.startswith(LISTS)}
        return Stored(change.fields[VERSION], state, lengths)


def read(application: str, packed: Mapping[str, str]) -> Stored | None:
    """Return the state in a hash; None for an empty one. `ValueError` for an invalid one."""
    if VERSION not in packed:
        return None
    fields = {name: unpack(text) for name, text in packed.items() if name.startswith(LISTS)}
    parts = {"application": json.dumps(application), "times": packed[VERSION].partition(" ")[2]}
    parts |= {name: _entries(name, fields) for name in LISTS}
    parts |= {name: unpack(packed[name]) for name in SUMS if name in packed}
    body = ",".join(f'"{name}":{text}' for name, text in parts.items())
    state = State.model_validate_json(f"{{{body}}}")
    return Stored(packed[VERSION], state, {name: len(text) for name, text in fields.items()})


def _entries(name: str, fields: Mapping[str, str]) -> str:
    keys = json.loads(fields.get(name, "[]"))
    # An entry may be missing if Redis was emptied during a write; the topics have it.
    found = (fields.get(name + _SEPARATOR + key) for key in keys)
    return "[" + ",".join(text for text in found if text) + "]"


def state_cache(max_characters: int) -> MutableMapping[str, Stored]:
    """Return a cache of states by application, bounded by the length of their JSON; a state takes about seven times
    that in memory.

    Evicts at random: applications come in the same order each cycle, so that the one used longest ago would be the next
    one.
    """
    return RRCache(max_characters, getsizeof=lambda stored: sum(stored.lengths.values()))


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
