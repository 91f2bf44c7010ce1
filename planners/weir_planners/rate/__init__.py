"""The planner `rate`. Start with `planner.py`, the rule; `sizing.py` sizes each operator by its demand, `rising.py` knows a
load that rises, and `cold.py` takes the first step before any capacity is known."""

from .planner import plan_by_rate as plan_by_rate
