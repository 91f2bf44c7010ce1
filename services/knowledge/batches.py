"""Batches of a consumer group: each is kept until it is stored, and committed afterwards."""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from runtime.bus import Bus, Consumer, PartitionsChanged
from runtime.loop import Stop, run_forever
from runtime.records import Record

from .store import RETRY_SECONDS, StoreFull

Take = Callable[[list[Record]], Awaitable[None]]
"""Stores a batch. `StoreFull` and `StoreUnavailable` repeat it; an empty batch is taken as well."""


class Batches:
    """Hands the records of topics to `take`, batch by batch. An outage of the store skips no record.

    While the store is full, the batch is tried every `retry_seconds`, and that is logged once.
    """

    def __init__(
        self,
        bus: Bus,
        topics: Sequence[str],
        group: str,
        take: Take,
        *,
        on_revoked: PartitionsChanged | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._bus = bus
        self._topics = topics
        self._group = group
        self._take = take
        self._on_revoked = on_revoked
        self._retry_seconds = retry_seconds
        self._pending: list[Record] = []
        self._is_full = False
        self._log = structlog.get_logger("knowledge")

    async def follow(self, name: str, stop: Stop) -> None:
        """Take batches until stopped."""
        consumer = self._bus.consumer(self._topics, self._group, on_revoked=self._on_revoked)
        try:
            await run_forever(name, lambda: self._cycle(consumer, stop), stop)
        finally:
            await consumer.close()

    async def _cycle(self, consumer: Consumer, stop: Stop) -> None:
        if not self._pending:
            self._pending = await stop.race(consumer.receive(max_records=500, timeout_seconds=0.5)) or []
        try:
            await self._take(self._pending)
        except StoreFull as error:
            if not self._is_full:
                self._log.warning("store-full", reason=str(error), retry_in_seconds=self._retry_seconds)
            self._is_full = True
            await stop.wait(self._retry_seconds)
            return
        if self._is_full:
            self._is_full = False
            self._log.info("store-has-room")
        if self._pending:
            await consumer.commit()
            self._pending = []
