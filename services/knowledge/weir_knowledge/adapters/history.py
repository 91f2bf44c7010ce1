"""Past cycles in Redis: a sorted set of lines by time and a hash of the plans' results for each application.

Kept apart from the state: a message needs none of it, and 500 lines are four times as long as all that it needs. A line
that two replicas write is one line.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from weir_contracts import LoopResult
from weir_knowledge.adapters.connection import Connection, pack, unpack
from weir_knowledge.core import End, HistoryEntry, with_ends

LINES = "weir:history:"
ENDS = "weir:history-ends:"
SPARE = 2
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
            if await self._do(self._client.hlen(ends)) <= SPARE * self._max_lines:
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
