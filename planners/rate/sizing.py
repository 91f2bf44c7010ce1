"""Parallelism of each operator by its demand, and the planner's parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field
from weir_contracts import Infeasible, Parallelism

from predictor import Assumptions, CapacityCurve, Comparison


class RateParameters(Assumptions):
    """Parameters of the planner `rate`."""

    arrival_margin: float = Field(
        default=0.1, ge=0, le=2, description="share by which arrivals are assumed to be higher before scaling in"
    )
    least_saving: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the slots that a scale-in must save to be worth a restart",
    )


@dataclass(slots=True)
class Demand:
    """Demand of one operator, whatever the time to drain the backlog, and its limits."""

    operator: str
    now: int
    min: int
    max: int
    useful: int
    """`max`, but no parallelism that does less than a smaller one."""
    curve: CapacityCurve | None
    load: float | None
    """Records/s that arrive; None: unknown."""
    waiting: float
    """Records of the backlog."""
    is_suspect: bool


def demands_of(comparison: Comparison) -> list[Demand]:
    """Return the demand of each operator."""
    model, loads, waiting, suspects = comparison.model, comparison.model.loads, comparison.waiting, comparison.suspects
    found = []
    for name, limits in comparison.limits.items():
        now, curve = comparison.current[name], model.curves.get(name)
        best = None if curve is None else curve.best
        useful = limits.max if best is None else min(limits.max, max(best, now))
        load, left = loads.get(name), waiting.get(name, 0.0)
        found.append(Demand(name, now, limits.min, limits.max, useful, curve, load, left, name in suspects))
    return found


def sized(comparison: Comparison, demands: Sequence[Demand], drain_seconds: float | None) -> Parallelism:
    """Return the smallest useful parallelism of each operator for arrivals, backlog and restart; none becomes smaller."""
    return {
        each.operator: _grown(each)
        if each.curve is None or each.load is None
        else max(_fitting(comparison, each, each.curve, each.load, drain_seconds), min(each.now, each.max))
        for each in demands
    }


def shrunk(
    comparison: Comparison, demands: Sequence[Demand], drain_seconds: float, arrival_margin: float
) -> Parallelism:
    """Return the smallest useful parallelism of each operator for arrivals `arrival_margin` higher than now; none becomes larger."""
    found: Parallelism = {}
    for each in demands:
        name, curve, load = each.operator, each.curve, each.load
        if curve is None and name in comparison.lower_bounds:
            # A lower bound suffices for fewer subtasks, and is no reason for more.
            curve = CapacityCurve(each.now / comparison.lower_bounds[name])
        if curve is None or load is None:
            found[name] = min(_grown(each), each.now)
        else:
            # An operator's input grows with the arrivals.
            fitting = _fitting(comparison, each, curve, load * (1 + arrival_margin), drain_seconds)
            found[name] = min(fitting, each.now)
    return found


def _grown(demand: Demand) -> int:
    """Unknown is not small: the operator keeps its parallelism, or grows by a useful step if it is visibly saturated."""
    now = demand.now
    return min(demand.max, now + max(1, now // 2)) if demand.is_suspect else now


def _rate(comparison: Comparison, demand: Demand, load: float, drain_seconds: float | None) -> float:
    """Return records/s of the load over the target utilisation and of the backlog; None drains no backlog."""
    rate = load / comparison.target_utilisation
    return (
        rate if drain_seconds is None else rate + (demand.waiting + load * comparison.restart.seconds) / drain_seconds
    )


def _fitting(
    comparison: Comparison, demand: Demand, curve: CapacityCurve, load: float, drain_seconds: float | None
) -> int:
    needed = curve.needed(_rate(comparison, demand, load, drain_seconds))
    return max(demand.min, demand.useful if needed is None or needed > demand.useful else needed)


def infeasible(comparison: Comparison, demands: Sequence[Demand], drain_seconds: float) -> list[Infeasible]:
    """Return the operators whose demand exceeds their limits or every parallelism."""
    found = []
    for each in demands:
        if each.curve is None or each.load is None:
            continue
        name, curve = each.operator, each.curve
        rate = _rate(comparison, each, each.load, drain_seconds)
        needed = curve.needed(rate)
        if needed is None:
            because = f"{name} needs {rate:,.0f} records/s; no parallelism sustains more than {curve.ceiling:,.0f}"
            code, wanted, limit = "capacity-ceiling", round(rate, 1), round(curve.ceiling, 1)
        elif needed > each.useful:
            because = f"{name} would need {needed} subtasks and is limited to {each.useful}"
            code, wanted, limit = "bounds", float(needed), float(each.useful)
        else:
            continue
        found.append(Infeasible(operator=name, wanted=wanted, limit=limit, code=code, because=because))
    return found
