"""The planner's HTTP face: which planners there are, and what one would decide, without acting."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from weir_contracts import Plan, PlanRequest

from runtime.auth import Caller, requires
from runtime.clock import Clock
from runtime.problems import Problem, documented

from .core.decide import make_plan, precheck
from .core.planners import PLANNERS, InvalidParameters, UnknownPlanner, parse_parameters
from .workers import Workers

Reader = Annotated[Caller, Depends(requires("read"))]

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": documented(
        "What is wrong with the request",
        422,
        "there is no planner 'magic'; there are: rate",
        ("policy.spec.planner.name", "there is no planner 'magic'; there are: rate"),
    )
}


def planner_router(workers: Workers, clock: Clock) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["planners"], responses=_ERRORS)

    @routes.get("/planners", summary="The planners and their parameters")
    async def planners(_caller: Reader) -> dict[str, Any]:
        items = [
            {"name": name, "description": entry.description, "parameters": entry.parameters.model_json_schema()}
            for name, entry in PLANNERS.items()
        ]
        return {"planners": items}

    @routes.post(
        "/plan",
        summary="What would be decided",
        description="Evaluates a request with its policy's planner and all guards. Nothing is published and nothing is done.",
    )
    async def plan(request: PlanRequest, _caller: Reader) -> Plan:
        choice = request.policy.spec.planner
        try:
            parse_parameters(choice.name, choice.parameters)
        except UnknownPlanner as error:
            raise Problem(422, str(error), errors=[("policy.spec.planner.name", str(error))]) from None
        except InvalidParameters as error:
            raise Problem(422, str(error), errors=[("policy.spec.planner.parameters", str(error))]) from None
        began = clock.monotonic()
        reply = precheck(request) or await workers.ask(request, choice.name, choice.timeout.total_seconds())
        return make_plan(
            request,
            reply,
            request.state.model_copy(update={"memory": request.memory, "planner": choice.name}),
            planner=choice.name,
            created_at=request.now,
            planning_seconds=round(clock.monotonic() - began, 4),
        )

    return routes
