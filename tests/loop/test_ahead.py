"""Stories of loads that are foreseen, with slots that come after 5, 60 and 180 s.

The forecast is that of an analyzer that knows the load, or of one that is wrong. A story is lived with it and without: a
forecast has to be better than none.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from weir_contracts import Analysis

from simulator import Application, chain, diamond, two_sources
from tests.effort import thorough
from tests.loop.world import World, policy
from tests.unit.planner.forecasts import forecast

OBJECTIVE_SECONDS = 30.0
INTERVAL_SECONDS = 10.0
TAKES = (5.0, 60.0, 180.0)
Load = Callable[[float], float]


def skew(parallelism: int) -> Application:
    """The chain with a key that has a tenth of all records."""
    application = chain(parallelism)
    operators = [o.model_copy(update={"hot_key_share": 0.1}) if o.name == "enrich" else o for o in application.operators]
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
    above = 1.1

    def _carried(self, message: Any) -> Any:
        if isinstance(message, Analysis) and self.expects is not None:
            message = message.model_copy(update={"forecasts": self._forecasts(self.simulation.now, self.expects)})
        return super()._carried(message)

    def _forecasts(self, now: float, expects: Load) -> list[Any]:
        shares = {o.name: o.source.share for o in self.simulation.application.operators if o.source}
        return [
            forecast(lambda s, share=share: share * expects(now + s), operator=name, above=self.above)
            for name, share in shares.items()
        ]

    def late_seconds(self, since: float = 0.0) -> float:
        """Return the seconds above the objective from a second on."""
        found, before = 0.0, 0.0
        for at, lag in self.lags:
            found += (at - before) * (lag > OBJECTIVE_SECONDS and at > since)
            before = at
        return found

    @property
    def ahead(self) -> int:
        """Return the growths before a peak."""
        return sum(plan.code == "before-the-peak" and plan.kind == "scale" for plan in self.plans)


TAUGHT_SECONDS = 900.0
"""Until then the load teaches capacity and how long slots take: it rises once, and falls."""


def taught(load: Load) -> Load:
    """The load after a lesson."""
    return lambda t: (700.0 if 200 <= t < 500 else 400.0) if t < TAUGHT_SECONDS else load(t - TAUGHT_SECONDS)


def lived(
    load: Load,
    seconds: float,
    *,
    takes: float,
    application: str = "chain",
    expects: Load | None = None,
    above: float = 1.1,
) -> Foreseen:
    """Live through the lesson and a load, whose second 0 is the lesson's end; `expects` is what the analyzer expects."""
    made = APPLICATIONS[application](1).on(new_slot_seconds=takes, stabilization_seconds=max(1.0, takes))
    world = Foreseen(
        made, taught(load), policy=policy(interval=f"{INTERVAL_SECONDS:g}s", behavior={"scaleDown": {"stabilization": "60s"}})
    )
    world.expects = None if expects is None else taught(expects)
    world.above = above
    return world.live(TAUGHT_SECONDS + seconds)


def slow_wave(t: float) -> float:
    return 1200 - 800 * math.cos(2 * math.pi * t / 1800)


def flash_crowd(t: float) -> float:
    return 2000.0 if 600 <= t < 1200 else 400.0


def sawtooth(t: float) -> float:
    return 400 + 1600 * (t % 420) / 420


def bursts(t: float) -> float:
    return 1600.0 if t % 120 >= 116 else 400.0


LOADS: Mapping[str, Load] = {
    "slow wave": slow_wave,
    "flash crowd": flash_crowd,
    "sawtooth": sawtooth,
    "bursts": bursts,
}
