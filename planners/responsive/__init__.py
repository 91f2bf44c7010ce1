"""Responsive's policy. Start with `planner.py`: the rule; `diagnosers.py` are its formulas and their inputs."""

from .parameters import ResponsiveParameters
from .planner import plan_by_responsive

__all__ = ["ResponsiveParameters", "plan_by_responsive"]
