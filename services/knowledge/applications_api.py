"""`/v1/applications` and `/v1/events`: what is known, why it was decided, and what happens now."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send
from weir_contracts import ActionState, Analysis, Observation, Outcome, Plan

from runtime.auth import Caller, requires
from runtime.clock import Clock
from runtime.problems import Problem, answer, documented

from . import examples
from .core import MAX_HISTORY_COUNT, SUMMARISED, Kind, Limits, Newest, State, Summary, history_at, summarise
from .documents import CHANGED, ERRORS, Applications, Explanation, History, Name, Namespace, example
from .policies_api import parse_version
from .scores_api import scores_router
from .store import FeedEvent, Store, StoreUnavailable, VersionConflict
from .what_if_api import what_if_router

Reader = Annotated[Caller, Depends(requires("read"))]
Writer = Annotated[Caller, Depends(requires("write"))]
Limit = Annotated[int, Query(ge=1, le=1000)]
HistoryLimit = Annotated[int, Query(ge=1, le=MAX_HISTORY_COUNT)]
_EVENT_ID = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")
ActionInBody = Annotated[ActionState, Body(examples=[examples.ACTION])]
_FEED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events until either side closes",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": examples.FEED}},
    },
    503: documented(
        "Too many event streams are open, or the store is away",
        503,
        "100 event streams are open, which is the limit (WEIR_KNOWLEDGE_EVENT_STREAMS): try again later",
    ),
}
KEEP_ALIVE_SECONDS = 10.0
"""A comment this often keeps proxies and clients from closing a quiet feed."""
MAX_STALL_SECONDS = 60.0
"""A client that has taken nothing for so long, as one that is stopped, gives its stream to others."""
RETRY_AFTER_SECONDS = "10"


def applications_router(
    store: Store, clock: Clock, limits: Limits | None = None, streams: "EventStreams | None" = None
) -> APIRouter:
    """The routes. `streams` are those of the listener."""
    limits, streams = limits or Limits(), streams or EventStreams()
    routes = APIRouter(prefix="/v1/applications", tags=["applications"], responses=ERRORS)

    async def state_of(namespace: Namespace, name: Name) -> State:
        application = f"{namespace}/{name}"
        return await store.state(application) or State(application=await _with_policy(store, application))

    async def newest_of(namespace: Namespace, name: Name, kinds: Sequence[Kind]) -> Newest:
        application = f"{namespace}/{name}"
        return await store.newest(application, kinds) or Newest(application=await _with_policy(store, application))

    async def summary_of(newest: Newest) -> Summary:
        policy = await store.policy(newest.application)
        return summarise(
            newest,
            await store.action(newest.application),
            clock.now(),
            mode=policy.spec.mode if policy else None,
            objective_seconds=policy.spec.objective.bound_seconds if policy else None,
            interval_seconds=policy.spec.interval.total_seconds() if policy else 5.0,
        )

    @routes.get(
        "",
        summary="All applications, in short",
        response_model=Applications,
        responses={200: example({"items": [examples.SUMMARY], "next": None})},
    )
    async def applications(
        _caller: Reader, limit: Limit = 100, after: Annotated[str, Query(max_length=200, examples=["shop/orders"])] = ""
    ) -> Applications:
        names = [name for name in await store.applications() if name > after]
        page = names[:limit]
        items = [await summary_of(await store.newest(name, SUMMARISED) or Newest(application=name)) for name in page]
        return Applications(items=items, next=page[-1] if len(names) > limit else None)

    @routes.get(
        "/{namespace}/{name}",
        summary="One application, in short",
        response_model=Summary,
        responses={200: example(examples.SUMMARY)},
    )
    async def application(namespace: Namespace, name: Name, _caller: Reader) -> Summary:
        return await summary_of(await newest_of(namespace, name, SUMMARISED))

    def latest(noun: Kind, model: type[BaseModel], shown: dict[str, Any]) -> None:
        @routes.get(
            f"/{{namespace}}/{{name}}/{noun}",
            summary=f"The latest {noun}",
            name=noun,
            response_model=model,
            responses={200: example(shown)},
        )
        async def get(namespace: Namespace, name: Name, _caller: Reader) -> JSONResponse:
            message = getattr(await newest_of(namespace, name, [noun]), noun)
            if message is None:
                raise Problem(404, f"{namespace}/{name} has no {noun} yet")
            return JSONResponse(message.model_dump(mode="json"))

    latest("observation", Observation, examples.OBSERVATION)
    latest("analysis", Analysis, examples.ANALYSIS)
    latest("plan", Plan, examples.PLAN)
    latest("outcome", Outcome, examples.OUTCOME)

    @routes.get(
        "/{namespace}/{name}/history",
        summary="Past turns of the loop, newest first",
        response_model=History,
        description="As many and as old as the service is set to keep; a larger `limit` gives no more.",
        responses={200: example({"items": [examples.TURN_IN_SHORT]})},
    )
    async def history(namespace: Namespace, name: Name, _caller: Reader, limit: HistoryLimit = 50) -> History:
        current = await state_of(namespace, name)
        lines = await store.history(current.application)
        return History(items=history_at(lines, clock.now(), limits)[:limit])

    @routes.get(
        "/{namespace}/{name}/explain",
        summary="The last decisions: readings → analysis → plan with guards → outcome",
        description="Every scale plan, and the latest of each row of holds with the same reason. One correlation id joins each.",
        response_model=Explanation,
        responses={200: example({"items": [examples.TURN]})},
    )
    async def explain(namespace: Namespace, name: Name, _caller: Reader, limit: Limit = 5) -> Explanation:
        state = await state_of(namespace, name)
        return Explanation(items=state.turns[:limit])

    @routes.get(
        "/{namespace}/{name}/action",
        summary="The newest action",
        response_model=ActionState,
        responses={200: example(examples.ACTION)},
    )
    async def get_action(namespace: Namespace, name: Name, _caller: Reader) -> JSONResponse:
        action = await store.action(f"{namespace}/{name}")
        if action is None:
            raise Problem(404, f"{namespace}/{name} has no action yet")
        return JSONResponse(action.model_dump(mode="json"), headers={"ETag": f'"{action.version}"'})

    @routes.put(
        "/{namespace}/{name}/action",
        summary="Replace the newest action (compare-and-swap)",
        description="`If-Match` is the version you have read, 0 if there was none; 409 carries the one that is there.",
        response_model=ActionState,
        responses={200: example(examples.ACTION), **CHANGED},
    )
    async def put_action(
        namespace: Namespace, name: Name, action: ActionInBody, request: Request, _caller: Writer
    ) -> JSONResponse:
        if action.application != f"{namespace}/{name}":
            raise Problem(
                422, "the action is of another application", errors=[("body.application", "must be the address's")]
            )
        expected = parse_version(request)
        if expected is None:
            raise Problem(428, "If-Match is required: the version you have read, or 0")
        try:
            await store.put_action(action, expected)
        except VersionConflict as conflict:
            current = conflict.current.model_dump(mode="json") if conflict.current else None
            raise Problem(409, "another writer was first", extra={"current": current}) from None
        return JSONResponse(action.model_dump(mode="json"), headers={"ETag": f'"{action.version}"'})

    @routes.get(
        "/{namespace}/{name}/events",
        summary="The application's event feed",
        response_class=StreamingResponse,
        responses=_FEED,
    )
    async def application_events(
        namespace: Namespace, name: Name, request: Request, _caller: Reader
    ) -> StreamingResponse:
        return _feed(store, request, f"{namespace}/{name}", streams)

    routes.include_router(what_if_router(store))
    routes.include_router(scores_router(store, clock))
    return routes


async def _with_policy(store: Store, application: str) -> str:
    """Its name again, where nothing was heard of it yet; 404 where there is no policy of it either."""
    if await store.policy(application) is None:
        raise Problem(404, f"nothing is known of {application}")
    return application


def events_router(store: Store, streams: "EventStreams | None" = None) -> APIRouter:
    """`/v1/events`: everything that happens, as server-sent events. `streams` are those of the listener."""
    streams = streams or EventStreams()
    routes = APIRouter(prefix="/v1", tags=["events"], responses=ERRORS)

    @routes.get(
        "/events",
        summary="The event feed (server-sent events)",
        description="`Last-Event-ID` resumes after that event; `0` starts with the oldest kept. The event's name is the "
        "message's kind: observation, analysis, plan or outcome.",
        response_class=StreamingResponse,
        responses=_FEED,
    )
    async def events(request: Request, _caller: Reader) -> StreamingResponse:
        return _feed(store, request, None, streams)

    return routes


class EventStreams:
    """The event streams that are open at one listener, and how many there may be: each asks the store all the time."""

    def __init__(self, max_open: int = 100) -> None:
        self.max_open = max_open
        self.open = 0


class _Feed(StreamingResponse):
    """Server-sent events; 503 where too many streams are open. Ends where the client takes nothing for `MAX_STALL_SECONDS`."""

    def __init__(self, streams: EventStreams, lines: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Counted here and not where the lines are made: those are not begun, and so not ended, if the client has left already.
        if self._streams.open >= self._streams.max_open:
            detail = f"{self._streams.open} event streams are open, which is the limit (WEIR_KNOWLEDGE_EVENT_STREAMS): try again later"
            refusal = answer(Problem(503, detail, headers={"Retry-After": RETRY_AFTER_SECONDS}))
            await refusal(scope, receive, send)
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


def _feed(store: Store, request: Request, application: str | None, streams: EventStreams) -> StreamingResponse:
    after = request.headers.get("last-event-id") or None
    if after is not None and not _EVENT_ID.fullmatch(after):
        raise Problem(400, "Last-Event-ID is not the id of an event", errors=[("header.Last-Event-ID", "unknown form")])
    return _Feed(streams, _lines(store, request, application, after))


async def _lines(store: Store, request: Request, application: str | None, after: str | None) -> AsyncIterator[str]:
    yield ": weir\n\n"
    if after is None:
        # Its own position, so that no event is lost between two reads.
        after = await store.newest_event()
    quiet = 0.0
    while not await request.is_disconnected():
        try:
            found = await store.events(after, wait_seconds=1.0)
        except StoreUnavailable:
            yield ": the store is away\n\n"
            return
        for event in found:
            after = event.id
            if application in (None, event.application):
                yield _event(event)
        quiet = 0.0 if found else quiet + 1.0
        if quiet >= KEEP_ALIVE_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"


def _event(event: FeedEvent) -> str:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.data}\n\n"
