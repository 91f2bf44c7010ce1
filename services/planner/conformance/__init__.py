"""Whether somebody's planner keeps the plugin contract: cases to ask it, and what its answers are checked for."""

from .suite import CHECKS, Finding, Report, check_planner

__all__ = ["CHECKS", "Finding", "Report", "check_planner"]
