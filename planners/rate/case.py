"""What `rate` asks of each operator, and the planner's parameters."""

from dataclasses import dataclass

from pydantic import Field

from predictor import Assumptions, CapacityCurve, Comparison


class RateParameters(Assumptions):
    """The planner's own settings."""

    arrival_margin: float = Field(
        default=0.1, ge=0, le=2, description="arrivals are taken to be this much higher before anything is shrunk"
    )
    least_saving: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the slots that must be saved for a scale-down to be worth a restart",
    )


@dataclass(slots=True)
class Demand:
    """What is asked of one operator, whatever the haste, and what it may be given."""

    operator: str
    now: int
    least: int
    most: int
    highest: int
    """What is worth having: `most`, but no more than does more."""
    curve: CapacityCurve | None
    steady: float | None
    """Records/s that arrive, over the target utilisation; None: it cannot be told."""
    waiting: float
    """Records of the backlog and of a restart."""


def demands_of(case: Comparison, margin: float) -> list[Demand]:
    """Return the demand of each operator, with arrivals `margin` higher than now."""
    model, loads = case.model, case.model.loads
    waiting, target, restart = case.waiting, case.target_utilisation, case.restart.seconds
    found = []
    for name, (least, most, _) in case.limits.items():
        now, curve, load = case.current[name], model.curves.get(name), loads.get(name)
        best = None if curve is None else curve.best
        highest = most if best is None else min(most, max(best, now))
        steady, left = None, 0.0
        if load is not None:
            asked = load * (1 + margin)  # what reaches an operator grows with the arrivals
            steady, left = asked / target, waiting[name] + asked * restart
        found.append(Demand(name, now, least, most, highest, curve, steady, left))
    return found
