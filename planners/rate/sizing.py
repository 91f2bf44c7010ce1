"""Parallelism of each operator by its demand, and the planner's parameters."""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import AliasChoices, Field
from weir_contracts import Infeasible, Parallelism

from predictor import Assumptions, CapacityCurve, Comparison


class RateParameters(Assumptions):
    """Parameters of the planner `rate`."""

    arrival_margin: float = Field(
        default=0.1, ge=0, le=2, description="share by which arrivals are assumed to be higher before scaling in"
    )
    min_saving: float = Field(
        default=0.0,
        validation_alias=AliasChoices("min_saving", "least_saving"),
        ge=0,
        lt=1,
        description="share of the slots that a scale-in must save to be worth a restart",
    )


class Demand(NamedTuple):
    """Demand of one operator, and its limits."""

    operator: str
    now: int
    min: int
    max: int
    useful: int
    """`max`, but no parallelism that does less than a smaller one."""
    curve: CapacityCurve | None
    load: float | None
    """Records/s that arrive; None: unknown."""
    upper: float
    """Records/s that arrive at most: the load's upper edge."""
    lasting: float
    """`upper` over the target utilization."""
    catching_up: float
    """Records of the backlog and of a restart."""

    def needed(self, drain_seconds: float | None) -> int | None:
        """Return the smallest parallelism that is at the target utilization under the load's upper edge and works off
        backlog and restart meanwhile; None if none does, and no backlog counts without `drain_seconds`."""
        if self.curve is None:
            return None
        return self.curve.needed(self.lasting if drain_seconds is None else self.lasting + self.drained(drain_seconds))

    def drained(self, seconds: float) -> float:
        """Return the records/s beyond the load that work off backlog and restart in so many seconds."""
        return self.catching_up / seconds

    def least(self, drain_seconds: float) -> "Least":
        """Return the smallest parallelism that is enough after a restart, each uncertainty counted once: at the target
        utilization, with the restart worked off, and on the lower edge of capacity."""
        if self.curve is None:
            return Least(None, "nothing")
        by_load = self.curve.needed(max(self.lasting, self.upper + self.drained(drain_seconds)))
        by_capacity = self.curve.surely_needed(self.upper, self.useful)
        if by_load is None or by_capacity is None:
            return Least(None, "nothing")
        return Least(
            max(by_load, by_capacity),
            "the load's upper edge" if by_load >= by_capacity else "the lower edge of capacity",
        )


class Least(NamedTuple):
    """A parallelism, and which edge decided it."""

    parallelism: int | None
    decided_by: str


def demands_of(comparison: Comparison, arrival_margin: float = 0.0) -> list[Demand]:
    """Return the demand of each operator with arrivals `arrival_margin` higher than now: its input grows with them."""
    model, waiting, current = comparison.model, comparison.waiting, comparison.current
    curves, loads = model.curves, model.loads
    utilization, restart_seconds, growth = comparison.target_utilization, comparison.restart.seconds, 1 + arrival_margin
    found = []
    for name, (low, high, _) in comparison.limits.items():
        now, curve, load = current[name], curves.get(name), loads.get(name)
        best = None if curve is None else curve.best
        useful = high if best is None else min(high, max(best, now))
        arriving = 0.0 if load is None else load * growth
        catching_up = waiting.get(name, 0.0) + arriving * restart_seconds
        found.append(Demand(name, now, low, high, useful, curve, load, arriving, arriving / utilization, catching_up))
    return found


def sized(comparison: Comparison, demands: Sequence[Demand], drain_seconds: float | None) -> Parallelism:
    """Return the smallest useful parallelism of each operator for arrivals, backlog and restart; none becomes smaller.
    None drains no backlog."""
    found = {}
    for each in demands:
        name, now, low, high, useful = each[:5]
        if each.curve is None or each.load is None:
            found[name] = _grown(comparison, each)
            continue
        needed = each.needed(drain_seconds)
        fitting = max(low, useful if needed is None or needed > useful else needed)
        found[name] = fitting if fitting > now else max(fitting, min(now, high))
    return found


def shrunk(comparison: Comparison, drain_seconds: float, arrival_margin: float) -> Parallelism:
    """Return the smallest useful parallelism of each operator for arrivals `arrival_margin` higher than now; none
    becomes larger."""
    found = {}
    for each in demands_of(comparison, arrival_margin):
        name, now, low, _, useful = each[:5]
        if each.curve is None and name in comparison.lower_bounds:
            # A lower bound suffices for fewer subtasks, and is no reason for more.
            each = each._replace(curve=CapacityCurve(now / comparison.lower_bounds[name]))  # noqa: PLW2901
        if each.curve is None or each.load is None:
            fitting = _grown(comparison, each)
        else:
            needed = each.least(drain_seconds).parallelism
            fitting = max(low, useful if needed is None or needed > useful else needed)
        found[name] = min(fitting, now)
    return found


def _grown(comparison: Comparison, demand: Demand) -> int:
    """Return the size under unknown demand: the present one, or a useful step more if the operator is visibly
    saturated."""
    now = demand.now
    return min(demand.max, now + max(1, now // 2)) if demand.operator in comparison.suspects else now


def infeasible(demands: Sequence[Demand], drain_seconds: float) -> list[Infeasible]:
    """Return the operators whose demand exceeds their limits or every parallelism."""
    found = []
    for each in demands:
        name, useful, curve = each.operator, each.useful, each.curve
        if curve is None or each.load is None:
            continue
        rate = each.lasting + each.drained(drain_seconds)
        needed = curve.needed(rate)
        if needed is None:
            reason = f"{name} needs {rate:,.0f} records/s; no parallelism sustains more than {curve.ceiling:,.0f}"
            code, wanted, limit = "capacity-ceiling", round(rate, 1), round(curve.ceiling, 1)
        elif needed > useful:
            reason = f"{name} would need {needed} subtasks and is limited to {useful}"
            code, wanted, limit = "bounds", float(needed), float(useful)
        else:
            continue
        found.append(Infeasible(operator=name, wanted=wanted, limit=limit, code=code, because=reason))
    return found
