"""The connection to Redis: what goes wrong there as `StoreUnavailable` in words that help, and whether it still takes something in."""

import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import redis.asyncio as redis
from pydantic import SecretStr
from redis.asyncio.client import Pipeline
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError, WatchError

from services.knowledge.store import StoreFull, StoreUnavailable

ATTEMPTS = 50
"""To write what others keep changing: each failure is another's success."""
ROOM_AGAIN_SHARE = 0.9
"""After a refused write more than this share of the limit in use is still full: what was refused needs some room itself."""

MARK = b"\x00"
MIN_PACKED_CHARACTERS = 100
"""Shorter texts gain nothing."""
LEVEL = 1
"""Takes half the time of the default, for a twentieth more of a state's bytes."""

# A packed text comes back as text, too, since the client decodes all answers: each byte that is no UTF-8 as one character.
ENCODING_ERRORS = "surrogateescape"


class Connection:
    """A client that raises nothing but `StoreUnavailable`. A lost connection is tried again by the next call."""

    def __init__(self, url: SecretStr, timeout_seconds: float) -> None:
        self.client = redis.from_url(
            url.get_secret_value(),
            decode_responses=True,
            encoding_errors=ENCODING_ERRORS,
            socket_timeout=timeout_seconds + 3.0,
            socket_connect_timeout=timeout_seconds,
            health_check_interval=15,
        )
        self.refused = False
        """It refused a write for want of memory, and was not seen with room since."""

    async def do(self, work: Awaitable[Any]) -> Any:
        """The answer of one command, transaction or script."""
        try:
            return await work
        except WatchError:
            raise
        except (AuthenticationError, NoPermissionError) as error:
            # Never the password: only what the server says, and where it is set.
            hint = "it wants a user or password that WEIR_KNOWLEDGE_REDIS_URL does not give (redis://user:password@host:6379/0)"
            raise StoreUnavailable(f"redis: {error} - {hint}") from error
        except (RedisError, OSError) as error:
            if "'maxmemory'" not in str(error):  # a script says it as another class of error than a command
                raise StoreUnavailable(f"redis: {error}") from error
            self.refused = True
        raise StoreFull(full(await self._memory()))

    async def if_allowed(self, work: Awaitable[Any]) -> Any:
        """The same for what not every Redis and not every user may ask: None where it may not."""

        async def requested() -> Any:
            with suppress(ResponseError):
                return await work
            return None

        return await self.do(requested())

    async def script(self, text: str, keys: Sequence[str], *arguments: str) -> Any:
        """Return the result of a Lua script."""
        return await self.do(self.client.eval(text, len(keys), *keys, *arguments))

    async def script_unchanged(
        self, key: str, check: Callable[[Pipeline], Awaitable[None]], text: str, keys: Sequence[str], *arguments: str
    ) -> Any:
        """Run a script only if `key` is still as `check` read it through the pipeline; otherwise do both again."""
        async with self.client.pipeline() as pipeline:
            for _ in range(ATTEMPTS):
                await self.do(pipeline.watch(key))
                await check(pipeline)
                pipeline.multi()  # type: ignore[no-untyped-call]
                pipeline.eval(text, len(keys), *keys, *arguments)
                with suppress(WatchError):
                    return (await self.do(pipeline.execute()))[0]
        raise StoreUnavailable(f"redis: {key} was changed {ATTEMPTS} times while it was read: try again")

    async def ping(self) -> None:
        """Returns if it answers."""
        await self.do(cast(Awaitable[Any], self.client.ping()))

    async def check_room(self) -> None:
        """Returns if it answers and takes more in; `StoreFull` while it does not."""
        await self.ping()
        memory = await self._memory()
        refused, self.refused = self.refused, False
        if is_full(memory, after_refusal=refused):
            # A Redis that hides its memory use is full again with the next refused write.
            self.refused = refused and bool(memory)
            raise StoreFull(full(memory))

    async def _memory(self) -> Mapping[str, Any]:
        """Its memory in numbers; nothing where they cannot be asked for."""
        with suppress(StoreUnavailable):
            return cast(Mapping[str, Any], await self.if_allowed(self.client.info("memory")) or {})
        return {}


def is_full(memory: Mapping[str, Any], *, after_refusal: bool) -> bool:
    """Return whether Redis refuses writes for want of memory, by its `INFO memory`; `{}` if unknown."""
    limit, policy = memory.get("maxmemory"), str(memory.get("maxmemory_policy", ""))
    if not memory:
        return after_refusal
    if not limit or policy.startswith("allkeys"):  # then it would drop something instead
        return False
    used = memory["used_memory"] - memory.get("mem_not_counted_for_evict", 0)
    return bool(used > limit * (ROOM_AGAIN_SHARE if after_refusal else 1.0))


def full(memory: Mapping[str, Any]) -> str:
    """Return the sentence for a full Redis."""
    how = "it uses all memory that it may (maxmemory)"
    if memory.get("maxmemory"):
        how = f"it uses {memory['used_memory'] / 1e6:.0f} MB of the {memory['maxmemory'] / 1e6:.0f} MB that it may (maxmemory)"
    return f"redis is full: {how} and refuses writes: raise maxmemory, or lower WEIR_KNOWLEDGE_EVENTS_MEGABYTES"


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
