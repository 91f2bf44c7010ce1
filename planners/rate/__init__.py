"""The planner `rate`. Start with `planner.py`: the rule; `case.py` is what it asks of each operator."""

from .case import RateParameters
from .planner import plan_by_rate

__all__ = ["RateParameters", "plan_by_rate"]
