"""The planner `rate`. Start with `planner.py`, the rule; `sizing.py` sizes each operator by its demand."""

from .planner import plan_by_rate
from .sizing import RateParameters

__all__ = ["RateParameters", "plan_by_rate"]
