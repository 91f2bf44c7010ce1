"""`/v1/applications/{namespace}/{name}/scores`: how the chosen planner and its shadows did."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from weir_contracts import Scores, parse_duration

from runtime.auth import Caller, requires
from runtime.clock import Clock
from runtime.problems import Problem, documented

from . import examples
from .documents import ERRORS, Name, Namespace, example
from .scores import KEPT, tell
from .store import Store

Reader = Annotated[Caller, Depends(requires("read"))]
Since = Annotated[
    str,
    Query(
        max_length=40,
        description="how far back: a duration between 1m and 7d; rounded to full hours",
        examples=["24h"],
    ),
]
MIN_HORIZON = timedelta(minutes=1)
_REFUSED: dict[int | str, dict[str, Any]] = {
    422: documented(
        "Names what makes no sense",
        422,
        "since: must lie between 1m and 7d",
        ("query.since", "must lie between 1m and 7d"),
    )
}


def scores_router(store: Store, clock: Clock) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["applications"])

    @routes.get(
        "/{namespace}/{name}/scores",
        summary="How the chosen planner and its shadows did",
        description="Under- and over-provisioning, instability, rescales, violation and slot-hours of each planner on a simulated copy of "
        "the application, against the arrivals that really came; `confidence` is how well the chosen planner's copy fits what really "
        "happened. 404: the application is unknown, or nothing was scored in this time. 422: a `since` that makes no sense.",
        response_model=Scores,
        responses={**ERRORS, **_REFUSED, 200: example(examples.SCORES)},
    )
    async def get_scores(namespace: Namespace, name: Name, _caller: Reader, since: Since = "24h") -> Scores:
        application, now, reach = f"{namespace}/{name}", clock.now(), _duration(since)
        policy, hours = await store.policy(application), await store.scores(application)
        if policy is None and not hours and await store.state(application) is None:
            raise Problem(404, f"nothing is known of {application}")
        found = tell(application, hours, policy.spec if policy else None, now - reach, now)
        if found is None:
            raise Problem(
                404,
                f"{application} has no scores of this time: {_why_not(policy is not None and bool(policy.spec.shadows))}",
            )
        return found

    return routes


def _why_not(has_shadows: bool) -> str:
    if has_shadows:
        return "none of its planners was simulated yet"
    return "its policy lists no shadows (spec.shadows)"


def _duration(text: str) -> timedelta:
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise Problem(422, f"since: {error}", errors=[("query.since", str(error))]) from None
    if not MIN_HORIZON <= found <= KEPT:
        what = "must lie between 1m and 7d"
        raise Problem(422, f"since: {what}", errors=[("query.since", what)])
    return found
