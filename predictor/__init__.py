"""The predictor: what an application does at parallelisms and loads that it may never have had.

Capacity curves from measured points, flow through the graph, and the trajectory of lag. Pure: contracts and numpy. The
planner decides with it and knowledge answers `what-if` with it, so both give the same answer for the same analysis.
"""

from .answer import what_if
from .arrivals import ArrivalPath
from .capacity import CapacityCurve, LowerBound, curve_of, lower_bounds_of
from .case import NotYet
from .coming import Coming, coming, growth_seconds, has_believed, is_believed, seconds_until_capacity
from .comparison import (
    Assumptions,
    Compared,
    Comparison,
    TooLittle,
    compare,
    comparison_of,
    is_overloaded,
    within_tolerance,
)
from .flow import Flow, arrivals_at, flow_of, loads_of, throttle
from .forecasts import Ahead, ahead_of
from .judgement import cost_of, judged
from .messages import changes
from .model import STAY, Backlog, Model, Restart
from .question import InvalidQuestion, Load, parse_at, parse_load, parse_parallelism
from .reading import Gap, model_of, restart_of
from .restarts import Restarts, restarts_of
from .trajectory import Outlook, predict

__all__ = [
    "STAY",
    "Ahead",
    "ArrivalPath",
    "Assumptions",
    "Backlog",
    "CapacityCurve",
    "Coming",
    "Compared",
    "Comparison",
    "Flow",
    "Gap",
    "InvalidQuestion",
    "Load",
    "LowerBound",
    "Model",
    "NotYet",
    "Outlook",
    "Restart",
    "Restarts",
    "TooLittle",
    "ahead_of",
    "arrivals_at",
    "changes",
    "coming",
    "compare",
    "comparison_of",
    "cost_of",
    "curve_of",
    "flow_of",
    "growth_seconds",
    "has_believed",
    "is_believed",
    "is_overloaded",
    "judged",
    "loads_of",
    "lower_bounds_of",
    "model_of",
    "parse_at",
    "parse_load",
    "parse_parallelism",
    "predict",
    "restart_of",
    "restarts_of",
    "seconds_until_capacity",
    "throttle",
    "what_if",
    "within_tolerance",
]
