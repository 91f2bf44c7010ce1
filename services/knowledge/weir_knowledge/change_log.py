"""Writes changes into the log, and waits until they are decided and the view shows it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from weir_contracts import Answer, Change, ChangeRecord
from weir_contracts.topics import ACTIONS, CHANGES, POLICIES
from weir_runtime.access import Problem
from weir_runtime.bus import Bus, BusError, Refused
from weir_runtime.loop import Stop, run_forever
from weir_runtime.reading import readable

from .decider import request_record
from .store import StoreUnavailable

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.005, 0.1
"""Between two looks whether the view shows a decision."""


@dataclass(eq=False, repr=False)
class ChangeLog:
    """The requests of one replica. `shows` returns whether the view has what a topic says of an application up to a version."""

    bus: Bus
    shows: Callable[[str, str, int], Awaitable[bool]]
    wait_seconds: float = 10.0
    """Until a caller gets 503."""
    _waiting: dict[UUID, asyncio.Future[Answer]] = field(default_factory=dict, init=False)
    _follows: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set once answers are read: none is missed."""

    async def run(self, stop: Stop) -> None:
        """Read answers until stopped."""
        reader = self.bus.reader(CHANGES.name, from_beginning=False)

        async def cycle() -> None:
            for record in await stop.race(reader.receive(timeout_seconds=0.5)) or []:
                read = readable(record, ChangeRecord) if self._waiting else None
                future = None if read is None or read.answer is None else self._waiting.get(read.answer.change_id)
                if read is not None and read.answer is not None and future is not None and not future.done():
                    future.set_result(read.answer)
            if not self._follows.is_set() and await reader.caught_up():
                self._follows.set()

        try:
            await run_forever("answers", cycle, stop)
        finally:
            await reader.close()

    async def request(self, changes: Sequence[Change]) -> None:
        """Write requests, without waiting for their decisions."""
        await self.bus.publish_many([request_record(change) for change in changes])

    async def submit(self, change: Change) -> Answer:
        """Return the decision once the view shows it. 503 if that takes too long, 422 if the brokers refuse the change."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[change.id] = future
        unknown = "it is not known whether it was taken: read it again"
        problem = f"no replica of knowledge decided the change of {change.application} within {self.wait_seconds:g} s"
        try:
            async with asyncio.timeout(self.wait_seconds):
                await self._follows.wait()
                await self.request([change])
                answer = await future
                if answer.version is not None:
                    problem = f"the store does not show the change of {change.application} yet"
                    unknown = f"it is in force as version {answer.version}"
                    topic = ACTIONS if change.kind == "action" else POLICIES
                    await self._shown(topic.name, change.application, answer.version)
                return answer
        except TimeoutError:
            raise Problem(503, f"{problem}; {unknown}") from None
        except Refused as error:
            raise Problem(422, f"the brokers refuse the change of {change.application}: {error}") from None
        except BusError as error:
            raise Problem(503, f"the change of {change.application}: {error}; {unknown}") from None
        finally:
            del self._waiting[change.id]

    async def _shown(self, topic: str, application: str, version: int) -> None:
        """Wait until the view shows it, also through an outage of the store."""
        pause_seconds = MIN_PAUSE_SECONDS
        while True:
            with suppress(StoreUnavailable):
                if await self.shows(topic, application, version):
                    return
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(MAX_PAUSE_SECONDS, 2 * pause_seconds)
