"""Shrink, or hold: holding is good enough; is less good enough, too, through the restart?"""

from collections.abc import Sequence

from weir_contracts import changes, counted, fitted, short_name
from weir_predictor import Scenario

from .reply import Choice, Option, cost_of, holding
from .sizing import Demand, shrunk
from .tuning import RateParameters


def smaller_option(
    scenario: Scenario, demands: Sequence[Demand], parameters: RateParameters, margin: float | None
) -> tuple[Option, str] | None:
    """Return the smallest option that may be good enough with arrivals a margin higher, and what decided its size; None:
    it saves too little. `margin` is that of a steady load."""
    higher = parameters.arrival_margin if margin is None else min(margin, parameters.arrival_margin)
    drain, is_steady = parameters.drain_seconds, margin is not None
    if all(each.needs_all(each.shrinking_rate(1 + higher, drain, is_steady=is_steady)) for each in demands):
        return None
    vector, decided_by = shrunk(scenario, demands, drain, higher, is_steady=is_steady)
    cost, held = cost_of(scenario, vector), cost_of(scenario, scenario.current)
    if cost >= held or held[0] - cost[0] < parameters.min_saving * held[0]:
        return None
    return Option(vector, scenario.going([vector])[0], cost), decided_by


def shrunk_or_held(scenario: Scenario, smaller: tuple[Option, str] | None) -> Choice:
    """Return the choice of `smaller`, or why it is not taken."""
    hold, staying = holding(scenario), scenario.staying
    held = f"lag stays at {staying.max_lag_seconds:,.1f} s or less"
    if staying.max_utilization is not None:
        held += f" with {short_name(staying.bottleneck or '')} at {staying.max_utilization:.0%} of its capacity"
    if smaller is None:
        return Choice(None, "objective-held", held)
    option, decided_by = smaller
    vector, cost = option.vector, option.cost
    moved, restart = changes(hold.vector, vector), scenario.restart_to(vector)
    peak = option.outlook.max_lag_seconds
    if cost[0] == hold.cost[0]:
        # Fewer subtasks in the same slots free nothing: not worth a restart.
        return Choice(None, "no-slot-freed", fitted(f"{moved} would free no slot", f"; {held}"), [option])
    if not scenario.is_good(option.outlook):
        estimated = "" if restart.measured else " (estimated)"
        sentence = fitted(
            f"{moved} would let lag reach {peak:,.1f} s in a restart of {restart.seconds:.0f} s{estimated}", f"; {held}"
        )
        return Choice(None, "restart-too-costly", sentence, [option])
    arriving = sum(scenario.model.arrivals.values())
    sentence = fitted(
        f"{moved}: {arriving:,.0f} records/s arrive and need {cost[0]} of {counted(hold.cost[0], 'slot')} by {decided_by}",
        f"; lag peaks at {peak:,.1f} s in a restart of {restart.seconds:.0f} s",
        "" if restart.measured else " (estimated)",
    )
    return Choice(option, "over-provisioned", sentence)
