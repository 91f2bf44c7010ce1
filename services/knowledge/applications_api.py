"""`/v1/applications`: what is known of applications, and why it was decided."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from weir_contracts import ActionState, Analysis, Observation, Outcome, Plan, example

from runtime.clock import Clock
from runtime.problems import Problem

from . import messages
from .core import MAX_HISTORY_COUNT, SUMMARISED, HistoryLimits, Kind, Newest, State, Summary, history_at, summarise
from .documents import (
    CHANGED,
    ERRORS,
    Application,
    Applications,
    Explanation,
    History,
    Reader,
    Writer,
    responds,
)
from .events_api import FEED, EventStreams, feed
from .policies_api import parse_version
from .scores_api import scores_router
from .store import Store, VersionConflict
from .what_if_api import what_if_router

Limit = Annotated[int, Query(ge=1, le=1000)]
HistoryLimit = Annotated[int, Query(ge=1, le=MAX_HISTORY_COUNT)]
After = Annotated[str, Query(max_length=200, examples=["shop/orders"])]
DEFAULT_INTERVAL_SECONDS = 5.0
"""Of an application without a policy."""


def applications_router(
    store: Store, clock: Clock, limits: HistoryLimits | None = None, streams: EventStreams | None = None
) -> APIRouter:
    """Return the routes. `streams` are those of the listener."""
    limits, streams = limits or HistoryLimits(), streams or EventStreams()
    routes = APIRouter(prefix="/v1/applications", tags=["applications"], responses=ERRORS)

    async def expect_policy(application: str) -> None:
        """Raise 404 without a policy: there are no messages either."""
        if await store.policy(application) is None:
            raise Problem(404, messages.unknown_application(application))

    async def newest_of(application: str, kinds: Sequence[Kind]) -> Newest:
        newest = await store.newest(application, kinds)
        if newest is None:
            await expect_policy(application)
        return newest or Newest(application=application)

    async def state_of(application: str) -> State:
        state = await store.state(application)
        if state is None:
            await expect_policy(application)
        return state or State(application=application)

    async def summary_of(newest: Newest) -> Summary:
        policy = await store.policy(newest.application)
        return summarise(
            newest,
            await store.action(newest.application),
            clock.now(),
            mode=policy.spec.mode if policy else None,
            objective_seconds=policy.spec.objective.bound_seconds if policy else None,
            interval_seconds=policy.spec.interval.total_seconds() if policy else DEFAULT_INTERVAL_SECONDS,
        )

    @routes.get("", summary="Summaries of all applications", **responds(Applications))
    async def applications(_caller: Reader, limit: Limit = 100, after: After = "") -> Applications:
        names = [name for name in await store.applications() if name > after]
        page = names[:limit]
        items = [await summary_of(await store.newest(name, SUMMARISED) or Newest(application=name)) for name in page]
        return Applications(items=items, next=page[-1] if len(names) > limit else None)

    @routes.get("/{namespace}/{name}", summary="Summary of one application", **responds(Summary))
    async def summary(application: Application, _caller: Reader) -> Summary:
        return await summary_of(await newest_of(application, SUMMARISED))

    def latest(kind: Kind, model: type[BaseModel]) -> None:
        @routes.get(f"/{{namespace}}/{{name}}/{kind}", summary=f"The latest {kind}", name=kind, **responds(model))
        async def get(application: Application, _caller: Reader) -> JSONResponse:
            message = getattr(await newest_of(application, [kind]), kind)
            if message is None:
                raise Problem(404, messages.no_message(application, kind))
            return JSONResponse(message.model_dump(mode="json"))

    latest("observation", Observation)
    latest("analysis", Analysis)
    latest("plan", Plan)
    latest("outcome", Outcome)

    @routes.get(
        "/{namespace}/{name}/history",
        summary="Past cycles of the loop, newest first",
        description="As many and as old as the service is set to keep; a larger `limit` gives no more.",
        **responds(History),
    )
    async def history(application: Application, _caller: Reader, limit: HistoryLimit = 50) -> History:
        await state_of(application)
        return History(items=history_at(await store.history(application), clock.now(), limits)[:limit])

    @routes.get(
        "/{namespace}/{name}/explain",
        summary="The last decisions: observation → analysis → plan with guards → outcomes",
        description="Every scale plan, and of consecutive holds with one reason the latest, each joined by its correlation id.",
        **responds(Explanation),
    )
    async def explain(application: Application, _caller: Reader, limit: Limit = 5) -> Explanation:
        return Explanation(items=(await state_of(application)).cycles[:limit])

    @routes.get(
        "/{namespace}/{name}/events",
        summary="The application's event feed",
        response_class=StreamingResponse,
        responses=FEED,
    )
    async def application_events(application: Application, request: Request, _caller: Reader) -> StreamingResponse:
        return feed(store, request, application, streams)

    routes.include_router(_action_router(store))
    routes.include_router(what_if_router(store))
    routes.include_router(scores_router(store, clock))
    return routes


def _action_router(store: Store) -> APIRouter:
    routes = APIRouter(tags=["applications"])

    @routes.get("/{namespace}/{name}/action", summary="The newest action", **responds(ActionState))
    async def get_action(application: Application, _caller: Reader) -> JSONResponse:
        action = await store.action(application)
        if action is None:
            raise Problem(404, messages.no_message(application, "action"))
        return _versioned(action)

    @routes.put(
        "/{namespace}/{name}/action",
        summary="Replace the newest action (compare-and-swap)",
        description="`If-Match` is the version that was read, 0 for none; 409 contains the current action.",
        **responds(ActionState, CHANGED),
    )
    async def put_action(
        application: Application,
        action: Annotated[ActionState, Body(examples=[example("action-state")])],
        request: Request,
        _caller: Writer,
    ) -> JSONResponse:
        if action.application != application:
            detail = messages.wrong_application(action.application, application)
            raise Problem(422, detail, errors=[("body.application", "must be the address's")])
        expected = parse_version(request)
        if expected is None:
            raise Problem(428, "If-Match is required: the version that was read, or 0")
        try:
            await store.put_action(action, expected)
        except VersionConflict as conflict:
            current = conflict.current.model_dump(mode="json") if conflict.current else None
            raise Problem(409, "another writer was first", extra={"current": current}) from None
        return _versioned(action)

    return routes


def _versioned(action: ActionState) -> JSONResponse:
    return JSONResponse(action.model_dump(mode="json"), headers={"ETag": f'"{action.version}"'})
