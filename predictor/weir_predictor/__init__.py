"""The predictor: what an application does at parallelisms and loads that it may never have had.

Capacity curves from measured points, flow through the graph, and the trajectory of lag. Pure: contracts and numpy. The
planner decides with it and knowledge answers `what-if` with it, so both give the same answer for the same analysis.
"""

from .capacity import CapacityCurve as CapacityCurve
from .capacity import curve_of as curve_of
from .capacity import lower_bounds_of as lower_bounds_of
from .case import InvalidQuestion as InvalidQuestion
from .case import NotYet as NotYet
from .flow import arrivals_at as arrivals_at
from .flow import loads_of as loads_of
from .flow import throttle as throttle
from .forecast import Ahead as Ahead
from .forecast import ArrivalPath as ArrivalPath
from .forecast import Coming as Coming
from .forecast import ahead_of as ahead_of
from .forecast import coming as coming
from .forecast import has_believed as has_believed
from .judgement import cost_of as cost_of
from .judgement import judged as judged
from .model import Backlog as Backlog
from .model import Model as Model
from .model import Restart as Restart
from .reading import Gap as Gap
from .reading import model_of as model_of
from .reading import restart_of as restart_of
from .restarts import Restarts as Restarts
from .restarts import growth_seconds as growth_seconds
from .restarts import restarts_of as restarts_of
from .restarts import seconds_until_capacity as seconds_until_capacity
from .scenario import Assumptions as Assumptions
from .scenario import Compared as Compared
from .scenario import Scenario as Scenario
from .scenario import TooLittle as TooLittle
from .scenario import compare as compare
from .scenario import is_overloaded as is_overloaded
from .scenario import scenario_of as scenario_of
from .trajectory import Outlook as Outlook
from .trajectory import predict as predict
from .what_if import Load as Load
from .what_if import parse_at as parse_at
from .what_if import parse_load as parse_load
from .what_if import parse_parallelism as parse_parallelism
from .what_if import what_if as what_if
