"""The planner `rate`. Start with `planner.py`, the rule; `sizing.py` sizes each operator by its demand, `rising.py` knows a
load that rises, and `cold.py` takes the first step before any capacity is known."""

from .planner import plan_by_rate
from .sizing import RateParameters

__all__ = ["RateParameters", "plan_by_rate"]
