"""The store on Redis. Each atomic step is one Lua script or one transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import SecretStr

from weir_contracts import ActionState, LoopResult, ScalingPolicy
from weir_engines.registry import Claim, claims, rival
from weir_knowledge.adapters import layout
from weir_knowledge.adapters.connection import Connection, pack
from weir_knowledge.adapters.layout import EVENT_BYTES, RedisFeed, RedisHistory, Stored, history_keys
from weir_knowledge.core import KINDS, HistoryEntry, Kind, Newest, State
from weir_knowledge.store import (
    INCOMPLETE,
    NOTHING_NEW,
    FeedEvent,
    OutboxEntry,
    StoreFull,
    StoreUnavailable,
    TargetTaken,
    VersionConflict,
)

POLICIES = "weir:policies"
OUTBOX = "weir:outbox"
DELETIONS = "weir:deletions"
"""A hash: the version of each deletion, kept for as long as a record of the policy may still be read."""
APPLICATIONS = "weir:applications"
"""A set of the applications with a state; each state is a hash."""
STATE = "weir:state:"
ACTIONS = "weir:actions"
WHOLE = "weir:whole"
MAX_STATES_READ = 50
"""In one round trip: some megabytes."""

# KEYS: policies, outbox, deletions, the mark of a complete store. ARGV: application, expected version or "", new value or
# "" (delete), the new value's version or the deletion's least. A policy or deletion and its outbox entry are written
# together, so nothing is stored that is never published.
_PUT_POLICY = """
if redis.call('EXISTS', KEYS[4]) == 0 then return {3, ''} end
local current = redis.call('HGET', KEYS[1], ARGV[1])
local version = 0
if current then version = cjson.decode(current).metadata.version end
if ARGV[2] ~= '' and string.format('%.0f', version) ~= ARGV[2] then return {0, current or ''} end
if ARGV[3] == '' then
  if not current then return {2, ''} end
  local deleted = string.format('%.0f', math.max(version + 1, tonumber(ARGV[4])))
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[3], ARGV[1], deleted)
  redis.call('XADD', KEYS[2], '*', 'application', ARGV[1], 'version', deleted, 'deleted', current)
else
  local deleted = redis.call('HGET', KEYS[3], ARGV[1])
  if deleted and tonumber(deleted) >= tonumber(ARGV[4]) then return {0, ''} end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('XADD', KEYS[2], '*', 'application', ARGV[1], 'value', ARGV[3])
