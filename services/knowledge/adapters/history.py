"""Past turns in Redis: a sorted set of lines by time and a hash of the plans' results for each application.

Kept apart from the state: a message needs none of it, and 500 lines are four times as long as all that it needs. A line that is written
twice, by two replicas or from where an earlier version kept it, is still one.
"""

from collections import defaultdict
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, cast
from uuid import UUID

from pydantic import ValidationError
from redis.asyncio.client import Pipeline
from weir_contracts import LoopResult

from services.knowledge.adapters.connection import Connection, pack, unpack
from services.knowledge.core import End, HistoryEntry, with_ends

LINES = "weir:history:"
ENDS = "weir:history-ends:"
SPARE = 2
"""As many ends as lines may be kept before they are compared: that reads all lines, and must not come with each end."""


def history_keys(application: str) -> tuple[str, str]:
    """Where an application's history lies."""
    return LINES + application, ENDS + application


class RedisHistory:
    """Lines up to a number and an age for each application, and the ends of their plans."""

    def __init__(self, connection: Connection, max_lines: int, age_seconds: float) -> None:
        self._client, self._do = connection.client, connection.do
        self._most, self._age_seconds = max_lines, age_seconds

    def add(self, pipeline: Pipeline, entries: Sequence[tuple[str, HistoryEntry]]) -> None:
        """Append entries of applications to a transaction."""
        lines, ends = defaultdict[str, list[LoopResult]](list), defaultdict[str, dict[str, str]](dict)
        for application, entry in entries:
            if isinstance(entry, End):
                ends[application][str(entry.plan_id)] = entry.phase
            else:
                lines[application].append(entry)
        for application, each in lines.items():
            self._add_lines(pipeline, LINES + application, each)
        for application, phases in ends.items():
            pipeline.hset(ENDS + application, mapping=cast(Any, phases))

    def _add_lines(self, pipeline: Pipeline, key: str, lines: Sequence[LoopResult]) -> None:
        newest = max(line.at.timestamp() for line in lines)
        pipeline.zadd(key, cast(Any, {pack(line.model_dump_json()): line.at.timestamp() for line in lines}))
        pipeline.zremrangebyrank(key, 0, -self._most - 1)
        pipeline.zremrangebyscore(key, "-inf", f"({newest - self._age_seconds}")

    async def tidy(self, entries: Sequence[tuple[str, HistoryEntry]]) -> None:
        """Delete ends without lines once there are many more ends than lines. An end may come before its line."""
        entry = defaultdict[str, set[str]](set)
        for application, each in entries:
            if isinstance(each, End):
                entry[application].add(str(each.plan_id))
        for application, now in entry.items():
            ends = ENDS + application
            if await self._do(cast(Awaitable[Any], self._client.hlen(ends))) <= SPARE * self._most:
                continue
            kept = now | {str(line.plan_id) for line in await self.read(application)}
            plans = await self._do(cast(Awaitable[Any], self._client.hkeys(ends)))
            missing = [plan_id for plan_id in plans if plan_id not in kept]
            if missing:
                await self._do(cast(Awaitable[Any], self._client.hdel(ends, *missing)))

    async def read(self, application: str) -> list[LoopResult]:
        """All that is kept, newest first."""
        lines, ends = history_keys(application)
        # No transaction: a Redis without room refuses transactions, and this only reads.
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.zrevrange(lines, 0, -1)
            pipeline.hgetall(ends)
            texts, phases = await self._do(pipeline.execute())
        return with_ends(
            (LoopResult.model_validate_json(unpack(text)) for text in texts),
            {UUID(plan_id): phase for plan_id, phase in phases.items()},
        )

    async def take_over(self, application: str, state: str, texts: Sequence[str], fields: Sequence[str]) -> None:
        """Move lines that an earlier version kept in fields of a state's hash to where they are looked for."""
        lines = []
        for text in texts:
            with suppress(ValidationError):  # damaged: it would not be shown either
                lines.append(LoopResult.model_validate_json(text))
        async with self._client.pipeline(transaction=True) as pipeline:
            if lines:
                self._add_lines(pipeline, LINES + application, lines)
            pipeline.hdel(state, *fields)
            await self._do(pipeline.execute())
