"""Past turns in Redis: of each application a list of lines that is added to at its head, and a hash of what became of their plans.

Kept apart from the state: a message needs none of it, and 500 lines are four times as long as all that it needs.
"""

from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any, cast
from uuid import UUID

from redis.asyncio.client import Pipeline
from weir_contracts import LoopResult

from services.knowledge.adapters.connection import Connection
from services.knowledge.adapters.packed import pack, unpack
from services.knowledge.core import End, Past, with_ends

LINES = "weir:history:"
ENDS = "weir:history-ends:"


def history_keys(application: str) -> tuple[str, str]:
    """Where an application's history lies."""
    return LINES + application, ENDS + application


class RedisHistory:
    """Lines up to a number for each application, and the ends of their plans."""

    def __init__(self, connection: Connection, most_lines: int) -> None:
        self._client, self._do = connection.client, connection.do
        self._most = most_lines

    def add(self, pipeline: Pipeline, past: Sequence[tuple[str, Past]]) -> None:
        """Append to a transaction what is told of applications, oldest first."""
        lines, ends = defaultdict[str, list[bytes]](list), defaultdict[str, dict[str, str]](dict)
        for application, told in past:
            if isinstance(told, End):
                ends[application][str(told.plan_id)] = told.phase
            else:
                lines[application].append(pack(told.model_dump_json()))
        for application, texts in lines.items():
            pipeline.lpush(LINES + application, *cast(Any, texts))
            pipeline.ltrim(LINES + application, 0, self._most - 1)
        for application, phases in ends.items():
            pipeline.hset(ENDS + application, mapping=cast(Any, phases))

    async def tidy(self, past: Sequence[tuple[str, Past]]) -> None:
        """Let ends go whose lines are gone, where they have become more than there are lines."""
        for application in {application for application, told in past if isinstance(told, End)}:
            ends = history_keys(application)[1]
            if await self._do(cast(Awaitable[Any], self._client.hlen(ends))) <= self._most:
                continue
            kept = {str(line.plan_id) for line in await self.read(application)}
            plans = await self._do(cast(Awaitable[Any], self._client.hkeys(ends)))
            gone = [plan_id for plan_id in plans if plan_id not in kept]
            if gone:
                await self._do(cast(Awaitable[Any], self._client.hdel(ends, *gone)))

    async def read(self, application: str) -> list[LoopResult]:
        """All that is kept, newest first."""
        lines, ends = history_keys(application)
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.lrange(lines, 0, -1)
            pipeline.hgetall(ends)
            texts, phases = await self._do(pipeline.execute())
        return with_ends(
            (LoopResult.model_validate_json(unpack(text)) for text in texts),
            {UUID(plan_id): phase for plan_id, phase in phases.items()},
        )

    async def take_over(self, application: str, state: str, lines: Sequence[str], fields: Sequence[str]) -> None:
        """Move what an earlier version kept in a state's hash behind what was told since. Done twice at the same time, lines come twice;
        they are read once."""
        async with self._client.pipeline(transaction=True) as pipeline:
            if lines:
                pipeline.rpush(LINES + application, *cast(Any, [pack(line) for line in lines]))
                pipeline.ltrim(LINES + application, 0, self._most - 1)
            pipeline.hdel(state, *fields)
            await self._do(pipeline.execute())
