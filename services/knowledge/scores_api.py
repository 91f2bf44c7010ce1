"""`/v1/applications/{namespace}/{name}/scores`: scores of the chosen planner and its shadows."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from weir_contracts import Scores

from runtime.clock import Clock
from runtime.problems import Problem

from . import messages
from .documents import ERRORS, Application, Reader, duration_between, refuses, responds
from .scores import summarise_scores
from .store import Store

Since = Annotated[
    str,
    Query(
        max_length=40,
        description="how far back: a duration between 1m and 7d; rounded to full hours",
        examples=["24h"],
    ),
]
_BOUNDS = ("1m", "7d")
_OUTSIDE = messages.outside(*_BOUNDS)
_REFUSED = refuses(422, "The time is invalid", f"since: {_OUTSIDE}", ("query.since", _OUTSIDE))


def scores_router(store: Store, clock: Clock) -> APIRouter:
    """Return the route."""
    routes = APIRouter(tags=["applications"])

    @routes.get(
        "/{namespace}/{name}/scores",
        summary="Scores of the chosen planner and its shadows",
        description="Under- and over-provisioning, instability, rescales, violation and slot-hours of each planner on a simulated "
        "application with the arrivals that were observed; `confidence` is how well the chosen planner's simulation fits the observed "
        "application. 404: the application is unknown, or nothing was scored in this time. 422: an invalid `since`.",
        **responds(Scores, ERRORS, _REFUSED),
    )
    async def get_scores(application: Application, _caller: Reader, since: Since = "24h") -> Scores:
        now, reach = clock.now(), _duration(since)
        policy, hours = await store.policy(application), await store.scores(application)
        if policy is None and not hours and await store.state(application) is None:
            raise Problem(404, messages.unknown_application(application))
        found = summarise_scores(application, hours, policy.spec if policy else None, now - reach, now)
        if found is None:
            raise Problem(404, messages.no_scores(application, bool(policy and policy.spec.shadows)))
        return found

    return routes


def _duration(text: str) -> timedelta:
    try:
        return duration_between(text, *_BOUNDS)
    except ValueError as error:
        raise Problem(422, f"since: {error}", errors=[("query.since", str(error))]) from None
