"""Planners served by the SDK keep Weir's contract: checked, registered and called as Weir does it."""

from weir_sdk import Reply, Request
from weir_sdk.testing import running
from weir_sdk.testing.conformance import CHECKS, Finding, check_planner


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
