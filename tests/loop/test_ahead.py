"""Stories of loads that are foreseen, with slots that come after 5, 60 and 180 s.

The forecast is that of an analyzer that knows the load, or of one that is wrong. A story is lived with it and without: a
forecast has to be better than none.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from weir_contracts import Analysis, SourceForecast

from simulator import Application, chain, diamond, two_sources
from tests.loop.world import World, policy
from tests.unit.planner.forecasts import forecast

OBJECTIVE_SECONDS = 30.0
INTERVAL_SECONDS = 10.0
TAKES = (5.0, 60.0, 180.0)
Load = Callable[[float], float]


def skew(parallelism: int) -> Application:
    """The chain with a key that has a tenth of all records."""
    application = chain(parallelism)
    operators = [
        o.model_copy(update={"hot_key_share": 0.1}) if o.name == "enrich" else o for o in application.operators
    ]
    return application.model_copy(update={"operators": tuple(operators)})


APPLICATIONS: Mapping[str, Callable[[int], Application]] = {
    "chain": chain,
    "diamond": diamond,
    "two sources": two_sources,
    "skew": skew,
}


class Foreseen(World):
    """A world whose analyses carry forecasts: `expects` is the load that the analyzer expects, None none at all."""

    expects: Load | None = None
    slot_seconds = 0.0

    def _carried(self, message: Any) -> Any:
        if isinstance(message, Analysis):
            found = [] if self.expects is None else self._forecasts(self.simulation.now, self.expects)
            message = message.model_copy(update={"forecasts": found})
        return super()._carried(message)

    def _forecasts(self, now: float, expects: Load) -> list[SourceForecast]:
        shares = {o.name: o.source.share for o in self.simulation.application.operators if o.source}

        def of(share: float) -> Load:
            return lambda s: share * expects(now + s)

        return [forecast(of(share), operator=name) for name, share in shares.items()]

    def keep_score(self) -> None:
        """Count the slots from now on."""
        noted = self.simulation.on_step
        assert noted is not None

        def step(seconds: float) -> None:
            noted(seconds)
            self.slot_seconds += seconds * self.simulation.slots_used

        self.simulation.on_step = step

    def late_seconds(self) -> float:
        """Return the seconds above the objective since the lesson."""
        steps = pairwise(self.lags)
        return sum(at - before for (before, _), (at, lag) in steps if lag > OBJECTIVE_SECONDS and at > TAUGHT_SECONDS)

    @property
    def ahead(self) -> int:
        """Return the growths before a peak that were accepted."""
        plans = {plan.id for plan in self.plans if plan.code == "before-the-peak"}
        return len({o.plan_id for o in self.outcomes if o.plan_id in plans and o.phase == "verifying"})


TAUGHT_SECONDS = 900.0
"""Until then the load teaches capacity and how long slots take: it rises once, and falls."""


def taught(load: Load) -> Load:
    """The load after a lesson."""
    return lambda t: (700.0 if 200 <= t < 500 else 400.0) if t < TAUGHT_SECONDS else load(t - TAUGHT_SECONDS)


def lived(
    load: Load, *, takes: float, application: str = "chain", expects: Load | None = None, seconds: float = 1800.0
) -> Foreseen:
    """Live through the lesson and a load, whose second 0 is the lesson's end; `expects` is what the analyzer expects."""
    made = APPLICATIONS[application](1).on(new_slot_seconds=takes, stabilization_seconds=max(1.0, takes))
    rules = policy(interval=f"{INTERVAL_SECONDS:g}s", behavior={"scaleDown": {"stabilization": "60s"}})
    world = Foreseen(made, taught(load), policy=rules)
    world.expects = None if expects is None else taught(expects)
    world.live(TAUGHT_SECONDS).keep_score()
    world.live(seconds)
    return world


def slow_wave(t: float) -> float:
    """400 to 2,000 records/s and back within half an hour."""
    return 1200 - 800 * math.cos(2 * math.pi * t / 1800)


def flash_crowd(t: float) -> float:
    """Five times the load from one second to the next, for ten minutes."""
    return 2000.0 if 600 <= t < 1200 else 400.0


def sawtooth(t: float) -> float:
    """Rises for seven minutes, and falls at once."""
    return 400 + 1600 * (t % 420) / 420


def bursts(t: float) -> float:
    """Four times the load for 4 s, every other minute."""
    return 1600.0 if t % 120 >= 116 else 400.0


def calm(t: float) -> float:
    """Always the same."""
    return 400.0


def outage(t: float) -> float:
    """Nothing arrives for five minutes before the flash crowd."""
    return 2.0 if 300 <= t < 590 else flash_crowd(t)


LOADS: Mapping[str, Load] = {
    "slow wave": slow_wave,
    "flash crowd": flash_crowd,
    "sawtooth": sawtooth,
    "bursts": bursts,
    "outage": outage,
}
