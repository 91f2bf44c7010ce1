"""`/v1/events`: the event feed, as server-sent events of all applications or of one."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from weir_contracts import example
from weir_runtime.access import Problem, answer
from weir_runtime.clock import Clock, SystemClock

from .documents import ERRORS, Reader, Responses, SinceInstant, UntilInstant, refuses, time_range
from .store import FeedEvent, Store, StoreUnavailable

KEEP_ALIVE_SECONDS = 10.0
"""Between two comments of a quiet feed, so that proxies and clients keep the connection."""
MAX_STALL_SECONDS = 60.0
"""A client that reads nothing for this long, such as a stopped one, loses its stream."""
RETRY_AFTER_SECONDS = "10"
_EVENT_ID = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")
Follow = Annotated[
    bool,
    Query(description="false: the feed ends after the newest event stored, with an event `end`; true: it does not end"),
]

LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        description="the id of the last event received: the feed resumes after it; `0` begins with the oldest stored. It counts "
        "before `since`, since browsers send it with the same address when they connect again",
        examples=["1781461815300-0"],
    ),
]
FEED_DESCRIPTION = (
    "Without `Last-Event-ID` and `since` a feed begins now, or with `follow=false` with the oldest event stored. With `until` it ends "
    "there. The event's name is the message's kind: observation, analysis, plan or outcome."
)


@dataclass(frozen=True)
class ChosenEvents:
    """Which events a client wants of the feed."""

    follow: Follow = True
    since: SinceInstant = None
    until: UntilInstant = None
    last_event_id: LastEventId = None

    def lines(self, store: Store, request: Request, wanted: Callable[[str], bool], now: datetime) -> AsyncIterator[str]:
        """Return the feed's text, of the applications that are `wanted`; 4xx if what is chosen cannot be."""
        since, until = time_range(self.since, self.until, now)
        if self.last_event_id and not _EVENT_ID.fullmatch(self.last_event_id):
            detail = "Last-Event-ID is not the id of an event"
            raise Problem(400, detail, errors=[("header.Last-Event-ID", "unknown form")])
        # The id of an event begins with its time in milliseconds.
        begin = None if since is None else f"{max(0, int(since.timestamp() * 1000) - 1)}-{10**18 - 1}"
        after = self.last_event_id or begin or (None if self.follow else "0")
        end = None if until is None else int(until.timestamp() * 1000)
        return _lines(store, request, wanted, after, end, follow=self.follow and (until is None or until > now))


Chosen = Annotated[ChosenEvents, Depends()]


async def _lines(
    store: Store,
    request: Request,
    wanted: Callable[[str], bool],
    after: str | None,
    end_milliseconds: int | None,
    *,
    follow: bool,
) -> AsyncIterator[str]:
    """Yield the events after `after`, None: from now on; until `end_milliseconds`, or without `follow` the newest stored."""
    yield ": weir\n\n"
    quiet = 0.0
    try:
        newest = await store.newest_event()
        # An own position, so that no event is lost between two reads.
        after = newest if after is None else after
        while not await request.is_disconnected():
            if not follow and _place(after) >= _place(newest):
                yield _event(FeedEvent(after, "end", "", "{}"))
                return
            found = await store.events(after, wait_seconds=1.0)
            for event in found:
                if end_milliseconds is not None and _place(event.id)[0] > end_milliseconds:
                    yield _event(FeedEvent(after, "end", "", "{}"))
                    return
                after = event.id
                if wanted(event.application):
                    yield _event(event)
            quiet = 0.0 if found else quiet + 1.0
            if quiet >= KEEP_ALIVE_SECONDS:
                quiet = 0.0
                yield ": still here\n\n"
    except StoreUnavailable:
        yield ": the store is away\n\n"


@dataclass
class EventStreams:
    """The open event streams of one listener, and their limit: each polls the store."""

    max_open: int = 100
    open: int = 0


def _event(event: FeedEvent) -> str:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.data}\n\n"


def _exhausted(count: int) -> str:
    return f"{count} event streams are open, the limit (WEIR_KNOWLEDGE_EVENT_STREAMS): try again later"


_EVENT_SCHEMA = {
    "type": "object",
    "description": "One server-sent event",
    "properties": {
        "id": {"type": "string", "description": "Its position; send it as `Last-Event-ID` to resume after it"},
        "event": {"type": "string", "description": "The message's kind, or `end`"},
        "data": {"type": "string", "description": "The message as JSON"},
    },
    "required": ["id", "event", "data"],
}
_EXAMPLE = {"id": "1781461815300-0", "event": "outcome", "data": json.dumps(example("outcome"))}
FEED: Responses = {
    200: {
        "description": "Events until either side closes",
        "content": {"text/event-stream": {"schema": _EVENT_SCHEMA, "example": _EXAMPLE}},
    },
    **refuses(503, "Too many event streams are open, or the store is away", _exhausted(100)),
}


def events_router(store: Store, streams: EventStreams | None = None, clock: Clock | None = None) -> APIRouter:
    """Return the route of all applications' events. `streams` are those of the listener."""
    streams, clock = streams or EventStreams(), clock or SystemClock()
    routes = APIRouter(prefix="/v1", tags=["events"], responses=ERRORS)

    @routes.get(
        "/events",
        summary="The event feed (server-sent events)",
        description=FEED_DESCRIPTION,
        response_class=StreamingResponse,
        responses=FEED,
    )
    async def events(request: Request, caller: Reader, chosen: Chosen) -> StreamingResponse:
        return Feed(streams, chosen.lines(store, request, caller.may_see, clock.now()))

    return routes


class Feed(StreamingResponse):
    """Server-sent events; 503 if too many streams are open. Ends if the client reads nothing for `MAX_STALL_SECONDS`."""

    def __init__(self, streams: EventStreams, lines: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Counted here and not in `_lines`, which does not begin, and so does not end, if the client has left already.
        if self._streams.open >= self._streams.max_open:
            headers = {"Retry-After": RETRY_AFTER_SECONDS}
            refusal = Problem(503, _exhausted(self._streams.open), headers=headers)
            await answer(refusal)(scope, receive, send)
            return

        async def bounded(message: Message) -> None:
            async with asyncio.timeout(MAX_STALL_SECONDS):
                await send(message)

        self._streams.open += 1
        try:
            with suppress(ClientDisconnect, TimeoutError):
                await super().__call__(scope, receive, bounded)
        finally:
            self._streams.open -= 1


def _place(event_id: str) -> tuple[int, int]:
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)
