"""A plan without servers: for `weir plan`, for tests, for comparing planners on a saved request."""

from weir_contracts import Plan, PlanRequest
from weir_planner.installed import ask, planner_of

from .core.decide import make_plan, precheck


def plan_offline(request: PlanRequest, planner: str | None = None) -> Plan:
    """Return the plan of `planner` (default: the policy's) and the guards at the request's own time.

    Raises `UnknownPlanner` or `InvalidParameters`, both `ValueError`s whose sentence names the mistake.
    """
    name = planner or request.policy.spec.planner.name
    planner_of(name)
    reply = precheck(request) or ask(request, name)
    state = request.state.model_copy(update={"memory": request.memory, "planner": name})
    return make_plan(request, reply, state, planner=name, created_at=request.now)
