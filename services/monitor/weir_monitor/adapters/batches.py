"""Joins requests of many callers: while one request is under way, those that come meanwhile wait for the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class _Batch(Generic[Item, Answer]):
    answer: "asyncio.Future[Answer]"
    items: list[Item] = field(default_factory=list)


class Batches(Generic[Item, Answer]):
    """One request at a time, with the items of all callers that wait. No answer is older than its caller's request."""

    def __init__(self, serve: Callable[[Sequence[Item]], Awaitable[Answer]]) -> None:
        self._serve = serve
        self._next: _Batch[Item, Answer] | None = None
        self._running: asyncio.Task[None] | None = None

    async def request(self, item: Item) -> Answer:
        """Return the answer for all items of a batch that this one is among; raises what its request raised."""
        if self._next is None:
            self._next = _Batch(asyncio.get_running_loop().create_future())
            self._next.answer.add_done_callback(retrieve_error)
        batch = self._next
        batch.items.append(item)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        # one caller that stops waiting must not cancel the request of the others
        return await asyncio.shield(batch.answer)

    async def _run(self) -> None:
        while self._next is not None:
            await asyncio.sleep(0)  # callers that are due now join
            batch, self._next = self._next, None
            try:
                batch.answer.set_result(await self._serve(batch.items))
            except asyncio.CancelledError:
                batch.answer.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - belongs to the callers
                batch.answer.set_exception(error)


def retrieve_error(future: "asyncio.Future[Any]") -> None:
    """Retrieve the error of a request that all callers have stopped waiting for."""
    if not future.cancelled():
        future.exception()
