"""The connection to Redis: its errors as `StoreUnavailable` with a hint, and whether it has room."""

import zlib
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis.asyncio as redis
from pydantic import SecretStr
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from weir_knowledge.store import StoreFull, StoreUnavailable

ROOM_AGAIN_SHARE = 0.9
"""After a refused write Redis counts as full above this share of its limit: the refused write needs room itself."""

CREDENTIALS_ADVICE = "set user and password in WEIR_KNOWLEDGE_REDIS_URL (redis://user:password@host:6379/0)"
ROOM_ADVICE = "raise maxmemory, or lower WEIR_KNOWLEDGE_EVENTS_MEGABYTES"

MARK = b"\x00"
MIN_PACKED_CHARACTERS = 100
"""Shorter texts do not shrink."""
LEVEL = 1
"""Half the time of the default, for 5 % more bytes of a state."""

# The client decodes all responses, packed texts as well: each byte that is not UTF-8 becomes one character.
ENCODING_ERRORS = "surrogateescape"


class Connection:
    """A client that raises `StoreUnavailable` only. The next call reopens a lost connection."""

    def __init__(self, url: SecretStr, timeout_seconds: float, connections: int) -> None:
        # Beyond its size the library's usual pool refuses, and this one waits.
        pool = redis.BlockingConnectionPool.from_url(
            url.get_secret_value(),
            max_connections=connections,
            timeout=timeout_seconds,
            decode_responses=True,
            encoding_errors=ENCODING_ERRORS,
            socket_timeout=timeout_seconds + 3.0,
            socket_connect_timeout=timeout_seconds,
            health_check_interval=15,
        )
        # Any: the library types each command as a value or an awaitable of it.
        self.client: Any = redis.Redis.from_pool(pool)
        self.refused = False
        """Redis refused a write for lack of memory, and has not been observed with room since."""

    async def do(self, work: Awaitable[Any]) -> Any:
        """Return the response of one command, transaction or script."""
        try:
            return await work
        except (AuthenticationError, NoPermissionError) as error:
            # Never the password: only the server's message, and the setting.
            raise StoreUnavailable(f"redis: {error}: {CREDENTIALS_ADVICE}") from error
        except (RedisError, OSError) as error:
            if "'maxmemory'" not in str(error):  # a script raises another class of error than a command
                raise StoreUnavailable(f"redis: {error}") from error
            self.refused = True
        raise StoreFull(_full(await self._memory()))

    async def if_allowed(self, work: Awaitable[Any]) -> Any:
        """The same for a command that not every Redis or user permits: None if it is refused."""

        async def requested() -> Any:
            with suppress(ResponseError):
                return await work

        return await self.do(requested())

    async def script(self, text: str, keys: Sequence[str], *arguments: Any) -> Any:
        """Return the result of a Lua script."""
        return await self.do(self.client.eval(text, len(keys), *keys, *arguments))

    async def batch(self, commands: Iterable[tuple[str | bytes, ...]]) -> list[Any]:
        """Return the responses of several commands, sent together. No transaction: a full Redis refuses transactions."""
        async with self.client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(await self.do(pipeline.execute()))

    async def close(self) -> None:
        await self.client.aclose()

    async def ping(self) -> None:
        """Return if Redis answers."""
        await self.do(self.client.ping())

    async def check_room(self) -> None:
        """Return if Redis answers and has room; `StoreFull` otherwise."""
        await self.ping()
        memory = await self._memory()
        refused, self.refused = self.refused, False
        if is_full(memory, after_refusal=refused):
            # A Redis that hides its memory use is full again with the next refused write.
            self.refused = refused and bool(memory)
            raise StoreFull(_full(memory))

    async def _memory(self) -> Mapping[str, Any]:
        """Return `INFO memory`; empty if it is not permitted."""
        with suppress(StoreUnavailable):
            return dict(await self.if_allowed(self.client.info("memory")) or {})
        return {}


def is_full(memory: Mapping[str, Any], *, after_refusal: bool) -> bool:
    """Return whether Redis refuses writes for want of memory, by its `INFO memory`; `{}` if unknown."""
    limit, policy = memory.get("maxmemory"), str(memory.get("maxmemory_policy", ""))
    if not memory:
        return after_refusal
    if not limit or policy.startswith("allkeys"):  # then it evicts instead
        return False
    used = memory["used_memory"] - memory.get("mem_not_counted_for_evict", 0)
    return bool(used > limit * (ROOM_AGAIN_SHARE if after_refusal else 1.0))


def _full(memory: Mapping[str, Any]) -> str:
    used = "all memory that it may use (maxmemory)"
    if memory.get("maxmemory"):
        used = f"{memory['used_memory'] / 1e6:.0f} MB of the {memory['maxmemory'] / 1e6:.0f} MB that it may (maxmemory)"
    return f"redis is full: it uses {used} and refuses writes: {ROOM_ADVICE}"


def pack(text: str) -> bytes:
    """Deflate a longer text for Redis: JSON shrinks to about a seventh, a history's line to half."""
    plain = text.encode()
    if len(plain) < MIN_PACKED_CHARACTERS:
        return plain
    packed = MARK + zlib.compress(plain, LEVEL)
    return packed if len(packed) < len(plain) else plain


def unpack(found: str) -> str:
    """Return a stored text, packed or not: no JSON begins with the mark. `zlib.error` for a damaged one."""
    if not found.startswith(MARK.decode()):
        return found
    return zlib.decompress(found.encode(errors=ENCODING_ERRORS)[len(MARK) :]).decode()
