"""Daedalus. Start with `planner.py`: the rule and its formulas; what is learned of the application and its load is in
the others."""

from .planner import plan_by_daedalus as plan_by_daedalus
