"""The parts of a request that are sent to another process."""

from bench.cost import observation
from tests.unit.planner.build import REQUIRED_PARAMETERS, policy, request
from weir_contracts import PlanState
from weir_sdk.installed import LARGE, ask, installed, needed


def test_a_reduced_request_gets_the_same_reply() -> None:
    """Observations, history and recommendations are sent only to a planner that declares that it reads them."""
    plan_request = request(of={"arrivals": 2400}).model_copy(
        update={"observations": [observation(0)], "state": PlanState(planner="rate", memory={"a": 1})}
    )
    for name, entry in installed().items():
        choice = {"name": name, "parameters": REQUIRED_PARAMETERS.get(name, {})}
        complete = plan_request.model_copy(update={"policy": policy(planner=choice)})
        lean = needed(complete, name)
        assert {field for field in LARGE if getattr(lean, field)} <= entry.reads
        assert lean.state == PlanState()
        assert ask(lean, name) == ask(complete, name)
    assert needed(plan_request, "nobody") == plan_request
