"""`/v1/applications`: what is known of applications, why it was decided, and what another parallelism would do."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel

from weir_contracts import (
    ActionState,
    Analysis,
    Observation,
    Outcome,
    Plan,
    WhatIf,
    example,
    parse_duration,
)
from weir_predictor import InvalidQuestion, NotYet, parse_at, parse_load, parse_parallelism, what_if
from weir_runtime.access import Problem
from weir_runtime.clock import Clock

from .core import MAX_HISTORY_COUNT, HistoryLimits, State, history_at
from .documents import (
    CHANGED,
    ERRORS,
    Application,
    Applications,
    Executor,
    Explanation,
    History,
    Moment,
    Reader,
    SinceInstant,
    UntilInstant,
    moment,
    refuses,
    responds,
    time_range,
    unknown,
    wrong_address,
)
from .events_api import FEED, FEED_DESCRIPTION, Chosen, EventStreams, Feed
from .newest import Kind, Newest
from .page import HEADERS
from .policies_api import parse_version
from .policy_changes import PolicyChanges
from .report import report
from .spend import advice_view, spend_sentence, spend_view
from .summaries import SummaryList, accepted_age_seconds, summary_by_name
from .summary import Summary
from .view import View

Limit = Annotated[int, Query(ge=1, le=1000)]
HistoryLimit = Annotated[int, Query(ge=1, le=MAX_HISTORY_COUNT)]
After = Annotated[str, Query(max_length=200, examples=["shop/orders"])]

_HORIZON = ("10s", "1d")
Wanted = Annotated[
    list[Annotated[str, Query(max_length=420)]],
    Query(
        max_length=1000,
        description="`operator=subtasks`, repeated for each operator; the others stay as they are",
        examples=[["enrich=6"]],
    ),
]
LoadText = Annotated[
    str,
    Query(
        max_length=40,
        description="`x2` for twice the load, `1200/s` for records/s at all sources together, `forecast` for the forecast",
        examples=["x2"],
    ),
]
HorizonText = Annotated[
    str, Query(max_length=40, description="how far ahead: a duration between 10s and 1d", examples=["10m"])
]
AtText = Annotated[
    str,
    Query(
        max_length=40,
        description="when: `now`, or `in 30m`: from then on the load is the forecast, times the factor of `load`",
        examples=["in 30m"],
    ),
]


def _no_prediction(application: str, reason: object) -> str:
    return f"{application} has no prediction yet: {reason}"


_NO_OPERATOR = "there is no operator 'enrch'; there are: Source: orders, enrich, sink: Writer"
_NO_PREDICTION = refuses(
    409,
    "Too little is known yet",
    _no_prediction("shop/orders", "no operator's capacity is known yet"),
) | refuses(422, "A parameter is invalid", _NO_OPERATOR, ("query.parallelism", _NO_OPERATOR))


def applications_router(
    changes: PolicyChanges, limits: HistoryLimits | None = None, streams: EventStreams | None = None
) -> APIRouter:
    """Return the routes. `streams` are those of the listener."""
    view, clock = changes.view, changes.clock
    limits, streams = limits or HistoryLimits(), streams or EventStreams()
    routes = APIRouter(prefix="/v1/applications", tags=["applications"], responses=ERRORS)

    listed = SummaryList(view, clock)

    @routes.get(
        "",
        summary="Summaries of all applications",
        description="`Cache-Control: max-age=3` in the request accepts a list that is so many seconds old (10 at most), as a page does "
        "that asks again and again; `Age` in the response says how old it is.",
        **responds(Applications),
    )
    async def applications(
        caller: Reader,
        limit: Limit = 100,
        after: After = "",
        cache_control: Annotated[str, Header(max_length=200)] = "",
    ) -> Response:
        found = await listed.page(after, limit, caller.may_see, accepted_age_seconds(cache_control))
        body = f'{{"items":[{",".join(found.items)}],"next":{json.dumps(found.next)}}}'
        headers = {"Age": str(round(found.age_seconds))}
        return Response(body, media_type="application/json", headers=headers)

    @routes.get("/{namespace}/{name}", summary="Summary of one application", **responds(Summary))
    async def summary(application: Application, _caller: Reader) -> Summary:
        found = await summary_by_name(view, clock, application)
        if found.mode is None and found.status is None:
            await _state(view, application)  # which may be unknown
        return found

    def latest(kind: Kind, model: type[BaseModel]) -> None:
        @routes.get(f"/{{namespace}}/{{name}}/{kind}", summary=f"The latest {kind}", name=kind, **responds(model))
        async def get(application: Application, _caller: Reader) -> JSONResponse:
            message = getattr(await _newest(view, application, [kind]), kind)
            if message is None:
                raise _nothing(application, kind)
            return JSONResponse(message.model_dump(mode="json"))

    latest("observation", Observation)
    latest("analysis", Analysis)
    latest("plan", Plan)
    latest("outcome", Outcome)

    @routes.get(
        "/{namespace}/{name}/history",
        summary="Past cycles of the loop, newest first",
        description="As many and as old as the service is set to keep; a larger `limit` or an earlier `since` gives no more.",
        **responds(History),
    )
    async def history(
        application: Application,
        _caller: Reader,
        limit: HistoryLimit = 50,
        since: SinceInstant = None,
        until: UntilInstant = None,
    ) -> Response:
        begin, end = time_range(since, until, clock.now())
        await _state(view, application)
        lines = history_at(await view.store.history(application), clock.now(), limits)
        inside = [each for each in lines if (begin is None or each.at >= begin) and (end is None or each.at <= end)]
        # Straight to JSON: ten thousand lines take a twentieth of a second less.
        return Response(History(items=inside[:limit]).model_dump_json(), media_type="application/json")

    @routes.get(
        "/{namespace}/{name}/explain",
        summary="The last decisions: observation → analysis → plan with guards → outcomes",
        description="Every scale plan, and of consecutive holds with one reason the latest, each joined by its correlation id.",
        **responds(Explanation),
    )
    async def explain(application: Application, _caller: Reader, limit: Limit = 5) -> Explanation:
        state = await _state(view, application)
        spend, advice = spend_view(state.spend, view.prices), advice_view(state.advice, view.prices)
        sentence = spend_sentence(spend, advice, state.advice)
        return Explanation(items=state.cycles[:limit], spend=spend, advice=advice, spend_sentence=sentence)

    @routes.get(
        "/{namespace}/{name}/events",
        summary="The application's event feed",
        description=FEED_DESCRIPTION,
        response_class=StreamingResponse,
        responses=FEED,
    )
    async def application_events(
        application: Application, request: Request, _caller: Reader, chosen: Chosen
    ) -> StreamingResponse:
        return Feed(streams, chosen.lines(view.store, request, lambda other: other == application, clock.now()))

    @routes.get(
        "/{namespace}/{name}/report",
        summary="An incident as one file of HTML",
        description="The page of one application at a moment, from six hours before to an hour after, with its data in it: it needs no "
        "network, and nothing but a browser. As long ago as history and feed are kept.",
        response_class=HTMLResponse,
        responses={200: {"description": "The file", "content": {"text/html": {"example": "<!doctype html>…"}}}},
    )
    async def get_report(application: Application, _caller: Reader, at: Moment = None) -> HTMLResponse:
        shown_at = moment(at, clock.now())
        await _state(view, application)
        content = await report(view, clock, limits, application, at=shown_at)
        name = f"weir-{application.replace('/', '-')}.html"
        # A file to keep: at the API's own address nothing of it runs.
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return HTMLResponse(content, headers=headers)

    routes.include_router(_action_router(changes))
    routes.include_router(_evaluations_router(view, clock))
    return routes


def _nothing(application: str, kind: str) -> Problem:
    return Problem(404, f"{application} has no {kind} yet")


async def _expect_policy(view: View, application: str) -> None:
    """Raise 404 without a policy: there are no messages either."""
    if await view.policy(application) is None:
        raise Problem(404, unknown(application))


async def _newest(view: View, application: str, kinds: Sequence[Kind]) -> Newest:
    newest = await view.newest(application, kinds)
    if newest is None:
        await _expect_policy(view, application)
    return newest or Newest(application=application)


async def _state(view: View, application: str) -> State:
    state = await view.state(application)
    if state is None:
        await _expect_policy(view, application)
    return state or State(application=application)


def _action_router(changes: PolicyChanges) -> APIRouter:
    routes = APIRouter(tags=["applications"])

    @routes.get("/{namespace}/{name}/action", summary="The newest action", **responds(ActionState))
    async def get_action(application: Application, _caller: Reader) -> JSONResponse:
        action = await changes.view.action(application)
        if action is None:
            raise _nothing(application, "action")
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
        caller: Executor,
    ) -> JSONResponse:
        if action.application != application:
            detail = wrong_address(action.application, application)
            raise Problem(422, detail, errors=[("body.application", "must be the address's")])
        expected = parse_version(request)
        if expected is None:
            raise Problem(428, "If-Match is required: the version that was read, or 0")
        return _versioned(await changes.put_action(action, caller, expected))

    return routes


def _versioned(action: ActionState) -> JSONResponse:
    return JSONResponse(action.model_dump(mode="json"), headers={"ETag": f'"{action.version}"'})


def _evaluations_router(view: View, clock: Clock) -> APIRouter:
    routes = APIRouter(tags=["applications"])

    @routes.get(
        "/{namespace}/{name}/what-if",
        summary="Predict another parallelism and load",
        description="From the learned capacities, with the planner's own predictor: throughput, utilization of each operator, the "
        "lag's trajectory, the load at which it breaks, and what forbids it. A value that depends on something unknown is null, and "
        "`unknown` gives the reason. With `at` or the load `forecast` the answer follows the forecast's middle, `loads` has its upper "
        "edge as well, and `explained` where each figure comes from. 404: the application is unknown. 409: no analysis yet, or it has "
        "no arrival rate, no capacity or no forecast. 422: an invalid operator, load, time or horizon, or one beyond the forecast.",
        **responds(WhatIf, ERRORS, _NO_PREDICTION),
    )
    async def get_what_if(
        application: Application,
        _caller: Reader,
        parallelism: Wanted = [],  # noqa: B006 - FastAPI copies it
        load: LoadText = "x1",
        horizon: HorizonText = "10m",
        at: AtText = "now",
    ) -> WhatIf:
        try:
            requested, under, after = parse_parallelism(parallelism), parse_load(load), parse_at(at)
            seconds = _duration("horizon", horizon, _HORIZON).total_seconds()
            analysis, outcomes = await _latest(view, application)
            # A large graph takes a while; other requests are answered meanwhile.
            return await asyncio.to_thread(what_if, analysis, requested, under, seconds, outcomes, after_seconds=after)
        except InvalidQuestion as wrong:
            raise Problem(422, str(wrong), errors=[(f"query.{wrong.field}", str(wrong))]) from None
        except NotYet as missing:
            raise Problem(409, _no_prediction(application, missing)) from None

    return routes


async def _latest(view: View, application: str) -> tuple[Analysis, list[Outcome]]:
    """Return the newest analysis and the outcomes of earlier actions, newest first, as in a plan request."""
    newest = await _newest(view, application, ["analysis", "outcome"])
    if newest.analysis is None:
        raise NotYet("it was not analysed yet")
    state = await _state(view, application)
    outcomes = [outcome for cycle in state.cycles for outcome in cycle.outcomes]
    if newest.outcome is not None:
        outcomes.append(newest.outcome)  # its cycle may not be kept any more
    return newest.analysis, sorted(outcomes, key=lambda outcome: outcome.at, reverse=True)


def _duration(field: str, text: str, bounds: tuple[str, str]) -> timedelta:
    """Parse a duration of the query; 422 unless it lies within the bounds."""
    try:
        found, problem = parse_duration(text), f"must lie between {bounds[0]} and {bounds[1]}"
        if parse_duration(bounds[0]) <= found <= parse_duration(bounds[1]):
            return found
    except ValueError as error:
        problem = str(error)
    raise Problem(422, f"{field}: {problem}", errors=[(f"query.{field}", problem)])
