"""Responsive's policy. Start with `planner.py`: the rule; `diagnosers.py` are its formulas and their inputs."""

from .planner import plan_by_responsive as plan_by_responsive
