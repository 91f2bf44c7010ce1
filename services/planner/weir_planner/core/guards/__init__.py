"""The guards, an ordered chain: one may only amend the planner's proposal, never make a hold an action, and each
amendment has a reason."""

from collections.abc import Callable, Mapping

from weir_contracts import PlanReply
from weir_sdk.request import Request

from .effects import (
    dead_band,
    downstream_bound,
    hot_key,
    ineffective_growth,
    scale_down_gate,
    upstream_bound,
    will_be_needed,
)
from .proposal import Proposal
from .sizes import bounds, saturated_stays, step_limits, sustained_rate, useful_parallelism
from .times import (
    action_budget,
    cooldown,
    excluded_period,
    input_outage,
    no_change,
    one_in_flight,
    quarantined,
    reversal,
    stabilisation,
    tasks_move,
)
from .totals import budget, one_parallelism, slots_available, total_bounds

__all__ = ["GUARDS", "Proposal", "amend"]

GUARDS: Mapping[str, Callable[[Proposal], Proposal]] = {
    "one-in-flight": one_in_flight,
    "tasks-move": tasks_move,
    "excluded-period": excluded_period,
    "action-budget": action_budget,
    "bounds": bounds,
    "saturated-stays": saturated_stays,
    "sustained-rate": sustained_rate,
    "scale-down-gate": scale_down_gate,
    "input-outage": input_outage,
    "will-be-needed": will_be_needed,
    "stabilisation": stabilisation,
    "cooldown": cooldown,
    "reversal": reversal,
    "hot-key": hot_key,
    "ineffective-growth": ineffective_growth,
    "step-limits": step_limits,
    "useful-parallelism": useful_parallelism,
    "total-bounds": total_bounds,
    "budget": budget,
    "slots-available": slots_available,
    "downstream-bound": downstream_bound,
    "upstream-bound": upstream_bound,
    "dead-band": dead_band,
    "one-parallelism": one_parallelism,
    "quarantine": quarantined,
    "no-change": no_change,
}
"""By name, in the order in which they are applied."""


def amend(reply: PlanReply, request: Request) -> Proposal:
    """Return the planner's reply to a request after all guards. A hold passes: guards never turn one into an action."""
    proposal = Proposal(request, reply.parallelism, reply.code, reply.sentence, (), tuple(reply.infeasible))
    for guard in GUARDS.values():
        if proposal.vector is None:
            break
        proposal = guard(proposal)
    return proposal