end
return {1, ''}
"""

# KEYS: policies, deletions. ARGV: application, version, value or "" (deleted). What is newer stays.
_RESTORE_POLICY = """
local current = redis.call('HGET', KEYS[1], ARGV[1])
if current and cjson.decode(current).metadata.version >= tonumber(ARGV[2]) then return end
local deleted = redis.call('HGET', KEYS[2], ARGV[1])
if deleted and tonumber(deleted) >= tonumber(ARGV[2]) then return end
local written, removed = KEYS[1], KEYS[2]
if ARGV[3] == '' then written, removed = KEYS[2], KEYS[1] end
redis.call('HSET', written, ARGV[1], ARGV[3] == '' and ARGV[2] or ARGV[3])
redis.call('HDEL', removed, ARGV[1])
"""

# KEYS: policies, outbox, deletions. ARGV: application.
_PUBLISH_AGAIN = """
local current = redis.call('HGET', KEYS[1], ARGV[1])
if current then return redis.call('XADD', KEYS[2], '*', 'application', ARGV[1], 'value', current) end
local deleted = redis.call('HGET', KEYS[3], ARGV[1])
if deleted then redis.call('XADD', KEYS[2], '*', 'application', ARGV[1], 'version', deleted) end
"""

# KEYS: hash. ARGV: application, expected version, value.
_PUT_ACTION = """
local current = redis.call('HGET', KEYS[1], ARGV[1])
local version = 0
if current then version = cjson.decode(current).version end
if string.format('%.0f', version) ~= ARGV[2] then return {0, current or ''} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {1, ''}
"""


def _as_written(policy: ScalingPolicy) -> str:
    """Return the policy without the fields that its user left out: a default may change."""
    return policy.model_dump_json(exclude_unset=True)


class RedisStore(Connection):
    """The store in Redis; a lost connection is `StoreUnavailable`, and the next call reconnects."""

    def __init__(
        self,
        url: SecretStr,
        events_kept: int = 20_000,
        state_cache_bytes: int = 16_000_000,
        timeout_seconds: float = 3.0,
        *,
        events_bytes: int = 16_000_000,
        history_kept: int = 500,
        history_seconds: float = 86_400.0,
    ) -> None:
        super().__init__(url, timeout_seconds)
        self._cache = layout.state_cache(state_cache_bytes)
        self._feed = RedisFeed(self, events_kept, events_bytes)
        self._history = RedisHistory(self, history_kept, history_seconds)

    async def is_complete(self) -> bool:
        return bool(await self.do(self.client.exists(WHOLE)))

    async def mark_complete(self) -> None:
        await self.do(self.client.set(WHOLE, "1"))

    async def policy(self, application: str) -> ScalingPolicy | None:
        text = await self.do(self.client.hget(POLICIES, application))
        return ScalingPolicy.model_validate_json(text) if text else None

    async def policies(self) -> list[ScalingPolicy]:
        found = await self.do(self.client.hgetall(POLICIES))
        return [ScalingPolicy.model_validate_json(found[name]) for name in sorted(found)]

    async def put_policy(self, policy: ScalingPolicy, expected: int | None) -> None:
        wanted = claims(policy.subject)

        async def check(pipeline: Any) -> None:
            own = await self.do(pipeline.hget(POLICIES, policy.application))
            if own and _claims(own) == wanted:
                return
            found = await self.do(pipeline.hgetall(POLICIES))
            others = {name: _claims(text) for name, text in found.items() if name != policy.application}
            if (taken := rival(wanted, others)) is not None:
                raise TargetTaken(taken)

        version = policy.metadata.version or 0
        await self._change(policy.application, expected, _as_written(policy), version, check)

    async def delete_policy(self, application: str, expected: int | None, min_version: int = 1) -> bool:
        return await self._change(application, expected, "", min_version)

    async def _change(
        self,
        application: str,
        expected: int | None,
        value: str,
        version: int,
        check: Callable[[Any], Awaitable[None]] | None = None,
    ) -> bool:
        keys = [POLICIES, OUTBOX, DELETIONS, WHOLE]
        arguments = (application, "" if expected is None else str(expected), value, str(version))
        if check is None:
            done, current = await self.script(_PUT_POLICY, keys, *arguments)
        else:
            done, current = await self.script_unchanged(POLICIES, check, _PUT_POLICY, keys, *arguments)
        if done == 3:
            raise StoreUnavailable(INCOMPLETE)
        if done == 0:
            raise VersionConflict(ScalingPolicy.model_validate_json(current) if current else None)
        return bool(done == 1)

    async def restore_policy(self, policy: ScalingPolicy) -> None:
        version = str(policy.metadata.version or 0)
        await self.script(_RESTORE_POLICY, [POLICIES, DELETIONS], policy.application, version, _as_written(policy))

    async def restore_deletion(self, application: str, version: int) -> None:
        await self.script(_RESTORE_POLICY, [POLICIES, DELETIONS], application, str(version), "")

    async def deletion(self, application: str) -> int | None:
        found = await self.do(self.client.hget(DELETIONS, application))
        return None if found is None else int(found)

    async def deletions(self) -> dict[str, int]:
        found = await self.do(self.client.hgetall(DELETIONS))
        return {name: int(version) for name, version in found.items()}

    async def forget_deletions(self, before: int) -> None:
        old = [name for name, version in (await self.deletions()).items() if version < before]
        if old:
            await self.do(self.client.hdel(DELETIONS, *old))

    async def publish_again(self, application: str) -> None:
        await self.script(_PUBLISH_AGAIN, [POLICIES, OUTBOX, DELETIONS], application)

    async def outbox(self, count: int = 100) -> list[OutboxEntry]:
        found = await self.do(self.client.xrange(OUTBOX, count=count))
        return [
            OutboxEntry(
                entry,
                fields["application"],
                fields.get("value"),
                int(fields["version"]) if "version" in fields else None,
                fields.get("deleted"),
            )
            for entry, fields in found
        ]

    async def outbox_size(self) -> int:
        return int(await self.do(self.client.xlen(OUTBOX)))

    async def published(self, entries: Sequence[OutboxEntry]) -> None:
        if entries:
            await self.do(self.client.xdel(OUTBOX, *(entry.id for entry in entries)))

    async def state(self, application: str) -> State | None:
        return (await self.states([application]))[application]

    async def states(self, applications: Collection[str]) -> dict[str, State | None]:
        cached = await self._as_remembered({name: self._cache.get(name) for name in applications})
        found: dict[str, State | None] = {name: stored.state for name, stored in cached.items()}
        unread = [name for name in applications if name not in cached]
        for begin in range(0, len(unread), MAX_STATES_READ):
            piece = unread[begin : begin + MAX_STATES_READ]
            hashes = await self.batch(("HGETALL", STATE + name) for name in piece)
            for name, fields in zip(piece, hashes, strict=True):
                stored = layout.read(name, fields)
                self._cache.pop(name, None)
                if stored is not None:
                    self._keep(name, stored)
                found[name] = None if stored is None else stored.state
                await asyncio.sleep(0)  # parsing takes time: HTTP requests are answered in between
        return found

    async def newest(self, application: str, kinds: Collection[Kind] = KINDS) -> Newest | None:
        names = [layout.VERSION, *layout.SUMS, *kinds]
        found = await self.do(self.client.hmget(STATE + application, names))
        fields = {name: text for name, text in zip(names, found, strict=True) if text is not None}
        return layout.read_newest(application, fields) if layout.VERSION in fields else None

    def _keep(self, application: str, stored: Stored) -> None:
        # A state larger than the cache is read again each time.
        with suppress(ValueError):
            self._cache[application] = stored

    async def applications(self) -> list[str]:
        with_state, with_policy = await self.batch([("SMEMBERS", APPLICATIONS), ("HKEYS", POLICIES)])
        return sorted({*with_state, *with_policy})

    async def history(self, application: str) -> list[LoopResult]:
        return await self._history.read(application)

    async def save(
        self,
        states: Sequence[State],
        events: Sequence[tuple[Kind, str, str]],
        entries: Sequence[tuple[str, HistoryEntry]] = (),
        newest: Mapping[str, Mapping[Kind, str]] = NOTHING_NEW,
    ) -> None:
        # Most events are newest messages as well: no text is packed twice.
        once = cache(pack)
        packed = [(kind, application, once(data)) for kind, application, data in events]
        await self._feed.make_room(sum(len(data) + EVENT_BYTES for _, _, data in packed))
        cached = await self._unchanged([state.application for state in states])
        there = await self._fields([state.application for state in states if state.application not in cached])
        written = []
        async with self.client.pipeline(transaction=True) as pipeline:
            for state in states:
                name, before = state.application, cached.get(state.application)
                change = layout.changes(
                    None if before is None else before.state, state, newest.get(name, {}), there.get(name, ())
                )
                pipeline.hset(STATE + name, mapping=change.packed(once))
                if change.removed:
                    pipeline.hdel(STATE + name, *change.removed)
                pipeline.sadd(APPLICATIONS, name)
                written.append((before or Stored("", state, {})).changed(state, change))
            for event in packed:
                self._feed.add(pipeline, *event)
            self._history.add(pipeline, entries)
            try:
                await self.do(pipeline.execute())
            except StoreFull:
                self._feed.measure_next()
                raise
        self.refused = False
        for stored in written:
            self._keep(stored.state.application, stored)
        await self._history.tidy(entries)

    async def _unchanged(self, applications: Sequence[str]) -> dict[str, Stored]:
        """Take the cached states out of the cache, so that the next read asks Redis until the change is known to be
        written.

        `StoreUnavailable` if one is not the stored one any more, since another replica wrote it or Redis lost data: the
        change must be computed again.
        """
        remembered = {name: self._cache.pop(name, None) for name in applications}
        cached = await self._as_remembered(remembered)
        changed = [name for name, stored in remembered.items() if stored is not None and name not in cached]
        if changed:
            raise StoreUnavailable(f"redis: {changed[0]} was changed by another replica meanwhile")
        return cached

    async def _as_remembered(self, remembered: Mapping[str, Stored | None]) -> dict[str, Stored]:
        """Return the cached states that are still the stored ones: another replica may have owned an application in
        between."""
        cached = {name: stored for name, stored in remembered.items() if stored is not None}
        versions = await self.batch(("HGET", STATE + name, layout.VERSION) for name in cached)
        return {
            name: stored
            for (name, stored), version in zip(cached.items(), versions, strict=True)
            if stored.version == version
        }

    async def _fields(self, applications: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of the fields of each state's hash."""
        fields = await self.batch(("HKEYS", STATE + name) for name in applications)
        return dict(zip(applications, fields, strict=True))

    async def leftovers(self) -> dict[str, datetime | None]:
        found = await self.batch([("SMEMBERS", APPLICATIONS), ("HKEYS", ACTIONS), ("HKEYS", POLICIES)])
        with_policy = found.pop()
        kept = {name for names in found for name in names}
        for prefix in (STATE, *history_keys("")):
            kept |= {key.removeprefix(prefix) for key in await self.do(self._keys(prefix))}
        kept -= set(with_policy)
        states = await self.states(sorted(kept))
        return {name: state.times.newest if state is not None else None for name, state in states.items()}

    async def _keys(self, prefix: str) -> list[str]:
        return [key async for key in self.client.scan_iter(match=f"{prefix}*", count=1000)]

    async def forget(self, application: str) -> None:
        self._cache.pop(application, None)
        await self.batch(
            [
                ("DEL", STATE + application, *history_keys(application)),
                ("SREM", APPLICATIONS, application),
                ("HDEL", ACTIONS, application),
            ]
        )

    async def action(self, application: str) -> ActionState | None:
        text = await self.do(self.client.hget(ACTIONS, application))
        return ActionState.model_validate_json(text) if text else None

    async def put_action(self, action: ActionState, expected: int) -> None:
        done, current = await self.script(
            _PUT_ACTION, [ACTIONS], action.application, str(expected), action.model_dump_json()
        )
        if done == 0:
            raise VersionConflict(ActionState.model_validate_json(current) if current else None)

    async def events(self, after: str, count: int = 100, wait_seconds: float = 0.0) -> list[FeedEvent]:
        return await self._feed.after(after, count, wait_seconds)

    async def newest_event(self) -> str:
        return await self._feed.newest()


def _claims(document: str) -> frozenset[Claim]:
    """Return the claims of a policy's JSON."""
    return claims(ScalingPolicy.model_validate_json(document).subject)
