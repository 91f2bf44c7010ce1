"""The first question of every cycle: does the present plan survive the forecast?

Growth before a peak needs all of: bounds that have earned their coverage (`weir_predictor.forecast`); a peak that lies further
off than planning and scaling take, for nearer ones growth comes too late; and lag that would leave the objective if the
application waited until the load is there. Then it grows as late as it may, so that a peak that does not come costs
little. A forecast only ever adds: without one nothing here changes a decision.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from weir_contracts import Parallelism, changes, fitted
from weir_predictor import Coming, Scenario, coming, growth_seconds, seconds_until_capacity, throttle
from weir_sdk import Request

from .memory import Memory, seconds_until_growth
from .reply import Choice, Option, cost_of
from .sizing import demands_of, sized
from .tuning import AS_HIGH, LATE_SECONDS, MARGIN_CYCLES, STEPS


@dataclass(frozen=True)
class Ahead:
    """Growth before a peak, with the figures of its sentence."""

    vector: Parallelism
    operator: str
    """The operator that the peak would overload most."""
    expected: float
    upper: float
    """Records/s of the peak at this operator: expected, and the upper bound."""
    at_seconds: float
    """Seconds until the peak."""
    takes_seconds: float
    """Seconds until new capacity counts."""
    late_seconds: float
    """Seconds above the objective if the application waited until the load is there."""

    def sentence(self, scenario: Scenario) -> str:
        """Return the reason with its numbers."""
        name, now = self.operator, scenario.current[self.operator]
        subtasks = "subtask processes" if now == 1 else "subtasks process"
        capacity = scenario.staying.capacities[name]
        return fitted(
            f"{changes(scenario.current, self.vector)}: {self.expected:,.0f} to {self.upper:,.0f} records/s are forecast "
            f"in {self.at_seconds:,.0f} s",
            f", {now} {subtasks} {capacity:,.0f}",
            f"; waiting is late for {self.late_seconds:,.0f} s",
        )


def last_growth_seconds(request: Request, memory: Memory) -> float | None:
    """Return what to remember of how long growths take: outcomes are forgotten after some actions."""
    found = None if request.topology is None else growth_seconds(request.outcomes, request.topology)
    return memory.growth_seconds if found is None else found


def expected_rise(request: Request, scenario: Scenario, memory: Memory, drain_seconds: float) -> float:
    """Return the share by which a growth has to be larger for the peak that is expected until it is worked off; 0
    without a forecast that is believed."""
    takes = seconds_until_growth(request, scenario, memory)
    found = coming(request.analysis, scenario.model.arrivals, takes + drain_seconds)
    now = sum(scenario.model.arrivals.values())
    if found is None or now <= 0:
        return 0.0
    max_load = max(sum(found.expected(at).values()) for at in _times(found))
    return max(0.0, max_load / now - 1)


def before_the_peak(request: Request, scenario: Scenario, memory: Memory, drain_seconds: float) -> Ahead | None:
    """Return the growth that a forecast peak needs now; None: there is none, or it may wait."""
    interval, restart = request.policy.spec.interval.total_seconds(), scenario.restart
    takes = seconds_until_capacity(request.outcomes, scenario.topology, scenario.restart, memory.growth_seconds)
    # Time to plan, until capacity counts, and to work off what waits by then.
    found = coming(request.analysis, scenario.model.arrivals, (1 + MARGIN_CYCLES) * interval + takes + drain_seconds)
    if found is None:
        return None
    hold = _Future(scenario, found)
    overloaded = hold.overloaded_at(scenario.current)
    if overloaded is None or overloaded > MARGIN_CYCLES * interval + takes or hold.peak_seconds <= interval + takes:
        return None
    vector = _vector_for(scenario, *_until_the_next(request, scenario, found, interval + takes))
    if vector == scenario.current:
        return None
    # Without the forecast the load would be seen at the end of a cycle, and answered then.
    seen = max(interval, math.ceil(overloaded / interval) * interval)
    waiting, now = (
        hold.late_seconds(vector, at + takes, restart.seconds, restart.replay_seconds) for at in (seen, 0.0)
    )
    if waiting < now + LATE_SECONDS:
        return None
    where = hold.busiest_at(hold.peak_seconds, scenario.current)
    return Ahead(
        vector,
        where,
        hold.loads(found.expected(hold.peak_seconds))[where],
        hold.loads(found.upper(hold.peak_seconds))[where],
        hold.peak_seconds,
        takes,
        waiting,
    )


def _times(found: Coming) -> Iterator[float]:
    return (found.horizon_seconds * i / STEPS for i in range(STEPS + 1))


def _until_the_next(request: Request, scenario: Scenario, found: Coming, takes_seconds: float) -> tuple[Coming, float]:
    """Return what arrives until another growth could count after this one, and when it is highest: a load that still
    rises at the horizon's end would be late there again."""
    longer = coming(request.analysis, scenario.model.arrivals, found.horizon_seconds + takes_seconds) or found
    return longer, _Future(scenario, longer).peak_seconds


