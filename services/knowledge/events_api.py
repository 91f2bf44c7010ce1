"""`/v1/events`: the event feed, as server-sent events of all applications or of one."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send
from weir_contracts import example

from runtime.problems import Problem, answer

from . import messages
from .documents import ERRORS, Reader, Responses, refuses
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


@dataclass
class EventStreams:
    """The open event streams of one listener, and their limit: each polls the store."""

    max_open: int = 100
    open: int = 0


def _event(event: FeedEvent) -> str:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.data}\n\n"


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
    **refuses(503, "Too many event streams are open, or the store is away", messages.streams_exhausted(100)),
}


def events_router(store: Store, streams: EventStreams | None = None) -> APIRouter:
    """Return the route of all applications' events. `streams` are those of the listener."""
    streams = streams or EventStreams()
    routes = APIRouter(prefix="/v1", tags=["events"], responses=ERRORS)

    @routes.get(
        "/events",
        summary="The event feed (server-sent events)",
        description="`Last-Event-ID` resumes after that event; `0` starts with the oldest one stored. The event's name is the "
        "message's kind: observation, analysis, plan or outcome.",
        response_class=StreamingResponse,
        responses=FEED,
    )
    async def events(request: Request, caller: Reader, follow: Follow = True) -> StreamingResponse:
        return feed(store, request, caller.may_see, streams, follow=follow)

    return routes


class _Feed(StreamingResponse):
    """Server-sent events; 503 if too many streams are open. Ends if the client reads nothing for `MAX_STALL_SECONDS`."""

    def __init__(self, streams: EventStreams, lines: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Counted here and not in `_lines`, which does not begin, and so does not end, if the client has left already.
        if self._streams.open >= self._streams.max_open:
            headers = {"Retry-After": RETRY_AFTER_SECONDS}
            refusal = Problem(503, messages.streams_exhausted(self._streams.open), headers=headers)
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


def feed(
    store: Store, request: Request, wanted: Callable[[str], bool], streams: EventStreams, *, follow: bool
) -> StreamingResponse:
    """Return the stream of events of the applications that are `wanted`, after `Last-Event-ID` or from now on. Without
    `follow` it ends after the newest event stored."""
    after = request.headers.get("last-event-id") or None
    if after is not None and not _EVENT_ID.fullmatch(after):
        raise Problem(400, "Last-Event-ID is not the id of an event", errors=[("header.Last-Event-ID", "unknown form")])
    return _Feed(streams, _lines(store, request, wanted, after, follow=follow))


async def _lines(
    store: Store, request: Request, wanted: Callable[[str], bool], after: str | None, *, follow: bool
) -> AsyncIterator[str]:
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
                after = event.id
                if wanted(event.application):
                    yield _event(event)
            quiet = 0.0 if found else quiet + 1.0
            if quiet >= KEEP_ALIVE_SECONDS:
                quiet = 0.0
                yield ": still here\n\n"
    except StoreUnavailable:
        yield ": the store is away\n\n"


def _place(event_id: str) -> tuple[int, int]:
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)
