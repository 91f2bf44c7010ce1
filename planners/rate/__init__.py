"""The planner `rate`. Start with `planner.py`: the rule; `case.py` is what it goes by."""

from .case import RateParameters
from .planner import Foreseen, foresee, plan_by_rate

__all__ = ["Foreseen", "RateParameters", "foresee", "plan_by_rate"]
