"""The ordered chain. What is decided first cannot be undone later except towards caution."""

from collections.abc import Callable, Mapping

from weir_contracts import PlanReply

from .draft import Context, Draft
from .sizes import bounds, saturated_stays, slots_available, step_limits, sustained_rate, useful_parallelism
from .times import cooldown, input_collapse, no_change, one_in_flight, quarantined, stabilisation

Guard = Callable[[Draft, Context], Draft]

GUARDS: Mapping[str, Guard] = {
    "one-in-flight": one_in_flight,
    "bounds": bounds,
    "saturated-stays": saturated_stays,
    "sustained-rate": sustained_rate,
    "input-collapse": input_collapse,
    "stabilisation": stabilisation,
    "cooldown": cooldown,
    "step-limits": step_limits,
    "useful-parallelism": useful_parallelism,
    "slots-available": slots_available,
    "quarantine": quarantined,
    "no-change": no_change,
}
"""In the order they are asked."""


def amend(reply: PlanReply, context: Context) -> Draft:
    """The planner's reply after all guards. A hold passes: guards never make an action out of one."""
    draft = Draft(reply.parallelism, reply.code, reply.sentence, (), tuple(reply.infeasible))
    for guard in GUARDS.values():
        if draft.vector is None:
            break
        draft = guard(draft, context)
    return draft