def _vector_for(scenario: Scenario, found: Coming, seconds: float) -> Parallelism:
    """Return the vector for the expected peak at the target utilization, and for its upper bound at all; no operator
    becomes smaller."""
    expected = replace(scenario, model=replace(scenario.model, arrivals=found.expected(seconds)))
    upper = replace(scenario.model, arrivals=found.upper(seconds)).loads
    return sized(scenario, demands_of(expected), [math.inf], upper=upper)[0]


class _Future:
    """The course of backlog and lag under the expected rates: their upper bound lies above a level load at any time, which
    is no peak."""

    def __init__(self, scenario: Scenario, found: Coming) -> None:
        self._scenario, self._found = scenario, found
        self._times = list(_times(found))
        self._rates = [found.expected(at) for at in self._times]
        totals = [sum(rates.values()) for rates in self._rates]
        self.peak_seconds = max(
            at for at, total in zip(self._times, totals, strict=True) if total >= AS_HIGH * max(totals)
        )
        """The last time of the highest rates: until then capacity is of use."""

    def loads(self, rates: Mapping[str, float]) -> Mapping[str, float]:
        """Return records/s at each operator."""
        return replace(self._scenario.model, arrivals=rates).loads

    def busiest_at(self, seconds: float, vector: Parallelism) -> str:
        """Return the operator with the highest load over capacity."""
        loads, capacities = self.loads(self._found.upper(seconds)), self._scenario.model.capacities(vector)
        return max((n for n in capacities if n in loads), key=lambda n: loads[n] / max(1e-9, capacities[n]))

    def overloaded_at(self, vector: Parallelism) -> float | None:
        """Return when a vector's utilization becomes too high; None: not within the horizon."""
        capacities, limit = self._scenario.model.capacities(vector), self._scenario.max_utilization
        max_load = self.loads({source: max(rates[source] for rates in self._rates) for source in self._rates[0]})
        if all(max_load[name] <= limit * rate for name, rate in capacities.items() if name in max_load):
            return None
        for at, rates in zip(self._times, self._rates, strict=True):
            loads = self.loads(rates)
            if any(loads[name] > limit * rate for name, rate in capacities.items() if name in loads):
                return at
        return None

    def late_seconds(
        self, vector: Parallelism, from_seconds: float, down_seconds: float, replay_seconds: float
    ) -> float:
        """Return the seconds above the objective if `vector` counts from a time on, and the present one until the
        restart that leads to it."""
        scenario, model = self._scenario, self._scenario.model
        limits = [self._limits(each) for each in (scenario.current, vector)]
        left = {source: backlog.records for source, backlog in model.backlogs.items()}
        step, late, replayed = self._times[1], 0.0, False
        for at, rates in zip(self._times[1:], self._rates[1:], strict=True):
            sources = list(rates)
            left = {source: left.get(source, 0.0) + rates[source] * step for source in sources}
            if at >= from_seconds and not replayed:
                left = {source: left[source] + rates[source] * replay_seconds for source in sources}
                replayed = True
            down = max(0.0, min(at, from_seconds) - max(at - step, from_seconds - down_seconds))
            running = vector if at - step / 2 >= from_seconds else scenario.current
            taken = throttle(limits[running is vector], [left[source] / step for source in sources])
            for source, rate in zip(sources, taken, strict=True):
                left[source] = max(0.0, left[source] - rate * max(0.0, step - down))
            late += step * self._is_late(left, rates, running)
        return late

    def _limits(self, vector: Parallelism) -> list[tuple[float, list[tuple[int, float]]]]:
        capacities, model = self._scenario.model.capacities(vector), self._scenario.model
        return [(capacities[name], fed) for name, fed in model.fed.items() if name in capacities]

    def _is_late(self, left: Mapping[str, float], rates: Mapping[str, float], vector: Parallelism) -> bool:
        limit = self._scenario.limit_seconds
        if limit is not None:
            return any(left[source] > limit * rate for source, rate in rates.items())
        capacities, loads = self._scenario.model.capacities(vector), self.loads(rates)
        most = self._scenario.max_utilization
        return any(loads[name] > most * rate for name, rate in capacities.items() if name in loads)


def grown_ahead(scenario: Scenario, ahead: Ahead) -> Choice:
    """Return the choice of a growth before a peak: the present parallelism does not survive the forecast."""
    option = Option(ahead.vector, scenario.going([ahead.vector])[0], cost_of(scenario, ahead.vector))
    return Choice(option, "before-the-peak", ahead.sentence(scenario))
