"""A deterministic model of a streaming application: hours in seconds, time an argument, chance from a seed."""

from .engine import Simulation
from .faults import Conditions, Fault, Noise
from .observe import Observer
from .presets import PRESETS, chain, diamond, two_sources
from .spec import Application, Cluster, InvalidApplication, Link, OperatorSpec, SourceSpec, parse

__all__ = [
    "PRESETS",
    "Application",
    "Cluster",
    "Conditions",
    "Fault",
    "InvalidApplication",
    "Link",
    "Noise",
    "Observer",
    "OperatorSpec",
    "Simulation",
    "SourceSpec",
    "chain",
    "diamond",
    "parse",
    "two_sources",
]
