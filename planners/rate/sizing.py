"""Parallelism of each operator by its demand, and the planner's parameters."""

from collections.abc import Sequence
from typing import NamedTuple

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


class Demand(NamedTuple):
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


def demands_of(comparison: Comparison) -> list[Demand]:
    """Return the demand of each operator."""
    curves, loads, waiting, current = (
        comparison.model.curves,
        comparison.model.loads,
        comparison.waiting,
        comparison.current,
    )
    found = []
    for name, (low, high, _) in comparison.limits.items():
        now, curve = current[name], curves.get(name)
        best = None if curve is None else curve.best
        useful = high if best is None else min(high, max(best, now))
        found.append(Demand(name, now, low, high, useful, curve, loads.get(name), waiting.get(name, 0.0)))
    return found


def sized(comparison: Comparison, demands: Sequence[Demand], drain_seconds: float | None) -> Parallelism:
    """Return the smallest useful parallelism of each operator for arrivals, backlog and restart; none becomes smaller. None drains no
    backlog."""
    found, rates = {}, _Rates(comparison, drain_seconds)
    for each in demands:
        if each.curve is None or each.load is None:
            found[each.operator] = _grown(comparison, each)
        else:
            fitting = _fitting(each, each.curve.needed(rates.of(each, each.load)))
            found[each.operator] = fitting if fitting > each.now else max(fitting, min(each.now, each.max))
    return found


def shrunk(
    comparison: Comparison, demands: Sequence[Demand], drain_seconds: float, arrival_margin: float
) -> Parallelism:
    """Return the smallest useful parallelism of each operator for arrivals `arrival_margin` higher than now; none becomes larger."""
    found, rates = {}, _Rates(comparison, drain_seconds)
    for each in demands:
        name, curve = each.operator, each.curve
        if curve is None and name in comparison.lower_bounds:
            # A lower bound suffices for fewer subtasks, and is no reason for more.
            curve = CapacityCurve(each.now / comparison.lower_bounds[name])
        if curve is None or each.load is None:
            fitting = _grown(comparison, each)
        else:
            # An operator's input grows with the arrivals.
            fitting = _fitting(each, curve.needed(rates.of(each, each.load * (1 + arrival_margin))))
        found[name] = min(fitting, each.now)
    return found


def _grown(comparison: Comparison, demand: Demand) -> int:
    """Return the size under unknown demand: the present one, or a useful step more if the operator is visibly saturated."""
    now = demand.now
    return min(demand.max, now + max(1, now // 2)) if demand.operator in comparison.suspects else now


class _Rates:
    """Records/s of a load over the target utilization and of the backlog."""

    def __init__(self, comparison: Comparison, drain_seconds: float | None) -> None:
        self._utilization, self._restart = comparison.target_utilization, comparison.restart.seconds
        self._drain = drain_seconds

    def of(self, demand: Demand, load: float) -> float:
        rate = load / self._utilization
        return rate if self._drain is None else rate + (demand.waiting + load * self._restart) / self._drain


def _fitting(demand: Demand, needed: int | None) -> int:
    return max(demand.min, demand.useful if needed is None or needed > demand.useful else needed)


def infeasible(comparison: Comparison, demands: Sequence[Demand], drain_seconds: float) -> list[Infeasible]:
    """Return the operators whose demand exceeds their limits or every parallelism."""
    found, rates = [], _Rates(comparison, drain_seconds)
    for each in demands:
        if each.curve is None or each.load is None:
            continue
        name, curve = each.operator, each.curve
        rate = rates.of(each, each.load)
        needed = curve.needed(rate)
        if needed is None:
            reason = f"{name} needs {rate:,.0f} records/s; no parallelism sustains more than {curve.ceiling:,.0f}"
            code, wanted, limit = "capacity-ceiling", round(rate, 1), round(curve.ceiling, 1)
        elif needed > each.useful:
            reason = f"{name} would need {needed} subtasks and is limited to {each.useful}"
            code, wanted, limit = "bounds", float(needed), float(each.useful)
        else:
            continue
        found.append(Infeasible(operator=name, wanted=wanted, limit=limit, code=code, because=reason))
    return found
