"""Planners served by the SDK keep Weir's contract: checked, registered and called as Weir does it."""

from typing import Any

from weir_contracts import NewPlanner
from weir_planner import Reply, Request
from weir_planner import kta as sdk_kta
from weir_planner.testing import running
from weir_planner.testing.conformance import CHECKS, Finding, check_planner

from runtime.clock import FakeClock
from services.planner.adapters import kta
from services.planner.adapters.http import PlannerClient
from services.planner.remote import Remote
from tests.unit.planner.build import NOON
from tests.unit.planner.plugin import LOOPBACK


def grows(request: Request) -> Reply:
    """One more of everything whose demand is known and above its capacity."""
    short = {}
    for name in request.operators:
        demand = request.needed(request.demand(name), f"the demand of {name}")
        capacity = request.needed(request.capacity(name), f"the capacity of {name}")
        if demand > capacity:
            short[name] = min(request.current[name] + 1, request.limits[name].max)
    if not short:
        return request.hold("enough", "nobody needs more", memory={"n": request.memory.get("n", 0) + 1})
    return request.scale(short, "short", f"more for {', '.join(short)}")


def test_a_planner_of_the_sdk_conforms() -> None:
    """Every obligation of the plugin contract, the odd names and the nonsense included."""
    with running(grows) as url:
        found = check_planner(url, timeout_seconds=20.0)
    assert [finding for finding in found if not finding.ok] == []
    assert [finding.check for finding in found] == list(CHECKS)
    assert found[0] == Finding("describes-itself", True, f"grows 0.1.0: {grows.__doc__}")


class Doubler:
    """In KTA's shape."""

    def monitor(self, ctx: sdk_kta.Context[Any, Any, Any]) -> dict[str, Any]:
        return {"turn": len(ctx.resultHistory)}

    def plan(self, ctx: sdk_kta.Context[Any, Any, Any]) -> dict[Any, int]:
        return dict.fromkeys(ctx.nodes, 1 + ctx.monitorResult.turn % 2)


async def test_a_class_in_ktas_shape_answers_a_trial_request() -> None:
    """As far as KTA's protocol goes: it has no description."""
    client = PlannerClient(LOOPBACK)
    with running(sdk_kta.application(Doubler)) as url:
        steps = {"monitor_url": f"{url}/api/v1alpha1/monitor", "plan_url": f"{url}/api/v1alpha1/plan"}
        new = NewPlanner.model_validate({"name": "doubler", "kind": "kta", **steps})
        description, reply = await Remote(client, FakeClock(NOON), {"kta": kta.ask}).try_out(new, 20.0)
    assert description is None
    assert reply.code == "kta-holds"
    assert "at the policy's bounds" in reply.sentence
    await client.close()
