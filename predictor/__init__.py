"""The one predictor: what an application would do at parallelisms and loads it may never have had.

Capacity curves from what was learnt, flow through the graph, and the trajectory of lag. Pure: it knows the contracts and numpy. The
planner decides with it and knowledge answers `what-if` with it, so that both say the same of the same analysis.
"""

from .answer import NotYet, what_if
from .at_least import AtLeast, at_least_of
from .capacity import CapacityCurve, curve_of
from .comparison import Assumptions, Compared, Comparison, TooLittle, compare, comparison_of, is_overloaded, nearly
from .flow import Flow, arrivals_at, flow_of
from .limits import smallest_useful
from .question import InvalidQuestion, Load, parse_load, parse_parallelism
from .reading import Gap, model_of, restart_of
from .trajectory import STAY, Backlog, Model, Outlook, Restart, busiest, outlook, predict

__all__ = [
    "STAY",
    "Assumptions",
    "AtLeast",
    "Backlog",
    "CapacityCurve",
    "Compared",
    "Comparison",
    "Flow",
    "Gap",
    "InvalidQuestion",
    "Load",
    "Model",
    "NotYet",
    "Outlook",
    "Restart",
    "TooLittle",
    "arrivals_at",
    "at_least_of",
    "busiest",
    "compare",
    "comparison_of",
    "curve_of",
    "flow_of",
    "is_overloaded",
    "model_of",
    "nearly",
    "outlook",
    "parse_load",
    "parse_parallelism",
    "predict",
    "restart_of",
    "smallest_useful",
    "what_if",
]
