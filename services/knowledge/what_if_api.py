"""`/v1/applications/{namespace}/{name}/what-if`: what would happen at another parallelism and load, from the latest analysis."""

import asyncio
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from weir_contracts import Analysis, Outcome, WhatIf, parse_duration

from predictor import InvalidQuestion, NotYet, parse_load, parse_parallelism, what_if
from runtime.auth import Caller, requires
from runtime.problems import Problem, documented

from . import examples
from .documents import ERRORS, Name, Namespace, example
from .store import Store

Reader = Annotated[Caller, Depends(requires("read"))]
Wanted = Annotated[
    list[Annotated[str, Query(max_length=420)]],
    Query(
        max_length=1000,
        description="`operator=subtasks`, repeated for each operator; those not named stay as they are",
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
    str, Query(max_length=40, description="how far to look: a duration between 10s and 1d", examples=["10m"])
]
_NO_OPERATOR = "there is no operator 'enrch'; there are: Source: orders, enrich, sink: Writer"
_REFUSED: dict[int | str, dict[str, Any]] = {
    409: documented(
        "Too little is known yet", 409, "shop/orders cannot be answered for yet: no operator's capacity is known yet"
    ),
    422: documented("Names what makes no sense", 422, _NO_OPERATOR, ("query.parallelism", _NO_OPERATOR)),
}
MIN_HORIZON, MAX_HORIZON = timedelta(seconds=10), timedelta(days=1)


def what_if_router(store: Store) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["applications"])

    @routes.get(
        "/{namespace}/{name}/what-if",
        summary="What would happen at this parallelism and load",
        description="From the capacities learnt, with the planner's own predictor: throughput, utilisation of each operator, the "
        "lag's trajectory, from which load on it breaks, and what forbids it. What rests on something unknown is null, and `unknown` "
        "says why. 404: the application is unknown. 409: no analysis yet, or it knows no arrival rate or no capacity. 422: an "
        "operator, load or horizon that makes no sense.",
        response_model=WhatIf,
        responses={**ERRORS, **_REFUSED, 200: example(examples.WHAT_IF)},
    )
    async def get_what_if(
        namespace: Namespace,
        name: Name,
        _caller: Reader,
        parallelism: Wanted = [],  # noqa: B006 - FastAPI copies it
        load: LoadText = "x1",
        horizon: HorizonText = "10m",
    ) -> WhatIf:
        try:
            requested, under, seconds = parse_parallelism(parallelism), parse_load(load), _seconds(horizon)
            analysis, outcomes = await _latest(store, f"{namespace}/{name}")
            # A large graph takes a while, in which others are to be answered.
            return await asyncio.to_thread(what_if, analysis, requested, under, seconds, outcomes)
        except InvalidQuestion as wrong:
            raise Problem(422, str(wrong), errors=[(f"query.{wrong.field}", str(wrong))]) from None
        except NotYet as missing:
            raise Problem(409, f"{namespace}/{name} cannot be answered for yet: {missing}") from None

    return routes


async def _latest(store: Store, application: str) -> tuple[Analysis, list[Outcome]]:
    """Return the newest analysis and the outcomes of earlier actions, newest first, as the planner gets them."""
    state, newest = await store.state(application), await store.newest(application, ["analysis", "outcome"])
    if newest is None and await store.policy(application) is None:
        raise Problem(404, f"nothing is known of {application}")
    if newest is None or newest.analysis is None:
        raise NotYet("it was not analysed yet")
    outcomes = [outcome for turn in state.turns for outcome in turn.outcomes] if state else []
    if newest.outcome is not None:
        outcomes.append(newest.outcome)  # all that is left of them where the memory was rebuilt
    return newest.analysis, sorted(outcomes, key=lambda outcome: outcome.at, reverse=True)


def _seconds(text: str) -> float:
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise InvalidQuestion("horizon", str(error)) from None
    if not MIN_HORIZON <= found <= MAX_HORIZON:
        raise InvalidQuestion("horizon", "must lie between 10s and 1d")
    return found.total_seconds()
