"""A load that swings faster than it can be followed: bursts of seconds, a sawtooth of minutes.

What is large enough to ride it out is found by running the observed arrivals again against a smaller capacity: lag rises
in each excursion and is worked off after it. Riding wins where lag stays within the objective even if a restart and one
more cycle were added at its worst moment, and where it needs no more slots than following the load through the
stabilisation window and the cooldown would.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import pairwise

import numpy as np

from weir_contracts import Parallelism, changes
from weir_predictor import Scenario
from weir_sdk import Request

from .memory import Memory
from .reply import Choice, Option, cost_of, holding
from .tuning import LONGER, MIN_EXCURSIONS, MIN_SWING

MAX_LEVELS = 64


@dataclass(frozen=True)
class Ride:
    """The smallest vector that rides the swings out."""

    vector: Parallelism
    rate: float
    """Records/s of all sources that it sustains."""
    excursions: int
    """Times that more arrived, and then less again."""
    longest_seconds: float
    lag_seconds: float
    """Longest lag if the same arrives again."""
    present_seconds: float
    """Time since which more arrives now; 0: it does not."""


def ride_of(request: Request, scenario: Scenario, memory: Memory, arrival_margin: float) -> Ride | None:
    """Return how the swings of the last half hour are ridden out; None if there are none, or following is cheaper."""
    limit = scenario.limit_seconds
    if len(memory.looks) <= 2 * MIN_EXCURSIONS:
        return None  # each takes two, and one to begin at
    if limit is None or scenario.objective.max_latency is not None or scenario.suspects:
        return None
    seen = _Observed(memory.looks)
    if seen.crossings(seen.mean, MIN_SWING * seen.mean)[0] < MIN_EXCURSIONS:
        return None
    levels = _levels(scenario, max(seen.rates) * (1 + arrival_margin) / scenario.target_utilization)
    if not levels:
        return None
    interval = request.policy.spec.interval.total_seconds()
    reaction = scenario.restart.seconds + scenario.restart.replay_seconds
    low, high = bisect_left(levels, seen.lasting / scenario.max_utilization), len(levels)
    while low < high:
        middle = (low + high) // 2
        if seen.lag(levels[middle], interval) + reaction <= limit:
            high = middle
        else:
            low = middle + 1
    if low == len(levels):
        return None
    rate = levels[low]
    excursions, longest, present = seen.crossings(rate)
    if excursions < MIN_EXCURSIONS and max(seen.rates) > rate:
        return None
    vector = _sized(scenario, rate)
    behavior = request.policy.spec.behavior
    follows = seen.held(behavior.scale_down.stabilization + behavior.cooldown)
    target, last = scenario.target_utilization, len(levels) - 1
    needed = [levels[min(bisect_left(levels, each / target), last)] for each in follows]
    slots = {each: scenario.topology.slots(_sized(scenario, each)) for each in set(needed)}
    following = sum(slots[each] * seconds for each, seconds in zip(needed, seen.seconds, strict=True))
    if scenario.topology.slots(vector) * sum(seen.seconds) > following:
        return None
    return Ride(vector, rate, excursions, longest, seen.lag(rate), present)


class _Observed:
    """The remembered arrivals."""

    def __init__(self, looks: Sequence[tuple[float, float]]) -> None:
        self.seconds = [seconds for seconds, _ in looks]
        self.rates = [rate for _, rate in looks]

    @cached_property
    def mean(self) -> float:
        """Records/s."""
        arrived = sum(seconds * rate for seconds, rate in zip(self.seconds, self.rates, strict=True))
        return arrived / sum(self.seconds) if self.seconds else 0.0

    @cached_property
    def lasting(self) -> float:
        """Records/s over complete swings, from the first rise above the mean to the last; the mean if there are not two."""
        rises = [i + 1 for i, (before, rate) in enumerate(pairwise(self.rates)) if before <= self.mean < rate]
        if len(rises) < 2:
            return self.mean
        whole = slice(rises[0], rises[-1])
        arrived = sum(s * rate for s, rate in zip(self.seconds[whole], self.rates[whole], strict=True))
        return arrived / sum(self.seconds[whole])

    def crossings(self, level: float, top: float = 0.0) -> tuple[int, float, float]:
        """Return how often arrivals rose above a level, to `top` at least, and fell below it again, the longest time
        above it in these, and the time since which they are above it now."""
        count, longest, above, max_rate = 0, 0.0, 0.0, 0.0
        begun = False
        for (_, before), (seconds, rate) in pairwise(zip(self.seconds, self.rates, strict=True)):
            if rate > level:
                begun = begun or before <= level
                above, max_rate = above + seconds, max(max_rate, rate)
            elif above > 0:
                if begun and max_rate >= top:
                    count, longest = count + 1, max(longest, above)
                begun, above, max_rate = False, 0.0, 0.0
        return count, longest, above

    def lag(self, rate: float, interval_seconds: float = 0.0) -> float:
        """Return the longest lag of the same arrivals if `rate` were sustained; each moment of an excursion is taken to
        last `interval_seconds` more."""
        times, arrived = np.cumsum([0.0, *self.seconds]), [0.0]
        done = [0.0]
        for seconds, arrives in zip(self.seconds, self.rates, strict=True):
            arrived.append(arrived[-1] + arrives * seconds)
            done.append(min(arrived[-1], done[-1] + rate * seconds))
        lags = times - np.interp(done, np.array(arrived) + np.arange(len(arrived)) * 1e-9, times)
        growing = np.array([0.0, *(max(0.0, 1 - rate / arrives) if arrives > 0 else 0.0 for arrives in self.rates)])
        return float((lags + interval_seconds * growing).max())

    def held(self, window: timedelta) -> list[float]:
        """Return the highest arrivals in a window before each moment: what following holds."""
        length, at, found = window.total_seconds(), 0.0, []
        max_rates: deque[tuple[float, float]] = deque()
        for seconds, rate in zip(self.seconds, self.rates, strict=True):
            at += seconds
            while max_rates and max_rates[-1][1] <= rate:
                max_rates.pop()
            max_rates.append((at, rate))
            while max_rates[0][0] < at - length:
                max_rates.popleft()
            found.append(max_rates[0][1])
        return found


def _levels(scenario: Scenario, enough: float) -> list[float]:
    """Return the records/s of all sources at which some operator needs one subtask more, up to `enough`."""
    found = set()
    for name, share in _shares(scenario):
        curve, limits = scenario.model.curves[name], scenario.limits[name]
        for p in range(limits.min, limits.max + 1):
            level = curve.rate(p) / share
            found.add(level)
            if level >= enough or p == curve.best:
                break
    tops = [max(level for level in found)] if found else []
    return [level for level in sorted(found) if level <= min([*tops, _most(scenario)])][:MAX_LEVELS]


def _shares(scenario: Scenario) -> list[tuple[str, float]]:
    """Return the records that reach each operator with a curve per record of all sources."""
    model, arriving = scenario.model, sum(scenario.model.arrivals.values())
    if arriving <= 0:
        return []
    loads = ((name, model.loads.get(name, 0.0) / arriving) for name in model.curves if name in scenario.limits)
    return [(name, share) for name, share in loads if share > 0]


def _most(scenario: Scenario) -> float:
    """Return the records/s of all sources that the limits allow."""
    tops = []
    for name, share in _shares(scenario):
        curve, high = scenario.model.curves[name], scenario.limits[name].max
        tops.append(curve.rate(high if curve.best is None else min(high, curve.best)) / share)
    return min(tops, default=0.0)


def _sized(scenario: Scenario, rate: float) -> Parallelism:
    """Return the smallest vector that sustains `rate`; an operator of unknown capacity keeps what it has."""
    found = dict(scenario.current)
    for name, share in _shares(scenario):
        limits = scenario.limits[name]
        needed = scenario.model.curves[name].needed(rate * share)
        found[name] = limits.max if needed is None else max(limits.min, min(needed, limits.max))
    return found


def is_ridden(scenario: Scenario, ride: Ride, request: Request) -> bool:
    """Return whether the present excursion is one of those that the present parallelism rides out, and growing would be
    in time an interval later if it is not."""
    limit, now = scenario.limit_seconds, scenario.current
    is_usual = ride.present_seconds <= LONGER * ride.longest_seconds
    if limit is None or not is_usual or any(now[name] < p for name, p in ride.vector.items()):
        return False
    lag, arriving = scenario.analysis.lag_seconds.value, sum(scenario.model.arrivals.values())
    if lag is None:
        return False
    growing = max(0.0, 1 - ride.rate / arriving) if arriving > 0 else 0.0
    later = lag + request.policy.spec.interval.total_seconds() * growing
    return later + scenario.restart.seconds + scenario.restart.replay_seconds <= limit


def ridden(scenario: Scenario, ride: Ride) -> Choice:
    """Return the choice for a load that swings: the smallest vector on which lag stays within the objective."""
    hold = holding(scenario)
    vector = {name: min(p, ride.vector[name]) for name, p in hold.vector.items()}
    swings = f"the load swings below the {ride.rate:,.0f} records/s that this sustains"
    if ride.excursions:
        times = "once" if ride.excursions == 1 else f"{ride.excursions} times"
        swings = (
            f"the load exceeded {ride.rate:,.0f} records/s {times}, for at most {ride.longest_seconds:.0f} s: "
            f"lag rises to {ride.lag_seconds:.1f} s"
        )
    cost = cost_of(scenario, vector)
    if cost[0] >= hold.cost[0]:
        return Choice(None, "swings-ridden", swings)
    option = Option(vector, scenario.going([vector])[0], cost)
    return Choice(option, "swings-ridden", f"{changes(hold.vector, vector)}: {swings}")
