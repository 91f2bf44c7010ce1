"""`/v1/applications/{namespace}/{name}/import` adds knowledge of an application from another Weir.

It goes into the log as an observation without readings, so that the analyzer of the application's partition adds what was
learned and knowledge the past, in the log's order and however either runs.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Body

from weir_contracts import Imported, imported_observation
from weir_contracts.topics import OBSERVATIONS
from weir_runtime.access import Problem
from weir_runtime.bus import BusError, Refused

from .decider import record_of
from .documents import ERRORS, Application, Import, ImportResult, Writer, examples, refuses, shows, unknown
from .policy_changes import PolicyChanges

CLOCKS_APART = timedelta(minutes=5)
"""Of a past cycle after this clock."""


def imports_router(changes: PolicyChanges) -> APIRouter:
    """Return the route."""
    routes = APIRouter(prefix="/v1/applications", tags=["applications"], responses=ERRORS)

    @routes.post(
        "/{namespace}/{name}/import",
        summary="Add what another Weir knew",
        description="Capacities, restart times and forecasts count where this Weir measured none itself; past cycles are added as far as "
        "they are kept. The policy comes first, as for every message. `weir export` and `weir import` use it.",
        status_code=202,
        response_model=ImportResult,
        responses={
            202: shows(ImportResult),
            **refuses(404, "It has no policy", unknown("shop/orders")),
            **refuses(
                422,
                "A part of it is of another application, or of the future",
                "cycles: one is of shop/returns, the address is shop/orders",
                ("body.cycles", "must be of the application"),
            ),
        },
    )
    async def add_import(
        application: Application, body: Annotated[Import, Body(examples=[examples()[Import]])], _caller: Writer
    ) -> ImportResult:
        policy, now = await changes.existing(application), changes.clock.now()
        for field, sentence in _wrong(application, body, now):
            raise Problem(422, f"{field}: {sentence}", errors=[(f"body.{field}", sentence)])
        past = body.model_dump(mode="json", exclude={"learned"}, exclude_unset=True)
        observation = imported_observation(policy, now, Imported(learned=body.learned, past=past))
        try:
            record = record_of(OBSERVATIONS, application, observation, observation.id, now, exclude_unset=False)
            await changes.log.bus.publish_many([record])
        except Refused as error:
            raise Problem(413, f"the import of {application} is refused: {error}; send it in parts") from None
        except BusError as error:
            raise Problem(503, f"the import of {application}: {error}; it is not known whether it was taken") from None
        return ImportResult(
            application=application,
            learned=bool(body.learned),
            history=len(body.history),
            cycles=len(body.cycles),
        )

    return routes


def _wrong(application: str, body: Import, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield field and sentence of what cannot be this application's past."""
    for cycle in body.cycles:
        if cycle.plan is None:
            yield "cycles", "one has no plan"
            continue
        for named in (cycle.plan.application, *(outcome.application for outcome in cycle.outcomes)):
            if named != application:
                yield "cycles", f"one is of {named}, the address is {application}"
        if cycle.plan.observed_at > now + CLOCKS_APART:
            yield "cycles", f"one is of {cycle.plan.observed_at:%Y-%m-%dT%H:%MZ}, in the future"
    if any(line.at > now + CLOCKS_APART for line in body.history):
        yield "history", "one is of the future"
