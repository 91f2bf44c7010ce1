"""The built-in planner `rate`: size by rates, choose on the predictor.

Sizes come from DS2's traversal (Kalavri et al., OSDI 2018): an operator's target input rate is the sources' arrivals
through the edges' selectivities, and its parallelism the smallest whose capacity covers

    target / target_utilization + (backlog + target · restart) / seconds to work them off

(the Flink autoscaler's terms for catching up and for the restart itself), and whose lower edge covers the target. Before
scaling in the target may become `arrival_margin` higher, and the room that the target utilization leaves works off the
restart. Unlike both, it does not assume linear capacity but uses the measurements at other parallelisms. What was not
measured adds no more to a step than another one would cost (`Demand.largest_step`).

The formula gives the fewest and the most subtasks, and the predictor decides: holding and growth are run on it, and
each operator gets the fewest that are about as good as the most (`grow.py`). Holding wins wherever it is as good,
because it needs no restart; but a change that would be right without a backlog is right with one, too. So more
arrivals or more lag never lead to fewer subtasks, and no growth to more lag than holding unless room is short.

The model lets operators of unknown demand or capacity take in everything. Where readings contradict it
(`Scenario.suspects`), its prediction is not used.
"""

from weir_contracts import PlanReply
from weir_predictor import TooLittle, has_believed, scenario_of
from weir_sdk import Request, planner

from .first_step import first_step
from .grow import grown, growths, lack_of_room, other_risk
from .grow_ahead import before_the_peak, expected_rise, grown_ahead, last_growth_seconds
from .memory import Memory, looked, noticed, rise_of, shared
from .reply import Choice, reply_of
from .ride_out import is_ridden, ridden, ride_of
from .shrink import shrunk_or_held, smaller_option
from .sizing import demands_of, infeasible
from .steady import may_wait, steady_margin, with_room
from .tuning import RateParameters


@planner(
    name="rate",
    description="compares holding with each useful parallelism on a fluid model and takes the cheapest that meets the objective",
    parameters=RateParameters,
    reads=[],
)
def plan_by_rate(request: Request) -> PlanReply:
    """Return the reply to one request; see the module."""
    before = request.remembered(Memory)
    grew = {"growth_seconds": last_growth_seconds(request, before)}
    memory = before.model_copy(
        update={**noticed(request, before), **looked(request, before), **shared(request, before), **grew}
    )
    return _planned(request, memory).model_copy(update={"memory": memory.model_dump(exclude_defaults=True)})


def _planned(request: Request, memory: Memory) -> PlanReply:
    """Apply the rule: ride out swings; grow if holding is not good enough; grow before a peak; shrink; else hold."""
    parameters = request.parameters(RateParameters)
    scenario = scenario_of(request, parameters)
    if isinstance(scenario, TooLittle):
        step = first_step(request, parameters) if scenario.code == "warming-up" else None
        if step is not None:
            return step
        return PlanReply(kind="hold", code=scenario.code, sentence=scenario.sentence)
    default, drain_seconds = scenario, parameters.drain_seconds
    margin, scenario = steady_margin(request, default, memory), with_room(request, default, memory)
    rise = rise_of(request, memory, scenario.restart.seconds + drain_seconds)
    looks_ahead = parameters.look_ahead and has_believed(request.analysis)
    if looks_ahead:
        rise = max(rise, expected_rise(request, scenario, memory, drain_seconds))
    demands = demands_of(scenario)
    impossible = infeasible(scenario, demands, drain_seconds, 1 + rise)

    def reply(choice: Choice) -> PlanReply:
        return reply_of(scenario, choice, impossible)

    # What holding will be compared with is predicted together with it.
    max_utilization = scenario.max_utilization
    is_busy = any(each.is_above(max_utilization) for each in demands)
    options = growths(scenario, demands, 1 + rise) if is_busy else None
    smaller = None if is_busy or scenario.partial else smaller_option(scenario, demands, parameters, margin)

    ride = None if scenario.partial else ride_of(request, scenario, memory, parameters.arrival_margin)
    if ride is not None and is_ridden(scenario, ride, request):
        return reply(ridden(scenario, ride))

    reason = lack_of_room(scenario)
    if reason is None or may_wait(request, default, memory, scenario.staying.max_utilization or 0.0):
        reason = other_risk(scenario)
    if reason is not None:
        if round(rise, 2) > 0:
            reason = reason[0], f"{reason[1]}, and {rise:.0%} more are expected"
        return reply(grown(scenario, options or growths(scenario, demands, 1 + rise), reason, impossible))

    ahead = before_the_peak(request, scenario, memory, drain_seconds) if looks_ahead else None
    if ahead is not None:
        return reply(grown_ahead(scenario, ahead))
    if scenario.partial:
        sentence = f"{scenario.partial[0].bounded}, for which no operator needs more; nothing shrinks on a part"
        return reply(Choice(None, "metric-missing", sentence))
    if is_busy:
        smaller = smaller_option(scenario, demands, parameters, margin)
    return reply(shrunk_or_held(scenario, smaller))
