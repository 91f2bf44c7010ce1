"""Stories of a load that is forecast, with capacity that comes after 5, 60 and 180 s.

The forecast is scripted: the analyzer's own needs days. It says what `says` gives, and its bound has earned its coverage.
Each story is compared with the same load without a forecast.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import pytest

from tests.effort import exploring, some, thorough
from tests.loop.world import World, policy
from tests.unit.planner.forecasts import forecast
from weir_contracts import Analysis
from weir_replay.loop import Message
from weir_replay.simulator import Application, Noise, chain, diamond, two_sources
from weir_replay.simulator.world import START

Rate = Callable[[float], float]
NINE = 1500.0 if thorough() else 1200.0
"""The second at which the day's peak begins."""
LOW, HIGH, UPPER = 600.0, 2000.0, 1.05
LATE_SECONDS = 30.0
SETTLED_SECONDS, SECONDS = 900.0, 3000.0 if thorough() else NINE + 400
TOLERANCE_SECONDS = 5.0
"""A growth one cycle earlier or later, and its restart."""


def wave(at: float) -> float:
    """A slow wave of forty minutes."""
    share = abs((at / 1200.0) % 2 - 1)
    return HIGH - (HIGH - LOW) * share


def flash(at: float) -> float:
    """A flash crowd: within 20 s, for five minutes."""
    return LOW + (HIGH - LOW) * min(1.0, max(0.0, min(at - NINE, NINE + 340 - at) / 20))


def sawtooth(at: float) -> float:
    """Up for seven minutes, down at once."""
    return LOW + (HIGH - LOW) / 2 * ((at % 420.0) / 420.0)


def bursts(at: float) -> float:
    """Four seconds in each minute."""
    return HIGH if at % 60.0 < 4.0 else LOW


def nine(at: float) -> float:
    """The day's peak: up within two minutes at nine, for fifteen minutes."""
    return LOW + (HIGH - LOW) * min(1.0, max(0.0, min(at - NINE, NINE + 1140 - at) / 120))


def calm(_at: float) -> float:
    return LOW


def after_a_growth(load: Rate) -> Rate:
    """The load, and before it a step that each topology has to grow for: from then on it is known how long new capacity
    takes to come."""
    return lambda at: load(at) if at >= SETTLED_SECONDS else HIGH if 60 <= at < 180 else LOW


def outage(at: float) -> float:
    """Nothing arrives for five minutes before the day's peak; what the producer kept comes with it."""
    if NINE - 360 <= at < NINE - 60:
        return LOW * 0.01
    return nine(at) + (LOW if NINE - 60 <= at < NINE + 240 else 0.0)


@dataclass(eq=False)
class Forecast:
    """A scripted forecast: the total rate of each second to come, in the sources' first mix."""

    says: Rate
    gives_up_at: float = math.inf
    """From then on it says what it sees: the peak did not come."""
    shares: dict[str, float] = field(default_factory=dict)

    def of(self, analysis: Analysis) -> Analysis:
        """Return the analysis with the forecast of each source."""
        now = (analysis.observed_at - START).total_seconds()
        rates = {source.operator: source.arrival_rate.value for source in analysis.sources}
        total = sum(rate or 0.0 for rate in rates.values())
        if not self.shares and total > 0:
            self.shares = {name: (rate or 0.0) / total for name, rate in rates.items()}
        found = [
            forecast(self._course(now, share, total), operator=name, above=UPPER) for name, share in self.shares.items()
        ]
        return analysis.model_copy(update={"forecasts": found})

    def _course(self, now: float, share: float, total: float) -> Rate:
        if now >= self.gives_up_at:
            return lambda _: share * total
        return lambda s: share * self.says(now + s)


class ForecastWorld(World):
    """A world whose analyses carry a scripted forecast; `forecast` None: none."""

    forecast: Forecast | None = None

    def _carried(self, message: Message) -> Message | None:
        if isinstance(message, Analysis) and self.forecast is not None:
            message = self.forecast.of(message)
        return super()._carried(message)

    def simulated(self, application: Any) -> Any:
        simulation = super().simulated(application)
        self.late_seconds = self.slot_seconds = 0.0
        return simulation

    def counted(self) -> "ForecastWorld":
        """Count late time and slot-seconds from now on."""

        def step(seconds: float) -> None:
            self.lags.append((self.simulation.now, self.simulation.lag_seconds))
            self.late_seconds += seconds * (self.simulation.lag_seconds > LATE_SECONDS)
            self.slot_seconds += seconds * self.simulation.slots_used

        self.simulation.on_step = step
        return self


