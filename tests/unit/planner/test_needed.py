"""What of a request goes to another process."""

from typing import Any

from weir_contracts import PlanState
from weir_planner.installed import LARGE, ask, installed, needed

from bench.advance import observation
from tests.unit.planner.build import policy, request

PARAMETERS: dict[str, dict[str, Any]] = {
    "schedule": {"entries": [{"cron": "0 8 * * *", "parallelism": 3}]},
    "static": {"parallelism": 3},
    "threshold": {"up_above": 0.8, "down_below": 0.3},
}
"""Of those that have to be told something."""


def test_a_question_takes_along_what_its_planner_looks_at_and_the_answer_is_the_same() -> None:
    """Raw observations, past turns and past wishes are most of a request; no built-in planner that leaves them out decides by them."""
    asked = request(of={"arrivals": 2400}).model_copy(
        update={"observations": [observation(0)], "state": PlanState(planner="rate", memory={"a": 1})}
    )
    for name, entry in installed().items():
        choice = {"name": name, "parameters": PARAMETERS.get(name, {})}
        whole = asked.model_copy(update={"policy": policy(planner=choice)})
        lean = needed(whole, name)
        assert {field for field in LARGE if getattr(lean, field)} <= entry.reads
        assert lean.state == PlanState()
        assert ask(lean, name) == ask(whole, name)
    assert needed(asked, "nobody") == asked
