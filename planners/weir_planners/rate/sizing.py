"""Parallelism of each operator by its demand."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from weir_contracts import Infeasible, Parallelism, even_subtasks, short_name
from weir_predictor import CapacityCurve, Scenario, loads_of

from .tuning import MAX_OVER_LINEAR, STEADY_ROOM


@dataclass(slots=True)
class Demand:
    """Demand of one operator, and its limits. Not frozen, as that takes longer to make."""

    operator: str
    now: int
    min: int
    max: int
    useful: int
    """`max`, but no parallelism that does no more than a smaller one."""
    best: int | None
    """Parallelism beyond which more subtasks do less; None: there is none, or it is unknown."""
    curve: CapacityCurve | None
    load: float | None
    """Records/s that arrive; None: unknown."""
    utilization: float
    """Load over capacity to size for."""
    is_bound: bool
    """Whether that is the objective, which is to hold under higher arrivals, too; else the room is enough for them."""
    waiting: float
    """Records of the backlog."""
    restart_seconds: float

    def is_above(self, utilization: float) -> bool:
        """Return whether the present parallelism is known to be busier than that."""
        return self.curve is not None and self.load is not None and self.load > utilization * self.curve.rate(self.now)

    def lasting(self, growth: float) -> float:
        """Return records/s over the target utilization if arrivals may become `growth` times as high: its input grows with
        them."""
        load = self.load or 0.0
        return (growth * load if self.is_bound else load) / self.utilization

    @property
    def catching_up(self) -> float:
        """Records of the backlog and of a restart."""
        return self.waiting + (self.load or 0.0) * self.restart_seconds

    def shrinking_rate(self, growth: float, drain_seconds: float, *, is_steady: bool) -> float:
        """Return records/s that fewer subtasks have to sustain if arrivals may become `growth` times as high."""
        load = self.load or 0.0
        if is_steady:
            return growth * load / (1 - STEADY_ROOM)
        return max(growth * load, self.lasting(growth), load + self.catching_up / drain_seconds)

    def needs_all(self, rate: float) -> bool:
        """Return whether one subtask less would clearly not sustain `rate`."""
        fewer = self.now - 1
        if self.curve is None or self.load is None or self.useful <= fewer:
            return False
        if fewer == 0:
            return True
        return (self.best is None or self.best >= fewer) and self.curve.rate(fewer) < 0.999 * rate

    def fittings(
        self, curve: CapacityCurve, rates: Iterable[float], upper: float, margin: float = 0.0
    ) -> list[tuple[int, str]]:
        """Return for each rate the smallest useful parallelism whose capacity is that and whose lower edge is `upper`, the
        load's upper edge, and which of the two decided. `margin` is the share of `upper` above the load that is as
        uncertain as capacity."""
        useful, low, found = self.useful, self.min, []
        surely = curve.surely_needed(upper / (1 + margin), useful, margin)
        by_capacity = useful if surely is None or surely > useful else surely
        for rate in rates:
            needed = curve.needed(rate if rate > upper else upper)
            by_load = useful if needed is None or needed > useful else needed
            size = by_capacity if by_capacity > by_load else by_load
            found.append((size if size > low else low, CAPACITY if by_capacity > by_load else LOAD))
        return found

    def largest_step(self, curve: CapacityCurve, rate: float, step_cost: float) -> int:
        """Return the parallelism up to which a growth may go for `rate`.

        Beyond the present parallelism capacity is extrapolated, and its lower edge may be so flat that no parallelism is
        sure to be enough. A step that proves too small costs another restart, and then its measurement says what is
        needed. So doubt may add to the straightest plausible curve no more than that costs: the share `step_cost` of
        the rate, by which the records of a restart are worked off and the load rises meanwhile.
        """
        straight = curve.straightest(self.now).needed(rate * (1 + step_cost)) or self.useful
        linear = max(1.0, rate * self.now / curve.rate(self.now))
        return min(straight, math.floor(MAX_OVER_LINEAR * linear + 1e-9))


LOAD, CAPACITY = "the load's upper edge", "the lower edge of capacity"


def demands_of(scenario: Scenario) -> list[Demand]:
    curves, loads, current = scenario.model.curves, scenario.model.loads, scenario.current
    waiting, restart_seconds = scenario.waiting, scenario.restart.seconds
    utilization = scenario.target_utilization
    is_bound = scenario.objective.utilization is not None
    found = []
    for name, (low, high, _) in scenario.limits.items():
        now, curve, load = current[name], curves.get(name), loads.get(name)
        best = None if curve is None else curve.best
        useful = max(low, scenario.topology.smallest_useful(name, high))
        useful = useful if best is None else min(useful, max(best, now))
        waits = waiting.get(name, 0.0)
        found.append(
            Demand(name, now, low, high, useful, best, curve, load, utilization, is_bound, waits, restart_seconds)
        )
    return found


def sized(
    scenario: Scenario,
    demands: Sequence[Demand],
    drains: Sequence[float],
    growth: float = 1.0,
    upper: Mapping[str, float] = MappingProxyType({}),
) -> list[Parallelism]:
    """Return for each time in s to drain backlog and restart the smallest useful parallelism of each operator; none
    becomes smaller. An infinite time drains nothing. Arrivals may become `growth` times as high; `upper` are records/s
    that may arrive at operators instead."""
    found: list[Parallelism] = [{} for _ in drains]
    reaching = [_behind_a_bound(scenario, demands, growth, seconds) for seconds in drains]
    for each in demands:
        name, kept, curve = each.operator, min(each.now, each.max), each.curve
        if curve is None or each.load is None:
            for vector in found:
                vector[name] = _grown(scenario, each)
            continue
        lasting, load = each.lasting(growth), upper.get(name, growth * each.load)
        # By the time that another step counts, a load that rises will be higher by as much again.
        step_cost = growth - 1 + each.restart_seconds / scenario.assumptions.drain_seconds
        fittings = each.fittings(curve, [lasting + each.catching_up / seconds for seconds in drains], load)
        for vector, (size, _), seconds, reach in zip(found, fittings, drains, reaching, strict=True):
            most = each.largest_step(curve, max(lasting, load) + each.waiting / seconds, step_cost)
            if name in reach:
                ((follows, _),) = each.fittings(curve, [reach[name] / each.utilization], reach[name])
                most = min(most, follows)
            # A cut in between two steps of partitions or key groups does no more than the lower one.
            vector[name] = max(kept, each.min, scenario.topology.smallest_useful(name, min(size, most)))
    return found


def _behind_a_bound(
    scenario: Scenario, demands: Sequence[Demand], growth: float, drain_seconds: float
) -> Mapping[str, float]:
    """Return records/s that reach the operators for which others, at their largest size, do not let all through that is to
    be worked off in `drain_seconds`."""
    model, restart = scenario.model, scenario.restart.seconds
    ceilings = {d.operator: d.curve.rate(max(d.useful, d.now)) for d in demands if d.curve is not None}
    wanted = {
        source: growth * rate + (model.backlogs[source].records + rate * restart) / drain_seconds
        for source, rate in model.arrivals.items()
    }
    reaching = model.reaching(wanted, ceilings)
    return {
        name: reaching[name]
        for name, load in loads_of(model.flow, wanted).items()
        if reaching[name] < min(load, ceilings.get(name, math.inf)) * (1 - 1e-6)
    }


def shrunk(
    scenario: Scenario,
    demands: Sequence[Demand],
    drain_seconds: float,
    arrival_margin: float,
    *,
    is_steady: bool = False,
) -> tuple[Parallelism, str]:
    """Return the smallest useful parallelism of each operator if arrivals may become `arrival_margin` higher, and what
    decided the largest; none becomes larger.

    Each uncertainty counts once: arrivals and capacity are seldom at their worst together, and the target utilization
    leaves the room in which the restart is worked off. Under a steady load the curve itself is enough: what proves a
    little too small falls behind slowly, grows in time, and has been measured then.
    """
    found, decided, growth = {}, (0, LOAD), 1 + arrival_margin
    for each in demands:
        name, now, curve = each.operator, each.now, each.curve
        if curve is None and name in scenario.lower_bounds:
            # A lower bound suffices for fewer subtasks, and is no reason for more.
            shares, bound = scenario.topology.work_shares(name), scenario.lower_bounds[name]
            curve = CapacityCurve(even_subtasks(now, shares) / bound, shares=shares)
        if curve is None or each.load is None:
            found[name] = min(_grown(scenario, each), now)
            continue
        rate = each.shrinking_rate(growth, drain_seconds, is_steady=is_steady)
        if is_steady:
            needed = curve.needed(rate)
            size, decided_by = max(each.min, now if needed is None else needed), LOAD
        else:
            ((size, decided_by),) = each.fittings(curve, [rate], growth * each.load, arrival_margin)
        found[name] = min(size, now)
        decided = max(decided, (found[name], decided_by))
    return found, decided[1]


def _grown(scenario: Scenario, demand: Demand) -> int:
    """Return the size under unknown demand: the present one, or a useful step more if the operator is visibly
    saturated."""
    now, name = demand.now, demand.operator
    if name not in scenario.suspects:
        return now
    return max(now, min(demand.useful, scenario.topology.next_useful(name, now + max(1, now // 2))))


def infeasible(scenario: Scenario, demands: Sequence[Demand], drain_seconds: float, growth: float) -> list[Infeasible]:
    """Return the operators whose demand exceeds their limits or every parallelism, if arrivals may become `growth` times
    as high; none behind another one's limit."""
    found, reaching = [], _behind_a_bound(scenario, demands, growth, drain_seconds)
    for each in demands:
        name, useful, curve = each.operator, each.useful, each.curve
        if curve is None or each.load is None or name in reaching:
            continue
        rate = each.lasting(growth) + each.catching_up / drain_seconds
        if curve.rate(useful) > 1.001 * rate:
            continue  # not even close
        needed = curve.needed(rate) or curve.even.needed(rate)
        if needed is None:
            reason = f"{short_name(name)} needs {rate:,.0f} records/s; no parallelism sustains more than {curve.ceiling:,.0f}"
            code, wanted, limit = "capacity-ceiling", round(rate, 1), round(curve.ceiling, 1)
        elif needed > useful:
            reason = f"{short_name(name)} would need {needed} subtasks and is limited to {useful}"
            code, wanted, limit = "bounds", float(needed), float(useful)
        else:
            continue
        found.append(Infeasible(operator=name, wanted=wanted, limit=limit, code=code, because=reason))
    return found
