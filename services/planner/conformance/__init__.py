"""Conformance of a planner to the plugin contract: requests to send, and checks of its replies."""

from .suite import CHECKS, Finding, Report, check_planner

__all__ = ["CHECKS", "Finding", "Report", "check_planner"]
