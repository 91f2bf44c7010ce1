"""`/v1/applications/{namespace}/{name}/what-if`: a prediction at another parallelism and load, from the latest analysis."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from weir_contracts import Analysis, Outcome, WhatIf

from predictor import InvalidQuestion, NotYet, parse_load, parse_parallelism, what_if
from runtime.problems import Problem

from . import messages
from .documents import ERRORS, Application, Reader, duration_between, refuses, responds
from .store import Store

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
        description="`x2` for twice the present load, or `1200/s` for records/s at all sources together",
        examples=["x2"],
    ),
]
HorizonText = Annotated[
    str, Query(max_length=40, description="how far ahead: a duration between 10s and 1d", examples=["10m"])
]
_NO_OPERATOR = "there is no operator 'enrch'; there are: Source: orders, enrich, sink: Writer"
_REFUSED = refuses(
    409,
    "Too little is known yet",
    messages.no_prediction_yet("shop/orders", "no operator's capacity is known yet"),
) | refuses(422, "A parameter is invalid", _NO_OPERATOR, ("query.parallelism", _NO_OPERATOR))


def what_if_router(store: Store) -> APIRouter:
    """Return the route."""
    routes = APIRouter(tags=["applications"])

    @routes.get(
        "/{namespace}/{name}/what-if",
        summary="Predict another parallelism and load",
        description="From the learned capacities, with the planner's own predictor: throughput, utilization of each operator, the "
        "lag's trajectory, the load at which it breaks, and what forbids it. A value that depends on something unknown is null, and "
        "`unknown` gives the reason. 404: the application is unknown. 409: no analysis yet, or it has no arrival rate or no capacity. "
        "422: an invalid operator, load or horizon.",
        **responds(WhatIf, ERRORS, _REFUSED),
    )
    async def get_what_if(
        application: Application,
        _caller: Reader,
        parallelism: Wanted = [],  # noqa: B006 - FastAPI copies it
        load: LoadText = "x1",
        horizon: HorizonText = "10m",
    ) -> WhatIf:
        try:
            requested, under, seconds = parse_parallelism(parallelism), parse_load(load), _seconds(horizon)
            analysis, outcomes = await _latest(store, application)
            # A large graph takes a while; other requests are answered meanwhile.
            return await asyncio.to_thread(what_if, analysis, requested, under, seconds, outcomes)
        except InvalidQuestion as wrong:
            raise Problem(422, str(wrong), errors=[(f"query.{wrong.field}", str(wrong))]) from None
        except NotYet as missing:
            raise Problem(409, messages.no_prediction_yet(application, missing)) from None

    return routes


async def _latest(store: Store, application: str) -> tuple[Analysis, list[Outcome]]:
    """Return the newest analysis and the outcomes of earlier actions, newest first, as in a plan request."""
    state, newest = await store.state(application), await store.newest(application, ["analysis", "outcome"])
    if newest is None and await store.policy(application) is None:
        raise Problem(404, messages.unknown_application(application))
    if newest is None or newest.analysis is None:
        raise NotYet("it was not analysed yet")
    outcomes = [outcome for cycle in state.cycles for outcome in cycle.outcomes] if state else []
    if newest.outcome is not None:
        outcomes.append(newest.outcome)  # the only one after a rebuild
    return newest.analysis, sorted(outcomes, key=lambda outcome: outcome.at, reverse=True)


def _seconds(text: str) -> float:
    try:
        return duration_between(text, "10s", "1d").total_seconds()
    except ValueError as error:
        raise InvalidQuestion("horizon", str(error)) from None
