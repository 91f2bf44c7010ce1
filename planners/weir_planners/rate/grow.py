"""Grow: holding is not good enough."""

import math
from collections.abc import Sequence

from weir_contracts import Infeasible, changes, fitted, short_name
from weir_predictor import Outlook, Scenario, is_overloaded

from .reply import Choice, Option, holding, options_of
from .sizing import Demand, sized


def lack_of_room(scenario: Scenario) -> tuple[str, str] | None:
    """Return code and text if an operator has less room than its load needs; None if each has enough."""
    limit, staying = scenario.limit_seconds, scenario.staying
    used, where = staying.max_utilization, staying.bottleneck
    # An application that drains the backlog of a restart is not restarted again for its utilization alone.
    settling = limit is not None and (scenario.analysis.has("restarting") or scenario.analysis.has("catching-up"))
    if used is None or where is None or used <= (1.0 if settling else scenario.max_utilization):
        return None
    load, p = scenario.model.loads.get(where, 0.0), scenario.current[where]
    subtasks = "subtask processes" if p == 1 else "subtasks process"
    text = f"{load:,.0f} records/s arrive at {short_name(where)}, {p} {subtasks} {staying.capacities[where]:,.0f}"
    return ("overloaded" if used > 1 else "utilization-high"), text


def other_risk(scenario: Scenario) -> tuple[str, str] | None:
    """Return code and text of another reason not to hold; None if holding is good enough."""
    limit, staying = scenario.limit_seconds, scenario.staying
    if scenario.suspects:
        return "saturated", _suspicion(scenario)
    if limit is not None and staying.violation_seconds > 0:
        if scenario.objective.max_latency is not None:
            return "objective-at-risk", f"records would take more than {limit:,.1f} s to be processed"
        return "objective-at-risk", f"lag would reach {staying.max_lag_seconds:,.1f} s"
    return None


def _suspicion(scenario: Scenario) -> str:
    """Return the reason to suspect the first suspect."""
    name = next(n for n in scenario.topology.names if n in scenario.suspects)
    operator = scenario.analysis.operator(name)
    busy = operator.utilization.value if operator else None
    unknown = "demand" if name not in scenario.model.flow else "capacity"
    share = f"is {busy:.0%} busy" if busy is not None else "has an unknown busy share"
    lag = scenario.growing_lag
    grows = "" if lag is None else f", while lag of {lag[0]:,.1f} s grows by {lag[1]:,.0f} records/s"
    return f"{short_name(name)} {share} and its {unknown} is unknown{grows}"


def growths(scenario: Scenario, demands: Sequence[Demand], growth: float) -> list[Option]:
    """Return the smallest and the largest vector to grow to if arrivals may become `growth` times as high: the load at the
    target utilization, and a backlog and the restart worked off in a quarter of `drain_seconds`, too."""
    if scenario.serving is not None:
        vectors = [scenario.joined] * 2
    else:
        vectors = sized(scenario, demands, (math.inf, scenario.assumptions.drain_seconds / 4), growth)
    return options_of(scenario, vectors)


def _smallest(scenario: Scenario, fewest: Option, most: Option) -> Option:
    """Return the smallest vector from `fewest` to `most` that is about as good as `most`.

    Each operator gets as few subtasks as would do if the others limited nothing, as the slowest of them decides what waits,
    and if all that reaches it came from one source, as how sources share it depends on what waits at each. So more
    arrivals or more lag never give an operator fewer subtasks, which a choice among vectors of the present load would.
    """
    low, high = dict(fewest.vector), dict(most.vector)  # `high` is enough, below `low` nothing is
    names = [name for name in low if low[name] < high[name]]
    judges = [(scenario, names)] if len(scenario.model.arrivals) == 1 else [(scenario.at(n), [n]) for n in names]
    best: dict[str, Outlook] = {}
    for judge, judged in judges:
        best.update(zip(judged, judge.going([{name: high[name]} for name in judged]), strict=True))
    sizes = {name: low[name] for name in names}
    while sizes:
        enough = {}
        for judge, judged in judges:
            left = [name for name in judged if name in sizes]
            for name, outlook in zip(left, judge.going([{name: sizes[name]} for name in left]), strict=True):
                enough[name] = judge.is_close(outlook, best[name])
        for name, size in sizes.items():
            if enough[name]:
                high[name] = size
            else:
                low[name] = size + 1
        sizes = {name: (low[name] + high[name]) // 2 for name in names if low[name] < high[name]}
    known = [option for option in (fewest, most) if option.vector == high]
    return known[0] if known else options_of(scenario, [high])[0]


def grown(
    scenario: Scenario, options: Sequence[Option], reason: tuple[str, str], infeasible: Sequence[Infeasible]
) -> Choice:
    """Return the choice of the smallest vector that is about as good as any, or why none is taken."""
    (code, text), hold = reason, holding(scenario)
    restart, (fewest, most) = scenario.restart.seconds, options
    if most.vector == hold.vector:
        return Choice(None, "nothing-helps", _helpless(infeasible, text))
    if scenario.suspects:
        return Choice(fewest, code, f"{changes(hold.vector, fewest.vector)}: {text}")
    best = _smallest(scenario, fewest, most)
    others = [option for option in options if option.vector not in (best.vector, hold.vector)]
    if best.vector == hold.vector or not scenario.is_worth(most.outlook, most.vector):
        refused = [most] if most in others else [most, *others]
        if is_overloaded(hold.outlook):
            much = " much" if scenario.gains(most.outlook) else ""
            return Choice(None, "nothing-helps", _helpless(infeasible, text, much), refused)
        moved = changes(hold.vector, most.vector)
        sentence = fitted(
            f"{text}; holding clears it as soon as {moved} would", f", without a restart of {restart:.0f} s"
        )
        return Choice(None, "no-gain", sentence, refused)
    if scenario.is_later(best.outlook):
        late = f"{best.outlook.violation_seconds:,.0f} s, holding for {hold.outlook.violation_seconds:,.0f} s"
        sentence = fitted(f"{text}; {changes(hold.vector, best.vector)} would be above the objective for {late}")
        return Choice(None, "no-gain", sentence, [best, *others])
    prospect = [*_prospect(scenario, best.outlook), f", after a restart of {restart:.0f} s"]
    sentence = fitted(f"{changes(hold.vector, best.vector)}: {text}", *([] if scenario.partial else prospect))
    return Choice(best, code, sentence, others)


def _helpless(infeasible: Sequence[Infeasible], text: str, much: str = "") -> str:
    """Return that growth would not help, and the first limit that prevents a larger one."""
    limits = [f": {each.because}" for each in infeasible[:1]]
    return fitted(f"{text}, and no allowed parallelism would help{much}", *limits)


def _prospect(scenario: Scenario, outlook: Outlook) -> list[str]:
    """Return the details of the sentence: how high lag peaks, and when it meets the objective again."""
    text = f"; then lag peaks at {outlook.max_lag_seconds:,.1f} s"
    if scenario.limit_seconds is None or outlook.violation_seconds == 0:
        return [text]
    met = outlook.objective_met_at_seconds
    if met is None:
        met = outlook.horizon_seconds + outlook.late_after_seconds
    return [text, f" and meets the objective in {met:,.0f} s" if math.isfinite(met) else " and misses the objective"]