def skewed() -> Application:
    """A chain with one hot key."""
    found = chain(1)
    operators = (o.model_copy(update={"hot_key_share": 0.1 * (o.name == "enrich")}) for o in found.operators)
    return found.model_copy(update={"operators": tuple(operators)})


TOPOLOGIES: dict[str, Callable[[], Application]] = {
    "chain": lambda: chain(1),
    "diamond": lambda: diamond(1),
    "two-sources": lambda: two_sources(1),
    "skew": skewed,
}


class Figures(NamedTuple):
    """Figures of a story, after its first quarter of an hour."""

    late_seconds: float
    slot_seconds: float
    grown_ahead: int
    """Plans that grew before a peak."""


@cache
def figures(load: Rate, capacity_seconds: float, forecast: Forecast | None, topology: str) -> Figures:
    """Live through a load with this forecast. The first quarter of an hour does not count: capacity and its wait are learned."""
    application = TOPOLOGIES[topology]().on(
        new_slot_seconds=capacity_seconds, stabilization_seconds=max(1.0, capacity_seconds), slots=64
    )
    bounded = policy(bounds={"min": 1, "max": 24}, interval="10s")
    world = ForecastWorld(application, after_a_growth(load), policy=bounded, noise=Noise(relative=0.02), seed=3)
    world.forecast = forecast
    world.live(SETTLED_SECONDS)
    world.counted().live(SECONDS - SETTLED_SECONDS)
    return Figures(world.late_seconds, world.slot_seconds, sum(plan.code == "before-the-peak" for plan in world.plans))


CASES = [(180.0, "chain"), (180.0, "two-sources"), (60.0, "diamond"), (5.0, "skew")]
"""Seconds until new capacity is there, and topology. A quick run has the first."""
each_case = pytest.mark.parametrize(("seconds", "topology"), some(CASES, len(CASES)))
both_ends = pytest.mark.parametrize(("seconds", "topology"), CASES if exploring() else [CASES[0], CASES[-1]])
"""The longest wait and the shortest; all of them in `pytest --explore`."""


@each_case
def test_the_peak_of_each_day_at_nine_is_met(seconds: float, topology: str) -> None:
    """Known from the days before: at most a third of the late time without the forecast; where there is any to gain, for at
    most a tenth more slots."""
    before, found = (figures(nine, seconds, each, topology) for each in (None, Forecast(nine)))
    assert found.late_seconds <= before.late_seconds / 3
    assert found.slot_seconds <= 1.1 * before.slot_seconds or before.late_seconds < TOLERANCE_SECONDS


@pytest.mark.thorough
@both_ends
def test_a_peak_that_does_not_come_costs_one_growth(seconds: float, topology: str) -> None:
    """At most one, and nothing is late."""
    found = figures(calm, seconds, Forecast(nine, gives_up_at=NINE + 120), topology)
    assert found.grown_ahead <= 1
    assert found.late_seconds == 0


@pytest.mark.thorough
@both_ends
def test_an_outage_before_the_peak_is_no_worse_with_the_forecast(seconds: float, topology: str) -> None:
    """Little arrives for five minutes, then what the producer kept, then the peak: the forecast was right about that."""
    before, found = (figures(outage, seconds, each, topology) for each in (None, Forecast(nine)))
    assert found.late_seconds <= before.late_seconds + TOLERANCE_SECONDS


@pytest.mark.thorough
@both_ends
def test_a_forecast_that_is_wrong_holds_no_growth_back(seconds: float, topology: str) -> None:
    """It says that nothing changes, and the peak comes."""
    before, found = (figures(nine, seconds, each, topology) for each in (None, Forecast(calm)))
    assert found.late_seconds <= before.late_seconds + TOLERANCE_SECONDS


@pytest.mark.thorough
@both_ends
def test_a_flash_crowd_that_is_forecast_is_met(seconds: float, topology: str) -> None:
    """Late at most a third of the time without the forecast."""
    before, found = (figures(flash, seconds, each, topology) for each in (None, Forecast(flash)))
    assert found.late_seconds <= before.late_seconds / 3


@pytest.mark.thorough
@pytest.mark.parametrize("load", [wave, sawtooth, bursts])
@both_ends
def test_a_forecast_load_is_never_later_for_it(load: Rate, seconds: float, topology: str) -> None:
    """A slow wave, a sawtooth of minutes and bursts of seconds: no later than without the forecast."""
    before, found = (figures(load, seconds, each, topology) for each in (None, Forecast(load)))
    assert found.late_seconds <= before.late_seconds + TOLERANCE_SECONDS
